/*
 * test_faults_capture.c - cases K17, K19 and K20 of the known faults about captures themselves:
 * what may stand inside one, what happens when one is lost, and which bucket serves a step.
 */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "mstar/graph.h"
#include "support_card.h"
#include "support_faults_rig.h"

/* ---- K17: what a graph holds ----------------------------------------------------------------- */

/* A graph-mode wrapper with tensors, ready to be captured. */
typedef struct scene {
    mstar_device *device;
    mstar_stream *stream;
    attn_problem problem;
    attn_wrapper wrapper;
    attn_data data, want;
} scene;

static void open_scene(scene *s, mstar_device *device)
{
    const int64_t lens[] = {3, 9};
    s->device = device;
    attn_problem_init(&s->problem);
    fault_lengths(&s->problem, lens, lens, 2);
    s->wrapper = fault_graph(device, &s->problem, 4, 12, 12);
    attn_data_make(&s->problem, &s->data);
    attn_data_make(&s->problem, &s->want);
    attn_problem_run(&s->problem, device, NULL, &s->want);
    attn_must(mstar_stream_create(device, -1, &s->stream));
    attn_must(attn_plan(&s->wrapper, NULL, s->problem.q_offsets, 2, s->problem.kv_offsets, 2, 0));
}

static void close_scene(scene *s)
{
    attn_destroy(&s->wrapper);
    mstar_stream_destroy(s->stream);
    attn_data_free(&s->data);
    attn_data_free(&s->want);
}

static mstar_status run_scene(const scene *s)
{
    return attn_run(&s->wrapper, s->stream, &s->data.q.tensor, &s->data.k.tensor, &s->data.v.tensor,
                    &s->data.out.tensor, s->data.lse_tensor);
}

static mstar_status capture_scene(const scene *s, mstar_graph **graph)
{
    return attn_capture(&s->wrapper, s->stream, &s->data, graph);
}

static void replay_scene(scene *s, mstar_graph *graph)
{
    attn_data_reset_outputs(&s->data);
    attn_must(attn_replay(graph, s->stream));
    fault_same(&s->problem, &s->want, 0, &s->data, 0, attn_problem_tokens(&s->problem));
}

static mstar_graph_info info_of(const mstar_graph *graph)
{
    mstar_graph_info info = {.struct_size = sizeof info};
    attn_must(mstar_graph_query(graph, &info));
    return info;
}

/* What would copy from short-lived host memory, or plan, is refused inside a capture, so that no
 * graph holds it; and what plan was given may go at once. */
static void no_host_copies_in_a_graph(void **state)
{
    fault_case *c = *state;
    fault_outcome(c, "no_host_ptr");
    for (int what = 0; what <= 2; what++) {
        scene s;
        mstar_graph *graph = NULL;
        mstar_buffer *buffer = NULL;
        char bytes[16] = {0};
        open_scene(&s, fault_best());
        attn_must(mstar_buffer_create(s.device, sizeof bytes, &buffer));
        attn_must(mstar_graph_capture_begin(s.stream));
        mstar_status status =
            what == 0   ? mstar_buffer_upload(buffer, s.stream, 0, bytes, sizeof bytes)
            : what == 1 ? mstar_buffer_download(buffer, s.stream, 0, bytes, sizeof bytes)
                        : attn_plan(&s.wrapper, s.stream, s.problem.q_offsets, 2, NULL, 0, 0);
        assert_int_equal(status, MSTAR_OUT_OF_ORDER);
        assert_int_equal(mstar_graph_capture_end(s.stream, &graph), MSTAR_OUT_OF_ORDER);
        assert_null(graph);
        /* one launch, and the caller's offsets are gone when it is replayed */
        attn_must(capture_scene(&s, &graph));
        assert_int_equal(info_of(graph).nodes, 1);
        attn_problem kept = s.problem;
        attn_must(attn_plan(&s.wrapper, NULL, kept.q_offsets, 2, kept.kv_offsets, 2, 0));
        memset(kept.q_offsets, 0xFF, sizeof kept.q_offsets);
        replay_scene(&s, graph);
        attn_graph_destroy(graph);
        mstar_buffer_destroy(buffer);
        close_scene(&s);
    }
}

