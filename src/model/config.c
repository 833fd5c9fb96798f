/*
 * config.c - config.json of a BERT encoder, and names of activations.
 *
 * What changes the numbers and is not ours to compute is refused by name: a model that loads and
 * quietly gives other vectors is worse than one that does not load.
 */
#include <math.h>
#include <string.h>

#include "model/encoder.h"

#define FILE_NAME "config.json"

typedef struct activation_row {
    const char *name;
    mstar_activation activation;
} activation_row;

static const activation_row hidden_acts[] = {{"gelu", MSTAR_ACTIVATION_GELU},
                                             {"gelu_python", MSTAR_ACTIVATION_GELU},
                                             {"gelu_new", MSTAR_ACTIVATION_GELU_TANH},
                                             {"gelu_fast", MSTAR_ACTIVATION_GELU_TANH},
                                             {"gelu_pytorch_tanh", MSTAR_ACTIVATION_GELU_TANH},
                                             {"gelu_accurate", MSTAR_ACTIVATION_GELU_TANH},
                                             {"relu", MSTAR_ACTIVATION_RELU},
                                             {"silu", MSTAR_ACTIVATION_SILU},
                                             {"swish", MSTAR_ACTIVATION_SILU},
                                             {"tanh", MSTAR_ACTIVATION_TANH},
                                             {"sigmoid", MSTAR_ACTIVATION_SIGMOID},
                                             {"linear", MSTAR_ACTIVATION_NONE}};

static const activation_row path_acts[] = {
    {"Identity", MSTAR_ACTIVATION_NONE}, {"Tanh", MSTAR_ACTIVATION_TANH},
    {"GELU", MSTAR_ACTIVATION_GELU},     {"ReLU", MSTAR_ACTIVATION_RELU},
    {"SiLU", MSTAR_ACTIVATION_SILU},     {"Sigmoid", MSTAR_ACTIVATION_SIGMOID}};

mstar_status mst_hidden_act_parse(const char *where, const char *text, mstar_activation *activation)
{
    for (size_t i = 0; i < sizeof hidden_acts / sizeof hidden_acts[0]; i++) {
        if (strcmp(text, hidden_acts[i].name) == 0) {
            *activation = hidden_acts[i].activation;
            return MSTAR_OK;
        }
    }
    return mst_fail(MSTAR_NOT_SUPPORTED,
                    "%s: hidden_act is \"%.64s\"; known are gelu, gelu_new, gelu_fast, "
                    "gelu_pytorch_tanh, relu, silu, swish, tanh, sigmoid, linear",
                    where, text);
}

mstar_status mst_activation_path_parse(const char *where, const char *text,
                                       mstar_activation *activation)
{
    const char *dot = strrchr(text, '.');
    const char *name = dot != NULL ? dot + 1 : text;
    for (size_t i = 0; i < sizeof path_acts / sizeof path_acts[0]; i++) {
        if (strcmp(name, path_acts[i].name) == 0) {
            *activation = path_acts[i].activation;
            return MSTAR_OK;
        }
    }
    return mst_fail(MSTAR_NOT_SUPPORTED,
                    "%s: activation_function is \"%.96s\"; known are Identity, Tanh, GELU, ReLU, "
                    "SiLU and Sigmoid of torch.nn",
                    where, text);
}

static mstar_status get_size(const json_t *root, const char *key, int64_t high, int32_t *value)
{
    int64_t wide;
    MST_TRY(mst_json_get_int(root, FILE_NAME, key, 1, high, &wide));
    *value = (int32_t)wide;
    return MSTAR_OK;
}

static mstar_status refuse_flag(const json_t *root, const char *key)
{
    bool value;
    MST_TRY(mst_json_get_bool_or(root, FILE_NAME, key, false, &value));
    if (value)
        return mst_fail(MSTAR_NOT_SUPPORTED, "%s: %s is true; only encoders with it false are read",
                        FILE_NAME, key);
    return MSTAR_OK;
}

