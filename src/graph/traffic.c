/*
 * traffic.c - the buckets that pad a record of steps least.
 *
 * A step goes to the bucket with the fewest tokens that holds it, so with buckets
 * t_1 < ... < t_K the steps of (t_(k-1), t_k] tokens share bucket k, and giving it the largest bs
 * among them serves them all. Spare requests of a packed bucket hold no tokens: bs is free, and the
 * best choice over (bs, tokens) is the best way to cut the sorted token counts into K runs, each
 * padded to its last. With W and S the running sums of steps and of their tokens, a run (i, j]
 * costs t_j (W_j - W_i) - (S_j - S_i). That cost obeys the quadrangle inequality, so the best i of
 * a run that ends at j never falls as j grows, and each layer of the programme is solved by halving
 * in O(n log n) (Yao 1980; Galil and Park 1992).
 */
#include <string.h>

#include "graph/graph.h"

/* Steps of one token count. */
typedef struct level {
    int64_t num_tokens, bs, count;
} level;

/* ---- from steps to levels -------------------------------------------------------------------- */

static mstar_status check_steps(const mstar_traffic_step *steps, int64_t num_steps)
{
    MST_TRY(mst_check_range("num_steps", num_steps, 0, INT32_MAX));
    if (num_steps > 0)
        MST_TRY(mst_check_not_null("steps", steps));
    int64_t count = 0;
    for (int64_t i = 0; i < num_steps; i++) {
        const mstar_traffic_step *step = &steps[i];
        mstar_status status = mst_check_range("bs", step->bs, 1, MSTAR_MAX_BATCH_SIZE);
        if (status == MSTAR_OK)
            status = mst_check_range("num_tokens", step->num_tokens, 0, INT32_MAX);
        if (status == MSTAR_OK)
            status = mst_check_range("count", step->count, 0, INT32_MAX);
        if (status != MSTAR_OK)
            return mst_fail_in(status, "steps[%lld]", (long long)i);
        count += step->count; /* fewer than 2^62 */
    }
    /* tokens of all steps, padded to the largest, then fit an int64 */
    return mst_check_range("the count of all steps", count, 0, INT32_MAX);
}

static void merge(level *levels, int64_t middle, int64_t count, level *spare)
{
    int64_t a = 0, b = middle;
    for (int64_t i = 0; i < count; i++) {
        bool take_b = b < count && (a == middle || levels[b].num_tokens < levels[a].num_tokens);
        spare[i] = take_b ? levels[b++] : levels[a++];
    }
    memcpy(levels, spare, (size_t)count * sizeof *levels);
}

/* Sorts by tokens and joins equal ones; returns how many are left. */
static int64_t make_levels(const mstar_traffic_step *steps, int64_t num_steps, level *levels,
                           level *spare)
{
    for (int64_t i = 0; i < num_steps; i++)
        levels[i] = (level){steps[i].num_tokens, steps[i].bs, steps[i].count};
    for (int64_t width = 1; width < num_steps; width *= 2) {
        for (int64_t first = 0; first + width < num_steps; first += 2 * width)
            merge(levels + first, width, mst_min_i64(2 * width, num_steps - first), spare);
    }
    int64_t count = 0;
    for (int64_t i = 0; i < num_steps; i++) {
        level *last = count > 0 ? &levels[count - 1] : NULL;
        if (last != NULL && last->num_tokens == levels[i].num_tokens) {
            last->bs = mst_max_i64(last->bs, levels[i].bs);
            last->count += levels[i].count;
        } else {
            levels[count++] = levels[i];
        }
    }
    return count;
}

/* ---- the programme --------------------------------------------------------------------------- */

typedef struct programme {
    const level *levels;
    int64_t n;
    int64_t *steps, *tokens; /* running sums, n + 1 each */
    int64_t *before, *now;   /* best cost of the first j levels with one bucket less, and now */
    int32_t *starts;         /* [buckets][n + 1]: where the last run of the best cut starts */
} programme;

/* Padding of levels (i, j] in one bucket. */
static int64_t run_cost(const programme *p, int64_t i, int64_t j)
{
    return p->levels[j - 1].num_tokens * (p->steps[j] - p->steps[i]) -
           (p->tokens[j] - p->tokens[i]);
}

