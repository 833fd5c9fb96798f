/* test_safetensors.c - checkpoints: what is read, and every way in which a file can lie. */
#include "support_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/encoder.h"

/* A file of this header and this many zero bytes of data; the header's length may be a lie. */
static unsigned char *make_file(const char *header, size_t data_bytes, int64_t lie, size_t *bytes)
{
    uint64_t length = strlen(header);
    *bytes = 8 + (size_t)length + data_bytes;
    unsigned char *file = calloc(1, *bytes);
    assert_non_null(file);
    memcpy(file + 8, header, (size_t)length);
    length = lie >= 0 ? (uint64_t)lie : length;
    for (int i = 0; i < 8; i++)
        file[i] = (unsigned char)(length >> (8 * i));
    return file;
}

static mstar_status scan(const char *header, size_t data_bytes, mst_safetensors *out)
{
    size_t bytes;
    unsigned char *file = make_file(header, data_bytes, -1, &bytes);
    *out = (mst_safetensors){.names = NULL};
    mstar_status status = mst_safetensors_scan("t.safetensors", file, bytes, out);
    free(file);
    return status;
}

static void refuse(mstar_status want, const char *header, size_t data_bytes, const char *piece)
{
    mst_safetensors out;
    uint64_t live = folder_live();
    mstar_status status = scan(header, data_bytes, &out);
    if (status != want)
        print_error("header: %s\n", header);
    FOLDER_FAILS(status, want, piece);
    assert_null(out.names);
    assert_null(out.tensors);
    assert_int_equal(out.num_tensors, 0);
    assert_int_equal(folder_live(), live);
}

static void test_reads_every_dtype(void **state)
{
    (void)state;
    static const char *const names[] = {"F64", "F32", "F16", "BF16", "I64",     "I32",
                                        "I16", "I8",  "U8",  "BOOL", "F8_E4M3", "F8_E5M2"};
    static const size_t sizes[] = {8, 4, 2, 2, 8, 4, 2, 1, 1, 1, 1, 1};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char header[200];
        mst_safetensors out;
        snprintf(header, sizeof header,
                 "{\"x\":{\"dtype\":\"%s\",\"shape\":[2,3],\"data_offsets\":[0,%zu]}}", names[i],
                 6 * sizes[i]);
        FOLDER_OK(scan(header, 6 * sizes[i], &out));
        assert_int_equal(out.num_tensors, 1);
        assert_string_equal(out.tensors[0].name, "x");
        assert_int_equal(out.tensors[0].bytes, 6 * sizes[i]);
        assert_int_equal(mstar_dtype_bytes(out.tensors[0].dtype), sizes[i]);
        assert_int_equal(out.tensors[0].count, 6);
        mst_safetensors_close(&out);
    }
}

static void test_legal_corners(void **state)
{
    (void)state;
    mst_safetensors out;
    /* no tensor at all, spaces behind the header, metadata */
    FOLDER_OK(scan("{}", 0, &out));
    assert_int_equal(out.num_tensors, 0);
    mst_safetensors_close(&out);
    FOLDER_OK(scan("{\"__metadata__\":{\"format\":\"pt\"}}      ", 0, &out));
    mst_safetensors_close(&out);
    /* rank 0, zero sizes before, between and behind, a huge shape with a 0 in it, any order */
    FOLDER_OK(
        scan("{\"c\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[8,16]},"
             "\"z1\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},"
             "\"z2\":{\"dtype\":\"F32\",\"shape\":[9223372036854775807,0,9223372036854775807],"
             "\"data_offsets\":[8,8]},"
             "\"a\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]},"
             "\"z3\":{\"dtype\":\"U8\",\"shape\":[3,0],\"data_offsets\":[16,16]}}",
             16, &out));
    assert_int_equal(out.num_tensors, 5);
    assert_string_equal(out.tensors[0].name, "a");
    assert_string_equal(out.tensors[1].name, "c");
    assert_int_equal(out.tensors[1].rank, 0);
    assert_int_equal(out.tensors[1].count, 1);
    assert_int_equal(out.tensors[3].count, 0);
    mst_safetensors_close(&out);
}

