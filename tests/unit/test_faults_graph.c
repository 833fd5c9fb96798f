/*
 * test_faults_graph.c - cases K13, K14, K17, K18 and K21 of the known faults that a wrapper in
 * graph mode answers: it is made at its ceilings, planned and run with one layout (the capture),
 * and then with others (the replays). Every step equals the direct call to the bit, no address
 * moves, and rows past the plan are zeros whatever was in them. Captures of whole forwards are
 * tested beside.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "mstar/ops.h"
#include "support_faults_rig.h"

static mstar_ragged_prefill_info info_of(const attn_wrapper *wrapper)
{
    mstar_ragged_prefill_info info = {.struct_size = sizeof info};
    attn_must(attn_query(wrapper, &info));
    return info;
}

/* ---- one capture, one replay ----------------------------------------------------------------- */

static void capture_then_replay(void **state)
{
    fault_case *c = *state;
    attn_problem problems[2];
    fault_outcome(c, "equal_to");
    fault_problem_with(c, fault_get(c, "capture"), &problems[0]);
    fault_problem_with(c, fault_get(c, "replay"), &problems[1]);
    fault_rig all;
    fault_rig_for(&all, c, problems, 2);
    for (int i = 0; i < 4; i++)
        fault_rig_step(&all, &problems[i % 2]);
    fault_rig_free(&all);
}

/* ---- K17: replays with other layouts --------------------------------------------------------- */

static int read_replays(fault_case *c, attn_problem *problems, int max)
{
    const json_t *list = fault_get(c, "replays");
    int count = (int)json_array_size(list);
    assert_true(count <= max);
    for (int i = 0; i < count; i++)
        fault_problem_with(c, json_array_get(list, (size_t)i), &problems[i]);
    return count;
}

static void replays_in_turn(void **state)
{
    fault_case *c = *state;
    attn_problem problems[4];
    fault_outcome(c, "equal_to");
    int count = read_replays(c, problems, 4);
    fault_rig all;
    fault_rig_for(&all, c, problems, count);
    for (int i = 0; i < 2 * count; i++)
        fault_rig_step(&all, &problems[i % count]);
    fault_rig_free(&all);
}

/* Between replays all memory that the library can get is other people's, full of 0xFF. */
static void memory_in_between(void **state)
{
    fault_case *c = *state;
    attn_problem problems[4];
    fault_says(c, "poison_between", "free and refill other device memory with 0xFF");
    int count = read_replays(c, problems, 4);
    fault_rig all;
    fault_rig_for(&all, c, problems, count);
    for (int i = 0; i < 2 * count; i++) {
        mstar_buffer *others[16];
        unsigned char fill[4096];
        mstar_stream *stream = NULL;
        fault_rig_step(&all, &problems[i % count]);
        memset(fill, 0xFF, sizeof fill);
        attn_must(mstar_stream_create(fault_best(), 1, &stream));
        for (size_t b = 0; b < 16; b++) {
            attn_must(mstar_buffer_create(fault_best(), 256 * (b + 1), &others[b]));
            attn_must(mstar_buffer_upload(others[b], stream, 0, fill, 256 * (b + 1)));
        }
        for (size_t b = 0; b < 16; b++)
            mstar_buffer_destroy(others[b]);
        mstar_stream_destroy(stream);
    }
    fault_rig_free(&all);
}

/* One row a step over keys that grow by one. */
static void two_hundred_steps(void **state)
{
    fault_case *c = *state;
    const json_t *replays = fault_get(c, "replays");
    int64_t times = json_integer_value(json_object_get(replays, "times"));
    int64_t first = json_integer_value(json_object_get(replays, "kv_start"));
    int64_t q[8];
    int64_t kv[8];
    attn_problem problem;
    int64_t count = fault_json_list(json_object_get(replays, "q_lens"), q, 8);
    assert_int_equal(times, 200);
    fault_problem(c, &problem);
    problem.kind = ATTN_PREFIXED;
    fault_rig all;
    fault_rig_make(&all, &problem, count, count, count * (first + times));
    for (int64_t step = 0; step < times; step++) {
        for (int64_t i = 0; i < count; i++)
            kv[i] = first + step;
        fault_lengths(&problem, q, kv, count);
        problem.kind = ATTN_PREFIXED;
        problem.seed = 4711 + (uint64_t)step;
        fault_rig_step(&all, &problem);
    }
    fault_rig_free(&all);
}

