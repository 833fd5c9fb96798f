/*
 * soak_attention.c - many random layouts through wrappers that live long: every segment's rows have
 * the same bits alone, in the batch and in graph mode; rows past the plan are untouched in eager
 * mode and zero in graph mode; no memory is kept.
 *
 *   soak_attention LAYOUTS [SEED [DEVICE]]
 *
 * Layouts go round over shapes (kind, heads, head dim, dtype, layout of keys, windows), each with
 * an eager wrapper, one in graph mode and one for segments alone, on the ISA levels of this machine
 * in turn, now on all threads and now on a serial stream. Now and then a shape's wrappers are made
 * anew. DEVICE: "cuda:0", or "mock" for the mock of a GPU, in place of the levels.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support_attn.h"
#include "support_card.h"
#include "support_soak.h"

enum { NUM_SHAPES = 48, MAX_SEGMENTS = 9, MAX_ROWS = 200, EXTRA_ROWS = 3, RENEW = 40 };

typedef struct shape {
    attn_kind kind;
    mstar_device *device;
    mstar_stream *serial;
    mstar_ragged_prefill_desc desc;
    attn_wrapper batch, graph, alone;
    unsigned char *q, *k, *v, *out, *graph_out, *alone_out; /* MAX_ROWS + EXTRA_ROWS rows */
    float *lse, *graph_lse, *alone_lse;
    size_t out_bytes;
} shape;

typedef struct soak_layout {
    int32_t q[MAX_SEGMENTS + 1], kv[MAX_SEGMENTS + 1];
    int64_t segments;
    int causal;
} soak_layout;

/* ---- shapes ---------------------------------------------------------------------------------- */

static size_t row_bytes(const shape *s)
{
    return (size_t)s->desc.num_qo_heads * (size_t)s->desc.head_dim *
           mstar_dtype_bytes(s->desc.q_data_type);
}

static unsigned char *make_values(test_random *random, mstar_dtype dtype, int64_t count)
{
    float *values = soak_alloc((size_t)count * sizeof *values);
    unsigned char *made = soak_alloc((size_t)count * mstar_dtype_bytes(dtype));
    for (int64_t i = 0; i < count; i++)
        values[i] = (float)test_random_normal(random);
    soak_must(mstar_convert(values, MSTAR_DTYPE_F32, made, dtype, (size_t)count), "convert");
    free(values);
    return made;
}

/* Goes to a GPU as a whole, so that what is written past a tensor shows. */
static unsigned char *make_block(size_t bytes)
{
    unsigned char *made = soak_alloc(bytes);
    check_block_add(made, bytes);
    return made;
}

static void open_wrappers(shape *s)
{
    mstar_ragged_prefill_desc graph = s->desc;
    graph.accelerator_graph = 1;
    graph.max_num_segments = MAX_SEGMENTS;
    graph.max_total_tokens = graph.max_total_kv_tokens = MAX_ROWS + EXTRA_ROWS;
    soak_must(attn_create(s->device, s->kind, &s->desc, NULL, 0, &s->batch), "create");
    soak_must(attn_create(s->device, s->kind, &graph, NULL, 0, &s->graph), "create in graph mode");
    soak_must(attn_create(s->device, s->kind, &s->desc, NULL, 0, &s->alone), "create");
}

static void close_wrappers(shape *s)
{
    attn_destroy(&s->batch);
    attn_destroy(&s->graph);
    attn_destroy(&s->alone);
}

static void make_shape(test_random *random, const attn_isas *isas, int number, shape *s)
{
    static const int32_t heads[][2] = {{1, 1}, {2, 1}, {4, 2}, {3, 3}, {8, 2}};
    static const int32_t dims[] = {8, 16, 32, 64, 1, 3, 24, 40};
    static const int64_t windows[] = {-1, -1, -1, 0, 3, 20};
    int64_t h = test_random_between(random, 0, 4);
    s->kind = (attn_kind)(number % 3);
    s->device = isas->device[number % isas->count];
    soak_must(mstar_stream_create(s->device, 1, &s->serial), "stream");
    mstar_ragged_prefill_desc_init(&s->desc);
    s->desc.num_qo_heads = heads[h][0];
    s->desc.num_kv_heads = heads[h][1];
    s->desc.head_dim = dims[test_random_between(random, 0, 7)];
    s->desc.q_data_type = (mstar_dtype)test_random_between(random, 0, 2);
    s->desc.kv_layout = (mstar_kv_layout)test_random_between(random, 0, 1);
    s->desc.return_lse = 1;
    s->desc.window_left = windows[test_random_between(random, 0, 5)];
    s->desc.window_right = windows[test_random_between(random, 0, 5)];
    open_wrappers(s);
    int64_t rows = MAX_ROWS + EXTRA_ROWS;
    mstar_dtype dtype = s->desc.q_data_type;
    s->q = make_values(random, dtype, rows * s->desc.num_qo_heads * s->desc.head_dim);
    s->k = make_values(random, dtype, rows * s->desc.num_kv_heads * s->desc.head_dim);
    s->v = make_values(random, dtype, rows * s->desc.num_kv_heads * s->desc.head_dim);
    s->out_bytes = (size_t)rows * row_bytes(s);
    size_t lse_bytes = (size_t)(rows * s->desc.num_qo_heads) * sizeof(float);
    s->out = make_block(s->out_bytes);
    s->graph_out = make_block(s->out_bytes);
    s->alone_out = make_block(s->out_bytes);
    s->lse = soak_alloc(lse_bytes);
    s->graph_lse = soak_alloc(lse_bytes);
    s->alone_lse = soak_alloc(lse_bytes);
}