#define ENTRY(name, dtype, shape, begin, end)                                                    \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end \
    "]}"

static void test_lying_headers(void **state)
{
    (void)state;
    static const struct {
        mstar_status status;
        const char *header;
        size_t data_bytes;
        const char *piece;
    } lies[] = {
        {MSTAR_BAD_DATA, "[]", 0, "must start with '{'"},
        {MSTAR_BAD_DATA, " {}", 0, "must start with '{'"},
        {MSTAR_BAD_DATA, "", 0, "must start with '{'"},
        {MSTAR_BAD_DATA, "{", 0, "line 1"},
        {MSTAR_BAD_DATA, "{} x", 0, "line 1"},
        {MSTAR_BAD_DATA, "{\"a\":1,\"a\":1}", 0, "duplicate"},
        {MSTAR_BAD_DATA, "{\"a\":[]}", 0, "an object is wanted"},
        {MSTAR_BAD_DATA, "{\"a\":null}", 0, "an object is wanted"},
        {MSTAR_BAD_DATA, "{\"a\\u0000b\":{}}", 0, "NUL"},
        {MSTAR_BAD_DATA, "{\"__metadata__\":[]}", 0, "__metadata__"},
        {MSTAR_BAD_DATA, "{\"__metadata__\":{\"a\":1}}", 0, "__metadata__.a"},
        {MSTAR_BAD_DATA, "{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype is missing"},
        {MSTAR_BAD_DATA, "{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype"},
        {MSTAR_NOT_SUPPORTED, "{" ENTRY("a", "F7", "[1]", "0", "4") "}", 4, "\"F7\""},
        {MSTAR_NOT_SUPPORTED, "{" ENTRY("a", "f32", "[1]", "0", "4") "}", 4, "\"f32\""},
        {MSTAR_BAD_DATA, "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "shape"},
        {MSTAR_BAD_DATA, "{" ENTRY("a", "F32", "4", "0", "4") "}", 4, "shape is 4"},
        {MSTAR_BAD_DATA, "{" ENTRY("a", "F32", "[-1]", "0", "4") "}", 4, "shape[0]"},
        {MSTAR_BAD_DATA, "{" ENTRY("a", "F32", "[1.0]", "0", "4") "}", 4, "shape[0]"},
        {MSTAR_BAD_DATA, "{" ENTRY("a", "F32", "[\"1\"]", "0", "4") "}", 4, "shape[0]"},
        {MSTAR_NOT_SUPPORTED, "{" ENTRY("a", "F32", "[1,1,1,1,1,1,1,1,1]", "0", "4") "}", 4,
         "9 dimensions"},
        {MSTAR_BAD_DATA, "{" ENTRY("a", "F32", "[4294967296,4294967296]", "0", "4") "}", 4,
         "elements"},
        {MSTAR_BAD_DATA, "{" ENTRY("a", "F32", "[99999999999999999999]", "0", "4") "}", 4, "shape"},
        {MSTAR_BAD_DATA, "{" ENTRY("a", "F64", "[4611686018427387904]", "0", "8") "}", 8,
         "shape and dtype"},
        {MSTAR_BAD_DATA, "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "data_offsets"},
        {MSTAR_BAD_DATA, "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4,
         "two integers"},
        {MSTAR_BAD_DATA, "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,4]}}", 4,
         "two integers"},
        {MSTAR_BAD_DATA, "{" ENTRY("a", "F32", "[1]", "0.0", "4") "}", 4, "two integers"},
        {MSTAR_BAD_DATA, "{" ENTRY("a", "F32", "[1]", "-4", "0") "}", 4, "ascend"},
        {MSTAR_BAD_DATA, "{" ENTRY("a", "F32", "[1]", "4", "0") "}", 4, "ascend"},
        {MSTAR_BAD_DATA, "{" ENTRY("a", "F32", "[1]", "4", "8") "}", 4, "ascend"},
        {MSTAR_BAD_DATA, "{" ENTRY("a", "F32", "[1]", "0", "9223372036854775807") "}", 4, "ascend"},
        {MSTAR_BAD_DATA, "{" ENTRY("a", "F32", "[2]", "0", "4") "}", 4, "2 elements of 4"},
        {MSTAR_BAD_DATA, "{" ENTRY("a", "F32", "[1]", "0", "8") "}", 8, "8 bytes"},
        /* covering: hole in front, between, behind; overlap; nothing of the data */
        {MSTAR_BAD_DATA, "{" ENTRY("a", "F32", "[1]", "4", "8") "}", 8, "no hole"},
        {MSTAR_BAD_DATA,
         "{" ENTRY("a", "F32", "[1]", "0", "4") "," ENTRY("b", "F32", "[1]", "8", "12") "}", 12,
         "no hole"},
        {MSTAR_BAD_DATA,
         "{" ENTRY("a", "F32", "[2]", "0", "8") "," ENTRY("b", "F32", "[2]", "4", "12") "}", 12,
         "no overlap"},
        {MSTAR_BAD_DATA,
         "{" ENTRY("a", "F32", "[2]", "0", "8") "," ENTRY("b", "F32", "[2]", "0", "8") "}", 8,
         "no overlap"},
        {MSTAR_BAD_DATA,
         "{" ENTRY("a", "F32", "[2]", "0", "8") "," ENTRY("b", "F32", "[0]", "4", "4") "}", 8,
         "no overlap"},
        {MSTAR_BAD_DATA, "{" ENTRY("a", "F32", "[1]", "0", "4") "}", 5, "cover 4 of 5"},
        {MSTAR_BAD_DATA, "{}", 1, "cover 0 of 1"},
    };
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++)
        refuse(lies[i].status, lies[i].header, lies[i].data_bytes, lies[i].piece);
}

static void test_lying_lengths(void **state)
{
    (void)state;
    static const struct {
        int64_t length;
        const char *piece;
    } lies[] = {{3, "the file has 2"},
                {100000000, "the file has 2"},
                {100000001, "at most 100000000"},
                {INT64_MAX, "at most 100000000"},
                {0, "must start with '{'"},
                {1, "line 1"}};
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        size_t bytes;
        mst_safetensors out = {.names = NULL};
        unsigned char *file = make_file("{}", 0, lies[i].length, &bytes);
        FOLDER_FAILS(mst_safetensors_scan("t", file, bytes, &out), MSTAR_BAD_DATA, lies[i].piece);
        free(file);
    }
    /* all eight bytes set */
    unsigned char file[10];
    mst_safetensors out = {.names = NULL};
    memset(file, 0xff, sizeof file);
    FOLDER_FAILS(mst_safetensors_scan("t", file, sizeof file, &out), MSTAR_BAD_DATA, "header");
}

