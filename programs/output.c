/*
 * output.c - standard output, or a file that appears whole or not at all.
 *
 * Plain descriptors and a buffer of our own: stdio reports a full disk late and loses which call
 * failed.
 */
#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "number.h"
#include "utf8.h"

enum { BUFFER_BYTES = 1 << 16 };

/* ---- opening --------------------------------------------------------------------------------- */

static int take_buffer(cli_output *output)
{
    output->buffer = malloc(BUFFER_BYTES);
    return output->buffer != NULL ? CLI_OK : cli_fail_memory("the output buffer", BUFFER_BYTES);
}

static void block_signals(bool block, sigset_t *former)
{
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGHUP);
    (void)(block ? sigprocmask(SIG_BLOCK, &set, former) : sigprocmask(SIG_SETMASK, former, NULL));
}

/* The folder of path with its '/', and a name that mkstemp fills in. */
static char *temp_name(const char *path)
{
    static const char name[] = ".mstar-XXXXXX";
    const char *slash = strrchr(path, '/');
    size_t folder = slash != NULL ? (size_t)(slash - path) + 1 : 0;
    char *temp = malloc(folder + sizeof name);
    if (temp != NULL) {
        memcpy(temp, path, folder);
        memcpy(temp + folder, name, sizeof name);
    }
    return temp;
}

/* The mode that open(2) would have given, or that of the file to be replaced. */
static mode_t final_mode(bool exists, const struct stat *former)
{
    if (exists)
        return former->st_mode & 0777;
    mode_t mask = umask(0);
    (void)umask(mask);
    return 0666 & ~mask;
}

static int open_temp(cli_output *output, mode_t mode)
{
    output->temp = temp_name(output->path);
    if (output->temp == NULL)
        return cli_fail_memory("a file name", strlen(output->path));
    sigset_t former;
    block_signals(true, &former);
    output->fd = mkstemp(output->temp);
    int reason = errno;
    if (output->fd >= 0)
        cli_signals_doom(output->temp);
    block_signals(false, &former);
    if (output->fd < 0) {
        free(output->temp);
        output->temp = NULL;
        return cli_fail(CLI_CANNOT_CREATE, "cannot create %s: %s", output->path, strerror(reason));
    }
    output->own_fd = true;
    (void)fcntl(output->fd, F_SETFD, FD_CLOEXEC);
    (void)fchmod(output->fd, mode);
    return CLI_OK;
}

/* A FIFO has a writer's end once it has a reader; until then a signal may end the wait. */
static int open_in_place(cli_output *output, const char *path)
{
    const struct timespec pause = {.tv_nsec = 20000000};
    for (;;) {
        output->fd = open(output->path, O_WRONLY | O_CLOEXEC | O_NONBLOCK);
        if (output->fd >= 0 || errno != ENXIO)
            break;
        if (cli_signal_pending() != 0)
            return cli_stopped(0);
        (void)nanosleep(&pause, NULL);
    }
    if (output->fd < 0)
        return cli_fail(CLI_CANNOT_CREATE, "cannot open %s: %s", path, strerror(errno));
    output->own_fd = true;
    (void)fcntl(output->fd, F_SETFL, 0); /* writes wait */
    return CLI_OK;
}

int cli_output_open(cli_output *output, const char *path)
{
    memset(output, 0, sizeof *output);
    output->fd = -1;
    int code = take_buffer(output);
    if (code != CLI_OK)
        return code;
    if (path == NULL || strcmp(path, "-") == 0) {
        output->fd = STDOUT_FILENO;
        output->label = "standard output";
        return CLI_OK;
    }
    struct stat former;
    bool exists = stat(path, &former) == 0;
    if (!exists && errno != ENOENT)
        return cli_fail(CLI_CANNOT_CREATE, "cannot create %s: %s", path, strerror(errno));
    if (!exists && lstat(path, &former) == 0)
        return cli_fail(CLI_CANNOT_CREATE, "cannot create %s: a symbolic link to nothing", path);
    if (exists && S_ISDIR(former.st_mode))
        return cli_fail(CLI_CANNOT_CREATE, "cannot create %s: it is a folder", path);
    /* The file behind a symbolic link is replaced, not the link. */
    output->path = exists ? realpath(path, NULL) : strdup(path);
    if (output->path == NULL)
        return cli_fail(CLI_CANNOT_CREATE, "cannot create %s: %s", path, strerror(errno));
    output->label = output->path;
    if (exists && S_ISSOCK(former.st_mode))
        return cli_fail(CLI_CANNOT_CREATE, "cannot open %s: it is a socket", path);
    if (exists && !S_ISREG(former.st_mode))
        return open_in_place(output, path);
    if (exists && access(output->path, W_OK) != 0)
        return cli_fail(CLI_CANNOT_CREATE, "cannot write %s: %s", path, strerror(errno));
    return open_temp(output, final_mode(exists, &former));
}

