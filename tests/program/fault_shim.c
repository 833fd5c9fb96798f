/*
 * fault_shim.c - loaded before the C library (LD_PRELOAD), it fails one call of the program: the
 * test test_faults.py runs a command once for each call that it makes.
 *
 *   MSTAR_FAULT=CALL:NUMBER:ERRNO   the NUMBER-th CALL (from 1) fails with that errno
 *   MSTAR_FAULT=CALL:NUMBER:short   it reads or writes one byte
 *   MSTAR_FAULT_MARK=PATH           a file that is made when that call comes: without it the
 * command makes fewer calls than NUMBER
 *
 * Messages go unharmed: writes to descriptor 2 are not counted.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static char fault_call[32];
static long fault_number;
static int fault_errno; /* -1: short */
static _Atomic long calls;

__attribute__((constructor)) static void read_fault(void)
{
    const char *text = getenv("MSTAR_FAULT");
    char what[16];
    if (text == NULL || sscanf(text, "%31[^:]:%ld:%15s", fault_call, &fault_number, what) != 3)
        return;
    fault_errno = strcmp(what, "short") == 0 ? -1 : atoi(what);
}

/* Is this the call? */
static bool is_due(const char *call)
{
    if (fault_call[0] == '\0' || strcmp(call, fault_call) != 0)
        return false;
    if (atomic_fetch_add(&calls, 1) + 1 != fault_number)
        return false;
    const char *mark = getenv("MSTAR_FAULT_MARK");
    if (mark != NULL) {
        long made = syscall(SYS_openat, AT_FDCWD, mark, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        if (made >= 0)
            (void)syscall(SYS_close, made);
    }
    return true;
}

/* Fails the call with the wanted errno; a short one goes on with one byte. */
static bool fails(const char *call, size_t *bytes)
{
    if (!is_due(call))
        return false;
    if (fault_errno < 0 && bytes != NULL) {
        *bytes = *bytes > 1 ? 1 : *bytes;
        return false;
    }
    errno = fault_errno;
    return true;
}

/* The C library's own function of this name. */
#define NEXT(name)                             \
    static __typeof__(name) *next;             \
    if (next == NULL) {                        \
        void *found = dlsym(RTLD_NEXT, #name); \
        memcpy(&next, &found, sizeof next);    \
    }

/* ---- reading and writing --------------------------------------------------------------------- */

ssize_t read(int fd, void *data, size_t bytes)
{
    NEXT(read)
    return fails("read", &bytes) ? -1 : next(fd, data, bytes);
}

ssize_t write(int fd, const void *data, size_t bytes)
{
    NEXT(write)
    return fd != STDERR_FILENO && fails("write", &bytes) ? -1 : next(fd, data, bytes);
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    NEXT(pwrite)
    return fails("pwrite", &bytes) ? -1 : next(fd, data, bytes, offset);
}

int poll(struct pollfd *fds, nfds_t count, int wait)
{
    NEXT(poll)
    return fails("poll", NULL) ? -1 : next(fds, count, wait);
}

off_t lseek(int fd, off_t offset, int from)
{
    NEXT(lseek)
    return fails("lseek", NULL) ? -1 : next(fd, offset, from);
}

/* ---- files ----------------------------------------------------------------------------------- */

int open(const char *path, int flags, ...)
{
    NEXT(open)
    mode_t mode = 0;
    if (flags & O_CREAT) {
        va_list arguments;
        va_start(arguments, flags);
        mode = va_arg(arguments, mode_t);
        va_end(arguments);
    }
    return fails("open", NULL) ? -1 : next(path, flags, mode);
}

/* Like close(2) on Linux, whatever it reports: the descriptor is gone. */
int close(int fd)
{
    NEXT(close)
    bool failed = fails("close", NULL);
    int result = next(fd);
    if (failed)
        errno = fault_errno;
    return failed ? -1 : result;
}

int fsync(int fd)
{
    NEXT(fsync)
    return fails("fsync", NULL) ? -1 : next(fd);
}

int rename(const char *from, const char *to)
{
    NEXT(rename)
    return fails("rename", NULL) ? -1 : next(from, to);
}

int mkstemp(char *path)
{
    NEXT(mkstemp)
    return fails("mkstemp", NULL) ? -1 : next(path);
}

int fchmod(int fd, mode_t mode)
{
    NEXT(fchmod)
    return fails("fchmod", NULL) ? -1 : next(fd, mode);
}

int access(const char *path, int mode)
{
    NEXT(access)
    return fails("access", NULL) ? -1 : next(path, mode);
}

char *realpath(const char *path, char *out)
{
    NEXT(realpath)
    return fails("realpath", NULL) ? NULL : next(path, out);
}

int stat(const char *path, struct stat *facts)
{
    NEXT(stat)
    return fails("stat", NULL) ? -1 : next(path, facts);
}

int fstat(int fd, struct stat *facts)
{
    NEXT(fstat)
    return fails("fstat", NULL) ? -1 : next(fd, facts);
}

void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    NEXT(mmap)
    /* of a file: the sanitizers and the C library map memory of their own */
    return fd >= 0 && fails("mmap", NULL) ? MAP_FAILED
                                          : next(at, bytes, protection, flags, fd, offset);
}

/* ---- the rest -------------------------------------------------------------------------------- */

int pipe(int fds[2])
{
    NEXT(pipe)
    return fails("pipe", NULL) ? -1 : next(fds);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *),
                   void *context)
{
    NEXT(pthread_create)
    return fails("pthread_create", NULL) ? fault_errno : next(thread, attributes, start, context);
}

/*
 * Memory, in a build without a sanitizer (whose own allocator these would hide): the C library's
 * by its second names, since dlsym itself allocates.
 */
#if !defined(FAULT_SHIM_NO_MEMORY)
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

void *malloc(size_t bytes)
{
    return fails("malloc", NULL) ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    return fails("malloc", NULL) ? NULL : __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    return fails("malloc", NULL) ? NULL : __libc_realloc(memory, bytes);
}

int posix_memalign(void **memory, size_t alignment, size_t bytes)
{
    if (fails("malloc", NULL))
        return ENOMEM;
    void *made = __libc_memalign(alignment, bytes);
    if (made == NULL)
        return ENOMEM;
    *memory = made;
    return 0;
}
#endif
