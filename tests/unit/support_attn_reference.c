/*
 * support_attn_reference.c - attention in float64 from the definition, and how far a right f32
 * implementation may be from it.
 *
 * The bound. u = 2^-24, gamma(n) = n u / (1 - n u): the relative error of a sum of n products in
 * f32 in any order, fused or not, is at most gamma(n) of the sum of magnitudes (Higham, Accuracy
 * and Stability, 3.1). Inputs are exact in both. For one row and head:
 *
 *   scores   s_j = scale q.k_j has error at most  e_j = gamma(D + 4) |scale| sum |q_d k_jd|
 *            (4: rounding scale, multiplying by it, a factor log2 e folded in).
 *   weights  exp(s_j - m) is off by a factor in exp(+-E_j), E_j = e_j + 4u (|s_j| + |m|) + 16u:
 *            the subtraction and the change of base, the exponential's own few ulp, and rescaling
 *            when the running maximum m moves (m itself cancels between weights and their sum).
 *   softmax  P_j = p_j / sum p becomes P'_j in [P_j e^-E_j / G, P_j e^E_j / g], where
 *            G = sum P_i e^E_i and g = sum P_i e^-E_i. W_j is the larger distance, at most 1; for
 *            the heaviest key also at most the sum of the others' W, since the sum of P' is 1.
 *   output   sum_j (P'_j - P_j) v_j = sum_j (P'_j - P_j)(v_j - out) <= sum W_j |v_j - out|;
 *            adding up weights and weighted values in f32, with a rescaling a block:
 *            2 gamma(2 Lk + 16) sum (P_j + W_j) |v_j|; weights below 2^-126 may be flushed and
 *            products round in steps of 2^-149: Lk 2^-126 max |v| + (2 Lk + 8) 2^-149.
 *   bf16     bodies that multiply pairs of bf16 round each weight to 8 significant bits before it
 *            meets V (one key alone weighs exactly 1), and take values below 2^-126 for 0:
 *            2^-8 sum (P_j + W_j) |v_j| + 2^-126, allowed to those levels only (pair_bound).
 *   dtype    the result is rounded once: half an ulp of what is stored.
 *   lse      log sum p: the larger of log G and -log g, gamma(2 Lk + 16) for the sum, and a few u
 *            of m, of log and of the result.
 *
 * Where scores are so large that f32 cannot tell two keys apart, the bound grows to the size of the
 * values and says nothing; such elements are counted as loose, and a test bounds their number.
 */
#include "support_attn.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const double unit = 0x1p-24;

static double gamma_of(double n)
{
    return n * unit / (1.0 - n * unit);
}

/* Half an ulp of a value of this dtype, at most, where its magnitude is. */
static double rounding(mstar_dtype dtype, double magnitude)
{
    switch (dtype) {
    case MSTAR_DTYPE_BF16: /* 8 significant bits, least 2^-133 */
        return fmax(magnitude * 0x1p-8, 0x1p-134);
    case MSTAR_DTYPE_F16: /* 11 significant bits, least 2^-24 */
        return fmax(magnitude * 0x1p-11, 0x1p-25);
    default:
        return fmax(magnitude * unit, 0x1p-150);
    }
}

/* Scratch: the keys and values of one segment and kv head, and what one row makes of them. */
typedef struct row_work {
    double *keys, *values; /* [lk][D] */
    double *query;         /* [D] */
    double *score, *score_error, *weight, *log_weight, *weight_error;
    int64_t *key;
} row_work;

typedef struct row_place {
    const attn_problem *problem;
    const attn_data *data;
    double scale;
    int64_t row, head; /* of q */
    int64_t first_key; /* packed */
    int64_t lq, lk, r; /* of the segment */
} row_place;

static bool row_sees(const row_place *place, int64_t key)
{
    const attn_problem *problem = place->problem;
    int64_t distance = key - (place->lk - place->lq + place->r);
    return (!problem->causal || distance <= 0) &&
           (problem->window_left < 0 || -distance <= problem->window_left) &&
           (problem->window_right < 0 || distance <= problem->window_right);
}

