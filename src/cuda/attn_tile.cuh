/*
 * attn_tile.cuh - ragged attention on tensor cores of sm_80 and newer: mma.sync, cp.async,
 * ldmatrix.
 *
 * A block of four warps takes a row tile of one kv head: 16 * MT rows a warp, a row being one query
 * row of one query head of the group (grouped heads share their keys, so they share a tile). Keys
 * go in blocks of 64 counted from the segment's first key, with an online softmax over them. Blocks
 * stay and take work from the plan's list until it is empty; the list's length is read from memory.
 *
 * Order of sums (the bits): block after block in ascending order; within one, products sum as the
 * matrix instruction does, 16 keys at a time; a thread sums its own weights over the block first.
 * All of that counts from the segment's first key and knows nothing of tile height, stages or other
 * segments. Where keys are split, each part starts afresh and parts merge in ascending order.
 * Floating point outside the matrix instructions is written with explicit rounding, and the file is
 * compiled without contraction, so that every instance computes the same bits.
 *
 * Nothing outside a segment is ever read: rows past its end are filled with zeros on the way in, or
 * masked and zeroed where they came along (BULK, below).
 * Masking is by selection. In a block where some row does not see some key, a weight of 0 would
 * turn a non-finite v into NaN; such v are found, taken out of the product, and added where they
 * are seen.
 *
 * Whole segments of few rows and keys may share a tile and its one block of keys, a warp or more each.
 * A warp multiplies the keys of its own segment alone.
 *
 * Two things are seldom and found only after a pass over the keys: such v, and rows whose scores
 * are too large for the cheap formula of weights. Then there is a second, slow pass. It gives every
 * other row the bits of the first, so that a row never depends on its company in a tile.
 *
 * On Hopper the four warps multiply together (GROUP): wgmma in the place of mma.sync and ldmatrix,
 * whose operands then lie in shared memory otherwise. Its sums have the same bits. The copy engine
 * may bring k and v there (BULK), in blocks that run past a segment's end: such scores are masked,
 * such rows of v zeroed before they are multiplied, and the slow pass copies as elsewhere.
 */
#ifndef MST_CUDA_ATTN_TILE_CUH
#define MST_CUDA_ATTN_TILE_CUH

#include "cuda/attn_args.h"
#if defined(__CUDACC__)
#include "cuda/attn_instructions.cuh"
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "cuda/attn_group.cuh"
#endif
#endif

namespace mst
{

enum { WARPS = 4, THREADS = WARPS * 32 };

/* ---- on top of the instructions ---------------------------------------------------------------
 */

/* c = a b, and c += a b where it is not the first of its sum. */
template <typename T>
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                    bool first)
{
    if (first)
        c[0] = c[1] = c[2] = c[3] = 0.0f;
    mma<T>(c, a, b0, b1);
}

/* Exponent bits of both halves of a word. */
template <typename T> struct exponent_mask;
template <> struct exponent_mask<bf16> {
    static constexpr uint32_t low = 0x7f80u;
};
template <> struct exponent_mask<f16> {
    static constexpr uint32_t low = 0x7c00u;
};

#define MST_NEG_INF __uint_as_float(0xff800000u)

/*
 * The cheap formula subtracts the maximum's exponent, score * scale, after it was rounded. That is a
 * common error of all of a row's weights, half an ulp of the exponent: up to 2^12 it is at most
 * 2^-13, which leaves the maximum's weight at 1 once rounded to 16 bits, and cancels in the
 * quotient. From there on it would grow to anything.
 */
#define MST_HUGE_EXPONENT 0x1p12f

/* Largest and sum over the four threads that hold a row. */
__device__ __forceinline__ float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

