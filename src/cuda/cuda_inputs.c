/*
 * cuda_inputs.c - the host's vectors in device memory, and scratch of a stream.
 *
 * A stream has one piece of device memory for either: what comes later in the stream overwrites it
 * after what came before has read it. A piece that is too small is replaced by a larger one when
 * the stream has ended its work; that happens outside captures only.
 */
#include <string.h>

#include "cuda/cuda_rows.h"

#define INPUT_ALIGN 16

static mstar_status grow(const mst_cuda *cuda, void *stream, size_t bytes, const char *what,
                         void **memory, size_t *has)
{
    if (*has >= bytes)
        return MSTAR_OK;
    MST_TRY(mst_cuda_check_not_capturing(cuda, stream, what));
    size_t want = *has > 0 ? *has : (size_t)64 << 10;
    while (want < bytes && want <= SIZE_MAX / 2)
        want *= 2;
    want = want < bytes ? bytes : want;
    uint64_t address = 0;
    MST_TRY(mst_cuda_check(cuda->driver, cuda->driver->memory_alloc(&address, want),
                           "taking device memory of a stream"));
    if (*memory != NULL) {
        (void)cuda->driver->stream_synchronize(stream);
        (void)cuda->driver->memory_free(mst_cuda_address(*memory));
    }
    *memory = mst_cuda_pointer(address);
    *has = want;
    return MSTAR_OK;
}

static void write_input(const mst_cuda_input *input, void *to)
{
    if (input->host != NULL)
        memcpy(to, input->host, input->bytes);
    else
        mst_cuda_fill_frequencies(input->theta, input->rotary_dim, to);
}

mstar_status mst_cuda_inputs_send(mstar_stream *stream, mst_cuda_input *inputs, int32_t count)
{
    mst_cuda *cuda = mst_cuda_of(stream->device);
    mst_cuda_stream *own = stream->impl;
    mst_cuda_stage *stage;
    size_t bytes = 0;
    if (stream->graph != NULL)
        return mst_cuda_record_inputs(cuda, mst_cuda_record_of(stream), inputs, count);
    for (int32_t i = 0; i < count; i++)
        bytes += (inputs[i].bytes + INPUT_ALIGN - 1) / INPUT_ALIGN * INPUT_ALIGN;
    if (bytes == 0)
        return MSTAR_OK;
    MST_TRY(mst_cuda_check_not_capturing(cuda, own->handle, "an operation on the host's integers"));
    MST_TRY(grow(cuda, own->handle, bytes, "an operation", &own->inputs, &own->inputs_bytes));
    MST_TRY(mst_cuda_stage_take(cuda, own->handle, bytes, &stage));
    size_t at = 0;
    for (int32_t i = 0; i < count; i++) {
        write_input(&inputs[i], (char *)stage->memory + at);
        inputs[i].device = (char *)own->inputs + at;
        at += (inputs[i].bytes + INPUT_ALIGN - 1) / INPUT_ALIGN * INPUT_ALIGN;
    }
    return mst_cuda_stage_send(cuda, own->handle, stage, own->inputs, bytes);
}

mstar_status mst_cuda_scratch_take(mstar_stream *stream, size_t bytes, void **memory)
{
    mst_cuda *cuda = mst_cuda_of(stream->device);
    mst_cuda_stream *own = stream->impl;
    if (stream->graph != NULL)
        return mst_cuda_record_scratch(cuda, mst_cuda_record_of(stream), bytes, memory);
    MST_TRY(grow(cuda, own->handle, bytes, "an operation that needs more scratch", &own->scratch,
                 &own->scratch_bytes));
    *memory = own->scratch;
    return MSTAR_OK;
}

void mst_cuda_stream_memory_free(const mst_cuda *cuda, mst_cuda_stream *stream)
{
    if (stream->inputs == NULL && stream->scratch == NULL)
        return;
    (void)cuda->driver->stream_synchronize(stream->handle);
    if (stream->inputs != NULL)
        (void)cuda->driver->memory_free(mst_cuda_address(stream->inputs));
    if (stream->scratch != NULL)
        (void)cuda->driver->memory_free(mst_cuda_address(stream->scratch));
}