int cli_output_open_spool(cli_output *output)
{
    memset(output, 0, sizeof *output);
    output->fd = -1;
    output->label = "a temporary file";
    int code = take_buffer(output);
    if (code != CLI_OK)
        return code;
    const char *folder = getenv("TMPDIR");
    if (folder == NULL || folder[0] == '\0')
        folder = "/tmp";
    char path[PATH_MAX];
    int written = snprintf(path, sizeof path, "%s/mstar-XXXXXX", folder);
    if (written < 0 || (size_t)written >= sizeof path)
        return cli_fail(CLI_CANNOT_CREATE, "TMPDIR is too long");
    sigset_t former;
    block_signals(true, &former);
    output->fd = mkstemp(path);
    int reason = errno;
    if (output->fd >= 0)
        (void)unlink(path);
    block_signals(false, &former);
    if (output->fd < 0)
        return cli_fail(CLI_CANNOT_CREATE, "cannot create a temporary file in %s: %s", folder,
                        strerror(reason));
    output->own_fd = true;
    (void)fcntl(output->fd, F_SETFD, FD_CLOEXEC);
    return CLI_OK;
}

/* ---- putting --------------------------------------------------------------------------------- */

static void write_all(cli_output *output, const unsigned char *data, size_t bytes)
{
    while (bytes > 0 && output->error == 0) {
        ssize_t done = write(output->fd, data, bytes);
        if (done < 0) {
            if (errno != EINTR)
                output->error = errno;
            continue;
        }
        data += done;
        bytes -= (size_t)done;
    }
}

void cli_put(cli_output *output, const void *data, size_t bytes)
{
    if (bytes > BUFFER_BYTES - output->used) {
        write_all(output, output->buffer, output->used);
        output->used = 0;
        if (bytes > BUFFER_BYTES) {
            write_all(output, data, bytes);
            return;
        }
    }
    if (bytes > 0)
        memcpy(output->buffer + output->used, data, bytes);
    output->used += bytes;
}

void cli_put_text(cli_output *output, const char *text)
{
    cli_put(output, text, strlen(text));
}

void cli_put_format(cli_output *output, const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    int written = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (written > 0)
        cli_put(output, text, (size_t)written < sizeof text ? (size_t)written : sizeof text - 1);
}

void cli_put_integer(cli_output *output, int64_t value)
{
    char text[24];
    int written = snprintf(text, sizeof text, "%lld", (long long)value);
    cli_put(output, text, (size_t)written);
}

void cli_put_f32(cli_output *output, float value)
{
    char text[CLI_F32_CHARS];
    cli_put(output, text, cli_format_f32(value, text));
}

void cli_put_f32_bytes(cli_output *output, const float *values, int64_t count)
{
    unsigned char bytes[1024];
    size_t used = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, values + i, sizeof bits);
        for (int shift = 0; shift < 32; shift += 8)
            bytes[used++] = (unsigned char)(bits >> shift);
        if (used == sizeof bytes || i + 1 == count) {
            cli_put(output, bytes, used);
            used = 0;
        }
    }
}

