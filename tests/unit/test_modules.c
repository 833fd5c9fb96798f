/* test_modules.c - modules.json and its modules: both generations, overrides, what is refused. */
#include "support_encoder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/encoder.h"

#define POOLING "1_Pooling/config.json"
#define SBERT "sentence_bert_config.json"

static int warnings;

static void count_warning(void *context, int level, const char *message)
{
    (void)context;
    (void)message;
    warnings += level == 2;
}

/* ---- modules.json ---------------------------------------------------------------------------- */

#define OLD "sentence_transformers.models."
#define NEW_BASE "sentence_transformers.base.modules."
#define NEW "sentence_transformers.sentence_transformer.modules."
#define MODULE(path, type) "{\"idx\":0,\"name\":\"0\",\"path\":\"" path "\",\"type\":\"" type "\"}"

static void test_both_generations(void **state)
{
    (void)state;
    static const char *const lists[] = {
        "[" MODULE("", OLD "Transformer") "," MODULE("1_Pooling", OLD "Pooling") "," MODULE(
            "2_Normalize", OLD "Normalize") "]",
        "[" MODULE("", NEW_BASE "transformer.Transformer") "," MODULE(
            "1_Pooling", NEW "pooling.Pooling") "," MODULE("2_Normalize",
                                                           NEW "normalize.Normalize") "]"};
    char *folder = folder_tiny();
    for (int i = 0; i < 2; i++) {
        folder_text(folder, "modules.json", lists[i]);
        mst_folder out = folder_read_ok(folder, NULL);
        assert_int_equal(out.num_poolings, 1);
        assert_int_equal(out.poolings[0], MSTAR_POOLING_MEAN);
        assert_string_equal(out.pooling_source, POOLING);
        assert_true(out.include_prompt);
        assert_int_equal(out.num_modules, 1);
        assert_true(out.normalize);
        assert_string_equal(out.normalize_source, "modules.json");
        assert_int_equal(out.dims, tiny_model_default.hidden);
        assert_int_equal(out.max_tokens, tiny_model_default.positions);
        assert_string_equal(out.max_tokens_source, "config.json max_position_embeddings");
        assert_string_equal(out.prompt, "");
        assert_string_equal(out.prompt_source, "none");
        assert_int_equal(out.config.head_dim, 8);
        mst_folder_release(&out);
    }
    folder_remove(folder);
}

static void test_transformer_in_a_subfolder(void **state)
{
    (void)state;
    char *folder = folder_make();
    folder_text(
        folder, "modules.json",
        "[" MODULE("0_Transformer", OLD "Transformer") "," MODULE("1_Pooling", OLD "Pooling") "]");
    folder_text(folder, "0_Transformer/x", "");
    folder_text(folder, POOLING, "{\"pooling_mode_cls_token\":true}");
    char inner[512];
    snprintf(inner, sizeof inner, "%s", folder_path(folder, "0_Transformer"));
    tiny_model_config(inner, &tiny_model_default, "");
    folder_text(inner, SBERT, "{\"max_seq_length\": 17, \"do_lower_case\": true}");
    mst_folder out = folder_read_ok(folder, NULL);
    assert_string_equal(out.transformer, inner);
    assert_int_equal(out.max_tokens, 17);
    assert_true(out.lower_case);
    assert_int_equal(out.poolings[0], MSTAR_POOLING_CLS);
    assert_false(out.normalize);
    mst_folder_release(&out);
    folder_remove(folder);
}

