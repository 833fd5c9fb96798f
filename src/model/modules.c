/*
 * modules.c - modules.json of a sentence-transformers folder, and the configs of its modules.
 *
 * Both generations are read: a module's class is the last part of its Python path, and each config
 * may use the keys of either. The pipeline is Transformer, Pooling, then any run of Dense and
 * Normalize; whatever else a folder asks for is refused by name.
 */
#include <stdio.h>
#include <string.h>

#include "model/encoder.h"

#define LIST_NAME "modules.json"
#define EMBEDDING_NAME "sentence_embedding"

/* The six modes in the order in which several are concatenated, which is also the enum's. */
static const char *const legacy_keys[MST_NUM_POOLINGS] = {
    "pooling_mode_cls_token",           "pooling_mode_max_tokens",
    "pooling_mode_mean_tokens",         "pooling_mode_mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens", "pooling_mode_lasttoken"};
_Static_assert(MSTAR_POOLING_CLS == 0 && MSTAR_POOLING_LAST == MST_NUM_POOLINGS - 1,
               "poolings are numbered in the order of legacy_keys");

/* config.json of a module; NOT_FOUND when there is none. */
static mstar_status read_module_config(const char *folder, json_t **root)
{
    char *path = NULL;
    mstar_status status;
    MST_TRY_GOTO(mst_path_join(folder, "config.json", &path), done);
    MST_TRY_GOTO(mst_json_read(path, root), done);
    status = mst_json_check_object(*root, path, "the document");
done:
    mst_free(path);
    return status;
}

static mstar_status check_names(const json_t *root, const char *where)
{
    static const char *const keys[] = {"module_input_name", "module_output_name"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const char *text;
        MST_TRY(mst_json_get_string_or(root, where, keys[i], EMBEDDING_NAME, &text));
        if (strcmp(text, EMBEDDING_NAME) != 0)
            return mst_fail(MSTAR_NOT_SUPPORTED, "%s: %s is \"%.64s\"; only \"%s\" is read", where,
                            keys[i], text, EMBEDDING_NAME);
    }
    return MSTAR_OK;
}

/* ---- Pooling --------------------------------------------------------------------------------- */

static mstar_status add_mode(const char *where, const char *text, bool on[MST_NUM_POOLINGS])
{
    mstar_pooling pooling;
    mstar_status status = mstar_pooling_parse(text, &pooling);
    if (status != MSTAR_OK)
        return mst_fail_in(MSTAR_NOT_SUPPORTED, "%s: pooling_mode", where);
    if (on[pooling])
        return mst_fail(MSTAR_BAD_DATA, "%s: pooling_mode names \"%.32s\" twice", where, text);
    on[pooling] = true;
    return MSTAR_OK;
}

static mstar_status read_modes(const json_t *root, const char *where, bool on[MST_NUM_POOLINGS])
{
    const json_t *mode = mst_json_find(root, "pooling_mode");
    if (json_is_array(mode)) {
        for (size_t i = 0; i < json_array_size(mode); i++) {
            const char *text = json_string_value(json_array_get(mode, i));
            if (text == NULL)
                return mst_fail(MSTAR_BAD_DATA, "%s: pooling_mode[%zu] is not a string", where, i);
            MST_TRY(add_mode(where, text, on));
        }
        return MSTAR_OK;
    }
    if (mode != NULL) {
        const char *text;
        MST_TRY(mst_json_get_string(root, where, "pooling_mode", &text));
        return add_mode(where, text, on);
    }
    for (int i = 0; i < MST_NUM_POOLINGS; i++)
        MST_TRY(mst_json_get_bool_or(root, where, legacy_keys[i], false, &on[i]));
    return MSTAR_OK;
}

static mstar_status check_width(const json_t *root, const char *where, const char *key,
                                int64_t hidden)
{
    int64_t width;
    MST_TRY(mst_json_get_int_or(root, where, key, 1, INT32_MAX, hidden, &width));
    if (width != hidden)
        return mst_fail(MSTAR_BAD_DATA, "%s: %s is %lld; config.json has hidden_size %lld", where,
                        key, (long long)width, (long long)hidden);
    return MSTAR_OK;
}

