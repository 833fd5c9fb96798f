/*
 * support_fuzz.h - what the fuzz targets share: checks that stop the process, an input read field
 * by field, inputs made of several files, and a count of what a target left behind.
 *
 * A target is one file fuzz_NAME.c with LLVMFuzzerTestOneInput. Under preset fuzz libFuzzer drives
 * it; in every other build fuzz_replay.c runs it once over each file of its corpus, as a test.
 */
#ifndef SUPPORT_FUZZ_H
#define SUPPORT_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mstar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Prints what did not hold and aborts, which the fuzzer takes for a finding. */
void fuzz_failed(const char *what, const char *file, int line);
#define FUZZ_CHECK(condition) ((condition) ? (void)0 : fuzz_failed(#condition, __FILE__, __LINE__))

/*
 * Begin and end of one input. From begin on, allocations over 4 MiB fail: an input must not be able
 * to stop the fuzzer by asking for much. end checks that no allocation of the library is left.
 */
void fuzz_begin(void);
void fuzz_end(void);

/* OK, or one of the statuses that a bad input may give, with a text. */
bool fuzz_took(mstar_status status);

/* ---- numbers out of an input ----------------------------------------------------------------- */

typedef struct fuzz_input {
    const uint8_t *data;
    size_t left;
} fuzz_input;
/* 0 when nothing is left. */
uint8_t fuzz_byte(fuzz_input *input);
int32_t fuzz_int32(fuzz_input *input); /* little-endian */

/* ---- inputs of several files ----------------------------------------------------------------- */

/*
 * An input is files in the order of names, each followed by a line "====" unless it is the last. A
 * file that is not there, or says "-" alone, is not written. All lie in one temporary folder of the
 * process; the former input's are gone. Returns the folder.
 */
const char *fuzz_write_files(const uint8_t *data, size_t bytes, const char *const *names,
                             int count);
/* The folder of this process; it goes away at exit. */
const char *fuzz_folder(void);
/* Descriptor of a new empty file there, to read and write; the caller closes it. */
int fuzz_open_file(const char *name);
void fuzz_write_file(const char *name, const void *data, size_t bytes);

#endif