/* Nothing is allocated inside a capture, and a replay takes no memory. */
static void no_allocations_in_a_graph(void **state)
{
    fault_case *c = *state;
    fault_outcome(c, "no_alloc_node");
    for (int what = 0; what <= 1; what++) {
        scene s;
        mstar_graph *graph = NULL;
        mstar_buffer *buffer = NULL;
        attn_wrapper wrapper;
        mstar_ragged_prefill_desc desc;
        open_scene(&s, fault_best());
        attn_problem_desc(&s.problem, &desc);
        attn_must(mstar_graph_capture_begin(s.stream));
        mstar_status status = what == 0
                                  ? mstar_buffer_create(s.device, 64, &buffer)
                                  : attn_create(s.device, ATTN_SELF, &desc, NULL, 0, &wrapper);
        assert_int_equal(status, MSTAR_OUT_OF_ORDER);
        assert_int_equal(mstar_graph_capture_end(s.stream, &graph), MSTAR_OUT_OF_ORDER);
        assert_null(graph);
        attn_must(capture_scene(&s, &graph));
        mstar_memory_info before = {.struct_size = sizeof before};
        mstar_memory_info after = {.struct_size = sizeof after};
        attn_must(mstar_memory_query(&before));
        for (int i = 0; i < 10; i++)
            replay_scene(&s, graph);
        attn_must(mstar_memory_query(&after));
        assert_int_equal(before.total_allocations, after.total_allocations);
        attn_graph_destroy(graph);
        close_scene(&s);
    }
}

/* ---- K19: buckets ---------------------------------------------------------------------------- */

static mstar_status no_input(void *user, int64_t num_tokens, mstar_node_input *input)
{
    (void)user;
    (void)num_tokens;
    (void)input;
    return MSTAR_OK;
}

typedef struct bucket_list {
    mstar_graph_config *config;
    mstar_graph_bucket buckets[64];
    int64_t count;
} bucket_list;

/* Buckets of these batch sizes of one token a request, or, with lengths, of these token counts. */
static void make_buckets(const int64_t *sizes, int64_t num_sizes, const int64_t *lengths,
                         int64_t num_lengths, bucket_list *list)
{
    mstar_graph_config_desc desc;
    mstar_node_input single = {.input_seq_len = 1};
    mstar_packed_graph_config_desc_init(&desc);
    desc.capture_graph_walk = "decode";
    desc.capture_batch_sizes = sizes;
    desc.num_capture_batch_sizes = num_sizes;
    if (num_lengths == 0) {
        desc.single_request_inputs = &single;
        CHECK_OK(mstar_batched_graph_config_create(&desc, &list->config));
    } else {
        desc.capture_token_lengths = lengths;
        desc.num_capture_token_lengths = num_lengths;
        desc.make_node_input = no_input;
        CHECK_OK(mstar_packed_graph_config_create(&desc, &list->config));
    }
    const mstar_graph_config *configs[] = {list->config};
    CHECK_OK(mstar_graph_list_captures(configs, 1, 1, list->buckets, 64, &list->count));
    assert_true(list->count <= 64);
}

/* The bucket of a step, or NULL and why it runs directly. */
static const mstar_graph_bucket *choose(const bucket_list *list, int64_t bs, int64_t tokens,
                                        double max_waste, mstar_graph_miss *miss)
{
    mstar_graph_request request;
    mstar_graph_choice choice = {.struct_size = sizeof choice};
    mstar_graph_request_init(&request);
    request.walk = "decode";
    request.bs = bs;
    request.num_tokens = tokens;
    request.max_waste = max_waste;
    CHECK_OK(mstar_graph_choose(list->buckets, NULL, list->count, &request, &choice));
    *miss = choice.miss;
    return choice.index < 0 ? NULL : &list->buckets[choice.index];
}

