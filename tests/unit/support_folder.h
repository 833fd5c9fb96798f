/*
 * support_folder.h - model folders for tests: temporary folders, checkpoints, and a tiny random
 * BERT that loads in no time.
 */
#ifndef SUPPORT_FOLDER_H
#define SUPPORT_FOLDER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "mstar.h"
#include "support_random.h"

/* A fresh folder under TMPDIR or /tmp; folder_remove takes it away with everything in it. */
char *folder_make(void);
void folder_remove(char *folder);
/* name may hold folders, which are made. */
void folder_write(const char *folder, const char *name, const void *data, size_t bytes);
void folder_text(const char *folder, const char *name, const char *text);
void folder_delete(const char *folder, const char *name);
/* Where folder/name is; static memory, good until the next call. */
const char *folder_path(const char *folder, const char *name);

/* A safetensors file in the making. */
typedef struct checkpoint_writer {
    char *header;
    unsigned char *data;
    size_t header_bytes, data_bytes;
} checkpoint_writer;
void checkpoint_begin(checkpoint_writer *writer);
/* Elements are f32 here and rounded to the dtype (f32, bf16, f16). columns 0: a vector. */
void checkpoint_add(checkpoint_writer *writer, const char *name, mstar_dtype dtype, int64_t rows,
                    int64_t columns, const float *values);
/* Random values, normal with this spread around middle. */
void checkpoint_random(checkpoint_writer *writer, const char *name, mstar_dtype dtype, int64_t rows,
                       int64_t columns, double middle, double spread, test_random *random);
/* The whole file; the caller frees it. align: header padded with spaces to a multiple of this. */
unsigned char *checkpoint_end(checkpoint_writer *writer, size_t align, size_t *bytes);

typedef struct tiny_model {
    int32_t layers, heads, hidden, intermediate, positions;
    mstar_dtype dtype;
    const char *prefix; /* "" or "bert." */
    size_t align;       /* of the checkpoint's data area: 1 leaves tensors where they fall */
    uint64_t seed;
} tiny_model;
extern const tiny_model tiny_model_default;
#define TINY_VOCAB 60
/* config.json, model.safetensors, vocab.txt, tokenizer_config.json, modules.json, 1_Pooling. */
void tiny_model_write(const char *folder, const tiny_model *model);
/* config.json alone, with extra keys ("\"a\": 1,") put first. */
void tiny_model_config(const char *folder, const tiny_model *model, const char *extra);
/* words of the tiny vocabulary, separated by spaces, into text. */
void tiny_text(test_random *random, int64_t words, char *text, size_t bytes);

/* Fails the test with the library's text unless the status is OK. */
void folder_check_ok(mstar_status status, const char *file, int line);
#define FOLDER_OK(call) folder_check_ok((call), __FILE__, __LINE__)
/* Fails the test unless the call gives this status and its text holds the piece. */
void folder_check_fails(mstar_status got, mstar_status want, const char *piece, const char *file,
                        int line);
#define FOLDER_FAILS(call, want, piece) \
    folder_check_fails((call), (want), (piece), __FILE__, __LINE__)
/* Live allocations of the library. */
uint64_t folder_live(void);

#endif
