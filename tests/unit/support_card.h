/*
 * support_card.h - the CUDA backend as one more level of the tests of operations: over the mock
 * driver, or on a card that the command line names ("cuda:0"), then alone.
 *
 * Operands of these tests lie in check_rows. Each operation under the names below lends them to the
 * stream's device for its length: whole blocks, with their poison, go there and come back. On a CPU
 * stream nothing is copied and the operation gets the tensors themselves.
 */
#ifndef SUPPORT_CARD_H
#define SUPPORT_CARD_H

#include "support_check.h"

/* From main's arguments: the card, or the mock without any and for "mock". */
void card_choose(int argc, char **argv);
/* Whether a card was named: other levels are then left out. */
bool card_is_real(void);
/* Whether the device is the mock's, where large products take long. */
bool card_is_mock(const mstar_device *device);
/* Opens it; the name for messages is "cuda". */
mstar_device *card_open(void);
/* The same with so many threads of the host; the mock has one above. */
mstar_device *card_open_threads(int32_t threads);
/* Closes a device of either kind; of the mock's, sees that nothing is left. */
void card_close(mstar_device *device);
/* The given stream; for NULL on a GPU, which has no such stream, one that lives as the device. */
mstar_stream *card_stream(mstar_device *device, mstar_stream *stream);

/*
 * Tests of what stands above operations open their device as the level says: a processor, or the
 * card of above. Memory of tensors that runners hand out is the device's: it is read and written
 * through these, which return when all is done.
 */
void level_use_card(bool card);
/* From main's arguments: "mock" or a card ("cuda:0") is the level of all that follows. */
void level_choose(int argc, char **argv);
bool level_is_card(void);
mstar_device *level_open(int32_t threads);
void level_close(mstar_device *device);
void level_read(mstar_stream *stream, void *to, const void *from, size_t bytes);
void level_write(mstar_stream *stream, void *to, const void *from, size_t bytes);
void level_fill(mstar_stream *stream, void *memory, int byte, size_t bytes);

/* Memory of the device, aligned to 64 bytes, as a caller of wrappers would have it. */
void *level_take(mstar_device *device, size_t bytes);
void level_give(mstar_device *device, void *memory);
void level_set(mstar_device *device, void *memory, int byte, size_t bytes);
/* Fails the test unless every byte is this one. */
void level_expect(mstar_device *device, const void *memory, int byte, size_t bytes);

mstar_status card_layer_norm(mstar_stream *stream, const mstar_tensor *x,
                             const mstar_tensor *residual, const mstar_tensor *weight,
                             const mstar_tensor *bias, double eps, const mstar_tensor *out);
mstar_status card_rms_norm(mstar_stream *stream, const mstar_tensor *x,
                           const mstar_tensor *residual, const mstar_tensor *weight, double eps,
                           const mstar_tensor *out);
mstar_status card_normalize(mstar_stream *stream, const mstar_tensor *x, const mstar_tensor *out);
mstar_status card_activation_run(mstar_stream *stream, mstar_activation activation,
                                 const mstar_tensor *x, const mstar_tensor *out);
mstar_status card_rotary(mstar_stream *stream, const mstar_tensor *x, const int32_t *positions,
                         double theta, int32_t rotary_dim, int interleaved,
                         const mstar_tensor *out);
mstar_status card_embedding(mstar_stream *stream, const mstar_tensor *const *tables,
                            const int32_t *const *ids, int32_t num_tables, const mstar_tensor *out);
mstar_status card_pooling_run(mstar_stream *stream, mstar_pooling pooling, const mstar_tensor *x,
                              const int32_t *cu_seqlens, int64_t num_segments, const int32_t *skip,
                              const mstar_tensor *out);
mstar_status card_linear_run(const mstar_linear *linear, mstar_stream *stream,
                             const mstar_tensor *x, const mstar_tensor *residual,
                             const mstar_tensor *out);

#endif