__device__ __forceinline__ float quad_sum(float x)
{
    x = __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

/* ---- one instance ---------------------------------------------------------------------------- */

template <typename T, int DT, int BN, int MT, int STAGES, bool GROUP = false,
          int TILE_WARPS = mst::WARPS, bool BULK = false>
struct tile {
    static constexpr int WARPS = TILE_WARPS, THREADS = WARPS * 32;
    static constexpr int ROWS = WARPS * 16 * MT;
    static constexpr int CHUNKS = DT / 8; /* of 16 bytes, in a row */
    /* Of a row: odd in chunks, for ldmatrix without conflicts; or of a panel, see piece. */
    static constexpr int PITCH = GROUP ? 128 : (CHUNKS + 1) * 16;
    static constexpr int ROWS_BYTES = GROUP ? ROWS * DT * 2 : ROWS * PITCH;
    static constexpr int BLOCK_BYTES = GROUP ? BN * DT * 2 : BN * PITCH;
    static constexpr int WORDS_AT = ROWS_BYTES + 2 * STAGES * BLOCK_BYTES; /* GROUP: see word */
    static constexpr int BARRIERS_AT = WORDS_AT + 128; /* GROUP */
    static constexpr int SMEM_BYTES = WORDS_AT + (GROUP ? 128 + 64 : 0);
    static constexpr int KT = BN / 16; /* groups of 16 keys */
    static constexpr int DG = DT / 16; /* groups of 16 columns */
    static constexpr int SLOT_FLOATS = THREADS * MT * (DT / 2 + 4);
    static constexpr bool MAY_SHARE = MT == 1 && !GROUP; /* see mst_cuda_attn_shares */

    /* The work in hand; the same in every thread. What the inner loop does not need stays in shared
       memory, for registers are what this kernel is short of. */
    uint32_t item;
    int rows; /* rows of the tile that exist */
    int lk;

    /* Where this thread's next copies of k and v come from. */
    const char *k_from, *v_from;

    /* BULK: the copy engine brings k and v, but in the slow pass. */
    const mst_cuda_tensor_map *k_map, *v_map;
    int head;        /* of k and v */
    unsigned passed; /* blocks that the copy engine has brought before those in hand, less the first
                        of these: a block plus this is its turn */

    /* This thread's part. */
    float o[MT][DT / 8][4];
    float m[MT][2], l[MT][2];

    bool special;  /* a masked block held a non-finite v in this thread's share */
    unsigned huge; /* rows with huge exponents, found so far: bit 2 i + h */
    unsigned wide; /* such rows of the pass before: what the slow pass goes by */

    uint32_t q_smem;
    __device__ __forceinline__ uint32_t k_smem() const { return q_smem + ROWS_BYTES; }
    __device__ __forceinline__ uint32_t v_smem() const
    {
        return k_smem() + STAGES * BLOCK_BYTES;
    }

    /* A field of the item in hand, by its place in mst_cuda_attn_item. */
    enum {
        Q_FIRST,
        KV_FIRST,
        LQ,
        LK,
        ROW_BEGIN,
        ROW_END,
        KEY_BEGIN,
        KEY_END,
        SPLIT,
        NUM_SPLITS,
        SLOT,
        PART_KEYS
    };
    /* The same of mst_cuda_attn_shared. */
    enum {
        FIRST_OF_ALL,
        SHARED_ROWS = 8,
        SHARED_KEYS
    };
    __device__ __forceinline__ int get(int field) const
    {
        return (int)shared_get(item + (field / 4) * WORDS_PITCH + field % 4 * 4);
    }

    __device__ __forceinline__ static int warp() { return threadIdx.x >> 5; }
    __device__ __forceinline__ static int lane() { return threadIdx.x & 31; }

    /* ---- segments that share the tile -------------------------------------------------------- */

    __device__ __forceinline__ static int byte_of(uint32_t word, int i)
    {
        return (int)(word >> (8 * i) & 255u);
    }

    /* Places that so many rows or keys take. */
    __device__ __forceinline__ static int places(int count)
    {
        return (count + 15) & ~15;
    }

    /* The segment at a place, by the rows or keys of each, and how far from its first it is. */
    __device__ __forceinline__ static int segment_at(uint32_t counts, int place, int &from_first)
    {
        int segment = 0;
        from_first = place;
#pragma unroll
        for (int i = 0; i < MST_CUDA_SHARERS - 1; i++)
            if (segment == i && from_first >= places(byte_of(counts, i))) {
                from_first -= places(byte_of(counts, i));
                segment = i + 1;
            }
        return segment;
    }

    /* The first place of a segment; of MST_CUDA_SHARERS, all places. */
    __device__ __forceinline__ static int first_place(uint32_t counts, int segment)
    {
        int place = 0;
#pragma unroll
        for (int i = 0; i < MST_CUDA_SHARERS; i++)
            if (i < segment)
                place += places(byte_of(counts, i));
        return place;
    }

    template <bool SHARED> __device__ __forceinline__ bool is_row(int row) const
    {
        if (!SHARED)
            return row < rows;
        uint32_t counts = (uint32_t)get(SHARED_ROWS);
        int from_first;
        int segment = segment_at(counts, row, from_first);
        return from_first < byte_of(counts, segment);
    }

    /* Where a row of the tile lies: its token, and which query head of the group it is. */
    template <bool SHARED>
    __device__ __forceinline__ int64_t token_of(const mst_cuda_attn_args &a, int row,
                                                unsigned &of) const
    {
        int first = 0;
        if (SHARED)
            first = get(FIRST_OF_ALL + 2 * segment_at((uint32_t)get(SHARED_ROWS), row, row));
        unsigned token = (unsigned)row / (unsigned)a.group;
        of = (unsigned)row - token * (unsigned)a.group;
        return (int64_t)first + token;
    }

    /* Keys of all segments into one block of k or v, zeros between them. */
    __device__ __forceinline__ void load_shared(const mst_cuda_attn_args &a, uint32_t to,
                                                const void *base, int64_t row_stride,
                                                int64_t head_stride, int kv_head)
    {
        uint32_t keys = (uint32_t)get(SHARED_KEYS);
        int lane_chunk = threadIdx.x % LANES;
        const char *head = (const char *)base + (int64_t)kv_head * head_stride * 2;
#pragma unroll 1
        for (int place = threadIdx.x / LANES; place < BN; place += PASS_ROWS) {
            int key;
            int segment = segment_at(keys, place, key);
            bool wanted = key < byte_of(keys, segment);
            int64_t token = wanted ? (int64_t)get(FIRST_OF_ALL + 2 * segment + 1) + key : 0;
            const char *from = head + token * row_stride * 2;
            if (a.elements)
                copy_elements<BN>(to, place, wanted ? (const uint16_t *)from : nullptr, a.head_dim);
            else
                copy_row(a, to + piece<BN>(place, lane_chunk), from + lane_chunk * 16, lane_chunk,
                         wanted);
        }
        copies_commit();
    }

    /* ---- loads ------------------------------------------------------------------------------- */

    /* A thread copies every LANES-th chunk of every PASS_ROWS-th row: consecutive threads whole
       sectors, and all addresses a constant away from a few. */
    static constexpr int LANES = CHUNKS % 32 == 0             ? 32
                                 : CHUNKS % 16 == 0           ? 16
                                 : CHUNKS % 8 == 0            ? 8
                                 : CHUNKS % 4 == 0 || BN < 64 ? 4
                                                              : 2;
    static constexpr int PASS_ROWS = THREADS / LANES;
    static constexpr int STEPS = (CHUNKS + LANES - 1) / LANES;

    /*
     * The last chunk of a row is padding where the head dim is 8 short of DT. A lane of one chunk a
     * row writes zeros there with every copy: a test of each row costs nothing, a branch does. Lanes
     * of several leave it alone; it is zeroed once.
     */
    static constexpr bool ONE = STEPS == 1;
    static_assert(!GROUP || (MT == 1 && ONE && DT % 64 == 0), "whole panels, a chunk a lane");
    static constexpr bool AHEAD = GROUP && STAGES == 2; /* see step_ahead */

    /* Where a matrix of R rows has a chunk of a row. GROUP: panels of 64 columns, a row of one is
       128 bytes, its chunks swizzled by the row. */
    template <int R> __device__ __forceinline__ static int piece(int row, int chunk)
    {
        if (GROUP)
            return chunk / 8 * (R * 128) + row * 128 + ((chunk ^ row) & 7) * 16;
        return row * PITCH + chunk * 16;
    }

    /* The same chunk so many passes of rows further. */
    __device__ __forceinline__ static uint32_t further_rows(uint32_t to, int pass)
    {
        if (GROUP && PASS_ROWS % 8 != 0 && (pass & 1) != 0)
            to ^= 64;
        return to + pass * PASS_ROWS * PITCH;
    }

    __device__ __forceinline__ static bool holds_chunk(const mst_cuda_attn_args &a, int lane_chunk,
                                                       int step)
    {
        return (step + 1) * LANES < CHUNKS || lane_chunk + step * LANES < (a.head_dim + 7) / 8;
    }

    /* A lane's chunks of one row, or zeros in its place. */
    __device__ __forceinline__ static void copy_row(const mst_cuda_attn_args &a, uint32_t to,
                                                    const char *from, int lane_chunk, bool wanted)
    {
        if (ONE) {
            copy16_or_zero(to, from, wanted && holds_chunk(a, lane_chunk, 0));
            return;
        }
#pragma unroll
        for (int i = 0; i < STEPS; i++)
            if (holds_chunk(a, lane_chunk, i))
                copy16_or_zero(to + i * LANES * 16, from + i * LANES * 16, wanted);
    }

    __device__ __forceinline__ void clear_padding(const mst_cuda_attn_args &a)
    {
        if (ONE || a.head_dim > DT - 8)
            return;
        for (int row = threadIdx.x; row < ROWS + 2 * STAGES * BN; row += THREADS)
            shared_put4(q_smem + row * PITCH + (CHUNKS - 1) * 16, 0);
        __syncthreads();
    }

    /* The same by elements, for rows that do not lie on 16 bytes: at once, zeros past the head dim.
       to is the matrix. */
    template <int R>
    __device__ __noinline__ static void copy_elements(uint32_t to, int row, const uint16_t *from,
                                                      int head_dim)
    {
#pragma unroll 1
        for (int chunk = threadIdx.x % LANES; chunk < CHUNKS; chunk += LANES) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int d = chunk * 8 + 2 * i;
                uint32_t word = from != nullptr && d < head_dim ? from[d] : 0u;
                if (from != nullptr && d + 1 < head_dim)
                    word |= (uint32_t)from[d + 1] << 16;
                shared_put(to + piece<R>(row, chunk) + i * 4, word);
            }
        }
    }

    /* A row of the group as a query row and a query head of the group, and others a fixed step on. */
    struct packed_row {
        unsigned token, of, group, step_token, step_of;

        __device__ __forceinline__ packed_row(unsigned row, unsigned step, unsigned of_group)
            : token(row / of_group), of(row - token * of_group), group(of_group),
              step_token(step / of_group), step_of(step - step_token * of_group)
        {
        }

        __device__ __forceinline__ void step()
        {
            token += step_token;
            of += step_of;
            if (of >= group) {
                of -= group;
                token++;
            }
        }
    };

    template <bool SLOW, bool SHARED>
    __device__ __forceinline__ void load_rows(const mst_cuda_attn_args &a, int head)
    {
        int lane_chunk = threadIdx.x % LANES;
        int row_begin = SHARED ? 0 : row_first();
        int first = SHARED ? 0 : get(Q_FIRST);
        const char *base =
            (const char *)a.q +
            ((int64_t)first * a.q_row_stride + (int64_t)head * a.q_head_stride) * 2 +
            lane_chunk * 16;
        int row = threadIdx.x / LANES;
        uint32_t to = q_smem + piece<ROWS>(row, lane_chunk);
        /* of ungrouped heads the next row is a fixed step away; of grouped ones it is looked for */
        const char *next = base + (int64_t)(row_begin + row) * a.q_row_stride * 2;
        int64_t pass_bytes = a.q_row_stride * (2 * PASS_ROWS);
        packed_row packed((unsigned)(row_begin + row), PASS_ROWS, (unsigned)a.group);
#pragma unroll 4
        for (int pass = 0; pass < ROWS / PASS_ROWS; pass++, row += PASS_ROWS) {
            const char *from = next;
            next += pass_bytes;
            if (SHARED) {
                unsigned of;
                int64_t token = token_of<SHARED>(a, row, of);
                from = base + (token * a.q_row_stride + (int64_t)of * a.q_head_stride) * 2;
            } else if (a.group != 1) {
                from = base + ((int64_t)packed.token * a.q_row_stride +
                               (int64_t)packed.of * a.q_head_stride) *
                                  2;
                packed.step();
            }
            bool wanted = is_row<SHARED>(row);
            if (SLOW && a.elements) {
                copy_elements<ROWS>(q_smem, row,
                                    wanted ? (const uint16_t *)(from - lane_chunk * 16) : nullptr,
                                    a.head_dim);
                continue;
            }
            copy_row(a, further_rows(to, pass), from, lane_chunk, wanted);
        }
    }

    /* A negative scale is a positive one of -q. Where lanes copy several chunks scores are negated
       instead: a tenth faster there on an H200, and slower elsewhere. */
    __device__ __forceinline__ void negate_rows()
    {
        copies_wait<0>();
        __syncthreads();
        for (int at = threadIdx.x; at < ROWS * CHUNKS * 4; at += THREADS) {
            uint32_t place = q_smem + piece<ROWS>(at / (CHUNKS * 4), at / 4 % CHUNKS) + at % 4 * 4;
            shared_put(place, shared_get(place) ^ 0x80008000u);
        }
        shown();
        __syncthreads();
    }

    /* Sets where copies of k and v begin: the first key of a block. */
    __device__ __forceinline__ void aim(const mst_cuda_attn_args &a, int kv_head, int block)
    {
        int64_t row = (int64_t)get(KV_FIRST) + block * BN + threadIdx.x / LANES;
        int lane_bytes = threadIdx.x % LANES * 16;
        k_from = (const char *)a.k +
                 (row * a.k_row_stride + (int64_t)kv_head * a.k_head_stride) * 2 + lane_bytes;
        v_from = (const char *)a.v +
                 (row * a.v_row_stride + (int64_t)kv_head * a.v_head_stride) * 2 + lane_bytes;
    }

    /* Keys [block * BN, block * BN + BN) of k or v; moves on to the next block. */
    template <bool SLOW>
    __device__ __forceinline__ void load_block(const mst_cuda_attn_args &a, uint32_t to,
                                               const char *&from, int64_t row_stride,
                                               unsigned block)
    {
        static_assert(BN % PASS_ROWS == 0 && ROWS % PASS_ROWS == 0,
                      "tiles are a whole number of passes");
        int64_t pass_bytes = row_stride * (2 * PASS_ROWS);
        int lane_chunk = threadIdx.x % LANES;
        int left = lk - (int)(block * BN) - (int)(threadIdx.x / LANES);
        to += STAGES > 1 ? (block % STAGES) * BLOCK_BYTES : 0;
        uint32_t matrix = to;
        to += piece<BN>(threadIdx.x / LANES, lane_chunk);
        if (!SLOW && !ONE && (int)((block + 1) * BN) <= lk) {
#pragma unroll
            for (int pass = 0; pass < BN / PASS_ROWS; pass++, from += pass_bytes)
#pragma unroll
                for (int i = 0; i < STEPS; i++)
                    if (holds_chunk(a, lane_chunk, i))
                        copy16(to + pass * PASS_ROWS * PITCH + i * LANES * 16,
                               from + i * LANES * 16);
            return;
        }
#pragma unroll
        for (int pass = 0; pass < BN / PASS_ROWS; pass++) {
            bool wanted = pass * PASS_ROWS < left;
            if (SLOW && a.elements)
                copy_elements<BN>(matrix, threadIdx.x / LANES + pass * PASS_ROWS,
                                  wanted ? (const uint16_t *)(from - lane_chunk * 16) : nullptr,
                                  a.head_dim);
            else
                copy_row(a, further_rows(to, pass), from, lane_chunk, wanted);
            from = ONE ? further(from, pass_bytes) : from + pass_bytes;
        }
    }

    template <bool SLOW>
    __device__ __forceinline__ void load_k(const mst_cuda_attn_args &a, unsigned block)
    {
        load_block<SLOW>(a, k_smem(), k_from, a.k_row_stride, block);
        copies_commit();
    }
    template <bool SLOW>
    __device__ __forceinline__ void load_v(const mst_cuda_attn_args &a, unsigned block)
    {
        load_block<SLOW>(a, v_smem(), v_from, a.v_row_stride, block);
        copies_commit();
    }

    /* What this thread copied or wrote is there for matrix instructions of the whole block, once it
       has passed a barrier. */
    __device__ __forceinline__ static void shown()
    {
#if defined(MST_GROUP)
        if (GROUP)
            show_writes();
#endif
    }

    /* ---- loads by the copy engine --------------------------------------------------------------
     */

