/*
 * test_cuda_rows.c - the row operations of the CUDA backend beside their numbers: the choices of
 * launches, live row counts, what graphs keep of the host's integers, and failed calls. Over the
 * mock, and with `test_cuda_rows cuda:0` on a card.
 */
#include <math.h>
#include <string.h>

#include "cuda/cuda_rows.h"
#include "support_card.h"
#include "support_mock_cuda.h"

enum { ROWS = 6, WIDTH = 5, WORDS = 9 };

static mstar_device *device;
static mstar_stream *stream, *other;
static mstar_buffer *buffer; /* a table, x and pooled rows, all of WIDTH columns */
static mstar_tensor table, x, pooled;

static mstar_tensor rows_at(int64_t first, int64_t rows)
{
    float *data = mstar_buffer_get_data(buffer);
    mstar_tensor made =
        mstar_tensor_make(data + first * WIDTH, MSTAR_DTYPE_F32, 2, (const int64_t[]){rows, WIDTH});
    made.device_kind = MSTAR_DEVICE_CUDA;
    return made;
}

/* Table row r is r + 1 throughout; all else begins as -1. */
static int set_up(void **state)
{
    (void)state;
    float start[(WORDS + 2 * ROWS) * WIDTH];
    for (int i = 0; i < (WORDS + 2 * ROWS) * WIDTH; i++)
        start[i] = i < WORDS * WIDTH ? (float)(i / WIDTH + 1) : -1.0F;
    device = card_open();
    CHECK_OK(mstar_stream_create(device, -1, &stream));
    CHECK_OK(mstar_stream_create(device, -1, &other));
    CHECK_OK(mstar_buffer_create(device, sizeof start, &buffer));
    CHECK_OK(mstar_buffer_upload(buffer, stream, 0, start, sizeof start));
    CHECK_OK(mstar_stream_synchronize(stream));
    table = rows_at(0, WORDS);
    x = rows_at(WORDS, ROWS);
    pooled = rows_at(WORDS + ROWS, ROWS);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    mstar_buffer_destroy(buffer);
    mstar_stream_destroy(stream);
    mstar_stream_destroy(other);
    card_close(device);
    return 0;
}

/* Every column of a row holds this. */
static void expect(const mstar_tensor *t, const float *want, int64_t rows)
{
    float got[ROWS * WIDTH];
    size_t from = (size_t)((const char *)t->data - (const char *)mstar_buffer_get_data(buffer));
    CHECK_OK(mstar_stream_synchronize(stream));
    CHECK_OK(mstar_stream_synchronize(other));
    CHECK_OK(
        mstar_buffer_download(buffer, stream, from, got, (size_t)rows * WIDTH * sizeof(float)));
    CHECK_OK(mstar_stream_synchronize(stream));
    for (int64_t i = 0; i < rows * WIDTH; i++)
        assert_true(got[i] == want[i / WIDTH]);
}
#define EXPECT(tensor, ...)                         \
    expect(&(tensor), (const float[]){__VA_ARGS__}, \
           sizeof((const float[]){__VA_ARGS__}) / sizeof(float))

static mstar_status embed(mstar_stream *on, const int32_t *ids)
{
    const mstar_tensor *tables[] = {&table};
    return mstar_embedding(on, tables, &ids, 1, &x);
}

/* ---- choices --------------------------------------------------------------------------------- */

static void teams_by_the_width(void **state)
{
    (void)state;
    assert_int_equal(mst_cuda_row_team(0), 32);
    assert_int_equal(mst_cuda_row_team(1024), 32);
    assert_int_equal(mst_cuda_row_team(1025), 128);
    assert_int_equal(mst_cuda_row_team(4096), 128);
    assert_int_equal(mst_cuda_row_team(4097), 512);
    assert_int_equal(mst_cuda_row_team((int64_t)1 << 24), 512);
    assert_int_equal(mst_cuda_row_teams(32), 4);
    assert_int_equal(mst_cuda_row_teams(128), 1);
    assert_int_equal(mst_cuda_row_teams(512), 1);
}

static void fours_where_they_are_aligned(void **state)
{
    (void)state;
    _Alignas(16) float memory[64];
    mst_rows rows = {memory, MSTAR_DTYPE_F32, 8, 4};
    assert_int_equal(mst_cuda_rows_of(&rows).vector, 1);
    rows.row_stride = 10;
    assert_int_equal(mst_cuda_rows_of(&rows).vector, 0);
    rows.row_stride = 8;
    rows.data = memory + 2;
    assert_int_equal(mst_cuda_rows_of(&rows).vector, 0);
    rows.dtype = MSTAR_DTYPE_BF16; /* 8 bytes are enough */
    assert_int_equal(mst_cuda_rows_of(&rows).vector, 1);
    rows.data = NULL;
    assert_null(mst_cuda_rows_of(&rows).data);
}

