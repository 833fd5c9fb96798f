/*
 * bench_replay.c - mstar bench replay: a step as plain calls and as a replay of the same calls,
 * over an encoder of MiniLM's shape.
 *
 * Rows of 0 tokens compute nothing and wake no thread: their time is the checks and the cutting
 * into tasks of every call, which is the same for any number of tokens. The other rows are whole
 * steps. Weights are random: speed does not depend on them.
 *
 * eager_us and us are what a caller waits for a step, until the stream is done, by plain calls and
 * by a replay; replay_us is the replay's call alone, which on the CPU is all of it. capture_us is
 * what recording took. A file of steps ({name, tokens}, what others reach and what is accepted)
 * takes the place of the token counts below.
 */
#include "bench_problem.h"

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
    mstar_device *device;
    mstar_device_kind kind;
    mstar_dtype dtype; /* of rows and weights */
    mstar_stream *stream;
    mstar_linear *qkv, *out, *up, *down;
    mstar_ragged_prefill *attention;
    mstar_ragged_prefill_info plan;
    mstar_graph *graph;
    double capture_time;
    int64_t ceiling;
    int32_t ids[MAX_TOKENS];
    float *scratch; /* of the host, as large as the largest weight and the words */
    mstar_buffer *memory;
    char *words, *x, *rows, *context, *middle, *ones, *vector;
} net;

