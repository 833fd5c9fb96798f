/*
 * test_faults_encoder.c - cases K23, K24 and K26 of the known faults: vectors that depend on the
 * batch, pooling, and texts that are too long, empty or out of order. On the tiny model, and on the
 * model of MSTAR_TEST_MODEL where there is one.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support_card.h"
#include "support_encoder.h"
#include "support_faults.h"

/* ---- models ---------------------------------------------------------------------------------- */

typedef struct folders {
    char *tiny;
    const char *real; /* NULL where there is none */
} folders;

static folders open_folders(void)
{
    const char *real = getenv("MSTAR_TEST_MODEL");
    return (folders){folder_tiny(), real != NULL && real[0] != '\0' ? real : NULL};
}

/* A tiny model with room for long texts. */
static char *long_model(int32_t positions)
{
    tiny_model model = tiny_model_default;
    char *folder = folder_make();
    model.positions = positions;
    model.layers = 1;
    model.heads = 1;
    model.hidden = 8;
    model.intermediate = 8;
    tiny_model_write(folder, &model);
    return folder;
}

/* A text of so many tokens, [CLS] and [SEP] among them; the caller frees it. */
static mstar_text text_of_tokens(int64_t tokens)
{
    size_t bytes = tokens > 2 ? 2 * (size_t)(tokens - 2) - 1 : 0;
    char *text = malloc(bytes + 2);
    assert_non_null(text);
    for (size_t i = 0; i <= bytes; i++)
        text[i] = i % 2 == 0 ? 'a' : ' ';
    return (mstar_text){text, bytes};
}

static mstar_text text_of_json(const json_t *value)
{
    return (mstar_text){json_string_value(value), json_string_length(value)};
}

/* ---- K23: vectors and the batch -------------------------------------------------------------- */

/* Calls of every batch size, in batches of few and many tokens, on one thread and three: the bits
 * of each text alone. */
static void check_batches(const char *folder, const mstar_text *texts, int64_t count,
                          const int64_t *sizes, int64_t num_sizes, int32_t pooling)
{
    mstar_encoder_desc desc = encoder_defaults();
    float *alone = NULL;
    int64_t dims = 0;
    desc.pooling = pooling;
    for (int32_t threads = 1; threads <= 3; threads += 2) {
        mstar_device *device = encoder_device(threads);
        for (int wide = 0; wide <= 1; wide++) {
            desc.max_batch_tokens = wide ? 4096 : -1;
            mstar_encoder *encoder = encoder_load(device, folder, &desc);
            if (alone == NULL) {
                dims = encoder_query(encoder).dims;
                alone = malloc((size_t)(count * dims) * sizeof *alone);
                assert_non_null(alone);
                for (int64_t i = 0; i < count; i++) {
                    float *one = encoder_embed(encoder, &texts[i], 1);
                    memcpy(alone + i * dims, one, (size_t)dims * sizeof *one);
                    free(one);
                }
            }
            for (int64_t s = 0; s < num_sizes; s++)
                for (int64_t i = 0; i < count; i += sizes[s]) {
                    int64_t n = mst_min_i64(sizes[s], count - i);
                    float *got = encoder_embed(encoder, texts + i, n);
                    assert_memory_equal(got, alone + i * dims, (size_t)(n * dims) * sizeof *got);
                    free(got);
                }
            mstar_encoder_release(encoder);
        }
        level_close(device);
    }
    free(alone);
}

static void check_models(const mstar_text *texts, int64_t count, const int64_t *sizes,
                         int64_t num_sizes, int32_t pooling)
{
    folders f = open_folders();
    check_batches(f.tiny, texts, count, sizes, num_sizes, pooling);
    if (f.real != NULL)
        check_batches(f.real, texts, count, sizes, num_sizes, pooling);
    folder_remove(f.tiny);
}

static void texts_alone_and_in_batches(void **state)
{
    fault_case *c = *state;
    const json_t *list = fault_get(c, "texts");
    int64_t sizes[8];
    mstar_text texts[64];
    int64_t count = (int64_t)json_array_size(list);
    int64_t num_sizes = fault_list(c, "batch", sizes, 8);
    fault_outcome(c, "bitwise_equal");
    assert_true(count > 0 && count <= 64);
    for (int64_t i = 0; i < count; i++)
        texts[i] = text_of_json(json_array_get(list, (size_t)i));
    check_models(texts, count, sizes, num_sizes, -1);
}

