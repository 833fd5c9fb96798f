/*
 * vectors.c - vectors in the four formats, which hold the same bits.
 *
 * A .npy file says in its header how many rows follow, and we know that at the end only. Into a
 * file of our own the header is written again in place; for a pipe the rows wait in a temporary
 * file, so that memory stays bounded.
 */
#include "vectors.h"

#include <stdio.h>
#include <string.h>

#include "options.h"

enum { NPY_HEADER_BYTES = 128 };

/* Format 1.0: magic, version, length of what follows, a Python dict padded with blanks. */
static void make_npy_header(int64_t rows, int64_t dims, char header[NPY_HEADER_BYTES])
{
    memset(header, ' ', NPY_HEADER_BYTES);
    memcpy(header, "\x93NUMPY\x01\x00", 8);
    header[8] = NPY_HEADER_BYTES - 10;
    header[9] = 0;
    char text[NPY_HEADER_BYTES];
    int written = snprintf(text, sizeof text,
                           "{'descr': '<f4', 'fortran_order': False, 'shape': (%lld, %lld), }",
                           (long long)rows, (long long)dims);
    memcpy(header + 10, text, (size_t)written);
    header[NPY_HEADER_BYTES - 1] = '\n';
}

static void put_npy_header(cli_vectors *vectors)
{
    char header[NPY_HEADER_BYTES];
    make_npy_header(vectors->rows, vectors->dims, header);
    cli_put(vectors->output, header, sizeof header);
}

int cli_vectors_open(cli_vectors *vectors, cli_output *output, int format, int64_t dims)
{
    memset(vectors, 0, sizeof *vectors);
    vectors->output = output;
    vectors->format = format;
    vectors->dims = dims;
    if (format != CLI_FORMAT_NPY)
        return CLI_OK;
    if (cli_output_can_patch(output)) {
        put_npy_header(vectors);
        return CLI_OK;
    }
    vectors->spooling = true;
    return cli_output_open_spool(&vectors->spool);
}

static void put_row(cli_output *output, const float *row, int64_t dims)
{
    for (int64_t i = 0; i < dims; i++) {
        if (i > 0)
            cli_put(output, ",", 1);
        cli_put_f32(output, row[i]);
    }
}

static void put_object(cli_vectors *vectors, const cli_chunk *chunk, int64_t i, const float *row,
                       const mstar_text_result *result)
{
    cli_output *output = vectors->output;
    const cli_chunk_item *item = &chunk->items[i];
    cli_put_format(output, "{\"index\":%lld", (long long)(chunk->first_index + i));
    if (item->id_bytes > 0) {
        cli_put_text(output, ",\"id\":");
        cli_put(output, chunk->bytes + item->id_offset, item->id_bytes);
    }
    cli_put_format(output, ",\"tokens\":%lld,\"truncated\":%s,\"embedding\":[",
                   (long long)result->tokens,
                   result->untruncated_tokens > result->tokens ? "true" : "false");
    put_row(output, row, vectors->dims);
    cli_put_text(output, "]}\n");
}

int cli_vectors_write(cli_vectors *vectors, const cli_chunk *chunk, const float *values,
                      const mstar_text_result *results)
{
    cli_output *output = vectors->spooling ? &vectors->spool : vectors->output;
    for (int64_t i = 0; i < chunk->count; i++) {
        const float *row = values + i * vectors->dims;
        switch (vectors->format) {
        case CLI_FORMAT_JSONL:
            put_object(vectors, chunk, i, row, &results[i]);
            break;
        case CLI_FORMAT_CSV:
            put_row(output, row, vectors->dims);
            cli_put(output, "\n", 1);
            break;
        default: /* npy, f32 */
            cli_put_f32_bytes(output, row, vectors->dims);
            break;
        }
    }
    vectors->rows += chunk->count;
    return cli_output_flush(output);
}

int cli_vectors_finish(cli_vectors *vectors)
{
    if (vectors->format != CLI_FORMAT_NPY)
        return CLI_OK;
    if (vectors->spooling) {
        put_npy_header(vectors);
        return cli_output_copy(&vectors->spool, vectors->output);
    }
    char header[NPY_HEADER_BYTES];
    make_npy_header(vectors->rows, vectors->dims, header);
    return cli_output_patch(vectors->output, 0, header, sizeof header);
}

void cli_vectors_close(cli_vectors *vectors)
{
    cli_output_close(&vectors->spool);
}
