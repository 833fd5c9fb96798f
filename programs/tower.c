/*
 * tower.c - the stack: weights and memory at open, then layer after layer.
 *
 * Everything on the device lies in one buffer, cut by one function that also counts it. A pre-norm
 * layer keeps the sum of the residuals in x; a post-norm layer lets the norm add them to a product
 * that stays in f32, as the encoder does.
 */
#include "tower.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

#define NORM_EPS 1e-6
#define FIRST_SEED 1

#define TRY(call)                      \
    do {                               \
        mstar_status status_ = (call); \
        if (status_ != MSTAR_OK)       \
            return status_;            \
    } while (0)

typedef struct tower_norm {
    mstar_tensor weight, bias; /* f32 [width] */
} tower_norm;

typedef struct tower_layer {
    mstar_linear *qkv, *out, *up, *down;
    tower_norm attention_norm, mlp_norm;
} tower_layer;

struct cli_tower {
    cli_tower_config config;
    mstar_device *device;
    mstar_stream *stream;
    mstar_device_kind kind;
    mstar_ragged_prefill *attention;
    mstar_buffer *memory;
    size_t used; /* of memory, while it is cut */
    tower_layer *layers;
    tower_norm last;                                          /* pre-norm towers */
    mstar_tensor input, x, normed, sum, qkv, context, middle; /* normed: pre-norm, sum: post-norm */
    mstar_tensor q, k, v, context_heads;                      /* views */
    /* host: the array that was drawn last, as large as the largest weight; a bias; a row as the
       device has it */
    float *drawn, *offsets, *row;
    uint64_t seed;
};

/* ---- memory ---------------------------------------------------------------------------------- */

/* The next piece of the buffer; without one, only its bytes count. */
static mstar_tensor cut(cli_tower *tower, mstar_dtype dtype, int64_t rows, int64_t columns)
{
    const int64_t shape[] = {rows, columns};
    char *base = tower->memory != NULL ? mstar_buffer_get_data(tower->memory) : NULL;
    bool is_vector = rows == 0;
    mstar_tensor piece = mstar_tensor_make(base != NULL ? base + tower->used : NULL, dtype,
                                           is_vector ? 1 : 2, is_vector ? shape + 1 : shape);
    piece.device_kind = tower->kind;
    size_t bytes = (size_t)(is_vector ? 1 : rows) * (size_t)columns * mstar_dtype_bytes(dtype);
    tower->used += (bytes + 255) / 256 * 256;
    return piece;
}

static void cut_norm(cli_tower *tower, tower_norm *norm)
{
    norm->weight = cut(tower, MSTAR_DTYPE_F32, 0, tower->config.width);
    norm->bias = cut(tower, MSTAR_DTYPE_F32, 0, tower->config.width);
}

static void cut_all(cli_tower *tower)
{
    const cli_tower_config *c = &tower->config;
    int64_t inner = (int64_t)c->heads * c->head_dim;
    tower->used = 0;
    tower->input = cut(tower, c->dtype, c->num_tokens, c->width);
    tower->x = cut(tower, c->dtype, c->num_tokens, c->width);
    if (c->pre_norm)
        tower->normed = cut(tower, c->dtype, c->num_tokens, c->width);
    else
        tower->sum = cut(tower, MSTAR_DTYPE_F32, c->num_tokens, c->width);
    tower->qkv = cut(tower, c->dtype, c->num_tokens, 3 * inner);
    tower->context = cut(tower, c->dtype, c->num_tokens, inner);
    tower->middle = cut(tower, c->dtype, c->num_tokens, c->mlp);
    for (int32_t i = 0; i < c->layers; i++) {
        cut_norm(tower, &tower->layers[i].attention_norm);
        cut_norm(tower, &tower->layers[i].mlp_norm);
    }
    cut_norm(tower, &tower->last);
}