static void hundred_random_texts(void **state)
{
    static const char *const words[] = {"river", "old",   "a",     "house", "quickly",
                                        "7",     "hello", "world", "rain",  "unbelievable",
                                        "of",    "Stone", "query"};
    fault_case *c = *state;
    int64_t sizes[8];
    mstar_text texts[100];
    char *bytes = malloc(100 * 200);
    test_random random = {213};
    assert_non_null(bytes);
    fault_says(c, "texts", "100 random 10-word texts");
    int64_t num_sizes = fault_list(c, "batch", sizes, 8);
    for (int i = 0; i < 100; i++) {
        char *text = bytes + 200 * i;
        size_t used = 0;
        for (int word = 0; word < 10; word++)
            used += (size_t)snprintf(text + used, 200 - used, "%s%s", word > 0 ? " " : "",
                                     words[test_random_between(&random, 0, 12)]);
        texts[i] = (mstar_text){text, used};
    }
    check_models(texts, 100, sizes, num_sizes, -1);
    free(bytes);
}

/* The families here are not causal: the encoder pools the last token of its own attention, and
 * causal attention before the same pooling is checked on the operations. */
static void last_token(void **state)
{
    fault_case *c = *state;
    const json_t *list = fault_get(c, "texts");
    int64_t sizes[4];
    mstar_text texts[2];
    int64_t lens[2];
    int64_t num_sizes = fault_list(c, "batch", sizes, 4);
    fault_says(c, "pool", "last");
    assert_true(fault_flag(c, "causal"));
    for (int i = 0; i < 2; i++) {
        texts[i] = text_of_json(json_array_get(list, (size_t)i));
        lens[i] = (int64_t)(texts[i].bytes + 1) / 2; /* letters */
    }
    check_models(texts, 2, sizes, num_sizes, MSTAR_POOLING_LAST);
    attn_isas levels;
    attn_isas_open(&levels, 2);
    for (int32_t isa = 0; isa < levels.count; isa++) {
        attn_problem problem;
        attn_data whole;
        attn_data alone;
        mstar_stream *stream = NULL;
        float pooled[2][2 * 16];
        attn_problem_init(&problem);
        fault_lengths(&problem, lens, lens, 2);
        problem.causal = 1;
        problem.head_dim = 16;
        attn_data_make(&problem, &whole);
        attn_data_make(&problem, &alone);
        attn_problem_run(&problem, levels.device[isa], NULL, &whole);
        for (int64_t i = 0; i < 2; i++)
            attn_problem_run_part(&problem, levels.device[isa], NULL, &whole, &alone, i, i + 1);
        CHECK_OK(mstar_stream_create(levels.device[isa], -1, &stream));
        for (int i = 0; i < 2; i++) {
            const int64_t in_shape[] = {attn_problem_tokens(&problem), 16};
            const int64_t out_shape[] = {2, 16};
            mstar_tensor x = mstar_tensor_make((i == 0 ? &whole : &alone)->out.tensor.data,
                                               MSTAR_DTYPE_F32, 2, in_shape);
            mstar_tensor out = mstar_tensor_make(pooled[i], MSTAR_DTYPE_F32, 2, out_shape);
            CHECK_OK(
                card_pooling_run(stream, MSTAR_POOLING_LAST, &x, problem.q_offsets, 2, NULL, &out));
        }
        assert_memory_equal(pooled[0], pooled[1], sizeof pooled[0]);
        mstar_stream_destroy(stream);
        attn_data_free(&whole);
        attn_data_free(&alone);
    }
    attn_isas_close(&levels);
}

/* ---- K24: pooling and lengths ---------------------------------------------------------------- */