/* now[j] for j in low..high, whose best starts lie in first..last. */
static void solve(const programme *p, int32_t *starts, int64_t low, int64_t high, int64_t first,
                  int64_t last)
{
    while (low <= high) {
        int64_t j = low + (high - low) / 2;
        int64_t best = INT64_MAX, start = first;
        for (int64_t i = first; i <= mst_min_i64(last, j - 1); i++) {
            int64_t cost = p->before[i] + run_cost(p, i, j);
            if (cost < best) {
                best = cost;
                start = i;
            }
        }
        p->now[j] = best;
        starts[j] = (int32_t)start;
        solve(p, starts, low, j - 1, first, start);
        low = j + 1;
        first = start;
    }
}

static void put_bucket(const programme *p, int64_t i, int64_t j, mstar_traffic_bucket *bucket)
{
    *bucket = (mstar_traffic_bucket){
        .num_tokens = p->levels[j - 1].num_tokens,
        .steps = p->steps[j] - p->steps[i],
        .tokens = p->tokens[j] - p->tokens[i],
        .padding_tokens = run_cost(p, i, j),
    };
    for (int64_t k = i; k < j; k++)
        bucket->bs = mst_max_i64(bucket->bs, p->levels[k].bs);
}

/* Cuts all levels into the fewest runs, at most max_buckets, of the least cost; how many. */
static int64_t cut(programme *p, int64_t max_buckets, mstar_traffic_bucket *buckets)
{
    int64_t n = p->n;
    for (int64_t j = 1; j <= n; j++) {
        p->steps[j] = p->steps[j - 1] + p->levels[j - 1].count;
        p->tokens[j] = p->tokens[j - 1] + p->levels[j - 1].count * p->levels[j - 1].num_tokens;
        p->now[j] = run_cost(p, 0, j);
        p->starts[j] = 0;
    }
    int64_t used = 1, least = p->now[n];
    for (int64_t k = 2; k <= max_buckets && least > 0; k++) {
        int64_t *spare = p->before;
        p->before = p->now;
        p->now = spare;
        solve(p, p->starts + (k - 1) * (n + 1), k, n, k - 1, n - 1);
        if (p->now[n] < least) {
            least = p->now[n];
            used = k;
        }
    }
    for (int64_t k = used, j = n; k >= 1; k--) {
        int64_t i = p->starts[(k - 1) * (n + 1) + j];
        put_bucket(p, i, j, &buckets[k - 1]);
        j = i;
    }
    return used;
}

static mstar_status plan_levels(const level *levels, int64_t n, int64_t max_buckets,
                                mstar_traffic_bucket *buckets, int64_t *num_buckets)
{
    if (n == 0) {
        *num_buckets = 0;
        return MSTAR_OK;
    }
    programme p = {.levels = levels, .n = n};
    int64_t *sums;
    max_buckets = mst_min_i64(max_buckets, n);
    MST_TRY(mst_alloc_array(4 * (n + 1), sizeof *sums, "sums of traffic", (void **)&sums));
    p.steps = sums;
    p.tokens = p.steps + n + 1;
    p.before = p.tokens + n + 1;
    p.now = p.before + n + 1;
    mstar_status status = mst_alloc_array(max_buckets * (n + 1), sizeof *p.starts,
                                          "cuts of traffic", (void **)&p.starts);
    if (status == MSTAR_OK)
        *num_buckets = cut(&p, max_buckets, buckets);
    mst_free(p.starts);
    mst_free(sums);
    return status;
}

mstar_status mstar_traffic_plan(const mstar_traffic_step *steps, int64_t num_steps,
                                int64_t max_buckets, mstar_traffic_bucket *buckets,
                                int64_t *num_buckets)
{
    MST_TRY(check_steps(steps, num_steps));
    MST_TRY(mst_check_range("max_buckets", max_buckets, 1, 65536));
    MST_TRY(mst_check_not_null("buckets", buckets));
    MST_TRY(mst_check_not_null("num_buckets", num_buckets));
    level *levels;
    MST_TRY(mst_alloc_array(2 * num_steps, sizeof *levels, "levels of traffic", (void **)&levels));
    int64_t n = make_levels(steps, num_steps, levels, levels + num_steps);
    mstar_status status = plan_levels(levels, n, max_buckets, buckets, num_buckets);
    mst_free(levels);
    return status;
}

/* ---- from lengths to steps ------------------------------------------------------------------- */

