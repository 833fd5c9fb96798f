/* ops.h - what the operations share: checks of their tensors, and rows for the seam. */
#ifndef MST_OPS_H
#define MST_OPS_H

#include "device/backend.h"

/* Ceilings that keep every product of sizes below far inside 64 bits. */
#define MST_MAX_ROWS INT32_MAX
#define MST_MAX_WIDTH (1 << 24)
#define MST_MAX_PARTS 64

/* An input [T, M] or [T, H, D] of a compute dtype on the device; sizes within the ceilings. */
mstar_status mst_ops_check_input(const mstar_device *device, const char *name,
                                 const mstar_tensor *tensor, int32_t rank);
/* The same for a tensor that is written: its elements must not share memory. */
mstar_status mst_ops_check_output(const mstar_device *device, const char *name,
                                  const mstar_tensor *tensor, int32_t rank);
/* tensor.shape must be like.shape in every dimension. */
mstar_status mst_ops_check_shape(const char *name, const mstar_tensor *tensor,
                                 const char *like_name, const mstar_tensor *like);
/* out is the very same view as input, or apart from it. */
mstar_status mst_ops_check_in_place(const char *input_name, const mstar_tensor *input,
                                    const mstar_tensor *out);
/* A vector of int32 in host memory that out must not overlap; NULL only for count 0. */
mstar_status mst_ops_check_ints(const char *name, const int32_t *values, int64_t count,
                                const mstar_tensor *out);
/* f32 [M], contiguous, on the device, apart from out. */
mstar_status mst_ops_check_vector(const mstar_device *device, const char *name,
                                  const mstar_tensor *tensor, int64_t width,
                                  const mstar_tensor *out);
mstar_status mst_ops_check_activation(const char *name, mstar_activation activation);
/* Rows whose ids or offsets are read by this very call: the live count where the stream has one, 0
 * while it captures. */
mstar_status mst_ops_rows_now(const mstar_stream *stream, int64_t num_rows, int64_t *rows);
/* NOT_SUPPORTED where the device's backend has no such operation. */
mstar_status mst_ops_check_has(const mstar_device *device, bool has, const char *operation);
/* NULL gives absent rows. */
mst_rows mst_ops_rows(const mstar_tensor *tensor);

#endif