/* A launch need not wait where the kernel does: on sm_90, compiled for it. */
static void begins_before_others_end(void **state)
{
    (void)state;
    if (card_is_real())
        return;
    static const struct {
        int major, ptx_version, driver;
        bool overlaps;
    } cases[] = {
        {9, 90, 12030, true}, {9, 80, 99000, false}, {8, 90, 99000, false}, {9, 90, 12020, false}};
    mst_cuda *cuda = mst_cuda_of(device);
    const mst_cuda_kernel *kernel = mst_cuda_row_kernel(MST_CUDA_ROW_EMBEDDING);
    const int32_t ids[ROWS] = {0, 1, 2, 3, 4, 5};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mst_cuda_function function;
        mstar_kernel_info info = {.struct_size = sizeof info};
        cuda->major = mock_cuda_now()->major = cases[i].major;
        mock_cuda_now()->ptx_version = cases[i].ptx_version;
        mock_cuda_now()->version = cases[i].driver;
        mst_cuda_modules_unload(cuda);
        for (int32_t op = 0; op < MST_CUDA_ROW_OPS; op++)
            CHECK_OK(
                mst_cuda_function_get(cuda, mst_cuda_row_kernel((mst_cuda_row_op)op), &function));
        CHECK_OK(embed(stream, ids));
        assert_int_equal(mock_cuda_now()->overlaps, cases[i].overlaps);
        CHECK_OK(mst_cuda_query_kernel(device, mst_cuda_kernel_index(kernel), &info));
        assert_int_equal(strstr(info.reason, "begins while") != NULL, cases[i].overlaps);
    }
}

/* ---- now ------------------------------------------------------------------------------------- */

static void live_rows_now(void **state)
{
    (void)state;
    int64_t rows = 2;
    const int32_t ids[] = {4, 0, -7, 99, 0, 0}; /* those past the count are not looked at */
    CHECK_OK(mstar_stream_set_rows(stream, &rows));
    CHECK_OK(embed(stream, ids));
    EXPECT(x, 5, 1, -1, -1, -1, -1);
    rows = 3;
    CHECK_INVALID(embed(stream, ids), "ids[0][2] is -7");
    rows = 7;
    CHECK_INVALID(mstar_normalize(stream, &x, &x), "the live row count is 7");
    rows = 0;
    CHECK_OK(mstar_activation_run(stream, MSTAR_ACTIVATION_RELU, &x, &x));
    EXPECT(x, 5, 1, -1, -1, -1, -1);
    CHECK_OK(mstar_stream_set_rows(stream, NULL));
    CHECK_OK(mstar_activation_run(stream, MSTAR_ACTIVATION_RELU, &x, &x));
    EXPECT(x, 5, 1, 0, 0, 0, 0);
}

/* ---- recorded -------------------------------------------------------------------------------- */

/* An embedding, an activation and a pooling of ids and offsets that the test changes. */
typedef struct recorded {
    mstar_graph *graph;
    int32_t ids[ROWS], offsets[ROWS + 1], skip[ROWS];
    int64_t rows;
} recorded;

static void record(recorded *r, bool live)
{
    memset(r->ids, -1, sizeof r->ids); /* not looked at while recording */
    memset(r->offsets, -1, sizeof r->offsets);
    memset(r->skip, 0, sizeof r->skip);
    CHECK_OK(mstar_stream_set_rows(stream, live ? &r->rows : NULL));
    CHECK_OK(mstar_graph_capture_begin(stream));
    CHECK_OK(embed(stream, r->ids));
    CHECK_OK(mstar_activation_run(stream, MSTAR_ACTIVATION_RELU, &x, &x));
    CHECK_OK(mstar_pooling_run(stream, MSTAR_POOLING_MEAN, &x, r->offsets, ROWS, r->skip, &pooled));
    CHECK_OK(mstar_graph_capture_end(stream, &r->graph));
    CHECK_OK(mstar_stream_set_rows(stream, NULL)); /* the graph keeps it */
}

