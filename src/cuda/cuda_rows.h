/*
 * cuda_rows.h - the row operations on their way to the device: launches, the host's integers that
 * they read, and what a graph keeps of both.
 *
 * Ids, positions and offsets are host memory. Work that runs now gets a copy of them, in stream
 * order, by way of the staging ring; a graph has device memory of its own for them, which every
 * replay fills first, after it has checked them. Live row counts go the same way.
 */
#ifndef MST_CUDA_ROWS_H
#define MST_CUDA_ROWS_H

#include "cuda/cuda.h"
#include "cuda/row_args.h"

/* ---- cuda_inputs.c --------------------------------------------------------------------------- */

/* One vector of the host's. Owned by the caller; kept by address where a graph records. */
typedef struct mst_cuda_input {
    const void *host; /* NULL: the frequencies of a rotary, which the two below tell */
    double theta;
    int32_t rotary_dim;
    size_t bytes;
    const void *device; /* out: where kernels find it */
} mst_cuda_input;

/* What a replay checks of one recorded operation before it sends anything. */
typedef struct mst_cuda_recorded {
    const char *name;    /* of the operation */
    const int64_t *live; /* NULL: max_rows */
    int64_t max_rows;
    int32_t num_tables;
    int64_t table_rows[MST_MAX_TABLES];
    const int32_t *ids[MST_MAX_TABLES];
    const int32_t *offsets, *skip; /* NULL: none */
    int64_t x_rows;
} mst_cuda_recorded;

/* Gives the vectors a place in device memory and sends them, or has the graph do so at each replay.
 * The context is current. */
mstar_status mst_cuda_inputs_send(mstar_stream *stream, mst_cuda_input *inputs, int32_t count);
/* Device memory of the stream, or of the graph where it records, until the next take on it in
 * stream order. The context is current. */
mstar_status mst_cuda_scratch_take(mstar_stream *stream, size_t bytes, void **memory);
/* What a stream holds of both; waits for it. The context is current. */
void mst_cuda_stream_memory_free(const mst_cuda *cuda, mst_cuda_stream *stream);

/* ---- cuda_record.c: what a graph keeps ------------------------------------------------------- */

typedef struct mst_cuda_record mst_cuda_record;
mstar_status mst_cuda_record_open(mst_cuda_record **record);
void mst_cuda_record_close(const mst_cuda *cuda, mst_cuda_record *record);
size_t mst_cuda_record_bytes(const mst_cuda_record *record);
mstar_status mst_cuda_record_check(mst_cuda_record *record, const mst_cuda_recorded *recorded);
mstar_status mst_cuda_record_inputs(mst_cuda *cuda, mst_cuda_record *record, mst_cuda_input *inputs,
                                    int32_t count);
mstar_status mst_cuda_record_scratch(mst_cuda *cuda, mst_cuda_record *record, size_t bytes,
                                     void **memory);
/* Checks all that is recorded, then sends the inputs on the stream. */
mstar_status mst_cuda_record_replay(mst_cuda *cuda, mst_cuda_record *record, void *stream);
/* After the launch of the graph: later replays on other streams wait for it. */
mstar_status mst_cuda_record_launched(const mst_cuda *cuda, mst_cuda_record *record, void *stream);
/* cuda_graph.c: of the graph that the stream records */
mst_cuda_record *mst_cuda_record_of(const mstar_stream *stream);

/* ---- cuda_rows.c: pure functions, and entries of the vtable ---------------------------------- */

/* Threads that do a row of so many elements. */
int32_t mst_cuda_row_team(int64_t width);
/* Rows of a block, for a team. */
int32_t mst_cuda_row_teams(int32_t team);
/* Rows that a norm's team does together: 1 or MST_CUDA_TOGETHER. Bits do not depend on it. */
int32_t mst_cuda_norm_together(int64_t rows, int64_t width, int64_t multiprocessors);
/* Whether a norm of one row for each team, without a residual, has a kernel of its own, the one of
 * few rows: what it writes has the same bits. */
bool mst_cuda_norm_is_few(const mst_cuda_row_args *args);
/* The rows as a kernel reads them; whether four elements at a time. */
mst_cuda_rows mst_cuda_rows_of(const mst_rows *rows);
void mst_cuda_fill_frequencies(double theta, int32_t rotary_dim, double *frequencies);
/* Loads their kernels, which no run does. The context is current. */
mstar_status mst_cuda_rows_load(mst_cuda *cuda);

mstar_status mst_cuda_layer_norm(mstar_stream *stream, int64_t num_rows, int64_t width, mst_rows x,
                                 mst_rows residual, const float *weight, const float *bias,
                                 float eps, mst_rows out);
mstar_status mst_cuda_rms_norm(mstar_stream *stream, int64_t num_rows, int64_t width, mst_rows x,
                               mst_rows residual, const float *weight, float eps, mst_rows out);
mstar_status mst_cuda_activation(mstar_stream *stream, int64_t num_rows, int64_t width,
                                 mstar_activation activation, mst_rows x, mst_rows out);
mstar_status mst_cuda_rotary(mstar_stream *stream, int64_t num_tokens, int32_t num_heads,
                             int32_t head_dim, mst_rows x, int64_t x_head_stride,
                             const int32_t *positions, double theta, int32_t rotary_dim,
                             bool interleaved, mst_rows out, int64_t out_head_stride);
mstar_status mst_cuda_embedding(mstar_stream *stream, int64_t num_rows, int64_t width,
                                const mst_rows *tables, const int32_t *const *ids,
                                int32_t num_tables, mst_rows out);
mstar_status mst_cuda_pooling(mstar_stream *stream, mstar_pooling pooling, int64_t width,
                              mst_rows x, const int32_t *cu_seqlens, int64_t num_segments,
                              const int32_t *skip, mst_rows out);
mstar_status mst_cuda_normalize(mstar_stream *stream, int64_t num_rows, int64_t width, mst_rows x,
                                mst_rows out);
/* out = activation(x + bias) + residual, for what is left of a product. */
mstar_status mst_cuda_finish(mstar_stream *stream, int64_t num_rows, int64_t width,
                             mstar_activation activation, mst_rows x, const float *bias,
                             mst_rows residual, mst_rows out);

#endif
