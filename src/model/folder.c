/*
 * folder.c - what a model folder says besides weights, with the caller's overrides on top.
 *
 * Every value that changes vectors carries the text of where it came from: pooling, normalisation,
 * the length limit and the prompt are the four that go wrong without an error elsewhere.
 */
#include <stdio.h>
#include <string.h>

#include "model/encoder.h"

#define SBERT_NAME "sentence_bert_config.json"
#define TOKENIZER_NAME "tokenizer_config.json"
#define PROMPTS_NAME "config_sentence_transformers.json"
/* model_max_length of tokenizers that have no limit is 1e30 */
#define NO_LIMIT 1e9

/* A JSON object of the folder, NULL where there is no such file. */
static mstar_status read_optional(const char *folder, const char *name, json_t **root)
{
    char *path = NULL;
    *root = NULL;
    MST_TRY(mst_path_join(folder, name, &path));
    mstar_status status = mst_json_read(path, root);
    mst_free(path);
    if (status == MSTAR_NOT_FOUND)
        return MSTAR_OK;
    if (status == MSTAR_OK)
        status = mst_json_check_object(*root, name, "the document");
    if (status != MSTAR_OK) {
        json_decref(*root);
        *root = NULL;
    }
    return status;
}

static void say(char source[MST_SOURCE_BYTES], const char *text)
{
    (void)snprintf(source, MST_SOURCE_BYTES, "%s", text);
}

/* ---- length ---------------------------------------------------------------------------------- */

static void lower_limit(mst_folder *out, int64_t value, const char *source)
{
    if (value >= out->max_tokens)
        return;
    out->max_tokens = value;
    say(out->max_tokens_source, source);
}

/* Strings that must have one value for the hidden states to be the plain last ones. */
static mstar_status check_fixed(const json_t *object, const char *where, const char *key,
                                const char *wanted)
{
    const char *text;
    MST_TRY(mst_json_get_string_or(object, where, key, wanted, &text));
    if (strcmp(text, wanted) != 0)
        return mst_fail(MSTAR_NOT_SUPPORTED, "%s: %s is \"%.64s\"; only \"%s\" is read", where, key,
                        text, wanted);
    return MSTAR_OK;
}

static mstar_status read_sbert_config(const json_t *root, mst_folder *out)
{
    const json_t *modality;
    const json_t *text;
    int64_t limit;
    MST_TRY(
        mst_json_get_int_or(root, SBERT_NAME, "max_seq_length", 1, INT32_MAX, INT32_MAX, &limit));
    lower_limit(out, limit, SBERT_NAME " max_seq_length");
    MST_TRY(mst_json_get_bool_or(root, SBERT_NAME, "do_lower_case", false, &out->lower_case));
    MST_TRY(check_fixed(root, SBERT_NAME, "transformer_task", "feature-extraction"));
    MST_TRY(check_fixed(root, SBERT_NAME, "module_output_name", "token_embeddings"));
    MST_TRY(mst_json_get_object_or_null(root, SBERT_NAME, "modality_config", &modality));
    MST_TRY(mst_json_get_object_or_null(modality, SBERT_NAME ": modality_config", "text", &text));
    MST_TRY(check_fixed(text, SBERT_NAME ": modality_config.text", "method", "forward"));
    return check_fixed(text, SBERT_NAME ": modality_config.text", "method_output_name",
                       "last_hidden_state");
}

static mstar_status read_tokenizer_config(const json_t *root, mst_folder *out)
{
    double limit;
    MST_TRY(mst_json_get_number_or(root, TOKENIZER_NAME, "model_max_length", NO_LIMIT, &limit));
    if (!(limit >= 1))
        return mst_fail(MSTAR_BAD_DATA, "%s: model_max_length is %g; it must be at least 1",
                        TOKENIZER_NAME, limit);
    if (limit < NO_LIMIT)
        lower_limit(out, (int64_t)limit, TOKENIZER_NAME " model_max_length");
    return MSTAR_OK;
}

static mstar_status read_limits(const mstar_encoder_desc *desc, mst_folder *out)
{
    json_t *root = NULL;
    out->max_tokens = INT64_MAX;
    MST_TRY(read_optional(out->transformer, SBERT_NAME, &root));
    mstar_status status = root != NULL ? read_sbert_config(root, out) : MSTAR_OK;
    json_decref(root);
    MST_TRY(status);
    MST_TRY(read_optional(out->transformer, TOKENIZER_NAME, &root));
    status = root != NULL ? read_tokenizer_config(root, out) : MSTAR_OK;
    json_decref(root);
    MST_TRY(status);
    lower_limit(out, out->config.max_positions, "config.json max_position_embeddings");
    if (desc->max_tokens != -1) {
        MST_TRY(mst_check_range("desc.max_tokens", desc->max_tokens, 1, out->config.max_positions));
        out->max_tokens = desc->max_tokens;
        say(out->max_tokens_source, "caller");
    }
    return MSTAR_OK;
}

/* ---- prompts --------------------------------------------------------------------------------- */

static mstar_status fail_prompt(mstar_status status, const char *asker, const char *name,
                                const json_t *prompts)
{
    char known[512] = "none";
    size_t used = 0;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)prompts, key, value)
    {
        int wrote =
            snprintf(known + used, sizeof known - used, "%s\"%.40s\"", used > 0 ? ", " : "", key);
        used += wrote > 0 ? (size_t)wrote : 0;
        if (used >= sizeof known - 64)
            break;
    }
    return mst_fail(status, "%s is \"%.64s\"; prompts of %s: %s", asker, name, PROMPTS_NAME, known);
}

