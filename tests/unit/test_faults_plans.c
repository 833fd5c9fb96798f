/*
 * test_faults_plans.c - cases K11, K13, K14 and K27 of the known faults: offsets that lie, plans
 * for windows and whole images, keys of another length than the model's maximum, plans that wait.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attn/attn.h"
#include "support_card.h"
#include "support_faults.h"
#include "support_mock_cuda.h"

/* A wrapper in eager mode for "hq", "hkv" and "d_qk", f32. */
static attn_wrapper make_wrapper(fault_case *c, attn_kind kind)
{
    mstar_ragged_prefill_desc desc;
    attn_wrapper wrapper;
    mstar_ragged_prefill_desc_init(&desc);
    desc.num_qo_heads = (int32_t)fault_integer(c, "hq");
    desc.num_kv_heads = (int32_t)fault_integer(c, "hkv");
    desc.head_dim = (int32_t)fault_integer(c, "d_qk");
    desc.q_data_type = MSTAR_DTYPE_F32;
    attn_must(attn_create(fault_best(), kind, &desc, NULL, 0, &wrapper));
    return wrapper;
}

static const mst_attn_plan *plan_of(const attn_wrapper *wrapper)
{
    return &((const mst_attn_wrapper *)wrapper->object)->plan;
}

static mstar_ragged_prefill_info info_of(const attn_wrapper *wrapper)
{
    mstar_ragged_prefill_info info = {.struct_size = sizeof info};
    attn_must(attn_query(wrapper, &info));
    return info;
}

/* ---- K11: offsets that lie ------------------------------------------------------------------- */

/* q, k, v and out of so many rows. */
typedef struct buffers {
    float *memory[4];
    mstar_tensor tensor[4];
} buffers;

static buffers make_buffers(fault_case *c, int64_t rows)
{
    const int64_t shape[] = {rows, fault_integer(c, "hq"), fault_integer(c, "d_qk")};
    buffers made;
    for (int i = 0; i < 4; i++) {
        made.memory[i] = calloc((size_t)(shape[0] * shape[1] * shape[2]) + 1, sizeof(float));
        assert_non_null(made.memory[i]);
        made.tensor[i] = mstar_tensor_make(made.memory[i], MSTAR_DTYPE_F32, 3, shape);
    }
    return made;
}

static mstar_status run_buffers(const attn_wrapper *wrapper, const buffers *b)
{
    return attn_run(wrapper, NULL, &b->tensor[0], &b->tensor[1], &b->tensor[2], &b->tensor[3],
                    NULL);
}

static void free_buffers(buffers *b)
{
    for (int i = 0; i < 4; i++)
        free(b->memory[i]);
}

/* What each of the case's offsets is refused with; offsets past the rows are refused by run, which
 * is the first to see the tensors. The former plan stays. */
static void malformed_offsets(void **state)
{
    static const char *const texts[] = {"[0] is 1", "[2] is 3", NULL, NULL, "[1] is -1"};
    fault_case *c = *state;
    const json_t *cases = fault_get(c, "cases");
    int64_t rows = fault_integer(c, "rows");
    const int32_t former[] = {0, 4, 7}; /* fewer than rows: padding */
    fault_outcome(c, "reject");
    assert_int_equal(json_array_size(cases), 5);
    for (int kind = ATTN_SELF; kind <= ATTN_PREFIXED; kind++) {
        attn_wrapper wrapper = make_wrapper(c, (attn_kind)kind);
        buffers b = make_buffers(c, rows);
        attn_must(attn_plan(&wrapper, NULL, former, 2, former, 2, 0));
        attn_must(run_buffers(&wrapper, &b));
        for (size_t i = 0; i < 5; i++) {
            int64_t list[8];
            int32_t offsets[8];
            const json_t *one = json_array_get(cases, i);
            int64_t count = fault_json_list(json_object_get(one, "offsets"), list, 8);
            for (int64_t j = 0; j < count; j++)
                offsets[j] = (int32_t)list[j];
            mstar_status status =
                attn_plan(&wrapper, NULL, offsets, count - 1, offsets, count - 1, 0);
            if (texts[i] != NULL) {
                attn_refused(status, MSTAR_INVALID_ARGUMENT, "cu_seqlens", texts[i]);
                assert_int_equal(info_of(&wrapper).num_tokens, 7);
                continue;
            }
            attn_must(status); /* a length that is promised too short is not part of the call */
            if (offsets[count - 1] > rows)
                attn_refused(run_buffers(&wrapper, &b), MSTAR_INVALID_ARGUMENT, "q.shape[0] is 8",
                             "the plan has 9");
            else
                attn_must(run_buffers(&wrapper, &b));
            attn_must(attn_plan(&wrapper, NULL, former, 2, former, 2, 0));
        }
        free_buffers(&b);
        attn_destroy(&wrapper);
    }
}

