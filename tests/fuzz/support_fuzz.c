/* support_fuzz.c - see support_fuzz.h. */
#define _XOPEN_SOURCE 700
#include "support_fuzz.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LARGEST_ALLOCATION = 4 << 20, PATH_BYTES = 512 };

static char folder[PATH_BYTES];
static uint64_t live_before;

void fuzz_failed(const char *what, const char *file, int line)
{
    fprintf(stderr, "%s:%d: %s does not hold; last error: %s\n", file, line, what,
            mstar_last_error());
    abort();
}

static int refuse_large(void *context, uint64_t number, size_t bytes)
{
    (void)context;
    (void)number;
    return bytes > LARGEST_ALLOCATION;
}

static uint64_t live_allocations(void)
{
    mstar_memory_info info = {.struct_size = sizeof info};
    FUZZ_CHECK(mstar_memory_query(&info) == MSTAR_OK);
    return info.live_allocations;
}

void fuzz_begin(void)
{
    mstar_set_alloc_fault(refuse_large, NULL);
    live_before = live_allocations();
}

void fuzz_end(void)
{
    FUZZ_CHECK(live_allocations() == live_before);
}

bool fuzz_took(mstar_status status)
{
    if (status == MSTAR_OK)
        return true;
    FUZZ_CHECK(status == MSTAR_INVALID_ARGUMENT || status == MSTAR_NOT_FOUND ||
               status == MSTAR_NOT_SUPPORTED || status == MSTAR_OUT_OF_MEMORY ||
               status == MSTAR_BAD_DATA || status == MSTAR_IO_FAILED);
    FUZZ_CHECK(mstar_last_error()[0] != '\0');
    return false;
}

/* ---- numbers out of an input ----------------------------------------------------------------- */

uint8_t fuzz_byte(fuzz_input *input)
{
    if (input->left == 0)
        return 0;
    input->left--;
    return *input->data++;
}

int32_t fuzz_int32(fuzz_input *input)
{
    uint32_t value = 0;
    for (int shift = 0; shift < 32; shift += 8)
        value |= (uint32_t)fuzz_byte(input) << shift;
    int32_t result;
    memcpy(&result, &value, sizeof result);
    return result;
}

/* ---- inputs of several files ----------------------------------------------------------------- */

static int remove_one(const char *path, const struct stat *facts, int kind, struct FTW *place)
{
    (void)facts;
    (void)kind;
    (void)place;
    return remove(path);
}

static void remove_folder(void)
{
    (void)nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

const char *fuzz_folder(void)
{
    if (folder[0] == '\0') {
        const char *base = getenv("TMPDIR");
        (void)snprintf(folder, sizeof folder, "%s/mstar-fuzz-XXXXXX", base != NULL ? base : "/tmp");
        FUZZ_CHECK(mkdtemp(folder) != NULL);
        FUZZ_CHECK(atexit(remove_folder) == 0);
    }
    return folder;
}

static void make_path(const char *name, char path[PATH_BYTES])
{
    int written = snprintf(path, PATH_BYTES, "%s/%s", fuzz_folder(), name);
    FUZZ_CHECK(written > 0 && written < PATH_BYTES);
}

int fuzz_open_file(const char *name)
{
    char path[PATH_BYTES];
    make_path(name, path);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    FUZZ_CHECK(file >= 0);
    return file;
}

void fuzz_write_file(const char *name, const void *data, size_t bytes)
{
    char path[PATH_BYTES];
    make_path(name, path);
    char *slash = strchr(path + strlen(folder) + 1, '/');
    if (slash != NULL) {
        *slash = '\0';
        (void)mkdir(path, 0700);
        *slash = '/';
    }
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    FUZZ_CHECK(file >= 0);
    FUZZ_CHECK(write(file, data, bytes) == (ssize_t)bytes);
    (void)close(file);
}

const char *fuzz_write_files(const uint8_t *data, size_t bytes, const char *const *names, int count)
{
    static const char mark[] = "\n====\n";
    const uint8_t *end = data + bytes;
    for (int i = 0; i < count; i++) {
        const uint8_t *stop = end;
        for (const uint8_t *at = data; i + 1 < count && at + sizeof mark - 1 <= end; at++) {
            if (memcmp(at, mark, sizeof mark - 1) == 0) {
                stop = at;
                break;
            }
        }
        size_t length = (size_t)(stop - data);
        char path[PATH_BYTES];
        make_path(names[i], path);
        if (length == 0 || (length == 1 && data[0] == '-'))
            (void)unlink(path);
        else
            fuzz_write_file(names[i], data, length);
        data = stop == end ? end : stop + sizeof mark - 1;
    }
    return fuzz_folder();
}
