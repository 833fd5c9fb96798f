/* test_encoder.c - the encoder as an object: what it refuses, what it promises about bits. */
#include "support_folder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/encoder.h"

#define DIMS 32
#define NUM_TEXTS 120
#define TEXT_BYTES 400

static mstar_device *open_device(int32_t threads)
{
    mstar_device_desc desc;
    mstar_device *device = NULL;
    mstar_device_desc_init(&desc);
    desc.num_threads = threads;
    FOLDER_OK(mstar_device_open("cpu", &desc, &device));
    return device;
}

static mstar_encoder_desc defaults(void)
{
    mstar_encoder_desc desc;
    memset(&desc, 0xff, sizeof desc);
    mstar_encoder_desc_init(&desc);
    return desc;
}

static mstar_encoder *load(mstar_device *device, const char *folder, const mstar_encoder_desc *desc)
{
    mstar_encoder *encoder = NULL;
    FOLDER_OK(mstar_encoder_load(device, folder, desc, &encoder));
    assert_non_null(encoder);
    return encoder;
}

static mstar_encoder_info query(const mstar_encoder *encoder)
{
    mstar_encoder_info info;
    memset(&info, 0xff, sizeof info);
    info.struct_size = sizeof info;
    FOLDER_OK(mstar_encoder_query(encoder, &info));
    return info;
}

/* ---- texts of a test ------------------------------------------------------------------------- */

typedef struct text_set {
    char bytes[NUM_TEXTS][TEXT_BYTES];
    mstar_text texts[NUM_TEXTS];
} text_set;

/* Empty ones, short ones, and some over any limit. */
static text_set *make_texts(uint64_t seed)
{
    test_random random = {seed};
    text_set *set = calloc(1, sizeof *set);
    assert_non_null(set);
    for (int i = 0; i < NUM_TEXTS; i++) {
        int64_t words = i % 17 == 0 ? 0 : test_random_between(&random, 1, i % 5 == 0 ? 45 : 9);
        tiny_text(&random, words, set->bytes[i], TEXT_BYTES);
        set->texts[i] = (mstar_text){set->bytes[i], strlen(set->bytes[i])};
    }
    return set;
}

static float *embed(mstar_encoder *encoder, const mstar_text *texts, int64_t count)
{
    int64_t dims = query(encoder).dims;
    float *vectors = malloc((size_t)(count * dims + 1) * sizeof *vectors);
    assert_non_null(vectors);
    memset(vectors, 0xff, (size_t)(count * dims + 1) * sizeof *vectors);
    FOLDER_OK(mstar_encoder_embed(encoder, texts, count, vectors, dims, NULL));
    for (int64_t i = 0; i < count * dims; i++)
        assert_true(isfinite(vectors[i]));
    return vectors;
}

typedef struct fixture {
    char *folder;
    mstar_device *device;
    uint64_t live;
} fixture;

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->live = folder_live();
    f->folder = folder_make();
    tiny_model_write(f->folder, &tiny_model_default);
    f->device = open_device(2);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    FOLDER_OK(mstar_device_close(f->device));
    assert_int_equal(folder_live(), f->live);
    folder_remove(f->folder);
    free(f);
    return 0;
}

/* ---- loading --------------------------------------------------------------------------------- */

static void test_info(void **state)
{
    fixture *f = *state;
    mstar_encoder *encoder = load(f->device, f->folder, NULL);
    mstar_encoder_info info = query(encoder);
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
    /* x and the widest products of every worker, at least */
    assert_true(info.arena_bytes >= 2 * 1024 * (32 + 4 * 32) * sizeof(float));
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
    fixture *f = *state;
    mstar_memory_info before = {.struct_size = sizeof before};
    mstar_memory_info after = {.struct_size = sizeof after};
    mstar_encoder_desc desc = defaults();
    size_t arenas[2];
    uint64_t live[2];
    for (int i = 0; i < 2; i++) {
        desc.max_batch_tokens = i == 0 ? 100 : 900;
        FOLDER_OK(mstar_memory_query(&before));
        mstar_encoder *encoder = load(f->device, f->folder, &desc);
        FOLDER_OK(mstar_memory_query(&after));
        arenas[i] = query(encoder).arena_bytes;
        live[i] = after.live_bytes - before.live_bytes;
        mstar_encoder_release(encoder);
    }
    /* what more tokens cost is in the arena, to the byte */
    assert_int_equal(arenas[1] - arenas[0], live[1] - live[0]);
}