/* An unrelated direct call of another shape between two replays. */
static void direct_call_in_between(void **state)
{
    fault_case *c = *state;
    const json_t *list = fault_get(c, "replays");
    attn_problem problems[2];
    attn_problem direct;
    assert_int_equal(json_array_size(list), 3);
    fault_problem_with(c, json_array_get(list, 0), &problems[0]);
    fault_problem_with(c, json_object_get(json_array_get(list, 1), "direct"), &direct);
    fault_problem_with(c, json_array_get(list, 2), &problems[1]);
    fault_rig all;
    fault_rig_for(&all, c, problems, 2);
    fault_rig_step(&all, &problems[0]);
    for (int32_t isa = 0; isa < fault_isas.count; isa++) {
        attn_data data;
        attn_data_make(&direct, &data);
        attn_problem_run(&direct, fault_isas.device[isa], NULL, &data);
        attn_data_free(&data);
    }
    fault_rig_step(&all, &problems[1]);
    fault_rig_free(&all);
}

/* One plan, run over keys at one address and then at another: each run reads what it is given. A
 * replay reads the addresses it was captured with, as the header says: keys are copied there. */
static void keys_at_other_addresses(void **state)
{
    fault_case *c = *state;
    const json_t *list = fault_get(c, "replays");
    attn_problem problem;
    assert_int_equal(json_array_size(list), 2);
    fault_problem(c, &problem);
    problem.kind = ATTN_CROSS;
    fault_rig all;
    fault_rig_make(&all, &problem, 1, 1, attn_problem_kv_tokens(&problem));
    for (int32_t isa = 0; isa < fault_isas.count; isa++)
        for (int round = 0; round < 2; round++)
            for (size_t i = 0; i < 2; i++) { /* buffers A and B */
                attn_data direct;
                attn_data graph;
                const char *name =
                    json_string_value(json_object_get(json_array_get(list, i), "kv_buffer"));
                problem.seed = (uint64_t)name[0];
                attn_data_make(&problem, &direct);
                attn_data_make(&problem, &graph);
                attn_problem_run(&problem, fault_isas.device[isa], NULL, &direct);
                if (round == 0 && i == 0)
                    attn_must(attn_plan(&all.wrapper[isa], NULL, problem.q_offsets, 1,
                                        problem.kv_offsets, 1, 0));
                attn_must(attn_run(&all.wrapper[isa], NULL, &graph.q.tensor, &graph.k.tensor,
                                   &graph.v.tensor, &graph.out.tensor, graph.lse_tensor));
                fault_same(&problem, &direct, 0, &graph, 0, 1);
                fault_rig_replay(&all, isa, &problem, &graph, &direct);
                attn_data_free(&direct);
                attn_data_free(&graph);
            }
    fault_rig_free(&all);
}

/* ---- K18: padding ---------------------------------------------------------------------------- */

/* fault_rig_step fills out with NaN and wants zeros past the plan. */
static void padding_is_zeroed(void **state)
{
    fault_case *c = *state;
    const json_t *replay = fault_get(c, "replay");
    const json_t *rows = json_object_get(replay, "rows");
    attn_problem problem;
    fault_outcome(c, "zero_pad");
    fault_says(c, "prefill_out", "NaN");
    fault_problem_with(c, replay, &problem);
    if (rows != NULL) {
        const int64_t length = json_integer_value(rows);
        fault_lengths(&problem, &length, &length, 1);
    }
    fault_rig all;
    fault_rig_for(&all, c, &problem, 1);
    assert_true(all.rows == fault_integer(c, "bucket_rows"));
    fault_rig_step(&all, &problem);
    fault_rig_step(&all, &problem);
    fault_rig_free(&all);
}

/* A replay, after another layout where the case has one, in a bucket with room for more. */
static void padded_slots(void **state)
{
    fault_case *c = *state;
    attn_problem problems[2];
    fault_problem_with(c, fault_get(c, "replay"), &problems[0]);
    problems[1] = problems[0];
    if (fault_has(c, "before"))
        fault_problem_with(c, fault_get(c, "before"), &problems[1]);
    if (fault_has(c, "kv_write")) /* the caller's; fault_rig_step sees that run writes no input */
        fault_says(c, "kv_write", "append then attend");
    fault_rig all;
    fault_rig_for(&all, c, problems, 2);
    fault_rig_step(&all, &problems[1]);
    fault_rig_step(&all, &problems[0]);
    fault_rig_free(&all);
}