static unsigned char *make_sample(size_t *bytes)
{
    static const float values[] = {1, 2, 3, 4, 5, 6};
    checkpoint_writer writer;
    checkpoint_begin(&writer);
    checkpoint_add(&writer, "first", MSTAR_DTYPE_F32, 2, 3, values);
    checkpoint_add(&writer, "second", MSTAR_DTYPE_BF16, 3, 0, values);
    checkpoint_add(&writer, "third", MSTAR_DTYPE_F16, 2, 2, values);
    return checkpoint_end(&writer, 8, bytes);
}

/* A memory block of exactly these bytes, so that a read behind it is found by the sanitizer. */
static mstar_status scan_copy(const unsigned char *file, size_t bytes, mst_safetensors *out)
{
    unsigned char *copy = malloc(bytes > 0 ? bytes : 1);
    assert_non_null(copy);
    memcpy(copy, file, bytes);
    *out = (mst_safetensors){.names = NULL};
    mstar_status status = mst_safetensors_scan("t", copy, bytes, out);
    if (status == MSTAR_OK) {
        /* whatever was accepted can be read */
        uint32_t sum = 0;
        for (int64_t i = 0; i < out->num_tensors; i++) {
            const unsigned char *data = out->tensors[i].data;
            for (size_t j = 0; j < out->tensors[i].bytes; j++)
                sum += data[j];
        }
        assert_true(sum < UINT32_MAX);
        mst_safetensors_close(out);
    }
    free(copy);
    return status;
}

