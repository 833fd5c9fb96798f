/* support_mock_track.c - see support_mock_track.h. */
#include "support_mock_track.h"

#include <stdlib.h>
#include <string.h>

#include "support_mock_cuda.h"

typedef struct range {
    const char *memory;
    size_t bytes;
    unsigned type;
} range;
typedef struct stream_state {
    const void *handle; /* NULL: free, but for the default stream in place 0 */
    track_event seen;   /* its own place: how much it has got */
} stream_state;

enum { RANGES = 4096 };
static range ranges[RANGES];
static int num_ranges;
static stream_state streams[TRACK_STREAMS];

void track_reset(void)
{
    num_ranges = 0;
    memset(streams, 0, sizeof streams);
}

/* ---- memory ---------------------------------------------------------------------------------- */

void *track_memory(size_t bytes, unsigned type)
{
    void *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (memory == NULL)
        return NULL;
    memset(memory, 0xff, bytes);
    if (num_ranges < RANGES)
        ranges[num_ranges++] = (range){memory, bytes, type};
    else
        mock_cuda_fault("more pieces of memory than the mock keeps");
    return memory;
}

void track_memory_gone(const void *memory)
{
    for (int i = 0; i < num_ranges; i++) {
        if (ranges[i].memory == memory) {
            ranges[i] = ranges[--num_ranges];
            return;
        }
    }
}

static unsigned memory_type(const void *address)
{
    const char *at = address;
    for (int i = 0; i < num_ranges; i++) {
        if (at >= ranges[i].memory && at < ranges[i].memory + ranges[i].bytes)
            return ranges[i].type;
    }
    return 0;
}

/* Of pageable memory the driver says 0 and -2, which is no failure. */
bool track_attribute(const void *address, int attribute, int ordinal, int *value)
{
    unsigned type = memory_type(address);
    if (attribute == MST_CUDA_POINTER_MEMORY_TYPE)
        *value = (int)type;
    else if (attribute == MST_CUDA_POINTER_ORDINAL)
        *value = type != 0 ? ordinal : -2;
    else
        return false;
    return true;
}

/* ---- order ----------------------------------------------------------------------------------- */

static int find(const void *stream)
{
    int unused = 0;
    for (int i = 1; i < TRACK_STREAMS && stream != NULL; i++) {
        if (streams[i].handle == stream)
            return i;
        if (unused == 0 && streams[i].handle == NULL)
            unused = i;
    }
    if (stream != NULL && unused == 0)
        mock_cuda_fault("more streams than the mock keeps");
    streams[unused].handle = stream;
    return unused;
}

void track_work(const void *stream)
{
    int at = find(stream);
    streams[at].seen.seen[at]++;
}

/* Its place is taken by another stream, and numbers of it go on. */
void track_stream_gone(const void *stream)
{
    streams[find(stream)].handle = NULL;
}

void track_record(track_event *event, const void *stream)
{
    *event = streams[find(stream)].seen;
}

void track_wait(const void *stream, const track_event *event)
{
    track_event *seen = &streams[find(stream)].seen;
    for (int i = 0; i < TRACK_STREAMS; i++) {
        if (event->seen[i] > seen->seen[i])
            seen->seen[i] = event->seen[i];
    }
}

bool track_is_after(const void *stream, const void *other)
{
    int at = find(other);
    return streams[find(stream)].seen.seen[at] >= streams[at].seen.seen[at];
}