/* Items exist for the two rows; the empty segments have none and are no class of their own. */
static void empties_are_no_work(void **state)
{
    fault_case *c = *state;
    int64_t lens[8];
    int64_t count = fault_list(c, "q_lens", lens, 8);
    fault_outcome(c, "plan_bounds");
    for (int32_t isa = 0; isa < fault_isas.count; isa++) {
        attn_problem problem;
        int64_t items[2];
        attn_problem_init(&problem);
        fault_lengths(&problem, lens, lens, count);
        for (int graph = 0; graph <= 1; graph++) {
            attn_wrapper wrapper = fault_graph(fault_isas.device[isa], &problem, 4, 4, 4);
            attn_must(attn_plan(&wrapper, NULL, problem.q_offsets, graph ? count : 2, NULL, 0, 0));
            items[graph] = info_of(&wrapper).num_work_items;
            attn_destroy(&wrapper);
        }
        assert_int_equal(items[0], 2);
        assert_int_equal(items[1], 2);
    }
}

/* ---- layers ---------------------------------------------------------------------------------- */

/* Norm, product, attention, over all rows of a bucket, padding too: x to x. */
typedef struct layer_rig {
    attn_wrapper wrapper;
    mstar_stream *stream;
    mstar_linear *linear; /* [width, width] */
    mstar_tensor gain;
    float *x, *y, *z; /* [rows, width] each */
    int64_t width;
} layer_rig;

static void run_layers(const layer_rig *r, const attn_problem *problem, int64_t rows,
                       int64_t layers, int64_t zero_from)
{
    const int64_t flat[] = {rows, r->width};
    const int64_t heads[] = {rows, problem->num_qo_heads, problem->head_dim};
    mstar_tensor x = mstar_tensor_make(r->x, MSTAR_DTYPE_F32, 2, flat);
    mstar_tensor y = mstar_tensor_make(r->y, MSTAR_DTYPE_F32, 2, flat);
    mstar_tensor z = mstar_tensor_make(r->z, MSTAR_DTYPE_F32, 2, flat);
    mstar_tensor qkv = mstar_tensor_make(r->z, MSTAR_DTYPE_F32, 3, heads);
    mstar_tensor out = mstar_tensor_make(r->x, MSTAR_DTYPE_F32, 3, heads);
    attn_must(attn_plan(&r->wrapper, r->stream, problem->q_offsets, problem->num_segments,
                        problem->kv_offsets, problem->num_segments, problem->causal));
    for (int64_t i = 0; i < layers; i++) {
        CHECK_OK(mstar_layer_norm(r->stream, &x, NULL, &r->gain, NULL, 1e-5, &y));
        CHECK_OK(mstar_linear_run(r->linear, r->stream, &y, NULL, &z));
        attn_must(attn_run(&r->wrapper, r->stream, &qkv, &qkv, &qkv, &out, NULL));
        for (int64_t e = zero_from * r->width; e < rows * r->width; e++)
            assert_true(r->x[e] >= 0.0F && r->x[e] <= 0.0F);
    }
}

static float *floats(int64_t count, float value)
{
    float *memory = malloc((size_t)count * sizeof *memory);
    assert_non_null(memory);
    for (int64_t i = 0; i < count; i++)
        memory[i] = value;
    return memory;
}

/*
 * A sequence of lengths through layers, each in the smallest bucket that holds it, all buckets on
 * one pool of NaN, against direct runs at the true length.
 */