static void free_shape(shape *s)
{
    close_wrappers(s);
    mstar_stream_destroy(s->serial);
    unsigned char *blocks[] = {s->out, s->graph_out, s->alone_out};
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++)
        check_block_remove(blocks[i]);
    unsigned char *bytes[] = {s->q, s->k, s->v, s->out, s->graph_out, s->alone_out};
    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++)
        free(bytes[i]);
    free(s->lse);
    free(s->graph_lse);
    free(s->alone_lse);
}

/* ---- one layout ------------------------------------------------------------------------------ */

/* Lengths of several characters: nothing, one, a few, and now and then as many as a tile or more.
 */
static int32_t draw_length(test_random *random, int32_t left)
{
    static const int32_t most[] = {0, 1, 4, 12, 12, 24, 70};
    int64_t length = test_random_between(random, 0, most[test_random_between(random, 0, 6)]);
    return (int32_t)(length < left ? length : left);
}

static void draw_layout(test_random *random, const shape *s, soak_layout *layout)
{
    layout->segments = test_random_between(random, 0, MAX_SEGMENTS);
    layout->causal = s->kind != ATTN_CROSS && test_random_between(random, 0, 1) == 1;
    layout->q[0] = layout->kv[0] = 0;
    for (int64_t i = 0; i < layout->segments; i++) {
        layout->q[i + 1] = layout->q[i] + draw_length(random, MAX_ROWS - layout->q[i]);
        layout->kv[i + 1] = layout->kv[i] + draw_length(random, MAX_ROWS - layout->kv[i]);
        if (s->kind == ATTN_SELF)
            layout->kv[i + 1] = layout->q[i + 1];
    }
}

/* Rows from `first` on of a [rows, heads, dim] array. */
static mstar_tensor rows_of(const shape *s, unsigned char *data, int32_t heads, int64_t first,
                            int64_t rows)
{
    const int64_t sizes[3] = {rows, heads, s->desc.head_dim};
    size_t bytes =
        (size_t)(first * heads * s->desc.head_dim) * mstar_dtype_bytes(s->desc.q_data_type);
    return mstar_tensor_make(data + bytes, s->desc.q_data_type, 3, sizes);
}

static mstar_tensor keys_of(const shape *s, unsigned char *data, int64_t first, int64_t rows)
{
    int64_t heads = s->desc.num_kv_heads, dim = s->desc.head_dim;
    if (s->desc.kv_layout == MSTAR_KV_NHD)
        return rows_of(s, data, (int32_t)heads, first, rows);
    const int64_t sizes[3] = {heads, rows, dim};
    size_t bytes = (size_t)(first * dim) * mstar_dtype_bytes(s->desc.q_data_type);
    mstar_tensor keys = mstar_tensor_make(data + bytes, s->desc.q_data_type, 3, sizes);
    keys.strides[0] = (MAX_ROWS + EXTRA_ROWS) * dim;
    return keys;
}

static void run(const shape *s, const attn_wrapper *wrapper, mstar_stream *stream, int64_t q_first,
                int64_t q_rows, int64_t kv_first, int64_t kv_rows, unsigned char *out, float *lse)
{
    int32_t heads = s->desc.num_qo_heads;
    const int64_t lse_shape[2] = {q_rows, heads};
    mstar_tensor q = rows_of(s, s->q, heads, q_first, q_rows);
    mstar_tensor k = keys_of(s, s->k, kv_first, kv_rows);
    mstar_tensor v = keys_of(s, s->v, kv_first, kv_rows);
    mstar_tensor o = rows_of(s, out, heads, q_first, q_rows);
    mstar_tensor l = mstar_tensor_make(lse + q_first * heads, MSTAR_DTYPE_F32, 2, lse_shape);
    soak_must(attn_run(wrapper, stream, &q, &k, &v, &o, &l), "run");
}

static bool all_bytes(const unsigned char *bytes, size_t count, unsigned char value)
{
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] != value)
            return false;
    }
    return true;
}