static mstar_status view_heads(cli_tower *tower)
{
    const cli_tower_config *c = &tower->config;
    int64_t inner = (int64_t)c->heads * c->head_dim;
    mstar_tensor *const parts[] = {&tower->q, &tower->k, &tower->v};
    for (int i = 0; i < 3; i++) {
        TRY(mstar_tensor_slice(&tower->qkv, 1, i * inner, inner, parts[i]));
        TRY(mstar_tensor_split_dim(parts[i], 1, c->heads, c->head_dim, parts[i]));
    }
    return mstar_tensor_split_dim(&tower->context, 1, c->heads, c->head_dim, &tower->context_heads);
}

/* ---- random numbers -------------------------------------------------------------------------- */

/* The next array: middle + scale * u, u in [-1, 1). */
static void draw(cli_tower *tower, size_t count, float middle, float scale)
{
    cli_bench_fill(tower->drawn, MSTAR_DTYPE_F32, count, tower->seed++);
    for (size_t i = 0; i < count; i++)
        tower->drawn[i] = middle + scale * tower->drawn[i];
}

/* out has the variance of x: weights of variance 1 / in. */
static mstar_status make_linear(cli_tower *tower, int64_t in, int64_t out,
                                mstar_activation activation, mstar_linear **linear)
{
    mstar_linear_desc desc;
    mstar_linear_desc_init(&desc);
    desc.weight_dtype = tower->config.dtype;
    desc.activation = activation;
    const int64_t shape[] = {out, in};
    mstar_tensor weight = mstar_tensor_make(tower->drawn, MSTAR_DTYPE_F32, 2, shape);
    mstar_tensor bias = mstar_tensor_make(tower->offsets, MSTAR_DTYPE_F32, 1, shape);
    const mstar_tensor *weights[] = {&weight}, *biases[] = {&bias};
    draw(tower, (size_t)out, 0, 0.1F);
    memcpy(tower->offsets, tower->drawn, (size_t)out * sizeof *tower->offsets);
    draw(tower, (size_t)(in * out), 0, sqrtf(3.0F / (float)in));
    return mstar_linear_create(tower->device, &desc, weights, biases, 1, linear);
}

/* What was drawn, one row or one norm's, to its place on the device in the tensor's dtype. */
static mstar_status upload(cli_tower *tower, const mstar_tensor *to, size_t count)
{
    size_t at = (size_t)((char *)to->data - (char *)mstar_buffer_get_data(tower->memory));
    TRY(mstar_convert(tower->drawn, MSTAR_DTYPE_F32, tower->row, to->dtype, count));
    return mstar_buffer_upload(tower->memory, tower->stream, at, tower->row,
                               count * mstar_dtype_bytes(to->dtype));
}

static mstar_status make_norm(cli_tower *tower, const tower_norm *norm)
{
    size_t width = (size_t)tower->config.width;
    draw(tower, width, 1, 0.1F);
    TRY(upload(tower, &norm->weight, width));
    draw(tower, width, 0, 0.1F);
    return upload(tower, &norm->bias, width);
}

static mstar_status make_input(cli_tower *tower)
{
    size_t row = (size_t)tower->config.width;
    mstar_tensor part = tower->input;
    for (int64_t t = 0; t < tower->config.num_tokens; t++) {
        draw(tower, row, 0, 1);
        TRY(upload(tower, &part, row));
        part.data = (char *)part.data + row * mstar_dtype_bytes(part.dtype);
    }
    return MSTAR_OK;
}