/* More than any size is a direct run with a reason, none at all is no work, the largest is there.
 */
static void batches_of_any_size(void **state)
{
    fault_case *c = *state;
    int64_t sizes[8];
    int64_t requests[8];
    int64_t count = fault_list(c, "list", sizes, 8);
    int64_t num_requests = fault_list(c, "requests", requests, 8);
    bucket_list list;
    fault_outcome(c, "bucket");
    make_buckets(sizes, count, NULL, 0, &list);
    for (int64_t i = 0; i < num_requests; i++) {
        mstar_graph_miss miss;
        const mstar_graph_bucket *bucket =
            choose(&list, requests[i], requests[i], (double)NAN, &miss);
        if (requests[i] == 0) {
            assert_int_equal(miss, MSTAR_GRAPH_MISS_EMPTY);
        } else if (requests[i] > sizes[count - 1]) {
            assert_int_equal(miss, MSTAR_GRAPH_MISS_BATCH_SIZE);
        } else {
            assert_non_null(bucket);
            assert_int_equal(bucket->bs, requests[i]);
        }
    }
    /* the twin: every size up to the largest has the smallest bucket that holds it */
    for (int64_t bs = 1; bs <= sizes[count - 1]; bs++) {
        mstar_graph_miss miss;
        const mstar_graph_bucket *bucket = choose(&list, bs, bs, (double)NAN, &miss);
        assert_non_null(bucket);
        assert_true(bucket->bs >= bs && bucket->bs < 2 * bs);
    }
    mstar_graph_config_destroy(list.config);
}

/* The largest batch is always in the list, so that every batch up to it has a bucket. */
static void lists_reach_the_maximum(void **state)
{
    fault_case *c = *state;
    int64_t most[8];
    int64_t user[8];
    int64_t count = fault_list(c, "max", most, 8);
    int64_t stride = fault_has(c, "stride") ? fault_integer(c, "stride") : 0;
    int64_t num_user = fault_has(c, "user") ? fault_list(c, "user", user, 8) : 0;
    fault_outcome(c, "bucket");
    for (int64_t i = 0; i < count; i++) {
        int64_t sizes[1024];
        int64_t num_sizes = 0;
        CHECK_OK(mstar_graph_batch_sizes(most[i], stride, num_user > 0 ? user : NULL, num_user,
                                         sizes, 1024, &num_sizes));
        assert_true(num_sizes >= 1 && num_sizes <= 1024);
        assert_int_equal(sizes[num_sizes - 1], most[i]);
        for (int64_t j = 0; j < num_sizes; j++)
            assert_true(sizes[j] >= 1 && (j == 0 || sizes[j] > sizes[j - 1]));
        if (num_user > 0) /* all of them above the bound: one size is left */
            assert_int_equal(num_sizes, 1);
    }
}

static void waste_is_bounded(void **state)
{
    fault_case *c = *state;
    static const int64_t one[] = {1};
    int64_t lengths[8];
    int64_t requests[8];
    int64_t want[] = {-1, -1, 2816, 8192};
    int64_t count = fault_list(c, "list", lengths, 8);
    double waste = fault_real(c, "max_waste");
    bucket_list list;
    assert_int_equal(fault_list(c, "requests", requests, 8), 4);
    make_buckets(one, 1, lengths, count, &list);
    for (int i = 0; i < 4; i++) {
        mstar_graph_miss miss;
        const mstar_graph_bucket *bucket = choose(&list, 1, requests[i], waste, &miss);
        if (want[i] < 0) {
            assert_null(bucket);
            assert_int_equal(miss, MSTAR_GRAPH_MISS_WASTE);
        } else {
            assert_non_null(bucket);
            assert_int_equal(bucket->num_tokens, want[i]);
        }
    }
    mstar_graph_config_destroy(list.config);
}

/* Keys up to the ceiling that a bucket was captured at: the very ceiling is chosen, planned and
 * replayed; one key more is a direct run, and a plan that comes all the same is refused, the
 * wrapper still holding the former one. */
