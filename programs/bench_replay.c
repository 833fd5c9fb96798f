/*
 * bench_replay.c - mstar bench replay: a step as plain calls and as a replay of the same calls,
 * over an encoder of MiniLM's shape.
 *
 * Rows of 0 tokens compute nothing and wake no thread: their time is the checks and the cutting
 * into tasks of every call, which is the same for any number of tokens. The other rows are whole
 * steps. Weights are random: speed does not depend on them.
 */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

enum {
    LAYERS = 6,
    HEADS = 12,
    HEAD_DIM = 32,
    WIDTH = HEADS * HEAD_DIM,
    MIDDLE = 4 * WIDTH,
    WORDS = 1000,
    MAX_TOKENS = 256
};

static const int32_t token_counts[] = {0, 8, 32, 128, MAX_TOKENS};
enum { NUM_TOKEN_COUNTS = sizeof token_counts / sizeof token_counts[0] };

/* One layer's weights serve all: they are read from memory again either way. */
typedef struct net {
    mstar_stream *stream;
    mstar_linear *qkv, *out, *up, *down;
    mstar_ragged_prefill *attention;
    mstar_ragged_prefill_info plan;
    mstar_graph *graph;
    int64_t ceiling;
    int32_t ids[MAX_TOKENS];
    float *memory, *words, *x, *rows, *context, *middle, *ones, *vector;
} net;

static mstar_tensor matrix(float *data, int64_t rows, int64_t width)
{
    const int64_t shape[] = {rows, width};
    return mstar_tensor_make(data, MSTAR_DTYPE_F32, 2, shape);
}

#define TRY(call)                    \
    do {                             \
        mstar_status status_ = call; \
        if (status_ != MSTAR_OK)     \
            return status_;          \
    } while (0)

static mstar_status layer(net *n)
{
    const int64_t width = WIDTH;
    mstar_tensor x = matrix(n->x, n->ceiling, WIDTH), rows = matrix(n->rows, n->ceiling, 3 * WIDTH);
    mstar_tensor context = matrix(n->context, n->ceiling, WIDTH), heads, part[3];
    mstar_tensor middle = matrix(n->middle, n->ceiling, MIDDLE);
    mstar_tensor ones = mstar_tensor_make(n->ones, MSTAR_DTYPE_F32, 1, &width);
    for (int i = 0; i < 3; i++) {
        TRY(mstar_tensor_slice(&rows, 1, (int64_t)i * WIDTH, WIDTH, &part[i]));
        TRY(mstar_tensor_split_dim(&part[i], 1, HEADS, HEAD_DIM, &part[i]));
    }
    TRY(mstar_tensor_split_dim(&context, 1, HEADS, HEAD_DIM, &heads));
    TRY(mstar_linear_run(n->qkv, n->stream, &x, NULL, &rows));
    TRY(mstar_ragged_prefill_run(n->attention, n->stream, &part[0], &part[1], &part[2], &heads,
                                 NULL));
    TRY(mstar_linear_run(n->out, n->stream, &context, &x, &x));
    TRY(mstar_layer_norm(n->stream, &x, NULL, &ones, NULL, 1e-12, &x));
    TRY(mstar_linear_run(n->up, n->stream, &x, NULL, &middle));
    TRY(mstar_linear_run(n->down, n->stream, &middle, &x, &x));
    return mstar_layer_norm(n->stream, &x, NULL, &ones, NULL, 1e-12, &x);
}

static mstar_status forward(net *n)
{
    mstar_tensor words = matrix(n->words, WORDS, WIDTH), x = matrix(n->x, n->ceiling, WIDTH);
    mstar_tensor vector = matrix(n->vector, 1, WIDTH);
    const mstar_tensor *tables[] = {&words};
    const int32_t *ids[] = {n->ids};
    TRY(mstar_stream_set_rows(n->stream, n->plan.token_counter));
    TRY(mstar_embedding(n->stream, tables, ids, 1, &x));
    for (int i = 0; i < LAYERS; i++)
        TRY(layer(n));
    TRY(mstar_stream_set_rows(n->stream, n->plan.segment_counter));
    TRY(mstar_pooling_run(n->stream, MSTAR_POOLING_MEAN, &x, n->plan.q_offsets, 1, NULL, &vector));
    TRY(mstar_normalize(n->stream, &vector, &vector));
    return mstar_stream_set_rows(n->stream, NULL);
}

static mstar_status make_linear(mstar_device *device, float *scratch, int64_t in, int64_t out,
                                mstar_linear **linear)
{
    cli_bench_fill(scratch, MSTAR_DTYPE_F32, (size_t)(in * out), 7);
    for (int64_t i = 0; i < in * out; i++)
        scratch[i] *= 0.03f;
    mstar_tensor weight = matrix(scratch, out, in);
    const mstar_tensor *weights[] = {&weight};
    return mstar_linear_create(device, NULL, weights, NULL, 1, linear);
}

static mstar_status open_weights(mstar_device *device, net *n)
{
    float *scratch = n->middle; /* MIDDLE x WIDTH and more */
    TRY(make_linear(device, scratch, WIDTH, 3 * WIDTH, &n->qkv));
    TRY(make_linear(device, scratch, WIDTH, WIDTH, &n->out));
    TRY(make_linear(device, scratch, WIDTH, MIDDLE, &n->up));
    return make_linear(device, scratch, MIDDLE, WIDTH, &n->down);
}