/* Pools hidden[t] = t + first over these lengths on each level; out has one number a segment. */
static void pool_counting(mstar_pooling mode, const int64_t *lens, int64_t count, float first,
                          const double *want)
{
    static const char *const levels[] = CHECK_ISAS;
    for (int level = 0; level < CHECK_NUM_ISAS; level++) {
        float hidden[64];
        float out[8];
        int32_t offsets[9] = {0};
        mstar_stream *stream = NULL;
        mstar_device *device = check_open(levels[level], 2);
        if (device == NULL)
            continue;
        for (int64_t i = 0; i < count; i++)
            offsets[i + 1] = offsets[i] + (int32_t)lens[i];
        for (int t = 0; t < 64; t++)
            hidden[t] = (float)t + first;
        const int64_t in_shape[] = {offsets[count], 1};
        const int64_t out_shape[] = {count, 1};
        mstar_tensor x = mstar_tensor_make(hidden, MSTAR_DTYPE_F32, 2, in_shape);
        mstar_tensor pooled = mstar_tensor_make(out, MSTAR_DTYPE_F32, 2, out_shape);
        CHECK_OK(mstar_stream_create(device, -1, &stream));
        CHECK_OK(card_pooling_run(stream, mode, &x, offsets, count, NULL, &pooled));
        for (int64_t i = 0; i < count; i++)
            if (!((double)out[i] >= want[i] && (double)out[i] <= want[i]))
                fail_msg("%s: segment %d gives %g, want %g", levels[level], (int)i, (double)out[i],
                         want[i]);
        mstar_stream_destroy(stream);
        level_close(device);
    }
}

static void last_rows(void **state)
{
    static const double want[] = {2, 9, 10};
    fault_case *c = *state;
    int64_t lens[8];
    fault_says(c, "mode", "last");
    fault_says(c, "values", "hidden[t]=t");
    int64_t count = fault_list(c, "lens", lens, 8);
    assert_int_equal(count, 3);
    pool_counting(MSTAR_POOLING_LAST, lens, count, 0.0F, want);
}

static void means_of_rows(void **state)
{
    fault_case *c = *state;
    int64_t lens[8];
    double want[8];
    const json_t *out = fault_want(c, "out");
    bool from_one = strcmp(json_string_value(fault_get(c, "values")), "hidden[t]=t+1, d=1") == 0;
    if (!from_one)
        fault_says(c, "values", "hidden[t]=t, d=1");
    fault_says(c, "mode", "mean");
    assert_false(fault_flag(c, "normalise"));
    int64_t count = fault_list(c, "lens", lens, 8);
    assert_int_equal(count, json_array_size(out));
    for (int64_t i = 0; i < count; i++)
        want[i] = json_number_value(json_array_get(out, (size_t)i));
    pool_counting(MSTAR_POOLING_MEAN, lens, count, from_one ? 1.0F : 0.0F, want);
}

/* A row of zeros stays zeros, next to one that has a length, in every dtype. */
static void zeros_stay_zeros(void **state)
{
    static const char *const levels[] = CHECK_ISAS;
    fault_case *c = *state;
    const json_t *given = json_array_get(fault_get(c, "rows"), 0);
    const json_t *want = json_array_get(fault_want(c, "out"), 0);
    int64_t width = (int64_t)json_array_size(given);
    fault_says(c, "dtype", "f32");
    for (int level = 0; level < CHECK_NUM_ISAS; level++) {
        mstar_device *device = check_open(levels[level], 1);
        if (device == NULL)
            continue;
        for (int dtype = 0; dtype < 3; dtype++) {
            mstar_stream *stream = NULL;
            check_rows x = check_rows_make((mstar_dtype)dtype, 2, width, width + 3);
            for (int64_t i = 0; i < width; i++) {
                check_rows_set(&x, 0, i, json_number_value(json_array_get(given, (size_t)i)));
                check_rows_set(&x, 1, i, 2.0);
            }
            CHECK_OK(mstar_stream_create(device, -1, &stream));
            CHECK_OK(card_normalize(stream, &x.tensor, &x.tensor));
            for (int64_t i = 0; i < width; i++) {
                double number = json_number_value(json_array_get(want, (size_t)i));
                double got = (double)check_rows_get(&x, 0, i);
                assert_true(got >= number && got <= number);
                assert_true(check_near((double)check_rows_get(&x, 1, i), 0.5,
                                       check_rounding((mstar_dtype)dtype, 0.5) + check_gamma(8)));
            }
            mstar_stream_destroy(stream);
            check_rows_free(&x);
        }
        level_close(device);
    }
}

/* ---- K26: limits and order ------------------------------------------------------------------- */

