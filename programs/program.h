/*
 * program.h - what every command of the program shares: exit codes, messages, signals.
 *
 * The program uses the library's public headers only. Functions that cross files start with cli_;
 * those that can fail return an exit code (0 is success) after they have told the user why, so a
 * caller only passes the number up.
 */
#ifndef CLI_PROGRAM_H
#define CLI_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mstar.h"

#if defined(__GNUC__)
#define CLI_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define CLI_PRINTF(text, first)
#endif

/* 64 and above as in sysexits.h; the table is printed by `mstar help`. */
enum {
    CLI_OK = 0,
    CLI_FAILED = 1,
    CLI_USAGE = 2,
    CLI_NO_INPUT = 66,
    CLI_UNAVAILABLE = 69,
    CLI_INTERNAL = 70,
    CLI_CANNOT_CREATE = 73,
    CLI_IO_FAILED = 74,
    CLI_BAD_CONFIG = 78
};

/* Name of the command in messages: "mstar embed: ...". NULL for the program itself. */
void cli_set_command_name(const char *name);
/* One line on standard error; returns code. */
int cli_fail(int code, const char *format, ...) CLI_PRINTF(2, 3);
/* One line on standard error unless --quiet was given. */
void cli_note(const char *format, ...) CLI_PRINTF(1, 2);
void cli_set_quiet(bool quiet);
bool cli_is_quiet(void);
/* Out of memory in the program's own code. */
int cli_fail_memory(const char *what, size_t bytes);
/*
 * Makes a failed allocation inside jansson the end of the program: told in one line, a temporary
 * output file removed, exit code CLI_FAILED. jansson's parser and printer do not report all of
 * them, and go on with what they have. For main, before anything else uses jansson.
 */
void cli_json_install(void);
/* The exit code of a library call that failed while it worked on data (not while it loaded). */
int cli_exit_code(mstar_status status);

/*
 * SIGINT, SIGTERM, SIGHUP: the first one asks the command to stop after the present chunk, the
 * second one ends the program at once. A signal that was ignored when we were started stays
 * ignored. SIGPIPE is ignored: a closed pipe is then a failed write.
 */
void cli_signals_install(void);
/* 0, or the number of the signal that asked us to stop. */
int cli_signal_pending(void);
/* The exit code for a stop by signal (128 + number), told in one line. */
int cli_stopped(int64_t texts);
/* The second signal removes this file before it ends the program; NULL for none. */
void cli_signals_doom(const char *path);

enum { CLI_WAIT_INTERRUPTED = -1, CLI_WAIT_NOTHING = 0, CLI_WAIT_READY = 1 };
/* Waits until fd can be read or a signal asks us to stop; with block false it only looks. */
int cli_wait_readable(int fd, bool block);

#endif
