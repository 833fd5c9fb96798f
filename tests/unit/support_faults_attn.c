/* support_faults_attn.c - a case's attention problem, run in every way there is. */
#include "support_faults.h"

#include "support_card.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

attn_isas fault_isas;

#define EXTRA_ROWS 3
/* Work up to which a problem runs in every way, on every level, and in every preset. */
#define EVERY_WAY 2e8
#define EVERY_LEVEL 4e9
#define EVERY_PRESET 2e10
/* The same for the reference, in products. */
#define WHOLE_REFERENCE 1.5e8

int fault_open_devices(void **state)
{
    (void)state;
    attn_isas_open(&fault_isas, 3);
    if (level_is_card())
        return 0;
    /* Without the emulated tiles, the last: large cases would take minutes on them. */
    int32_t last = fault_isas.count - 1;
    assert_string_equal(fault_isas.name[last], ATTN_EMULATED);
    attn_close(fault_isas.device[last]);
    fault_isas.count = last;
    return 0;
}

int fault_close_devices(void **state)
{
    (void)state;
    attn_isas_close(&fault_isas);
    return 0;
}

mstar_device *fault_best(void)
{
    return fault_isas.device[fault_isas.count - 1];
}

/* ---- problems -------------------------------------------------------------------------------- */

static mstar_dtype read_dtype(const char *name)
{
    mstar_dtype dtype = MSTAR_DTYPE_BF16;
    attn_must(mstar_dtype_parse(name, &dtype));
    return dtype;
}

void fault_lengths(attn_problem *problem, const int64_t *q, const int64_t *kv, int64_t count)
{
    bool equal = true;
    for (int64_t i = 0; i < count; i++)
        equal = equal && q[i] == kv[i];
    problem->kind = equal ? ATTN_SELF : ATTN_PREFIXED;
    problem->num_segments = 0;
    for (int64_t i = 0; i < count; i++)
        assert_true(attn_problem_add(problem, q[i], kv[i]));
}

/* The first of several names that the object has. */
static const json_t *any_of(const json_t *object, const char *a, const char *b)
{
    const json_t *value = json_object_get(object, a);
    return value != NULL ? value : json_object_get(object, b);
}

void fault_problem_from(const json_t *object, attn_problem *problem)
{
    int64_t q[ATTN_MAX_SEGMENTS];
    int64_t kv[ATTN_MAX_SEGMENTS];
    const json_t *dim = any_of(object, "d_qk", "d");
    const json_t *scale = json_object_get(object, "scale");
    const json_t *dtype = json_object_get(object, "dtype");
    const json_t *left = json_object_get(object, "window_left");
    const json_t *right = json_object_get(object, "window_right");
    attn_problem_init(problem);
    problem->seed = 4711;
    problem->dtype = dtype != NULL ? read_dtype(json_string_value(dtype)) : MSTAR_DTYPE_BF16;
    problem->num_qo_heads = (int32_t)json_integer_value(json_object_get(object, "hq"));
    problem->num_kv_heads = (int32_t)json_integer_value(json_object_get(object, "hkv"));
    problem->head_dim = (int32_t)json_integer_value(dim);
    problem->causal = json_is_true(json_object_get(object, "causal"));
    if (json_is_number(scale))
        problem->sm_scale = json_number_value(scale);
    if (left != NULL)
        problem->window_left = json_integer_value(left);
    if (right != NULL)
        problem->window_right = json_integer_value(right);
    const json_t *q_lens = json_object_get(object, "q_lens");
    if (q_lens != NULL) {
        int64_t count = fault_json_list(q_lens, q, ATTN_MAX_SEGMENTS);
        int64_t kv_count = fault_json_list(any_of(object, "kv_lens", "q_lens"), kv, count);
        assert_int_equal(count, kv_count);
        fault_lengths(problem, q, kv, count);
    }
}