static void keys_past_the_ceiling(void **state)
{
    fault_case *c = *state;
    int64_t sizes[8];
    int64_t count = fault_list(c, "list", sizes, 8);
    int64_t max_kv = fault_integer(c, "max_kv");
    const json_t *requests = fault_get(c, "requests");
    bucket_list list;
    make_buckets(sizes, count, &max_kv, 1, &list);
    for (int32_t isa = 0; isa < fault_isas.count; isa++) {
        attn_problem problem;
        attn_problem_init(&problem);
        problem.kind = ATTN_CROSS;
        problem.head_dim = 8;
        attn_problem_add(&problem, 1, 1);
        attn_problem_add(&problem, 1, 1);
        fault_rig rig;
        fault_rig_make(&rig, &problem, 2, 2, max_kv);
        attn_wrapper wrapper = fault_graph(fault_isas.device[isa], &problem, 2, 2, max_kv);
        for (size_t i = 0; i < json_array_size(requests); i++) {
            const json_t *request = json_array_get(requests, i);
            const int64_t q[] = {1, 1};
            int64_t keys = json_integer_value(json_object_get(request, "kv"));
            const int64_t kv[] = {keys - keys / 2, keys / 2};
            int64_t bs = json_integer_value(json_object_get(request, "n"));
            mstar_graph_miss miss;
            const mstar_graph_bucket *bucket = choose(&list, bs, keys, (double)NAN, &miss);
            if (keys <= max_kv)
                assert_int_equal(bucket->bs, 2);
            else
                assert_int_equal(miss, MSTAR_GRAPH_MISS_TOKENS);
            fault_lengths(&problem, q, kv, 2);
            problem.kind = ATTN_CROSS;
            mstar_status status =
                attn_plan(&wrapper, NULL, problem.q_offsets, 2, problem.kv_offsets, 2, 0);
            if (keys <= max_kv) {
                attn_data data;
                attn_must(status);
                attn_data_make(&problem, &data);
                attn_problem_run(&problem, fault_isas.device[isa], NULL, &data);
                fault_rig_replay(&rig, isa, &problem, &data, &data);
                attn_data_free(&data);
            } else {
                mstar_ragged_prefill_info info = {.struct_size = sizeof info};
                attn_refused(status, MSTAR_INVALID_ARGUMENT, "8193", "max_total_kv_tokens is 8192");
                attn_must(attn_query(&wrapper, &info));
                assert_int_equal(info.num_kv_tokens, max_kv);
            }
        }
        attn_destroy(&wrapper);
        fault_rig_free(&rig);
    }
    mstar_graph_config_destroy(list.config);
}

/* ---- K20: captures among other things -------------------------------------------------------- */

typedef struct busy_thread {
    mstar_device *device;
    _Atomic int stop;
    int64_t rounds, failed;
} busy_thread;

/* Allocates and copies until it is told to stop. */
static void *keep_busy(void *context)
{
    busy_thread *b = context;
    mstar_stream *stream = NULL;
    b->failed += mstar_stream_create(b->device, 1, &stream) != MSTAR_OK;
    while (!b->stop && b->failed == 0) {
        mstar_buffer *buffer = NULL;
        char bytes[512] = {7};
        b->failed += mstar_buffer_create(b->device, sizeof bytes, &buffer) != MSTAR_OK;
        b->failed += mstar_buffer_upload(buffer, stream, 0, bytes, sizeof bytes) != MSTAR_OK;
        b->failed += mstar_buffer_download(buffer, stream, 0, bytes, sizeof bytes) != MSTAR_OK;
        b->failed += mstar_stream_synchronize(stream) != MSTAR_OK;
        b->failed += bytes[0] != 7;
        mstar_buffer_destroy(buffer);
        b->rounds++;
    }
    mstar_stream_destroy(stream);
    return NULL;
}