/* No length is promised to plan; it takes the longest itself, and graph mode has none frozen in. */
static void no_length_is_promised(void **state)
{
    fault_case *c = *state;
    attn_problem problem;
    int64_t told = fault_integer(c, "max_len");
    int64_t longest = 0;
    fault_problem(c, &problem);
    for (int64_t i = 0; i < problem.num_segments; i++)
        longest = mst_max_i64(longest, problem.q_offsets[i + 1] - problem.q_offsets[i]);
    assert_true(told < longest);
    fault_match(c, &problem, NULL);
}

/* Segments of one row of tokens do not see one another: a change of key 299 leaves row 300. */
static void documents_are_apart(void **state)
{
    fault_case *c = *state;
    attn_problem problem;
    fault_problem(c, &problem);
    fault_match(c, &problem, NULL);
    problem.values = ATTN_POOL;
    problem.num_qo_heads = problem.num_kv_heads = 2;
    for (int32_t isa = 0; isa < fault_isas.count; isa++) {
        attn_data clean;
        attn_data changed;
        attn_data_make(&problem, &clean);
        attn_data_make(&problem, &changed);
        attn_problem_run(&problem, fault_isas.device[isa], NULL, &clean);
        fault_fill_kv_rows(&problem, &changed.k.tensor, 299, 300, 50.0F);
        fault_fill_kv_rows(&problem, &changed.v.tensor, 299, 300, NAN);
        attn_problem_run(&problem, fault_isas.device[isa], NULL, &changed);
        assert_true(isnan(attn_get(&changed.out.tensor, 299, 0, 0)));
        fault_same(&problem, &clean, 300, &changed, 300, attn_problem_tokens(&problem) - 300);
        attn_data_free(&clean);
        attn_data_free(&changed);
    }
}

/* The longest that the work list knows of is 3, not the 4 tokens in all. */
static void bounds_of_the_plan(void **state)
{
    fault_case *c = *state;
    attn_problem problem;
    fault_outcome(c, "plan_bounds");
    fault_problem(c, &problem);
    for (int kind = ATTN_SELF; kind <= ATTN_PREFIXED; kind++) {
        attn_wrapper wrapper = make_wrapper(c, (attn_kind)kind);
        attn_must(attn_plan(&wrapper, NULL, problem.q_offsets, problem.num_segments,
                            problem.kv_offsets, problem.num_segments, 0));
        const mst_attn_plan *plan = plan_of(&wrapper);
        int32_t rows = 0;
        int32_t keys = 0;
        for (int64_t i = 0; i < plan->num_items; i++) {
            if (plan->items[i].q_begin + plan->items[i].q_rows > rows)
                rows = plan->items[i].q_begin + plan->items[i].q_rows;
            if (plan->items[i].kv_end > keys)
                keys = plan->items[i].kv_end;
        }
        assert_int_equal(rows, 3);
        assert_int_equal(keys, 3);
        attn_destroy(&wrapper);
    }
}

/* Unused slots are 0 long; -1 shows as offsets that decrease. */
static void negative_lengths(void **state)
{
    fault_case *c = *state;
    int64_t lens[4];
    fault_outcome(c, "reject");
    const json_t *cases = fault_get(c, "cases");
    int64_t count = fault_json_list(json_object_get(json_array_get(cases, 0), "lens"), lens, 4);
    for (int kind = ATTN_SELF; kind <= ATTN_PREFIXED; kind++) {
        attn_wrapper wrapper = make_wrapper(c, (attn_kind)kind);
        for (int zeros = 0; zeros <= 1; zeros++) {
            int32_t offsets[5] = {0};
            for (int64_t i = 0; i < count; i++)
                offsets[i + 1] = offsets[i] + (int32_t)(zeros ? mst_max_i64(lens[i], 0) : lens[i]);
            mstar_status status = attn_plan(&wrapper, NULL, offsets, count, offsets, count, 0);
            if (zeros) {
                attn_must(status);
                assert_int_equal(info_of(&wrapper).num_segments, 3);
                assert_int_equal(info_of(&wrapper).num_tokens, 4);
            } else {
                attn_refused(status, MSTAR_INVALID_ARGUMENT, "[2] is 3", "before is 4");
            }
        }
        attn_destroy(&wrapper);
    }
}

