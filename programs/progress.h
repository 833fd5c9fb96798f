/* progress.h - how far we are, on standard error. */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include "program.h"

typedef struct cli_progress {
    int mode; /* CLI_PROGRESS_..., AUTO resolved */
    bool color;
    bool shown;          /* a bar stands on the line */
    int64_t total_bytes; /* -1: not known */
    int64_t started_ns, last_ns;
    int64_t texts, tokens;
    uint64_t bytes;
} cli_progress;

void cli_progress_start(cli_progress *progress, int mode, int64_t total_bytes);
/* At most ten times a second for the bar, once a second for json. */
void cli_progress_update(cli_progress *progress, int64_t texts, int64_t tokens, uint64_t bytes);
/* Takes the bar away, or prints the last json line. Call before any other message. */
void cli_progress_end(cli_progress *progress);

#endif
