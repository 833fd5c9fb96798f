/*
 * weights.c - from a checkpoint to packed matrices.
 *
 * All tensors are found and their shapes checked first; only then is anything packed. Embedding
 * tables are by far the largest tensors and are read a row at a time, so they stay where the
 * mapping puts them unless the dtype or the alignment forbids it; the pages of what was packed or
 * copied are let go, a layer at a time, so that no weight is in memory twice. Names are those of
 * transformers, with or without the "bert." that task models put before them.
 */
#include <stdio.h>
#include <string.h>

#include "model/encoder.h"

enum {
    QUERY_WEIGHT,
    QUERY_BIAS,
    KEY_WEIGHT,
    KEY_BIAS,
    VALUE_WEIGHT,
    VALUE_BIAS,
    OUT_WEIGHT,
    OUT_BIAS,
    ATTENTION_NORM_WEIGHT,
    ATTENTION_NORM_BIAS,
    UP_WEIGHT,
    UP_BIAS,
    DOWN_WEIGHT,
    DOWN_BIAS,
    NORM_WEIGHT,
    NORM_BIAS,
    LAYER_TENSORS
};

/* What a dimension of a shape is measured in. */
typedef enum unit { NONE, HIDDEN, INTERMEDIATE } unit;

static const struct {
    const char *name;
    unit rows, columns;
} layer_rows[LAYER_TENSORS] = {
    [QUERY_WEIGHT] = {"attention.self.query.weight", HIDDEN, HIDDEN},
    [QUERY_BIAS] = {"attention.self.query.bias", HIDDEN, NONE},
    [KEY_WEIGHT] = {"attention.self.key.weight", HIDDEN, HIDDEN},
    [KEY_BIAS] = {"attention.self.key.bias", HIDDEN, NONE},
    [VALUE_WEIGHT] = {"attention.self.value.weight", HIDDEN, HIDDEN},
    [VALUE_BIAS] = {"attention.self.value.bias", HIDDEN, NONE},
    [OUT_WEIGHT] = {"attention.output.dense.weight", HIDDEN, HIDDEN},
    [OUT_BIAS] = {"attention.output.dense.bias", HIDDEN, NONE},
    [ATTENTION_NORM_WEIGHT] = {"attention.output.LayerNorm.weight", HIDDEN, NONE},
    [ATTENTION_NORM_BIAS] = {"attention.output.LayerNorm.bias", HIDDEN, NONE},
    [UP_WEIGHT] = {"intermediate.dense.weight", INTERMEDIATE, HIDDEN},
    [UP_BIAS] = {"intermediate.dense.bias", INTERMEDIATE, NONE},
    [DOWN_WEIGHT] = {"output.dense.weight", HIDDEN, INTERMEDIATE},
    [DOWN_BIAS] = {"output.dense.bias", HIDDEN, NONE},
    [NORM_WEIGHT] = {"output.LayerNorm.weight", HIDDEN, NONE},
    [NORM_BIAS] = {"output.LayerNorm.bias", HIDDEN, NONE}};

enum { WORDS, POSITIONS, TYPES, EMBEDDING_NORM_WEIGHT, EMBEDDING_NORM_BIAS, EMBEDDING_TENSORS };
#define NUM_TABLES 3

static const char *const embedding_names[EMBEDDING_TENSORS] = {
    "embeddings.word_embeddings.weight", "embeddings.position_embeddings.weight",
    "embeddings.token_type_embeddings.weight", "embeddings.LayerNorm.weight",
    "embeddings.LayerNorm.bias"};

typedef struct found_dense {
    mst_checkpoint checkpoint;
    const mst_stored_tensor *weight, *bias, *residual; /* NULL where the module has none */
} found_dense;

typedef struct found_tensors {
    const mst_stored_tensor *embeddings[EMBEDDING_TENSORS];
    const mst_stored_tensor **layers; /* [layer * LAYER_TENSORS + part] */
    found_dense *dense;               /* one a module */
    int64_t num_dense;
    uint64_t parameters;
} found_tensors;

/* ---- finding --------------------------------------------------------------------------------- */

static void write_shape(char text[96], int32_t rank, const int64_t *shape)
{
    size_t used = 0;
    text[used++] = '[';
    for (int32_t i = 0; i < rank && used < 70; i++) {
        int wrote =
            snprintf(text + used, 96 - used, "%s%lld", i > 0 ? ", " : "", (long long)shape[i]);
        used += wrote > 0 ? (size_t)wrote : 0;
    }
    (void)snprintf(text + used, 96 - used, "]");
}