static void load_keys(const row_place *place, const mstar_tensor *tensor, double *to)
{
    const attn_problem *problem = place->problem;
    int64_t dim = problem->head_dim;
    int64_t kv_head = place->head / (problem->num_qo_heads / problem->num_kv_heads);
    bool by_head = problem->kv_layout == MSTAR_KV_HND;
    for (int64_t j = 0; j < place->lk; j++) {
        int64_t row = place->first_key + j;
        for (int64_t d = 0; d < dim; d++)
            to[j * dim + d] =
                (double)attn_get(tensor, by_head ? kv_head : row, by_head ? row : kv_head, d);
    }
}

/* Scores of the visible keys and their error; returns how many there are. */
static int64_t score_keys(const row_place *place, row_work *work)
{
    int64_t count = 0;
    int64_t dim = place->problem->head_dim;
    for (int64_t d = 0; d < dim; d++)
        work->query[d] = (double)attn_get(&place->data->q.tensor, place->row, place->head, d);
    for (int64_t j = 0; j < place->lk; j++) {
        double dot = 0.0;
        double magnitude = 0.0;
        if (!row_sees(place, j))
            continue;
        for (int64_t d = 0; d < dim; d++) {
            double product = work->query[d] * work->keys[j * dim + d];
            dot += product;
            magnitude += fabs(product);
        }
        work->key[count] = j;
        work->score[count] = place->scale * dot;
        work->score_error[count] = gamma_of((double)dim + 4.0) * fabs(place->scale) * magnitude +
                                   /* products and sums below the least denormal */
                                   (double)(dim + 2) * 0x1p-149;
        count++;
    }
    return count;
}

/* Weights P_j, their bounds W_j, and the log-sum-exp with its bound. */
static void weigh_keys(int64_t count, row_work *work, double *lse, double *lse_bound)
{
    double max = -(double)INFINITY;
    double sum = 0.0;
    int64_t heaviest = 0;
    for (int64_t i = 0; i < count; i++) {
        if (work->score[i] > max) {
            max = work->score[i];
            heaviest = i;
        }
    }
    for (int64_t i = 0; i < count; i++)
        sum += exp(work->score[i] - max);
    *lse = max + log(sum);
    double log_high = 0.0; /* log G and log g, by way of their largest term */
    double log_low = -(double)INFINITY;
    for (int64_t i = 0; i < count; i++) {
        work->log_weight[i] = work->score[i] - *lse;
        work->weight[i] = exp(work->score[i] - max) / sum;
        work->score_error[i] += 4.0 * unit * (fabs(work->score[i]) + fabs(max)) + 16.0 * unit;
        log_high = fmax(log_high, work->log_weight[i] + work->score_error[i]);
        log_low = fmax(log_low, work->log_weight[i] - work->score_error[i]);
    }
    double high = 0.0;
    double low = 0.0;
    for (int64_t i = 0; i < count; i++) {
        high += exp(work->log_weight[i] + work->score_error[i] - log_high);
        low += exp(work->log_weight[i] - work->score_error[i] - log_low);
    }
    log_high += log(high);
    log_low += log(low);
    double others = 0.0;
    for (int64_t i = 0; i < count; i++) {
        double error = work->score_error[i];
        double up = exp(fmin(work->log_weight[i] + error - log_low, 0.0)) - work->weight[i];
        double down = work->weight[i] - exp(work->log_weight[i] - error - log_high);
        work->weight_error[i] = fmin(1.0, fmax(fmax(up, down), 0.0));
        if (i != heaviest)
            others += work->weight_error[i];
    }
    work->weight_error[heaviest] = fmin(work->weight_error[heaviest], others);
    *lse_bound = fmax(log_high, -log_low) + gamma_of(2.0 * (double)count + 16.0) +
                 4.0 * unit * (fabs(max) + fabs(*lse) + log((double)count + 1.0)) + 8.0 * unit;
}

