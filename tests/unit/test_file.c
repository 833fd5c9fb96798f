/* test_file.c - mapped files: what lies in them stays the same when their pages are let go. */
#include <stdio.h>
#include <unistd.h>

#include "base/base.h"
#include "support_folder.h"

enum { BYTES = 6 * 1024 * 1024 + 123 };

static unsigned char byte_at(size_t i)
{
    return (unsigned char)(i * 31 + i / 4096);
}

static mst_file make_file(const char *path)
{
    mst_file file;
    FILE *stream = fopen(path, "wb");
    assert_non_null(stream);
    for (size_t i = 0; i < BYTES; i++)
        assert_int_not_equal(putc(byte_at(i), stream), EOF);
    assert_int_equal(fclose(stream), 0);
    FOLDER_OK(mst_file_map(path, &file));
    assert_int_equal(file.bytes, BYTES);
    return file;
}

static void check_contents(const mst_file *file)
{
    for (size_t i = 0; i < BYTES; i++) {
        if (file->data[i] != byte_at(i))
            fail_msg("byte %zu is %d", i, file->data[i]);
    }
}

/* Resident pages of this process, in bytes; -1 where the system does not say. */
static long resident_bytes(void)
{
    long size, resident;
    FILE *stream = fopen("/proc/self/statm", "r");
    if (stream == NULL)
        return -1;
    int got = fscanf(stream, "%ld %ld", &size, &resident);
    (void)fclose(stream);
    return got == 2 ? resident * sysconf(_SC_PAGESIZE) : -1;
}

static void contents_stay_and_pages_go(void **state)
{
    (void)state;
    char *folder = folder_make();
    mst_file file = make_file(folder_path(folder, "file"));
    check_contents(&file);
    long before = resident_bytes();
    mst_file_let_go(&file, 0, BYTES);
    long after = resident_bytes();
    if (before >= 0 && after >= 0 && before - after < BYTES - 256 * 1024)
        fail_msg("%ld bytes were resident, %ld are; the file has %d", before, after, BYTES);
    check_contents(&file);
    /* any range, also one without a whole page or one past the end */
    const size_t ranges[][2] = {
        {1, 2},       {0, 0},           {4095, 4097},          {5000, 4000},
        {1, BYTES},   {BYTES, BYTES},   {BYTES + 1, SIZE_MAX}, {0, SIZE_MAX},
        {4096, 8192}, {8191, BYTES - 1}};
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        mst_file_let_go(&file, ranges[i][0], ranges[i][1]);
        check_contents(&file);
    }
    mst_file_unmap(&file);
    mst_file_let_go(&file, 0, BYTES); /* nothing is mapped: nothing happens */
    folder_remove(folder);
}

/* Pages that the range only touches stay. */
static void neighbours_stay_resident(void **state)
{
    (void)state;
    char *folder = folder_make();
    mst_file file = make_file(folder_path(folder, "file"));
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    check_contents(&file);
    long before = resident_bytes();
    mst_file_let_go(&file, page / 2, page + page / 2);
    mst_file_let_go(&file, 8 * page + 1, 10 * page - 1);
    long after = resident_bytes();
    if (before >= 0 && after >= 0)
        assert_true(before - after < (long)page * 16);
    mst_file_unmap(&file);
    folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(contents_stay_and_pages_go),
                                       cmocka_unit_test(neighbours_stay_resident)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