static void test_bad_module_lists(void **state)
{
    (void)state;
    static const struct {
        mstar_status status;
        const char *text, *piece;
    } lists[] = {
        {MSTAR_BAD_DATA, "{}", "a list is wanted"},
        {MSTAR_BAD_DATA, "[", "line 1"},
        {MSTAR_BAD_DATA, "[]", "no Transformer"},
        {MSTAR_BAD_DATA, "[7]", "modules.json[0]"},
        {MSTAR_BAD_DATA, "[{\"path\":\"\"}]", "type is missing"},
        {MSTAR_BAD_DATA, "[" MODULE("", OLD "Transformer") "]", "names no Pooling"},
        {MSTAR_NOT_SUPPORTED, "[" MODULE("", OLD "CLIPModel") "]", "\"CLIPModel\""},
        {MSTAR_NOT_SUPPORTED, "[" MODULE("1_Pooling", OLD "Pooling") "]", "out of order"},
        {MSTAR_NOT_SUPPORTED,
         "[" MODULE("", OLD "Transformer") "," MODULE("", OLD "Transformer") "]",
         "second Transformer"},
        {MSTAR_NOT_SUPPORTED,
         "[" MODULE("", OLD "Transformer") "," MODULE("2_Dense", OLD "Dense") "]", "out of order"},
        {MSTAR_NOT_SUPPORTED,
         "[" MODULE("", OLD "Transformer") "," MODULE("1_Pooling", OLD "Pooling") "," MODULE(
             "1_Pooling", OLD "Pooling") "]",
         "out of order"},
        {MSTAR_NOT_SUPPORTED,
         "[" MODULE("", OLD "Transformer") "," MODULE("1_Pooling", OLD "Pooling") "," MODULE(
             "x", OLD "LogitScore") "]",
         "\"LogitScore\""},
        {MSTAR_NOT_FOUND,
         "[" MODULE("", OLD "Transformer") "," MODULE("9_Pooling", OLD "Pooling") "]",
         "9_Pooling/config.json"},
        {MSTAR_NOT_FOUND, "[" MODULE("nowhere", OLD "Transformer") "]", "nowhere/config.json"},
        {MSTAR_BAD_DATA, "[" MODULE("../x", OLD "Transformer") "]", "stay inside"},
        {MSTAR_BAD_DATA, "[" MODULE("a/..", OLD "Transformer") "]", "stay inside"},
        {MSTAR_BAD_DATA, "[" MODULE("/etc", OLD "Transformer") "]", "stay inside"},
    };
    char *folder = folder_tiny();
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        folder_text(folder, "modules.json", lists[i].text);
        folder_refuse(folder, lists[i].status, lists[i].piece);
    }
    folder_remove(folder);
}

static void test_no_modules(void **state)
{
    (void)state;
    char *folder = folder_tiny();
    folder_delete(folder, "modules.json");
    mstar_set_log_sink(count_warning, NULL);
    warnings = 0;
    mst_folder out = folder_read_ok(folder, NULL);
    assert_int_equal(warnings, 1);
    assert_int_equal(out.poolings[0], MSTAR_POOLING_MEAN);
    assert_string_equal(out.pooling_source, "assumed: mean (no modules.json)");
    assert_string_equal(out.normalize_source, "assumed: none (no modules.json)");
    assert_false(out.normalize);
    mst_folder_release(&out);

    mstar_encoder_desc desc = encoder_defaults();
    desc.pooling = MSTAR_POOLING_CLS;
    desc.normalize = 1;
    warnings = 0;
    out = folder_read_ok(folder, &desc);
    assert_int_equal(warnings, 0); /* the caller said it: nothing is assumed */
    assert_int_equal(out.poolings[0], MSTAR_POOLING_CLS);
    assert_string_equal(out.pooling_source, "caller");
    assert_string_equal(out.normalize_source, "caller");
    assert_true(out.normalize);
    mst_folder_release(&out);
    mstar_set_log_sink(NULL, NULL);
    folder_remove(folder);
    folder_refuse("/nonexistent/model", MSTAR_NOT_FOUND, "no such folder");
}

/* ---- pooling --------------------------------------------------------------------------------- */