static int64_t max_rows(fault_case *c)
{
    return json_integer_value(json_object_get(fault_get(c, "limits"), "max_rows"));
}

/* Texts over the limit are refused, naming length and bound, with nothing written; the next call,
 * and the texts under it, are served. */
static void too_long_is_refused(void **state)
{
    fault_case *c = *state;
    int64_t tokens[4];
    int64_t limit = max_rows(c);
    int64_t count = fault_list(c, "tokens", tokens, 4);
    char *folder = long_model((int32_t)limit);
    mstar_device *device = encoder_device(2);
    mstar_encoder_desc desc = encoder_defaults();
    mstar_text texts[4];
    float vectors[4 * 8];
    float untouched[4 * 8];
    char length[64];
    char bound[64];
    fault_outcome(c, "status");
    desc.truncate = MSTAR_TRUNCATE_ERROR;
    mstar_encoder *encoder = encoder_load(device, folder, &desc);
    for (int64_t i = 0; i < count; i++)
        texts[i] = text_of_tokens(tokens[i]);
    snprintf(length, sizeof length, "%lld", (long long)tokens[0]);
    snprintf(bound, sizeof bound, "%lld", (long long)limit);
    assert_true(tokens[0] > limit);
    memset(vectors, 0xA5, sizeof vectors);
    memcpy(untouched, vectors, sizeof vectors);
    for (int again = 0; again < 2; again++) {
        FOLDER_FAILS(mstar_encoder_embed(encoder, texts, count, vectors, 8, NULL),
                     MSTAR_INVALID_ARGUMENT, length);
        assert_non_null(strstr(mstar_last_error(), bound));
        assert_memory_equal(vectors, untouched, sizeof vectors);
        /* the others, and a text of the very limit */
        mstar_text whole = text_of_tokens(limit);
        for (int64_t i = 1; i < count; i++)
            free(encoder_embed(encoder, &texts[i], 1));
        free(encoder_embed(encoder, &whole, 1));
        free((void *)(uintptr_t)whole.data);
    }
    for (int64_t i = 0; i < count; i++)
        free((void *)(uintptr_t)texts[i].data);
    mstar_encoder_release(encoder);
    level_close(device);
    folder_remove(folder);
}

/* Texts up to the limit are served, alone and together, whatever a batch holds by default. */
static void long_texts_are_served(void **state)
{
    fault_case *c = *state;
    int64_t tokens[4];
    int64_t limit = max_rows(c);
    int64_t count = fault_list(c, "tokens", tokens, 4);
    char *folder = long_model((int32_t)limit);
    mstar_device *device = encoder_device(2);
    mstar_encoder *encoder = encoder_load(device, folder, NULL);
    mstar_text texts[4];
    mstar_text_result results[4];
    float vectors[4 * 8];
    fault_outcome(c, "ok");
    for (int64_t i = 0; i < count; i++)
        texts[i] = text_of_tokens(tokens[i]);
    FOLDER_OK(mstar_encoder_embed(encoder, texts, count, vectors, 8, results));
    for (int64_t i = 0; i < count; i++) {
        assert_int_equal(results[i].tokens, tokens[i]);
        assert_int_equal(results[i].untruncated_tokens, tokens[i]);
        float *alone = encoder_embed(encoder, &texts[i], 1);
        assert_memory_equal(alone, vectors + i * 8, 8 * sizeof *alone);
        free(alone);
        free((void *)(uintptr_t)texts[i].data);
    }
    mstar_encoder_release(encoder);
    level_close(device);
    folder_remove(folder);
}

/* A segment's number may be larger than the number of tokens. */
static void slot_beyond_the_tokens(void **state)
{
    fault_case *c = *state;
    int64_t tokens[2];
    int64_t slots = fault_integer(c, "slots");
    int64_t used = fault_integer(c, "use_slot");
    int64_t lens[8] = {0};
    double want[8] = {0};
    fault_list(c, "tokens", tokens, 2);
    lens[used] = tokens[0];
    want[used] = 1.0; /* hidden[0] of pool_counting */
    for (int mode = 0; mode <= MSTAR_POOLING_LAST; mode++)
        pool_counting((mstar_pooling)mode, lens, slots, 1.0F, want);
}

