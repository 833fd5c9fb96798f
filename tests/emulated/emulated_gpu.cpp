/*
 * emulated_gpu.cpp - threads, warps and the machine's instructions; see emulated_gpu.h.
 *
 * Stacks are switched by setjmp and longjmp, which touch no signal masks; a new one is entered by
 * makecontext once. Nothing here is an object with a destructor: a fault leaves all stacks behind.
 */
#undef _FORTIFY_SOURCE /* its longjmp refuses to go to another stack */

#include "emulated_gpu.h"
#include "emulated_kernels.h"
#include "emulated_run.h"

#include <csetjmp>
#include <cstdlib>
#include <ucontext.h>

extern "C" {
#include "base/base.h"
}

enum {
    WARP = 32,
    THREADS = 128,
    STACK_BYTES = 256 * 1024,
    MAX_COPIES = 512,
    SHARED_MAX = 256 * 1024,
    MAX_STEPS = 4000000 /* a hundred times what the tests' largest block takes */
};

gpu_index threadIdx, blockIdx, gridDim;

namespace
{

enum waits_for { NOTHING, WARP_MATES, BLOCK_MATES, END };

/* 16 bytes on their way to shared memory. */
struct copy {
    uint32_t to, group;
    bool zero;
    unsigned char bytes[16];
};

struct thread {
    jmp_buf place;
    ucontext_t start;
    bool started;
    waits_for waits;
    /* what it brings to the others */
    const void *given;
    void *got;
    copy copies[MAX_COPIES];
    int num_copies;
    uint32_t group; /* of copies that are not committed yet */
};

thread threads[THREADS];
alignas(64) unsigned char stacks[THREADS][STACK_BYTES];
alignas(1024) unsigned char shared[SHARED_MAX];
size_t shared_bytes;
jmp_buf scheduler;
unsigned current, random_state;
bool lazy_copies;
const char *fault;
emulated_kernel *kernel;
const mst_cuda_attn_args *arguments;

unsigned draw()
{
    random_state = random_state * 1664525U + 1013904223U;
    return random_state >> 16;
}

/* Ends the launch: nothing that is wrong is carried on with. */
[[noreturn]] void stop(const char *text)
{
    if (fault == nullptr)
        fault = text;
    _longjmp(scheduler, 1);
}

void yield(waits_for what)
{
    threads[current].waits = what;
    if (_setjmp(threads[current].place) == 0)
        _longjmp(scheduler, 1);
}

void begin()
{
    kernel(*arguments, (char *)shared);
    threads[current].waits = END;
    _longjmp(scheduler, 1);
}

void resume(unsigned index)
{
    thread &t = threads[index];
    if (_setjmp(scheduler) != 0)
        return;
    current = index;
    threadIdx.x = index;
    t.waits = NOTHING;
    if (t.started)
        _longjmp(t.place, 1);
    t.started = true;
    (void)setcontext(&t.start);
}

/* Whether all of these threads wait for one another. */
bool all_wait(unsigned first, unsigned count, waits_for what)
{
    for (unsigned i = first; i < first + count; i++)
        if (threads[i].waits != what)
            return false;
    return true;
}

/* ---- done together ----------------------------------------------------------------------------
 */

/* What a warp does together: one function over what its lanes gave. */
typedef void together(const void *const *given, void *const *got);

struct request {
    together *work;
    const void *value;
};

request *requests[THREADS];

void meet_warp(together *work, const void *value, void *got)
{
    request mine = {work, value};
    requests[current] = &mine;
    threads[current].got = got;
    yield(WARP_MATES);
}

void serve_warp(unsigned first)
{
    const void *given[WARP];
    void *got[WARP];
    for (unsigned i = 0; i < WARP; i++) {
        if (requests[first + i]->work != requests[first]->work) {
            fault = "lanes of a warp do different things together";
            return;
        }
        given[i] = requests[first + i]->value;
        got[i] = threads[first + i].got;
    }
    requests[first]->work(given, got);
}

int block_any, block_result;

/* ---- a block ----------------------------------------------------------------------------------
 */

void run_warp(unsigned warp)
{
    bool upwards = draw() % 2 == 0;
    for (unsigned i = 0; i < WARP && fault == nullptr; i++) {
        unsigned index = warp * WARP + (upwards ? i : WARP - 1 - i);
        if (threads[index].waits == NOTHING)
            resume(index);
    }
    if (fault == nullptr && all_wait(warp * WARP, WARP, WARP_MATES)) {
        serve_warp(warp * WARP);
        for (unsigned i = 0; i < WARP; i++)
            threads[warp * WARP + i].waits = NOTHING;
    }
}

bool can_run(unsigned warp)
{
    for (unsigned i = 0; i < WARP; i++)
        if (threads[warp * WARP + i].waits == NOTHING)
            return true;
    return false;
}

bool pass_barrier()
{
    if (!all_wait(0, THREADS, BLOCK_MATES))
        return false;
    block_result = block_any;
    block_any = 0;
    for (unsigned i = 0; i < THREADS; i++)
        threads[i].waits = NOTHING;
    return true;
}

void run_block()
{
    std::memset(shared, 0xff, shared_bytes);
    lazy_copies = draw() % 4 != 0;
    block_any = 0;
    for (unsigned i = 0; i < THREADS; i++) {
        thread &t = threads[i];
        (void)getcontext(&t.start);
        t.start.uc_stack.ss_sp = stacks[i];
        t.start.uc_stack.ss_size = STACK_BYTES;
        t.start.uc_link = nullptr;
        makecontext(&t.start, begin, 0);
        t.started = false;
        t.waits = NOTHING;
        t.num_copies = 0;
        t.group = 0;
    }
    unsigned favourite = 0;
    for (long steps = 0; fault == nullptr; steps++) {
        if (steps > MAX_STEPS)
            fault = "a block does not come to an end";
        /* one warp for some time, so that the others fall behind */
        if (draw() % 32 == 0)
            favourite = draw() % (THREADS / WARP);
        unsigned first = favourite, warp = first;
        while (!can_run(warp)) {
            warp = (warp + 1) % (THREADS / WARP);
            if (warp == first)
                break;
        }
        if (can_run(warp)) {
            run_warp(warp);
            continue;
        }
        if (all_wait(0, THREADS, END))
            return;
        if (!pass_barrier() && fault == nullptr)
            fault = "threads wait for one another";
    }
}

/* ---- shared memory and copies -----------------------------------------------------------------
 */

unsigned char *shared_at(uint32_t at, uint32_t bytes)
{
    if (at % bytes != 0 || at > shared_bytes || bytes > shared_bytes - at)
        stop("an access to shared memory lies outside of it, or not on its size");
    return shared + at;
}

void finish_copy(const copy &c)
{
    std::memcpy(shared_at(c.to, 16), c.bytes, 16);
}

void start_copy(uint32_t to, const void *from, bool wanted)
{
    thread &t = threads[current];
    if (wanted && (uintptr_t)from % 16 != 0)
        stop("a copy of 16 bytes does not come from a multiple of 16");
    if (t.num_copies == MAX_COPIES)
        stop("a thread has more copies on their way than the emulation keeps");
    copy &c = t.copies[t.num_copies];
    c.to = to;
    c.group = t.group;
    std::memset(c.bytes, 0, 16);
    if (wanted)
        std::memcpy(c.bytes, from, 16);
    (void)shared_at(to, 16);
    if (lazy_copies) {
        t.num_copies++;
        std::memset(shared + to, 0xff, 16); /* until it is there */
    } else {
        finish_copy(c);
    }
}

/* ---- matrices ---------------------------------------------------------------------------------
 */

struct mma_operands {
    float (*wide)(uint16_t);
    float *c;
    const uint32_t *a;
    uint32_t b[2];
};

uint16_t half_of(const uint32_t *words, int at)
{
    return (uint16_t)(words[at / 2] >> (at % 2 * 16));
}

void multiply(const void *const *given, void *const *)
{
    const mma_operands *lanes[WARP];
    float a[16][16], b[16][8], sums[16][8];
    for (int lane = 0; lane < WARP; lane++) {
        const mma_operands *own = lanes[lane] = static_cast<const mma_operands *>(given[lane]);
        int group = lane / 4, pair = lane % 4 * 2;
        for (int x = 0; x < 8; x++) /* words: rows 0, 8, 0, 8; columns 0, 0, 8, 8 */
            a[group + x / 2 % 2 * 8][pair + x % 2 + x / 4 * 8] = own->wide(half_of(own->a, x));
        for (int x = 0; x < 4; x++)
            b[pair + x % 2 + x / 2 * 8][group] = own->wide(half_of(own->b, x));
    }
    for (int lane = 0; lane < WARP; lane++)
        for (int x = 0; x < 4; x++)
            sums[lane / 4 + x / 2 * 8][lane % 4 * 2 + x % 2] = lanes[lane]->c[x];
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++) {
            double sum = (double)sums[i][j];
            for (int k = 0; k < 16; k++)
                sum += (double)a[i][k] * (double)b[k][j];
            sums[i][j] = (float)sum;
        }
    for (int lane = 0; lane < WARP; lane++)
        for (int x = 0; x < 4; x++)
            lanes[lane]->c[x] = sums[lane / 4 + x / 2 * 8][lane % 4 * 2 + x % 2];
}