static mstar_status read_pooling(const char *folder, const char *where, mst_folder *out)
{
    bool on[MST_NUM_POOLINGS] = {false};
    json_t *root = NULL;
    mstar_status status;
    MST_TRY_GOTO(read_module_config(folder, &root), done);
    MST_TRY_GOTO(read_modes(root, where, on), done);
    MST_TRY_GOTO(mst_json_get_bool_or(root, where, "include_prompt", true, &out->include_prompt),
                 done);
    MST_TRY_GOTO(check_width(root, where, "word_embedding_dimension", out->config.hidden), done);
    MST_TRY_GOTO(check_width(root, where, "embedding_dimension", out->config.hidden), done);
    out->num_poolings = 0;
    for (int i = 0; i < MST_NUM_POOLINGS; i++) {
        if (on[i])
            out->poolings[out->num_poolings++] = (mstar_pooling)i;
    }
    (void)snprintf(out->pooling_source, sizeof out->pooling_source, "%s", where);
    if (out->num_poolings == 0) {
        /* as sentence-transformers reads a config without a mode */
        out->poolings[out->num_poolings++] = MSTAR_POOLING_MEAN;
        (void)snprintf(out->pooling_source, sizeof out->pooling_source,
                       "assumed: mean (%.80s names no mode)", where);
        mst_log(MST_LOG_WARNING, "%s names no pooling mode; mean pooling is assumed", where);
    }
done:
    json_decref(root);
    return status;
}

/* ---- Dense and Normalize --------------------------------------------------------------------- */

mstar_status mst_modules_add(mst_folder *folder, const mst_module *module)
{
    MST_TRY(mst_grow((void **)&folder->modules, &folder->modules_capacity, folder->num_modules + 1,
                     sizeof *folder->modules, "modules"));
    folder->modules[folder->num_modules++] = *module;
    return MSTAR_OK;
}

static mstar_status read_dense(const char *folder, const char *where, mst_folder *out)
{
    mst_module module = {.kind = MST_MODULE_DENSE};
    json_t *root = NULL;
    const char *text;
    mstar_status status;
    MST_TRY_GOTO(read_module_config(folder, &root), done);
    MST_TRY_GOTO(mst_json_get_int(root, where, "in_features", 1, 1 << 20, &module.in_features),
                 done);
    MST_TRY_GOTO(mst_json_get_int(root, where, "out_features", 1, 1 << 20, &module.out_features),
                 done);
    MST_TRY_GOTO(mst_json_get_bool_or(root, where, "bias", true, &module.bias), done);
    MST_TRY_GOTO(mst_json_get_bool_or(root, where, "use_residual", false, &module.residual), done);
    MST_TRY_GOTO(mst_json_get_string_or(root, where, "activation_function",
                                        "torch.nn.modules.activation.Tanh", &text),
                 done);
    MST_TRY_GOTO(mst_activation_path_parse(where, text, &module.activation), done);
    MST_TRY_GOTO(check_names(root, where), done);
    MST_TRY_GOTO(mst_strdup(folder, "module folder", &module.folder), done);
    status = mst_modules_add(out, &module);
    if (status != MSTAR_OK)
        mst_free(module.folder);
done:
    json_decref(root);
    return status;
}

static mstar_status read_normalize(const char *folder, const char *where, mst_folder *out)
{
    const mst_module module = {.kind = MST_MODULE_NORMALIZE};
    json_t *root = NULL;
    mstar_status status = read_module_config(folder, &root);
    if (status == MSTAR_OK)
        status = check_names(root, where);
    else if (status == MSTAR_NOT_FOUND)
        status = MSTAR_OK; /* an empty folder, or none: the older generation */
    json_decref(root);
    MST_TRY(status);
    return mst_modules_add(out, &module);
}

/* ---- the list -------------------------------------------------------------------------------- */

