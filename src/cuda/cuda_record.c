/*
 * cuda_record.c - what a graph keeps beside the driver's own: device memory for the host's vectors
 * and for scratch, and what a replay must check before it runs.
 *
 * Addresses are baked into recorded launches, so memory that was handed out stays until the graph
 * is closed. Memory can be taken while the stream captures only by leaving the capture's rules for
 * the length of the call.
 */
#include <string.h>

#include "cuda/cuda_rows.h"

#define BLOCK_BYTES ((size_t)64 << 10)
#define INPUT_ALIGN 16

/* Device memory that one copy of a replay fills, up to used. */
typedef struct block {
    char *memory;
    size_t bytes, used;
} block;

typedef struct kept_input {
    const void *host;
    size_t bytes;
    int64_t block;
    size_t at;
} kept_input;

struct mst_cuda_record {
    block *blocks;
    int64_t num_blocks, blocks_capacity;
    kept_input *inputs;
    int64_t num_inputs, inputs_capacity;
    mst_cuda_recorded *checks;
    int64_t num_checks, checks_capacity;
    void **pieces; /* scratch and frequencies */
    int64_t num_pieces, pieces_capacity;
    size_t piece_bytes;
    void *scratch; /* the largest piece of scratch, which later operations share */
    size_t scratch_bytes;
    void *launched; /* event after the latest replay */
    void *stream;   /* of the latest replay */
};

mstar_status mst_cuda_record_open(mst_cuda_record **record)
{
    void *memory;
    MST_TRY(mst_alloc_zero(sizeof(mst_cuda_record), "record of a graph", &memory));
    *record = memory;
    return MSTAR_OK;
}

void mst_cuda_record_close(const mst_cuda *cuda, mst_cuda_record *record)
{
    if (record == NULL)
        return;
    if (mst_cuda_enter(cuda) == MSTAR_OK) {
        if (record->launched != NULL) {
            (void)cuda->driver->event_synchronize(record->launched);
            (void)cuda->driver->event_destroy(record->launched);
        }
        for (int64_t i = 0; i < record->num_blocks; i++)
            (void)cuda->driver->memory_free(mst_cuda_address(record->blocks[i].memory));
        for (int64_t i = 0; i < record->num_pieces; i++)
            (void)cuda->driver->memory_free(mst_cuda_address(record->pieces[i]));
        mst_cuda_leave(cuda);
    }
    mst_free(record->blocks);
    mst_free(record->inputs);
    mst_free(record->checks);
    mst_free((void *)record->pieces);
    mst_free(record);
}

size_t mst_cuda_record_bytes(const mst_cuda_record *record)
{
    size_t bytes = sizeof *record + record->piece_bytes;
    bytes += (size_t)record->blocks_capacity * sizeof *record->blocks;
    bytes += (size_t)record->inputs_capacity * sizeof *record->inputs;
    bytes += (size_t)record->checks_capacity * sizeof *record->checks;
    bytes += (size_t)record->pieces_capacity * sizeof *record->pieces;
    for (int64_t i = 0; i < record->num_blocks; i++)
        bytes += record->blocks[i].bytes;
    return bytes;
}

/* ---- memory while a stream captures ---------------------------------------------------------- */

static mstar_status take_memory(const mst_cuda *cuda, size_t bytes, void **memory)
{
    int mode = MST_CUDA_CAPTURE_RELAXED;
    uint64_t address = 0;
    MST_TRY(mst_cuda_check(cuda->driver, cuda->driver->capture_mode(&mode),
                           "taking device memory during a capture"));
    mstar_status status = mst_cuda_check(cuda->driver, cuda->driver->memory_alloc(&address, bytes),
                                         "taking device memory for a graph");
    (void)cuda->driver->capture_mode(&mode);
    *memory = mst_cuda_pointer(address);
    return status;
}