/* ---- K13: windows and whole images ----------------------------------------------------------- */

/* One set of tensors under two layouts. */
typedef struct two_plans {
    attn_problem problem[2]; /* windows, whole */
    attn_wrapper wrapper[2];
} two_plans;

static two_plans make_two_plans(fault_case *c, int32_t isa)
{
    two_plans made;
    attn_problem shape;
    static const char *const keys[] = {"window_lens", "full_lens"};
    fault_problem(c, &shape);
    for (int i = 0; i < 2; i++) {
        int64_t lens[8];
        mstar_ragged_prefill_desc desc;
        int64_t count = fault_list(c, keys[i], lens, 8);
        made.problem[i] = shape;
        fault_lengths(&made.problem[i], lens, lens, count);
        assert_int_equal(attn_problem_tokens(&made.problem[i]), fault_integer(c, "tokens"));
        attn_problem_desc(&made.problem[i], &desc);
        attn_must(attn_create(fault_isas.device[isa], ATTN_SELF, &desc, NULL, 0, &made.wrapper[i]));
        attn_must(attn_plan(&made.wrapper[i], NULL, made.problem[i].q_offsets, count, NULL, 0, 0));
    }
    return made;
}

static void run_planned(const attn_wrapper *wrapper, const attn_data *data)
{
    attn_must(attn_run(wrapper, NULL, &data->q.tensor, &data->k.tensor, &data->v.tensor,
                       &data->out.tensor, data->lse_tensor));
}

/* A NaN in key 64 leaves row 0 of the windows alone; one in key 255 shows in row 0 of the whole.
 * Running the two one after the other, many times, changes nothing. */
static void windows_and_whole_images(void **state)
{
    fault_case *c = *state;
    for (int32_t isa = 0; isa < fault_isas.count; isa++) {
        two_plans two = make_two_plans(c, isa);
        int64_t tokens = attn_problem_tokens(&two.problem[0]);
        attn_data first[2];
        attn_data data;
        attn_data_make(&two.problem[0], &data);
        for (int i = 0; i < 2; i++) {
            attn_reference reference;
            attn_data_make(&two.problem[i], &first[i]);
            run_planned(&two.wrapper[i], &first[i]);
            attn_reference_make(&two.problem[i], &first[i], &reference);
            assert_true(
                attn_reference_check(&two.problem[i], &first[i], &reference, fault_isas.name[isa]));
            attn_reference_free(&reference);
        }
        for (int round = 0; round < 6; round++) {
            attn_data_reset_outputs(&data);
            run_planned(&two.wrapper[round % 2], &data);
            fault_same(&two.problem[0], &first[round % 2], 0, &data, 0, tokens);
        }
        fault_fill_kv_rows(&two.problem[0], &data.v.tensor, 64, 65, NAN);
        run_planned(&two.wrapper[0], &data);
        fault_same(&two.problem[0], &first[0], 0, &data, 0, 64);
        attn_data_free(&data);
        attn_data_make(&two.problem[0], &data);
        fault_fill_kv_rows(&two.problem[0], &data.v.tensor, tokens - 1, tokens, NAN);
        run_planned(&two.wrapper[1], &data);
        assert_true(isnan(attn_get(&data.out.tensor, 0, 0, 0)));
        attn_data_free(&data);
        for (int i = 0; i < 2; i++) {
            attn_destroy(&two.wrapper[i]);
            attn_data_free(&first[i]);
        }
    }
}

static void plans_say_how_many_segments(void **state)
{
    fault_case *c = *state;
    two_plans two = make_two_plans(c, 0);
    assert_int_equal(info_of(&two.wrapper[0]).num_segments, 3);
    assert_int_equal(info_of(&two.wrapper[1]).num_segments, 1);
    assert_int_equal(info_of(&two.wrapper[0]).num_tokens, 192);
    assert_int_equal(info_of(&two.wrapper[1]).num_tokens, 192);
    for (int i = 0; i < 2; i++)
        attn_destroy(&two.wrapper[i]);
}

