/*
 * progress.c - how far we are, on standard error.
 *
 * The bar needs a terminal that can move its cursor; --progress=bar insists on it. Colour is only
 * the filled part: NO_COLOR takes it away, CLICOLOR_FORCE gives it without a terminal too
 * (no-color.org, bixense.com/clicolors). --quiet silences everything.
 */
#include "progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "options.h"

enum { PAUSE_BAR_NS = 100000000, PAUSE_JSON_NS = 1000000000 };

static int64_t now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static bool is_set(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0';
}

static void emit(const char *text, int bytes)
{
    if (bytes <= 0)
        return;
    ssize_t ignored = write(STDERR_FILENO, text, (size_t)bytes);
    (void)ignored;
}

void cli_progress_start(cli_progress *progress, int mode, int64_t total_bytes)
{
    memset(progress, 0, sizeof *progress);
    bool terminal = isatty(STDERR_FILENO) == 1;
    const char *term = getenv("TERM");
    bool dumb = term != NULL && strcmp(term, "dumb") == 0;
    if (mode == CLI_PROGRESS_AUTO)
        mode = terminal && !dumb ? CLI_PROGRESS_BAR : CLI_PROGRESS_NONE;
    progress->mode = cli_is_quiet() ? CLI_PROGRESS_NONE : mode;
    const char *force = getenv("CLICOLOR_FORCE");
    bool forced = force != NULL && force[0] != '\0' && strcmp(force, "0") != 0;
    progress->color = !is_set("NO_COLOR") && (forced || (terminal && !dumb));
    progress->total_bytes = total_bytes;
    progress->started_ns = now_ns();
    progress->last_ns = progress->started_ns - PAUSE_JSON_NS; /* the first update shows */
}

static void print_bar(cli_progress *progress, double seconds)
{
    enum { CELLS = 24 };
    char line[256];
    double rate = seconds > 0 ? (double)progress->texts / seconds : 0;
    int written;
    if (progress->total_bytes > 0) {
        double part = (double)progress->bytes / (double)progress->total_bytes;
        part = part < 0 ? 0 : part > 1 ? 1 : part;
        int filled = (int)(part * CELLS);
        char cells[CELLS + 1];
        memset(cells, '#', CELLS);
        cells[CELLS] = '\0';
        double left = part > 0 ? seconds * (1 - part) / part : 0;
        written = snprintf(
            line, sizeof line, "\r%s%.*s%s%*s %3d%%  %lld texts  %.0f/s  %.0f s left",
            progress->color ? "\x1b[32m" : "", filled, cells, progress->color ? "\x1b[0m" : "",
            CELLS - filled, "", (int)(part * 100), (long long)progress->texts, rate, left);
    } else {
        written = snprintf(line, sizeof line, "\r%lld texts  %lld tokens  %.0f/s",
                           (long long)progress->texts, (long long)progress->tokens, rate);
    }
    if (written > 0 && (size_t)written + 4 < sizeof line) {
        memcpy(line + written, "\x1b[K", 3); /* clear what a longer line left */
        emit(line, written + 3);
    }
    progress->shown = true;
}

static void print_json(const cli_progress *progress, double seconds, bool last)
{
    char line[256];
    char total[24] = "null";
    if (progress->total_bytes >= 0)
        (void)snprintf(total, sizeof total, "%lld", (long long)progress->total_bytes);
    int written =
        snprintf(line, sizeof line,
                 "{\"event\":\"%s\",\"texts\":%lld,\"tokens\":%lld,\"bytes\":%llu,"
                 "\"total_bytes\":%s,\"seconds\":%.3f}\n",
                 last ? "end" : "progress", (long long)progress->texts, (long long)progress->tokens,
                 (unsigned long long)progress->bytes, total, seconds);
    emit(line, written);
}

void cli_progress_update(cli_progress *progress, int64_t texts, int64_t tokens, uint64_t bytes)
{
    progress->texts = texts;
    progress->tokens = tokens;
    progress->bytes = bytes;
    if (progress->mode == CLI_PROGRESS_NONE)
        return;
    int64_t now = now_ns();
    int64_t pause = progress->mode == CLI_PROGRESS_BAR ? PAUSE_BAR_NS : PAUSE_JSON_NS;
    if (now - progress->last_ns < pause)
        return;
    progress->last_ns = now;
    double seconds = (double)(now - progress->started_ns) * 1e-9;
    if (progress->mode == CLI_PROGRESS_BAR)
        print_bar(progress, seconds);
    else
        print_json(progress, seconds, false);
}

void cli_progress_end(cli_progress *progress)
{
    if (progress->mode == CLI_PROGRESS_BAR && progress->shown)
        emit("\r\x1b[K", 4);
    if (progress->mode == CLI_PROGRESS_JSON)
        print_json(progress, (double)(now_ns() - progress->started_ns) * 1e-9, true);
    progress->mode = CLI_PROGRESS_NONE;
}