/* Marks the keys that every problem is made of as read. */
static void read_common(fault_case *c)
{
    static const char *const keys[] = {"q_lens",      "kv_lens",      "hq",    "hkv",
                                       "d_qk",        "d_vo",         "d",     "causal",
                                       "window_left", "window_right", "scale", "dtype"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (fault_has(c, keys[i]))
            fault_get(c, keys[i]);
    }
    if (fault_has(c, "d_vo"))
        assert_int_equal(fault_integer(c, "d_qk"), fault_integer(c, "d_vo"));
}

void fault_problem(fault_case *c, attn_problem *problem)
{
    read_common(c);
    fault_problem_from(c->trigger, problem);
}

void fault_problem_with(fault_case *c, const json_t *more, attn_problem *problem)
{
    json_t *all = json_copy((json_t *)(uintptr_t)c->trigger);
    read_common(c);
    json_object_del(all, "kv_lens");
    assert_int_equal(json_object_update(all, (json_t *)(uintptr_t)more), 0);
    fault_problem_from(all, problem);
    json_decref(all);
}

double fault_work(const attn_problem *problem)
{
    double pairs = 0.0;
    for (int64_t i = 0; i < problem->num_segments; i++)
        pairs += (double)(problem->q_offsets[i + 1] - problem->q_offsets[i]) *
                 (problem->kv_offsets[i + 1] - problem->kv_offsets[i]);
    return 4.0 * pairs * problem->num_qo_heads * problem->head_dim;
}

/* ---- data ------------------------------------------------------------------------------------ */

float fault_kv(const attn_problem *problem, const mstar_tensor *tensor, int64_t row, int64_t head,
               int64_t d)
{
    bool by_head = problem->kv_layout == MSTAR_KV_HND;
    return attn_get(tensor, by_head ? head : row, by_head ? row : head, d);
}

void fault_set_kv(const attn_problem *problem, const mstar_tensor *tensor, int64_t row,
                  int64_t head, int64_t d, float value)
{
    bool by_head = problem->kv_layout == MSTAR_KV_HND;
    attn_set(tensor, by_head ? head : row, by_head ? row : head, d, value);
}

void fault_fill_kv_rows(const attn_problem *problem, const mstar_tensor *tensor, int64_t begin,
                        int64_t end, float value)
{
    attn_fill_rows(tensor, problem->kv_layout == MSTAR_KV_HND ? 1 : 0, begin, end, value);
}

void fault_fill_qkv(const attn_problem *problem, const attn_data *data, float q, float k, float v)
{
    int64_t keys = attn_problem_kv_tokens(problem);
    attn_fill_rows(&data->q.tensor, 0, 0, attn_problem_tokens(problem), q);
    fault_fill_kv_rows(problem, &data->k.tensor, 0, keys, k);
    fault_fill_kv_rows(problem, &data->v.tensor, 0, keys, v);
}

void fault_same(const attn_problem *problem, const attn_data *a, int64_t a_row, const attn_data *b,
                int64_t b_row, int64_t rows)
{
    if (!attn_same_bits(&a->out.tensor, a_row, &b->out.tensor, b_row, rows) ||
        (problem->return_lse &&
         !attn_same_bits(&a->lse.tensor, a_row, &b->lse.tensor, b_row, rows)))
        fail_msg("bits differ: %s", attn_problem_text(problem));
}

void fault_zero_rows(const attn_data *data, int64_t begin, int64_t end)
{
    for (int64_t row = begin; row < end; row++)
        for (int64_t head = 0; head < data->out.tensor.shape[1]; head++) {
            for (int64_t d = 0; d < data->out.tensor.shape[2]; d++) {
                float out = attn_get(&data->out.tensor, row, head, d);
                if (!(out >= 0.0F && out <= 0.0F) || signbit(out))
                    fail_msg("row %d, head %d: %g instead of +0", (int)row, (int)head, (double)out);
            }
            if (data->lse_tensor == NULL)
                continue;
            float lse = attn_get(data->lse_tensor, row, head, 0);
            if (!(isinf(lse) && lse < 0.0F))
                fail_msg("row %d, head %d: lse %g instead of -inf", (int)row, (int)head,
                         (double)lse);
        }
}