/* Four matrices of 8 rows of 16 bytes; lane i names row i % 8 of matrix i / 8. */
void read_matrices(const void *const *given, void *const *got, bool transposed)
{
    for (int m = 0; m < 4; m++) {
        uint16_t matrix[8][8];
        for (int row = 0; row < 8; row++) {
            uint32_t at = *static_cast<const uint32_t *>(given[m * 8 + row]);
            std::memcpy(matrix[row], shared + at, 16); /* each lane has checked its own */
        }
        for (int lane = 0; lane < WARP; lane++) {
            int row = lane / 4, pair = lane % 4 * 2;
            uint16_t low = transposed ? matrix[pair][row] : matrix[row][pair];
            uint16_t high = transposed ? matrix[pair + 1][row] : matrix[row][pair + 1];
            static_cast<uint32_t *>(got[lane])[m] = low | (uint32_t)high << 16;
        }
    }
}

void read_rows(const void *const *given, void *const *got)
{
    read_matrices(given, got, false);
}
void read_columns(const void *const *given, void *const *got)
{
    read_matrices(given, got, true);
}

/* ---- the small things of a warp ----------------------------------------------------------------
 */

struct shuffled {
    float value;
    int from; /* lane */
};

void shuffle(const void *const *given, void *const *got)
{
    for (int i = 0; i < WARP; i++) {
        int other = static_cast<const shuffled *>(given[i])->from;
        *static_cast<float *>(got[i]) = static_cast<const shuffled *>(given[other])->value;
    }
}