static mstar_status take_piece(const mst_cuda *cuda, mst_cuda_record *record, size_t bytes,
                               void **piece)
{
    void *pieces = (void *)record->pieces;
    mstar_status status = mst_grow(&pieces, &record->pieces_capacity, record->num_pieces + 1,
                                   sizeof *record->pieces, "memory of a graph");
    record->pieces = pieces;
    MST_TRY(status);
    MST_TRY(take_memory(cuda, bytes, piece));
    record->pieces[record->num_pieces++] = *piece;
    record->piece_bytes += bytes;
    return MSTAR_OK;
}

mstar_status mst_cuda_record_scratch(mst_cuda *cuda, mst_cuda_record *record, size_t bytes,
                                     void **memory)
{
    if (record->scratch_bytes < bytes) {
        MST_TRY(take_piece(cuda, record, bytes, &record->scratch));
        record->scratch_bytes = bytes;
    }
    *memory = record->scratch;
    return MSTAR_OK;
}

/* A block with room for so many bytes. */
static mstar_status find_block(const mst_cuda *cuda, mst_cuda_record *record, size_t bytes,
                               int64_t *found)
{
    *found = record->num_blocks - 1;
    if (*found >= 0 && record->blocks[*found].bytes - record->blocks[*found].used >= bytes)
        return MSTAR_OK;
    void *memory = record->blocks;
    mstar_status status = mst_grow(&memory, &record->blocks_capacity, record->num_blocks + 1,
                                   sizeof *record->blocks, "memory of a graph");
    record->blocks = memory;
    MST_TRY(status);
    size_t want = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
    MST_TRY(take_memory(cuda, want, &memory));
    *found = record->num_blocks++;
    record->blocks[*found] = (block){memory, want, 0};
    return MSTAR_OK;
}

/* Frequencies never change: they are sent once, while the capture goes on, on a stream of ours. */
static mstar_status place_frequencies(mst_cuda *cuda, mst_cuda_record *record,
                                      mst_cuda_input *input)
{
    void *piece;
    mst_cuda_stage *stage;
    int mode = MST_CUDA_CAPTURE_RELAXED;
    MST_TRY(take_piece(cuda, record, input->bytes, &piece));
    input->device = piece;
    MST_TRY(mst_cuda_check(cuda->driver, cuda->driver->capture_mode(&mode),
                           "sending frequencies during a capture"));
    mstar_status status = mst_cuda_stage_take(cuda, cuda->stream, input->bytes, &stage);
    if (status == MSTAR_OK) {
        mst_cuda_fill_frequencies(input->theta, input->rotary_dim, stage->memory);
        status = mst_cuda_stage_send(cuda, cuda->stream, stage, piece, input->bytes);
    }
    if (status == MSTAR_OK)
        status =
            mst_cuda_check(cuda->driver, cuda->driver->stream_synchronize(cuda->stream), "waiting");
    (void)cuda->driver->capture_mode(&mode);
    return status;
}

mstar_status mst_cuda_record_inputs(mst_cuda *cuda, mst_cuda_record *record, mst_cuda_input *inputs,
                                    int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        if (inputs[i].bytes == 0)
            continue;
        if (inputs[i].host == NULL) {
            MST_TRY(place_frequencies(cuda, record, &inputs[i]));
            continue;
        }
        int64_t at;
        MST_TRY(find_block(cuda, record, inputs[i].bytes, &at));
        void *kept = record->inputs;
        mstar_status status = mst_grow(&kept, &record->inputs_capacity, record->num_inputs + 1,
                                       sizeof *record->inputs, "inputs of a graph");
        record->inputs = kept;
        MST_TRY(status);
        block *b = &record->blocks[at];
        record->inputs[record->num_inputs++] =
            (kept_input){inputs[i].host, inputs[i].bytes, at, b->used};
        inputs[i].device = b->memory + b->used;
        size_t taken = (inputs[i].bytes + INPUT_ALIGN - 1) / INPUT_ALIGN * INPUT_ALIGN;
        b->used = b->bytes - b->used < taken ? b->bytes : b->used + taken;
    }
    return MSTAR_OK;
}

