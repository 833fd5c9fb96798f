/* test_encoder_bits.c - a text's bits are its own: alone, in any batch, on any threads, again. */
#include "support_card.h"
#include "support_encoder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- bits ------------------------------------------------------------------------------------ */

static void backwards(void *host, int32_t num_tasks, mstar_parallel_task task, void *context)
{
    (void)host;
    for (int32_t i = num_tasks - 1; i >= 0; i--)
        task(context, i);
}

/* Each text alone = in any batch = in any order = on any number of threads = again. */
static void compare_texts(const char *folder, mstar_dtype dtype)
{
    text_set *set = encoder_texts(4);
    mstar_device *device = encoder_device(1);
    mstar_encoder_desc desc = encoder_defaults();
    desc.dtype = dtype;
    mstar_encoder *encoder = encoder_load(device, folder, &desc);
    int64_t dims = encoder_query(encoder).dims;
    size_t row = (size_t)dims * sizeof(float);
    float *wanted = malloc(NUM_TEXTS * row);
    assert_non_null(wanted);
    for (int i = 0; i < NUM_TEXTS; i++) {
        float *alone = encoder_embed(encoder, &set->texts[i], 1);
        memcpy(wanted + i * dims, alone, row);
        free(alone);
    }
    mstar_encoder_release(encoder);
    level_close(device);
    const int32_t most_threads = level_is_card() ? 1 : 5; /* a GPU computes with none of them */
    for (int32_t threads = 1; threads <= most_threads; threads++) {
        static const int32_t batch_tokens[] = {-1, 40, 57, 300};
        if (threads == 5) {
            mstar_device_desc device_desc;
            mstar_device_desc_init(&device_desc);
            device_desc.num_threads = 3;
            device_desc.parallel_for = backwards;
            FOLDER_OK(mstar_device_open("cpu", &device_desc, &device));
        } else {
            device = encoder_device(threads);
        }
        for (size_t i = 0; i < sizeof batch_tokens / sizeof batch_tokens[0]; i++) {
            desc.max_batch_tokens = batch_tokens[i];
            encoder = encoder_load(device, folder, &desc);
            for (int again = 0; again < 2; again++) {
                float *got = encoder_embed(encoder, set->texts, NUM_TEXTS);
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
            float *got = encoder_embed(encoder, picked, count);
            for (int64_t j = 0; j < count; j++)
                assert_memory_equal(got + j * dims, wanted + chosen[j] * dims, row);
            free(got);
            mstar_encoder_release(encoder);
        }
        level_close(device);
    }
    free(wanted);
    free(set);
}

static void test_bits_f32(void **state)
{
    compare_texts(((encoder_fixture *)*state)->folder, MSTAR_DTYPE_F32);
}

static void test_bits_bf16(void **state)
{
    compare_texts(((encoder_fixture *)*state)->folder, MSTAR_DTYPE_BF16);
}

static void test_bits_with_modules(void **state)
{
    encoder_fixture *f = *state;
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
    compare_texts(f->folder, MSTAR_DTYPE_F32);
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

/* Where tensors lie in the file, and what the names begin with, changes no bit. */
static void test_layout_of_the_file(void **state)
{
    encoder_fixture *f = *state;
    static const char *const prefixes[] = {"", "bert.", "", ""};
    static const size_t aligns[] = {8, 8, 1, 3};
    static const mstar_dtype dtypes[] = {MSTAR_DTYPE_F32, MSTAR_DTYPE_BF16};
    text_set *set = encoder_texts(3);
    float *wanted[2] = {NULL, NULL};
    for (int i = 0; i < 4; i++) {
        tiny_model model = tiny_model_default;
        model.prefix = prefixes[i];
        model.align = aligns[i];
        char *other = folder_make();
        tiny_model_write(other, &model);
        for (int j = 0; j < 2; j++) {
            mstar_encoder_desc desc = encoder_defaults();
            desc.dtype = dtypes[j];
            mstar_encoder *encoder = encoder_load(f->device, other, &desc);
            float *got = encoder_embed(encoder, set->texts, NUM_TEXTS);
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

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ENCODER_TEST(test_bits_f32),
        ENCODER_TEST(test_bits_bf16),
        ENCODER_TEST(test_bits_with_modules),
        ENCODER_TEST(test_layout_of_the_file),
    };
    level_choose(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
