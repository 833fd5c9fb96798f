/* test_folder.c - config.json, length limits and prompts: what is read and what is refused. */
#include "support_encoder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "model/encoder.h"

#define ROOT "config.json"
#define POOLING "1_Pooling/config.json"
#define SBERT "sentence_bert_config.json"
#define PROMPTS "config_sentence_transformers.json"

/* ---- config.json ----------------------------------------------------------------------------- */

static void test_config(void **state)
{
    (void)state;
    static const struct {
        mstar_status status;
        const char *extra, *piece; /* extra: keys put in front of a good config */
    } configs[] = {
        {MSTAR_NOT_SUPPORTED, "\"position_embedding_type\":\"alibi\",", "\"alibi\""},
        {MSTAR_NOT_SUPPORTED, "\"position_embedding_type\":\"relative_key\",", "\"relative_key\""},
        {MSTAR_NOT_SUPPORTED, "\"is_decoder\":true,", "is_decoder"},
        {MSTAR_NOT_SUPPORTED, "\"add_cross_attention\":true,", "add_cross_attention"},
        {MSTAR_NOT_SUPPORTED, "\"quantization_config\":{},", "quantization_config"},
        {MSTAR_NOT_SUPPORTED, "\"auto_map\":{\"AutoModel\":\"x.Y\"},", "auto_map"},
        {MSTAR_BAD_DATA, "\"is_decoder\":\"yes\",", "is_decoder"},
        {MSTAR_BAD_DATA, "\"hidden_size\":32,", "duplicate"},
        {MSTAR_OK, "\"position_embedding_type\":\"absolute\",\"is_decoder\":false,", ""},
        {MSTAR_OK, "\"auto_map\":{},\"unknown_key\":[1],\"quantization_config\":null,", ""},
    };
    char *folder = folder_tiny();
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        tiny_model_config(folder, &tiny_model_default, configs[i].extra);
        if (configs[i].status != MSTAR_OK) {
            folder_refuse(folder, configs[i].status, configs[i].piece);
        } else {
            mst_folder out = folder_read_ok(folder, NULL);
            mst_folder_release(&out);
        }
    }
    folder_delete(folder, ROOT);
    folder_refuse(folder, MSTAR_NOT_FOUND, ROOT);
    folder_remove(folder);
}

/* Replaces one key of a good config by a value, or drops it (value NULL). */
static void write_config(const char *folder, const char *key, const char *value)
{
    static const char *const good[][2] = {
        {"model_type", "\"bert\""},  {"hidden_size", "32"},
        {"num_hidden_layers", "2"},  {"num_attention_heads", "4"},
        {"intermediate_size", "48"}, {"vocab_size", "60"},
        {"type_vocab_size", "2"},    {"max_position_embeddings", "40"},
        {"hidden_act", "\"gelu\""},  {"layer_norm_eps", "1e-12"},
    };
    char text[800] = "{";
    size_t used = 1;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        const char *now = strcmp(good[i][0], key) == 0 ? value : good[i][1];
        if (now != NULL)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s\"%s\":%s",
                                     used > 1 ? "," : "", good[i][0], now);
    }
    snprintf(text + used, sizeof text - used, "}");
    folder_text(folder, ROOT, text);
}