static mstar_status make_weights(cli_tower *tower)
{
    const cli_tower_config *c = &tower->config;
    int64_t inner = (int64_t)c->heads * c->head_dim;
    tower->seed = FIRST_SEED;
    for (int32_t i = 0; i < c->layers; i++) {
        tower_layer *layer = &tower->layers[i];
        TRY(make_linear(tower, c->width, 3 * inner, MSTAR_ACTIVATION_NONE, &layer->qkv));
        TRY(make_linear(tower, inner, c->width, MSTAR_ACTIVATION_NONE, &layer->out));
        TRY(make_linear(tower, c->width, c->mlp, c->activation, &layer->up));
        TRY(make_linear(tower, c->mlp, c->width, MSTAR_ACTIVATION_NONE, &layer->down));
        TRY(make_norm(tower, &layer->attention_norm));
        TRY(make_norm(tower, &layer->mlp_norm));
    }
    TRY(make_norm(tower, &tower->last));
    return make_input(tower);
}

/* ---- life ------------------------------------------------------------------------------------ */

static mstar_status make_attention(cli_tower *tower)
{
    const cli_tower_config *c = &tower->config;
    mstar_ragged_prefill_desc desc;
    mstar_ragged_prefill_desc_init(&desc);
    desc.num_qo_heads = desc.num_kv_heads = c->heads;
    desc.head_dim = c->head_dim;
    desc.q_data_type = c->dtype;
    desc.accelerator_graph = 1;
    desc.max_num_segments = c->num_segments;
    desc.max_total_tokens = c->num_tokens;
    TRY(mstar_ragged_prefill_create(tower->device, &desc, NULL, 0, &tower->attention));
    return mstar_ragged_prefill_plan(tower->attention, tower->stream, c->cu, c->num_segments, 0);
}

static size_t at_least(size_t a, size_t b)
{
    return a > b ? a : b;
}

static int take_host_memory(cli_tower *tower)
{
    const cli_tower_config *c = &tower->config;
    size_t width = (size_t)c->width, inner = (size_t)c->heads * (size_t)c->head_dim;
    size_t widest = at_least(at_least(3 * inner, (size_t)c->mlp), width);
    size_t bytes = (width * widest + widest + width) * sizeof(float);
    tower->layers = calloc((size_t)c->layers, sizeof *tower->layers);
    tower->drawn = malloc(bytes);
    if (tower->layers == NULL || tower->drawn == NULL)
        return cli_fail_memory("a tower", bytes + (size_t)c->layers * sizeof *tower->layers);
    tower->offsets = tower->drawn + width * widest;
    tower->row = tower->offsets + widest;
    return CLI_OK;
}

static mstar_status fill_tower(cli_tower *tower)
{
    mstar_device_info machine = {.struct_size = sizeof machine};
    TRY(mstar_device_query(tower->device, &machine));
    tower->kind = machine.kind;
    cut_all(tower);
    TRY(mstar_buffer_create(tower->device, tower->used, &tower->memory));
    cut_all(tower);
    TRY(view_heads(tower));
    TRY(make_weights(tower));
    TRY(make_attention(tower));
    return mstar_stream_synchronize(tower->stream);
}

int cli_tower_open(mstar_device *device, mstar_stream *stream, const cli_tower_config *config,
                   cli_tower **tower)
{
    cli_tower *own = calloc(1, sizeof *own);
    if (own == NULL)
        return cli_fail_memory("a tower", sizeof *own);
    own->config = *config;
    own->device = device;
    own->stream = stream;
    int code = take_host_memory(own);
    mstar_status status = code == CLI_OK ? fill_tower(own) : MSTAR_OK;
    if (status != MSTAR_OK)
        code = cli_fail(cli_exit_code(status), "%s", mstar_last_error());
    if (code == CLI_OK)
        *tower = own;
    else
        cli_tower_close(own);
    return code;
}

void cli_tower_close(cli_tower *tower)
{
    if (tower == NULL)
        return;
    for (int32_t i = 0; tower->layers != NULL && i < tower->config.layers; i++) {
        mstar_linear_destroy(tower->layers[i].qkv);
        mstar_linear_destroy(tower->layers[i].out);
        mstar_linear_destroy(tower->layers[i].up);
        mstar_linear_destroy(tower->layers[i].down);
    }
    mstar_ragged_prefill_destroy(tower->attention);
    mstar_buffer_destroy(tower->memory);
    free(tower->layers);
    free(tower->drawn); /* and what follows it */
    free(tower);
}