static mstar_tensor matrix(const net *n, char *data, int64_t rows, int64_t width)
{
    const int64_t shape[] = {rows, width};
    mstar_tensor made = mstar_tensor_make(data, n->dtype, 2, shape);
    made.device_kind = n->kind;
    return made;
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
    mstar_tensor x = matrix(n, n->x, n->ceiling, WIDTH);
    mstar_tensor rows = matrix(n, n->rows, n->ceiling, 3 * WIDTH), part[3];
    mstar_tensor context = matrix(n, n->context, n->ceiling, WIDTH), heads;
    mstar_tensor middle = matrix(n, n->middle, n->ceiling, MIDDLE);
    mstar_tensor ones = mstar_tensor_make(n->ones, MSTAR_DTYPE_F32, 1, &width);
    ones.device_kind = n->kind;
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
    mstar_tensor words = matrix(n, n->words, WORDS, WIDTH);
    mstar_tensor x = matrix(n, n->x, n->ceiling, WIDTH), vector = matrix(n, n->vector, 1, WIDTH);
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

static mstar_status make_linear(net *n, int64_t in, int64_t out, mstar_linear **linear)
{
    const int64_t shape[] = {out, in};
    mstar_linear_desc desc;
    mstar_linear_desc_init(&desc);
    desc.weight_dtype = n->dtype;
    cli_bench_fill(n->scratch, MSTAR_DTYPE_F32, (size_t)(in * out), 7);
    for (int64_t i = 0; i < in * out; i++)
        n->scratch[i] *= 0.03f;
    mstar_tensor weight = mstar_tensor_make(n->scratch, MSTAR_DTYPE_F32, 2, shape);
    const mstar_tensor *weights[] = {&weight};
    return mstar_linear_create(n->device, &desc, weights, NULL, 1, linear);
}

/* The words in the net's dtype, and the norms' weights; all else is written before it is read. */
static mstar_status send(net *n, mstar_stream *stream)
{
    const char *base = mstar_buffer_get_data(n->memory);
    const size_t count = (size_t)WORDS * WIDTH;
    cli_bench_fill(n->scratch, n->dtype, count, 11);
    TRY(mstar_buffer_upload(n->memory, stream, (size_t)(n->words - base), n->scratch,
                            count * mstar_dtype_bytes(n->dtype)));
    for (int i = 0; i < WIDTH; i++)
        n->scratch[i] = 1;
    TRY(mstar_buffer_upload(n->memory, stream, (size_t)(n->ones - base), n->scratch,
                            WIDTH * sizeof(float)));
    return mstar_stream_synchronize(stream);
}

static size_t cut(net *n, char *at);

static mstar_status open_net(net *n)
{
    mstar_stream *stream = NULL;
    for (int i = 0; i < MAX_TOKENS; i++)
        n->ids[i] = i * 37 % WORDS;
    TRY(make_linear(n, WIDTH, 3 * WIDTH, &n->qkv));
    TRY(make_linear(n, WIDTH, WIDTH, &n->out));
    TRY(make_linear(n, WIDTH, MIDDLE, &n->up));
    TRY(make_linear(n, MIDDLE, WIDTH, &n->down));
    TRY(mstar_buffer_create(n->device, cut(n, NULL), &n->memory));
    (void)cut(n, mstar_buffer_get_data(n->memory));
    TRY(mstar_stream_create(n->device, -1, &stream));
    mstar_status status = send(n, stream);
    mstar_stream_destroy(stream);
    return status;
}

static mstar_status capture(net *n)
{
    double before = cli_bench_now();
    TRY(mstar_graph_capture_begin(n->stream));
    mstar_status status = forward(n);
    if (status != MSTAR_OK) {
        mstar_graph_capture_abort(n->stream);
        return status;
    }
    status = mstar_graph_capture_end(n->stream, &n->graph);
    n->capture_time = cli_bench_now() - before;
    return status;
}

static mstar_status open_step(int32_t threads, int32_t tokens, net *n)
{
    mstar_ragged_prefill_desc desc;
    const int32_t offsets[] = {0, tokens};
    n->ceiling = tokens > 0 ? tokens : 1;
    mstar_ragged_prefill_desc_init(&desc);
    desc.num_qo_heads = HEADS;
    desc.num_kv_heads = HEADS;
    desc.head_dim = HEAD_DIM;
    desc.q_data_type = n->dtype;
    desc.accelerator_graph = 1;
    desc.max_num_segments = 1;
    desc.max_total_tokens = n->ceiling;
    TRY(mstar_stream_create(n->device, threads, &n->stream));
    TRY(mstar_ragged_prefill_create(n->device, &desc, NULL, 0, &n->attention));
    n->plan.struct_size = sizeof n->plan;
    TRY(mstar_ragged_prefill_query(n->attention, &n->plan));
    TRY(mstar_ragged_prefill_plan(n->attention, n->stream, offsets, tokens > 0 ? 1 : 0, 0));
    TRY(forward(n)); /* what only the first run needs is taken */
    TRY(mstar_stream_synchronize(n->stream));
    return capture(n);
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

/* ---- times ----------------------------------------------------------------------------------- */

typedef struct timed {
    net *n;
    bool replays;
    int repeats;
} timed;

static int check(mstar_status status)
{
    return status == MSTAR_OK ? CLI_OK : cli_fail(cli_exit_code(status), "%s", mstar_last_error());
}

static int run_once(void *context)
{
    const timed *run = context;
    for (int i = 0; i < run->repeats; i++) {
        int code = check(run->replays ? mstar_graph_replay(run->n->graph, run->n->stream)
                                      : forward(run->n));
        if (code == CLI_OK)
            code = check(mstar_stream_synchronize(run->n->stream));
        if (code != CLI_OK)
            return code;
    }
    return CLI_OK;
}

/* Median seconds of the replay's call alone, each given to a stream that has nothing else to do. */
static int time_calls(net *n, double *seconds)
{
    enum { CALLS = 50 };
    double times[CALLS];
    for (int i = 0; i < CALLS; i++) {
        double before = cli_bench_now();
        int code = check(mstar_graph_replay(n->graph, n->stream));
        times[i] = cli_bench_now() - before;
        if (code == CLI_OK)
            code = check(mstar_stream_synchronize(n->stream));
        if (code != CLI_OK)
            return code;
    }
    *seconds = cli_bench_median(times, CALLS);
    return CLI_OK;
}

/* problem: what the row's goals and peers are taken from, or NULL. */
static int bench_step(int32_t threads, int32_t tokens, const json_t *problem, net *n,
                      cli_report *report)
{
    double times[2] = {0, 0}, call_time = 0;
    int runs = 0;
    mstar_graph_info info = {.struct_size = sizeof info};
    int code = check(open_step(threads, tokens, n));
    if (code == CLI_OK)
        code = check(mstar_graph_query(n->graph, &info));
    for (int i = 0; i < 2 && code == CLI_OK; i++) {
        timed run = {n, i == 1, tokens == 0 ? 100 : 1};
        code = cli_bench_time(run_once, &run, 20, 0.3, &times[i], &runs);
        times[i] /= run.repeats;
    }
    call_time = times[1];
    if (code == CLI_OK && n->kind != MSTAR_DEVICE_CPU)
        code = time_calls(n, &call_time);
    if (code == CLI_OK) {
        json_t *row = cli_bench_row(report);
        const char *name = json_string_value(json_object_get(problem, "name"));
        if (name != NULL)
            cli_bench_put_text(report, row, "name", name);
        cli_bench_put_integer(report, row, "threads", threads);
        cli_bench_put_integer(report, row, "tokens", tokens);
        cli_bench_put_integer(report, row, "launches", info.nodes);
        cli_bench_put_integer(report, row, "waves", info.waves);
        cli_bench_put_integer(report, row, "graph_bytes", (int64_t)info.bytes);
        cli_bench_put_number(report, row, "eager_us", times[0] * 1e6);
        cli_bench_put_number(report, row, "us", times[1] * 1e6);
        cli_bench_put_number(report, row, "replay_us", call_time * 1e6);
        cli_bench_put_number(report, row, "capture_us", n->capture_time * 1e6);
        if (problem != NULL)
            cli_problem_put_peers(problem, report, row);
    }
    close_step(n);
    return code;
}

/* Gives out one block from `at` on; NULL: only counts its bytes. */
static size_t cut(net *n, char *at)
{
    const size_t width = mstar_dtype_bytes(n->dtype);
    const size_t sizes[] = {WORDS * WIDTH * width,
                            MAX_TOKENS * WIDTH * width,
                            MAX_TOKENS * 3 * WIDTH * width,
                            MAX_TOKENS * WIDTH * width,
                            MAX_TOKENS * MIDDLE * width,
                            WIDTH * sizeof(float),
                            WIDTH * width};
    char **const places[] = {&n->words,  &n->x,    &n->rows,  &n->context,
                             &n->middle, &n->ones, &n->vector};
    size_t used = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        *places[i] = at != NULL ? at + used : NULL;
        used += (sizes[i] + 255) / 256 * 256;
    }
    return used;
}

/* ---- the steps ------------------------------------------------------------------------------- */

/* One step of a file: its name is there, its tokens fit. */
static int read_step(const char *path, const json_t *problem, int32_t *tokens)
{
    const char *name = json_string_value(json_object_get(problem, "name"));
    const json_t *value = json_object_get(problem, "tokens");
    if (name == NULL)
        return cli_problem_fail(path, "?", "it has no \"name\"");
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) > MAX_TOKENS)
        return cli_fail(CLI_FAILED, "%s: workload %s: \"tokens\" must be from 0 to %d", path, name,
                        MAX_TOKENS);
    *tokens = (int32_t)json_integer_value(value);
    return CLI_OK;
}

