/* vectors.h - vectors in the four formats, which hold the same bits. */
#ifndef CLI_VECTORS_H
#define CLI_VECTORS_H

#include "input.h"
#include "output.h"

typedef struct cli_vectors {
    cli_output *output;
    int format; /* CLI_FORMAT_... */
    int64_t dims;
    int64_t rows;
    bool spooling; /* npy to something that cannot be patched: rows wait in the spool */
    cli_output spool;
} cli_vectors;

int cli_vectors_open(cli_vectors *vectors, cli_output *output, int format, int64_t dims);
/* One row a text of the chunk, whole lines; flushed. */
int cli_vectors_write(cli_vectors *vectors, const cli_chunk *chunk, const float *values,
                      const mstar_text_result *results);
/* Completes the data; the output is then ready for its commit. */
int cli_vectors_finish(cli_vectors *vectors);
void cli_vectors_close(cli_vectors *vectors);

#endif