/* A module's path stays inside the folder. */
static mstar_status check_path(const char *where, const char *path)
{
    bool bad = path[0] == '/';
    for (const char *part = path; !bad && *part != '\0';) {
        size_t length = strcspn(part, "/");
        bad = length == 2 && part[0] == '.' && part[1] == '.';
        part += length + (part[length] == '/');
    }
    return !bad ? MSTAR_OK
                : mst_fail(MSTAR_BAD_DATA,
                           "%s: path is \"%.96s\"; it must stay inside the model's folder", where,
                           path);
}

static mstar_status read_transformer(const char *folder, mst_folder *out)
{
    MST_TRY(mst_strdup(folder, "transformer folder", &out->transformer));
    return mst_bert_config_read(folder, &out->config);
}

static mstar_status read_module(const char *folder, const char *kind, const char *where,
                                const char *config_name, mst_folder *out)
{
    if (strcmp(kind, "Transformer") == 0) {
        if (out->transformer != NULL)
            return mst_fail(MSTAR_NOT_SUPPORTED, "%s: a second Transformer", where);
        return read_transformer(folder, out);
    }
    bool pooling = strcmp(kind, "Pooling") == 0;
    bool dense = strcmp(kind, "Dense") == 0;
    bool normalize = strcmp(kind, "Normalize") == 0;
    if (!pooling && !dense && !normalize)
        return mst_fail(MSTAR_NOT_SUPPORTED,
                        "%s: module type \"%.64s\"; read are Transformer, Pooling, Dense and "
                        "Normalize",
                        where, kind);
    if (out->transformer == NULL || pooling != (out->num_poolings == 0))
        return mst_fail(MSTAR_NOT_SUPPORTED,
                        "%s: %s stands out of order; read is Transformer, one Pooling, then Dense "
                        "and Normalize",
                        where, kind);
    if (pooling)
        return read_pooling(folder, config_name, out);
    return dense ? read_dense(folder, config_name, out) : read_normalize(folder, config_name, out);
}

static mstar_status read_entry(const char *folder, size_t place, const json_t *entry,
                               mst_folder *out)
{
    char where[64];
    char config_name[MST_SOURCE_BYTES];
    const char *type;
    const char *path;
    char *inner = NULL;
    mstar_status status;
    (void)snprintf(where, sizeof where, LIST_NAME "[%zu]", place);
    MST_TRY(mst_json_check_object(entry, where, "the entry"));
    MST_TRY(mst_json_get_string(entry, where, "type", &type));
    MST_TRY(mst_json_get_string_or(entry, where, "path", "", &path));
    MST_TRY(check_path(where, path));
    const char *dot = strrchr(type, '.');
    (void)snprintf(config_name, sizeof config_name, "%.100s%sconfig.json", path,
                   path[0] != '\0' ? "/" : "");
    if (path[0] == '\0')
        MST_TRY(mst_strdup(folder, "module path", &inner));
    else
        MST_TRY(mst_path_join(folder, path, &inner));
    status = read_module(inner, dot != NULL ? dot + 1 : type, where, config_name, out);
    mst_free(inner);
    return status;
}

mstar_status mst_modules_read(const char *folder, mst_folder *out, bool *found)
{
    char *path = NULL;
    json_t *root = NULL;
    mstar_status status;
    *found = false;
    MST_TRY(mst_path_join(folder, LIST_NAME, &path));
    status = mst_json_read(path, &root);
    if (status == MSTAR_NOT_FOUND) {
        status = MSTAR_OK;
        goto done;
    }
    if (status != MSTAR_OK)
        goto done;
    *found = true;
    MST_TRY_GOTO(mst_json_check_array(root, LIST_NAME, "the document"), done);
    for (size_t i = 0; i < json_array_size(root); i++)
        MST_TRY_GOTO(read_entry(folder, i, json_array_get(root, i), out), done);
    if (out->transformer == NULL)
        status = mst_fail(MSTAR_BAD_DATA, "%s: names no Transformer", path);
done:
    json_decref(root);
    mst_free(path);
    return status;
}