mstar_status mstar_traffic_batch(const int64_t *lengths, int64_t num_lengths, int64_t batch_size,
                                 int64_t max_tokens, mstar_traffic_step *steps, int64_t *num_steps)
{
    MST_TRY(mst_check_range("num_lengths", num_lengths, 0, INT32_MAX));
    MST_TRY(mst_check_range("batch_size", batch_size, -1, MSTAR_MAX_BATCH_SIZE));
    MST_TRY(mst_check_range("max_tokens", max_tokens, -1, INT32_MAX));
    MST_TRY(mst_check_not_null("num_steps", num_steps));
    if (batch_size == 0)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "batch_size is 0; it must be from 1 to %d, or -1",
                        MSTAR_MAX_BATCH_SIZE);
    if (batch_size > 0 && max_tokens >= 0)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "batch_size is %lld and max_tokens is %lld; one of them must be -1",
                        (long long)batch_size, (long long)max_tokens);
    if (num_lengths > 0) {
        MST_TRY(mst_check_not_null("lengths", lengths));
        MST_TRY(mst_check_not_null("steps", steps));
    }
    if (max_tokens < 0 && batch_size < 0)
        batch_size = 1;
    int64_t most_requests = batch_size > 0 ? batch_size : MSTAR_MAX_BATCH_SIZE;
    int64_t most_tokens = max_tokens >= 0 ? max_tokens : INT32_MAX;
    for (int64_t i = 0; i < num_lengths; i++) {
        if (lengths[i] < 0 || lengths[i] > most_tokens)
            return mst_fail(MSTAR_INVALID_ARGUMENT,
                            "lengths[%lld] is %lld; it must be from 0 to %lld", (long long)i,
                            (long long)lengths[i], (long long)most_tokens);
    }
    int64_t count = 0;
    for (int64_t i = 0; i < num_lengths; i++) {
        mstar_traffic_step *open = count > 0 ? &steps[count - 1] : NULL;
        if (open == NULL || open->bs == most_requests ||
            open->num_tokens + lengths[i] > most_tokens) {
            steps[count++] = (mstar_traffic_step){1, lengths[i], 1};
            continue;
        }
        open->bs++;
        open->num_tokens += lengths[i];
    }
    *num_steps = count;
    return MSTAR_OK;
}

/* ---- what given buckets do ------------------------------------------------------------------- */

static bool serves_better(const mstar_traffic_bucket *bucket, const mstar_traffic_step *step,
                          const mstar_traffic_bucket *best)
{
    if (bucket->bs < step->bs || bucket->num_tokens < step->num_tokens)
        return false;
    if (best == NULL || bucket->num_tokens != best->num_tokens)
        return best == NULL || bucket->num_tokens < best->num_tokens;
    return bucket->bs < best->bs;
}

mstar_status mstar_traffic_serve(const mstar_traffic_step *steps, int64_t num_steps,
                                 mstar_traffic_bucket *buckets, int64_t num_buckets,
                                 int64_t *missed)
{
    MST_TRY(check_steps(steps, num_steps));
    MST_TRY(mst_check_range("num_buckets", num_buckets, 0, 65536));
    MST_TRY(mst_check_not_null("missed", missed));
    if (num_buckets > 0)
        MST_TRY(mst_check_not_null("buckets", buckets));
    for (int64_t i = 0; i < num_buckets; i++) {
        MST_TRY(mst_check_range("buckets.num_tokens", buckets[i].num_tokens, 0, INT32_MAX));
        buckets[i].steps = buckets[i].tokens = buckets[i].padding_tokens = 0;
    }
    *missed = 0;
    for (int64_t i = 0; i < num_steps; i++) {
        const mstar_traffic_step *step = &steps[i];
        mstar_traffic_bucket *best = NULL;
        for (int64_t j = 0; j < num_buckets; j++) {
            if (serves_better(&buckets[j], step, best))
                best = &buckets[j];
        }
        if (best == NULL) {
            *missed += step->count;
            continue;
        }
        best->steps += step->count;
        best->tokens += step->count * step->num_tokens;
        best->padding_tokens += step->count * (best->num_tokens - step->num_tokens);
    }
    return MSTAR_OK;
}

double mstar_traffic_waste(const mstar_traffic_bucket *buckets, int64_t num_buckets)
{
    double padding = 0, tokens = 0;
    for (int64_t i = 0; buckets != NULL && i < num_buckets; i++) {
        padding += (double)buckets[i].padding_tokens;
        tokens += (double)buckets[i].tokens;
    }
    return padding + tokens > 0 ? padding / (padding + tokens) : 0;
}