static void test_pooling_modes(void **state)
{
    (void)state;
    static const char *const old_keys[] = {
        "pooling_mode_cls_token",           "pooling_mode_max_tokens",
        "pooling_mode_mean_tokens",         "pooling_mode_mean_sqrt_len_tokens",
        "pooling_mode_weightedmean_tokens", "pooling_mode_lasttoken"};
    static const char *const new_names[] = {
        "cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"};
    char *folder = folder_tiny();
    for (int set = 1; set < 64; set++) {
        for (int generation = 0; generation < 2; generation++) {
            char text[600] = "{";
            size_t used = 1;
            int wanted = 0;
            if (generation == 1)
                used += (size_t)snprintf(text + used, sizeof text - used, "\"pooling_mode\":[");
            /* written from the last to the first: the file's order does not matter */
            for (int i = 5; i >= 0; i--) {
                bool on = (set >> i & 1) != 0;
                const char *comma = generation == 0 ? (i < 5 ? "," : "") : (wanted > 0 ? "," : "");
                if (generation == 0)
                    used += (size_t)snprintf(text + used, sizeof text - used, "%s\"%s\":%s", comma,
                                             old_keys[i], on ? "true" : "false");
                else if (on)
                    used += (size_t)snprintf(text + used, sizeof text - used, "%s\"%s\"", comma,
                                             new_names[i]);
                wanted += on;
            }
            snprintf(text + used, sizeof text - used, generation == 1 ? "]}" : "}");
            folder_text(folder, POOLING, text);
            mst_folder out = folder_read_ok(folder, NULL);
            assert_int_equal(out.num_poolings, wanted);
            assert_int_equal(out.dims, wanted * tiny_model_default.hidden);
            int at = 0;
            for (int i = 0; i < 6; i++) {
                if ((set >> i & 1) != 0)
                    assert_int_equal(out.poolings[at++], i);
            }
            mst_folder_release(&out);
        }
    }
    folder_text(folder, POOLING,
                "{\"embedding_dimension\":32,\"pooling_mode\":\"lasttoken\","
                "\"include_prompt\":false}");
    mst_folder out = folder_read_ok(folder, NULL);
    assert_int_equal(out.poolings[0], MSTAR_POOLING_LAST);
    assert_false(out.include_prompt);
    mst_folder_release(&out);

    mstar_set_log_sink(count_warning, NULL);
    warnings = 0;
    folder_text(folder, POOLING, "{\"pooling_mode_cls_token\":false}");
    out = folder_read_ok(folder, NULL);
    assert_int_equal(warnings, 1);
    assert_int_equal(out.num_poolings, 1);
    assert_int_equal(out.poolings[0], MSTAR_POOLING_MEAN);
    assert_string_equal(out.pooling_source, "assumed: mean (" POOLING " names no mode)");
    mst_folder_release(&out);
    mstar_set_log_sink(NULL, NULL);
    folder_remove(folder);
}

static void test_bad_pooling(void **state)
{
    (void)state;
    static const struct {
        mstar_status status;
        const char *text, *piece;
    } configs[] = {
        {MSTAR_BAD_DATA, "[]", "an object is wanted"},
        {MSTAR_BAD_DATA, "{\"pooling_mode\":7}", "pooling_mode is 7"},
        {MSTAR_BAD_DATA, "{\"pooling_mode\":[7]}", "pooling_mode[0]"},
        {MSTAR_NOT_SUPPORTED, "{\"pooling_mode\":\"median\"}", "\"median\""},
        {MSTAR_NOT_SUPPORTED, "{\"pooling_mode\":[\"mean\",\"median\"]}", "\"median\""},
        {MSTAR_BAD_DATA, "{\"pooling_mode\":[\"mean\",\"mean\"]}", "twice"},
        {MSTAR_BAD_DATA, "{\"pooling_mode_cls_token\":1}", "true or false"},
        {MSTAR_BAD_DATA, "{\"include_prompt\":\"no\"}", "include_prompt"},
        {MSTAR_BAD_DATA, "{\"word_embedding_dimension\":31}", "hidden_size 32"},
        {MSTAR_BAD_DATA, "{\"embedding_dimension\":33}", "hidden_size 32"},
    };
    char *folder = folder_tiny();
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        folder_text(folder, POOLING, configs[i].text);
        folder_refuse(folder, configs[i].status, configs[i].piece);
    }
    folder_delete(folder, POOLING);
    folder_refuse(folder, MSTAR_NOT_FOUND, POOLING);
    folder_remove(folder);
}

