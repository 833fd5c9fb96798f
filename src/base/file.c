/* file.c - files mapped read-only, and paths. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"

static mstar_status fail_errno(const char *path, const char *verb, int error)
{
    mstar_status status = error == ENOENT || error == ENOTDIR ? MSTAR_NOT_FOUND : MSTAR_IO_FAILED;
    char text[128];
    const char *reason = text;
#if defined(_GNU_SOURCE)
    reason = strerror_r(error, text, sizeof text);
#else
    if (strerror_r(error, text, sizeof text) != 0)
        reason = "unknown error";
#endif
    return mst_fail(status, "%s: cannot %s: %s", path, verb, reason);
}

mstar_status mst_file_map(const char *path, mst_file *file)
{
    *file = (mst_file){NULL, 0, NULL};
    /* O_NONBLOCK: a FIFO in the file's place is refused below, not waited for */
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0)
        return fail_errno(path, "open", errno);
    mstar_status status = MSTAR_OK;
    struct stat facts;
    if (fstat(descriptor, &facts) != 0) {
        status = fail_errno(path, "stat", errno);
        goto done;
    }
    if (!S_ISREG(facts.st_mode)) {
        status = mst_fail(MSTAR_IO_FAILED, "%s: not a regular file", path);
        goto done;
    }
    MST_TRY_GOTO(mst_strdup(path, "file path", &file->path), done);
    file->bytes = (size_t)facts.st_size;
    if (file->bytes > 0) {
        void *data = mmap(NULL, file->bytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
        if (data == MAP_FAILED) {
            status = fail_errno(path, "map", errno);
            mst_free(file->path);
            *file = (mst_file){NULL, 0, NULL};
            goto done;
        }
        file->data = data;
    }
done:
    (void)close(descriptor);
    return status;
}

void mst_file_unmap(mst_file *file)
{
    if (file->data != NULL)
        (void)munmap((void *)(uintptr_t)file->data, file->bytes);
    mst_free(file->path);
    *file = (mst_file){NULL, 0, NULL};
}

void mst_file_let_go(const mst_file *file, size_t begin, size_t end)
{
    long page_bytes = sysconf(_SC_PAGESIZE);
    if (file->data == NULL || page_bytes <= 0)
        return;
    /* the mapping begins at a page, so pages of the file are pages of memory; its last one is whole
     * to the system though the file may end inside it */
    size_t page = (size_t)page_bytes;
    size_t first = begin / page + (begin % page != 0 ? 1 : 0);
    size_t last = end < file->bytes ? end / page : (file->bytes + page - 1) / page;
    if (first < last) /* advice: a system that does not follow it has lost nothing */
        (void)madvise((void *)(uintptr_t)(file->data + first * page), (last - first) * page,
                      MADV_DONTNEED);
}

/* The file's type, 0 for nothing there. */
static mstar_status look(const char *path, mode_t *type)
{
    struct stat facts;
    *type = 0;
    if (stat(path, &facts) == 0)
        *type = facts.st_mode & S_IFMT;
    else if (errno != ENOENT && errno != ENOTDIR)
        return fail_errno(path, "look for it", errno);
    return MSTAR_OK;
}

mstar_status mst_file_look(const char *path, bool *there)
{
    mode_t type;
    mstar_status status = look(path, &type);
    *there = type == S_IFREG;
    return status;
}

mstar_status mst_folder_look(const char *path, bool *there)
{
    mode_t type;
    mstar_status status = look(path, &type);
    *there = type == S_IFDIR;
    return status;
}

mstar_status mst_path_join(const char *folder, const char *name, char **path)
{
    size_t folder_bytes = strlen(folder);
    size_t name_bytes = strlen(name);
    void *memory;
    *path = NULL;
    MST_TRY(mst_alloc(folder_bytes + name_bytes + 2, "path", &memory));
    char *text = memory;
    memcpy(text, folder, folder_bytes);
    if (folder_bytes > 0 && text[folder_bytes - 1] != '/')
        text[folder_bytes++] = '/';
    memcpy(text + folder_bytes, name, name_bytes + 1);
    *path = text;
    return MSTAR_OK;
}
