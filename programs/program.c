/*
 * program.c - messages, exit codes and signals.
 *
 * A message is built whole and written by one call, so that lines of several programs on one
 * terminal do not mix. Signals set a flag and wake a pipe that every blocking read polls: with the
 * flag alone, a signal between the look at the flag and the read would be lost, or be delivered to
 * a worker thread and not interrupt the read at all.
 */
#include "program.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *command_name;
static bool quiet_mode;

static volatile sig_atomic_t pending_signal;
static volatile sig_atomic_t doomed_set;
static char doomed_path[PATH_MAX];
static int wake_pipe[2] = {-1, -1};

/* ---- messages -------------------------------------------------------------------------------- */

void cli_set_command_name(const char *name)
{
    command_name = name;
}

void cli_set_quiet(bool quiet)
{
    quiet_mode = quiet;
}

bool cli_is_quiet(void)
{
    return quiet_mode;
}

static void say(const char *format, va_list arguments) CLI_PRINTF(1, 0);

static void say(const char *format, va_list arguments)
{
    char line[2048];
    const char *name = command_name != NULL ? command_name : "";
    int head = snprintf(line, sizeof line, "mstar%s%s: ", name[0] != '\0' ? " " : "", name);
    size_t used = head > 0 ? (size_t)head : 0;
    int body = vsnprintf(line + used, sizeof line - used - 1, format, arguments);
    if (body > 0)
        used += (size_t)body < sizeof line - used - 1 ? (size_t)body : sizeof line - used - 2;
    /* A file name or a text may hold anything; a message stays one line and moves no cursor. */
    for (size_t i = 0; i < used; i++) {
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
            line[i] = '?';
    }
    line[used++] = '\n';
    (void)fflush(stderr);
    ssize_t ignored = write(STDERR_FILENO, line, used);
    (void)ignored;
}

int cli_fail(int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments);
    va_end(arguments);
    return code;
}

void cli_note(const char *format, ...)
{
    if (quiet_mode)
        return;
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments);
    va_end(arguments);
}

int cli_fail_memory(const char *what, size_t bytes)
{
    return cli_fail(CLI_FAILED, "out of memory: %zu bytes for %s", bytes, what);
}

static void *json_memory(size_t bytes)
{
    void *memory = malloc(bytes);
    if (memory != NULL)
        return memory;
    int code = cli_fail_memory("JSON", bytes);
    if (doomed_set)
        (void)unlink(doomed_path);
    _exit(code);
}

void cli_json_install(void)
{
    json_set_alloc_funcs(json_memory, free);
}

int cli_exit_code(mstar_status status)
{
    switch (status) {
    case MSTAR_OK:
        return CLI_OK;
    case MSTAR_DEVICE_UNAVAILABLE:
        return CLI_UNAVAILABLE;
    case MSTAR_IO_FAILED:
        return CLI_IO_FAILED;
    case MSTAR_INTERNAL:
    case MSTAR_OUT_OF_ORDER: /* the program, not its user, calls out of order */
        return CLI_INTERNAL;
    default:
        return CLI_FAILED;
    }
}

/* ---- signals --------------------------------------------------------------------------------- */

static void handle_signal(int number)
{
    int saved = errno;
    if (pending_signal != 0) {
        if (doomed_set)
            (void)unlink(doomed_path);
        _exit(128 + number);
    }
    pending_signal = number;
    ssize_t ignored = write(wake_pipe[1], "!", 1);
    (void)ignored;
    errno = saved;
}

void cli_signals_install(void)
{
    /* Without the standard descriptors the next file opened would take their numbers, and data
       would go into it: hold the places with descriptors that fail on use. */
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) == -1 && errno == EBADF)
            (void)open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
    }
    struct sigaction action;
    memset(&action, 0, sizeof action);
    (void)sigemptyset(&action.sa_mask);
    action.sa_handler = SIG_IGN;
    (void)sigaction(SIGPIPE, &action, NULL);
    (void)sigaction(SIGXFSZ, &action, NULL); /* past `ulimit -f` a write then fails */

    if (pipe(wake_pipe) != 0)
        return; /* no descriptors left: the default action of signals is then good enough */
    for (int i = 0; i < 2; i++) {
        (void)fcntl(wake_pipe[i], F_SETFD, FD_CLOEXEC);
        (void)fcntl(wake_pipe[i], F_SETFL, O_NONBLOCK);
    }
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    action.sa_handler = handle_signal;
    action.sa_flags = SA_RESTART;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        (void)sigaddset(&action.sa_mask, numbers[i]);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        struct sigaction former;
        if (sigaction(numbers[i], NULL, &former) == 0 && former.sa_handler != SIG_IGN)
            (void)sigaction(numbers[i], &action, NULL);
    }
}

int cli_signal_pending(void)
{
    return (int)pending_signal;
}

int cli_stopped(int64_t texts)
{
    int number = cli_signal_pending();
    return cli_fail(128 + number, "stopped by signal %d after %lld texts", number,
                    (long long)texts);
}

void cli_signals_doom(const char *path)
{
    doomed_set = 0;
    if (path == NULL || strlen(path) >= sizeof doomed_path)
        return;
    memcpy(doomed_path, path, strlen(path) + 1);
    doomed_set = 1;
}

int cli_wait_readable(int fd, bool block)
{
    for (;;) {
        if (pending_signal != 0)
            return CLI_WAIT_INTERRUPTED;
        struct pollfd fds[2] = {{.fd = fd, .events = POLLIN},
                                {.fd = wake_pipe[0], .events = POLLIN}};
        int ready = poll(fds, 2, block ? -1 : 0);
        if (ready == 0)
            return CLI_WAIT_NOTHING;
        if (ready < 0) {
            if (errno == EINTR)
                continue;
            return CLI_WAIT_READY; /* let read say what is wrong */
        }
        if (fds[1].revents != 0)
            continue; /* the flag is set by now */
        return CLI_WAIT_READY;
    }
}
