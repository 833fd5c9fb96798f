/*
 * safetensors.c - one checkpoint file, mapped read-only.
 *
 * The layout is 8 bytes little-endian N, N bytes of JSON, data. Nothing in the header is believed:
 * every offset is checked in 64-bit arithmetic against the file's size before a pointer is made,
 * and the tensors must cover the data area exactly once, so that a cut, spliced or crafted file is
 * refused as a whole. Data may start at any byte; whoever reads elements looks at the alignment.
 */
#include <stdlib.h>
#include <string.h>

#include "model/encoder.h"

#define LENGTH_BYTES 8
#define MAX_HEADER_BYTES 100000000U

static const struct {
    const char *name;
    mstar_dtype dtype;
} stored_dtypes[] = {
    {"F64", MSTAR_DTYPE_F64},   {"F32", MSTAR_DTYPE_F32},         {"F16", MSTAR_DTYPE_F16},
    {"BF16", MSTAR_DTYPE_BF16}, {"I64", MSTAR_DTYPE_I64},         {"I32", MSTAR_DTYPE_I32},
    {"I16", MSTAR_DTYPE_I16},   {"I8", MSTAR_DTYPE_I8},           {"U8", MSTAR_DTYPE_U8},
    {"BOOL", MSTAR_DTYPE_BOOL}, {"F8_E4M3", MSTAR_DTYPE_F8_E4M3}, {"F8_E5M2", MSTAR_DTYPE_F8_E5M2}};

/* The header's extent, or why there is none. */
static mstar_status find_header(const char *path, const unsigned char *data, size_t bytes,
                                uint64_t *header_bytes)
{
    if (bytes < LENGTH_BYTES)
        return mst_fail(MSTAR_BAD_DATA, "%s: %zu bytes; a safetensors file has at least %d", path,
                        bytes, LENGTH_BYTES);
    uint64_t length = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--)
        length = length << 8 | data[i];
    if (length > MAX_HEADER_BYTES)
        return mst_fail(MSTAR_BAD_DATA, "%s: a header of %llu bytes; it may have at most %u", path,
                        (unsigned long long)length, MAX_HEADER_BYTES);
    if (length > bytes - LENGTH_BYTES)
        return mst_fail(MSTAR_BAD_DATA,
                        "%s: a header of %llu bytes; the file has %zu after it says so", path,
                        (unsigned long long)length, bytes - LENGTH_BYTES);
    if (length == 0 || data[LENGTH_BYTES] != '{')
        return mst_fail(MSTAR_BAD_DATA, "%s: the header must start with '{'", path);
    *header_bytes = length;
    return MSTAR_OK;
}

static mstar_status read_dtype(const char *where, const json_t *entry, mstar_dtype *dtype)
{
    const char *text;
    MST_TRY(mst_json_get_string(entry, where, "dtype", &text));
    for (size_t i = 0; i < sizeof stored_dtypes / sizeof stored_dtypes[0]; i++) {
        if (strcmp(text, stored_dtypes[i].name) == 0) {
            *dtype = stored_dtypes[i].dtype;
            return MSTAR_OK;
        }
    }
    return mst_fail(MSTAR_NOT_SUPPORTED,
                    "%s: dtype is \"%.32s\"; read are F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL "
                    "F8_E4M3 F8_E5M2",
                    where, text);
}