/* Older checkpoints call the norms' weight gamma and their bias beta. */
static const mst_stored_tensor *find_old_norm(const mst_checkpoint *checkpoint, const char *name)
{
    static const char *const endings[2][2] = {{"LayerNorm.weight", "LayerNorm.gamma"},
                                              {"LayerNorm.bias", "LayerNorm.beta"}};
    size_t length = strlen(name);
    for (int i = 0; i < 2; i++) {
        size_t ending = strlen(endings[i][0]);
        char old[256];
        if (length < ending || length >= sizeof old ||
            strcmp(name + length - ending, endings[i][0]) != 0)
            continue;
        memcpy(old, name, length - ending);
        memcpy(old + length - ending, endings[i][1], strlen(endings[i][1]) + 1);
        return mst_checkpoint_find(checkpoint, old);
    }
    return NULL;
}

/* columns 0: a vector of rows elements. */
static mstar_status find_tensor(const mst_checkpoint *checkpoint, const char *name, int64_t rows,
                                int64_t columns, uint64_t *parameters,
                                const mst_stored_tensor **out)
{
    const int64_t wanted[2] = {rows, columns};
    int32_t rank = columns == 0 ? 1 : 2;
    char wanted_text[96];
    char shape_text[96];
    write_shape(wanted_text, rank, wanted);
    const mst_stored_tensor *tensor = mst_checkpoint_find(checkpoint, name);
    if (tensor == NULL)
        tensor = find_old_norm(checkpoint, name);
    if (tensor == NULL)
        return mst_fail(MSTAR_BAD_DATA, "tensor %s is missing; shape %s is expected", name,
                        wanted_text);
    bool same = tensor->rank == rank && tensor->shape[0] == rows &&
                (rank == 1 || tensor->shape[1] == columns);
    if (!same) {
        write_shape(shape_text, tensor->rank, tensor->shape);
        return mst_fail(MSTAR_BAD_DATA, "tensor %s has shape %s; %s is expected", tensor->name,
                        shape_text, wanted_text);
    }
    if (!mst_dtype_is_compute(tensor->dtype))
        return mst_fail(MSTAR_NOT_SUPPORTED, "tensor %s is %s; weights must be f32, bf16 or f16",
                        tensor->name, mstar_dtype_name(tensor->dtype));
    *parameters += (uint64_t)tensor->count;
    *out = tensor;
    return MSTAR_OK;
}

static int64_t unit_size(const mst_bert_config *config, unit of)
{
    return of == NONE ? 0 : of == HIDDEN ? config->hidden : config->intermediate;
}

static mstar_status find_encoder(const mst_checkpoint *checkpoint, const mst_bert_config *config,
                                 found_tensors *found)
{
    const char *prefix =
        mst_checkpoint_find(checkpoint, embedding_names[WORDS]) == NULL &&
                mst_checkpoint_find(checkpoint, "bert.embeddings.word_embeddings.weight")
            ? "bert."
            : "";
    const int64_t rows[EMBEDDING_TENSORS] = {config->vocab_size, config->max_positions,
                                             config->type_vocab_size, config->hidden,
                                             config->hidden};
    char name[128];
    for (int i = 0; i < EMBEDDING_TENSORS; i++) {
        (void)snprintf(name, sizeof name, "%s%s", prefix, embedding_names[i]);
        MST_TRY(find_tensor(checkpoint, name, rows[i], i < NUM_TABLES ? config->hidden : 0,
                            &found->parameters, &found->embeddings[i]));
    }
    for (int32_t layer = 0; layer < config->layers; layer++) {
        for (int i = 0; i < LAYER_TENSORS; i++) {
            (void)snprintf(name, sizeof name, "%sencoder.layer.%d.%s", prefix, layer,
                           layer_rows[i].name);
            MST_TRY(find_tensor(checkpoint, name, unit_size(config, layer_rows[i].rows),
                                unit_size(config, layer_rows[i].columns), &found->parameters,
                                &found->layers[layer * LAYER_TENSORS + i]));
        }
    }
    return MSTAR_OK;
}