static void test_config_values(void **state)
{
    (void)state;
    static const struct {
        mstar_status status;
        const char *key, *value, *piece;
    } configs[] = {
        {MSTAR_BAD_DATA, "model_type", NULL, "model_type is missing"},
        {MSTAR_NOT_SUPPORTED, "model_type", "\"roberta\"", "\"roberta\""},
        {MSTAR_BAD_DATA, "hidden_size", NULL, "hidden_size is missing"},
        {MSTAR_BAD_DATA, "hidden_size", "0", "hidden_size is 0"},
        {MSTAR_BAD_DATA, "hidden_size", "-32", "hidden_size is -32"},
        {MSTAR_BAD_DATA, "hidden_size", "30", "multiple of num_attention_heads = 4"},
        {MSTAR_NOT_SUPPORTED, "hidden_size", "1028", "at most 256"},
        {MSTAR_BAD_DATA, "hidden_size", "4294967328", "hidden_size is 4294967328"},
        {MSTAR_BAD_DATA, "hidden_size", "32.5", "hidden_size"},
        {MSTAR_BAD_DATA, "hidden_size", "\"32\"", "an integer is wanted"},
        {MSTAR_BAD_DATA, "num_hidden_layers", "0", "num_hidden_layers"},
        {MSTAR_BAD_DATA, "num_hidden_layers", "100000", "num_hidden_layers"},
        {MSTAR_BAD_DATA, "num_attention_heads", NULL, "num_attention_heads"},
        {MSTAR_BAD_DATA, "intermediate_size", "1e30", "intermediate_size"},
        {MSTAR_BAD_DATA, "vocab_size", "2147483648", "vocab_size"},
        {MSTAR_BAD_DATA, "max_position_embeddings", "0", "max_position_embeddings"},
        {MSTAR_BAD_DATA, "type_vocab_size", "0", "type_vocab_size"},
        {MSTAR_NOT_SUPPORTED, "hidden_act", "\"mish\"", "\"mish\""},
        {MSTAR_BAD_DATA, "hidden_act", "7", "hidden_act"},
        {MSTAR_BAD_DATA, "layer_norm_eps", "-1e-12", "layer_norm_eps"},
        {MSTAR_BAD_DATA, "layer_norm_eps", "\"x\"", "layer_norm_eps"},
    };
    static const struct {
        const char *name;
        mstar_activation activation;
    } acts[] = {{"\"gelu\"", MSTAR_ACTIVATION_GELU},
                {"\"gelu_new\"", MSTAR_ACTIVATION_GELU_TANH},
                {"\"gelu_pytorch_tanh\"", MSTAR_ACTIVATION_GELU_TANH},
                {"\"relu\"", MSTAR_ACTIVATION_RELU},
                {"\"silu\"", MSTAR_ACTIVATION_SILU},
                {"\"swish\"", MSTAR_ACTIVATION_SILU},
                {"\"tanh\"", MSTAR_ACTIVATION_TANH},
                {"\"sigmoid\"", MSTAR_ACTIVATION_SIGMOID},
                {NULL, MSTAR_ACTIVATION_GELU}};
    char *folder = folder_tiny();
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        write_config(folder, configs[i].key, configs[i].value);
        folder_refuse(folder, configs[i].status, configs[i].piece);
    }
    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++) {
        write_config(folder, "hidden_act", acts[i].name);
        mst_folder out = folder_read_ok(folder, NULL);
        assert_int_equal(out.config.activation, acts[i].activation);
        mst_folder_release(&out);
    }
    folder_remove(folder);
}

/* ---- length limits --------------------------------------------------------------------------- */

static void test_max_tokens(void **state)
{
    (void)state;
    static const struct {
        const char *sbert, *tokenizer;
        int64_t wanted;
        const char *source;
    } limits[] = {
        {"{}", "{}", 40, "config.json max_position_embeddings"},
        {"{\"max_seq_length\":20}", "{\"model_max_length\":30}", 20, SBERT " max_seq_length"},
        {"{\"max_seq_length\":30}", "{\"model_max_length\":20}", 20,
         "tokenizer_config.json model_max_length"},
        {"{\"max_seq_length\":null}", "{\"model_max_length\":1e30}", 40,
         "config.json max_position_embeddings"},
        {"{\"max_seq_length\":512}", "{\"model_max_length\":1000000000000000019884624838656}", 40,
         "config.json max_position_embeddings"},
        {"{\"max_seq_length\":40}", "{\"model_max_length\":40}", 40, SBERT " max_seq_length"},
        {NULL, NULL, 40, "config.json max_position_embeddings"},
    };
    char *folder = folder_tiny();
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        if (limits[i].sbert != NULL) {
            folder_text(folder, SBERT, limits[i].sbert);
            folder_text(folder, "tokenizer_config.json", limits[i].tokenizer);
        } else {
            folder_delete(folder, SBERT);
            folder_delete(folder, "tokenizer_config.json");
        }
        mst_folder out = folder_read_ok(folder, NULL);
        assert_int_equal(out.max_tokens, limits[i].wanted);
        assert_string_equal(out.max_tokens_source, limits[i].source);
        mst_folder_release(&out);
    }
    folder_text(folder, SBERT, "{\"max_seq_length\":20}");
    mstar_encoder_desc desc = encoder_defaults();
    desc.max_tokens = 40; /* over the folder's wish, not over its positions */
    mst_folder out = folder_read_ok(folder, &desc);
    assert_int_equal(out.max_tokens, 40);
    assert_string_equal(out.max_tokens_source, "caller");
    mst_folder_release(&out);
    desc.max_tokens = 41;
    folder_refuse_desc(folder, &desc, MSTAR_INVALID_ARGUMENT, "desc.max_tokens is 41");
    desc.max_tokens = 0;
    folder_refuse_desc(folder, &desc, MSTAR_INVALID_ARGUMENT, "desc.max_tokens is 0");
    desc.max_tokens = -2;
    folder_refuse_desc(folder, &desc, MSTAR_INVALID_ARGUMENT, "desc.max_tokens is -2");
    folder_remove(folder);
}