/* out of a row and query head is that of one row of v, to the bit. */
static void one_head_is_v(const attn_problem *problem, const attn_data *data, int64_t row,
                          int64_t head, int64_t key)
{
    int64_t kv_head = head / (problem->num_qo_heads / problem->num_kv_heads);
    for (int64_t d = 0; d < problem->head_dim; d++) {
        float got = attn_get(&data->out.tensor, row, head, d);
        float want = fault_kv(problem, &data->v.tensor, key, kv_head, d);
        if (!(got >= want && got <= want))
            fail_msg("out[%d, %d, %d] is %g, not v[%d] = %g", (int)row, (int)head, (int)d,
                     (double)got, (int)key, (double)want);
    }
}

void fault_row_is_v(const attn_problem *problem, const attn_data *data, int64_t row, int64_t key)
{
    for (int64_t head = 0; head < problem->num_qo_heads; head++)
        one_head_is_v(problem, data, row, head, key);
}

/* One number in all of a row, and its lse within a few roundings. */
void fault_row_is(const attn_problem *problem, const attn_data *data, int64_t row, float out,
                  double lse)
{
    for (int64_t head = 0; head < problem->num_qo_heads; head++) {
        for (int64_t d = 0; d < problem->head_dim; d++) {
            float got = attn_get(&data->out.tensor, row, head, d);
            if (!(got >= out && got <= out))
                fail_msg("out[%d, %d, %d] is %.9g, want %.9g", (int)row, (int)head, (int)d,
                         (double)got, (double)out);
        }
        double got = (double)attn_get(&data->lse.tensor, row, head, 0);
        double bound = check_gamma(problem->head_dim + 16) * (fabs(lse) + 1.0);
        if (!check_near(got, lse, bound))
            fail_msg("lse[%d, %d] is %.9g, want %.9g +- %.3g", (int)row, (int)head, got, lse,
                     bound);
    }
}

/* ---- calls ----------------------------------------------------------------------------------- */

attn_wrapper fault_graph(mstar_device *device, const attn_problem *problem, int64_t segments,
                         int64_t tokens, int64_t kv_tokens)
{
    mstar_ragged_prefill_desc desc;
    attn_wrapper wrapper;
    attn_problem_desc(problem, &desc);
    desc.accelerator_graph = 1;
    desc.max_num_segments = segments;
    desc.max_total_tokens = tokens;
    desc.max_total_kv_tokens = kv_tokens;
    attn_must(attn_create(device, problem->kind, &desc, NULL, 0, &wrapper));
    return wrapper;
}

void fault_plan_run(const attn_wrapper *wrapper, const attn_problem *problem, const attn_data *data)
{
    attn_must(attn_plan(wrapper, NULL, problem->q_offsets, problem->num_segments,
                        problem->kv_offsets, problem->num_segments, problem->causal));
    attn_must(attn_run(wrapper, NULL, &data->q.tensor, &data->k.tensor, &data->v.tensor,
                       &data->out.tensor, data->lse_tensor));
}

/* ---- every way ------------------------------------------------------------------------------- */

typedef struct way {
    attn_kind kind;
    mstar_kv_layout layout;
    bool graph;
} way;
#define MAX_WAYS 12

/* The wrappers that can say it, each in both layouts and both modes; the plainest way first. */
static int list_ways(const attn_problem *problem, bool all, way *ways)
{
    bool self = problem->kind == ATTN_SELF;
    int count = 0;
    if (!all) {
        ways[0] = (way){problem->kind, MSTAR_KV_NHD, false};
        return 1;
    }
    for (int kind = self ? ATTN_SELF : ATTN_CROSS; kind <= ATTN_PREFIXED; kind++) {
        if (kind == ATTN_CROSS && problem->causal)
            continue;
        for (int i = 0; i < 4; i++)
            ways[count++] = (way){(attn_kind)kind, (mstar_kv_layout)(i / 2), i % 2 == 1};
    }
    return count;
}

static bool is_slow(const char *isa)
{
    return strcmp(isa, "scalar") == 0 || strcmp(isa, "avx2") == 0 || strcmp(isa, "neon") == 0;
}