static int bench_file(const cli_options *options, const json_t *list, int32_t threads, net *n,
                      cli_report *report)
{
    int code = CLI_OK;
    for (size_t i = 0; i < json_array_size(list) && code == CLI_OK; i++) {
        const json_t *problem = json_array_get(list, i);
        int32_t tokens = 0;
        code = read_step(options->workloads, problem, &tokens);
        if (code == CLI_OK)
            code = bench_step(threads, tokens, problem, n, report);
    }
    return code;
}

/* On a CPU by one thread and by all: a GPU has none to count. */
static int bench_counts(const mstar_device_info *machine, net *n, cli_report *report)
{
    int code = CLI_OK;
    const bool on_cpu = n->kind == MSTAR_DEVICE_CPU;
    for (int all = on_cpu ? 0 : 1; all < 2 && code == CLI_OK; all++) {
        int32_t threads = all ? machine->num_threads : 1;
        bool again = on_cpu && all == 1 && threads == 1;
        for (int i = 0; i < NUM_TOKEN_COUNTS && code == CLI_OK && !again; i++)
            code = bench_step(threads, token_counts[i], NULL, n, report);
    }
    return code;
}

static void close_net(net *n)
{
    mstar_linear_destroy(n->qkv);
    mstar_linear_destroy(n->out);
    mstar_linear_destroy(n->up);
    mstar_linear_destroy(n->down);
    mstar_buffer_destroy(n->memory);
    free(n->scratch);
}

int cli_bench_replay(const cli_options *options)
{
    const size_t scratch_bytes = (size_t)MIDDLE * WIDTH * sizeof(float);
    net n = {.dtype = options->dtype == 1 ? MSTAR_DTYPE_BF16 : MSTAR_DTYPE_F32};
    cli_session session = {0};
    cli_report report = {0};
    json_t *list = NULL;
    int code = options->workloads != NULL ? cli_problems_read(options, "replay", &list) : CLI_OK;
    n.scratch = malloc(scratch_bytes);
    if (code == CLI_OK && n.scratch == NULL)
        code = cli_fail_memory("an encoder", scratch_bytes);
    if (code == CLI_OK)
        code = cli_session_open_named(&session, options->device, options->threads);
    n.device = session.device;
    n.kind = session.machine.kind;
    if (code == CLI_OK)
        code = check(open_net(&n));
    if (code == CLI_OK) {
        cli_bench_start(&report, "replay", &session.machine, mstar_dtype_name(n.dtype));
        code = list != NULL ? bench_file(options, list, session.machine.num_threads, &n, &report)
                            : bench_counts(&session.machine, &n, &report);
    }
    bool on_cpu = n.kind == MSTAR_DEVICE_CPU;
    if (code == CLI_OK)
        code = cli_bench_finish(&report, options,
                                on_cpu ? cli_bench_peak(&session.machine, n.dtype) : 0);
    else
        json_decref(report.root);
    close_net(&n);
    cli_session_close(&session);
    json_decref(list);
    return code;
}