static void test_bad_limits(void **state)
{
    (void)state;
    static const struct {
        mstar_status status;
        const char *name, *text, *piece;
    } files[] = {
        {MSTAR_BAD_DATA, SBERT, "{\"max_seq_length\":0}", "max_seq_length is 0"},
        {MSTAR_BAD_DATA, SBERT, "{\"max_seq_length\":\"x\"}", "max_seq_length"},
        {MSTAR_BAD_DATA, SBERT, "[]", "an object is wanted"},
        {MSTAR_BAD_DATA, SBERT, "{\"do_lower_case\":0}", "do_lower_case"},
        {MSTAR_NOT_SUPPORTED, SBERT, "{\"transformer_task\":\"fill-mask\"}", "\"fill-mask\""},
        {MSTAR_NOT_SUPPORTED, SBERT,
         "{\"modality_config\":{\"text\":{\"method\":\"get_text_features\"}}}",
         "\"get_text_features\""},
        {MSTAR_NOT_SUPPORTED, SBERT,
         "{\"modality_config\":{\"text\":{\"method_output_name\":\"pooler_output\"}}}",
         "\"pooler_output\""},
        {MSTAR_BAD_DATA, "tokenizer_config.json", "{\"model_max_length\":0}", "model_max_length"},
        {MSTAR_BAD_DATA, "tokenizer_config.json", "{\"model_max_length\":\"x\"}",
         "model_max_length"},
        {MSTAR_BAD_DATA, "tokenizer_config.json", "{", "tokenizer_config.json"},
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        char *folder = folder_tiny();
        folder_text(folder, files[i].name, files[i].text);
        folder_refuse(folder, files[i].status, files[i].piece);
        folder_remove(folder);
    }
    char *folder = folder_tiny();
    folder_text(folder, SBERT,
                "{\"max_seq_length\":30,\"transformer_task\":\"feature-extraction\","
                "\"modality_config\":{\"text\":{\"method\":\"forward\","
                "\"method_output_name\":\"last_hidden_state\"}},"
                "\"module_output_name\":\"token_embeddings\"}");
    mst_folder out = folder_read_ok(folder, NULL);
    assert_int_equal(out.max_tokens, 30);
    mst_folder_release(&out);
    folder_remove(folder);
}

/* ---- prompts --------------------------------------------------------------------------------- */