static mstar_status read_shape(const char *where, const json_t *entry, mst_stored_tensor *tensor)
{
    const json_t *list;
    MST_TRY(mst_json_get_array(entry, where, "shape", &list));
    size_t rank = json_array_size(list);
    if (rank > MSTAR_MAX_RANK)
        return mst_fail(MSTAR_NOT_SUPPORTED, "%s: shape has %zu dimensions; at most %d are read",
                        where, rank, MSTAR_MAX_RANK);
    tensor->rank = (int32_t)rank;
    tensor->count = 1;
    for (size_t i = 0; i < rank; i++) {
        const json_t *item = json_array_get(list, i);
        if (!json_is_integer(item) || json_integer_value(item) < 0)
            return mst_fail(MSTAR_BAD_DATA, "%s: shape[%zu] must be an integer of 0 or more", where,
                            i);
        tensor->shape[i] = json_integer_value(item);
    }
    /* a 0 makes the product 0 whatever the others are; only then may they be huge */
    for (size_t i = 0; i < rank; i++) {
        if (tensor->shape[i] == 0)
            tensor->count = 0;
    }
    for (size_t i = 0; i < rank; i++) {
        if (__builtin_mul_overflow(tensor->count, tensor->shape[i], &tensor->count))
            return mst_fail(MSTAR_BAD_DATA, "%s: shape has more than %lld elements", where,
                            (long long)INT64_MAX);
    }
    return MSTAR_OK;
}

static mstar_status read_offsets(const char *where, const json_t *entry, uint64_t area,
                                 mst_stored_tensor *tensor)
{
    const json_t *list;
    MST_TRY(mst_json_get_array(entry, where, "data_offsets", &list));
    const json_t *first = json_array_get(list, 0);
    const json_t *last = json_array_get(list, 1);
    if (json_array_size(list) != 2 || !json_is_integer(first) || !json_is_integer(last))
        return mst_fail(MSTAR_BAD_DATA, "%s: data_offsets must be two integers", where);
    int64_t begin = json_integer_value(first);
    int64_t end = json_integer_value(last);
    if (begin < 0 || end < begin || (uint64_t)end > area)
        return mst_fail(MSTAR_BAD_DATA,
                        "%s: data_offsets are [%lld, %lld]; they must ascend within [0, %llu]",
                        where, (long long)begin, (long long)end, (unsigned long long)area);
    int64_t wanted;
    if (__builtin_mul_overflow(tensor->count, (int64_t)mstar_dtype_bytes(tensor->dtype), &wanted) ||
        wanted != end - begin)
        return mst_fail(MSTAR_BAD_DATA,
                        "%s: data_offsets are [%lld, %lld], %lld bytes; shape and dtype need %lld "
                        "elements of %zu",
                        where, (long long)begin, (long long)end, (long long)(end - begin),
                        (long long)tensor->count, mstar_dtype_bytes(tensor->dtype));
    tensor->begin = (uint64_t)begin;
    tensor->bytes = (size_t)wanted;
    return MSTAR_OK;
}

static int by_place(const void *a, const void *b)
{
    const mst_stored_tensor *x = a;
    const mst_stored_tensor *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const mst_stored_tensor *)a)->name, ((const mst_stored_tensor *)b)->name);
}

/* No hole, no overlap, nothing before the first tensor or after the last one. */
static mstar_status check_cover(const char *path, mst_safetensors *out, uint64_t area)
{
    uint64_t end = 0;
    const char *former = "the start";
    if (out->num_tensors > 0)
        qsort(out->tensors, (size_t)out->num_tensors, sizeof *out->tensors, by_place);
    for (int64_t i = 0; i < out->num_tensors; i++) {
        const mst_stored_tensor *tensor = &out->tensors[i];
        if (tensor->begin != end)
            return mst_fail(MSTAR_BAD_DATA,
                            "%s: %.128s begins at %llu, and %.128s ends at %llu; data must have no "
                            "hole and no overlap",
                            path, tensor->name, (unsigned long long)tensor->begin, former,
                            (unsigned long long)end);
        end += tensor->bytes;
        former = tensor->name;
    }
    if (end != area)
        return mst_fail(MSTAR_BAD_DATA, "%s: tensors cover %llu of %llu bytes of data", path,
                        (unsigned long long)end, (unsigned long long)area);
    return MSTAR_OK;
}

static bool is_metadata(const char *name)
{
    return strcmp(name, "__metadata__") == 0;
}