static void check_layout(shape *s, const soak_layout *layout, mstar_stream *stream, uint64_t seed)
{
    int64_t rows = layout->q[layout->segments], keys = layout->kv[layout->segments];
    size_t used = (size_t)rows * row_bytes(s);
    size_t lse_bytes = (size_t)(rows * s->desc.num_qo_heads) * sizeof(float);
    memset(s->out, 0xa5, s->out_bytes);
    memset(s->graph_out, 0xa5, s->out_bytes);
    memset(s->alone_out, 0xa5, s->out_bytes);
    soak_must(attn_plan(&s->batch, stream, layout->q, layout->segments, layout->kv,
                        layout->segments, layout->causal),
              "plan");
    soak_must(attn_plan(&s->graph, stream, layout->q, layout->segments, layout->kv,
                        layout->segments, layout->causal),
              "plan in graph mode");
    run(s, &s->batch, stream, 0, rows + EXTRA_ROWS, 0, keys + EXTRA_ROWS, s->out, s->lse);
    run(s, &s->graph, stream, 0, rows + EXTRA_ROWS, 0, keys + EXTRA_ROWS, s->graph_out,
        s->graph_lse);
    for (int64_t i = 0; i < layout->segments; i++) {
        const int32_t q[2] = {0, layout->q[i + 1] - layout->q[i]};
        const int32_t kv[2] = {0, layout->kv[i + 1] - layout->kv[i]};
        soak_must(attn_plan(&s->alone, stream, q, 1, kv, 1, layout->causal), "plan alone");
        run(s, &s->alone, stream, layout->q[i], q[1], layout->kv[i], kv[1], s->alone_out,
            s->alone_lse);
    }
    if (memcmp(s->out, s->alone_out, used) != 0 || memcmp(s->lse, s->alone_lse, lse_bytes) != 0)
        soak_fail("layout %llu: a segment alone differs from the batch", (unsigned long long)seed);
    if (memcmp(s->out, s->graph_out, used) != 0 || memcmp(s->lse, s->graph_lse, lse_bytes) != 0)
        soak_fail("layout %llu: graph mode differs from eager", (unsigned long long)seed);
    size_t extra = EXTRA_ROWS * row_bytes(s);
    if (!all_bytes(s->out + used, s->out_bytes - used, 0xa5))
        soak_fail("layout %llu: eager mode wrote past the plan", (unsigned long long)seed);
    if (!all_bytes(s->graph_out + used, extra, 0) ||
        !all_bytes(s->graph_out + used + extra, s->out_bytes - used - extra, 0xa5))
        soak_fail("layout %llu: graph mode did not clear the rows of out past the plan, or wrote "
                  "past out",
                  (unsigned long long)seed);
}

/* Every wrapper with the same plan as at the last look. */
static void settle(void *context)
{
    static const int32_t q[] = {0, 3, 50}, kv[] = {0, 5, 80};
    shape *shapes = context;
    for (int i = 0; i < NUM_SHAPES; i++) {
        const int32_t *keys = shapes[i].kind == ATTN_SELF ? q : kv;
        soak_must(attn_plan(&shapes[i].batch, NULL, q, 2, keys, 2, 0), "plan");
        soak_must(attn_plan(&shapes[i].graph, NULL, q, 2, keys, 2, 0), "plan in graph mode");
        soak_must(attn_plan(&shapes[i].alone, NULL, q, 2, keys, 2, 0), "plan alone");
    }
}

int main(int argc, char **argv)
{
    static shape shapes[NUM_SHAPES];
    attn_isas isas;
    soak_memory memory;
    if (argc < 2 || argc > 4)
        soak_fail("usage: soak_attention LAYOUTS [SEED [DEVICE]]");
    int64_t layouts = soak_count(argv[1]);
    uint64_t seed = argc > 2 ? (uint64_t)soak_count(argv[2]) : 1;
    test_random random = {seed};
    if (argc > 3)
        soak_level(argv[3]);
    attn_isas_open(&isas, 2);
    for (int i = 0; i < NUM_SHAPES; i++)
        make_shape(&random, &isas, i, &shapes[i]);
    /* a plan's buffers grow with the largest layout met */
    /* and so does a GPU's ring of stages */
    soak_memory_start(&memory, layouts, 1 << 20, level_is_card() ? 64 : 0);
    memory.library_only = level_is_card(); /* a driver keeps memory of its own */
    for (int64_t i = 0; i < layouts; i++) {
        shape *s = &shapes[i % NUM_SHAPES];
        soak_layout layout;
        test_random own = {seed * 1000003 + (uint64_t)i};
        draw_layout(&own, s, &layout);
        if (i / NUM_SHAPES % RENEW == RENEW - 1) {
            close_wrappers(s);
            open_wrappers(s);
        }
        check_layout(s, &layout, i / NUM_SHAPES % 2 == 0 ? NULL : s->serial, (uint64_t)i);
        soak_memory_step(&memory, i + 1, settle, shapes);
    }
    for (int i = 0; i < NUM_SHAPES; i++)
        free_shape(&shapes[i]);
    attn_isas_close(&isas);
    soak_memory_end();
    printf("%lld layouts, no bit differs\n", (long long)layouts);
    return 0;
}
