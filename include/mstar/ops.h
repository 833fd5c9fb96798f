/*
 * mstar/ops.h - the operations of an encoder over packed tokens.
 *
 * Every operation works row by row over T packed tokens (any T, 0 included): the bits of a row
 * depend on that row alone, whatever T, the threads and the row's place. x, residual and out are
 * 2-D [T, M] unless said otherwise, f32, bf16 or f16, last dimension contiguous, rows strided as
 * they like; out may be the same tensor as x or as residual where "in place" is said, and must not
 * overlap them otherwise. Arithmetic is f32; a result is rounded once to out's dtype.
 * Work is ordered by the stream, which is never NULL here. Nothing allocates except the _create
 * functions.
 */
#ifndef MSTAR_OPS_H
#define MSTAR_OPS_H

#include "mstar/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mstar_activation {
    MSTAR_ACTIVATION_NONE = 0,
    MSTAR_ACTIVATION_GELU = 1,      /* x * (1 + erf(x / sqrt 2)) / 2 */
    MSTAR_ACTIVATION_GELU_TANH = 2, /* x * (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2 */
    MSTAR_ACTIVATION_RELU = 3,
    MSTAR_ACTIVATION_SILU = 4, /* x / (1 + exp(-x)) */
    MSTAR_ACTIVATION_TANH = 5,
    MSTAR_ACTIVATION_SIGMOID = 6
} mstar_activation;
/* "none", "gelu", "gelu_tanh", "relu", "silu", "tanh", "sigmoid"; "unknown" outside. Static string.
 */
MSTAR_API const char *mstar_activation_name(mstar_activation activation);

/*
 * out = activation(x W^T + bias) + residual.
 * Weights are packed once, at create, into panels of columns; the sum over in_features runs in one
 * fixed order, so a row's bits do not depend on how many rows there are.
 */
typedef struct mstar_linear mstar_linear;
typedef struct mstar_linear_desc {
    uint32_t struct_size;
    mstar_dtype weight_dtype;    /* how panels are kept: F32 (default) or BF16 (half the memory,
                                    rounded to nearest); F16 too on a GPU */
    mstar_activation activation; /* default NONE */
    int32_t reserved;
} mstar_linear_desc;
MSTAR_API void mstar_linear_desc_init(mstar_linear_desc *desc);
/*
 * weight [out_features, in_features] and bias [out_features] (or NULL): f32, bf16 or f16 on the
 * CPU, any strides, copied. num_parts > 1: the rows of several weights (and biases) one after
 * another in one product, as for a fused query-key-value projection; every part has the same
 * in_features, and biases are all given or all NULL. desc may be NULL for the defaults.
 */
MSTAR_API mstar_status mstar_linear_create(mstar_device *device, const mstar_linear_desc *desc,
                                           const mstar_tensor *const *weights,
                                           const mstar_tensor *const *biases, int32_t num_parts,
                                           mstar_linear **linear);
MSTAR_API void mstar_linear_destroy(mstar_linear *linear);
/* x [T, in_features], residual [T, out_features] or NULL, out [T, out_features]. A linear may be
 * run on several streams at once. out may be residual. */
MSTAR_API mstar_status mstar_linear_run(const mstar_linear *linear, mstar_stream *stream,
                                        const mstar_tensor *x, const mstar_tensor *residual,
                                        const mstar_tensor *out);
typedef struct mstar_linear_info {
    uint32_t struct_size;
    mstar_dtype weight_dtype;
    int64_t in_features, out_features;
    size_t packed_bytes;
    const char *kernel;  /* static */
    mstar_dtype x_dtype; /* the dtype of x that is read as it is: BF16 where the kernel multiplies
                            pairs of bf16 and would round an f32 x itself, with the same bits */
    int32_t reserved;
} mstar_linear_info;
MSTAR_API mstar_status mstar_linear_query(const mstar_linear *linear, mstar_linear_info *info);

