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
    bool scratch; /* what lies there afterwards is of no use to anybody */
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
/* Memory that a launch works in: written, and worth nothing afterwards. */
void mst_regions_add_scratch(mst_regions *regions, const void *data, uint64_t bytes);
void mst_regions_add_rows(mst_regions *regions, const mst_rows *rows, int64_t num_rows,
                          int64_t width, bool written);
/* [num_rows, num_heads, head_dim] with two free strides, in elements of the dtype. */
void mst_regions_add_heads(mst_regions *regions, const void *data, mstar_dtype dtype,
                           int64_t num_rows, int64_t row_stride, int64_t num_heads,
                           int64_t head_stride, int64_t head_dim, bool written);
/* Pure: one of the two writes what the other touches. */
bool mst_regions_conflict(const mst_regions *a, const mst_regions *b);

/* ---- cpu_choice.c: what is decided once for a bucket ------------------------------------------
 */

/*
 * How a launch is cut. Nothing of it reaches the bits. It holds for live rows of more than half of
 * the bucket's, on a stream of as many threads; else the rule of an eager call decides.
 */
typedef struct mst_choice {
    int64_t rows;         /* of the bucket; 0: nothing is decided */
    int32_t threads;      /* of the stream */
    int32_t tasks;        /* of attention and rows, at most */
    mst_linear_grid grid; /* of products */
    int64_t row_block;
} mst_choice;
bool mst_choice_holds(const mst_choice *choice, int64_t rows, int32_t threads);
/* They cut alike, for the same bucket. */
bool mst_choice_equal(const mst_choice *a, const mst_choice *b);

#define MST_MAX_CHOICES 16
/*
 * Pure: the choices worth trying, none twice, the rule's own first; at most MST_MAX_CHOICES. Tasks:
 * all threads, half of them, one. Products: grids of as many tasks as threads or twice as many, and
 * the rule's grid with blocks of a quarter to four times its rows.
 */
int32_t mst_choices_of_tasks(const mst_choice *rule, int64_t most, mst_choice *list);
int32_t mst_choices_of_product(const mst_choice *rule, int64_t panels, int64_t tile,
                               mst_choice *list);
/* Pure: the fastest of those kept, unless the first is slower by less than one part in 16. Of equal
 * ones the first. kept[0] is not asked. */
int32_t mst_choice_fastest(const int64_t *ns, const bool *kept, int32_t count);

/* What makes two launches of one kind as fast as each other. */
#define MST_LAUNCH_KEY 16
typedef struct mst_launch_key {
    int64_t words[MST_LAUNCH_KEY];
} mst_launch_key;

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
    int64_t panels;
    int64_t rule_block, row_block; /* by rule; now */
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
    /* Fills the choices for max_rows rows on so many threads, the rule's first; how many. NULL:
       there is nothing to choose. */
    int32_t (*choices)(const mst_launch *launch, int32_t threads, mst_choice *list);
    void (*key)(const mst_launch *launch, mst_launch_key *key); /* which starts zeroed */
} mst_launch_kind;

struct mst_launch {
    const mst_launch_kind *kind;
    int64_t max_rows;         /* as called */
    const int64_t *live_rows; /* NULL: max_rows always */
    int64_t rows;             /* now */
    int32_t tasks;            /* now */
    bool recorded;            /* what it reads has not been checked */
    bool follows_plan;        /* rows are those of an attention plan */
    mst_choice choice;
    _Atomic bool bad; /* a task met contents that it must not follow */
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

/* ---- cpu_tune.c ------------------------------------------------------------------------------ */

/* Chooses for every launch of a recording, in an order in which they may run one after another.
 * like: an equal recording, whose choices are taken over; NULL: none. */
mstar_status mst_cpu_choose(mst_launch *launches, const mst_launch *like, int64_t count,
                            mstar_stream *stream, const mst_compile *how, mst_compiled *what);

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
mstar_status mst_cpu_graph_compile(mstar_graph *graph, mstar_stream *stream, const mst_compile *how,
                                   mst_compiled *what);
mstar_status mst_cpu_graph_replay(mstar_graph *graph, mstar_stream *stream);
void mst_cpu_graph_close(mstar_graph *graph);
void mst_cpu_graph_query(const mstar_graph *graph, mstar_graph_info *info);
void mst_cpu_graph_query_node(const mstar_graph *graph, int64_t index, mstar_graph_node_info *info);

#endif