static void test_cut_files(void **state)
{
    (void)state;
    size_t bytes;
    unsigned char *file = make_sample(&bytes);
    mst_safetensors out;
    char *folder = folder_make();
    for (size_t length = 0; length < bytes; length++) {
        assert_int_equal(scan_copy(file, length, &out), MSTAR_BAD_DATA);
        folder_write(folder, "cut.safetensors", file, length);
        assert_int_equal(mst_safetensors_open(folder_path(folder, "cut.safetensors"), &out),
                         MSTAR_BAD_DATA);
    }
    assert_int_equal(scan_copy(file, bytes, &out), MSTAR_OK);
    free(file);
    folder_remove(folder);
}

static void test_flipped_bytes(void **state)
{
    (void)state;
    size_t bytes;
    unsigned char *file = make_sample(&bytes);
    test_random random = {5};
    mst_safetensors out;
    int accepted = 0;
    uint64_t live = folder_live();
    for (int round = 0; round < 20000; round++) {
        unsigned char former[4];
        size_t places[4];
        int flips = (int)test_random_between(&random, 1, 4);
        for (int i = 0; i < flips; i++) {
            places[i] = (size_t)test_random_between(&random, 0, (int64_t)bytes - 1);
            former[i] = file[places[i]];
            file[places[i]] = (unsigned char)test_random_bits(&random);
        }
        mstar_status status = scan_copy(file, bytes, &out);
        assert_true(status == MSTAR_OK || status == MSTAR_BAD_DATA ||
                    status == MSTAR_NOT_SUPPORTED);
        accepted += status == MSTAR_OK;
        for (int i = flips - 1; i >= 0; i--)
            file[places[i]] = former[i];
    }
    assert_int_equal(folder_live(), live);
    assert_in_range(accepted, 100, 19000); /* flips in data and names are harmless */
    free(file);
}

static void test_opens_and_finds(void **state)
{
    (void)state;
    size_t bytes;
    unsigned char *file = make_sample(&bytes);
    char *folder = folder_make();
    mst_checkpoint checkpoint;
    FOLDER_FAILS(mst_checkpoint_open(folder, &checkpoint), MSTAR_NOT_FOUND, "model.safetensors");
    folder_text(folder, "pytorch_model.bin", "x");
    FOLDER_FAILS(mst_checkpoint_open(folder, &checkpoint), MSTAR_NOT_FOUND, "convert");
    folder_write(folder, "model.safetensors", file, bytes);
    FOLDER_OK(mst_checkpoint_open(folder, &checkpoint));
    const mst_stored_tensor *tensor = mst_checkpoint_find(&checkpoint, "second");
    assert_non_null(tensor);
    assert_int_equal(tensor->dtype, MSTAR_DTYPE_BF16);
    assert_true(mst_load_element(tensor->data, tensor->dtype, 2) == 3.0f);
    assert_null(mst_checkpoint_find(&checkpoint, "secon"));
    assert_null(mst_checkpoint_find(&checkpoint, "secondx"));
    assert_null(mst_checkpoint_find(&checkpoint, ""));
    mst_checkpoint_close(&checkpoint);
    free(file);
    folder_remove(folder);
}

#define INDEX "model.safetensors.index.json"

