/* test_encoder.c - the encoder as an object: loading, what is refused, failed allocations. */
#include "support_card.h"
#include "support_encoder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

/* ---- loading --------------------------------------------------------------------------------- */

static void test_info(void **state)
{
    encoder_fixture *f = *state;
    mstar_encoder *encoder = encoder_load(f->device, f->folder, NULL);
    mstar_encoder_info info = encoder_query(encoder);
    assert_int_equal(info.layers, 2);
    assert_int_equal(info.heads, 4);
    assert_int_equal(info.head_dim, 8);
    assert_int_equal(info.hidden, 32);
    assert_int_equal(info.intermediate, 48);
    assert_int_equal(info.dims, 32);
    assert_int_equal(info.normalize, 1);
    assert_int_equal(info.num_poolings, 1);
    assert_int_equal(info.poolings[0], MSTAR_POOLING_MEAN);
    assert_int_equal(info.dtype, MSTAR_DTYPE_F32);
    assert_int_equal(info.vocab_size, TINY_VOCAB);
    assert_int_equal(info.max_tokens, 40);
    assert_int_equal(info.max_batch_tokens, 1024);
    assert_int_equal(info.num_workers, 2);
    assert_string_equal(info.model_type, "bert");
    assert_string_equal(info.activation, "gelu");
    assert_string_equal(info.pooling_source, "1_Pooling/config.json");
    /* 4 products, 2 norms a layer; 3 tables and a norm */
    uint64_t layer = 4 * (32 * 32 + 32) + (48 * 32 + 48) + (32 * 48 + 32) + 4 * 32;
    assert_int_equal(info.parameters, 2 * layer + (60 + 40 + 2 + 2) * 32);
    assert_true(info.weight_bytes >= info.parameters * 4);
    /* x and the widest products, at least: a batch that all share, and the second worker's own */
    assert_true(info.arena_bytes >= (1024 + 256) * (32 + 4 * 32) * sizeof(float));
    assert_true(info.arena_bytes < 2 * 1024 * (32 + 4 * 32) * sizeof(float));
    assert_non_null(mstar_encoder_get_tokenizer(encoder));
    assert_null(mstar_encoder_get_tokenizer(NULL));
    /* a short struct gets what fits */
    mstar_encoder_info small;
    memset(&small, 0x5a, sizeof small);
    small.struct_size = 8;
    FOLDER_OK(mstar_encoder_query(encoder, &small));
    assert_int_equal(small.layers, 2);
    assert_int_equal(small.heads, 0x5a5a5a5a);
    FOLDER_FAILS(mstar_device_close(f->device), MSTAR_BUSY, "");
    mstar_encoder_release(encoder);
    mstar_encoder_release(NULL);
}

static void test_arena_is_told_before_the_first_batch(void **state)
{
    encoder_fixture *f = *state;
    mstar_memory_info before = {.struct_size = sizeof before};
    mstar_memory_info after = {.struct_size = sizeof after};
    mstar_encoder_desc desc = encoder_defaults();
    size_t arenas[2];
    uint64_t live[2];
    for (int i = 0; i < 2; i++) {
        desc.max_batch_tokens = i == 0 ? 100 : 900;
        FOLDER_OK(mstar_memory_query(&before));
        mstar_encoder *encoder = encoder_load(f->device, f->folder, &desc);
        FOLDER_OK(mstar_memory_query(&after));
        arenas[i] = encoder_query(encoder).arena_bytes;
        live[i] = after.live_bytes - before.live_bytes;
        mstar_encoder_release(encoder);
    }
    /* what more tokens cost is in the arena, to the byte */
    assert_int_equal(arenas[1] - arenas[0], live[1] - live[0]);
}

/* Every thread has a worker, and a workspace has a piece a thread: memory must still grow with the
 * threads, not with their square. */
