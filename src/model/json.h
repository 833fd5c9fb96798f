/*
 * json.h - reading the JSON files of a model folder: one parser call, typed getters whose errors
 * name the file, the key, the value and what is wanted.
 *
 * `where` of a getter starts its error text: the file's name, and for inner objects the way there
 * ("tokenizer.json: normalizer"). A key that is missing and a key that is null are the same thing
 * to every getter: tools write both for "not given".
 */
#ifndef MST_MODEL_JSON_H
#define MST_MODEL_JSON_H

#include <jansson.h>

#include "base/base.h"

/* Parses a file. BAD_DATA names path, line, column and reason. Release with json_decref. */
mstar_status mst_json_read(const char *path, json_t **root);
/* json_parse.c: the same from memory (a safetensors header); name stands for the path in errors. */
mstar_status mst_json_parse(const char *name, const void *data, size_t bytes, json_t **root);

/* Part after the last '/': what `where` is for a file. Borrowed from path. */
const char *mst_json_file_name(const char *path);

/* BAD_DATA unless the value has the type; what names the value in the error. */
mstar_status mst_json_check_object(const json_t *value, const char *where, const char *what);
mstar_status mst_json_check_array(const json_t *value, const char *where, const char *what);

/* The value of a key, NULL when missing or null. Never fails; object may be NULL. */
const json_t *mst_json_find(const json_t *object, const char *key);

/*
 * Required keys. Strings are borrowed from the document, NUL-terminated and free of inner NULs.
 * Integers written as 12.0 count as integers.
 */
mstar_status mst_json_get_int(const json_t *object, const char *where, const char *key, int64_t low,
                              int64_t high, int64_t *value);
mstar_status mst_json_get_number(const json_t *object, const char *where, const char *key,
                                 double *value);
mstar_status mst_json_get_bool(const json_t *object, const char *where, const char *key,
                               bool *value);
mstar_status mst_json_get_string(const json_t *object, const char *where, const char *key,
                                 const char **value);
mstar_status mst_json_get_array(const json_t *object, const char *where, const char *key,
                                const json_t **value);
mstar_status mst_json_get_object(const json_t *object, const char *where, const char *key,
                                 const json_t **value);

/* Optional keys: fallback when missing or null, and an error as above when of a wrong type. */
mstar_status mst_json_get_int_or(const json_t *object, const char *where, const char *key,
                                 int64_t low, int64_t high, int64_t fallback, int64_t *value);
mstar_status mst_json_get_number_or(const json_t *object, const char *where, const char *key,
                                    double fallback, double *value);
mstar_status mst_json_get_bool_or(const json_t *object, const char *where, const char *key,
                                  bool fallback, bool *value);
mstar_status mst_json_get_string_or(const json_t *object, const char *where, const char *key,
                                    const char *fallback, const char **value);
/* NULL when missing or null. */
mstar_status mst_json_get_array_or_null(const json_t *object, const char *where, const char *key,
                                        const json_t **value);
mstar_status mst_json_get_object_or_null(const json_t *object, const char *where, const char *key,
                                         const json_t **value);

#endif