#if defined(MST_BULK)
    __device__ __forceinline__ uint32_t full(bool of_v, unsigned turn) const
    {
        return q_smem + BARRIERS_AT + ((of_v ? STAGES : 0) + turn % STAGES) * 8;
    }
    __device__ __forceinline__ uint32_t k_at(unsigned block) const
    {
        return k_smem() + (block + passed) % STAGES * BLOCK_BYTES;
    }
    __device__ __forceinline__ uint32_t v_at(unsigned block) const
    {
        return v_smem() + (block + passed) % STAGES * BLOCK_BYTES;
    }

    __device__ __forceinline__ void make_barriers()
    {
        passed = 0;
        if (threadIdx.x != 0)
            return;
        expect_map(k_map);
        expect_map(v_map);
        for (unsigned i = 0; i < STAGES; i++) {
            barrier_init(full(false, i), 1);
            barrier_init(full(true, i), 1);
        }
        barriers_made();
    }

    /* Keys of a block, also those past the segment; one thread speaks for all. */
    __device__ __forceinline__ void fetch_block(bool of_v, unsigned block) const
    {
        if (__shfl_sync(0xffffffffu, warp(), 0) != 0 || !is_elected())
            return;
        uint32_t barrier = full(of_v, block + passed);
        uint32_t to = of_v ? v_at(block) : k_at(block);
        int row = get(KV_FIRST) + (int)(block * BN);
        barrier_expect(barrier, BLOCK_BYTES);
#pragma unroll
        for (int i = 0; i < DT / 64; i++)
            fetch(to + i * BN * 128, of_v ? v_map : k_map, i * 64, head, row, barrier);
    }

    __device__ __forceinline__ void wait_for(bool of_v, unsigned block) const
    {
        unsigned turn = block + passed;
        barrier_wait(full(of_v, turn), turn / STAGES & 1u);
    }

    /* Rows of v past the segment become 0, once they are there. */
    __device__ __forceinline__ void clear_tail(unsigned block) const
    {
        int keys = lk - (int)(block * BN);
        if (keys >= BN)
            return;
        for (int at = keys * 8 + (int)threadIdx.x; at < BN * 8; at += THREADS)
#pragma unroll
            for (int i = 0; i < DT / 64; i++)
                shared_put4(v_at(block) + i * BN * 128 + at * 16, 0);
        show_writes();
        __syncthreads();
    }
#endif

    /* ---- one block of keys ------------------------------------------------------------------- */

    /* First row of the tile, counted in rows of the group from the segment's first. */
    __device__ __forceinline__ int row_first() const
    {
        return get(ROW_BEGIN);
    }

    /* First and one past the last key that a row of the tile sees. */
    template <bool SHARED = false>
    __device__ __forceinline__ void sees(const mst_cuda_attn_args &a, int causal, int row, int &low,
                                         int &high) const
    {
        int place = 0, keys = lk, lq;
        if (SHARED) {
            uint32_t counts = (uint32_t)get(SHARED_ROWS);
            int segment = segment_at(counts, row, row);
            lq = (int)((unsigned)byte_of(counts, segment) / (unsigned)a.group);
            place = first_place((uint32_t)get(SHARED_KEYS), segment);
            keys = byte_of((uint32_t)get(SHARED_KEYS), segment);
        } else {
            row += row_first();
            lq = get(LQ);
        }
        int token = (int)(a.group == 1 ? (unsigned)row : (unsigned)row / (unsigned)a.group);
        int diagonal = keys - lq + token;
        int after = causal ? 0 : a.window_right;
        low = a.window_left == MST_CUDA_NO_WINDOW ? 0 : diagonal - a.window_left;
        high = after == MST_CUDA_NO_WINDOW ? keys : min(keys, diagonal + after + 1);
        if (SHARED) { /* others' keys lie below its first */
            low = place + max(low, 0);
            high += place;
        }
    }

    /* The two products of a block, begun: the four warps together. */
#if defined(MST_GROUP)
    __device__ __forceinline__ void begin_scores(float (&s)[MT][BN / 8][4], uint32_t k_at)
    {
        const matrix q = describe(q_smem, 0), k = describe(k_at, 0);
        multiply_begin();
#pragma unroll
        for (int d = 0; d < DG; d++)
            multiply<T>(s[0], moved(q, d / 4 * (ROWS * 128) + d % 4 * 32),
                        moved(k, d / 4 * (BN * 128) + d % 4 * 32), d > 0);
        multiply_commit();
    }

    __device__ __forceinline__ void begin_accumulate(const uint32_t (&p)[MT][KT][4], uint32_t v_at)
    {
        const matrix v = describe(v_at, BN * 128);
        multiply_begin();
#pragma unroll
        for (int n = 0; n < KT; n++)
            multiply_rows<T>(o[0], p[0][n], moved(v, n * 2048));
        multiply_commit();
    }