/* No segment over 784 rows: the plan says that it covers none of them, and run leaves out alone. */
static void a_plan_that_covers_nothing(void **state)
{
    fault_case *c = *state;
    int64_t list[2];
    const json_t *cases = fault_get(c, "cases");
    fault_outcome(c, "reject_or_noop");
    int64_t rows = fault_integer(c, "rows");
    int64_t count = fault_json_list(json_object_get(json_array_get(cases, 0), "offsets"), list, 2);
    const int32_t offsets[] = {(int32_t)list[0]};
    assert_int_equal(count, 1);
    for (int kind = ATTN_SELF; kind <= ATTN_PREFIXED; kind++) {
        attn_wrapper wrapper = make_wrapper(c, (attn_kind)kind);
        buffers b = make_buffers(c, rows);
        size_t bytes = (size_t)(rows * b.tensor[3].strides[0]) * sizeof(float);
        memset(b.memory[3], 0xA5, bytes);
        memcpy(b.memory[0], b.memory[3], bytes);
        attn_must(attn_plan(&wrapper, NULL, offsets, 0, offsets, 0, 0));
        assert_int_equal(info_of(&wrapper).num_segments, 0);
        assert_int_equal(info_of(&wrapper).num_tokens, 0);
        attn_must(run_buffers(&wrapper, &b));
        assert_memory_equal(b.memory[0], b.memory[3], bytes);
        free_buffers(&b);
        attn_destroy(&wrapper);
    }
}

/* ---- K14: keys shorter than the maximum ------------------------------------------------------ */

/* Sequence 0 sees its own 100 keys, also where its slot holds 1500: the rest is NaN. */
static void keys_shorter_than_the_slot(void **state)
{
    fault_case *c = *state;
    attn_problem problem;
    fault_outcome(c, "equal_to");
    fault_problem(c, &problem);
    problem.kind = ATTN_CROSS;
    int64_t slot = problem.kv_offsets[2] - problem.kv_offsets[1];
    for (int32_t isa = 0; isa < fault_isas.count; isa++) {
        attn_data whole;
        attn_data alone;
        attn_problem one = problem;
        const int64_t q = 1;
        const int64_t kv = problem.kv_offsets[1];
        attn_data_make(&problem, &whole);
        attn_problem_run(&problem, fault_isas.device[isa], NULL, &whole);
        fault_lengths(&one, &q, &kv, 1);
        one.kind = ATTN_CROSS;
        one.extra_rows = slot - kv; /* drawn as NaN */
        attn_data_make(&one, &alone);
        for (int64_t head = 0; head < problem.num_qo_heads; head++)
            for (int64_t d = 0; d < problem.head_dim; d++) {
                attn_set(&alone.q.tensor, 0, head, d, attn_get(&whole.q.tensor, 0, head, d));
                for (int64_t key = 0; key < kv; key++) {
                    attn_set(&alone.k.tensor, key, head, d,
                             attn_get(&whole.k.tensor, key, head, d));
                    attn_set(&alone.v.tensor, key, head, d,
                             attn_get(&whole.v.tensor, key, head, d));
                }
            }
        attn_problem_run(&one, fault_isas.device[isa], NULL, &alone);
        assert_true(isfinite(attn_get(&alone.out.tensor, 0, 0, 0)));
        fault_same(&problem, &whole, 0, &alone, 0, 1);
        attn_data_free(&whole);
        attn_data_free(&alone);
    }
    fault_match(c, &problem, NULL);
}

static void capacity_does_not_show(void **state)
{
    fault_case *c = *state;
    int64_t capacity[2];
    attn_problem problem;
    fault_list(c, "kv_capacity", capacity, 2);
    fault_problem(c, &problem);
    problem.kind = ATTN_CROSS;
    for (int32_t isa = 0; isa < fault_isas.count; isa++) {
        attn_data data[2];
        for (int i = 0; i < 2; i++) {
            attn_problem p = problem;
            p.extra_rows = capacity[i] - attn_problem_kv_tokens(&problem);
            attn_data_make(&p, &data[i]);
            assert_int_equal(data[i].k.tensor.shape[0], capacity[i]);
            attn_problem_run(&p, fault_isas.device[isa], NULL, &data[i]);
        }
        fault_same(&problem, &data[0], 0, &data[1], 0, 1);
        for (int i = 0; i < 2; i++)
            attn_data_free(&data[i]);
    }
    fault_match(c, &problem, NULL);
}

/* ---- K27: plans do not wait ------------------------------------------------------------------ */

static int64_t waits;

static mstar_status counted_stream_synchronize(mstar_stream *stream)
{
    (void)stream;
    waits++;
    return MSTAR_OK;
}

static mstar_status counted_event_synchronize(mstar_event *event)
{
    (void)event;
    waits++;
    return MSTAR_OK;
}

static mstar_status counted_copy(mstar_stream *stream, void *destination, const void *source,
                                 size_t bytes)
{
    (void)stream;
    waits++;
    memcpy(destination, source, bytes);
    return MSTAR_OK;
}