/* Texts that the tokenizer normalises to nothing have the vector of the empty text. */
static void texts_of_nothing(void **state)
{
    fault_case *c = *state;
    const json_t *list = fault_get(c, "texts");
    folders f = open_folders();
    const char *paths[] = {f.tiny, f.real};
    mstar_device *device = encoder_device(2);
    for (int i = 0; i < 2 && paths[i] != NULL; i++) {
        mstar_encoder *encoder = encoder_load(device, paths[i], NULL);
        size_t row = (size_t)encoder_query(encoder).dims * sizeof(float);
        const mstar_text empty = {"", 0};
        float *want = encoder_embed(encoder, &empty, 1);
        for (size_t t = 0; t < json_array_size(list); t++) {
            mstar_text text = text_of_json(json_array_get(list, t));
            assert_true(text.bytes > 0);
            float *got = encoder_embed(encoder, &text, 1);
            assert_memory_equal(got, want, row);
            free(got);
        }
        free(want);
        mstar_encoder_release(encoder);
    }
    level_close(device);
    folder_remove(f.tiny);
}

/* [CLS] and [SEP] survive the cut from both ends; less room than they need is refused. */
static void cut_keeps_special_tokens(void **state)
{
    fault_case *c = *state;
    char *folder = folder_tiny();
    mstar_tokenizer *tokenizer = NULL;
    mstar_tokens tokens;
    mstar_text text = text_of_tokens(fault_integer(c, "text_tokens") + 2);
    int64_t longest = fault_integer(c, "max_len");
    fault_outcome(c, "tokens_equal");
    FOLDER_OK(mstar_tokenizer_load(folder, &tokenizer));
    mstar_tokens_init(&tokens);
    int32_t cls = mstar_tokenizer_get_id(tokenizer, "[CLS]");
    int32_t sep = mstar_tokenizer_get_id(tokenizer, "[SEP]");
    for (int truncate = MSTAR_TRUNCATE_END; truncate <= MSTAR_TRUNCATE_START; truncate++)
        for (int64_t most = 0; most <= longest; most++) {
            mstar_tokenize_desc desc;
            mstar_tokenize_desc_init(&desc);
            desc.max_tokens = most;
            desc.truncate = (mstar_truncate)truncate;
            mstar_status status = mstar_tokenizer_encode(tokenizer, &desc, &text, NULL, &tokens);
            if (most < 2) {
                assert_int_equal(status, MSTAR_INVALID_ARGUMENT);
                assert_non_null(strstr(mstar_last_error(), "max_tokens"));
                continue;
            }
            FOLDER_OK(status);
            assert_int_equal(tokens.count, most);
            assert_int_equal(tokens.untruncated_count, 22);
            assert_int_equal(tokens.ids[0], cls);
            assert_int_equal(tokens.ids[most - 1], sep);
            for (int64_t i = 1; i < most - 1; i++)
                assert_int_equal(tokens.ids[i], mstar_tokenizer_get_id(tokenizer, "a"));
        }
    free((void *)(uintptr_t)text.data);
    mstar_tokens_release(&tokens);
    mstar_tokenizer_release(tokenizer);
    folder_remove(folder);
}

/* Texts of falling length (or a long one first, so that its batch ends last) over many workers: the
 * vectors stand in the order of the texts. */
static void check_order(int64_t count, int64_t longest, int64_t step, int32_t threads,
                        int32_t batch_tokens)
{
    char *folder = long_model(128);
    mstar_device *device = encoder_device(threads);
    mstar_encoder_desc desc = encoder_defaults();
    mstar_text texts[64];
    desc.max_batch_tokens = batch_tokens;
    mstar_encoder *encoder = encoder_load(device, folder, &desc);
    for (int64_t i = 0; i < count; i++)
        texts[i] = text_of_tokens(mst_max_i64(3, longest - step * i));
    for (int again = 0; again < 5; again++) {
        float *all = encoder_embed(encoder, texts, count);
        for (int64_t i = 0; i < count; i++) {
            float *alone = encoder_embed(encoder, &texts[i], 1);
            assert_memory_equal(all + i * 8, alone, 8 * sizeof *all);
            free(alone);
            if (i > 0 && texts[i].bytes != texts[i - 1].bytes)
                assert_memory_not_equal(all + i * 8, all + (i - 1) * 8, 8 * sizeof *all);
        }
        free(all);
    }
    for (int64_t i = 0; i < count; i++)
        free((void *)(uintptr_t)texts[i].data);
    mstar_encoder_release(encoder);
    level_close(device);
    folder_remove(folder);
}