static void another_thread_meanwhile(void **state)
{
    fault_case *c = *state;
    scene s;
    pthread_t thread;
    fault_threads(c);
    fault_outcome(c, "ok");
    fault_says(c, "other_thread", "allocates and copies during capture");
    open_scene(&s, fault_best());
    busy_thread busy = {.device = s.device};
    assert_int_equal(pthread_create(&thread, NULL, keep_busy, &busy), 0);
    for (int i = 0; i < 200; i++) {
        mstar_graph *graph = NULL;
        attn_must(capture_scene(&s, &graph));
        replay_scene(&s, graph);
        attn_graph_destroy(graph);
    }
    busy.stop = 1;
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(busy.failed, 0);
    close_scene(&s);
}

/* A capture that is lost to a refused call, ended or abandoned: the stream is an ordinary one
 * again, and the next capture is whole. */
static void after_a_lost_capture(void **state)
{
    fault_case *c = *state;
    fault_outcome(c, "recover");
    fault_says(c, "inject", "illegal call inside capture");
    for (int way = 0; way <= 2; way++) {
        scene s;
        mstar_graph *graph = NULL;
        open_scene(&s, fault_best());
        attn_must(mstar_graph_capture_begin(s.stream));
        if (!level_is_card()) /* where tensors would be lent for the run's length */
            attn_must(run_scene(&s));
        assert_int_equal(mstar_stream_synchronize(s.stream), MSTAR_OUT_OF_ORDER);
        if (way == 0) {
            assert_int_equal(mstar_graph_capture_end(s.stream, &graph), MSTAR_OUT_OF_ORDER);
        } else if (way == 1) {
            mstar_graph_capture_abort(s.stream);
        } else { /* torn down in the middle */
            mstar_stream_destroy(s.stream);
            attn_must(mstar_stream_create(s.device, -1, &s.stream));
        }
        assert_null(graph);
        attn_graph_destroy(graph);
        attn_must(mstar_stream_synchronize(s.stream));
        attn_must(run_scene(&s));
        attn_must(capture_scene(&s, &graph));
        replay_scene(&s, graph);
        attn_graph_destroy(graph);
        close_scene(&s);
    }
}