static mstar_status find_dense(const mst_module *module, uint64_t *parameters, found_dense *dense)
{
    MST_TRY(mst_checkpoint_open(module->folder, &dense->checkpoint));
    MST_TRY(find_tensor(&dense->checkpoint, "linear.weight", module->out_features,
                        module->in_features, parameters, &dense->weight));
    if (module->bias)
        MST_TRY(find_tensor(&dense->checkpoint, "linear.bias", module->out_features, 0, parameters,
                            &dense->bias));
    if (module->residual && module->in_features != module->out_features)
        MST_TRY(find_tensor(&dense->checkpoint, "residual.weight", module->out_features,
                            module->in_features, parameters, &dense->residual));
    return MSTAR_OK;
}

static mstar_status find_all(const mst_folder *folder, const mst_checkpoint *checkpoint,
                             found_tensors *found)
{
    void *memory;
    MST_TRY(mst_alloc_array((int64_t)folder->config.layers * LAYER_TENSORS, sizeof *found->layers,
                            "tensor list", &memory));
    found->layers = memory;
    mstar_status status = find_encoder(checkpoint, &folder->config, found);
    if (status != MSTAR_OK)
        return mst_fail_in(status, "%s", folder->transformer);
    MST_TRY(mst_alloc_array(folder->num_modules, sizeof *found->dense, "dense list", &memory));
    found->dense = memory;
    found->num_dense = folder->num_modules;
    for (int64_t i = 0; i < folder->num_modules; i++) {
        if (folder->modules[i].kind != MST_MODULE_DENSE)
            continue;
        status = find_dense(&folder->modules[i], &found->parameters, &found->dense[i]);
        if (status != MSTAR_OK)
            return mst_fail_in(status, "%s", folder->modules[i].folder);
    }
    return MSTAR_OK;
}

static void release_found(found_tensors *found)
{
    for (int64_t i = 0; i < found->num_dense; i++)
        mst_checkpoint_close(&found->dense[i].checkpoint);
    mst_free(found->dense);
    mst_free(found->layers);
}

/* ---- building -------------------------------------------------------------------------------- */

/* A view of a stored tensor; *copy owns its memory when the file's bytes are not aligned. */
static mstar_status view_stored(const mst_stored_tensor *stored, void **copy, mstar_tensor *view)
{
    void *data = (void *)(uintptr_t)stored->data;
    *copy = NULL;
    if ((uintptr_t)data % mstar_dtype_bytes(stored->dtype) != 0) {
        MST_TRY(mst_alloc(stored->bytes, "aligned tensor", copy));
        memcpy(*copy, data, stored->bytes);
        data = *copy;
    }
    *view = mstar_tensor_make(data, stored->dtype, stored->rank, stored->shape);
    return MSTAR_OK;
}

static mstar_status build_linear(mstar_device *device, mstar_dtype dtype,
                                 mstar_activation activation,
                                 const mst_stored_tensor *const *weights,
                                 const mst_stored_tensor *const *biases, int32_t num_parts,
                                 size_t *bytes, mstar_linear **linear)
{
    mstar_tensor views[6];
    void *copies[6] = {NULL};
    const mstar_tensor *weight_views[3];
    const mstar_tensor *bias_views[3];
    bool biased = biases[0] != NULL;
    mstar_linear_desc desc;
    mstar_linear_info info = {.struct_size = sizeof info};
    mstar_status status = MSTAR_OK;
    for (int32_t i = 0; i < num_parts; i++) {
        MST_TRY_GOTO(view_stored(weights[i], &copies[2 * i], &views[2 * i]), done);
        weight_views[i] = &views[2 * i];
        bias_views[i] = NULL;
        if (biased) {
            MST_TRY_GOTO(view_stored(biases[i], &copies[2 * i + 1], &views[2 * i + 1]), done);
            bias_views[i] = &views[2 * i + 1];
        }
    }
    mstar_linear_desc_init(&desc);
    desc.weight_dtype = dtype;
    desc.activation = activation;
    MST_TRY_GOTO(mstar_linear_create(device, &desc, weight_views, biased ? bias_views : NULL,
                                     num_parts, linear),
                 done);
    MST_TRY_GOTO(mstar_linear_query(*linear, &info), done);
    *bytes += info.packed_bytes + (size_t)info.out_features * sizeof(float);
done:
    for (int i = 0; i < 6; i++)
        mst_free(copies[i]);
    return status;
}

