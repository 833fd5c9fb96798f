/*
 * test_encoder_regions.c - the layers of a text encoder as a region: captured by themselves at a
 * few token counts, while reading ids, planning and pooling stay eager around them. Hidden states
 * have the bits of the encoder without graphs, in f32 and bf16, and zeros take the place of ids
 * past the real ones.
 */
#include "support_encoder.h"

#include <string.h>

#include "mstar/region.h"

enum { TOTALS = 3, MOST_TOKENS = 128, MOST_SEGMENTS = 16 };
static const int64_t totals[TOTALS] = {24, 64, MOST_TOKENS};

/* An encoder whose first worker's arena the region works in. */
typedef struct tower {
    mstar_encoder *encoder;
    mst_worker *worker;
    mstar_ragged_prefill *attention[TOTALS];
    mstar_piecewise_config *config;
    mstar_region_runner *runner;
    int64_t captures;
} tower;

static mstar_status add_ids(mstar_tensors *list, const char *name, int32_t *ids, int64_t count)
{
    mstar_tensor tensor = mstar_tensor_make(ids, MSTAR_DTYPE_I32, 1, &count);
    return mstar_tensors_add(list, name, &tensor);
}

static mstar_status add_buffer(mstar_tensors *list, const char *name, int32_t *ids, int64_t count)
{
    memset(ids, 0, (size_t)count * sizeof *ids);
    return add_ids(list, name, ids, count);
}

/* Memory of the worker's, not the runner's, who would have brought zeros. */
static mstar_status make_inputs(void *user, const mstar_capture_shape *shape, mstar_tensors *inputs)
{
    const tower *t = user;
    MST_TRY(add_buffer(inputs, "ids", t->worker->ids, shape->total_tokens));
    MST_TRY(add_buffer(inputs, "types", t->worker->type_ids, shape->total_tokens));
    return add_buffer(inputs, "positions", t->worker->positions, shape->total_tokens);
}

static mstar_ragged_prefill *attention_of(const tower *t, int64_t total)
{
    int i = 0;
    while (totals[i] != total)
        i++;
    return t->attention[i];
}

static mstar_status run_layers(void *user, const mstar_piecewise_call_inputs *call,
                               mstar_tensors *outputs)
{
    tower *t = user;
    const mstar_encoder *e = t->encoder;
    int64_t total = call->engine_inputs->lease->key.num_tokens;
    t->captures++;
    MST_TRY(mst_bert_run(&e->folder.config, &e->weights, t->worker, attention_of(t, total),
                         call->engine_inputs->stream, total));
    mstar_tensor x = mst_token_rows(t->worker->x, MSTAR_DTYPE_F32, total, DIMS);
    return mstar_tensors_add(outputs, "hidden", &x);
}

static void open_tower(mstar_device *device, const char *folder, mstar_dtype dtype, tower *t)
{
    static const int64_t sizes[] = {MOST_SEGMENTS};
    mstar_encoder_desc desc = encoder_defaults();
    memset(t, 0, sizeof *t);
    desc.dtype = dtype;
    desc.max_batch_tokens = MOST_TOKENS;
    t->encoder = encoder_load(device, folder, &desc);
    t->worker = &t->encoder->workers[0];
    mstar_ragged_prefill_desc attention;
    mst_worker_attention(&t->encoder->folder, t->worker->dtype, &attention);
    attention.accelerator_graph = 1;
    attention.max_num_segments = MOST_SEGMENTS;
    for (int i = 0; i < TOTALS; i++) {
        attention.max_total_tokens = totals[i];
        FOLDER_OK(mstar_ragged_prefill_create(device, &attention, NULL, 0, &t->attention[i]));
    }
    mstar_piecewise_packed_config_desc config;
    mstar_piecewise_packed_config_desc_init(&config);
    config.capture_fn = run_layers;
    config.make_static_inputs = make_inputs;
    config.user = t;
    config.capture_batch_sizes = sizes;
    config.num_capture_batch_sizes = 1;
    config.total_tokens = totals;
    config.num_total_tokens = TOTALS;
    FOLDER_OK(mstar_piecewise_packed_config_create(&config, &t->config));
    mstar_region_runner_desc runner;
    mstar_region_runner_desc_init(&runner);
    runner.node = "encoder";
    runner.label = "layers";
    runner.config = t->config;
    runner.stream = t->encoder->stream;
    FOLDER_OK(mstar_region_runner_create(device, &runner, &t->runner));
    FOLDER_OK(mstar_region_runner_prepare(t->runner));
    FOLDER_OK(mstar_region_runner_capture(t->runner));
    mstar_region_runner_info info = {.struct_size = sizeof info};
    FOLDER_OK(mstar_region_runner_query(t->runner, &info));
    assert_string_equal(info.first_failure, "");
}