static mstar_status check_metadata(const char *path, const json_t *entry)
{
    MST_TRY(mst_json_check_object(entry, path, "__metadata__"));
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)entry, key, value)
    {
        if (!json_is_string(value))
            return mst_fail(MSTAR_BAD_DATA, "%s: __metadata__.%.64s must be a string", path, key);
    }
    return MSTAR_OK;
}

static mstar_status read_entries(const char *path, const json_t *header, const unsigned char *data,
                                 uint64_t area, mst_safetensors *out)
{
    json_t *object = (json_t *)(uintptr_t)header;
    const char *name;
    json_t *entry;
    size_t name_bytes = 0;
    size_t key_bytes;
    int64_t count = 0;
    json_object_keylen_foreach(object, name, key_bytes, entry)
    {
        if (strlen(name) != key_bytes)
            return mst_fail(MSTAR_BAD_DATA, "%s: the name %.128s holds a NUL", path, name);
        if (is_metadata(name)) {
            MST_TRY(check_metadata(path, entry));
            continue;
        }
        name_bytes += key_bytes + 1;
        count++;
    }
    void *memory;
    MST_TRY(mst_alloc(name_bytes, "tensor names", &memory));
    out->names = memory;
    MST_TRY(mst_alloc_array(count, sizeof *out->tensors, "tensor table", &memory));
    out->tensors = memory;
    char *next = out->names;
    json_object_keylen_foreach(object, name, key_bytes, entry)
    {
        if (is_metadata(name))
            continue;
        char where[320];
        (void)snprintf(where, sizeof where, "%s: %.128s", mst_json_file_name(path), name);
        mst_stored_tensor *tensor = &out->tensors[out->num_tensors];
        MST_TRY(mst_json_check_object(entry, where, "the entry"));
        MST_TRY(read_dtype(where, entry, &tensor->dtype));
        MST_TRY(read_shape(where, entry, tensor));
        MST_TRY(read_offsets(where, entry, area, tensor));
        memcpy(next, name, key_bytes + 1);
        tensor->name = next;
        tensor->data = data + tensor->begin;
        tensor->mapped = true;
        next += key_bytes + 1;
        out->num_tensors++;
    }
    return MSTAR_OK;
}

mstar_status mst_safetensors_scan(const char *path, const void *data, size_t bytes,
                                  mst_safetensors *out)
{
    const unsigned char *all = data;
    uint64_t header_bytes = 0;
    json_t *header = NULL;
    mstar_status status;
    MST_TRY(find_header(path, all, bytes, &header_bytes));
    MST_TRY_GOTO(mst_json_parse(path, all + LENGTH_BYTES, (size_t)header_bytes, &header), done);
    uint64_t area = bytes - LENGTH_BYTES - header_bytes;
    MST_TRY_GOTO(read_entries(path, header, all + LENGTH_BYTES + header_bytes, area, out), done);
    MST_TRY_GOTO(check_cover(path, out, area), done);
    if (out->num_tensors > 0)
        qsort(out->tensors, (size_t)out->num_tensors, sizeof *out->tensors, by_name);
done:
    json_decref(header);
    if (status != MSTAR_OK) {
        mst_free(out->names);
        mst_free(out->tensors);
        out->names = NULL;
        out->tensors = NULL;
        out->num_tensors = 0;
    }
    return status;
}

mstar_status mst_safetensors_open(const char *path, mst_safetensors *out)
{
    *out = (mst_safetensors){.file = {NULL, 0, NULL}};
    MST_TRY(mst_file_map(path, &out->file));
    mstar_status status = mst_safetensors_scan(path, out->file.data, out->file.bytes, out);
    if (status != MSTAR_OK)
        mst_safetensors_close(out);
    return status;
}

void mst_safetensors_close(mst_safetensors *file)
{
    mst_free(file->tensors);
    mst_free(file->names);
    mst_file_unmap(&file->file);
    *file = (mst_safetensors){.file = {NULL, 0, NULL}};
}