void cli_put_json(cli_output *output, const char *text, size_t bytes)
{
    cli_put(output, "\"", 1);
    size_t at = 0, plain = 0; /* [plain, at) can go out as it is */
    while (at < bytes) {
        unsigned char c = (unsigned char)text[at];
        size_t length = cli_utf8_length(text + at, bytes - at);
        if (length > 0 && c >= 0x20 && c != '"' && c != '\\' && c != 0x7f) {
            at += length;
            continue;
        }
        cli_put(output, text + plain, at - plain);
        if (length == 0)
            cli_put_text(output, "\xef\xbf\xbd");
        else if (c == '"' || c == '\\')
            cli_put_format(output, "\\%c", c);
        else if (c == '\n' || c == '\t' || c == '\r')
            cli_put_text(output, c == '\n' ? "\\n" : c == '\t' ? "\\t" : "\\r");
        else
            cli_put_format(output, "\\u%04x", c);
        plain = ++at;
    }
    cli_put(output, text + plain, at - plain);
    cli_put(output, "\"", 1);
}

/* ---- ending ---------------------------------------------------------------------------------- */

static int tell(cli_output *output)
{
    if (output->error == 0)
        return CLI_OK;
    if (!output->told) {
        output->told = true;
        if (output->error == EPIPE)
            (void)cli_fail(CLI_IO_FAILED, "%s was closed by its reader", output->label);
        else
            (void)cli_fail(CLI_IO_FAILED, "cannot write %s: %s", output->label,
                           strerror(output->error));
    }
    return CLI_IO_FAILED;
}

int cli_output_flush(cli_output *output)
{
    write_all(output, output->buffer, output->used);
    output->used = 0;
    return tell(output);
}

bool cli_output_can_patch(const cli_output *output)
{
    return output->temp != NULL;
}

int cli_output_patch(cli_output *output, size_t offset, const void *data, size_t bytes)
{
    int code = cli_output_flush(output);
    if (code != CLI_OK)
        return code;
    const unsigned char *at = data;
    while (bytes > 0) {
        ssize_t done = pwrite(output->fd, at, bytes, (off_t)offset);
        if (done < 0 && errno != EINTR) {
            output->error = errno;
            return tell(output);
        }
        if (done > 0) {
            at += done;
            bytes -= (size_t)done;
            offset += (size_t)done;
        }
    }
    return CLI_OK;
}

int cli_output_copy(cli_output *spool, cli_output *output)
{
    int code = cli_output_flush(spool);
    if (code != CLI_OK)
        return code;
    if (lseek(spool->fd, 0, SEEK_SET) != 0)
        return cli_fail(CLI_IO_FAILED, "cannot read %s: %s", spool->label, strerror(errno));
    for (;;) {
        ssize_t done = read(spool->fd, spool->buffer, BUFFER_BYTES);
        if (done == 0)
            return cli_output_flush(output);
        if (done < 0) {
            if (errno == EINTR)
                continue;
            return cli_fail(CLI_IO_FAILED, "cannot read %s: %s", spool->label, strerror(errno));
        }
        cli_put(output, spool->buffer, (size_t)done);
        if (output->error != 0)
            return tell(output);
    }
}

int cli_output_commit(cli_output *output)
{
    int code = cli_output_flush(output);
    if (code != CLI_OK || !output->own_fd)
        return code;
    /* Network file systems report a full disk only here. */
    bool failed = output->temp != NULL && fsync(output->fd) != 0;
    if (failed)
        output->error = errno;
    if (close(output->fd) != 0 && !failed)
        output->error = errno;
    output->fd = -1;
    output->own_fd = false;
    if (output->error != 0)
        return tell(output);
    if (output->temp == NULL)
        return CLI_OK;
    if (rename(output->temp, output->path) != 0)
        return cli_fail(CLI_CANNOT_CREATE, "cannot create %s: %s", output->path, strerror(errno));
    cli_signals_doom(NULL);
    free(output->temp);
    output->temp = NULL;
    return CLI_OK;
}

void cli_output_close(cli_output *output)
{
    if (output->own_fd)
        (void)close(output->fd);
    output->own_fd = false;
    if (output->temp != NULL) {
        (void)unlink(output->temp);
        cli_signals_doom(NULL);
    }
    free(output->temp);
    free(output->path);
    free(output->buffer);
    output->temp = NULL;
    output->path = NULL;
    output->buffer = NULL;
}