#endif

    /* Groups of 16 keys of the segment that this warp's rows are of. */
    __device__ __forceinline__ void own_groups(int &begin, int &end) const
    {
        int unused;
        int segment = segment_at((uint32_t)get(SHARED_ROWS), warp() * 16, unused);
        uint32_t keys = (uint32_t)get(SHARED_KEYS);
        begin = first_place(keys, segment) / 16;
        end = begin + places(byte_of(keys, segment)) / 16;
    }

    /* s = q k^T, one key group of 16 after the other; at an edge those outside [begin, end) stay
       0. */
    template <bool EDGE, bool SHARED>
    __device__ __forceinline__ void scores(float (&s)[MT][BN / 8][4], uint32_t k_at, int begin,
                                           int end)
    {
#if defined(MST_GROUP)
        if constexpr (GROUP) {
            begin_scores(s, k_at);
            multiply_wait<0>(s[0]);
            return;
        }
#endif
        uint32_t k_lane =
            k_at + ((lane() & 7) + ((lane() >> 4) << 3)) * PITCH + ((lane() >> 3) & 1) * 16;
        uint32_t q_lane = q_smem + (warp() * 16 * MT + (lane() & 15)) * PITCH + (lane() >> 4) * 16;
        if (EDGE) {
#pragma unroll
            for (int i = 0; i < MT; i++)
#pragma unroll
                for (int j = 0; j < BN / 8; j++)
                    s[i][j][0] = s[i][j][1] = s[i][j][2] = s[i][j][3] = 0.0f;
        }
#pragma unroll
        for (int d = 0; d < DG; d++) {
            uint32_t q[MT][4];
#pragma unroll
            for (int i = 0; i < MT; i++)
                load4(q[i], q_lane + i * 16 * PITCH + d * 32);
#pragma unroll
            for (int n = 0; n < KT; n++) {
                if (EDGE && n >= end)
                    break;
                if (SHARED && n < begin)
                    continue;
                uint32_t k[4];
                load4(k, k_lane + n * 16 * PITCH + d * 32);
#pragma unroll
                for (int i = 0; i < MT; i++) {
                    mma<T>(s[i][2 * n], q[i], k[0], k[1], !EDGE && d == 0);
                    mma<T>(s[i][2 * n + 1], q[i], k[2], k[3], !EDGE && d == 0);
                }
            }
        }
    }

    /* Scores of keys that a row does not see become -inf. */
    template <bool SHARED = false>
    __device__ __forceinline__ void mask(const mst_cuda_attn_args &a, int causal,
                                         float (&s)[MT][BN / 8][4], int first_key)
    {
#pragma unroll
        for (int i = 0; i < MT; i++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int low, high;
                sees<SHARED>(a, causal, warp() * 16 * MT + i * 16 + h * 8 + (lane() >> 2), low,
                             high);
                low -= first_key + (lane() & 3) * 2;
                high -= first_key + (lane() & 3) * 2;
#pragma unroll
                for (int j = 0; j < BN / 8; j++) {
#pragma unroll
                    for (int x = 0; x < 2; x++) {
                        int key = j * 8 + x;
                        if (key < low || key >= high)
                            s[i][j][2 * h + x] = MST_NEG_INF;
                    }
                }
            }
        }
    }

    /* Whether a maximum's exponent is too large for the cheap formula. */
    __device__ __forceinline__ static bool is_huge(float maximum, float scale)
    {
        return maximum != MST_NEG_INF && !(fabsf(__fmul_rn(maximum, scale)) < MST_HUGE_EXPONENT);
    }

    /*
     * Scores become weights; m and l move to the new maximum, and o is yet to shrink. Rows are
     * independent, so each stage does all of them. In the slow pass rows that are wide take the
     * scale times a difference, which no large score harms.
     */
    template <bool SLOW, int CHAINS = 1>
    __device__ __forceinline__ void weights(const mst_cuda_attn_args &a, float (&s)[MT][BN / 8][4],
                                            float (&shrink)[MT][2])
    {
        float scale = a.scale_log2;
        float largest[MT][2], offset[MT][2], sum[MT][2];
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float most[CHAINS];
                most[0] = m[i][h];
#pragma unroll
                for (int j = 0; j < BN / 8; j++) {
                    float larger = fmaxf(s[i][j][2 * h], s[i][j][2 * h + 1]);
                    most[j % CHAINS] =
                        j == 0 || j >= CHAINS ? fmaxf(most[j % CHAINS], larger) : larger;
                }
                largest[i][h] = most[0];
#pragma unroll
                for (int j = 1; j < CHAINS; j++)
                    largest[i][h] = fmaxf(largest[i][h], most[j]);
            }
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                largest[i][h] = quad_max(largest[i][h]);
                /* nothing seen so far: any finite reference gives weights of 0 */
                float reference = largest[i][h] == MST_NEG_INF ? 0.0f : largest[i][h];
                bool far = SLOW && (wide >> (2 * i + h) & 1) != 0;
                offset[i][h] = far ? reference : __fmul_rn(reference, scale);
                shrink[i][h] = exp2_fast(far ? __fmul_rn(__fsub_rn(m[i][h], reference), scale)
                                             : __fsub_rn(__fmul_rn(m[i][h], scale), offset[i][h]));
                m[i][h] = largest[i][h];
                sum[i][h] = 0.0f;
            }
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
#pragma unroll
            for (int i = 0; i < MT; i++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    float *w = &s[i][j][2 * h];
#pragma unroll
                    for (int x = 0; x < 2; x++) {
                        bool far = SLOW && (wide >> (2 * i + h) & 1) != 0;
                        w[x] = exp2_fast(far ? __fmul_rn(__fsub_rn(w[x], offset[i][h]), scale)
                                             : __fmaf_rn(w[x], scale, -offset[i][h]));
                    }
                    sum[i][h] = __fadd_rn(sum[i][h], __fadd_rn(w[0], w[1]));
                }
