/*
 * support_mock_track.h - what the mock driver keeps of device memory and of the order of streams:
 * which addresses it has handed out, and what work of one stream comes after what of another.
 */
#ifndef SUPPORT_MOCK_TRACK_H
#define SUPPORT_MOCK_TRACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Forgets everything. */
void track_reset(void);

/* New memory whose contents are none; NULL without memory. type: the driver's,
 * MST_CUDA_MEMORY_DEVICE or MST_CUDA_MEMORY_HOST (pinned). */
void *track_memory(size_t bytes, unsigned type);
void track_memory_gone(const void *memory);
/* An int that the driver tells of an address, its memory being of one device; false: no such. */
bool track_attribute(const void *address, int attribute, int ordinal, int *value);

enum { TRACK_STREAMS = 128 };
/* How far each stream had come. */
typedef struct track_event {
    int64_t seen[TRACK_STREAMS];
} track_event;
/* Work is given to the stream. */
void track_work(const void *stream);
void track_stream_gone(const void *stream);
void track_record(track_event *event, const void *stream);
void track_wait(const void *stream, const track_event *event);
/* Whether what is given to the stream from now on runs after all that the other one has got. */
bool track_is_after(const void *stream, const void *other);

#endif