static void order_of_the_texts(void **state)
{
    fault_case *c = *state;
    fault_outcome(c, "order_preserved");
    fault_says(c, "lengths", "descending");
    check_order(fault_integer(c, "texts"), 127, 1, (int32_t)fault_integer(c, "concurrency"), -1);
}

/* Batches of 128 tokens: the first holds the long text alone, later ones five short ones. */
static void order_over_batches(void **state)
{
    fault_case *c = *state;
    fault_outcome(c, "order_preserved");
    assert_true(fault_flag(c, "first_batch_slow"));
    int64_t batch = fault_integer(c, "batch");
    for (int32_t threads = 1; threads <= 2; threads++) {
        check_order(fault_integer(c, "texts"), 127, 25, threads, 128);
        check_order(fault_integer(c, "texts"), 128 / (int32_t)batch, 1, threads, 128);
    }
}

/* A weight that is NaN: text 1, which has the token, is NaN for the caller to see; text 0 is what
 * it is without. The program refuses such a vector. */
static void nan_stays_with_its_text(void **state)
{
    fault_case *c = *state;
    tiny_model model = tiny_model_default;
    char *folder = folder_tiny();
    mstar_device *device = encoder_device(2);
    const mstar_text texts[] = {{"hello", 5}, {"world", 5}};
    float vectors[2 * DIMS];
    float clean[2 * DIMS];
    fault_says(c, "inject", "NaN in hidden state of text 1");
    assert_int_equal(fault_integer(c, "texts"), 2);
    mstar_encoder *encoder = encoder_load(device, folder, NULL);
    FOLDER_OK(mstar_encoder_embed(encoder, texts, 2, clean, DIMS, NULL));
    int32_t id = mstar_tokenizer_get_id(mstar_encoder_get_tokenizer(encoder), "world");
    mstar_encoder_release(encoder);
    FILE *file = fopen(folder_path(folder, "model.safetensors"), "r+b");
    uint64_t header = 0;
    assert_non_null(file);
    assert_int_equal(fread(&header, 1, 8, file), 8);
    /* the word embeddings come first */
    long at = 8 + (long)header + (long)id * model.hidden * 4;
    const float nan_value = NAN;
    assert_int_equal(fseek(file, at, SEEK_SET), 0);
    assert_int_equal(fwrite(&nan_value, 4, 1, file), 1);
    assert_int_equal(fclose(file), 0);
    encoder = encoder_load(device, folder, NULL);
    FOLDER_OK(mstar_encoder_embed(encoder, texts, 2, vectors, DIMS, NULL));
    assert_memory_equal(vectors, clean, DIMS * sizeof *vectors);
    for (int i = 0; i < DIMS; i++)
        assert_true(isnan(vectors[DIMS + i]));
    mstar_encoder_release(encoder);
    level_close(device);
    folder_remove(folder);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        FAULT("BR-213", hundred_random_texts),
        FAULT("BR-215", texts_alone_and_in_batches),
        FAULT("BR-216", texts_alone_and_in_batches),
        FAULT("BR-219", texts_alone_and_in_batches),
        FAULT("BR-220", texts_alone_and_in_batches),
        FAULT("BR-222", last_rows),
        FAULT("BR-223", last_token),
        FAULT("BR-226", means_of_rows),
        FAULT("BR-227", means_of_rows),
        FAULT("BR-229", zeros_stay_zeros),
        FAULT("BR-237", too_long_is_refused),
        FAULT("BR-238", too_long_is_refused),
        FAULT("BR-239", long_texts_are_served),
        FAULT("BR-240", slot_beyond_the_tokens),
        FAULT("BR-244", texts_of_nothing),
        FAULT("BR-246", cut_keeps_special_tokens),
        FAULT("BR-247", order_of_the_texts),
        FAULT("BR-248", order_over_batches),
        FAULT("BR-249", nan_stays_with_its_text),
    };
    level_choose(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