static mstar_status check_family(const json_t *root, mst_bert_config *config)
{
    const char *text;
    MST_TRY(mst_json_get_string(root, FILE_NAME, "model_type", &text));
    if (strcmp(text, "bert") != 0)
        return mst_fail(MSTAR_NOT_SUPPORTED, "%s: model_type is \"%.64s\"; only \"bert\" is read",
                        FILE_NAME, text);
    (void)strncpy(config->model_type, text, sizeof config->model_type - 1);
    MST_TRY(mst_json_get_string_or(root, FILE_NAME, "position_embedding_type", "absolute", &text));
    if (strcmp(text, "absolute") != 0)
        return mst_fail(MSTAR_NOT_SUPPORTED,
                        "%s: position_embedding_type is \"%.64s\"; only \"absolute\" is read",
                        FILE_NAME, text);
    MST_TRY(refuse_flag(root, "is_decoder"));
    MST_TRY(refuse_flag(root, "add_cross_attention"));
    if (mst_json_find(root, "quantization_config") != NULL)
        return mst_fail(MSTAR_NOT_SUPPORTED,
                        "%s: quantization_config is set; only plain weights "
                        "are read",
                        FILE_NAME);
    const json_t *map;
    MST_TRY(mst_json_get_object_or_null(root, FILE_NAME, "auto_map", &map));
    if (mst_json_find(map, "AutoModel") != NULL)
        return mst_fail(MSTAR_NOT_SUPPORTED,
                        "%s: auto_map.AutoModel is set; a model with code of its own is not read",
                        FILE_NAME);
    return MSTAR_OK;
}

static mstar_status read_sizes(const json_t *root, mst_bert_config *config)
{
    MST_TRY(get_size(root, "hidden_size", 65536, &config->hidden));
    MST_TRY(get_size(root, "num_hidden_layers", 1024, &config->layers));
    MST_TRY(get_size(root, "num_attention_heads", 4096, &config->heads));
    MST_TRY(get_size(root, "intermediate_size", 1 << 20, &config->intermediate));
    MST_TRY(get_size(root, "vocab_size", INT32_MAX, &config->vocab_size));
    MST_TRY(get_size(root, "max_position_embeddings", 1 << 20, &config->max_positions));
    config->type_vocab_size = 2;
    if (mst_json_find(root, "type_vocab_size") != NULL)
        MST_TRY(get_size(root, "type_vocab_size", 65536, &config->type_vocab_size));
    if (config->hidden % config->heads != 0)
        return mst_fail(MSTAR_BAD_DATA,
                        "%s: hidden_size is %d; it must be a multiple of num_attention_heads = %d",
                        FILE_NAME, config->hidden, config->heads);
    config->head_dim = config->hidden / config->heads;
    if (config->head_dim > 256)
        return mst_fail(MSTAR_NOT_SUPPORTED,
                        "%s: hidden_size / num_attention_heads is %d; it may be at most 256",
                        FILE_NAME, config->head_dim);
    return MSTAR_OK;
}

static mstar_status read_config(const json_t *root, mst_bert_config *config)
{
    const char *text;
    MST_TRY(mst_json_check_object(root, FILE_NAME, "the document"));
    MST_TRY(check_family(root, config));
    MST_TRY(read_sizes(root, config));
    MST_TRY(mst_json_get_string_or(root, FILE_NAME, "hidden_act", "gelu", &text));
    MST_TRY(mst_hidden_act_parse(FILE_NAME, text, &config->activation));
    MST_TRY(
        mst_json_get_number_or(root, FILE_NAME, "layer_norm_eps", 1e-12, &config->layer_norm_eps));
    if (!(config->layer_norm_eps >= 0 && config->layer_norm_eps <= 1))
        return mst_fail(MSTAR_BAD_DATA, "%s: layer_norm_eps is %g; it must be from 0 to 1",
                        FILE_NAME, config->layer_norm_eps);
    return MSTAR_OK;
}

mstar_status mst_bert_config_read(const char *folder, mst_bert_config *config)
{
    char *path = NULL;
    json_t *root = NULL;
    mstar_status status;
    *config = (mst_bert_config){.model_type = ""};
    MST_TRY_GOTO(mst_path_join(folder, FILE_NAME, &path), done);
    MST_TRY_GOTO(mst_json_read(path, &root), done);
    status = read_config(root, config);
    if (status != MSTAR_OK)
        status = mst_fail_in(status, "%s", folder);
done:
    json_decref(root);
    mst_free(path);
    return status;
}