/* ---- Dense and Normalize --------------------------------------------------------------------- */

static void write_dense_list(const char *folder)
{
    folder_text(folder, "modules.json",
                "[" MODULE("", OLD "Transformer") "," MODULE("1_Pooling", OLD "Pooling") "," MODULE(
                    "2_Dense", OLD "Dense") "," MODULE("3_Normalize", OLD
                                                       "Normalize") "," MODULE("4_Dense", NEW_BASE
                                                                               "dense.Dense") "]");
}

static void test_dense(void **state)
{
    (void)state;
    char *folder = folder_tiny();
    write_dense_list(folder);
    folder_text(folder, "2_Dense/config.json", "{\"in_features\":32,\"out_features\":7}");
    folder_text(folder, "4_Dense/config.json",
                "{\"in_features\":7,\"out_features\":7,\"bias\":false,\"use_residual\":true,"
                "\"activation_function\":\"torch.nn.modules.linear.Identity\","
                "\"module_input_name\":\"sentence_embedding\","
                "\"module_output_name\":\"sentence_embedding\"}");
    mst_folder out = folder_read_ok(folder, NULL);
    assert_int_equal(out.num_modules, 3);
    assert_int_equal(out.dims, 7);
    assert_int_equal(out.modules[0].activation, MSTAR_ACTIVATION_TANH); /* the default */
    assert_true(out.modules[0].bias);
    assert_false(out.modules[0].residual);
    assert_int_equal(out.modules[1].kind, MST_MODULE_NORMALIZE);
    assert_int_equal(out.modules[2].activation, MSTAR_ACTIVATION_NONE);
    assert_false(out.modules[2].bias);
    assert_true(out.modules[2].residual);
    assert_false(out.normalize); /* it does not come last */
    mst_folder_release(&out);

    mstar_encoder_desc desc = encoder_defaults();
    desc.normalize = 1;
    out = folder_read_ok(folder, &desc);
    assert_int_equal(out.num_modules, 4);
    assert_true(out.normalize);
    mst_folder_release(&out);
    desc.normalize = 0; /* only what comes last is taken off */
    out = folder_read_ok(folder, &desc);
    assert_int_equal(out.num_modules, 3);
    mst_folder_release(&out);
    desc = encoder_defaults();
    desc.pooling = MSTAR_POOLING_CLS;
    folder_text(folder, POOLING, "{\"pooling_mode\":[\"cls\",\"mean\"]}");
    folder_refuse(folder, MSTAR_BAD_DATA, "in_features is 32; what comes before it gives 64");
    out = folder_read_ok(folder, &desc); /* one mode again */
    mst_folder_release(&out);
    folder_remove(folder);
}

static void test_normalize_override(void **state)
{
    (void)state;
    char *folder = folder_tiny();
    mstar_encoder_desc desc = encoder_defaults();
    desc.normalize = 0;
    mst_folder out = folder_read_ok(folder, &desc);
    assert_int_equal(out.num_modules, 0);
    assert_false(out.normalize);
    assert_string_equal(out.normalize_source, "caller");
    mst_folder_release(&out);
    desc.normalize = 1; /* it is there already: not twice */
    out = folder_read_ok(folder, &desc);
    assert_int_equal(out.num_modules, 1);
    mst_folder_release(&out);
    folder_text(folder, "2_Normalize/config.json", "{\"module_input_name\":\"token_embeddings\"}");
    folder_refuse(folder, MSTAR_NOT_SUPPORTED, "\"token_embeddings\"");
    folder_text(folder, "2_Normalize/config.json", "{");
    folder_refuse(folder, MSTAR_BAD_DATA, "2_Normalize/config.json");
    folder_remove(folder);
}

