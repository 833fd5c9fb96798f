/* support_pairs.c - see support_pairs.h. */
#include "support_pairs.h"

#include <pthread.h>
#include <string.h>

#include "base/base.h"
#include "support_region.h"
#include "support_runner.h"

enum { MOST_STEPS = 8 };

typedef struct pair {
    int64_t number;
    check_rng rng;
    pair_counts *counts;
    int64_t max_bs, max_tokens; /* of its captures */
} pair;

/* Ascending numbers, the first from 1 to most and each so much larger than the one before. */
static int64_t draw_ascending(check_rng *rng, int64_t most_numbers, int64_t most, int64_t *numbers)
{
    int64_t count = check_integer(rng, 1, most_numbers), at = 0;
    for (int64_t i = 0; i < count; i++)
        numbers[i] = at += check_integer(rng, 1, most);
    return count;
}

/* ---- whole forwards -------------------------------------------------------------------------- */

static void open_whole(pair *p, bool managed, bench *b)
{
    int64_t sizes[3], lengths[3];
    bench_open(b, p->number % 64 == 0 ? 2 : 1);
    if (managed)
        node_manage(&b->node);
    b->num_configs = check_integer(&p->rng, 1, 2);
    for (int64_t c = 0; c < b->num_configs; c++) {
        int64_t num_sizes = draw_ascending(&p->rng, 2, 4, sizes);
        int64_t num_lengths = draw_ascending(&p->rng, 3, 60, lengths);
        int64_t length = check_integer(&p->rng, 0, 20);
        bool packed = check_integer(&p->rng, 0, 3) > 0;
        b->configs[c] = packed ? bench_packed("w", sizes, num_sizes, lengths, num_lengths)
                               : bench_batched("w", sizes, num_sizes, length);
        p->max_bs = mst_max_i64(p->max_bs, sizes[num_sizes - 1]);
        p->max_tokens = mst_max_i64(p->max_tokens, packed ? lengths[num_lengths - 1]
                                                          : length * sizes[num_sizes - 1]);
    }
    mstar_node_hooks hooks = node_hooks(&b->node);
    mstar_graph_runner_desc desc = bench_desc(b, &hooks);
    desc.num_slots = (int32_t)check_integer(&p->rng, 1, 3);
    desc.num_warmups = (int32_t)check_integer(&p->rng, 0, 1);
    bench_start(b, &desc);
}

/* Lengths of a step that most often fits a capture, and now and then has a request or some tokens
 * too many; returns how many. */
static int64_t draw_lengths(pair *p, int64_t *lengths)
{
    int64_t count = check_integer(&p->rng, 1, p->max_bs + (check_integer(&p->rng, 0, 7) == 0));
    int64_t left = p->max_tokens + (check_integer(&p->rng, 0, 7) == 0 ? 10 : 0);
    for (int64_t i = 0; i < count; i++) {
        lengths[i] = check_integer(&p->rng, 0, check_integer(&p->rng, 0, left));
        left -= lengths[i];
    }
    return count;
}

static void draw_step(pair *p, node_step *step)
{
    int64_t lengths[NODE_REQUESTS], count = draw_lengths(p, lengths);
    node_step_fill(step, &p->rng, lengths, count);
}

typedef struct ahead {
    mstar_graph_runner *runner;
    const node_step *step;
    bool built; /* its inputs are there */
    mstar_status status;
} ahead;

static void *plan_ahead(void *context)
{
    ahead *a = context;
    mstar_runner_step step;
    mstar_graph_miss miss;
    mstar_runner_step_init(&step);
    step.walk = "w";
    step.requests = a->step->requests;
    step.inputs = a->built ? a->step->inputs : NULL;
    step.count = a->step->count;
    a->status = mstar_graph_runner_pre_plan(a->runner, &step, &miss);
    return NULL;
}