static mstar_status open_step(mstar_device *device, int32_t threads, int32_t tokens, net *n)
{
    mstar_ragged_prefill_desc desc;
    const int32_t offsets[] = {0, tokens};
    n->ceiling = tokens > 0 ? tokens : 1;
    mstar_ragged_prefill_desc_init(&desc);
    desc.num_qo_heads = HEADS;
    desc.num_kv_heads = HEADS;
    desc.head_dim = HEAD_DIM;
    desc.q_data_type = MSTAR_DTYPE_F32;
    desc.accelerator_graph = 1;
    desc.max_num_segments = 1;
    desc.max_total_tokens = n->ceiling;
    TRY(mstar_stream_create(device, threads, &n->stream));
    TRY(mstar_ragged_prefill_create(device, &desc, NULL, 0, &n->attention));
    n->plan.struct_size = sizeof n->plan;
    TRY(mstar_ragged_prefill_query(n->attention, &n->plan));
    TRY(mstar_ragged_prefill_plan(n->attention, n->stream, offsets, tokens > 0 ? 1 : 0, 0));
    TRY(mstar_graph_capture_begin(n->stream));
    mstar_status status = forward(n);
    if (status != MSTAR_OK) {
        mstar_graph_capture_abort(n->stream);
        return status;
    }
    return mstar_graph_capture_end(n->stream, &n->graph);
}

static void close_step(net *n)
{
    mstar_graph_destroy(n->graph);
    mstar_ragged_prefill_destroy(n->attention);
    mstar_stream_destroy(n->stream);
    n->graph = NULL;
    n->attention = NULL;
    n->stream = NULL;
}

typedef struct timed {
    net *n;
    bool replays;
    int repeats;
} timed;

static int run_once(void *context)
{
    const timed *run = context;
    for (int i = 0; i < run->repeats; i++) {
        mstar_status status =
            run->replays ? mstar_graph_replay(run->n->graph, run->n->stream) : forward(run->n);
        if (status != MSTAR_OK)
            return cli_fail(cli_exit_code(status), "%s", mstar_last_error());
    }
    return CLI_OK;
}

static int bench_step(cli_session *session, int32_t threads, int32_t tokens, net *n,
                      cli_report *report)
{
    double times[2] = {0, 0};
    int code = CLI_OK, runs = 0;
    mstar_graph_info info = {.struct_size = sizeof info};
    mstar_status status = open_step(session->device, threads, tokens, n);
    if (status == MSTAR_OK)
        status = mstar_graph_query(n->graph, &info);
    if (status != MSTAR_OK)
        code = cli_fail(cli_exit_code(status), "%s", mstar_last_error());
    for (int i = 0; i < 2 && code == CLI_OK; i++) {
        timed run = {n, i == 1, tokens == 0 ? 100 : 1};
        code = cli_bench_time(run_once, &run, 20, 0.3, &times[i], &runs);
        times[i] /= run.repeats;
    }
    if (code == CLI_OK) {
        json_t *row = cli_bench_row(report);
        cli_bench_put_integer(report, row, "threads", threads);
        cli_bench_put_integer(report, row, "tokens", tokens);
        cli_bench_put_integer(report, row, "launches", info.nodes);
        cli_bench_put_integer(report, row, "waves", info.waves);
        cli_bench_put_integer(report, row, "graph_bytes", (int64_t)info.bytes);
        cli_bench_put_number(report, row, "eager_us", times[0] * 1e6);
        cli_bench_put_number(report, row, "replay_us", times[1] * 1e6);
    }
    close_step(n);
    return code;
}

/* Cuts one block; counts where there is none. */
static size_t cut(net *n)
{
    float *at = n->memory;
    const size_t sizes[] = {(size_t)WORDS * WIDTH,
                            (size_t)MAX_TOKENS * WIDTH,
                            (size_t)MAX_TOKENS * 3 * WIDTH,
                            (size_t)MAX_TOKENS * WIDTH,
                            (size_t)MIDDLE * WIDTH,
                            WIDTH,
                            WIDTH};
    float **const places[] = {&n->words,  &n->x,    &n->rows,  &n->context,
                              &n->middle, &n->ones, &n->vector};
    size_t used = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        *places[i] = at != NULL ? at + used : NULL;
        used += sizes[i];
    }
    return used;
}

int cli_bench_replay(const cli_options *options)
{
    net n;
    cli_session session = {0};
    cli_report report = {0};
    memset(&n, 0, sizeof n);
    const size_t count = cut(&n);
    n.memory = calloc(count, sizeof(float));
    if (n.memory == NULL)
        return cli_fail_memory("an encoder", count * sizeof(float));
    (void)cut(&n);
    cli_bench_fill(n.words, MSTAR_DTYPE_F32, (size_t)WORDS * WIDTH, 11);
    for (int i = 0; i < WIDTH; i++)
        n.ones[i] = 1;
    for (int i = 0; i < MAX_TOKENS; i++)
        n.ids[i] = i * 37 % WORDS;
    int code = cli_session_open_device(&session, options->threads);
    if (code == CLI_OK && open_weights(session.device, &n) != MSTAR_OK)
        code = cli_fail(CLI_FAILED, "%s", mstar_last_error());
    if (code == CLI_OK)
        cli_bench_start(&report, "replay", &session.machine, "f32");
    for (int all = 0; all < 2 && code == CLI_OK; all++) {
        int32_t threads = all ? session.machine.num_threads : 1;
        for (int i = 0; i < NUM_TOKEN_COUNTS && code == CLI_OK && (!all || threads > 1); i++)
            code = bench_step(&session, threads, token_counts[i], &n, &report);
    }
    if (code == CLI_OK)
        code =
            cli_bench_finish(&report, options, cli_bench_peak(&session.machine, MSTAR_DTYPE_F32));
    else
        json_decref(report.root);
    mstar_linear_destroy(n.qkv);
    mstar_linear_destroy(n.out);
    mstar_linear_destroy(n.up);
    mstar_linear_destroy(n.down);
    cli_session_close(&session);
    free(n.memory);
    return code;
}