static mstar_status read_prompts(const json_t *root, const mstar_encoder_desc *desc,
                                 mst_folder *out)
{
    const json_t *prompts;
    const char *fallback;
    const char *text = "";
    const char *model_type;
    MST_TRY(mst_json_get_string_or(root, PROMPTS_NAME, "model_type", "SentenceTransformer",
                                   &model_type));
    if (strcmp(model_type, "SentenceTransformer") != 0)
        return mst_fail(MSTAR_NOT_SUPPORTED,
                        "%s: model_type is \"%.64s\"; only \"SentenceTransformer\" is read",
                        PROMPTS_NAME, model_type);
    MST_TRY(mst_json_get_object_or_null(root, PROMPTS_NAME, "prompts", &prompts));
    MST_TRY(mst_json_get_string_or(root, PROMPTS_NAME, "default_prompt_name", "", &fallback));
    if (fallback[0] != '\0' && mst_json_find(prompts, fallback) == NULL)
        return fail_prompt(MSTAR_BAD_DATA, PROMPTS_NAME ": default_prompt_name", fallback, prompts);
    bool asked = desc->prompt_name != NULL;
    const char *name = asked ? desc->prompt_name : fallback;
    if (name[0] != '\0') {
        if (mst_json_find(prompts, name) == NULL)
            return fail_prompt(MSTAR_NOT_FOUND, "desc.prompt_name", name, prompts);
        MST_TRY(mst_json_get_string(prompts, PROMPTS_NAME ": prompts", name, &text));
        (void)snprintf(out->prompt_source, sizeof out->prompt_source, "%s prompts.%.64s%s",
                       PROMPTS_NAME, name, asked ? "" : " (its default)");
    } else {
        say(out->prompt_source, asked ? "none (caller)" : "none");
    }
    return mst_strdup(text, "prompt", &out->prompt);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static mstar_status read_pipeline(const char *folder, const mstar_encoder_desc *desc,
                                  mst_folder *out)
{
    bool found;
    out->include_prompt = true;
    MST_TRY(mst_modules_read(folder, out, &found));
    say(out->normalize_source, found ? "modules.json" : "assumed: none (no modules.json)");
    if (!found) {
        MST_TRY(mst_strdup(folder, "transformer folder", &out->transformer));
        MST_TRY(mst_bert_config_read(folder, &out->config));
    }
    if (desc->pooling != -1) {
        out->poolings[0] = (mstar_pooling)desc->pooling;
        out->num_poolings = 1;
        say(out->pooling_source, "caller");
    } else if (!found) {
        out->poolings[0] = MSTAR_POOLING_MEAN;
        out->num_poolings = 1;
        say(out->pooling_source, "assumed: mean (no modules.json)");
        mst_log(MST_LOG_WARNING,
                "%s: no modules.json; mean pooling is assumed, and a model trained with another "
                "one gives vectors that look right and rank wrongly",
                folder);
    } else if (out->num_poolings == 0) {
        return mst_fail(MSTAR_BAD_DATA, "%s/modules.json: names no Pooling", folder);
    }
    return MSTAR_OK;
}

/* The override concerns the end of the pipeline; a Normalize between Dense modules stays. */
static mstar_status apply_normalize(const mstar_encoder_desc *desc, mst_folder *out)
{
    const mst_module module = {.kind = MST_MODULE_NORMALIZE};
    int64_t last = out->num_modules - 1;
    out->normalize = last >= 0 && out->modules[last].kind == MST_MODULE_NORMALIZE;
    if (desc->normalize == -1)
        return MSTAR_OK;
    say(out->normalize_source, "caller");
    if (desc->normalize == 1 && !out->normalize)
        MST_TRY(mst_modules_add(out, &module));
    while (desc->normalize == 0 && out->num_modules > 0 &&
           out->modules[out->num_modules - 1].kind == MST_MODULE_NORMALIZE)
        out->num_modules--;
    out->normalize = desc->normalize == 1;
    return MSTAR_OK;
}

static mstar_status follow_widths(mst_folder *out)
{
    int64_t width = (int64_t)out->num_poolings * out->config.hidden;
    for (int64_t i = 0; i < out->num_modules; i++) {
        const mst_module *module = &out->modules[i];
        if (module->kind != MST_MODULE_DENSE)
            continue;
        if (module->in_features != width)
            return mst_fail(MSTAR_BAD_DATA,
                            "%s: in_features is %lld; what comes before it gives %lld",
                            module->folder, (long long)module->in_features, (long long)width);
        width = module->out_features;
    }
    out->dims = width;
    return MSTAR_OK;
}

static mstar_status read_all(const char *folder, const mstar_encoder_desc *desc, mst_folder *out)
{
    json_t *root = NULL;
    bool there;
    MST_TRY(mst_folder_look(folder, &there));
    if (!there)
        return mst_fail(MSTAR_NOT_FOUND, "%s: no such folder", folder);
    MST_TRY(read_pipeline(folder, desc, out));
    MST_TRY(apply_normalize(desc, out));
    MST_TRY(follow_widths(out));
    MST_TRY(read_limits(desc, out));
    MST_TRY(read_optional(folder, PROMPTS_NAME, &root));
    mstar_status status = read_prompts(root, desc, out);
    json_decref(root);
    return status;
}

mstar_status mst_folder_read(const char *folder, const mstar_encoder_desc *desc, mst_folder *out)
{
    *out = (mst_folder){.transformer = NULL};
    mstar_status status = read_all(folder, desc, out);
    if (status != MSTAR_OK)
        mst_folder_release(out);
    return status;
}

void mst_folder_release(mst_folder *folder)
{
    for (int64_t i = 0; i < folder->num_modules; i++)
        mst_free(folder->modules[i].folder);
    mst_free(folder->modules);
    mst_free(folder->transformer);
    mst_free(folder->prompt);
    *folder = (mst_folder){.transformer = NULL};
}