static mstar_status build_table(const mst_stored_tensor *stored, mstar_dtype dtype, void **owned,
                                mstar_tensor *table)
{
    void *copy;
    mstar_tensor view;
    MST_TRY(view_stored(stored, &copy, &view));
    if (dtype == MSTAR_DTYPE_F32 || stored->dtype == dtype) {
        *owned = copy;
        *table = view;
        return MSTAR_OK;
    }
    void *narrow = NULL;
    size_t bytes = (size_t)stored->count * mstar_dtype_bytes(dtype);
    mstar_status status = mst_alloc(bytes, "embedding table", &narrow);
    if (status == MSTAR_OK)
        status = mstar_convert(view.data, view.dtype, narrow, dtype, (size_t)stored->count);
    mst_free(copy);
    if (status != MSTAR_OK) {
        mst_free(narrow);
        return status;
    }
    *owned = narrow;
    *table = mstar_tensor_make(narrow, dtype, stored->rank, stored->shape);
    return MSTAR_OK;
}

/* Widens a vector into the norms' block and steps on. */
static mstar_status build_vector(const mst_stored_tensor *stored, float **next, mstar_tensor *out)
{
    void *copy;
    mstar_tensor view;
    MST_TRY(view_stored(stored, &copy, &view));
    mstar_status status =
        mstar_convert(view.data, view.dtype, *next, MSTAR_DTYPE_F32, (size_t)stored->count);
    mst_free(copy);
    *out = mstar_tensor_make(*next, MSTAR_DTYPE_F32, 1, stored->shape);
    *next += stored->count;
    return status;
}

static mstar_status build_layer(mstar_device *device, const mst_bert_config *config,
                                mstar_dtype dtype, const mst_stored_tensor *const *parts,
                                float **norms, mst_weights *weights, mst_layer *layer)
{
    const mst_stored_tensor *qkv[] = {parts[QUERY_WEIGHT], parts[KEY_WEIGHT], parts[VALUE_WEIGHT]};
    const mst_stored_tensor *qkv_bias[] = {parts[QUERY_BIAS], parts[KEY_BIAS], parts[VALUE_BIAS]};
    MST_TRY(build_linear(device, dtype, MSTAR_ACTIVATION_NONE, qkv, qkv_bias, 3, &weights->bytes,
                         &layer->qkv));
    MST_TRY(build_linear(device, dtype, MSTAR_ACTIVATION_NONE, &parts[OUT_WEIGHT], &parts[OUT_BIAS],
                         1, &weights->bytes, &layer->attention_out));
    MST_TRY(build_linear(device, dtype, config->activation, &parts[UP_WEIGHT], &parts[UP_BIAS], 1,
                         &weights->bytes, &layer->up));
    MST_TRY(build_linear(device, dtype, MSTAR_ACTIVATION_NONE, &parts[DOWN_WEIGHT],
                         &parts[DOWN_BIAS], 1, &weights->bytes, &layer->down));
    MST_TRY(build_vector(parts[ATTENTION_NORM_WEIGHT], norms, &layer->attention_norm.weight));
    MST_TRY(build_vector(parts[ATTENTION_NORM_BIAS], norms, &layer->attention_norm.bias));
    MST_TRY(build_vector(parts[NORM_WEIGHT], norms, &layer->out_norm.weight));
    MST_TRY(build_vector(parts[NORM_BIAS], norms, &layer->out_norm.bias));
    for (int i = 0; i < LAYER_TENSORS; i++)
        mst_checkpoint_let_go(&weights->checkpoint, parts[i]);
    return MSTAR_OK;
}