static void run_eager(const attn_problem *problem, mstar_device *device, const attn_data *data)
{
    int64_t rows = attn_problem_tokens(problem);
    unsigned char *out = attn_block_copy(&data->out);
    unsigned char *lse = attn_block_copy(&data->lse);
    attn_problem_run(problem, device, NULL, data);
    assert_true(attn_block_same_outside(&data->out, out, 0, rows));
    assert_true(attn_block_same_outside(&data->lse, lse, 0, rows));
    free(out);
    free(lse);
}

/* After another layout, with more room than needed: rows past the plan become zeros. */
static void run_graph(const attn_problem *problem, mstar_device *device, const attn_data *data)
{
    static const int32_t other[] = {0, 1, 2};
    int64_t rows = attn_problem_tokens(problem);
    attn_wrapper wrapper = fault_graph(device, problem, problem->num_segments + 2, rows + 5,
                                       attn_problem_kv_tokens(problem) + 5);
    attn_must(attn_plan(&wrapper, NULL, other, 2, other, 2, 0));
    fault_plan_run(&wrapper, problem, data);
    fault_zero_rows(data, rows, rows + EXTRA_ROWS);
    attn_destroy(&wrapper);
}

/* All rows, or of large problems the first and last of each segment and some in between. */
static void make_reference(const attn_problem *problem, const attn_data *data,
                           attn_reference *reference)
{
    int64_t rows = attn_problem_tokens(problem);
    double each = fault_work(problem) / 4.0 / (double)mst_max_i64(rows, 1);
    if (each * (double)rows <= WHOLE_REFERENCE) {
        attn_reference_make(problem, data, reference);
        return;
    }
    bool *wanted = calloc((size_t)rows, sizeof *wanted);
    assert_non_null(wanted);
    int64_t step = mst_max_i64(1, (int64_t)((double)rows * each / WHOLE_REFERENCE));
    for (int64_t row = 0; row < rows; row += step)
        wanted[row] = true;
    for (int64_t i = 0; i < problem->num_segments && i < 64; i++) {
        if (problem->q_offsets[i] == problem->q_offsets[i + 1])
            continue;
        wanted[problem->q_offsets[i]] = true;
        wanted[problem->q_offsets[i + 1] - 1] = true;
    }
    attn_reference_make_rows(problem, data, wanted, reference);
    free(wanted);
}

/* "empty_rows": exactly these rows see nothing. */
static void check_empty_rows(fault_case *c, const attn_problem *problem, const attn_data *data)
{
    if (json_object_get(c->expect, "empty_rows") == NULL)
        return;
    const json_t *list = fault_want(c, "empty_rows");
    int64_t rows = attn_problem_tokens(problem);
    size_t next = 0;
    for (int64_t row = 0; row < rows; row++) {
        bool empty =
            next < json_array_size(list) && json_integer_value(json_array_get(list, next)) == row;
        if (empty) {
            fault_zero_rows(data, row, row + 1);
            next++;
        } else if (data->lse_tensor != NULL) {
            float lse = attn_get(data->lse_tensor, row, 0, 0);
            if (isinf(lse) && lse < 0.0F)
                fail_msg("%s: row %d saw nothing", c->id, (int)row);
        }
    }
    assert_int_equal(next, json_array_size(list));
}

/* "visible": with q = 0 every visible key weighs the same, and lse is the logarithm of how many. */
static void check_visible(fault_case *c, const attn_problem *problem, mstar_device *device)
{
    attn_data data;
    if (json_object_get(c->expect, "visible") == NULL)
        return;
    const json_t *list = fault_want(c, "visible");
    int64_t rows = attn_problem_tokens(problem);
    assert_int_equal(rows, json_array_size(list));
    attn_data_make(problem, &data);
    attn_fill_rows(&data.q.tensor, 0, 0, rows, 0.0F);
    attn_problem_run(problem, device, NULL, &data);
    for (int64_t row = 0; row < rows; row++) {
        double count = json_number_value(json_array_get(list, (size_t)row));
        double lse = (double)attn_get(&data.lse.tensor, row, 0, 0);
        assert_int_equal((int64_t)(exp(lse) + 0.5), (int64_t)count);
        assert_true(check_near(lse, log(count), check_gamma(4) * (1.0 + log(count))));
    }
    attn_data_free(&data);
}