void find_any(const void *const *given, void *const *got)
{
    int any = 0;
    for (int i = 0; i < WARP; i++)
        any |= *static_cast<const int *>(given[i]) != 0;
    for (int i = 0; i < WARP; i++)
        *static_cast<int *>(got[i]) = any;
}

void wait_only(const void *const *, void *const *) {}

void check_mask(unsigned mask)
{
    if (mask != 0xffffffffU)
        stop("something that a warp does together does not name all lanes");
}

} // namespace

/* ---- by CUDA's names ---------------------------------------------------------------------------
 */

void __syncthreads()
{
    yield(BLOCK_MATES);
}

int __syncthreads_or(int value)
{
    block_any |= value != 0;
    yield(BLOCK_MATES);
    return block_result;
}

void __syncwarp()
{
    meet_warp(wait_only, nullptr, nullptr);
}

int __any_sync(unsigned mask, int value)
{
    int any = 0;
    check_mask(mask);
    meet_warp(find_any, &value, &any);
    return any;
}

float __shfl_sync(unsigned mask, float value, int from)
{
    shuffled mine = {value, from % WARP};
    float other = 0;
    check_mask(mask);
    meet_warp(shuffle, &mine, &other);
    return other;
}

float __shfl_xor_sync(unsigned mask, float value, int lane)
{
    return __shfl_sync(mask, value, static_cast<int>(threadIdx.x) % WARP ^ lane);
}