/*
 * out = (y - mean y) / sqrt(var y + eps) * weight + bias with y = x + residual (residual may be
 * NULL); variance is biased, from the centred values (two passes). weight and bias: f32 [M],
 * contiguous; bias may be NULL. In place on x or residual.
 */
MSTAR_API mstar_status mstar_layer_norm(mstar_stream *stream, const mstar_tensor *x,
                                        const mstar_tensor *residual, const mstar_tensor *weight,
                                        const mstar_tensor *bias, double eps,
                                        const mstar_tensor *out);
/* out = y / sqrt(mean(y^2) + eps) * weight, y as above. In place on x or residual. */
MSTAR_API mstar_status mstar_rms_norm(mstar_stream *stream, const mstar_tensor *x,
                                      const mstar_tensor *residual, const mstar_tensor *weight,
                                      double eps, const mstar_tensor *out);

/* out = activation(x), element by element. In place. */
MSTAR_API mstar_status mstar_activation_run(mstar_stream *stream, mstar_activation activation,
                                            const mstar_tensor *x, const mstar_tensor *out);

/*
 * Rotary position embedding of x [T, H, D] (Su et al. 2021), in place allowed. positions: T int32
 * on the CPU, any value. Pair i of rotary_dim / 2 turns by positions[t] * theta^(-2i / rotary_dim);
 * angles are computed in f64. interleaved 0: pairs (i, i + rotary_dim / 2), 1: pairs (2i, 2i + 1).
 * rotary_dim is even and at most D; the rest of each head is copied.
 */
MSTAR_API mstar_status mstar_rotary(mstar_stream *stream, const mstar_tensor *x,
                                    const int32_t *positions, double theta, int32_t rotary_dim,
                                    int interleaved, const mstar_tensor *out);

/*
 * out[t] = sum over i of tables[i][ids[i][t]], summed in order. num_tables 1..8; tables [rows, M]
 * f32, bf16 or f16; ids[i]: T int32 on the CPU. An id outside its table is refused, naming table,
 * place, value and bound, before anything is written.
 */
MSTAR_API mstar_status mstar_embedding(mstar_stream *stream, const mstar_tensor *const *tables,
                                       const int32_t *const *ids, int32_t num_tables,
                                       const mstar_tensor *out);

typedef enum mstar_pooling {
    MSTAR_POOLING_CLS = 0, /* first token */
    MSTAR_POOLING_MAX = 1, /* largest value, component by component */
    MSTAR_POOLING_MEAN = 2,
    MSTAR_POOLING_MEAN_SQRT_LEN = 3, /* sum / sqrt(n) */
    MSTAR_POOLING_WEIGHTED_MEAN = 4, /* weights 1..n by place in the segment, skipped or not */
    MSTAR_POOLING_LAST = 5           /* last token */
} mstar_pooling;
/* "cls", "max", "mean", "mean_sqrt_len", "weightedmean", "lasttoken"; "unknown" outside. Static
 * string. */
MSTAR_API const char *mstar_pooling_name(mstar_pooling pooling);
/* Reads those names, and "mean_sqrt_len_tokens", "cls_token" and the like of sentence-transformers.
 */
MSTAR_API mstar_status mstar_pooling_parse(const char *text, mstar_pooling *pooling);
/*
 * x [T, M], out [S, M]: one row a segment, offsets as for plan. skip[s] leading tokens of segment s
 * (an excluded prompt) stay out; NULL for none. A segment with nothing left gives zeros.
 */
MSTAR_API mstar_status mstar_pooling_run(mstar_stream *stream, mstar_pooling pooling,
                                         const mstar_tensor *x, const int32_t *cu_seqlens,
                                         int64_t num_segments, const int32_t *skip,
                                         const mstar_tensor *out);
/* out = x / max(|x|, 1e-12) row by row (Euclidean length). In place. */
MSTAR_API mstar_status mstar_normalize(mstar_stream *stream, const mstar_tensor *x,
                                       const mstar_tensor *out);

#ifdef __cplusplus
}
#endif

#endif