/* Every wrapper and dtype on every level, and every operation, captured and replayed once. */
static void every_path_is_captured(void **state)
{
    fault_case *c = *state;
    enum { ROWS = 5, WIDTH = 16 };
    assert_true(fault_flag(c, "all_paths"));
    for (int32_t isa = 0; isa < fault_isas.count; isa++)
        for (int kind = ATTN_SELF; kind <= ATTN_PREFIXED; kind++)
            for (int dtype = 0; dtype < 3; dtype++)
                for (int32_t dim = 16; dim <= 17; dim++) {
                    const int64_t q[] = {3, 2};
                    const int64_t kv[] = {70, 1};
                    attn_problem problem;
                    attn_data data;
                    attn_problem_init(&problem);
                    fault_lengths(&problem, q, kind == ATTN_SELF ? q : kv, 2);
                    problem.kind = (attn_kind)kind;
                    problem.dtype = (mstar_dtype)dtype;
                    problem.head_dim = dim;
                    problem.causal = kind != ATTN_CROSS;
                    fault_rig rig;
                    fault_rig_make(&rig, &problem, 3, 8, 80);
                    attn_data_make(&problem, &data);
                    attn_problem_run(&problem, fault_isas.device[isa], NULL, &data);
                    fault_rig_replay(&rig, isa, &problem, &data, &data);
                    fault_rig_free(&rig);
                    attn_data_free(&data);
                }
    for (int32_t isa = 0; isa < fault_isas.count; isa++)
        for (int op = 0; op <= 7; op++) {
            static const int32_t cu[] = {0, 2, ROWS};
            static const int32_t ids[ROWS] = {4, 0, 1, 1, 3};
            static const int32_t positions[ROWS] = {0, 1, 2, 0, 9};
            const int32_t *id_lists[] = {ids};
            check_rng rng = {(uint64_t)op};
            check_rows x = check_rows_make(MSTAR_DTYPE_F32, ROWS, WIDTH, WIDTH);
            check_rows w = check_rows_make(MSTAR_DTYPE_F32, WIDTH, WIDTH, WIDTH);
            check_rows out[2];
            mstar_stream *stream = NULL;
            mstar_linear *linear = NULL;
            mstar_graph *graph = NULL;
            const mstar_tensor *weights[] = {&w.tensor};
            const mstar_tensor *tables[] = {&x.tensor};
            const int64_t one[] = {WIDTH};
            mstar_tensor gain = mstar_tensor_make(w.tensor.data, MSTAR_DTYPE_F32, 1, one);
            check_rows_fill(&x, &rng, -1.0, 1.0);
            check_rows_fill(&w, &rng, -1.0, 1.0);
            CHECK_OK(mstar_stream_create(fault_isas.device[isa], -1, &stream));
            CHECK_OK(mstar_linear_create(fault_isas.device[isa], NULL, weights, NULL, 1, &linear));
            for (int captured = 0; captured <= 1; captured++) {
                out[captured] = check_rows_make(MSTAR_DTYPE_F32, ROWS, WIDTH, WIDTH);
                mstar_tensor to = out[captured].tensor;
                mstar_tensor heads_x;
                mstar_tensor heads_to;
                CHECK_OK(mstar_tensor_split_dim(&x.tensor, 1, 2, 8, &heads_x));
                CHECK_OK(mstar_tensor_split_dim(&to, 1, 2, 8, &heads_to));
                mstar_tensor two;
                CHECK_OK(mstar_tensor_slice(&to, 0, 0, 2, &two));
                if (captured)
                    CHECK_OK(mstar_graph_capture_begin(stream));
                mstar_status status = MSTAR_INTERNAL;
                switch (op) {
                case 0:
                    status = mstar_linear_run(linear, stream, &x.tensor, NULL, &to);
                    break;
                case 1:
                    status = mstar_layer_norm(stream, &x.tensor, NULL, &gain, NULL, 1e-5, &to);
                    break;
                case 2:
                    status = mstar_rms_norm(stream, &x.tensor, NULL, &gain, 1e-5, &to);
                    break;
                case 3:
                    status = mstar_activation_run(stream, MSTAR_ACTIVATION_GELU, &x.tensor, &to);
                    break;
                case 4:
                    status = mstar_normalize(stream, &x.tensor, &to);
                    break;
                case 5:
                    status = mstar_embedding(stream, tables, id_lists, 1, &to);
                    break;
                case 6:
                    status = mstar_rotary(stream, &heads_x, positions, 10000.0, 8, 0, &heads_to);
                    break;
                default:
                    status =
                        mstar_pooling_run(stream, MSTAR_POOLING_MEAN, &x.tensor, cu, 2, NULL, &two);
                    break;
                }
                CHECK_OK(status);
                if (captured) {
                    CHECK_OK(mstar_graph_capture_end(stream, &graph));
                    CHECK_OK(mstar_graph_replay(graph, stream));
                }
            }
            for (int64_t row = 0; row < ROWS; row++)
                assert_memory_equal(check_row(&out[0], row), check_row(&out[1], row),
                                    WIDTH * sizeof(float));
            attn_graph_destroy(graph);
            mstar_linear_destroy(linear);
            mstar_stream_destroy(stream);
            check_rows_free(&x);
            check_rows_free(&w);
            check_rows_free(&out[0]);
            check_rows_free(&out[1]);
        }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        FAULT("BR-154", no_host_copies_in_a_graph), FAULT("BR-156", no_allocations_in_a_graph),
        FAULT("BR-174", batches_of_any_size),       FAULT("BR-175", batches_of_any_size),
        FAULT("BR-176", lists_reach_the_maximum),   FAULT("BR-177", lists_reach_the_maximum),
        FAULT("BR-179", lists_reach_the_maximum),   FAULT("BR-181", waste_is_bounded),
        FAULT("BR-182", keys_past_the_ceiling),     FAULT("BR-187", another_thread_meanwhile),
        FAULT("BR-188", after_a_lost_capture),      FAULT_HOST("BR-191", every_path_is_captured),
    };
    return fault_run(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