static void test_bad_dense(void **state)
{
    (void)state;
    static const struct {
        mstar_status status;
        const char *text, *piece;
    } configs[] = {
        {MSTAR_BAD_DATA, "{\"out_features\":7}", "in_features is missing"},
        {MSTAR_BAD_DATA, "{\"in_features\":0,\"out_features\":7}", "in_features is 0"},
        {MSTAR_BAD_DATA, "{\"in_features\":32,\"out_features\":99999999}", "out_features"},
        {MSTAR_BAD_DATA, "{\"in_features\":31,\"out_features\":7}", "gives 32"},
        {MSTAR_BAD_DATA, "{\"in_features\":32,\"out_features\":7,\"bias\":1}", "bias"},
        {MSTAR_NOT_SUPPORTED,
         "{\"in_features\":32,\"out_features\":7,\"activation_function\":\"torch.nn.Mish\"}",
         "torch.nn.Mish"},
        {MSTAR_NOT_SUPPORTED,
         "{\"in_features\":32,\"out_features\":7,\"module_output_name\":\"other\"}", "\"other\""},
        {MSTAR_NOT_SUPPORTED,
         "{\"in_features\":32,\"out_features\":7,\"module_input_name\":\"token_embeddings\"}",
         "\"token_embeddings\""},
    };
    char *folder = folder_tiny();
    write_dense_list(folder);
    folder_text(folder, "4_Dense/config.json", "{\"in_features\":7,\"out_features\":7}");
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        folder_text(folder, "2_Dense/config.json", configs[i].text);
        folder_refuse(folder, configs[i].status, configs[i].piece);
    }
    folder_remove(folder);
}

static void test_activation_paths(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        mstar_activation activation;
    } paths[] = {{"torch.nn.modules.activation.Tanh", MSTAR_ACTIVATION_TANH},
                 {"torch.nn.modules.linear.Identity", MSTAR_ACTIVATION_NONE},
                 {"torch.nn.modules.activation.GELU", MSTAR_ACTIVATION_GELU},
                 {"torch.nn.modules.activation.ReLU", MSTAR_ACTIVATION_RELU},
                 {"torch.nn.modules.activation.SiLU", MSTAR_ACTIVATION_SILU},
                 {"torch.nn.modules.activation.Sigmoid", MSTAR_ACTIVATION_SIGMOID},
                 {"Sigmoid", MSTAR_ACTIVATION_SIGMOID}};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        mstar_activation got = (mstar_activation)-1;
        FOLDER_OK(mst_activation_path_parse("here", paths[i].path, &got));
        assert_int_equal(got, paths[i].activation);
    }
}

/* ---- damage ------------------------------------------------------------------------------------
 */

static int fail_at(void *context, uint64_t number, size_t bytes)
{
    (void)bytes;
    return number == *(uint64_t *)context;
}

static void test_failed_allocations(void **state)
{
    (void)state;
    char *folder = folder_tiny();
    mstar_encoder_desc desc = encoder_defaults();
    uint64_t live = folder_live();
    uint64_t number = 0;
    mstar_status status;
    write_dense_list(folder);
    folder_text(folder, "2_Dense/config.json", "{\"in_features\":32,\"out_features\":7}");
    folder_text(folder, "4_Dense/config.json", "{\"in_features\":7,\"out_features\":9}");
    do {
        mst_folder out;
        number++;
        mstar_set_alloc_fault(fail_at, &number);
        status = mst_folder_read(folder, &desc, &out);
        mstar_set_alloc_fault(NULL, NULL);
        if (status == MSTAR_OK)
            mst_folder_release(&out);
        else
            assert_int_equal(status, MSTAR_OUT_OF_MEMORY);
        assert_int_equal(folder_live(), live);
    } while (status != MSTAR_OK && number < 500);
    assert_int_equal(status, MSTAR_OK);
    assert_true(number > 20);
    folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_generations),
        cmocka_unit_test(test_transformer_in_a_subfolder),
        cmocka_unit_test(test_bad_module_lists),
        cmocka_unit_test(test_no_modules),
        cmocka_unit_test(test_pooling_modes),
        cmocka_unit_test(test_bad_pooling),
        cmocka_unit_test(test_dense),
        cmocka_unit_test(test_normalize_override),
        cmocka_unit_test(test_bad_dense),
        cmocka_unit_test(test_activation_paths),
        cmocka_unit_test(test_failed_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