#pragma unroll
        for (int i = 0; i < MT; i++) {
            l[i][0] = __fmaf_rn(l[i][0], shrink[i][0], sum[i][0]);
            l[i][1] = __fmaf_rn(l[i][1], shrink[i][1], sum[i][1]);
        }
    }

    /* Weights rounded, as the matrix instruction wants them. */
    __device__ __forceinline__ static void round(const float (&s)[MT][BN / 8][4],
                                                 uint32_t (&p)[MT][KT][4])
    {
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
#pragma unroll
            for (int i = 0; i < MT; i++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    p[i][j / 2][h + 2 * (j & 1)] = pack<T>(s[i][j][2 * h], s[i][j][2 * h + 1]);
    }

    /* o moves to the new maximum. */
    __device__ __forceinline__ void rescale(const mst_cuda_attn_args &a,
                                            const float (&shrink)[MT][2])
    {
#pragma unroll
        for (int i = 0; i < MT; i++) {
            /* times 1 changes nothing: later blocks seldom hold a new maximum */
            if (!__any_sync(0xffffffffu, shrink[i][0] != 1.0f || shrink[i][1] != 1.0f))
                continue;
            /* a row's first maximum; later ones lie between it and the last, which note_huge sees */
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (!(shrink[i][h] > 0.0f) && is_huge(m[i][h], a.scale_log2))
                    huge |= 1u << (2 * i + h);
#pragma unroll
            for (int j = 0; j < DT / 8; j++) {
                o[i][j][0] = __fmul_rn(o[i][j][0], shrink[i][0]);
                o[i][j][1] = __fmul_rn(o[i][j][1], shrink[i][0]);
                o[i][j][2] = __fmul_rn(o[i][j][2], shrink[i][1]);
                o[i][j][3] = __fmul_rn(o[i][j][3], shrink[i][1]);
            }
        }
    }

    template <bool SLOW>
    __device__ __forceinline__ void weigh(const mst_cuda_attn_args &a, float (&s)[MT][BN / 8][4],
                                          uint32_t (&p)[MT][KT][4])
    {
        float shrink[MT][2];
        weights<SLOW>(a, s, shrink);
        round(s, p);
        rescale(a, shrink);
    }

    /* o += p v over the key groups of the block. */
    template <bool EDGE, bool SHARED>
    __device__ __forceinline__ void accumulate(const uint32_t (&p)[MT][KT][4], uint32_t v_at,
                                               int begin, int end)
    {
#if defined(MST_GROUP)
        if constexpr (GROUP) {
            begin_accumulate(p, v_at);
            multiply_wait<0>(o[0]);
            return;
        }
#endif
        uint32_t v_lane = v_at + (lane() & 15) * PITCH + (lane() >> 4) * 16;
#pragma unroll
        for (int n = 0; n < KT; n++) {
            if (EDGE && n >= end)
                break;
            if (SHARED && n < begin)
                continue;
#pragma unroll
            for (int d = 0; d < DG; d++) {
                uint32_t v[4];
                load4_transposed(v, v_lane + n * 16 * PITCH + d * 32);
#pragma unroll
                for (int i = 0; i < MT; i++) {
                    mma<T>(o[i][2 * d], p[i][n], v[0], v[1]);
                    mma<T>(o[i][2 * d + 1], p[i][n], v[2], v[3]);
                }
            }
        }
    }

    /* ---- non-finite v under a mask ------------------------------------------------------------
     */

    __device__ __forceinline__ static bool is_special(uint32_t word)
    {
        constexpr uint32_t low = exponent_mask<T>::low;
        return (word & low) == low || (word & (low << 16)) == (low << 16);
    }

    /* Whether this thread's share of the block holds a NaN or an infinity: a magnitude from the
       first infinity up. */
    __device__ bool has_special(uint32_t v_at) const
    {
        bool found = false;
        uint32_t largest = 0;
        for (int at = threadIdx.x; at < BN * CHUNKS; at += THREADS) {
            uint32_t w0, w1, w2, w3;
            shared_get4(w0, w1, w2, w3, v_at + piece<BN>(at / CHUNKS, at % CHUNKS));
#if defined(MST_LARGER_HALVES)
            w0 = larger_halves(w0 & 0x7fff7fffu, w1 & 0x7fff7fffu);
            w2 = larger_halves(w2 & 0x7fff7fffu, w3 & 0x7fff7fffu);
            largest = larger_halves(largest, larger_halves(w0, w2));
#else
            found |= is_special(w0) || is_special(w1) || is_special(w2) || is_special(w3);
#endif
        }
        return found || is_special(largest);
    }

    /* Adds non-finite elements times their weights to the rows that see their key, then takes them
       out of the block. p is spread over the four threads of a row. */
    __device__ __noinline__ static void settle(float *o_flat, const uint32_t *p_flat, uint32_t v_at,
                                               const int *low_high, int first_key)
    {
        for (int key = 0; key < BN; key++) {
            float weight[MT][2];
            for (int i = 0; i < MT; i++)
                for (int h = 0; h < 2; h++) {
                    uint32_t word = p_flat[(i * KT + key / 16) * 4 + h + 2 * (key / 8 & 1)];
                    weight[i][h] =
                        __shfl_sync(0xffffffffu, widen<T>((uint16_t)(word >> (key & 1) * 16)),
                                    (lane() & ~3) | (key / 2 & 3));
                }
            for (int j = 0; j < DT / 8; j++) {
                uint32_t word = shared_get(v_at + piece<BN>(key, j) + (lane() & 3) * 4);
                if (!is_special(word))
                    continue;
                for (int x = 0; x < 2; x++) {
                    uint16_t bits = (uint16_t)(x == 0 ? word & 0xffffu : word >> 16);
                    if ((bits & exponent_mask<T>::low) != exponent_mask<T>::low)
                        continue;
                    for (int i = 0; i < MT; i++)
                        for (int h = 0; h < 2; h++) {
                            const int *range = low_high + (i * 2 + h) * 2;
                            if (first_key + key >= range[0] && first_key + key < range[1])
                                o_flat[(i * (DT / 8) + j) * 4 + 2 * h + x] +=
                                    widen<T>(bits) * weight[i][h];
                        }
                }
            }
        }
        __syncthreads();
        for (int at = threadIdx.x; at < BN * CHUNKS * 4; at += THREADS) {
            uint32_t place =
                v_at + piece<BN>(at / (CHUNKS * 4), at / 4 % CHUNKS) + at % 4 * 4;
            uint32_t word = shared_get(place);
            if ((word & exponent_mask<T>::low) == exponent_mask<T>::low)
                word &= 0xffff0000u;
            if ((word & (exponent_mask<T>::low << 16)) == (exponent_mask<T>::low << 16))
                word &= 0x0000ffffu;
            shared_put(place, word);
        }
        shown();
        __syncthreads();
    }

    template <bool SHARED>
    __device__ __forceinline__ void settle_block(const mst_cuda_attn_args &a, int causal,
                                                 const uint32_t (&p)[MT][KT][4], uint32_t v_at,
                                                 int first_key)
    {
        int low_high[MT * 4];
        float o_flat[MT * DT / 2];
        uint32_t p_flat[MT * KT * 4];
#pragma unroll
        for (int i = 0; i < MT; i++) {
#pragma unroll
            for (int h = 0; h < 2; h++)
                sees<SHARED>(a, causal, warp() * 16 * MT + i * 16 + h * 8 + (lane() >> 2),
                             low_high[(i * 2 + h) * 2], low_high[(i * 2 + h) * 2 + 1]);
#pragma unroll
            for (int j = 0; j < DT / 8; j++)
#pragma unroll
                for (int x = 0; x < 4; x++)
                    o_flat[(i * (DT / 8) + j) * 4 + x] = o[i][j][x];
#pragma unroll
            for (int n = 0; n < KT; n++)
#pragma unroll
                for (int x = 0; x < 4; x++)
                    p_flat[(i * KT + n) * 4 + x] = p[i][n][x];
        }
        settle(o_flat, p_flat, v_at, low_high, first_key);
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int j = 0; j < DT / 8; j++)
#pragma unroll
                for (int x = 0; x < 4; x++)
                    o[i][j][x] = o_flat[(i * (DT / 8) + j) * 4 + x];
    }

    /* ---- the loop over blocks ---------------------------------------------------------------- */

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int i = 0; i < MT; i++) {
            m[i][0] = m[i][1] = MST_NEG_INF;
            l[i][0] = l[i][1] = 0.0f;
#pragma unroll
            for (int j = 0; j < DT / 8; j++)
                o[i][j][0] = o[i][j][1] = o[i][j][2] = o[i][j][3] = 0.0f;
        }
    }

    /* SLOW: v may hold non-finite elements that some row does not see, some rows may be wide, and q,
       k and v may have to be copied by elements. SHARED: the block is the only one, and loaded. */
    template <bool EDGE, bool SLOW, bool SHARED>
    __device__ __forceinline__ void step(const mst_cuda_attn_args &a, int causal, bool row_mask,
                                         unsigned block, unsigned last)
    {
        bool active = GROUP || warp() * 16 * MT < rows;
        int begin = 0, end = KT;
        if (SHARED)
            own_groups(begin, end);
        else if (EDGE)
            end = min(KT, (lk - (int)(block * BN) + 15) / 16);
        uint32_t k_at = k_smem() + (STAGES > 1 ? (block % STAGES) * BLOCK_BYTES : 0);
        uint32_t v_at = v_smem() + (STAGES > 1 ? (block % STAGES) * BLOCK_BYTES : 0);
        float s[MT][BN / 8][4];
        uint32_t p[MT][KT][4];

        /* k of this block is there, and everybody is done with the block before */
        if (STAGES == 1) {
            copies_wait<SHARED ? 1 : 0>();
            shown();
            __syncthreads();
            if (!SHARED)
                load_v<SLOW>(a, block);
        } else {
            copies_wait<1>();
            shown();
            __syncthreads();
            if (!SHARED && block < last)
                load_k<SLOW>(a, block + 1);
            else
                copies_commit();
        }
        if (active) {
            scores<EDGE, SHARED>(s, k_at, begin, end);
            if (!ONE && a.negative) {
#pragma unroll
                for (int i = 0; i < MT; i++)
#pragma unroll
                    for (int j = 0; j < BN / 8; j++)
#pragma unroll
                        for (int x = 0; x < 4; x++)
                            s[i][j][x] = -s[i][j][x];
            }
            if (EDGE)
                mask<SHARED>(a, causal, s, (int)(block * BN));
        }
        if (STAGES == 1) {
            copies_wait<0>();
            shown();
            __syncthreads();
            if (!SHARED && block < last)
                load_k<SLOW>(a, block + 1);
            if (active)
                weigh<SLOW>(a, s, p);
        } else {
            if (active)
                weigh<SLOW>(a, s, p);
            copies_wait<1>();
            shown();
            __syncthreads();
            if (!SHARED && block < last)
                load_v<SLOW>(a, block + 1);
            else
                copies_commit();
        }
        if (SLOW) {
            if (row_mask && __syncthreads_or(has_special(v_at)))
                settle_block<SHARED>(a, causal, p, v_at, (int)(block * BN));
        } else if (EDGE && row_mask) {
            special |= has_special(v_at);
        }
        if (active)
            accumulate<EDGE, SHARED>(p, v_at, begin, end);
    }

    /* The one block of segments that share the tile, from the loads on. */
    template <bool SLOW>
    __device__ __forceinline__ void shared_block(const mst_cuda_attn_args &a, int causal,
                                                 int kv_head)
    {
        clear();
        load_rows<SLOW, true>(a, kv_head * a.group);
        load_shared(a, k_smem(), a.k, a.k_row_stride, a.k_head_stride, kv_head);
        load_shared(a, v_smem(), a.v, a.v_row_stride, a.v_head_stride, kv_head);
        if (ONE && a.negative)
            negate_rows();
        step<true, SLOW, true>(a, causal, true, 0, 0);
    }

#if defined(MST_BULK)
    /* The same where the copy engine brings k and v. */
    template <bool EDGE>
    __device__ __forceinline__ void step_bulk(const mst_cuda_attn_args &a, int causal,
                                              bool row_mask, unsigned block, unsigned first,
                                              unsigned last)
    {
        float s[MT][BN / 8][4];
        uint32_t p[MT][KT][4];

        /* rows of q are there, and everybody is done with v of the block before */
        __syncthreads();
        wait_for(false, block);
        if (DT > 128 && block != first)
            fetch_block(true, block);
        begin_scores(s, k_at(block));
        if (DT <= 128 && block != first)
            fetch_block(true, block); /* what a thread asks of the copy engine takes its time */
        multiply_wait<0>(s[0]);
        if (EDGE)
            mask<false>(a, causal, s, (int)(block * BN));
        if (block < last) {
            __syncthreads();
            fetch_block(false, block + 1);
        }
        weigh<false>(a, s, p);
        wait_for(true, block);
        if (EDGE) {
            clear_tail(block);
            if (row_mask)
                special |= has_special(v_at(block));
        }
        accumulate<EDGE, false>(p, v_at(block), 0, KT);
    }
#endif

#if defined(MST_GROUP)
    __device__ __forceinline__ uint32_t v_ahead(unsigned block) const
    {
#if defined(MST_BULK)
        if constexpr (BULK)
            return v_at(block);
#endif
        return v_smem() + block % STAGES * BLOCK_BYTES;
    }

    /* Both products of a step are begun, and the loads of the next. */
    template <bool FIRST>
    __device__ __forceinline__ void begin_ahead(const mst_cuda_attn_args &a,
                                                float (&s)[MT][BN / 8][4],
                                                const uint32_t (&p)[MT][KT][4], unsigned block,
                                                unsigned last)
    {
#if defined(MST_BULK)
        if constexpr (BULK) {
            /* what a thread asks of the copy engine takes as long as a product */
            __syncthreads();
            wait_for(false, block);
            begin_scores(s, k_at(block));
            if (block < last)
                fetch_block(false, block + 1);
            if (FIRST)
                return;
            fetch_block(true, block);
            wait_for(true, block - 1);
            begin_accumulate(p, v_at(block - 1));
            return;
        }
#endif
        copies_wait<FIRST ? 1 : 0>();
        shown();
        __syncthreads();
        begin_scores(s, k_smem() + block % STAGES * BLOCK_BYTES);
        if (!FIRST)
            begin_accumulate(p, v_ahead(block - 1));
        if (block < last)
            load_k<false>(a, block + 1);
        if (!FIRST)
            load_v<false>(a, block);
    }

    /* The last v is there. */
    __device__ __forceinline__ void end_ahead([[maybe_unused]] unsigned last) const
    {
#if defined(MST_BULK)
        if constexpr (BULK) {
            wait_for(true, last);
            clear_tail(last);
            return;
        }
#endif
        copies_wait<0>();
        shown();
        __syncthreads();
    }

    /*
     * The same with two stages and matrix instructions that do not wait: beside a block's weights
     * runs the product of the block before, whose weights are p. In a block with a mask or past the
     * end EDGE is set; was_edge: it was in the block before.
     */
    template <bool EDGE, bool FIRST>
    __device__ __forceinline__ void step_ahead(const mst_cuda_attn_args &a, int causal,
                                               bool was_edge, uint32_t (&p)[MT][KT][4],
                                               unsigned block, unsigned last)
    {
        constexpr int CHAINS = BULK ? 4 : 1; /* registers are there for it */
        float s[MT][BN / 8][4], shrink[MT][2];

        /* k of this block and v of the one before are there, and everybody is done with those before
           them */
        begin_ahead<FIRST>(a, s, p, block, last);
        uint32_t v_before = v_ahead(block - 1);
        if (!FIRST && was_edge)
            special |= has_special(v_before);
        multiply_wait<FIRST ? 0 : 1>(s[0]);
        if (EDGE)
            mask<false>(a, causal, s, (int)(block * BN));
        weights<false, CHAINS>(a, s, shrink);
        if (!FIRST && BULK) /* alone on its multiprocessor; elsewhere other blocks use the time */
            done_before_waits(l[0][0] + l[0][1]);
        if (!FIRST)
            multiply_wait<0>(o[0]);
        rescale(a, shrink);
        multiply_wait<0>(s[0]); /* p is an operand of what has run until here */
        round(s, p);
    }