/* That the mock of a driver has met; none where there is no mock. */
static int64_t driver_waits(void)
{
    if (!level_is_card() || card_is_real())
        return 0;
    const mock_cuda *mock = mock_cuda_now();
    return mock->calls[MOCK_stream_synchronize] + mock->calls[MOCK_event_synchronize];
}

/* The device's own table with a count in all calls that wait or read back. */
static void plans_never_wait(void **state)
{
    fault_case *c = *state;
    attn_problem problem;
    fault_outcome(c, "no_sync");
    fault_get(c, "during");
    fault_says(c, "offsets_on", "host");
    mstar_device *device = attn_open(fault_isas.name[0], 2, NULL);
    const mst_backend *former = device->backend;
    mst_backend counted = *former;
    counted.stream_synchronize = counted_stream_synchronize;
    counted.event_synchronize = counted_event_synchronize;
    counted.copy = counted_copy;
    const int64_t lens[] = {3, 5};
    attn_problem_init(&problem);
    fault_lengths(&problem, lens, lens, 2);
    for (int kind = ATTN_SELF; kind <= ATTN_PREFIXED; kind++)
        for (int graph = 0; graph <= 1; graph++) {
            mstar_ragged_prefill_desc desc;
            attn_wrapper wrapper;
            mstar_stream *stream = NULL;
            attn_problem_desc(&problem, &desc);
            desc.accelerator_graph = graph;
            desc.max_num_segments = graph ? 4 : -1;
            desc.max_total_tokens = graph ? 16 : -1;
            attn_must(attn_create(device, (attn_kind)kind, &desc, NULL, 0, &wrapper));
            attn_must(mstar_stream_create(device, -1, &stream));
            device->backend = &counted;
            waits = 0;
            attn_must(mstar_stream_synchronize(stream)); /* the count counts */
            assert_int_equal(waits, 1);
            attn_must(attn_plan(&wrapper, NULL, problem.q_offsets, 2, problem.kv_offsets, 2,
                                0)); /* memory is taken by the first */
            int64_t before = driver_waits();
            for (int i = 0; i < 10; i++)
                attn_must(attn_plan(&wrapper, i % 2 ? stream : NULL, problem.q_offsets, 2,
                                    problem.kv_offsets, 2, 0));
            assert_int_equal(waits, 1);
            assert_int_equal(driver_waits(), before);
            device->backend = former;
            mstar_stream_destroy(stream);
            attn_destroy(&wrapper);
        }
    attn_close(device);
}

/* No length is promised; what can be too large is a ceiling. It costs no bit (what it costs in time
 * is measured by the benches). */
static void loose_bounds_keep_bits(void **state)
{
    fault_case *c = *state;
    const json_t *sides[] = {fault_get(c, "a"), fault_get(c, "b")};
    int64_t bound[2];
    attn_problem problem;
    attn_problem_init(&problem);
    problem.num_qo_heads = 4;
    for (int i = 0; i < 2; i++) {
        int64_t lens[4];
        int64_t count = fault_json_list(json_object_get(sides[i], "q_lens"), lens, 4);
        bound[i] = json_integer_value(json_object_get(sides[i], "max_len"));
        fault_lengths(&problem, lens, lens, count);
    }
    for (int32_t isa = 0; isa < fault_isas.count; isa++) {
        attn_data data[2];
        for (int i = 0; i < 2; i++) {
            attn_wrapper wrapper =
                fault_graph(fault_isas.device[isa], &problem, 2, 2 * bound[i], 2 * bound[i]);
            attn_data_make(&problem, &data[i]);
            fault_plan_run(&wrapper, &problem, &data[i]);
            attn_destroy(&wrapper);
        }
        fault_same(&problem, &data[0], 0, &data[1], 0, attn_problem_tokens(&problem));
        for (int i = 0; i < 2; i++)
            attn_data_free(&data[i]);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        FAULT("BR-096", malformed_offsets),          FAULT("BR-098", no_length_is_promised),
        FAULT("BR-099", no_length_is_promised),      FAULT("BR-102", documents_are_apart),
        FAULT("BR-103", bounds_of_the_plan),         FAULT("BR-104", negative_lengths),
        FAULT("BR-114", windows_and_whole_images),   FAULT("BR-115", plans_say_how_many_segments),
        FAULT("BR-118", a_plan_that_covers_nothing), FAULT("BR-122", keys_shorter_than_the_slot),
        FAULT("BR-123", capacity_does_not_show),     FAULT("BR-251", plans_never_wait),
        FAULT("BR-252", plans_never_wait),           FAULT("BR-253", loose_bounds_keep_bits),
    };
    return fault_run(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
