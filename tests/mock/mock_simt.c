/* mock_simt.c - see mock_simt.h. */
#include <setjmp.h>

#include "mock_simt.h"

enum { WARP = 32, MAX_THREADS = 1024, MAX_MET = 32 };

typedef enum wait_kind { RUNS, SHUFFLE, BARRIER, ENDED } wait_kind;

/* One thread of the block: what it has met so far, with the outcomes, and what it waits at. */
typedef struct simt_state {
    double outcomes[MAX_MET];
    int met;
    wait_kind waits;
    int lane;     /* of the shuffle: the other lane, exclusive or */
    double value; /* given to it */
} simt_state;

simt_index simt_thread, simt_block, simt_block_size;

static simt_state states[MAX_THREADS];
static int current, cursor;
static jmp_buf leave;
static const char *fault;

/* All of shared memory, as the linker lays it out. */
extern char __start_mock_shared[], __stop_mock_shared[];

/* ---- what a thread meets --------------------------------------------------------------------- */

static double meet(wait_kind kind, int lane, double value)
{
    simt_state *state = &states[current];
    if (cursor < state->met)
        return state->outcomes[cursor++];
    if (state->met == MAX_MET)
        fault = "a kernel has more shuffles and barriers than the emulation keeps";
    state->waits = kind;
    state->lane = lane;
    state->value = value;
    longjmp(leave, 1);
}

float simt_shuffle_f32(unsigned mask, float value, int lane)
{
    return (float)simt_shuffle_f64(mask, (double)value, lane);
}

double simt_shuffle_f64(unsigned mask, double value, int lane)
{
    if (mask != 0xffffffffU)
        fault = "a shuffle does not name all lanes";
    return meet(SHUFFLE, lane, value);
}

void simt_barrier(void)
{
    (void)meet(BARRIER, 0, 0.0);
}

/* ---- a block --------------------------------------------------------------------------------- */

static void run_thread(simt_kernel *kernel, const mst_cuda_row_args *args, int thread)
{
    current = thread;
    cursor = 0;
    simt_thread.x = (unsigned)thread;
    if (setjmp(leave) != 0)
        return;
    kernel(*args);
    states[current].waits = ENDED;
}

static void go_on(simt_state *state, double outcome)
{
    state->outcomes[state->met++] = outcome;
    state->waits = RUNS;
}

/* Whether the warp's lanes could go on from a shuffle. */
static bool shuffle_warp(simt_state *warp)
{
    double given[WARP];
    if (warp->waits != SHUFFLE)
        return false;
    for (int i = 0; i < WARP; i++) {
        if (warp[i].waits != SHUFFLE || warp[i].lane != warp->lane) {
            fault = "a lane is missing at a shuffle";
            return false;
        }
        given[i] = warp[i].value;
    }
    for (int i = 0; i < WARP; i++)
        go_on(&warp[i], given[i ^ warp[i].lane]);
    return true;
}

static bool pass_barrier(int threads)
{
    int waiting = 0;
    for (int i = 0; i < threads; i++)
        waiting += states[i].waits == BARRIER;
    if (waiting != threads)
        return false;
    for (int i = 0; i < threads; i++)
        go_on(&states[i], 0.0);
    return true;
}

static bool all_ended(int threads)
{
    for (int i = 0; i < threads; i++) {
        if (states[i].waits != ENDED)
            return false;
    }
    return true;
}

static void run_block(simt_kernel *kernel, const mst_cuda_row_args *args, int threads)
{
    memset(__start_mock_shared, 0xff, (size_t)(__stop_mock_shared - __start_mock_shared));
    for (int i = 0; i < threads; i++) {
        states[i].met = 0;
        states[i].waits = RUNS;
    }
    for (bool upwards = true; fault == NULL; upwards = !upwards) {
        for (int i = 0; i < threads; i++) {
            int thread = upwards ? i : threads - 1 - i;
            if (states[thread].waits == RUNS)
                run_thread(kernel, args, thread);
        }
        if (all_ended(threads))
            return;
        bool moved = false;
        for (int i = 0; i < threads; i += WARP)
            moved = shuffle_warp(&states[i]) || moved;
        if (!moved && !pass_barrier(threads) && fault == NULL)
            fault = "threads wait for one another";
    }
}

const char *simt_launch(simt_kernel *kernel, const mst_cuda_row_args *args, unsigned grid_x,
                        unsigned grid_y, unsigned threads)
{
    fault = NULL;
    if (threads == 0 || threads > MAX_THREADS || threads % WARP != 0)
        return "a block is not made of whole warps, or has more than 1024 threads";
    simt_block_size = (simt_index){threads, 1, 1};
    for (unsigned y = 0; y < grid_y && fault == NULL; y++) {
        for (unsigned x = 0; x < grid_x && fault == NULL; x++) {
            simt_block = (simt_index){x, y, 0};
            run_block(kernel, args, (int)threads);
        }
    }
    return fault;
}
