/* cpu.h - the CPU backend's own: what a device holds, and the entries that other files fill. */
#ifndef MST_CPU_H
#define MST_CPU_H

#include "cpu/kernels.h"

/* A level above what is built or there is served by the best below. */
typedef enum mst_isa {
#define MST_ISA_VALUE(LEVEL, level, unused) MST_ISA_LEVEL_##LEVEL,
    MST_FOR_EACH_ISA(MST_ISA_VALUE, _)
#undef MST_ISA_VALUE
        MST_ISA_LEVELS
} mst_isa;

typedef struct mst_cpu {
    const mst_kernels *kernels;
    const char *kernel_reason;
    mst_isa isa, isa_best;
    char model[64];
    int64_t l1d_bytes, l2_bytes, l3_bytes;
} mst_cpu;

/* ---- cpuid.c: what the machine has ----------------------------------------------------------- */

bool mst_cpu_has(mst_isa isa);
bool mst_cpu_is_intel(void);
void mst_cpu_model(char *text, size_t bytes);
void mst_cpu_caches(int64_t *l1d, int64_t *l2, int64_t *l3);

/* ---- dispatch.c: which kernels -------------------------------------------------------------- */

const char *mst_isa_name(mst_isa isa);
/* INVALID_ARGUMENT names the source ("max_isa", "MSTAR_MAX_ISA"), the text and what is accepted. */
mstar_status mst_isa_parse(const char *source, const char *text, mst_isa *isa);
/*
 * The level to use, and why, on a machine whose best is `best`, where no more than `limit` was
 * asked for: the lower of the two. One exception: on Intel's processors with AVX-512 BF16 and
 * without AMX vdpbf16ps does two multiply-adds in the time of four single ones (87 GFLOP/s against
 * 172, bench/results/xeon-16core-amx.csv), so AVX-512 over widened bf16 serves them, unless
 * avx512bf16 is the very limit. `lowered` is the reason where the limit decides.
 */
mst_isa mst_isa_choose(mst_isa best, mst_isa limit, bool intel, const char *lowered,
                       const char **reason);
/* Fills kernels, kernel_reason, isa and isa_best. max_isa NULL: MSTAR_MAX_ISA, else no limit. */
mstar_status mst_cpu_dispatch(const char *max_isa, mst_cpu *cpu);
mstar_status mst_cpu_query_kernel(const mstar_device *device, int32_t index,
                                  mstar_kernel_info *info);
/* Static symbol of an op's kernel at a level: "mst_attn_f32_avx2". */
const char *mst_kernel_symbol(const char *op, mstar_dtype dtype, const mst_kernels *kernels);

static inline const mst_cpu *mst_cpu_of(const mstar_device *device)
{
    return device->impl;
}

/* ---- cpu_attn.c, cpu_linear.c, cpu_rows.c: entries of the vtable ----------------------------- */

void mst_cpu_attn_kernel(const mstar_device *device, const mst_attn_shape *shape,
                         const char **symbol, const char **reason);
size_t mst_cpu_attn_scratch_bytes(const mstar_device *device, const mst_attn_shape *shape);
mst_attn_tile mst_cpu_attn_tile(const mstar_device *device, const mst_attn_shape *shape, int64_t lq,
                                int64_t lk);
mst_attn_tile mst_cpu_attn_worst_tile(const mstar_device *device, const mst_attn_shape *shape);
mstar_status mst_cpu_attn_run(mstar_stream *stream, const mst_attn_call *call);

size_t mst_cpu_linear_packed_bytes(const mstar_device *device, const mst_linear_shape *shape);
const char *mst_cpu_linear_kernel(const mstar_device *device, const mst_linear_shape *shape);
mstar_dtype mst_cpu_linear_x_dtype(const mstar_device *device, const mst_linear_shape *shape);
void mst_cpu_linear_pack(const mstar_device *device, const mst_linear_shape *shape,
                         const mstar_tensor *weight, int64_t first_row, void *packed);
mstar_status mst_cpu_linear_run(mstar_stream *stream, const mst_linear_shape *shape,
                                const void *packed, const float *bias, int64_t num_rows, mst_rows x,
                                mst_rows residual, mst_rows out);

mstar_status mst_cpu_layer_norm(mstar_stream *stream, int64_t num_rows, int64_t width, mst_rows x,
                                mst_rows residual, const float *weight, const float *bias,
                                float eps, mst_rows out);
mstar_status mst_cpu_rms_norm(mstar_stream *stream, int64_t num_rows, int64_t width, mst_rows x,
                              mst_rows residual, const float *weight, float eps, mst_rows out);
mstar_status mst_cpu_activation(mstar_stream *stream, int64_t num_rows, int64_t width,
                                mstar_activation activation, mst_rows x, mst_rows out);
mstar_status mst_cpu_rotary(mstar_stream *stream, int64_t num_tokens, int32_t num_heads,
                            int32_t head_dim, mst_rows x, int64_t x_head_stride,
                            const int32_t *positions, double theta, int32_t rotary_dim,
                            bool interleaved, mst_rows out, int64_t out_head_stride);
mstar_status mst_cpu_embedding(mstar_stream *stream, int64_t num_rows, int64_t width,
                               const mst_rows *tables, const int32_t *const *ids,
                               int32_t num_tables, mst_rows out);
mstar_status mst_cpu_pooling(mstar_stream *stream, mstar_pooling pooling, int64_t width, mst_rows x,
                             const int32_t *cu_seqlens, int64_t num_segments, const int32_t *skip,
                             mst_rows out);
mstar_status mst_cpu_normalize(mstar_stream *stream, int64_t num_rows, int64_t width, mst_rows x,
                               mst_rows out);

/* ---- pure functions -------------------------------------------------------------------------- */

/*
 * How many items a thread takes from a list in one go, this one being the first and the heaviest:
 * so many short ones that they are worth a start together, and no more than an eighth of a thread's
 * share of what is left. At least 1.
 */
int64_t mst_attn_items_at_once(const mst_attn_item *item, int64_t items_left, int32_t threads);
/*
 * Whether a thread that begins an item takes the next one of the list as well, to ask for its rows
 * early: where the item is short, and so many of the list are left from it on that no thread goes
 * idle over it.
 */
bool mst_attn_takes_ahead(const mst_attn_item *item, int64_t items_left, int32_t threads);

/* How a product of rows x panels is cut: a grid of row_parts x panel_parts tasks. */
typedef struct mst_linear_grid {
    int64_t row_parts, panel_parts;
} mst_linear_grid;
mst_linear_grid mst_linear_split(int64_t rows, int64_t panels, int64_t tile, int32_t threads);
/* Tasks of an operation row by row, rows >= 1, whose rows touch so many elements together. */
int32_t mst_rows_split(int64_t elements, int64_t rows, int32_t threads);
/* Rows whose x (depth f32 each) stay in the second-level cache while panels stream past. */
int64_t mst_linear_row_block(int64_t depth, int64_t tile, int64_t l2_bytes);
/* [*begin, *end) of part i when n is cut into parts as evenly as whole units allow. */
void mst_cut(int64_t n, int64_t unit, int64_t parts, int64_t i, int64_t *begin, int64_t *end);

#endif