static void test_prompts(void **state)
{
    (void)state;
    char *folder = folder_tiny();
    mstar_encoder_desc desc = encoder_defaults();
    desc.prompt_name = "query";
    folder_refuse_desc(folder, &desc, MSTAR_NOT_FOUND, "\"query\"");
    folder_text(folder, PROMPTS,
                "{\"prompts\":{\"query\":\"find: \",\"document\":\"\"},"
                "\"default_prompt_name\":null,\"similarity_fn_name\":\"cosine\","
                "\"model_type\":\"SentenceTransformer\"}");
    mst_folder out = folder_read_ok(folder, NULL);
    assert_string_equal(out.prompt, "");
    assert_string_equal(out.prompt_source, "none");
    mst_folder_release(&out);
    out = folder_read_ok(folder, &desc);
    assert_string_equal(out.prompt, "find: ");
    assert_string_equal(out.prompt_source, PROMPTS " prompts.query");
    mst_folder_release(&out);
    desc.prompt_name = "doc";
    folder_refuse_desc(folder, &desc, MSTAR_NOT_FOUND, "\"query\", \"document\"");
    folder_text(folder, PROMPTS,
                "{\"prompts\":{\"query\":\"find: \"},\"default_prompt_name\":\"query\"}");
    out = folder_read_ok(folder, NULL);
    assert_string_equal(out.prompt, "find: ");
    assert_string_equal(out.prompt_source, PROMPTS " prompts.query (its default)");
    mst_folder_release(&out);
    desc.prompt_name = ""; /* none, whatever the default is */
    out = folder_read_ok(folder, &desc);
    assert_string_equal(out.prompt, "");
    mst_folder_release(&out);

    static const struct {
        mstar_status status;
        const char *text, *piece;
    } files[] = {
        {MSTAR_BAD_DATA, "[]", "an object is wanted"},
        {MSTAR_BAD_DATA, "{\"prompts\":[]}", "prompts"},
        {MSTAR_BAD_DATA, "{\"prompts\":{\"a\":1},\"default_prompt_name\":\"a\"}", "a is 1"},
        {MSTAR_BAD_DATA, "{\"default_prompt_name\":\"a\"}", "default_prompt_name is \"a\""},
        {MSTAR_NOT_SUPPORTED, "{\"model_type\":\"CrossEncoder\"}", "\"CrossEncoder\""},
        {MSTAR_NOT_SUPPORTED, "{\"model_type\":\"SparseEncoder\"}", "\"SparseEncoder\""},
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        folder_text(folder, PROMPTS, files[i].text);
        folder_refuse(folder, files[i].status, files[i].piece);
    }
    folder_remove(folder);
}

/* ---- damage ---------------------------------------------------------------------------------- */

static void test_cut_configs(void **state)
{
    (void)state;
    static const char *const names[] = {"modules.json", ROOT, POOLING, "tokenizer_config.json"};
    mstar_encoder_desc desc = encoder_defaults();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char *folder = folder_tiny();
        mst_file file;
        FOLDER_OK(mst_file_map(folder_path(folder, names[i]), &file));
        unsigned char *copy = malloc(file.bytes);
        assert_non_null(copy);
        memcpy(copy, file.data, file.bytes);
        for (size_t length = 0; length < file.bytes; length++) {
            mst_folder out;
            folder_write(folder, names[i], copy, length);
            assert_int_equal(mst_folder_read(folder, &desc, &out), MSTAR_BAD_DATA);
        }
        free(copy);
        mst_file_unmap(&file);
        folder_remove(folder);
    }
}

/* A FIFO without a writer would be waited for without end; a folder is no file either. */
static void test_no_regular_file(void **state)
{
    (void)state;
    static const char *const names[] = {
        ROOT,   "modules.json", POOLING, "tokenizer_config.json", "sentence_bert_config.json",
        PROMPTS};
    for (size_t i = 0; i < 2 * (sizeof names / sizeof names[0]); i++) {
        const char *name = names[i / 2];
        char *folder = folder_tiny();
        folder_text(folder, name, "");
        folder_delete(folder, name);
        const char *path = folder_path(folder, name);
        assert_int_equal(i % 2 == 0 ? mkfifo(path, 0600) : mkdir(path, 0700), 0);
        folder_refuse(folder, MSTAR_IO_FAILED, "not a regular file");
        folder_remove(folder);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config),          cmocka_unit_test(test_config_values),
        cmocka_unit_test(test_max_tokens),      cmocka_unit_test(test_bad_limits),
        cmocka_unit_test(test_prompts),         cmocka_unit_test(test_cut_configs),
        cmocka_unit_test(test_no_regular_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
