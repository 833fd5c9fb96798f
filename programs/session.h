/* session.h - a device and an encoder as the options ask for them. */
#ifndef CLI_SESSION_H
#define CLI_SESSION_H

#include "input.h"
#include "options.h"

typedef struct cli_session {
    mstar_device *device;
    mstar_encoder *encoder;
    mstar_device_info machine;
    mstar_encoder_info model;
    bool timing; /* set before a load: the encoder keeps the times of its stages */
} cli_session;

int cli_session_open_device(cli_session *session, int64_t threads);
/* The same on a device by name; NULL is the CPU. */
int cli_session_open_named(cli_session *session, const char *name, int64_t threads);
/* Needs the device. prompt_name as in mstar_encoder_desc. With options->graphs the encoder
 * captures; a FILE is read first. */
int cli_session_load(cli_session *session, const cli_options *options, const char *prompt_name);
void cli_session_unload(cli_session *session);
void cli_session_close(cli_session *session);

/* The exit code of a load that failed, told. */
int cli_fail_load(mstar_status status);
/* Chunks that keep every worker busy and still end within about a second. */
cli_chunk_limits cli_session_chunk_limits(const cli_session *session);

/* Vectors of a chunk, count rows of model.dims; buffers are kept for the next chunk. */
typedef struct cli_embedder {
    float *values;
    mstar_text_result *results;
    int64_t capacity;
    /* of all chunks so far */
    int64_t texts, tokens, truncated, empty;
    int64_t first_truncated_line, first_empty_line; /* 0: none */
} cli_embedder;
int cli_embed_chunk(cli_session *session, const cli_options *options, const cli_input *input,
                    const cli_chunk *chunk, cli_embedder *embedder);
/* How many texts were cut and how many were empty, on standard error. */
void cli_embedder_report(const cli_embedder *embedder, int64_t max_tokens);
void cli_embedder_release(cli_embedder *embedder);

#endif