static void same(const pair *p, int64_t at, const node_step *step, const node_result *got,
                 const node_result *want, const char *who)
{
    int64_t tokens = 0;
    for (int64_t i = 0; i < step->count; i++)
        tokens += step->inputs[i].input_seq_len;
    if (memcmp(got->pooled, want->pooled, (size_t)step->count * sizeof *got->pooled) != 0 ||
        memcmp(got->hidden, want->hidden, (size_t)tokens * sizeof *got->hidden) != 0)
        fail_msg("pair %lld, step %lld: the replay has other bits than %s", (long long)p->number,
                 (long long)at, who);
}

static void check_whole(pair *p, bool managed)
{
    static bench b;
    static node_step steps[MOST_STEPS + 1];
    static node_result replayed, eager, alone;
    open_whole(p, managed, &b);
    int64_t count = check_integer(&p->rng, 3, MOST_STEPS);
    bool ahead_of_time = managed && bench_query(&b).num_slots > 1 && p->number % 4 == 1;
    for (int64_t i = 0; i <= count; i++)
        draw_step(p, &steps[i]);
    for (int64_t i = 0; i < count; i++) {
        pthread_t thread;
        /* now and then a step is announced that does not come */
        ahead a = {.runner = b.runner,
                   .step = &steps[check_integer(&p->rng, 0, 4) > 0 ? i + 1 : 0],
                   .built = check_integer(&p->rng, 0, 2) > 0};
        bench_poison(&b);
        if (ahead_of_time)
            assert_int_equal(pthread_create(&thread, NULL, plan_ahead, &a), 0);
        mstar_graph_miss miss = node_run(b.runner, "w", &steps[i], 0, &replayed);
        if (ahead_of_time) {
            assert_int_equal(pthread_join(thread, NULL), 0);
            CHECK_OK(a.status);
            p->counts->ahead++;
        }
        *(miss == MSTAR_GRAPH_MISS_NONE ? &p->counts->replayed : &p->counts->eager) += 1;
        if (ahead_of_time && i % 2 == 1)
            continue; /* the plan made ahead meets its step */
        (void)node_run(b.runner, "w", &steps[i], 1, &eager);
        node_run_alone(b.runner, "w", &steps[i], &alone);
        same(p, i, &steps[i], &replayed, &eager, "eager");
        same(p, i, &steps[i], &replayed, &alone, "each request alone");
    }
    bench_close(&b);
}

/* ---- regions --------------------------------------------------------------------------------- */

static void check_region(pair *p)
{
    static region_bench b;
    int64_t sizes[2], totals[3];
    int64_t num_sizes = draw_ascending(&p->rng, 2, 2, sizes);
    int64_t num_totals = draw_ascending(&p->rng, 3, 50, totals);
    int64_t seq_len = check_integer(&p->rng, 0, 2) == 0 ? check_integer(&p->rng, 1, 20) : 0;
    region_bench_open(&b, sizes, num_sizes, seq_len, totals, num_totals);
    region_bench_start(&b);
    p->max_bs = sizes[num_sizes - 1];
    p->max_tokens = totals[num_totals - 1];
    int64_t count = check_integer(&p->rng, 3, MOST_STEPS);
    for (int64_t i = 0; i < count; i++) {
        int64_t lengths[NODE_REQUESTS], tokens = 0, bs = draw_lengths(p, lengths);
        for (int64_t j = 0; j < bs; j++)
            tokens += lengths[j] = seq_len > 0 ? seq_len : lengths[j];
        bool serves = mstar_region_runner_can_run(b.runner, bs, tokens) == MSTAR_GRAPH_MISS_NONE;
        *(serves ? &p->counts->replayed : &p->counts->eager) += 1;
        if (serves)
            (void)region_bench_check(&b, &p->rng, lengths, bs, bs);
    }
    region_bench_close(&b);
}

void pair_check(uint64_t seed, int64_t number, pair_counts *counts)
{
    pair p = {.number = number, .rng = {seed * 1000003 + (uint64_t)number}, .counts = counts};
    switch (number % 5) {
    case 0:
    case 2:
        check_whole(&p, false);
        break;
    case 4:
        check_region(&p);
        break;
    default:
        check_whole(&p, true);
    }
}