#endif

    /* The first loads of a pass. */
    template <bool SLOW>
    __device__ __forceinline__ void begin_loads(const mst_cuda_attn_args &a, int kv_head,
                                                unsigned first)
    {
#if defined(MST_BULK)
        if constexpr (BULK && !SLOW) {
            head = kv_head;
            passed -= first;
            fetch_block(false, first);
            fetch_block(true, first);
            load_rows<SLOW, false>(a, kv_head * a.group);
            copies_commit();
            copies_wait<0>();
            shown();
            return;
        }
#endif
        aim(a, kv_head, (int)first);
        /* k first: q's rows take the longest to find */
        load_block<SLOW>(a, k_smem(), k_from, a.k_row_stride, first);
        load_rows<SLOW, false>(a, kv_head * a.group);
        copies_commit();
        if (STAGES > 1)
            load_v<SLOW>(a, first);
    }

    /* All keys of the work in hand, from the loads on. */
    template <bool SLOW>
    __device__ __forceinline__ void blocks(const mst_cuda_attn_args &a, int causal, bool row_mask,
                                           int kv_head, int key_begin, int key_end)
    {
        unsigned first = (unsigned)key_begin / BN;
        unsigned last = (unsigned)(key_end - 1) / BN;
        clear();
        begin_loads<SLOW>(a, kv_head, first);
        if (ONE && a.negative)
            negate_rows();
        if (SLOW) {
            for (unsigned block = first; block <= last; block++)
                step<true, true, false>(a, causal, row_mask, block, last);
            return;
        }
        /* blocks [whole_begin, whole_end) are seen whole by every row of the tile */
        unsigned whole_begin = 0, whole_end = (unsigned)lk / BN;
        if (row_mask) {
            int low, high, unused;
            sees<false>(a, causal, 0, unused, high);
            sees<false>(a, causal, rows - 1, low, unused);
            whole_begin = low <= 0 ? 0 : (unsigned)(low + BN - 1) / BN;
            whole_end = high <= 0 ? 0 : (unsigned)high / BN;
        }
#if defined(MST_GROUP)
        if constexpr (AHEAD) {
            uint32_t p[MT][KT][4];
            bool was_edge = first < whole_begin || first >= whole_end;
            if (was_edge)
                step_ahead<true, true>(a, causal, false, p, first, last);
            else
                step_ahead<false, true>(a, causal, false, p, first, last);
            for (unsigned block = first + 1; block <= last; block++) {
                bool edge = block < whole_begin || block >= whole_end;
                if (edge)
                    step_ahead<true, false>(a, causal, was_edge && row_mask, p, block, last);
                else
                    step_ahead<false, false>(a, causal, was_edge && row_mask, p, block, last);
                was_edge = edge;
            }
            end_ahead(last);
            begin_accumulate(p, v_ahead(last));
            if (was_edge && row_mask)
                special |= has_special(v_ahead(last));
            multiply_wait<0>(o[0]);
            passed += last + 1;
            return;
        }
#endif
#if defined(MST_BULK)
        if constexpr (BULK) {
            for (unsigned block = first; block <= last; block++) {
                if (block >= whole_begin && block < whole_end)
                    step_bulk<false>(a, causal, false, block, first, last);
                else
                    step_bulk<true>(a, causal, row_mask, block, first, last);
            }
            passed += last + 1;
            return;
        }
#endif
        for (unsigned block = first; block <= last; block++) {
            if (block >= whole_begin && block < whole_end)
                step<false, false, false>(a, causal, false, block, last);
            else
                step<true, false, false>(a, causal, row_mask, block, last);
        }
    }

    /* Adds rows whose last maximum is huge. */
    __device__ __forceinline__ void note_huge(const mst_cuda_attn_args &a)
    {
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (is_huge(m[i][h], a.scale_log2))
                    huge |= 1u << (2 * i + h);
    }

    template <bool SLOW, bool SHARED>
    __device__ __forceinline__ void pass(const mst_cuda_attn_args &a, int causal, int kv_head,
                                         int key_begin, int key_end)
    {
        bool row_mask =
            causal || a.window_left != MST_CUDA_NO_WINDOW || a.window_right != MST_CUDA_NO_WINDOW;
        if (SHARED)
            shared_block<SLOW>(a, causal, kv_head);
        else
            blocks<SLOW>(a, causal, row_mask, kv_head, key_begin, key_end);
        note_huge(a);
    }

    template <bool SHARED>
    __device__ __forceinline__ void attend(const mst_cuda_attn_args &a, int causal, int kv_head,
                                           int key_begin, int key_end)
    {
        special = false;
        huge = wide = 0;
        if (key_end <= key_begin) {
            clear();
            return;
        }
        bool again = a.elements;
        if (!again) {
            pass<false, SHARED>(a, causal, kv_head, key_begin, key_end);
            again = __syncthreads_or(special || huge != 0);
        }
        for (bool last = !a.elements; again; last = true) {
            wide = huge;
            pass<true, SHARED>(a, causal, kv_head, key_begin, key_end);
            again = !last && __syncthreads_or(huge != 0);
        }
#pragma unroll
        for (int i = 0; i < MT; i++) {
            l[i][0] = quad_sum(l[i][0]);
            l[i][1] = quad_sum(l[i][1]);
        }
    }

    /* ---- results ----------------------------------------------------------------------------- */

    template <bool SHARED>
    __device__ __forceinline__ void put_lse(const mst_cuda_attn_args &a, int head,
                                            int64_t first_token, int row_begin)
    {
        int first = warp() * 16 * MT;
#pragma unroll
        for (int i = 0; i < MT; i++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int row = i * 16 + h * 8 + (lane() >> 2);
                if ((lane() & 3) != 0 || !is_row<SHARED>(first + row))
                    continue;
                unsigned of;
                int64_t token = token_of<SHARED>(a, row_begin + first + row, of);
                float half = __fmul_rn(__fmul_rn(m[i][h], 0.5f), a.scale_log2);
                float value = l[i][h] == 0.0f
                                  ? MST_NEG_INF
                                  : __fmaf_rn(half, 1.3862943611198906f, logf(l[i][h]));
                a.lse[(first_token + token) * a.lse_row_stride + head + of] = value;
            }
        }
    }

    /* A warp's rows of out to shared memory, and their lse to memory. */
    template <bool SHARED = false>
    __device__ __forceinline__ void stage(const mst_cuda_attn_args &a, int head,
                                          int64_t first_token, int row_begin)
    {
        int first = warp() * 16 * MT;
        if (a.lse != NULL)
            put_lse<SHARED>(a, head, first_token, row_begin);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < MT; i++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int row = i * 16 + h * 8 + (lane() >> 2);
                /* l is NaN where a score is; then so is the row */
                float inverse = l[i][h] == 0.0f ? 0.0f : __fdiv_rn(1.0f, l[i][h]);
#pragma unroll
                for (int j = 0; j < DT / 8; j++) {
                    /* padding that is zeroed once stays 0, whatever became of this row */
                    if (!ONE && j == CHUNKS - 1 && a.head_dim <= DT - 8)
                        continue;
                    uint32_t word = pack<T>(__fmul_rn(o[i][j][2 * h], inverse),
                                            __fmul_rn(o[i][j][2 * h + 1], inverse));
                    shared_put(q_smem + piece<ROWS>(first + row, j) + (lane() & 3) * 4, word);
                }
            }
        }
        __syncwarp();
    }

    /* A warp's rows of out from shared memory; VECTOR: they lie on 16 bytes. */
    template <bool SHARED, bool VECTOR>
    __device__ __forceinline__ void store_rows(const mst_cuda_attn_args &a, int head,
                                               int64_t first_token, int row_begin)
    {
        int first = warp() * 16 * MT;
        constexpr int PASS = 32 / LANES; /* rows that a warp writes at once */
        int lane_chunk = lane() % LANES;
        char *base = (char *)a.out +
                     (first_token * a.out_row_stride + (int64_t)head * a.out_head_stride) * 2 +
                     lane_chunk * 16;
        char *next = base + (int64_t)(row_begin + first + lane() / LANES) * a.out_row_stride * 2;
        int64_t pass_bytes = a.out_row_stride * (2 * PASS);
        packed_row packed((unsigned)(row_begin + first + lane() / LANES), PASS, (unsigned)a.group);
#pragma unroll(VECTOR ? 4 : 1)
        for (int pass = 0; pass < 16 * MT / PASS; pass++) {
            int row = lane() / LANES + pass * PASS;
            if (!is_row<SHARED>(first + row))
                break;
            char *to = next + pass * pass_bytes;
            if (SHARED) {
                unsigned of;
                int64_t token = token_of<SHARED>(a, first + row, of);
                to = base + (token * a.out_row_stride + (int64_t)of * a.out_head_stride) * 2;
            } else if (a.group != 1) {
                to = base + ((int64_t)packed.token * a.out_row_stride +
                             (int64_t)packed.of * a.out_head_stride) *
                                2;
                packed.step();
            }
            uint32_t from = q_smem + piece<ROWS>(first + row, lane_chunk);
#pragma unroll
            for (int i = 0; i < STEPS; i++)
                if (holds_chunk(a, lane_chunk, i))
                    store16<VECTOR>(a, to + i * LANES * 16, from + i * LANES * 16,
                                    (lane_chunk + i * LANES) * 8);
        }
    }

    /* 16 bytes of a row of out, from column on; by elements where rows do not lie on 16 bytes. */
    template <bool VECTOR>
    __device__ __forceinline__ static void store16(const mst_cuda_attn_args &a, char *to,
                                                   uint32_t from, int column)
    {
        uint32_t w[4];
        shared_get4(w[0], w[1], w[2], w[3], from);
        if (VECTOR) {
            *(uint4 *)to = make_uint4(w[0], w[1], w[2], w[3]);
            return;
        }
#pragma unroll
        for (int x = 0; x < 8; x++)
            if (column + x < a.head_dim)
                ((uint16_t *)to)[x] = (uint16_t)(w[x / 2] >> (x % 2 * 16));
    }

    /* What is done at every call lies together in the code: a jump is waited for. */
    template <bool SHARED = false>
    __device__ __forceinline__ void store(const mst_cuda_attn_args &a, int head)
    {
        int64_t first_token = SHARED ? 0 : get(Q_FIRST);
        int row_begin = SHARED ? 0 : row_first();
        if (warp() * 16 * MT >= rows)
            return;
        stage<SHARED>(a, head, first_token, row_begin);
        if (a.out_vector)
            store_rows<SHARED, true>(a, head, first_token, row_begin);
        else
            store_rows<SHARED, false>(a, head, first_token, row_begin);
    }

    /* A part's o, m and l, each thread its own. */
    __device__ __forceinline__ void save(float *slot) const
    {
        float4 *to = (float4 *)slot + threadIdx.x;
#pragma unroll
        for (int i = 0; i < MT; i++) {
            __stcg(to, make_float4(m[i][0], m[i][1], l[i][0], l[i][1]));
            to += THREADS;
#pragma unroll
            for (int j = 0; j < DT / 8; j++, to += THREADS)
                __stcg(to, make_float4(o[i][j][0], o[i][j][1], o[i][j][2], o[i][j][3]));
        }
    }

    /* One formula, the earlier part first. */
    template <bool AFTER>
    __device__ __forceinline__ static float joined(float own, float keep, float other, float add)
    {
        return AFTER ? __fmaf_rn(own, keep, __fmul_rn(other, add))
                     : __fmaf_rn(other, add, __fmul_rn(own, keep));
    }

    /* 2^((own - largest) scale); the maxima may lie further apart than f32 reaches. */
    __device__ __forceinline__ static float shrinks(float own, float largest, float scale)
    {
        float half = __fsub_rn(__fmul_rn(own, 0.5f), __fmul_rn(largest, 0.5f));
        float below = __fmul_rn(half, scale);
        return exp2_fast(__fadd_rn(below, below));
    }

    /* m and l with those of a part that comes after what is in hand, or before; what o and the part's
       are multiplied by then. */
    template <bool AFTER>
    __device__ __forceinline__ void merge_sums(float scale, int i, float4 part, float (&keep)[2],
                                               float (&add)[2])
    {
        float other_m[2] = {part.x, part.y}, other_l[2] = {part.z, part.w};
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float largest = fmaxf(m[i][h], other_m[h]);
            float reference = largest == MST_NEG_INF ? 0.0f : largest;
            keep[h] = shrinks(m[i][h], reference, scale);
            add[h] = shrinks(other_m[h], reference, scale);
            m[i][h] = largest;
            l[i][h] = joined<AFTER>(l[i][h], keep[h], other_l[h], add[h]);
        }
    }

    template <bool AFTER>
    __device__ __forceinline__ void merge_columns(int i, int j, float4 part, const float (&keep)[2],
                                                  const float (&add)[2])
    {
        o[i][j][0] = joined<AFTER>(o[i][j][0], keep[0], part.x, add[0]);
        o[i][j][1] = joined<AFTER>(o[i][j][1], keep[0], part.y, add[0]);
        o[i][j][2] = joined<AFTER>(o[i][j][2], keep[1], part.z, add[1]);
        o[i][j][3] = joined<AFTER>(o[i][j][3], keep[1], part.w, add[1]);
    }

    /* What is in hand, merged with the part before it. */
    __device__ __forceinline__ void merge_before(const mst_cuda_attn_args &a, const float *slot)
    {
        const float4 *from = (const float4 *)slot + threadIdx.x;
#pragma unroll
        for (int i = 0; i < MT; i++, from += (DT / 8 + 1) * THREADS) {
            float keep[2], add[2];
            merge_sums<false>(a.scale_log2, i, __ldcg(from), keep, add);
#pragma unroll
            for (int j = 0; j < DT / 8; j++)
                merge_columns<false>(i, j, __ldcg(from + (j + 1) * THREADS), keep, add);
        }
    }

    /*
     * Parts come in pieces by way of the memory of k and v, each thread its own numbers. Where a
     * piece was, one of as many pieces further on follows.
     */
    static constexpr int PIECES = DT / 8 % 4 == 0 ? 4 : 2; /* of 16 rows of a warp */
    static constexpr int PIECE_ROWS = DT / 8 / PIECES;     /* of 16 bytes for each thread */
    static constexpr int PART_PIECES = MT * PIECES;
    static constexpr int PIECE_BYTES = PIECE_ROWS * THREADS * 16;
    static constexpr int RING =
        PART_PIECES * PIECE_BYTES <= 2 * STAGES * BLOCK_BYTES ? PART_PIECES : PART_PIECES / 2;
    static_assert(RING * PIECE_BYTES <= 2 * STAGES * BLOCK_BYTES && PART_PIECES % RING == 0,
                  "half a part lies in the memory of k and v");

    __device__ __forceinline__ void fetch_piece(const float4 *part, int piece) const
    {
        const float4 *from =
            part + (piece * PIECE_ROWS + piece / PIECES + 1) * THREADS; /* past m and l */
        uint32_t to = k_smem() + piece % RING * PIECE_BYTES + threadIdx.x * 16;
#pragma unroll
        for (int row = 0; row < PIECE_ROWS; row++)
            copy16(to + row * THREADS * 16, from + row * THREADS);
    }

    /* Merges a part and sends for pieces of the next, NULL for none. sums: m and l of this part, and
       then of the next. */
    template <bool FIRST>
    __device__ __forceinline__ void merge_part(float scale, const float4 *part, const float4 *next,
                                               float4 (&sums)[MT])
    {
        float keep[MT][2], add[MT][2];
#pragma unroll
        for (int i = 0; i < MT; i++) {
            if (FIRST)
                m[i][0] = sums[i].x, m[i][1] = sums[i].y, l[i][0] = sums[i].z, l[i][1] = sums[i].w;
            else
                merge_sums<true>(scale, i, sums[i], keep[i], add[i]);
            if (next != nullptr)
                sums[i] = __ldcg(next + i * (DT / 8 + 1) * THREADS);
        }
#pragma unroll
        for (int piece = 0; piece < PART_PIECES; piece++) {
            copies_wait<RING - 1>();
            uint32_t from = k_smem() + piece % RING * PIECE_BYTES + threadIdx.x * 16;
#pragma unroll
            for (int row = 0; row < PIECE_ROWS; row++) {
                int i = piece / PIECES, j = piece % PIECES * PIECE_ROWS + row;
                uint32_t w[4];
                shared_get4(w[0], w[1], w[2], w[3], from + row * THREADS * 16);
                float4 x = make_float4(__uint_as_float(w[0]), __uint_as_float(w[1]),
                                       __uint_as_float(w[2]), __uint_as_float(w[3]));
                if (FIRST)
                    o[i][j][0] = x.x, o[i][j][1] = x.y, o[i][j][2] = x.z, o[i][j][3] = x.w;
                else
                    merge_columns<true>(i, j, x, keep[i], add[i]);
            }
            if (piece + RING < PART_PIECES)
                fetch_piece(part, piece + RING);
            else if (next != nullptr)
                fetch_piece(next, piece + RING - PART_PIECES);
            copies_commit();
        }
    }

    /* All parts of a tile, in ascending order. */
    __device__ __forceinline__ void merge_all(const mst_cuda_attn_args &a, const float *slots,
                                              int64_t part_floats, int num_parts)
    {
        const float4 *part = (const float4 *)slots + threadIdx.x;
        float4 sums[MT];
#pragma unroll
        for (int i = 0; i < MT; i++)
            sums[i] = __ldcg(part + i * (DT / 8 + 1) * THREADS);
#pragma unroll
        for (int piece = 0; piece < RING; piece++) {
            fetch_piece(part, piece);
            copies_commit();
        }
        const float4 *next = part + part_floats / 4;
        merge_part<true>(a.scale_log2, part, next, sums);
        for (int i = 1; i < num_parts; i++) {
            part = next;
            next = i + 1 < num_parts ? part + part_floats / 4 : nullptr;
            merge_part<false>(a.scale_log2, part, next, sums);
        }
        if (!ONE) { /* the padding of k and v was written over */
            __syncthreads();
            clear_padding(a);
        }
    }

    /* ---- the kernel -------------------------------------------------------------------------- */

    /* Words in the padding of q's rows, four a row, or after everything else: what the block's
       threads tell each other. Items are taken two ahead: one is on its way into shared memory while
       another is worked on. */
    static constexpr int WORDS_FROM = GROUP ? WORDS_AT : CHUNKS * 16;
    static constexpr int WORDS_PITCH = GROUP ? 16 : PITCH;
    __device__ __forceinline__ static volatile uint32_t *word(char *smem, int at)
    {
        return (volatile uint32_t *)(smem + WORDS_FROM + (at / 4) * WORDS_PITCH + (at % 4) * 4);
    }
    enum {
        NEXT_WORD = 24,
        TURN_WORD = 26
    }; /* after two items of 12 words; NEXT_WORD one a parity */

    __device__ __forceinline__ void fetch_item(const mst_cuda_attn_args &a, unsigned index,
                                               int parity)
    {
        const char *from = (const char *)&a.items[index];
#pragma unroll
        for (int i = 0; i < 3; i++)
            copy16(q_smem + WORDS_FROM + (parity * 3 + i) * WORDS_PITCH, from + i * 16);
    }

    /* The end of the part that a key is of; the last part may end where 32 bits do. */
    __device__ __forceinline__ static int part_end(int key, int part_keys, int end)
    {
        int room = part_keys - key % part_keys;
        return end - key <= room ? end : key + room;
    }

    /* Segments that share the tile, of one head. Apart, with registers of its own: they are short in
       what most tiles run. */
    __device__ __noinline__ static void compute_shared(const mst_cuda_attn_args &a, uint32_t q_smem,
                                                       uint32_t item, int causal, int kv_head)
    {
        tile t;
        t.q_smem = q_smem;
        t.item = item;
        t.rows = first_place((uint32_t)t.get(SHARED_ROWS), MST_CUDA_SHARERS);
        t.attend<true>(a, causal, kv_head, 0, BN);
        t.store<true>(a, kv_head * a.group);
    }

    /* One tile of one head: its rows of out, or its part of them. */
    __device__ __forceinline__ void compute(const mst_cuda_attn_args &a, int causal, int kv_head,
                                            char *smem)
    {
        int num_splits = get(NUM_SPLITS);
        int slot = get(SLOT);
        if constexpr (MAY_SHARE) {
            if (slot == MST_CUDA_SHARED) {
                compute_shared(a, q_smem, item, causal, kv_head);
                return;
            }
        }
        int key_begin = get(KEY_BEGIN);
        int item_end = get(KEY_END);
        int part_keys = get(PART_KEYS);
        float *own = a.own_partials + (int64_t)blockIdx.x * SLOT_FLOATS;
        for (bool first = true;; first = false) {
            int key_end = part_end(key_begin, part_keys, item_end);
            attend<false>(a, causal, kv_head, key_begin, key_end);
            if (!first)
                merge_before(a, own);
            if (key_end >= item_end)
                break;
            save(own);
            key_begin = key_end;
            shown();
            __syncthreads();
        }
        if (slot >= 0) {
            /* slots of a tile's parts follow each other; within a part, by head */
            int64_t place = (int64_t)slot * a.num_kv_heads + kv_head;
            int64_t part_floats = (int64_t)a.num_kv_heads * SLOT_FLOATS;
            float *slots = a.partials + place * SLOT_FLOATS;
            save(slots + get(SPLIT) * part_floats);
            __syncthreads();
            if (threadIdx.x == 0)
                *word(smem, TURN_WORD) = arrive(&a.arrivals[place], (unsigned)num_splits - 1u);
            __syncthreads();
            if (*word(smem, TURN_WORD) != (unsigned)num_splits - 1u)
                return;
            merge_all(a, slots, part_floats, num_splits);
        }
        store(a, kv_head * a.group);
    }

    __device__ __forceinline__ void run(const mst_cuda_attn_args &a, char *smem)
    {
        q_smem = (uint32_t)__cvta_generic_to_shared(smem);
        unsigned per_item = (unsigned)a.num_kv_heads;
        unsigned work = blockIdx.x;
        /* Asked for before the length of the list is here: the grid is never larger than the list's
           memory, and an item that is not of this plan is not looked at. The list is a plan's, which
           no kernel writes, so neither waits for the kernels before. */
        if (threadIdx.x == 0)
            fetch_item(a, work / per_item, 0);
        unsigned total = (unsigned)a.header->num_items * per_item;
        int causal = a.header->causal;
        bool shared = total > gridDim.x; /* else every block has one piece of work at most */
        unsigned pending = 0;
        wait_for_others();
        if (shared && work < total && threadIdx.x == 0)
            pending = atomicAdd(&a.counters->next, 1u);
        copies_commit();
#if defined(MST_BULK)
        if constexpr (BULK)
            make_barriers();
#endif
        clear_padding(a);
        copies_wait<0>();
        __syncthreads();
        for (int parity = 0; work < total; parity ^= 1) {
            if (threadIdx.x == 0) {
                unsigned next = shared ? pending + gridDim.x : total;
                *word(smem, NEXT_WORD + parity) = next;
                if (next < total) {
                    fetch_item(a, next / per_item, parity ^ 1);
                    copies_commit(); /* an item without keys copies nothing that would do it */
                    pending = atomicAdd(&a.counters->next, 1u);
                }
            }
            item = q_smem + WORDS_FROM + parity * 3 * WORDS_PITCH;
            lk = get(LK);
            rows = get(ROW_END) - row_first();
            compute(a, causal, (int)(work % per_item), smem);
            copies_wait<0>();
            shown(); /* what was read and written here the copy engine writes over */
            __syncthreads();
            work = *word(smem, NEXT_WORD + parity);
        }
        finish(a);
    }

    /* Rows past the plan become 0 (lse: -inf); the last block puts the counters back. */
    __device__ __forceinline__ void finish(const mst_cuda_attn_args &a)
    {
        int heads = a.num_kv_heads * a.group;
        int64_t first = a.header->num_tokens;
        bool shared = (unsigned)a.header->num_items * (unsigned)a.num_kv_heads > gridDim.x;
        for (int64_t at = first * heads + blockIdx.x * WARPS + warp(); at < a.zero_end * heads;
             at += (int64_t)gridDim.x * WARPS) {
            int64_t row = at / heads;
            int64_t head = at - row * heads;
            uint16_t *to = (uint16_t *)a.out + row * a.out_row_stride + head * a.out_head_stride;
            for (int d = lane(); d < a.head_dim; d += 32)
                to[d] = 0;
            if (a.lse != NULL && lane() == 0)
                a.lse[row * a.lse_row_stride + head] = MST_NEG_INF;
        }
        if (shared && threadIdx.x == 0 &&
            arrive(&a.counters->done, gridDim.x - 1u) == gridDim.x - 1u)
            a.counters->next = 0;
    }
};

} // namespace mst