namespace mst
{

float widen_bf16(uint16_t bits)
{
    return mst_bf16_to_f32(bits);
}
float widen_f16(uint16_t bits)
{
    return mst_f16_to_f32(bits);
}
uint16_t round_bf16(float value)
{
    return mst_f32_to_bf16(value);
}
uint16_t round_f16(float value)
{
    return mst_f32_to_f16(value);
}

void mma_of(float (*wide)(uint16_t), float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
            uint32_t b1)
{
    mma_operands mine = {wide, c, a, {b0, b1}};
    meet_warp(::multiply, &mine, nullptr);
}

/* Two bytes of a panel: its 16-byte chunks are swizzled by the row, which is bits 7 to 9. */
static uint16_t described(uint64_t matrix, uint32_t row, uint32_t column)
{
    uint32_t panel = (uint32_t)(matrix >> 32);
    uint32_t at = (uint32_t)matrix + column / 64 * panel + row * 128 + column % 64 * 2;
    uint16_t value;
    if (column >= 64 && panel == 0)
        stop("a product reads past a panel and is told of no other");
    std::memcpy(&value, shared_at(at ^ (at >> 7 & 7) << 4, 2), 2);
    return value;
}

uint32_t described_pair(uint64_t matrix, uint32_t row, uint32_t column)
{
    return described(matrix, row, column) | (uint32_t)described(matrix, row, column + 1) << 16;
}

uint32_t described_column(uint64_t matrix, uint32_t row, uint32_t column)
{
    return described(matrix, row, column) | (uint32_t)described(matrix, row + 1, column) << 16;
}

void load4(uint32_t (&r)[4], uint32_t address)
{
    (void)shared_at(address, 16);
    meet_warp(read_rows, &address, r);
}

void load4_transposed(uint32_t (&r)[4], uint32_t address)
{
    (void)shared_at(address, 16);
    meet_warp(read_columns, &address, r);
}

void copy16(uint32_t to, const void *from)
{
    start_copy(to, from, true);
}

void copy16_or_zero(uint32_t to, const void *from, bool wanted)
{
    start_copy(to, from, wanted);
}

void copies_commit()
{
    threads[current].group++;
}

void copies_wait_for(unsigned left)
{
    thread &t = threads[current];
    int kept = 0;
    for (int i = 0; i < t.num_copies; i++) {
        copy c = t.copies[i];
        if (c.group + left < t.group)
            finish_copy(c);
        else
            t.copies[kept++] = c;
    }
    t.num_copies = kept;
}

float exp2_fast(float x)
{
    float y = (float)std::exp2((double)x);
    return y < 0x1p-126F ? 0.0F : y;
}

uint32_t shared_get(uint32_t at)
{
    uint32_t word;
    std::memcpy(&word, shared_at(at, 4), 4);
    return word;
}

void shared_get4(uint32_t &a, uint32_t &b, uint32_t &c, uint32_t &d, uint32_t at)
{
    (void)shared_at(at, 16);
    a = shared_get(at);
    b = shared_get(at + 4);
    c = shared_get(at + 8);
    d = shared_get(at + 12);
}

void shared_put(uint32_t at, uint32_t word)
{
    std::memcpy(shared_at(at, 4), &word, 4);
}

void shared_put4(uint32_t at, uint32_t word)
{
    (void)shared_at(at, 16);
    for (uint32_t i = 0; i < 16; i += 4)
        shared_put(at + i, word);
}

} // namespace mst

/* ---- launches ----------------------------------------------------------------------------------
 */

const char *emulated_run(emulated_kernel *symbol, const mst_cuda_attn_args *args, unsigned grid,
                         size_t bytes, unsigned seed)
{
    if (bytes > SHARED_MAX)
        return "more shared memory than a card has";
    kernel = symbol;
    arguments = args;
    shared_bytes = bytes;
    random_state = seed;
    fault = nullptr;
    gridDim.x = grid;
    /* blocks one after the other, from a drawn one on, up or down */
    unsigned first = draw() % grid, step = draw() % 2 == 0 ? 1 : grid - 1;
    for (unsigned i = 0; i < grid && fault == nullptr; i++) {
        blockIdx.x = (first + (uint64_t)i * step) % grid;
        run_block();
    }
    return fault;
}