/* ---- forward --------------------------------------------------------------------------------- */

/* out = norm(x + residual) */
static mstar_status norm(cli_tower *tower, const mstar_tensor *x, const mstar_tensor *residual,
                         const tower_norm *norm, const mstar_tensor *out)
{
    return mstar_layer_norm(tower->stream, x, residual, &norm->weight, &norm->bias, NORM_EPS, out);
}

/* context = attention over the rows of x */
static mstar_status attend(cli_tower *tower, const tower_layer *layer, const mstar_tensor *x)
{
    TRY(mstar_linear_run(layer->qkv, tower->stream, x, NULL, &tower->qkv));
    return mstar_ragged_prefill_run(tower->attention, tower->stream, &tower->q, &tower->k,
                                    &tower->v, &tower->context_heads, NULL);
}

static mstar_status run_pre(cli_tower *tower, const tower_layer *layer, const mstar_tensor *before)
{
    TRY(norm(tower, before, NULL, &layer->attention_norm, &tower->normed));
    TRY(attend(tower, layer, &tower->normed));
    TRY(mstar_linear_run(layer->out, tower->stream, &tower->context, before, &tower->x));
    TRY(norm(tower, &tower->x, NULL, &layer->mlp_norm, &tower->normed));
    TRY(mstar_linear_run(layer->up, tower->stream, &tower->normed, NULL, &tower->middle));
    return mstar_linear_run(layer->down, tower->stream, &tower->middle, &tower->x, &tower->x);
}

static mstar_status run_post(cli_tower *tower, const tower_layer *layer, const mstar_tensor *before)
{
    TRY(attend(tower, layer, before));
    TRY(mstar_linear_run(layer->out, tower->stream, &tower->context, NULL, &tower->sum));
    TRY(norm(tower, &tower->sum, before, &layer->attention_norm, &tower->x));
    TRY(mstar_linear_run(layer->up, tower->stream, &tower->x, NULL, &tower->middle));
    TRY(mstar_linear_run(layer->down, tower->stream, &tower->middle, NULL, &tower->sum));
    return norm(tower, &tower->sum, &tower->x, &layer->mlp_norm, &tower->x);
}

mstar_status cli_tower_forward(cli_tower *tower)
{
    const cli_tower_config *c = &tower->config;
    for (int32_t i = 0; i < c->layers; i++) {
        const mstar_tensor *before = i == 0 ? &tower->input : &tower->x;
        TRY((c->pre_norm ? run_pre : run_post)(tower, &tower->layers[i], before));
    }
    return c->pre_norm ? norm(tower, &tower->x, NULL, &tower->last, &tower->x) : MSTAR_OK;
}

size_t cli_tower_output_bytes(const cli_tower_config *config)
{
    return (size_t)config->num_tokens * (size_t)config->width * mstar_dtype_bytes(config->dtype);
}

mstar_status cli_tower_read(cli_tower *tower, void *output)
{
    size_t at = (size_t)((char *)tower->x.data - (char *)mstar_buffer_get_data(tower->memory));
    TRY(mstar_buffer_download(tower->memory, tower->stream, at, output,
                              cli_tower_output_bytes(&tower->config)));
    return mstar_stream_synchronize(tower->stream);
}

double cli_tower_flops(const cli_tower_config *config)
{
    double width = config->width, inner = (double)config->heads * config->head_dim;
    double weights = 4 * width * inner + 2 * width * config->mlp, pairs = 0;
    for (int64_t i = 0; i < config->num_segments; i++) {
        double length = (double)(config->cu[i + 1] - config->cu[i]);
        pairs += length * length;
    }
    return config->layers * (2 * weights * (double)config->num_tokens + 4 * inner * pairs);
}