static void layers_in_buckets(const attn_problem *shape, const int64_t *buckets,
                              int64_t num_buckets, const int64_t *sequence, int64_t steps,
                              int64_t layers, int32_t isa)
{
    mstar_device *device = fault_isas.device[isa];
    int64_t width = (int64_t)shape->num_qo_heads * shape->head_dim;
    int64_t most = buckets[num_buckets - 1];
    check_rng rng = {17};
    check_rows weight = check_rows_make(MSTAR_DTYPE_F32, width, width, width);
    check_rows_fill(&weight, &rng, -0.1, 0.1);
    const mstar_tensor *weights[] = {&weight.tensor};
    const int64_t one[] = {width};
    float *gain = floats(width, 1.0F);
    layer_rig r = {.width = width, .gain = mstar_tensor_make(gain, MSTAR_DTYPE_F32, 1, one)};
    float *pool = floats(3 * most * width, NAN);
    CHECK_OK(mstar_stream_create(device, -1, &r.stream));
    CHECK_OK(mstar_linear_create(device, NULL, weights, NULL, 1, &r.linear));
    for (int64_t s = 0; s < steps; s++) {
        attn_problem problem = *shape;
        int64_t rows = sequence[s];
        int64_t bucket = 0;
        while (buckets[bucket] < rows)
            bucket++;
        fault_lengths(&problem, &rows, &rows, 1);
        float *want = floats(3 * rows * width, NAN);
        float *start = floats(rows * width, 0.0F);
        for (int64_t e = 0; e < rows * width; e++)
            start[e] = (float)check_uniform(&rng, -1.0, 1.0);
        for (int graph = 0; graph <= 1; graph++) {
            int64_t all = graph ? buckets[bucket] : rows;
            float *base = graph ? pool : want;
            mstar_ragged_prefill_desc desc;
            attn_problem_desc(&problem, &desc);
            desc.return_lse = 0;
            desc.accelerator_graph = graph;
            desc.max_num_segments = graph ? 1 : -1;
            desc.max_total_tokens = graph ? all : -1;
            attn_must(attn_create(device, ATTN_SELF, &desc, NULL, 0, &r.wrapper));
            r.x = base;
            r.y = base + all * width;
            r.z = base + 2 * all * width;
            memcpy(r.x, start, (size_t)(rows * width) * sizeof *r.x);
            run_layers(&r, &problem, all, layers, rows);
            attn_destroy(&r.wrapper);
        }
        assert_memory_equal(want, pool, (size_t)(rows * width) * sizeof *want);
        free(want);
        free(start);
    }
    mstar_linear_destroy(r.linear);
    mstar_stream_destroy(r.stream);
    check_rows_free(&weight);
    free(pool);
    free(gain);
}

/* The case's numbers in the release preset on its best level; a sixteenth of the heads elsewhere.
 */
static void encoder_in_buckets(void **state)
{
    fault_case *c = *state;
    int64_t buckets[16];
    int64_t sequence[8];
    int64_t count = fault_list(c, "buckets", buckets, 16);
    int64_t steps = fault_list(c, "sequence", sequence, 8);
    int64_t layers = fault_integer(c, "layers");
    attn_problem shape;
    fault_says(c, "pool", "shared, pre-filled with NaN");
    fault_problem(c, &shape);
    shape.dtype = MSTAR_DTYPE_F32;
    int32_t heads = shape.num_qo_heads;
    for (int32_t isa = 0; isa < fault_isas.count; isa++) {
        bool all = fault_large_runs() && isa == fault_isas.count - 1;
        shape.num_qo_heads = shape.num_kv_heads = all ? heads : 1;
        layers_in_buckets(&shape, buckets, count, sequence, steps, all ? layers : 2, isa);
    }
}

static void prefill_with_row_operations(void **state)
{
    fault_case *c = *state;
    int64_t bucket = fault_integer(c, "bucket_rows");
    attn_problem shape;
    fault_says(c, "row_ops", "norm+matmul between layers");
    fault_problem_with(c, fault_get(c, "replay"), &shape);
    shape.dtype = MSTAR_DTYPE_F32;
    int64_t rows = attn_problem_tokens(&shape);
    const int64_t sequence[] = {rows, bucket, rows};
    for (int32_t isa = 0; isa < fault_isas.count; isa++)
        layers_in_buckets(&shape, &bucket, 1, sequence, 3, fault_integer(c, "layers"), isa);
}

/* ---- K21: results and ceilings --------------------------------------------------------------- */

/* A result lies in the caller's tensor: the next run, into another one, leaves it alone. A replay
 * writes the tensor it was captured with, again and again: what is to stay is copied out. */
static void results_are_the_callers(void **state)
{
    fault_case *c = *state;
    const json_t *list = fault_get(c, "replays");
    assert_string_equal(json_string_value(json_object_get(json_array_get(list, 0), "keep")),
                        "outA");
    attn_problem problem;
    const int64_t lens[] = {5, 9};
    attn_problem_init(&problem);
    fault_lengths(&problem, lens, lens, 2);
    fault_rig all;
    fault_rig_make(&all, &problem, 2, 14, 14);
    for (int32_t isa = 0; isa < fault_isas.count; isa++) {
        attn_data a;
        attn_data b;
        problem.seed = 1;
        attn_data_make(&problem, &a);
        problem.seed = 2;
        attn_data_make(&problem, &b);
        fault_plan_run(&all.wrapper[isa], &problem, &a);
        unsigned char *kept = attn_block_copy(&a.out);
        fault_plan_run(&all.wrapper[isa], &problem, &b);
        assert_memory_equal(kept, a.out.bytes, a.out.num_bytes);
        fault_rig_replay(&all, isa, &problem, &b, &b);
        assert_memory_equal(kept, a.out.bytes, a.out.num_bytes);
        free(kept);
        attn_data_free(&a);
        attn_data_free(&b);
    }
    fault_rig_free(&all);
}