static void close_tower(tower *t)
{
    mstar_region_runner_destroy(t->runner);
    mstar_piecewise_config_destroy(t->config);
    for (int i = 0; i < TOTALS; i++)
        mstar_ragged_prefill_destroy(t->attention[i]);
    mstar_encoder_release(t->encoder);
}

/* What stays eager around the region: positions, the plan, the call. */
static const float *run(tower *t, const int32_t *ids, const int32_t *offsets, int64_t count)
{
    static int32_t types[MOST_TOKENS], positions[MOST_TOKENS];
    int64_t lengths[MOST_SEGMENTS], tokens = offsets[count];
    for (int64_t i = 0; i < count; i++) {
        lengths[i] = offsets[i + 1] - offsets[i];
        for (int32_t j = offsets[i]; j < offsets[i + 1]; j++)
            positions[j] = j - offsets[i];
    }
    assert_int_equal(mstar_region_runner_can_run(t->runner, count, tokens), MSTAR_GRAPH_MISS_NONE);
    int64_t total = tokens <= totals[0] ? totals[0] : tokens <= totals[1] ? totals[1] : totals[2];
    FOLDER_OK(
        mstar_ragged_prefill_plan(attention_of(t, total), t->encoder->stream, offsets, count, 0));
    memset(t->worker->ids, 0x7f, MOST_TOKENS * sizeof *t->worker->ids); /* no id of any table */
    mstar_tensors inputs;
    mstar_tensors_init(&inputs);
    FOLDER_OK(add_ids(&inputs, "ids", (int32_t *)(uintptr_t)ids, tokens));
    FOLDER_OK(add_ids(&inputs, "types", types, tokens));
    FOLDER_OK(add_ids(&inputs, "positions", positions, tokens));
    mstar_region_call call;
    mstar_region_result result = {.struct_size = sizeof result};
    mstar_region_call_init(&call);
    call.inputs = &inputs;
    call.seq_lens = lengths;
    call.num_seq_lens = count;
    FOLDER_OK(mstar_region_runner_run(t->runner, &call, &result));
    mstar_tensors_release(&inputs);
    assert_int_equal(result.real_len, tokens);
    assert_int_equal(result.total_tokens, total);
    for (int64_t i = tokens; i < total; i++)
        assert_int_equal(t->worker->ids[i], 0);
    return mstar_tensors_find(result.outputs, "hidden")->data;
}

static void the_bits_of_the_encoder(void **state)
{
    const encoder_fixture *fixture = *state;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        static tower t;
        static float want[MOST_TOKENS * DIMS];
        mstar_dtype dtype = bf16 ? MSTAR_DTYPE_BF16 : MSTAR_DTYPE_F32;
        mstar_encoder_desc desc = encoder_defaults();
        desc.dtype = dtype;
        mstar_encoder *eager = encoder_load(fixture->device, fixture->folder, &desc);
        int64_t width = encoder_query(eager).hidden, max_tokens = encoder_query(eager).max_tokens;
        assert_int_equal(width, DIMS);
        open_tower(fixture->device, fixture->folder, dtype, &t);
        int64_t captures = t.captures;
        test_random random = {91};
        for (int round = 0; round < 60; round++) {
            int32_t ids[MOST_TOKENS], offsets[MOST_SEGMENTS + 1] = {0};
            int64_t count = test_random_between(&random, 1, MOST_SEGMENTS);
            for (int64_t i = 0; i < count; i++) {
                int64_t most =
                    MOST_TOKENS - offsets[i] < max_tokens ? MOST_TOKENS - offsets[i] : max_tokens;
                offsets[i + 1] =
                    offsets[i] + (int32_t)test_random_between(&random, 0, most / (1 + round % 4));
            }
            int64_t tokens = offsets[count];
            for (int64_t i = 0; i < tokens; i++)
                ids[i] = (int32_t)test_random_between(&random, 0, TINY_VOCAB - 1);
            FOLDER_OK(mstar_encoder_hidden(eager, ids, NULL, offsets, count, want, width));
            const float *got = run(&t, ids, offsets, count);
            if (tokens > 0)
                assert_memory_equal(got, want, (size_t)(tokens * width) * sizeof *want);
        }
        assert_int_equal(t.captures, captures); /* no host code of the region ran again */
        mstar_region_runner_info info = {.struct_size = sizeof info};
        FOLDER_OK(mstar_region_runner_query(t.runner, &info));
        assert_int_equal(info.num_captured, TOTALS);
        assert_int_equal(info.replays, 60);
        mstar_encoder_release(eager);
        close_tower(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {ENCODER_TEST(the_bits_of_the_encoder)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