static void replays_read_the_host_again(void **state)
{
    (void)state;
    recorded r;
    record(&r, false);
    EXPECT(x, -1, -1, -1, -1, -1, -1);
    memcpy(r.ids, (const int32_t[]){0, 1, 2, 3, 4, 5}, sizeof r.ids);
    memcpy(r.offsets, (const int32_t[]){0, 2, 2, 3, 6, 6, 6}, sizeof r.offsets);
    CHECK_OK(mstar_graph_replay(r.graph, stream));
    EXPECT(x, 1, 2, 3, 4, 5, 6);
    EXPECT(pooled, 1.5F, 0, 3, 5, 0, 0);
    memcpy(r.ids, (const int32_t[]){8, 8, 0, 0, 0, 2}, sizeof r.ids);
    r.skip[3] = 2;
    CHECK_OK(mstar_graph_replay(r.graph, other));
    memset(r.ids, 0xff, sizeof r.ids); /* what was given has been taken */
    EXPECT(x, 9, 9, 1, 1, 1, 3);
    EXPECT(pooled, 9, 0, 1, 3, 0, 0);
    mstar_graph_destroy(r.graph);
}

static void replays_do_the_live_rows(void **state)
{
    (void)state;
    recorded r;
    record(&r, true);
    memcpy(r.offsets, (const int32_t[]){0, 1, 2, 9, 9, 9, 9}, sizeof r.offsets);
    r.ids[0] = 3;
    r.ids[1] = 1;
    r.rows = 2;
    CHECK_OK(mstar_graph_replay(r.graph, stream));
    EXPECT(x, 4, 2, -1, -1, -1, -1);
    EXPECT(pooled, 4, 2, -1, -1, -1, -1);
    r.rows = 0;
    CHECK_OK(mstar_graph_replay(r.graph, stream));
    EXPECT(x, 4, 2, -1, -1, -1, -1);
    r.rows = ROWS + 1;
    CHECK_INVALID(mstar_graph_replay(r.graph, stream),
                  "embedding: the live row count is 7; the tensors have 6 rows");
    r.rows = -1;
    CHECK_INVALID(mstar_graph_replay(r.graph, stream), "the live row count is -1");
    mstar_graph_destroy(r.graph);
}

static void replays_refuse_what_does_not_fit(void **state)
{
    (void)state;
    recorded r;
    record(&r, false);
    memset(r.ids, 0, sizeof r.ids);
    memset(r.offsets, 0, sizeof r.offsets);
    r.ids[4] = WORDS;
    CHECK_INVALID(mstar_graph_replay(r.graph, stream),
                  "replay of an embedding: ids[0][4] is 9; tables[0] has rows 0 to 8");
    r.ids[4] = 0;
    r.offsets[2] = 3;
    CHECK_INVALID(mstar_graph_replay(r.graph, stream), "segment 2 has offsets 3 to 0");
    r.offsets[2] = 0;
    r.offsets[6] = ROWS + 1;
    CHECK_INVALID(mstar_graph_replay(r.graph, stream), "offsets must rise within 0 to 6");
    r.offsets[6] = 0;
    r.skip[0] = -1;
    CHECK_INVALID(mstar_graph_replay(r.graph, stream), "skips -1");
    EXPECT(x, -1, -1, -1, -1, -1, -1); /* nothing has run */
    r.skip[0] = 0;
    CHECK_OK(mstar_graph_replay(r.graph, stream));
    EXPECT(x, 1, 1, 1, 1, 1, 1);
    mstar_graph_destroy(r.graph);
}

/* A rotary reads its positions again; its frequencies were sent once. */
static void rotary_in_a_graph(void **state)
{
    (void)state;
    mstar_graph *graph;
    int32_t positions[ROWS] = {0};
    mstar_tensor heads =
        mstar_tensor_make(x.data, MSTAR_DTYPE_F32, 3, (const int64_t[]){ROWS, 1, WIDTH});
    heads.device_kind = MSTAR_DEVICE_CUDA;
    CHECK_OK(mstar_graph_capture_begin(stream));
    CHECK_OK(mstar_rotary(stream, &heads, positions, 1.0, 2, 0, &heads));
    CHECK_OK(mstar_graph_capture_end(stream, &graph));
    CHECK_OK(mstar_graph_replay(graph, stream));
    EXPECT(x, -1, -1, -1, -1, -1, -1); /* turned by 0 */
    positions[1] = 1;
    CHECK_OK(mstar_graph_replay(graph, stream));
    float row[WIDTH];
    CHECK_OK(mstar_buffer_download(buffer, stream, (WORDS + 1) * WIDTH * sizeof(float), row,
                                   sizeof row));
    CHECK_OK(mstar_stream_synchronize(stream));
    float c = (float)cos(1.0), s = (float)sin(1.0);
    assert_true(check_near(row[0], s - c, 0x1p-22) && check_near(row[1], -c - s, 0x1p-22));
    assert_true(row[2] == -1.0F);
    mstar_graph_destroy(graph);
}

/* ---- failures, over the mock ----------------------------------------------------------------- */