static void reference_row(const row_place *place, row_work *work, attn_reference *reference)
{
    const attn_problem *problem = place->problem;
    int64_t dim = problem->head_dim;
    int64_t at = place->row * problem->num_qo_heads + place->head;
    int64_t count = score_keys(place, work);
    reference->elements += dim;
    if (count == 0) { /* exactly 0 and -inf: calloc has put the zeros */
        reference->lse[at] = -(double)INFINITY;
        return;
    }
    weigh_keys(count, work, &reference->lse[at], &reference->lse_bound[at]);
    for (int64_t d = 0; d < dim; d++) {
        double out = 0.0;
        double largest = 0.0;
        double moved = 0.0;
        double magnitude = 0.0;
        for (int64_t i = 0; i < count; i++)
            out += work->weight[i] * work->values[work->key[i] * dim + d];
        for (int64_t i = 0; i < count; i++) {
            double v = work->values[work->key[i] * dim + d];
            moved += work->weight_error[i] * fabs(v - out);
            magnitude += (work->weight[i] + work->weight_error[i]) * fabs(v);
            largest = fmax(largest, fabs(v));
        }
        double keys = (double)count;
        double steps = (2.0 * keys + 8.0) * 0x1p-149;
        double bound = moved + 2.0 * gamma_of(2.0 * keys + 16.0) * magnitude +
                       keys * 0x1p-126 * largest + steps;
        double rounded = rounding(problem->dtype, fabs(out) + bound);
        reference->out[at * dim + d] = out;
        reference->out_bound[at * dim + d] = bound + rounded;
        if (problem->dtype == MSTAR_DTYPE_BF16)
            reference->pair_bound[at * dim + d] =
                (count > 1 ? 0x1p-8 * (magnitude + bound) : 0.0) + 0x1p-126;
        if (problem->dtype == MSTAR_DTYPE_F16) /* weights down to the least denormal of f16 */
            reference->pair_bound[at * dim + d] =
                count > 1 ? 0x1p-11 * (magnitude + bound) + keys * 0x1p-25 * largest : 0.0;
        if (!(bound - steps <= 0.1 * largest)) /* values of a few steps are no looseness */
            reference->loose++;
    }
}

static double *doubles(int64_t count)
{
    double *memory = calloc((size_t)count + 1, sizeof *memory);
    assert_non_null(memory);
    return memory;
}

void attn_reference_make(const attn_problem *problem, const attn_data *data,
                         attn_reference *reference)
{
    attn_reference_make_rows(problem, data, NULL, reference);
}

static bool *copy_flags(const bool *flags, int64_t count)
{
    if (flags == NULL)
        return NULL;
    bool *copy = malloc((size_t)count * sizeof *copy + 1);
    assert_non_null(copy);
    memcpy(copy, flags, (size_t)count * sizeof *copy);
    return copy;
}

void attn_reference_make_rows(const attn_problem *problem, const attn_data *data,
                              const bool *wanted, attn_reference *reference)
{
    int64_t tokens = attn_problem_tokens(problem);
    int64_t rows = tokens * problem->num_qo_heads;
    int64_t keys = attn_problem_kv_tokens(problem);
    double scale =
        isnan(problem->sm_scale) ? 1.0 / sqrt((double)problem->head_dim) : problem->sm_scale;
    row_work work = {.keys = doubles(keys * problem->head_dim),
                     .values = doubles(keys * problem->head_dim),
                     .query = doubles(problem->head_dim),
                     .score = doubles(keys),
                     .score_error = doubles(keys),
                     .weight = doubles(keys),
                     .log_weight = doubles(keys),
                     .weight_error = doubles(keys),
                     .key = calloc((size_t)keys + 1, sizeof(int64_t))};
    assert_non_null(work.key);
    *reference = (attn_reference){.tokens = tokens,
                                  .out = doubles(rows * problem->head_dim),
                                  .out_bound = doubles(rows * problem->head_dim),
                                  .pair_bound = doubles(rows * problem->head_dim),
                                  .lse = doubles(rows),
                                  .lse_bound = doubles(rows),
                                  .known = copy_flags(wanted, tokens)};
    for (int64_t segment = 0; segment < problem->num_segments; segment++) {
        int64_t first = problem->q_offsets[segment];
        row_place place = {.problem = problem,
                           .data = data,
                           .scale = scale,
                           .first_key = problem->kv_offsets[segment],
                           .lq = problem->q_offsets[segment + 1] - first,
                           .lk = problem->kv_offsets[segment + 1] - problem->kv_offsets[segment]};
        for (place.head = 0; place.head < problem->num_qo_heads; place.head++) {
            load_keys(&place, &data->k.tensor, work.keys);
            load_keys(&place, &data->v.tensor, work.values);
            for (place.r = 0; place.r < place.lq; place.r++) {
                place.row = first + place.r;
                if (wanted == NULL || wanted[place.row])
                    reference_row(&place, &work, reference);
            }
        }
    }
    free(work.keys);
    free(work.values);
    free(work.query);
    free(work.score);
    free(work.score_error);
    free(work.weight);
    free(work.log_weight);
    free(work.weight_error);
    free(work.key);
}

