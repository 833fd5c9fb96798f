/*
 * tower.h - a stack of encoder layers with random weights, behind the public headers alone: what
 * `mstar bench tower` times.
 *
 *   pre   x += out(attention(norm(x)));  x += down(activation(up(norm(x))));  last: norm(x)
 *   post  x = norm(x + out(attention(x)));  x = norm(x + down(activation(up(x))))
 *
 * Every product has a bias, every norm is a layer norm. Weights, biases, norms and the input are
 * numbers of the generator of cli_bench_fill, each array with the next seed, in the order in which
 * tower.c makes them: anyone can make the same tower. All memory that a forward works in is taken
 * at open, and the input is never written, so a forward can be run and replayed any number of times
 * with the same result.
 */
#ifndef CLI_TOWER_H
#define CLI_TOWER_H

#include <stdbool.h>

#include "mstar.h"

/* Sizes and counts are at least 1. cu: offsets of the segments, num_segments + 1, kept. */
typedef struct cli_tower_config {
    int32_t layers, width, heads, head_dim, mlp;
    bool pre_norm;
    mstar_activation activation;
    mstar_dtype dtype; /* of rows and weights */
    const int32_t *cu;
    int64_t num_segments, num_tokens;
} cli_tower_config;

typedef struct cli_tower cli_tower;

/* An exit code; a failure has been told. device and stream are kept. */
int cli_tower_open(mstar_device *device, mstar_stream *stream, const cli_tower_config *config,
                   cli_tower **tower);
void cli_tower_close(cli_tower *tower);
/* Gives one forward to the stream; may be captured. As for the next, mstar_last_error tells. */
mstar_status cli_tower_forward(cli_tower *tower);
/* Copies the output, [num_tokens, width] of dtype, to the host; waits for the stream. */
mstar_status cli_tower_read(cli_tower *tower, void *output);
size_t cli_tower_output_bytes(const cli_tower_config *config);
/* Operations of a forward: two for each weight and token, four for each pair of tokens of a segment
 * and column of the heads. */
double cli_tower_flops(const cli_tower_config *config);

#endif