static mstar_status build_encoder(mstar_device *device, const mst_bert_config *config,
                                  mstar_dtype dtype, const found_tensors *found,
                                  mst_weights *weights)
{
    mstar_tensor *const tables[NUM_TABLES] = {&weights->words, &weights->positions,
                                              &weights->types};
    for (int i = 0; i < NUM_TABLES; i++) {
        MST_TRY(build_table(found->embeddings[i], dtype, &weights->owned_tables[i], tables[i]));
        if (weights->owned_tables[i] != NULL)
            mst_checkpoint_let_go(&weights->checkpoint, found->embeddings[i]);
        weights->bytes += (size_t)found->embeddings[i]->count * mstar_dtype_bytes(tables[i]->dtype);
    }
    int64_t norm_floats = (int64_t)(4 * config->layers + 2) * config->hidden;
    MST_TRY(mst_alloc_array(norm_floats, sizeof(float), "norm weights", &weights->norms));
    weights->bytes += (size_t)norm_floats * sizeof(float);
    float *next = weights->norms;
    MST_TRY(build_vector(found->embeddings[EMBEDDING_NORM_WEIGHT], &next,
                         &weights->embedding_norm.weight));
    MST_TRY(
        build_vector(found->embeddings[EMBEDDING_NORM_BIAS], &next, &weights->embedding_norm.bias));
    void *memory;
    MST_TRY(mst_alloc_array(config->layers, sizeof *weights->layers, "layers", &memory));
    weights->layers = memory;
    weights->num_layers = config->layers;
    for (int32_t i = 0; i < config->layers; i++)
        MST_TRY(build_layer(device, config, dtype, found->layers + i * LAYER_TENSORS, &next,
                            weights, &weights->layers[i]));
    return mst_weights_place(device, (size_t)norm_floats * sizeof(float), weights);
}

static mstar_status build_dense(mstar_device *device, const mst_folder *folder, mstar_dtype dtype,
                                const found_tensors *found, mst_weights *weights)
{
    void *memory;
    MST_TRY(mst_alloc_array(folder->num_modules, sizeof *weights->dense, "dense", &memory));
    weights->dense = memory;
    weights->num_dense = folder->num_modules;
    for (int64_t i = 0; i < folder->num_modules; i++) {
        const found_dense *dense = &found->dense[i];
        const mst_stored_tensor *no_bias = NULL;
        if (dense->weight == NULL)
            continue;
        MST_TRY(build_linear(device, dtype, folder->modules[i].activation, &dense->weight,
                             &dense->bias, 1, &weights->bytes, &weights->dense[i].linear));
        if (dense->residual != NULL)
            MST_TRY(build_linear(device, dtype, MSTAR_ACTIVATION_NONE, &dense->residual, &no_bias,
                                 1, &weights->bytes, &weights->dense[i].residual));
    }
    return MSTAR_OK;
}

mstar_status mst_weights_load(mstar_device *device, const mst_folder *folder, mstar_dtype dtype,
                              mst_weights *weights)
{
    found_tensors found = {.layers = NULL};
    mstar_status status;
    *weights = (mst_weights){.layers = NULL};
    MST_TRY_GOTO(mst_checkpoint_open(folder->transformer, &weights->checkpoint), done);
    MST_TRY_GOTO(find_all(folder, &weights->checkpoint, &found), done);
    weights->parameters = found.parameters;
    MST_TRY_GOTO(build_encoder(device, &folder->config, dtype, &found, weights), done);
    status = build_dense(device, folder, dtype, &found, weights);
done:
    release_found(&found);
    if (status != MSTAR_OK)
        mst_weights_release(weights);
    return status;
}

void mst_weights_release(mst_weights *weights)
{
    for (int32_t i = 0; i < weights->num_layers; i++) {
        mstar_linear_destroy(weights->layers[i].qkv);
        mstar_linear_destroy(weights->layers[i].attention_out);
        mstar_linear_destroy(weights->layers[i].up);
        mstar_linear_destroy(weights->layers[i].down);
    }
    for (int64_t i = 0; i < weights->num_dense; i++) {
        mstar_linear_destroy(weights->dense[i].linear);
        mstar_linear_destroy(weights->dense[i].residual);
    }
    for (int i = 0; i < NUM_TABLES; i++)
        mst_free(weights->owned_tables[i]);
    for (int i = 0; i < MST_NUM_PLACED; i++)
        mstar_buffer_destroy(weights->placed[i]);
    mst_free(weights->layers);
    mst_free(weights->dense);
    mst_free(weights->norms);
    mst_checkpoint_close(&weights->checkpoint);
    *weights = (mst_weights){.layers = NULL};
}

mstar_status mst_weights_x_dtype(const mst_weights *weights, mstar_dtype *dtype)
{
    mstar_linear_info info = {.struct_size = sizeof info};
    *dtype = MSTAR_DTYPE_F32;
    if (weights->num_layers == 0)
        return MSTAR_OK;
    MST_TRY(mstar_linear_query(weights->layers[0].up, &info));
    *dtype = info.x_dtype;
    return MSTAR_OK;
}