void attn_reference_free(attn_reference *reference)
{
    free(reference->out);
    free(reference->out_bound);
    free(reference->pair_bound);
    free(reference->lse);
    free(reference->lse_bound);
    free(reference->known);
    memset(reference, 0, sizeof *reference);
}

/* NaN fails: the comparison is written so that it is false then. */
static bool fits(double got, double want, double bound)
{
    if (isinf(want))
        return got <= want && got >= want;
    return fabs(got - want) <= bound;
}

bool attn_dots_fit(const attn_problem *problem, const attn_reference *reference)
{
    double scale =
        isnan(problem->sm_scale) ? 1.0 / sqrt((double)problem->head_dim) : fabs(problem->sm_scale);
    if (problem->values != ATTN_LARGE)
        return true;
    for (int64_t i = 0; i < reference->tokens * problem->num_qo_heads; i++)
        if (isfinite(reference->lse[i]) && !(fabs(reference->lse[i]) < scale * 1e37))
            return false;
    return true;
}

/* The error of all elements together, as a part of what they are. */
#define MOST_OF_ALL 5e-3
#define FEW_ELEMENTS 1000

bool attn_reference_check(const attn_problem *problem, const attn_data *data,
                          const attn_reference *reference, const char *isa)
{
    bool on_card = strcmp(isa, ATTN_CARD) == 0 && problem->dtype != MSTAR_DTYPE_F32;
    bool pairs = on_card || strcmp(isa, "sm80") == 0 ||
                 (problem->dtype == MSTAR_DTYPE_BF16 &&
                  (strcmp(isa, "avx512bf16") == 0 || strcmp(isa, "amx") == 0 ||
                   strcmp(isa, ATTN_EMULATED) == 0));
    bool ordinary = problem->dtype == MSTAR_DTYPE_BF16 &&
                    (problem->values == ATTN_NORMAL || problem->values == ATTN_POOL);
    double errors = 0.0, squares = 0.0;
    int64_t bad = 0, elements = 0;
    int64_t heads = problem->num_qo_heads;
    int64_t dim = problem->head_dim;
    for (int64_t row = 0; row < reference->tokens; row++) {
        for (int64_t head = 0; head < heads; head++) {
            if (reference->known != NULL && !reference->known[row])
                break;
            int64_t at = row * heads + head;
            for (int64_t d = 0; d < dim; d++) {
                double got = (double)attn_get(&data->out.tensor, row, head, d);
                double want = reference->out[at * dim + d];
                double bound = reference->out_bound[at * dim + d] +
                               (pairs ? reference->pair_bound[at * dim + d] : 0.0);
                if (!fits(got, want, bound) && bad++ < 3)
                    printf("%s, %s: out[%lld, %lld, %lld] is %.9g, want %.9g +- %.3g\n", isa,
                           attn_problem_text(problem), (long long)row, (long long)head,
                           (long long)d, got, want, bound);
                errors += (got - want) * (got - want);
                squares += want * want;
                elements++;
            }
            if (data->lse_tensor == NULL)
                continue;
            double got = (double)attn_get(data->lse_tensor, row, head, 0);
            if (!fits(got, reference->lse[at], reference->lse_bound[at]) && bad++ < 3)
                printf("%s, %s: lse[%lld, %lld] is %.9g, want %.9g +- %.3g\n", isa,
                       attn_problem_text(problem), (long long)row, (long long)head, got,
                       reference->lse[at], reference->lse_bound[at]);
        }
    }
    if (ordinary && elements >= FEW_ELEMENTS && !(sqrt(errors) <= MOST_OF_ALL * sqrt(squares)) &&
        bad++ < 3)
        printf("%s, %s: all elements are %.3g of what they are apart\n", isa,
               attn_problem_text(problem), sqrt(errors / squares));
    if (bad > 3)
        printf("%s: %lld elements are off\n", isa, (long long)bad);
    return bad == 0;
}
