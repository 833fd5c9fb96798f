/*
 * input.h - texts from a file or standard input, in chunks.
 *
 * lines: a text a line, ended by "\n" or "\r\n"; the last line may lack its end; an empty line is
 * a text. jsonl: an object a line with a string "text" (any Unicode, NUL by \u0000) and perhaps an
 * "id"; other fields are ignored, lines of blanks are skipped. A byte order mark at the start is
 * dropped in both.
 */
#ifndef CLI_INPUT_H
#define CLI_INPUT_H

#include "program.h"

typedef struct cli_input {
    int fd;
    bool own_fd;
    bool regular; /* a file: reading never waits */
    bool ended;
    int format; /* CLI_INPUT_... */
    char *label;
    char *buffer; /* bytes [start, end) are read but not yet taken */
    size_t start, end, capacity;
    int64_t line; /* lines taken so far */
    int64_t texts;
    uint64_t bytes_taken;
    int64_t total_bytes; /* of a regular file; -1: not known */
} cli_input;

/* When a chunk is full: texts, bytes, or the guess at its tokens. */
typedef struct cli_chunk_limits {
    int64_t max_texts;
    size_t max_bytes;
    int64_t max_tokens;      /* of the chunk */
    int64_t max_text_tokens; /* what a long text is cut to */
} cli_chunk_limits;

typedef struct cli_chunk_item {
    int64_t line;               /* from 1 */
    size_t offset, bytes;       /* the text, in the chunk's bytes */
    size_t id_offset, id_bytes; /* the id as JSON; 0 bytes: none */
    bool empty;                 /* nothing but blanks */
} cli_chunk_item;

typedef struct cli_chunk {
    char *bytes;
    size_t used, capacity;
    cli_chunk_item *items;
    mstar_text *texts; /* the same, for the library */
    int64_t count, item_capacity;
    int64_t first_index; /* of the whole input */
} cli_chunk;

/* path NULL or "-": standard input. */
int cli_input_open(cli_input *input, const char *path, int format);
void cli_input_close(cli_input *input);

/*
 * Fills the chunk anew. count 0: the input has ended, or a signal asks us to stop. A chunk is given
 * back early when the input is a pipe that has nothing more to say at present, so that a program at
 * its other end gets its answers.
 */
int cli_input_read(cli_input *input, const cli_chunk_limits *limits, cli_chunk *chunk);
void cli_chunk_release(cli_chunk *chunk);

#endif
