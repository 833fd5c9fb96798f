/*
 * cpu_launch.h - one operation on its way to the threads: run at once, or recorded and run at every
 * replay.
 *
 * A launch holds copies of its arguments. It is prepared (how many rows now, cut into how many
 * tasks) and then its tasks run, each once, on any thread. Both ways of running it use the same two
 * functions, which is why a replay has eager's bits.
 */
#ifndef MST_CPU_LAUNCH_H
#define MST_CPU_LAUNCH_H

#include "cpu/cpu.h"

/* ---- what a launch touches ------------------------------------------------------------------- */

/* num_rows rows of `width` bytes, `stride` bytes apart from one another. */
typedef struct mst_region {
    uintptr_t begin;
    uint64_t width, stride;
    int64_t num_rows;
    bool written;
} mst_region;
/* Pure: false only when no byte is in both. Exact for regions of one stride (slices of one fused
 * projection), else by first and last byte. */
bool mst_regions_overlap(const mst_region *a, const mst_region *b);

#define MST_MAX_REGIONS 20
typedef struct mst_regions {
    int32_t count;
    mst_region list[MST_MAX_REGIONS];
} mst_regions;
/* Each adds a region; nothing for a NULL address or no rows. */
void mst_regions_add(mst_regions *regions, const void *data, uint64_t width, uint64_t stride,
                     int64_t num_rows, bool written);
void mst_regions_add_bytes(mst_regions *regions, const void *data, uint64_t bytes, bool written);
void mst_regions_add_rows(mst_regions *regions, const mst_rows *rows, int64_t num_rows,
                          int64_t width, bool written);
/* [num_rows, num_heads, head_dim] with two free strides, in elements of the dtype. */
void mst_regions_add_heads(mst_regions *regions, const void *data, mstar_dtype dtype,
                           int64_t num_rows, int64_t row_stride, int64_t num_heads,
                           int64_t head_stride, int64_t head_dim, bool written);
/* Pure: one of the two writes what the other touches. */
bool mst_regions_conflict(const mst_regions *a, const mst_regions *b);

/* ---- the kinds ------------------------------------------------------------------------------- */

typedef struct mst_attn_job {
    mst_attn_call call;
    const mst_kernels *kernels;
    size_t scratch_bytes;   /* of one task */
    size_t workspace_bytes; /* of all there can be */
    _Alignas(MST_CACHE_LINE) _Atomic int64_t next;
} mst_attn_job;

typedef struct mst_product_job {
    const mst_kernels *kernels;
    mst_linear_work work;
    mst_linear_grid grid;
    int64_t panels, row_block;
} mst_product_job;

typedef struct mst_rows_job {
    void (*row)(const struct mst_rows_job *job, int64_t row);
    const mst_kernels *kernels;
    int64_t width;
    int64_t row_elements; /* what a row touches, for the choice of tasks; 0: pooling's segments */
    mst_rows x, residual, out;
    const float *weight, *bias;
    float eps;
    mstar_activation activation;
    mstar_pooling pooling;
    mst_rows tables[MST_MAX_TABLES];
    const int32_t *ids[MST_MAX_TABLES];
    int32_t num_tables;
    const int32_t *cu_seqlens, *skip;
    int32_t num_heads, head_dim, rotary_dim;
    int64_t x_head_stride, out_head_stride;
    const int32_t *positions;
    double theta;
    bool interleaved;
} mst_rows_job;

typedef struct mst_copy_job {
    void *destination;
    const void *source;
    size_t bytes;
} mst_copy_job;

typedef struct mst_launch mst_launch;
typedef struct mst_launch_kind {
    const char *name;
    /* Sets launch->tasks for launch->rows rows on so many threads; 0: nothing to do. */
    mstar_status (*prepare)(mst_launch *launch, int32_t max_threads);
    void (*task)(mst_launch *launch, int32_t index);
    void (*touch)(const mst_launch *launch, mst_regions *regions);
    /* Why launch->bad was set; NULL for kinds that never set it. */
    mstar_status (*explain)(const mst_launch *launch);
} mst_launch_kind;

struct mst_launch {
    const mst_launch_kind *kind;
    int64_t max_rows;         /* as called */
    const int64_t *live_rows; /* NULL: max_rows always */
    int64_t rows;             /* now */
    int32_t tasks;            /* now */
    bool recorded;            /* what it reads has not been checked */
    bool follows_plan;        /* rows are those of an attention plan */
    _Atomic bool bad;         /* a task met contents that it must not follow */
    union {
        mst_attn_job attn;
        mst_product_job product;
        mst_rows_job rows;
        mst_copy_job copy;
    } as;
};

/* Runs the launch, or records it where the stream captures. The launch is copied. */
mstar_status mst_cpu_submit(mstar_stream *stream, mst_launch *launch);
/* Rows and tasks for now; INVALID_ARGUMENT where the live row count or plan is out of bounds. */
mstar_status mst_launch_prepare(mst_launch *launch, int32_t max_threads);

/* ---- cpu_depend.c: what waits for what ------------------------------------------------------- */

/* How far ahead of a wave's first launch another may be taken into it. */
#define MST_WAVE_WINDOW 8
/*
 * Pure, apart from scratch memory: launches are put into waves, such that launches of one wave do
 * not conflict and every launch stands in a later wave than the earlier ones it conflicts with.
 * wave[i] becomes i's wave, *num_waves how many there are, *num_edges the pairs of the transitive
 * reduction. conflict(context, i, j) is asked for i < j only.
 */
mstar_status mst_depend(int64_t num_launches,
                        bool (*conflict)(const void *context, int64_t i, int64_t j),
                        const void *context, int64_t *wave, int64_t *num_waves, int64_t *num_edges);

/* ---- cpu_record.c: entries of the vtable ----------------------------------------------------- */

mstar_status mst_cpu_record(mstar_stream *stream, mst_launch *launch);
mstar_status mst_cpu_capture_begin(mstar_stream *stream, mstar_graph *graph);
mstar_status mst_cpu_capture_end(mstar_stream *stream, mstar_graph *graph);
void mst_cpu_capture_abort(mstar_stream *stream, mstar_graph *graph);
mstar_status mst_cpu_graph_replay(mstar_graph *graph, mstar_stream *stream);
void mst_cpu_graph_close(mstar_graph *graph);
void mst_cpu_graph_query(const mstar_graph *graph, mstar_graph_info *info);
void mst_cpu_graph_query_node(const mstar_graph *graph, int64_t index, mstar_graph_node_info *info);

#endif