/* Segments of at most 512 rows that make so many in all. */
static void add_rows(attn_problem *problem, int64_t rows)
{
    problem->num_segments = 0;
    for (; rows > 0; rows -= mst_min_i64(rows, 512))
        attn_problem_add(problem, mst_min_i64(rows, 512), 0);
}

/* A larger layout after a smaller one: an eager plan grows, and captures of either ceiling, made
 * before and after, keep working; the smaller one refuses what it cannot hold. */
static void a_larger_layout_later(void **state)
{
    fault_case *c = *state;
    int64_t times = fault_integer(c, "times");
    int64_t lists[3][4];
    int64_t counts[3];
    attn_problem problem;
    counts[0] = fault_list(c, "rows", lists[0], 4);
    for (size_t i = 0; i < 2; i++)
        counts[i + 1] = fault_json_list(json_array_get(fault_get(c, "also"), i), lists[i + 1], 4);
    attn_problem_init(&problem);
    problem.head_dim = 8;
    fault_rig small;
    fault_rig_make(&small, &problem, 8, 512, 512);
    fault_rig large;
    fault_rig_make(&large, &problem, 8, 4096, 4096);
    for (int32_t isa = 0; isa < fault_isas.count; isa++) {
        mstar_ragged_prefill_desc desc;
        attn_wrapper eager;
        attn_problem_desc(&problem, &desc);
        attn_must(attn_create(fault_isas.device[isa], ATTN_SELF, &desc, NULL, 0, &eager));
        for (int64_t t = 0; t < times; t++)
            for (int64_t e = 0; e < counts[t % 3]; e++) {
                attn_data direct;
                attn_data data;
                add_rows(&problem, lists[t % 3][e]);
                attn_data_make(&problem, &direct);
                attn_data_make(&problem, &data);
                attn_problem_run(&problem, fault_isas.device[isa], NULL, &direct);
                fault_plan_run(&eager, &problem, &data);
                fault_same(&problem, &direct, 0, &data, 0, attn_problem_tokens(&problem));
                fault_rig_replay(&large, isa, &problem, &data, &direct);
                if (lists[t % 3][e] <= 512)
                    fault_rig_replay(&small, isa, &problem, &data, &direct);
                else
                    attn_refused(attn_plan(&small.wrapper[isa], NULL, problem.q_offsets,
                                           problem.num_segments, NULL, 0, 0),
                                 MSTAR_INVALID_ARGUMENT, "4096", "max_total_tokens is 512");
                attn_data_free(&direct);
                attn_data_free(&data);
            }
        attn_destroy(&eager);
    }
    fault_rig_free(&small);
    fault_rig_free(&large);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        FAULT("BR-119", capture_then_replay),
        FAULT("BR-120", capture_then_replay),
        FAULT("BR-143", capture_then_replay),
        FAULT("BR-144", capture_then_replay),
        FAULT("BR-147", memory_in_between),
        FAULT("BR-148", two_hundred_steps),
        FAULT("BR-152", capture_then_replay),
        FAULT("BR-153", replays_in_turn),
        FAULT("BR-155", direct_call_in_between),
        FAULT("BR-157", keys_at_other_addresses),
        FAULT_HOST("BR-158", encoder_in_buckets),
        FAULT("BR-159", padding_is_zeroed),
        FAULT("BR-160", padding_is_zeroed),
        FAULT("BR-161", padded_slots),
        FAULT("BR-164", padded_slots),
        FAULT("BR-165", padded_slots),
        FAULT("BR-167", padded_slots),
        FAULT("BR-170", empties_are_no_work),
        FAULT_HOST("BR-172", prefill_with_row_operations),
        FAULT("BR-173", replays_in_turn),
        FAULT("BR-201", results_are_the_callers),
        FAULT("BR-203", a_larger_layout_later),
    };
    return fault_run(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