static void test_memory_is_linear_in_threads(void **state)
{
    encoder_fixture *f = *state;
    uint64_t live[3];
    size_t arenas[3];
    for (int i = 0; i < 3; i++) {
        mstar_device *device = encoder_device(2 + 4 * i);
        mstar_memory_info before = {.struct_size = sizeof before};
        mstar_memory_info after = {.struct_size = sizeof after};
        FOLDER_OK(mstar_memory_query(&before));
        mstar_encoder *encoder = encoder_load(device, f->folder, NULL);
        FOLDER_OK(mstar_memory_query(&after));
        live[i] = after.live_bytes - before.live_bytes;
        arenas[i] = encoder_query(encoder).arena_bytes;
        mstar_encoder_release(encoder);
        level_close(device);
    }
    assert_true(live[1] > live[0]);
    assert_int_equal(live[2] - live[1], live[1] - live[0]);
    assert_int_equal(arenas[2] - arenas[1], arenas[1] - arenas[0]);
}

/* tokenizer.json has lists of its own for special ids and type ids. */
static void test_ids_that_the_model_lacks(void **state)
{
    encoder_fixture *f = *state;
    static const struct {
        const char *id, *type, *piece;
    } bad[] = {{"60", "0", "special token of id 60; vocab_size of config.json is 60"},
               {"1", "2", "type id 2; type_vocab_size of config.json is 2"},
               {"1", "2147483647", "type id 2147483647; type_vocab_size"}};
    const char *form =
        "{\"added_tokens\":[],\"normalizer\":null,\"pre_tokenizer\":{\"type\":"
        "\"BertPreTokenizer\"},\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":"
        "[{\"SpecialToken\":{\"id\":\"[CLS]\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\","
        "\"type_id\":%s}}],\"pair\":[{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},"
        "{\"Sequence\":{\"id\":\"B\",\"type_id\":0}}],\"special_tokens\":{\"[CLS]\":{\"id\":"
        "\"[CLS]\",\"ids\":[%s],\"tokens\":[\"[CLS]\"]}}},\"model\":{\"type\":\"WordPiece\","
        "\"unk_token\":\"[UNK]\",\"continuing_subword_prefix\":\"##\","
        "\"max_input_chars_per_word\":100,\"vocab\":{\"[UNK]\":0,\"[CLS]\":1,\"a\":2}}}";
    char text[1024];
    mstar_encoder *encoder = NULL;
    (void)snprintf(text, sizeof text, form, "1", "59");
    folder_text(f->folder, "tokenizer.json", text);
    mstar_encoder_release(encoder_load(f->device, f->folder, NULL));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        (void)snprintf(text, sizeof text, form, bad[i].type, bad[i].id);
        folder_text(f->folder, "tokenizer.json", text);
        FOLDER_FAILS(mstar_encoder_load(f->device, f->folder, NULL, &encoder), MSTAR_BAD_DATA,
                     bad[i].piece);
    }
    assert_null(encoder);
}

static void test_bad_arguments(void **state)
{
    encoder_fixture *f = *state;
    mstar_encoder *encoder = NULL;
    mstar_encoder_desc desc;
    FOLDER_FAILS(mstar_encoder_load(NULL, f->folder, NULL, &encoder), MSTAR_INVALID_ARGUMENT,
                 "device");
    FOLDER_FAILS(mstar_encoder_load(f->device, NULL, NULL, &encoder), MSTAR_INVALID_ARGUMENT,
                 "folder");
    FOLDER_FAILS(mstar_encoder_load(f->device, f->folder, NULL, NULL), MSTAR_INVALID_ARGUMENT,
                 "encoder");
    FOLDER_FAILS(mstar_encoder_load(f->device, "/nowhere", NULL, &encoder), MSTAR_NOT_FOUND,
                 "/nowhere");
#define REFUSED(field, value, piece)                                            \
    do {                                                                        \
        desc = encoder_defaults();                                              \
        desc.field = value;                                                     \
        FOLDER_FAILS(mstar_encoder_load(f->device, f->folder, &desc, &encoder), \
                     MSTAR_INVALID_ARGUMENT, piece);                            \
    } while (0)
    REFUSED(struct_size, 0, "struct_size");
    REFUSED(dtype, MSTAR_DTYPE_F16, "dtype is f16");
    REFUSED(dtype, (mstar_dtype)99, "dtype is unknown (99)");
    REFUSED(pooling, 6, "desc.pooling is 6");
    REFUSED(pooling, -2, "desc.pooling is -2");
    REFUSED(normalize, 2, "desc.normalize is 2");
    REFUSED(truncate, (mstar_truncate)3, "desc.truncate is 3");
    REFUSED(max_tokens, 41, "desc.max_tokens is 41");
    REFUSED(max_tokens, 1, "desc.max_tokens is 1");
    REFUSED(max_batch_tokens, 39, "desc.max_batch_tokens is 39; it must be from 40");
    REFUSED(max_batch_tokens, INT32_MAX, "desc.max_batch_tokens");
#undef REFUSED
    assert_null(encoder);
}

