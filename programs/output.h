/*
 * output.h - where data goes: standard output, or a file that appears whole or not at all.
 *
 * With -o FILE the data goes to a temporary file in FILE's folder, which takes FILE's name when
 * everything has been written; until then, and after any failure, FILE is what it was. Something
 * that is not a regular file (a device, a pipe) is written in place.
 *
 * Puts are sticky: they go on quietly after a failed write, and cli_output_flush tells it.
 */
#ifndef CLI_OUTPUT_H
#define CLI_OUTPUT_H

#include "program.h"

typedef struct cli_output {
    int fd;
    bool own_fd;
    char *path; /* the final name; NULL for standard output */
    char *temp; /* the temporary file; NULL when written in place */
    const char *label;
    unsigned char *buffer;
    size_t used;
    int error; /* errno of the first write that failed */
    bool told;
} cli_output;

/* path NULL or "-": standard output. */
int cli_output_open(cli_output *output, const char *path);
/* A temporary file without a name, to be read back with cli_output_copy. */
int cli_output_open_spool(cli_output *output);

void cli_put(cli_output *output, const void *data, size_t bytes);
void cli_put_text(cli_output *output, const char *text);
void cli_put_format(cli_output *output, const char *format, ...) CLI_PRINTF(2, 3);
void cli_put_integer(cli_output *output, int64_t value);
void cli_put_f32(cli_output *output, float value);
/* A JSON string; bytes that are not UTF-8 become U+FFFD. */
void cli_put_json(cli_output *output, const char *text, size_t bytes);
/* Little-endian, whatever the machine. */
void cli_put_f32_bytes(cli_output *output, const float *values, int64_t count);

/* Writes what is buffered; tells and returns the first failure since the opening. */
int cli_output_flush(cli_output *output);
/* Can bytes written before be changed? True for a temporary file. */
bool cli_output_can_patch(const cli_output *output);
int cli_output_patch(cli_output *output, size_t offset, const void *data, size_t bytes);
/* Everything that was put into a spool, to output. */
int cli_output_copy(cli_output *spool, cli_output *output);

/* Flushes, closes and gives the file its name. */
int cli_output_commit(cli_output *output);
/* Frees; without a commit before it the temporary file goes. Harmless twice. */
void cli_output_close(cli_output *output);

#endif