mstar_status mst_cuda_record_check(mst_cuda_record *record, const mst_cuda_recorded *recorded)
{
    void *checks = record->checks;
    mstar_status status = mst_grow(&checks, &record->checks_capacity, record->num_checks + 1,
                                   sizeof *record->checks, "checks of a graph");
    record->checks = checks;
    MST_TRY(status);
    record->checks[record->num_checks++] = *recorded;
    return MSTAR_OK;
}

/* ---- replay ---------------------------------------------------------------------------------- */

static mstar_status check_ids(const mst_cuda_recorded *c, int64_t rows)
{
    for (int64_t row = 0; row < rows; row++) {
        for (int32_t i = 0; i < c->num_tables; i++) {
            if (c->ids[i][row] < 0 || c->ids[i][row] >= c->table_rows[i])
                return mst_fail(MSTAR_INVALID_ARGUMENT,
                                "replay of an embedding: ids[%d][%lld] is %d; tables[%d] has rows "
                                "0 to %lld",
                                i, (long long)row, c->ids[i][row], i,
                                (long long)c->table_rows[i] - 1);
        }
    }
    return MSTAR_OK;
}

static mstar_status check_offsets(const mst_cuda_recorded *c, int64_t rows)
{
    for (int64_t row = 0; row < rows; row++) {
        int32_t begin = c->offsets[row], end = c->offsets[row + 1];
        int32_t skip = c->skip != NULL ? c->skip[row] : 0;
        if (begin < 0 || begin > end || end > c->x_rows || skip < 0)
            return mst_fail(
                MSTAR_INVALID_ARGUMENT,
                "replay of a pooling: segment %lld has offsets %d to %d and skips %d; offsets "
                "must rise within 0 to %lld and skip is 0 or more",
                (long long)row, begin, end, skip, (long long)c->x_rows);
    }
    return MSTAR_OK;
}

static mstar_status check_one(const mst_cuda_recorded *c)
{
    int64_t rows = c->live != NULL ? *c->live : c->max_rows;
    if (rows < 0 || rows > c->max_rows)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "%s: the live row count is %lld; the tensors have %lld rows", c->name,
                        (long long)rows, (long long)c->max_rows);
    if (c->num_tables > 0)
        MST_TRY(check_ids(c, rows));
    return c->offsets != NULL ? check_offsets(c, rows) : MSTAR_OK;
}

static mstar_status send_block(mst_cuda *cuda, const mst_cuda_record *record, int64_t at,
                               void *stream)
{
    const block *b = &record->blocks[at];
    mst_cuda_stage *stage;
    MST_TRY(mst_cuda_stage_take(cuda, stream, b->used, &stage));
    for (int64_t i = 0; i < record->num_inputs; i++) {
        const kept_input *input = &record->inputs[i];
        if (input->block == at)
            memcpy((char *)stage->memory + input->at, input->host, input->bytes);
    }
    return mst_cuda_stage_send(cuda, stream, stage, b->memory, b->used);
}

mstar_status mst_cuda_record_replay(mst_cuda *cuda, mst_cuda_record *record, void *stream)
{
    for (int64_t i = 0; i < record->num_checks; i++)
        MST_TRY(check_one(&record->checks[i]));
    if (record->num_blocks > 0 && record->launched != NULL && record->stream != stream)
        MST_TRY(mst_cuda_check(cuda->driver,
                               cuda->driver->stream_wait_event(stream, record->launched, 0),
                               "waiting for an earlier replay"));
    for (int64_t i = 0; i < record->num_blocks; i++)
        MST_TRY(send_block(cuda, record, i, stream));
    return MSTAR_OK;
}

mstar_status mst_cuda_record_launched(const mst_cuda *cuda, mst_cuda_record *record, void *stream)
{
    if (record->num_blocks == 0 && record->num_pieces == 0)
        return MSTAR_OK;
    if (record->launched == NULL)
        MST_TRY(mst_cuda_check(
            cuda->driver, cuda->driver->event_create(&record->launched, MST_CUDA_EVENT_NO_TIMING),
            "making an event of a graph"));
    record->stream = stream;
    return mst_cuda_check(cuda->driver, cuda->driver->event_record(record->launched, stream),
                          "recording the event of a graph");
}