static void test_bad_arguments(void **state)
{
    fixture *f = *state;
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
        desc = defaults();                                                      \
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

static void test_damaged_weights(void **state)
{
    fixture *f = *state;
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
    folder_delete(other, "vocab.txt");
    assert_int_equal(mstar_encoder_load(f->device, other, NULL, &encoder), MSTAR_NOT_FOUND);
    assert_null(encoder);
    folder_remove(other);
}

/* Where tensors lie in the file, and what the names begin with, changes no bit. */
static void test_layout_of_the_file(void **state)
{
    fixture *f = *state;
    static const char *const prefixes[] = {"", "bert.", "", ""};
    static const size_t aligns[] = {8, 8, 1, 3};
    static const mstar_dtype dtypes[] = {MSTAR_DTYPE_F32, MSTAR_DTYPE_BF16};
    text_set *set = make_texts(3);
    float *wanted[2] = {NULL, NULL};
    for (int i = 0; i < 4; i++) {
        tiny_model model = tiny_model_default;
        model.prefix = prefixes[i];
        model.align = aligns[i];
        char *other = folder_make();
        tiny_model_write(other, &model);
        for (int j = 0; j < 2; j++) {
            mstar_encoder_desc desc = defaults();
            desc.dtype = dtypes[j];
            mstar_encoder *encoder = load(f->device, other, &desc);
            float *got = embed(encoder, set->texts, NUM_TEXTS);
            if (wanted[j] == NULL) {
                wanted[j] = got;
            } else {
                assert_memory_equal(got, wanted[j], NUM_TEXTS * DIMS * sizeof(float));
                free(got);
            }
            mstar_encoder_release(encoder);
        }
        folder_remove(other);
    }
    assert_memory_not_equal(wanted[0], wanted[1], NUM_TEXTS * DIMS * sizeof(float));
    free(wanted[0]);
    free(wanted[1]);
    free(set);
}

/* ---- bits ------------------------------------------------------------------------------------ */

static void backwards(void *host, int32_t num_tasks, mstar_parallel_task task, void *context)
{
    (void)host;
    for (int32_t i = num_tasks - 1; i >= 0; i--)
        task(context, i);
}

/* Each text alone = in any batch = in any order = on any number of threads = again. */
static void check_bits(const char *folder, mstar_dtype dtype)
{
    text_set *set = make_texts(4);
    mstar_device *device = open_device(1);
    mstar_encoder_desc desc = defaults();
    desc.dtype = dtype;
    mstar_encoder *encoder = load(device, folder, &desc);
    int64_t dims = query(encoder).dims;
    size_t row = (size_t)dims * sizeof(float);
    float *wanted = malloc(NUM_TEXTS * row);
    assert_non_null(wanted);
    for (int i = 0; i < NUM_TEXTS; i++) {
        float *alone = embed(encoder, &set->texts[i], 1);
        memcpy(wanted + i * dims, alone, row);
        free(alone);
    }
    mstar_encoder_release(encoder);
    FOLDER_OK(mstar_device_close(device));
    for (int32_t threads = 1; threads <= 5; threads++) {
        static const int32_t batch_tokens[] = {-1, 40, 57, 300};
        if (threads == 5) {
            mstar_device_desc device_desc;
            mstar_device_desc_init(&device_desc);
            device_desc.num_threads = 3;
            device_desc.parallel_for = backwards;
            FOLDER_OK(mstar_device_open("cpu", &device_desc, &device));
        } else {
            device = open_device(threads);
        }
        for (size_t i = 0; i < sizeof batch_tokens / sizeof batch_tokens[0]; i++) {
            desc.max_batch_tokens = batch_tokens[i];
            encoder = load(device, folder, &desc);
            for (int again = 0; again < 2; again++) {
                float *got = embed(encoder, set->texts, NUM_TEXTS);
                assert_memory_equal(got, wanted, NUM_TEXTS * row);
                free(got);
            }
            /* another order and other neighbours */
            mstar_text picked[NUM_TEXTS];
            test_random random = {(uint64_t)threads * 10 + i};
            int chosen[NUM_TEXTS];
            int64_t count = test_random_between(&random, 1, NUM_TEXTS);
            for (int64_t j = 0; j < count; j++) {
                chosen[j] = (int)test_random_between(&random, 0, NUM_TEXTS - 1);
                picked[j] = set->texts[chosen[j]];
            }
            float *got = embed(encoder, picked, count);
            for (int64_t j = 0; j < count; j++)
                assert_memory_equal(got + j * dims, wanted + chosen[j] * dims, row);
            free(got);
            mstar_encoder_release(encoder);
        }
        FOLDER_OK(mstar_device_close(device));
    }
    free(wanted);
    free(set);
}

static void test_bits_f32(void **state)
{
    check_bits(((fixture *)*state)->folder, MSTAR_DTYPE_F32);
}

static void test_bits_bf16(void **state)
{
    check_bits(((fixture *)*state)->folder, MSTAR_DTYPE_BF16);
}

static void test_bits_with_modules(void **state)
{
    fixture *f = *state;
    folder_text(f->folder, "modules.json",
                "[{\"path\":\"\",\"type\":\"Transformer\"},"
                "{\"path\":\"1_Pooling\",\"type\":\"Pooling\"},"
                "{\"path\":\"2_Dense\",\"type\":\"Dense\"},"
                "{\"path\":\"3_Dense\",\"type\":\"Dense\"},"
                "{\"path\":\"4_Normalize\",\"type\":\"Normalize\"}]");
    folder_text(f->folder, "1_Pooling/config.json",
                "{\"pooling_mode\":[\"cls\",\"max\",\"mean\",\"mean_sqrt_len_tokens\","
                "\"weightedmean\",\"lasttoken\"]}");
    folder_text(f->folder, "2_Dense/config.json",
                "{\"in_features\":192,\"out_features\":300,\"use_residual\":true}");
    folder_text(f->folder, "3_Dense/config.json",
                "{\"in_features\":300,\"out_features\":300,\"use_residual\":true,"
                "\"bias\":false}");
    for (int i = 0; i < 2; i++) {
        checkpoint_writer writer;
        size_t bytes;
        test_random random = {77 + (uint64_t)i};
        checkpoint_begin(&writer);
        checkpoint_random(&writer, "linear.weight", MSTAR_DTYPE_F16, 300, i == 0 ? 192 : 300, 0,
                          0.1, &random);
        if (i == 0) {
            checkpoint_random(&writer, "linear.bias", MSTAR_DTYPE_BF16, 300, 0, 0, 0.1, &random);
            checkpoint_random(&writer, "residual.weight", MSTAR_DTYPE_F32, 300, 192, 0, 0.1,
                              &random);
        }
        unsigned char *file = checkpoint_end(&writer, 8, &bytes);
        folder_write(f->folder, i == 0 ? "2_Dense/model.safetensors" : "3_Dense/model.safetensors",
                     file, bytes);
        free(file);
    }
    check_bits(f->folder, MSTAR_DTYPE_F32);
    /* a Dense module that lacks a tensor is found before anything is built */
    mstar_encoder *encoder = NULL;
    folder_text(f->folder, "3_Dense/config.json",
                "{\"in_features\":300,\"out_features\":300,\"bias\":true}");
    FOLDER_FAILS(mstar_encoder_load(f->device, f->folder, NULL, &encoder), MSTAR_BAD_DATA,
                 "linear.bias is missing; shape [300]");
    folder_delete(f->folder, "3_Dense/model.safetensors");
    FOLDER_FAILS(mstar_encoder_load(f->device, f->folder, NULL, &encoder), MSTAR_NOT_FOUND,
                 "3_Dense");
}

/* ---- ids and hidden states ------------------------------------------------------------------- */

typedef struct id_set {
    int32_t ids[2000], types[2000], offsets[41], skip[40];
} id_set;

static void make_ids(id_set *set)
{
    test_random random = {8};
    set->offsets[0] = 0;
    for (int i = 0; i < 40; i++) {
        int32_t length = i % 6 == 2 ? 0 : (int32_t)test_random_between(&random, 1, 40);
        set->offsets[i + 1] = set->offsets[i] + length;
        set->skip[i] = (int32_t)test_random_between(&random, 0, 3);
    }
    for (int i = 0; i < 2000; i++) {
        set->ids[i] = (int32_t)test_random_between(&random, 0, TINY_VOCAB - 1);
        set->types[i] = (int32_t)test_random_between(&random, 0, 1);
    }
}

#define STRIDE (DIMS + 5)

static void test_ids(void **state)
{
    fixture *f = *state;
    static id_set set;
    static float vectors[40 * STRIDE + 1], hidden[2000 * STRIDE + 1], one[STRIDE], few[40 * STRIDE];
    mstar_encoder *encoder = load(f->device, f->folder, NULL);
    make_ids(&set);
    int32_t tokens = set.offsets[40];
    memset(vectors, 0xff, sizeof vectors);
    memset(hidden, 0xff, sizeof hidden);
    FOLDER_OK(mstar_encoder_embed_ids(encoder, set.ids, set.types, set.offsets, 40, set.skip,
                                      vectors, STRIDE));
    FOLDER_OK(mstar_encoder_hidden(encoder, set.ids, set.types, set.offsets, 40, hidden, STRIDE));
    for (int i = 0; i < 40; i++) {
        int32_t length = set.offsets[i + 1] - set.offsets[i];
        const int32_t offsets[2] = {0, length};
        float sum = 0;
        for (int j = 0; j < DIMS; j++) {
            assert_true(isfinite(vectors[i * STRIDE + j]));
            sum += vectors[i * STRIDE + j] * vectors[i * STRIDE + j];
        }
        /* empty, or nothing left after the skip: zeros */
        assert_true(length <= set.skip[i] ? sum == 0.0f : fabsf(sum - 1.0f) < 1e-5f);
        FOLDER_OK(mstar_encoder_embed_ids(encoder, set.ids + set.offsets[i],
                                          set.types + set.offsets[i], offsets, 1, set.skip + i, one,
                                          DIMS));
        assert_memory_equal(one, vectors + i * STRIDE, DIMS * sizeof(float));
        FOLDER_OK(mstar_encoder_hidden(encoder, set.ids + set.offsets[i],
                                       set.types + set.offsets[i], offsets, 1, few, DIMS));
        for (int32_t j = 0; j < length; j++)
            assert_memory_equal(few + j * DIMS, hidden + (set.offsets[i] + j) * STRIDE,
                                DIMS * sizeof(float));
        for (int j = DIMS; j < STRIDE; j++)
            assert_true(isnan(vectors[i * STRIDE + j]));
    }
    for (int32_t i = 0; i < tokens; i++) {
        for (int j = 0; j < STRIDE; j++)
            assert_int_equal(isnan(hidden[i * STRIDE + j]) != 0, j >= DIMS);
    }
    assert_true(isnan(vectors[40 * STRIDE]));
    assert_true(isnan(hidden[tokens * STRIDE]));
    /* type ids NULL is all 0; skip NULL is none */
    static int32_t zeros[2000];
    static float again[40 * STRIDE];
    FOLDER_OK(mstar_encoder_embed_ids(encoder, set.ids, NULL, set.offsets, 40, NULL, few, STRIDE));
    FOLDER_OK(
        mstar_encoder_embed_ids(encoder, set.ids, zeros, set.offsets, 40, zeros, again, STRIDE));
    for (int i = 0; i < 40; i++)
        assert_memory_equal(few + i * STRIDE, again + i * STRIDE, DIMS * sizeof(float));
    mstar_encoder_release(encoder);
}

/* Workers hold what a batch needs: nothing is asked for once every one of them has met its share.
 */
static void test_steady_state(void **state)
{
    fixture *f = *state;
    static id_set set;
    static float vectors[40 * DIMS], hidden[2000 * DIMS];
    make_ids(&set);
    for (int32_t threads = 1; threads <= 3; threads++) {
        mstar_device *device = open_device(threads);
        mstar_encoder *encoder = load(device, f->folder, NULL);
        mstar_memory_info info = {.struct_size = sizeof info};
        uint64_t made = 0;
        int quiet = 0;
        for (int call = 0; call < 400 && quiet < 5; call++) {
            FOLDER_OK(mstar_encoder_embed_ids(encoder, set.ids, set.types, set.offsets, 40,
                                              set.skip, vectors, DIMS));
            FOLDER_OK(
                mstar_encoder_hidden(encoder, set.ids, set.types, set.offsets, 40, hidden, DIMS));
            FOLDER_OK(mstar_memory_query(&info));
            quiet = info.total_allocations == made ? quiet + 1 : 0;
            made = info.total_allocations;
        }
        assert_int_equal(quiet, 5);
        mstar_encoder_release(encoder);
        FOLDER_OK(mstar_device_close(device));
    }
}

static void test_bad_ids(void **state)
{
    fixture *f = *state;
    mstar_encoder *encoder = load(f->device, f->folder, NULL);
    const int32_t good[4] = {2, 7, 8, 3};
    const int32_t offsets[3] = {0, 2, 4};
    float out[4 * DIMS], before[4 * DIMS];
    memset(out, 0xff, sizeof out);
    memset(before, 0xff, sizeof before);
    static const struct {
        int32_t ids[4], types[4], offsets[3], skip[2];
        const char *piece;
    } bad[] = {
        {{2, 60, 8, 3}, {0}, {0, 2, 4}, {0}, "ids[1] is 60; it must be from 0 to 59"},
        {{2, 7, 8, -1}, {0}, {0, 2, 4}, {0}, "ids[3] is -1"},
        {{2, 7, 8, 3}, {0, 0, 2, 0}, {0, 2, 4}, {0}, "type_ids[2] is 2; it must be from 0 to 1"},
        {{2, 7, 8, 3}, {0, -1, 0, 0}, {0, 2, 4}, {0}, "type_ids[1] is -1"},
        {{2, 7, 8, 3}, {0}, {1, 2, 4}, {0}, "cu_seqlens[0] is 1"},
        {{2, 7, 8, 3}, {0}, {0, 3, 2}, {0}, "cu_seqlens[2] is 2, below cu_seqlens[1] = 3"},
        {{2, 7, 8, 3}, {0}, {0, INT32_MAX, 4}, {0}, "max_tokens is 40"},
        {{2, 7, 8, 3}, {0}, {0, -5, 4}, {0}, "cu_seqlens[1] is -5"},
        {{2, 7, 8, 3}, {0}, {0, INT32_MIN, 4}, {0}, "cu_seqlens[1] is -2147483648"},
        {{2, 7, 8, 3}, {0}, {0, 2, 4}, {0, -1}, "skip[1] is -1"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        FOLDER_FAILS(mstar_encoder_embed_ids(encoder, bad[i].ids, bad[i].types, bad[i].offsets, 2,
                                             bad[i].skip, out, DIMS),
                     MSTAR_INVALID_ARGUMENT, bad[i].piece);
#define REFUSED(call, piece) FOLDER_FAILS(call, MSTAR_INVALID_ARGUMENT, piece)
    REFUSED(mstar_encoder_embed_ids(NULL, good, NULL, offsets, 2, NULL, out, DIMS), "encoder");
    REFUSED(mstar_encoder_embed_ids(encoder, NULL, NULL, offsets, 2, NULL, out, DIMS), "ids");
    REFUSED(mstar_encoder_embed_ids(encoder, good, NULL, NULL, 2, NULL, out, DIMS), "cu_seqlens");
    REFUSED(mstar_encoder_embed_ids(encoder, good, NULL, offsets, -1, NULL, out, DIMS),
            "num_segments is -1");
    REFUSED(mstar_encoder_embed_ids(encoder, good, NULL, offsets, 2, NULL, NULL, DIMS), "vectors");
    REFUSED(mstar_encoder_embed_ids(encoder, good, NULL, offsets, 2, NULL, out, DIMS - 1),
            "row_stride is 31; it must be from 32");
    REFUSED(mstar_encoder_hidden(encoder, good, NULL, offsets, 2, NULL, DIMS), "out");
    REFUSED(mstar_encoder_hidden(encoder, good, NULL, offsets, 2, out, DIMS - 1), "row_stride");
    REFUSED(mstar_encoder_hidden(NULL, good, NULL, offsets, 2, out, DIMS), "encoder");
#undef REFUSED
    assert_memory_equal(out, before, sizeof out);
    FOLDER_OK(mstar_encoder_embed_ids(encoder, NULL, NULL, NULL, 0, NULL, NULL, DIMS));
    FOLDER_OK(mstar_encoder_hidden(encoder, NULL, NULL, NULL, 0, NULL, DIMS));
    FOLDER_OK(mstar_encoder_embed_ids(encoder, good, NULL, offsets, 2, NULL, out, DIMS));
    assert_memory_equal(out + 2 * DIMS, before, 2 * DIMS * sizeof(float));
    mstar_encoder_release(encoder);
}

/* ---- texts ----------------------------------------------------------------------------------- */

static void test_texts(void **state)
{
    fixture *f = *state;
    mstar_encoder *encoder = load(f->device, f->folder, NULL);
    text_set *set = make_texts(5);
    static float vectors[NUM_TEXTS * STRIDE + 1], before[NUM_TEXTS * STRIDE + 1];
    mstar_text_result results[NUM_TEXTS + 1];
    memset(results, 0x77, sizeof results);
    memset(vectors, 0xff, sizeof vectors);
    memset(before, 0xff, sizeof before);
#define REFUSED(call, piece) FOLDER_FAILS(call, MSTAR_INVALID_ARGUMENT, piece)
    REFUSED(mstar_encoder_embed(NULL, set->texts, 1, vectors, DIMS, NULL), "encoder");
    REFUSED(mstar_encoder_embed(encoder, NULL, 1, vectors, DIMS, NULL), "texts");
    REFUSED(mstar_encoder_embed(encoder, set->texts, -1, vectors, DIMS, NULL), "count is -1");
    REFUSED(mstar_encoder_embed(encoder, set->texts, 1, NULL, DIMS, NULL), "vectors");
    REFUSED(mstar_encoder_embed(encoder, set->texts, 1, vectors, 31, NULL), "row_stride is 31");
    mstar_text saved = set->texts[70];
    set->texts[70] = (mstar_text){NULL, 3};
    set->texts[100] = (mstar_text){NULL, 4};
    REFUSED(mstar_encoder_embed(encoder, set->texts, NUM_TEXTS, vectors, STRIDE, results),
            "texts[70]: data is NULL and bytes is 3");
#undef REFUSED
    assert_memory_equal(vectors, before, sizeof vectors);
    set->texts[70] = saved;
    set->texts[100] = (mstar_text){NULL, 0}; /* empty is fine */
    FOLDER_OK(mstar_encoder_embed(encoder, NULL, 0, NULL, DIMS, NULL));
    FOLDER_OK(mstar_encoder_embed(encoder, set->texts, NUM_TEXTS, vectors, STRIDE, results));
    int cut = 0;
    for (int i = 0; i < NUM_TEXTS; i++) {
        assert_in_range(results[i].tokens, 2, 40);
        assert_true(results[i].untruncated_tokens >= results[i].tokens);
        assert_true(results[i].untruncated_tokens == results[i].tokens || results[i].tokens == 40);
        cut += results[i].untruncated_tokens > results[i].tokens;
        if (set->texts[i].bytes == 0)
            assert_int_equal(results[i].tokens, 2);
        for (int j = 0; j < STRIDE; j++)
            assert_int_equal(isnan(vectors[i * STRIDE + j]) != 0, j >= DIMS);
    }
    assert_true(cut > 3);
    assert_int_equal(results[NUM_TEXTS].tokens, 0x7777777777777777);
    assert_true(isnan(vectors[NUM_TEXTS * STRIDE]));

    mstar_encoder_release(encoder);
    free(set);
}

static void test_truncation(void **state)
{
    fixture *f = *state;
    const mstar_text texts[3] = {{"a b c d e f g h", 15}, {"a", 1}, {"", 0}};
    const mstar_text kept[2] = {{"a b c", 5}, {"f g h", 5}};
    mstar_text_result results[3];
    float out[3 * DIMS], want[DIMS];
    for (int truncate = 0; truncate < 2; truncate++) {
        mstar_encoder_desc desc = defaults();
        desc.max_tokens = 5;
        desc.truncate = (mstar_truncate)truncate;
        mstar_encoder *encoder = load(f->device, f->folder, &desc);
        assert_string_equal(query(encoder).max_tokens_source, "caller");
        FOLDER_OK(mstar_encoder_embed(encoder, texts, 3, out, DIMS, results));
        assert_int_equal(results[0].tokens, 5);
        assert_int_equal(results[0].untruncated_tokens, 10);
        assert_int_equal(results[1].tokens, 3);
        assert_int_equal(results[2].tokens, 2);
        FOLDER_OK(mstar_encoder_embed(encoder, &kept[truncate], 1, want, DIMS, NULL));
        assert_memory_equal(out, want, sizeof want);
        mstar_encoder_release(encoder);
    }
    mstar_encoder_desc desc = defaults();
    desc.max_tokens = 5;
    desc.truncate = MSTAR_TRUNCATE_ERROR;
    mstar_encoder *encoder = load(f->device, f->folder, &desc);
    memset(out, 0xff, sizeof out);
    FOLDER_FAILS(mstar_encoder_embed(encoder, texts, 3, out, DIMS, results), MSTAR_INVALID_ARGUMENT,
                 "texts[0]: ");
    assert_non_null(strstr(mstar_last_error(), "10"));
    for (int i = 0; i < 3 * DIMS; i++)
        assert_true(isnan(out[i]));
    FOLDER_OK(mstar_encoder_embed(encoder, texts + 1, 2, out, DIMS, results));
    mstar_encoder_release(encoder);
}

static void test_prompts(void **state)
{
    fixture *f = *state;
    folder_text(f->folder, "config_sentence_transformers.json",
                "{\"prompts\":{\"query\":\"a b: \"},\"default_prompt_name\":null}");
    mstar_encoder_desc desc = defaults();
    const mstar_text bare[2] = {{"hello", 5}, {"", 0}};
    const mstar_text full[2] = {{"a b: hello", 10}, {"a b: ", 5}};
    float got[2 * DIMS], want[2 * DIMS];
    mstar_text_result results[2];
    mstar_encoder *plain = load(f->device, f->folder, NULL);
    FOLDER_OK(mstar_encoder_embed(plain, full, 2, want, DIMS, NULL));
    desc.prompt_name = "query";
    mstar_encoder *prompted = load(f->device, f->folder, &desc);
    assert_string_equal(query(prompted).prompt, "a b: ");
    FOLDER_OK(mstar_encoder_embed(prompted, bare, 2, got, DIMS, results));
    assert_memory_equal(got, want, sizeof want);
    assert_int_equal(results[0].tokens, 6); /* [CLS] a b [UNK] hello [SEP] */
    mstar_encoder_release(prompted);

    /* the prompt's tokens, [CLS] with them, stay out of every mode but cls */
    folder_text(f->folder, "1_Pooling/config.json",
                "{\"pooling_mode\":\"mean\",\"include_prompt\":false}");
    prompted = load(f->device, f->folder, &desc);
    FOLDER_OK(mstar_encoder_embed(prompted, bare, 2, got, DIMS, results));
    mstar_tokens tokens;
    mstar_tokens_init(&tokens);
    for (int i = 0; i < 2; i++) {
        const int32_t skip = 4;
        FOLDER_OK(mstar_tokenizer_encode(mstar_encoder_get_tokenizer(plain), NULL, &full[i], NULL,
                                         &tokens));
        const int32_t offsets[2] = {0, (int32_t)tokens.count};
        FOLDER_OK(mstar_encoder_embed_ids(plain, tokens.ids, NULL, offsets, 1, &skip,
                                          want + i * DIMS, DIMS));
    }
    assert_memory_equal(got, want, sizeof want);
    mstar_encoder_release(prompted);
    desc.pooling = MSTAR_POOLING_CLS;
    prompted = load(f->device, f->folder, &desc);
    FOLDER_OK(mstar_encoder_embed(prompted, bare, 2, got, DIMS, NULL));
    desc.prompt_name = NULL;
    mstar_encoder *cls = load(f->device, f->folder, &desc);
    FOLDER_OK(mstar_encoder_embed(cls, full, 2, want, DIMS, NULL));
    assert_memory_equal(got, want, sizeof want);
    mstar_tokens_release(&tokens);
    mstar_encoder_release(cls);
    mstar_encoder_release(prompted);
    mstar_encoder_release(plain);
}

/* ---- lowercase ------------------------------------------------------------------------------- */

#define FFFD "\xef\xbf\xbd"

static void test_lowercase(void **state)
{
    (void)state;
    static const struct {
        const char *text, *wanted;
    } cases[] = {
        {"", ""},
        {"Hello [SEP] 1", "hello [sep] 1"},
        {"\xc3\x84\xc3\x9f", "\xc3\xa4\xc3\x9f"},     /* umlaut; sharp s stays */
        {"\xc4\xb0", "i\xcc\x87"},                    /* I with dot: two code points */
        {"\xc8\xba", "\xe2\xb1\xa5"},                 /* 2 bytes become 3 */
        {"\xce\x91\xce\xa3", "\xce\xb1\xcf\x82"},     /* sigma at the end of a word */
        {"\xce\xa3", "\xcf\x83"},                     /* and alone */
        {"\xce\xa3\xce\x91", "\xcf\x83\xce\xb1"},     /* and at its start */
        {"\xce\x91.\xce\xa3.", "\xce\xb1.\xcf\x82."}, /* '.' is set aside */
        {"\xce\x91\xce\xa3.\xce\x91", "\xce\xb1\xcf\x83.\xce\xb1"},
        {"\xce\x91 \xce\xa3", "\xce\xb1 \xcf\x83"},
        {"\xce\x91\xce\xa3\xcc\x81", "\xce\xb1\xcf\x82\xcc\x81"}, /* so is an accent */
        /* what is not UTF-8 is read as U+FFFD, one for each maximal part */
        {"A\xff\xc3Z\xed\xa0\x80", "a" FFFD FFFD "z" FFFD FFFD FFFD},
        {"\xff\xce\xa3", FFFD "\xcf\x83"},
        {"\xce\x91\xce\xa3\xff", "\xce\xb1\xcf\x82" FFFD},
    };
    void *out = NULL;
    int64_t capacity = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t bytes = strlen(cases[i].text);
        size_t got;
        char *exact = malloc(bytes + 1); /* no terminator: nothing behind it may be read */
        assert_non_null(exact);
        memcpy(exact, cases[i].text, bytes);
        FOLDER_OK(mst_lowercase(exact, bytes, &out, &capacity, &got));
        free(exact);
        if (got != strlen(cases[i].wanted) || memcmp(out, cases[i].wanted, got) != 0)
            print_error("case %zu\n", i);
        assert_int_equal(got, strlen(cases[i].wanted));
        assert_memory_equal(out, cases[i].wanted, got);
    }
    /* NUL is a character like any other */
    size_t got;
    FOLDER_OK(mst_lowercase("A\0B", 3, &out, &capacity, &got));
    assert_int_equal(got, 3);
    assert_memory_equal(out, "a\0b", 3);
    mst_free(out);
}

/* ---- failed allocations ---------------------------------------------------------------------- */

static int fail_at(void *context, uint64_t number, size_t bytes)
{
    (void)bytes;
    return number == *(uint64_t *)context;
}

static void test_failed_allocations(void **state)
{
    fixture *f = *state;
    text_set *set = make_texts(6);
    mstar_encoder *encoder = NULL;
    uint64_t live = folder_live();
    uint64_t number = 0;
    mstar_status status;
    mstar_device *device = open_device(1); /* one thread: the numbers repeat */
    uint64_t live_device = folder_live();
    mstar_encoder_desc desc = defaults();
    desc.dtype = MSTAR_DTYPE_BF16;
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
    float *wanted = embed(encoder, set->texts, NUM_TEXTS);
    mstar_encoder_release(encoder);

    /* a call that fails anywhere can be made again */
    float *got = calloc(NUM_TEXTS * DIMS, sizeof *got);
    assert_non_null(got);
    uint64_t last = 0;
    for (number = 1; number < 5000; number++) {
        encoder = load(device, f->folder, &desc);
        mstar_set_alloc_fault(fail_at, &number);
        status = mstar_encoder_embed(encoder, set->texts, NUM_TEXTS, got, DIMS, NULL);
        mstar_set_alloc_fault(NULL, NULL);
        if (status != MSTAR_OK) {
            assert_int_equal(status, MSTAR_OUT_OF_MEMORY);
            memset(got, 0xff, NUM_TEXTS * DIMS * sizeof *got);
            FOLDER_OK(mstar_encoder_embed(encoder, set->texts, NUM_TEXTS, got, DIMS, NULL));
            last = number;
        }
        assert_memory_equal(got, wanted, NUM_TEXTS * DIMS * sizeof *got);
        mstar_encoder_release(encoder);
        if (status == MSTAR_OK)
            break;
    }
    assert_int_equal(status, MSTAR_OK);
    assert_true(last > 5);
    FOLDER_OK(mstar_device_close(device));
    assert_int_equal(folder_live(), live);
    free(got);
    free(wanted);
    free(set);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_info),
        TEST(test_arena_is_told_before_the_first_batch),
        TEST(test_bad_arguments),
        TEST(test_damaged_weights),
        TEST(test_layout_of_the_file),
        TEST(test_bits_f32),
        TEST(test_bits_bf16),
        TEST(test_bits_with_modules),
        TEST(test_ids),
        TEST(test_steady_state),
        TEST(test_bad_ids),
        TEST(test_texts),
        TEST(test_truncation),
        TEST(test_prompts),
        cmocka_unit_test(test_lowercase),
        TEST(test_failed_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
