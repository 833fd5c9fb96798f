/*
 * json.c - files to documents, and typed getters with errors that name everything.
 *
 * The values are jansson's, which keeps its own malloc: json_set_alloc_funcs is process-wide and
 * would move the documents of a host that uses jansson too. Documents live only while a folder is
 * loaded, and a failed allocation inside comes back as OUT_OF_MEMORY.
 */
#include "model/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *mst_json_file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

mstar_status mst_json_read(const char *path, json_t **root)
{
    mst_file file;
    *root = NULL;
    MST_TRY(mst_file_map(path, &file));
    mstar_status status = mst_json_parse(path, file.data, file.bytes, root);
    mst_file_unmap(&file);
    return status;
}

const json_t *mst_json_find(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

/* What a value is, short enough for an error text. */
static const char *describe(const json_t *value, char text[static 64])
{
    if (value == NULL)
        return "missing";
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        (void)snprintf(text, 64, "\"%.40s\"", json_string_value(value));
        return text;
    case JSON_INTEGER:
        (void)snprintf(text, 64, "%lld", (long long)json_integer_value(value));
        return text;
    case JSON_REAL:
        (void)snprintf(text, 64, "%.17g", json_real_value(value));
        return text;
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    case JSON_NULL:
        break;
    }
    return "null";
}

static mstar_status fail_type(const json_t *value, const char *where, const char *key,
                              const char *wanted)
{
    char text[64];
    return mst_fail(MSTAR_BAD_DATA, "%s: %s is %s; %s is wanted", where, key, describe(value, text),
                    wanted);
}

mstar_status mst_json_check_object(const json_t *value, const char *where, const char *what)
{
    return json_is_object(value) ? MSTAR_OK : fail_type(value, where, what, "an object");
}

mstar_status mst_json_check_array(const json_t *value, const char *where, const char *what)
{
    return json_is_array(value) ? MSTAR_OK : fail_type(value, where, what, "a list");
}

mstar_status mst_json_get_int(const json_t *object, const char *where, const char *key, int64_t low,
                              int64_t high, int64_t *value)
{
    const json_t *found = mst_json_find(object, key);
    bool inside = false;
    int64_t integer = 0;
    if (json_is_integer(found)) {
        integer = (int64_t)json_integer_value(found);
        inside = integer >= low && integer <= high;
    } else if (json_is_real(found) && floor(json_real_value(found)) == json_real_value(found)) {
        double real = json_real_value(found);
        /* 2^53: doubles below it are exact integers and convert without overflow */
        if (fabs(real) <= 9007199254740992.0) {
            integer = (int64_t)real;
            inside = integer >= low && integer <= high;
        }
    } else {
        return fail_type(found, where, key, "an integer");
    }
    if (!inside) {
        char text[64];
        return mst_fail(MSTAR_BAD_DATA, "%s: %s is %s; it must be from %lld to %lld", where, key,
                        describe(found, text), (long long)low, (long long)high);
    }
    *value = integer;
    return MSTAR_OK;
}

mstar_status mst_json_get_number(const json_t *object, const char *where, const char *key,
                                 double *value)
{
    const json_t *found = mst_json_find(object, key);
    if (!json_is_number(found))
        return fail_type(found, where, key, "a number");
    *value = json_number_value(found);
    return MSTAR_OK;
}

mstar_status mst_json_get_bool(const json_t *object, const char *where, const char *key,
                               bool *value)
{
    const json_t *found = mst_json_find(object, key);
    if (!json_is_boolean(found))
        return fail_type(found, where, key, "true or false");
    *value = json_is_true(found);
    return MSTAR_OK;
}

mstar_status mst_json_get_string(const json_t *object, const char *where, const char *key,
                                 const char **value)
{
    const json_t *found = mst_json_find(object, key);
    if (!json_is_string(found))
        return fail_type(found, where, key, "a string");
    if (strlen(json_string_value(found)) != json_string_length(found))
        return mst_fail(MSTAR_BAD_DATA, "%s: %s holds a NUL at byte %zu", where, key,
                        strlen(json_string_value(found)));
    *value = json_string_value(found);
    return MSTAR_OK;
}

mstar_status mst_json_get_array(const json_t *object, const char *where, const char *key,
                                const json_t **value)
{
    *value = mst_json_find(object, key);
    return mst_json_check_array(*value, where, key);
}

mstar_status mst_json_get_object(const json_t *object, const char *where, const char *key,
                                 const json_t **value)
{
    *value = mst_json_find(object, key);
    return mst_json_check_object(*value, where, key);
}

mstar_status mst_json_get_int_or(const json_t *object, const char *where, const char *key,
                                 int64_t low, int64_t high, int64_t fallback, int64_t *value)
{
    *value = fallback;
    return mst_json_find(object, key) == NULL
               ? MSTAR_OK
               : mst_json_get_int(object, where, key, low, high, value);
}

mstar_status mst_json_get_number_or(const json_t *object, const char *where, const char *key,
                                    double fallback, double *value)
{
    *value = fallback;
    return mst_json_find(object, key) == NULL ? MSTAR_OK
                                              : mst_json_get_number(object, where, key, value);
}

mstar_status mst_json_get_bool_or(const json_t *object, const char *where, const char *key,
                                  bool fallback, bool *value)
{
    *value = fallback;
    return mst_json_find(object, key) == NULL ? MSTAR_OK
                                              : mst_json_get_bool(object, where, key, value);
}

mstar_status mst_json_get_string_or(const json_t *object, const char *where, const char *key,
                                    const char *fallback, const char **value)
{
    *value = fallback;
    return mst_json_find(object, key) == NULL ? MSTAR_OK
                                              : mst_json_get_string(object, where, key, value);
}

mstar_status mst_json_get_array_or_null(const json_t *object, const char *where, const char *key,
                                        const json_t **value)
{
    *value = mst_json_find(object, key);
    return *value == NULL ? MSTAR_OK : mst_json_check_array(*value, where, key);
}

mstar_status mst_json_get_object_or_null(const json_t *object, const char *where, const char *key,
                                         const json_t **value)
{
    *value = mst_json_find(object, key);
    return *value == NULL ? MSTAR_OK : mst_json_check_object(*value, where, key);
}