static void append_word(const char *folder, int number)
{
    FILE *file = fopen(folder_path(folder, "vocab.txt"), "a");
    assert_non_null(file);
    fprintf(file, "word%d\n", number);
    assert_int_equal(fclose(file), 0);
}

static void test_damaged_weights(void **state)
{
    encoder_fixture *f = *state;
    mstar_encoder *encoder = NULL;
    tiny_model model = tiny_model_default;
    model.hidden = 28;
    char *other = folder_make();
    tiny_model_write(other, &model);
    tiny_model_config(other, &tiny_model_default, ""); /* says 32 */
    FOLDER_FAILS(mstar_encoder_load(f->device, other, NULL, &encoder), MSTAR_BAD_DATA,
                 "tensor embeddings.word_embeddings.weight has shape [60, 28]; [60, 32]");
    model = tiny_model_default;
    model.layers = 3;
    tiny_model_config(other, &model, "");
    tiny_model_write(other, &tiny_model_default);
    tiny_model_config(other, &model, "");
    FOLDER_FAILS(mstar_encoder_load(f->device, other, NULL, &encoder), MSTAR_BAD_DATA,
                 "tensor encoder.layer.2.attention.self.query.weight is missing; shape [32, 32]");
    model = tiny_model_default;
    model.intermediate = 47;
    tiny_model_write(other, &model);
    tiny_model_config(other, &tiny_model_default, "");
    FOLDER_FAILS(mstar_encoder_load(f->device, other, NULL, &encoder), MSTAR_BAD_DATA,
                 "intermediate.dense.weight has shape [47, 32]; [48, 32]");
    tiny_model_write(other, &tiny_model_default);
    /* a dtype that is no weight: F32 data read as I32 */
    mst_file file;
    FOLDER_OK(mst_file_map(folder_path(other, "model.safetensors"), &file));
    size_t bytes = file.bytes;
    char *copy = malloc(bytes);
    assert_non_null(copy);
    memcpy(copy, file.data, bytes);
    mst_file_unmap(&file); /* before the file changes under it */
    char *place = NULL;
    for (size_t i = 0; i + 3 < bytes && place == NULL; i++) {
        if (memcmp(copy + i, "F32", 3) == 0)
            place = copy + i;
    }
    assert_non_null(place);
    memcpy(place, "I32", 3);
    folder_write(other, "model.safetensors", copy, bytes);
    FOLDER_FAILS(mstar_encoder_load(f->device, other, NULL, &encoder), MSTAR_NOT_SUPPORTED,
                 "embeddings.word_embeddings.weight is i32");
    for (size_t length = 0; length < bytes; length += 97) {
        folder_write(other, "model.safetensors", copy, length);
        assert_int_equal(mstar_encoder_load(f->device, other, NULL, &encoder), MSTAR_BAD_DATA);
    }
    free(copy);
    folder_delete(other, "model.safetensors");
    FOLDER_FAILS(mstar_encoder_load(f->device, other, NULL, &encoder), MSTAR_NOT_FOUND,
                 "model.safetensors");
    tiny_model_write(other, &tiny_model_default);
    folder_text(other, "sentence_bert_config.json", "{\"max_seq_length\": 1}");
    FOLDER_FAILS(mstar_encoder_load(f->device, other, NULL, &encoder), MSTAR_BAD_DATA,
                 "sentence_bert_config.json max_seq_length is 1; special tokens alone are 2");
    folder_delete(other, "sentence_bert_config.json");
    folder_text(other, "vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n");
    for (int i = 0; i < 57; i++)
        append_word(other, i);
    FOLDER_FAILS(mstar_encoder_load(f->device, other, NULL, &encoder), MSTAR_BAD_DATA,
                 "ids up to 60; vocab_size of config.json is 60");
    folder_delete(other, "vocab.txt");
    assert_int_equal(mstar_encoder_load(f->device, other, NULL, &encoder), MSTAR_NOT_FOUND);
    assert_null(encoder);
    folder_remove(other);
}