/* Each call of a run, failed once: told, nothing left behind, and fine the next time. */
static void survives_failed_calls(void **state)
{
    (void)state;
    if (card_is_real())
        return;
    mock_cuda *mock = mock_cuda_now();
    const int32_t ids[ROWS] = {0, 1, 2, 3, 4, 5};
    const mock_call now[] = {MOCK_memory_alloc, MOCK_host_alloc,  MOCK_copy,
                             MOCK_event_record, MOCK_launch_with, MOCK_context_push};
    for (size_t i = 0; i < sizeof now / sizeof now[0]; i++) {
        mstar_stream *fresh;
        CHECK_OK(mstar_stream_create(device, -1, &fresh));
        mock->fail_call = now[i];
        mock->fail_after = 1;
        mock->fail_result = MST_CUDA_OUT_OF_MEMORY;
        if (now[i] == MOCK_host_alloc && mst_cuda_of(device)->ring.num_stages >= MST_CUDA_STAGES)
            mock->fail_after = 0; /* the ring has all that it needs */
        else
            CHECK_FAILED(embed(fresh, ids), MSTAR_OUT_OF_MEMORY, "MOCK_ERROR_2");
        CHECK_OK(embed(fresh, ids));
        mstar_stream_destroy(fresh);
    }
    const mock_call captured[] = {MOCK_capture_mode, MOCK_memory_alloc, MOCK_launch_with};
    for (size_t i = 0; i < sizeof captured / sizeof captured[0]; i++) {
        mstar_graph *graph = NULL;
        mock->fail_call = captured[i];
        CHECK_OK(mstar_graph_capture_begin(stream));
        mock->fail_after = 1;
        CHECK_FAILED(embed(stream, ids), MSTAR_OUT_OF_MEMORY, "MOCK_ERROR_2");
        CHECK_FAILED(mstar_graph_capture_end(stream, &graph), MSTAR_OUT_OF_MEMORY, "MOCK_ERROR_2");
    }
    recorded r;
    record(&r, false);
    memset(r.ids, 0, sizeof r.ids);
    memset(r.offsets, 0, sizeof r.offsets);
    const mock_call replayed[] = {MOCK_copy, MOCK_graph_launch};
    for (size_t i = 0; i < sizeof replayed / sizeof replayed[0]; i++) {
        mock->fail_call = replayed[i];
        mock->fail_after = 1;
        CHECK_FAILED(mstar_graph_replay(r.graph, stream), MSTAR_OUT_OF_MEMORY, "MOCK_ERROR_2");
        CHECK_OK(mstar_graph_replay(r.graph, stream));
    }
    mstar_graph_destroy(r.graph);
}

/* After its first use an operation takes no more memory, and no run loads a kernel. */
static void takes_memory_once(void **state)
{
    (void)state;
    if (card_is_real())
        return;
    mock_cuda *mock = mock_cuda_now();
    const int32_t ids[ROWS] = {0, 1, 2, 3, 4, 5};
    CHECK_OK(embed(stream, ids));
    for (int i = 0; i < MST_CUDA_STAGES; i++)
        CHECK_OK(embed(stream, ids));
    int64_t device_memory = mock->calls[MOCK_memory_alloc], pinned = mock->calls[MOCK_host_alloc];
    int64_t modules = mock->calls[MOCK_module_load];
    for (int i = 0; i < 100; i++)
        CHECK_OK(embed(stream, ids));
    assert_int_equal(mock->calls[MOCK_memory_alloc], device_memory);
    assert_int_equal(mock->calls[MOCK_host_alloc], pinned);
    assert_int_equal(mock->calls[MOCK_module_load], modules);
    /* the caller's own capture of the stream: a copy of the host's integers would be baked in */
    mock->capturing = mstar_stream_get_native(stream);
    CHECK_FAILED(embed(stream, ids), MSTAR_OUT_OF_ORDER, "while its stream captures");
    mock->capturing = NULL;
    CHECK_OK(embed(stream, ids));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(teams_by_the_width),
        cmocka_unit_test(fours_where_they_are_aligned),
        cmocka_unit_test_setup_teardown(begins_before_others_end, set_up, tear_down),
        cmocka_unit_test_setup_teardown(live_rows_now, set_up, tear_down),
        cmocka_unit_test_setup_teardown(replays_read_the_host_again, set_up, tear_down),
        cmocka_unit_test_setup_teardown(replays_do_the_live_rows, set_up, tear_down),
        cmocka_unit_test_setup_teardown(replays_refuse_what_does_not_fit, set_up, tear_down),
        cmocka_unit_test_setup_teardown(rotary_in_a_graph, set_up, tear_down),
        cmocka_unit_test_setup_teardown(survives_failed_calls, set_up, tear_down),
        cmocka_unit_test_setup_teardown(takes_memory_once, set_up, tear_down),
    };
    card_choose(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