static void match_on(fault_case *c, const attn_problem *problem, const fault_ways *how,
                     const attn_reference *reference, const attn_data *first, int32_t isa,
                     bool every_way)
{
    way ways[MAX_WAYS];
    int count = list_ways(problem, every_way, ways);
    int64_t rows = attn_problem_tokens(problem);
    for (int i = 0; i < count; i++) {
        attn_problem p = *problem;
        attn_data data;
        p.kind = ways[i].kind;
        p.kv_layout = ways[i].layout;
        attn_data_make(&p, &data);
        if (how != NULL && how->fill != NULL)
            how->fill(c, &p, &data);
        if (ways[i].graph)
            run_graph(&p, fault_isas.device[isa], &data);
        else
            run_eager(&p, fault_isas.device[isa], &data);
        if (i == 0) {
            if (!attn_reference_check(&p, &data, reference, fault_isas.name[isa]))
                fail_msg("%s on %s", c->id, fault_isas.name[isa]);
            memcpy(first->out.bytes, data.out.bytes, data.out.num_bytes);
            memcpy(first->lse.bytes, data.lse.bytes, data.lse.num_bytes);
        }
        fault_same(&p, first, 0, &data, 0, rows);
        check_empty_rows(c, &p, &data);
        check_visible(c, &p, fault_isas.device[isa]);
        if (how != NULL && how->look != NULL)
            how->look(c, &p, &data);
        attn_data_free(&data);
    }
}

void fault_match(fault_case *c, const attn_problem *given, const fault_ways *how)
{
    attn_problem problem = *given;
    attn_reference reference;
    attn_data data;
    double work = fault_work(&problem);
    problem.extra_rows = EXTRA_ROWS;
    if (work > EVERY_PRESET && !fault_large_runs())
        fault_skip(c, "its work is for the release preset");
    if (work > EVERY_WAY && level_is_card() && !card_is_real())
        fault_skip(c, "its work is for a card, not for the mock of one");
    if (work > EVERY_WAY)
        problem.values = ATTN_POOL;
    attn_data_make(&problem, &data);
    if (how != NULL && how->fill != NULL)
        how->fill(c, &problem, &data);
    make_reference(&problem, &data, &reference);
    int ran = 0;
    for (int32_t isa = 0; isa < fault_isas.count; isa++) {
        bool best = isa == fault_isas.count - 1;
        if (work > EVERY_LEVEL && !best && is_slow(fault_isas.name[isa]))
            continue;
        if (work > EVERY_PRESET && !best)
            continue;
        match_on(c, &problem, how, &reference, &data, isa, work <= EVERY_WAY);
        ran++;
    }
    assert_true(ran > 0);
    attn_reference_free(&reference);
    attn_data_free(&data);
}

/* ---- memory ---------------------------------------------------------------------------------- */

fault_fenced fault_fence(size_t bytes, bool at_end)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t inner = (bytes + page - 1) / page * page + page;
    fault_fenced made = {.mapped = inner + 2 * page};
    made.pages = mmap(NULL, made.mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(made.pages != MAP_FAILED);
    assert_int_equal(mprotect(made.pages + page, inner, PROT_READ | PROT_WRITE), 0);
    made.data = at_end ? made.pages + page + inner - bytes : made.pages + page;
    return made;
}

void fault_unfence(fault_fenced *fenced)
{
    assert_int_equal(munmap(fenced->pages, fenced->mapped), 0);
    *fenced = (fault_fenced){0};
}

void *fault_sparse(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(memory != MAP_FAILED);
    return memory;
}

void fault_sparse_free(void *memory, size_t bytes)
{
    assert_int_equal(munmap(memory, bytes), 0);
}