/* ---- failed allocations ---------------------------------------------------------------------- */

static int fail_at(void *context, uint64_t number, size_t bytes)
{
    (void)bytes;
    return number == *(uint64_t *)context;
}

/* Each text costs a few allocations, and each allocation a round. */
#define FAULT_TEXTS 18

static void test_failed_allocations(void **state)
{
    encoder_fixture *f = *state;
    text_set *set = encoder_texts(6);
    mstar_encoder *encoder = NULL;
    uint64_t live = folder_live();
    uint64_t number = 0;
    mstar_status status;
    mstar_device *device = encoder_device(1); /* one thread: the numbers repeat */
    uint64_t live_device = folder_live();
    mstar_encoder_desc desc = encoder_defaults();
    desc.dtype = MSTAR_DTYPE_BF16;
    desc.max_batch_tokens = 64;
    do {
        number++;
        mstar_set_alloc_fault(fail_at, &number);
        status = mstar_encoder_load(device, f->folder, &desc, &encoder);
        mstar_set_alloc_fault(NULL, NULL);
        if (status != MSTAR_OK) {
            assert_int_equal(status, MSTAR_OUT_OF_MEMORY);
            assert_null(encoder);
            assert_int_equal(folder_live(), live_device);
        }
    } while (status != MSTAR_OK && number < 5000);
    assert_int_equal(status, MSTAR_OK);
    assert_true(number > 50);
    float *wanted = encoder_embed(encoder, set->texts, FAULT_TEXTS);
    mstar_encoder_release(encoder);

    /* a call that fails anywhere can be made again */
    float *got = calloc(FAULT_TEXTS * DIMS, sizeof *got);
    assert_non_null(got);
    uint64_t last = 0;
    for (number = 1; number < 5000; number++) {
        encoder = encoder_load(device, f->folder, &desc);
        mstar_set_alloc_fault(fail_at, &number);
        status = mstar_encoder_embed(encoder, set->texts, FAULT_TEXTS, got, DIMS, NULL);
        mstar_set_alloc_fault(NULL, NULL);
        if (status != MSTAR_OK) {
            assert_int_equal(status, MSTAR_OUT_OF_MEMORY);
            memset(got, 0xff, FAULT_TEXTS * DIMS * sizeof *got);
            FOLDER_OK(mstar_encoder_embed(encoder, set->texts, FAULT_TEXTS, got, DIMS, NULL));
            last = number;
        }
        assert_memory_equal(got, wanted, FAULT_TEXTS * DIMS * sizeof *got);
        mstar_encoder_release(encoder);
        if (status == MSTAR_OK)
            break;
    }
    assert_int_equal(status, MSTAR_OK);
    assert_true(last > 5);
    level_close(device);
    assert_int_equal(folder_live(), live);
    free(got);
    free(wanted);
    free(set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ENCODER_TEST(test_info),
        ENCODER_TEST(test_arena_is_told_before_the_first_batch),
        ENCODER_TEST(test_memory_is_linear_in_threads),
        ENCODER_TEST(test_ids_that_the_model_lacks),
        ENCODER_TEST(test_bad_arguments),
        ENCODER_TEST(test_damaged_weights),
        ENCODER_TEST(test_failed_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