static void test_shards(void **state)
{
    (void)state;
    static const float values[] = {1, 2, 3, 4};
    char *folder = folder_make();
    mst_checkpoint checkpoint;
    for (int shard = 0; shard < 2; shard++) {
        checkpoint_writer writer;
        size_t bytes;
        checkpoint_begin(&writer);
        checkpoint_add(&writer, shard == 0 ? "a" : "b", MSTAR_DTYPE_F32, 2, 0, values + 2 * shard);
        checkpoint_add(&writer, "both", MSTAR_DTYPE_F32, 1, 0, values + shard);
        unsigned char *file = checkpoint_end(&writer, 8, &bytes);
        folder_write(folder, shard == 0 ? "s-1.safetensors" : "s-2.safetensors", file, bytes);
        free(file);
    }
    folder_text(folder, INDEX,
                "{\"metadata\":{\"total_size\":24},\"weight_map\":{\"a\":\"s-1.safetensors\","
                "\"b\":\"s-2.safetensors\",\"both\":\"s-2.safetensors\"}}");
    FOLDER_OK(mst_checkpoint_open(folder, &checkpoint));
    assert_int_equal(checkpoint.num_files, 2);
    /* the index decides which of two tensors of one name exists */
    assert_true(*(const float *)mst_checkpoint_find(&checkpoint, "both")->data == 2.0f);
    assert_true(*(const float *)mst_checkpoint_find(&checkpoint, "b")->data == 3.0f);
    mst_checkpoint_close(&checkpoint);

    static const struct {
        mstar_status status;
        const char *text, *piece;
    } lies[] = {
        {MSTAR_BAD_DATA, "[]", "an object"},
        {MSTAR_BAD_DATA, "{}", "weight_map"},
        {MSTAR_BAD_DATA, "{\"weight_map\":{\"a\":1}}", "a is 1"},
        {MSTAR_BAD_DATA, "{\"weight_map\":{\"a\":\"s-2.safetensors\"}}", "lacks"},
        {MSTAR_NOT_FOUND, "{\"weight_map\":{\"a\":\"s-3.safetensors\"}}", "s-3.safetensors"},
        {MSTAR_BAD_DATA, "{\"weight_map\":{\"a\":\"../s-1.safetensors\"}}", "plain file name"},
        {MSTAR_BAD_DATA, "{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "plain file name"},
        {MSTAR_BAD_DATA, "{\"weight_map\":{\"a\":\"\"}}", "plain file name"},
        {MSTAR_BAD_DATA, "{\"weight_map\":{\"a\":\"" INDEX "\"}}", "header"},
    };
    uint64_t live = folder_live();
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        folder_text(folder, INDEX, lies[i].text);
        FOLDER_FAILS(mst_checkpoint_open(folder, &checkpoint), lies[i].status, lies[i].piece);
        assert_int_equal(folder_live(), live);
    }
    folder_remove(folder);
}

static int fail_at(void *context, uint64_t number, size_t bytes)
{
    (void)bytes;
    return number == *(uint64_t *)context;
}

static void test_failed_allocations(void **state)
{
    (void)state;
    size_t bytes;
    unsigned char *file = make_sample(&bytes);
    char *folder = folder_make();
    mst_checkpoint checkpoint;
    uint64_t live = folder_live();
    mstar_status status = MSTAR_OUT_OF_MEMORY;
    folder_write(folder, "model.safetensors", file, bytes);
    uint64_t number = 0;
    while (status != MSTAR_OK) {
        number++;
        mstar_set_alloc_fault(fail_at, &number);
        status = mst_checkpoint_open(folder, &checkpoint);
        mstar_set_alloc_fault(NULL, NULL);
        if (status == MSTAR_OK)
            break;
        assert_int_equal(status, MSTAR_OUT_OF_MEMORY);
        assert_int_equal(folder_live(), live);
        assert_in_range(number, 1, 100);
    }
    assert_true(number > 3);
    mst_checkpoint_close(&checkpoint);
    free(file);
    folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_every_dtype),  cmocka_unit_test(test_legal_corners),
        cmocka_unit_test(test_lying_headers),      cmocka_unit_test(test_lying_lengths),
        cmocka_unit_test(test_cut_files),          cmocka_unit_test(test_flipped_bytes),
        cmocka_unit_test(test_opens_and_finds),    cmocka_unit_test(test_shards),
        cmocka_unit_test(test_failed_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