/* An instance by its name. The register limit is what lets BLOCKS of them share a multiprocessor.
 */
#define MST_ATTN_KERNEL(NAME, T, DT, BN, MT, STAGES, BLOCKS, GROUP)    \
    extern "C" __global__ void __launch_bounds__(mst::THREADS, BLOCKS) \
        NAME(const __grid_constant__ mst_cuda_attn_args args)          \
    {                                                                  \
        extern __shared__ __align__(1024) char mst_smem[];             \
        mst::let_others_begin();                                       \
        mst::tile<mst::T, DT, BN, MT, STAGES, GROUP> t;                \
        t.run(args, mst_smem);                                         \
    }

/* The same with keys and values by the copy engine. */
#define MST_ATTN_BULK_KERNEL(NAME, T, DT, BN, STAGES, BLOCKS)                \
    extern "C" __global__ void __launch_bounds__(mst::THREADS, BLOCKS)       \
        NAME(const __grid_constant__ mst_cuda_hopper_args args)              \
    {                                                                        \
        extern __shared__ __align__(1024) char mst_smem[];                   \
        mst::let_others_begin();                                             \
        mst::tile<mst::T, DT, BN, 1, STAGES, true, mst::WARPS, true> t;      \
        t.k_map = &args.k;                                                   \
        t.v_map = &args.v;                                                   \
        t.run(args.attn, mst_smem);                                          \
    }

#endif
