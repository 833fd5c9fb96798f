/*
 * fuzz_replay.c - runs a fuzz target over files and folders of files: what has ever been found
 * stays in the corpus and is a test of every build.
 *
 * Each input lies at the end of a block of its own, so that a sanitizer sees the first byte read
 * past it.
 */
#define _XOPEN_SOURCE 700
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "support_fuzz.h"

static int replayed;

static int replay(const char *path, const struct stat *facts, int kind, struct FTW *place)
{
    (void)place;
    if (kind != FTW_F)
        return 0;
    size_t bytes = (size_t)facts->st_size;
    uint8_t *data = malloc(bytes > 0 ? bytes : 1);
    FILE *file = fopen(path, "rb");
    FUZZ_CHECK(data != NULL && file != NULL);
    FUZZ_CHECK(fread(data, 1, bytes, file) == bytes);
    (void)fclose(file);
    (void)LLVMFuzzerTestOneInput(data, bytes);
    free(data);
    replayed++;
    return 0;
}

int main(int argc, char **argv)
{
    static const uint8_t nothing[1];
    (void)LLVMFuzzerTestOneInput(nothing, 0);
    for (int i = 1; i < argc; i++) {
        if (nftw(argv[i], replay, 8, FTW_PHYS) != 0) {
            perror(argv[i]);
            return 1;
        }
    }
    printf("%d inputs\n", replayed);
    return replayed > 0 ? 0 : 1;
}
