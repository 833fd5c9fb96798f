/*
 * attn_hopper.cuh - ragged attention on Hopper cards: wgmma, the copy engine.
 *
 * What attn_tile.cuh computes, to the bit: blocks of 64 keys, 16 keys of a product at a time, the
 * same softmax; wgmma rounds its sums as mma.sync does. A block of threads takes a tile of 64
 * rows for each of its groups. Each group of four warps has 64 of them: their scores, weights and sums lie in
 * registers as those of mma.sync do, so the arithmetic between the products is attn_tile.cuh's own.
 * One more group fetches: a lane gives out the work and has the copy engine bring blocks of k and v
 * into a ring in shared memory; three warps bring the rows of q, those of the next tile while this
 * one is worked on.
 *
 * A group issues the scores of a block and then the product of the block before, and makes weights
 * of the scores while that product and those of other groups go on.
 *
 * A block of keys may run past its segment: such scores are masked, and such rows of v are zeroed
 * in shared memory before they are multiplied. What is seldom takes a slow way, the 16 rows of a
 * warp straight from memory by mma.sync, with the bits of the portable kernel's slow pass: a
 * non-finite v under a mask, and scores too large for the cheap formula. q, k and v lie on 16 bytes:
 * where they do not, the host launches another kernel.
 */
#ifndef MST_CUDA_ATTN_HOPPER_CUH
#define MST_CUDA_ATTN_HOPPER_CUH

#include "cuda/attn_tile.cuh"
#include "cuda/hopper.cuh"

namespace mst
{

/* ---- products of 64 rows --------------------------------------------------------------------- */

#define MST_SUMS_8(c, j)                                                           \
    "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3]), "+f"(c[j + 1][0]), \
        "+f"(c[j + 1][1]), "+f"(c[j + 1][2]), "+f"(c[j + 1][3])
#define MST_SUMS_32(c) MST_SUMS_8(c, 0), MST_SUMS_8(c, 2), MST_SUMS_8(c, 4), MST_SUMS_8(c, 6)
#define MST_SUMS_40(c) MST_SUMS_32(c), MST_SUMS_8(c, 8)
#define MST_SUMS_48(c) MST_SUMS_40(c), MST_SUMS_8(c, 10)
#define MST_NAMES_32                                                                             \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
    "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define MST_NAMES_40 MST_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define MST_NAMES_48 MST_NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"

/* c [64 x n] = a [64 x 16] b [16 x n], + c where kept; a in registers, b described: n of k 16 rows,
 * or of v 16 rows where TRANSPOSED. */
template <typename T, int TRANSPOSED, int GROUPS>
__device__ __forceinline__ void multiply_add(float (&c)[GROUPS][4], const uint32_t (&a)[4],
                                             uint32_t b, int keep);

#define MST_MULTIPLY_ADD(TYPE, TRANSPOSED, N, SUMS, A0, A1, A2, A3, B, KEEP)                  \
    template <>                                                                               \
    __device__ __forceinline__ void multiply_add<TYPE, TRANSPOSED, N / 8>(                    \
        float(&c)[N / 8][4], const uint32_t(&a)[4], uint32_t b, int keep)                     \
    {                                                                                         \
        asm volatile("{\n.reg .pred p;\n.reg .b64 b;\nsetp.ne.b32 p, %" #KEEP ", 0;\n"        \
                     "mov.b64 b, {%" #B                                                       \
                     ", " MST_DESCRIBED_HIGH_TEXT "};\n"                                        \
                                                       "wgmma.mma_async.sync.aligned.m64n" #N \
                                                       "k16.f32." #TYPE "." #TYPE             \
                                                       " {" MST_NAMES_##SUMS                  \
                     "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, b"                         \
                     ", p, 1, 1, " #TRANSPOSED ";\n}\n"                                       \
                     : MST_SUMS_##SUMS(c)                                                     \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(keep));        \
    }
#define MST_MULTIPLY_ADDS(TYPE)                               \
    MST_MULTIPLY_ADD(TYPE, 0, 64, 32, 32, 33, 34, 35, 36, 37) \
    MST_MULTIPLY_ADD(TYPE, 1, 64, 32, 32, 33, 34, 35, 36, 37) \
    MST_MULTIPLY_ADD(TYPE, 1, 80, 40, 40, 41, 42, 43, 44, 45) \
    MST_MULTIPLY_ADD(TYPE, 1, 96, 48, 48, 49, 50, 51, 52, 53)
MST_MULTIPLY_ADDS(bf16)
MST_MULTIPLY_ADDS(f16)
#undef MST_MULTIPLY_ADDS
#undef MST_MULTIPLY_ADD

/* Threads of one group, or of all that multiply, meet. */
__device__ __forceinline__ void meet(int barrier, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ bool meet_any(int barrier, int threads, bool any)
{
    int found;
    asm volatile("{\n.reg .pred p, q;\nsetp.ne.b32 p, %3, 0;\n"
                 "bar.red.or.pred q, %1, %2, p;\nselp.b32 %0, 1, 0, q;\n}\n"
                 : "=r"(found)
                 : "r"(barrier), "r"(threads), "r"((int)any)
                 : "memory");
    return found != 0;
}

/* ---- one instance ---------------------------------------------------------------------------- */

template <typename T, int DT, int STAGES, int WGS>
struct hopper : tile<T, DT, 64, 1, 1, false, WGS * WARPS> { /* WGS: groups that multiply */
    using base = tile<T, DT, 64, 1, 1, false, WGS * WARPS>;
    using base::CHUNKS, base::DG, base::KT, base::PITCH, base::ROWS, base::SLOT_FLOATS;
    using base::get, base::item, base::lk, base::rows, base::q_smem, base::lane, base::warp;
    using base::o, base::m, base::l, base::special, base::huge, base::wide;
    using base::sees, base::clear, base::mask, base::is_special;

    static constexpr int GROUP = 128; /* threads */
    static constexpr int THREADS = (WGS + 1) * GROUP, MULTIPLIERS = WGS * GROUP;
    static constexpr int REGISTERS = WGS == 2 ? 232 : 160, FEW_REGISTERS = WGS == 2 ? 40 : 32;
    static constexpr int BN = 64;
    static constexpr int ATOMS = (DT + 63) / 64; /* of 64 columns */
    static constexpr uint32_t ATOM_BYTES = BN * 128, BLOCK_BYTES = ATOMS * ATOM_BYTES;
    static constexpr int ITEMS = 4; /* known at once, four padded rows each */
    static constexpr int QUERY_THREADS = 96;

    /* Shared memory: the ring, rows of q and then of out, each group's of one tile and the next;
       items, barriers. */
    static constexpr uint32_t ROWS_BYTES =
        ((BLOCK_BYTES > 64 * PITCH ? BLOCK_BYTES : 64 * PITCH) + 1023) / 1024 * 1024;
    static constexpr uint32_t Q_AT = 2 * STAGES * BLOCK_BYTES;
    static constexpr uint32_t ITEMS_AT = Q_AT + 2 * WGS * ROWS_BYTES;
    static constexpr uint32_t BARRIERS_AT = ITEMS_AT + ITEMS * 4 * PITCH;
    static constexpr uint32_t SMEM_BYTES = 1024 + BARRIERS_AT + (4 * STAGES + 2 * ITEMS + 4) * 8;
    static_assert(SMEM_BYTES == MST_CUDA_HOPPER_SHARED(DT, WGS, STAGES), "what the host gives");
    static_assert(SMEM_BYTES <= 227 * 1024, "shared memory of a block");

    uint32_t ring;

    __device__ __forceinline__ uint32_t barrier(int at) const
    {
        return ring + BARRIERS_AT + at * 8;
    }
    __device__ __forceinline__ uint32_t k_full(int stage) const { return barrier(stage); }
    __device__ __forceinline__ uint32_t v_full(int stage) const { return barrier(STAGES + stage); }
    __device__ __forceinline__ uint32_t k_free(int stage) const
    {
        return barrier(2 * STAGES + stage);
    }
    __device__ __forceinline__ uint32_t v_free(int stage) const
    {
        return barrier(3 * STAGES + stage);
    }
    __device__ __forceinline__ uint32_t item_full(int at) const { return barrier(4 * STAGES + at); }
    __device__ __forceinline__ uint32_t item_free(int at) const
    {
        return barrier(4 * STAGES + ITEMS + at);
    }
    __device__ __forceinline__ uint32_t q_full(unsigned number) const
    {
        return barrier(4 * STAGES + 2 * ITEMS + (int)(number & 1u));
    }
    __device__ __forceinline__ uint32_t q_free(unsigned number) const
    {
        return barrier(4 * STAGES + 2 * ITEMS + 2 + (int)(number & 1u));
    }
    /* A group's rows of an item. */
    __device__ __forceinline__ uint32_t rows_at(unsigned number, int group) const
    {
        return ring + Q_AT + ((number & 1u) * WGS + (uint32_t)group) * ROWS_BYTES;
    }

    __device__ __forceinline__ void make_barriers()
    {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(k_full(i), 1);
            barrier_init(v_full(i), 1);
            barrier_init(k_free(i), WGS * mst::WARPS);
            barrier_init(v_free(i), WGS * mst::WARPS);
        }
        for (int i = 0; i < ITEMS; i++) {
            barrier_init(item_full(i), 1);
            barrier_init(item_free(i), MULTIPLIERS + QUERY_THREADS);
        }
        for (int i = 0; i < 2; i++) {
            barrier_init(q_full((unsigned)i), QUERY_THREADS);
            barrier_init(q_free((unsigned)i), MULTIPLIERS);
        }
        barriers_made();
    }

    /* ---- a place in the ring, counted in blocks since the start --------------------------------
     */

    __device__ __forceinline__ static int stage_of(unsigned at) { return (int)(at % STAGES); }
    __device__ __forceinline__ static unsigned parity_of(unsigned at) { return at / STAGES & 1u; }
    __device__ __forceinline__ uint32_t k_at(unsigned at) const
    {
        return ring + (uint32_t)stage_of(at) * BLOCK_BYTES;
    }
    __device__ __forceinline__ uint32_t v_at(unsigned at) const
    {
        return ring + (uint32_t)(STAGES + stage_of(at)) * BLOCK_BYTES;
    }
    /* The same in all lanes, which the compiler then knows: matrix instructions are not issued in
       parallel behind a branch that might part them. */
    __device__ __forceinline__ static int same(int x) { return __shfl_sync(0xffffffffu, x, 0); }

    /* One lane speaks for a warp: of what the copy engine writes. Of what threads write each speaks
       for itself, once a tile; racecheck follows no lane that another speaks for. */
    __device__ __forceinline__ static void tell(uint32_t barrier)
    {
        if (lane() == 0)
            barrier_arrive(barrier);
    }

    /* ---- items ---------------------------------------------------------------------------------
     */

    __device__ __forceinline__ void aim_item(unsigned number)
    {
        item = ring + ITEMS_AT + (number % ITEMS) * 4 * PITCH;
    }
    __device__ __forceinline__ uint32_t work_word() const { return item + 3 * PITCH; }

    /* Waits for an item; its work, or total when there is none left. */
    __device__ __forceinline__ unsigned next_item(unsigned number)
    {
        barrier_wait(item_full(number % ITEMS), number / ITEMS & 1u);
        aim_item(number);
        return shared_get(work_word());
    }

    /* ---- the group that fetches ----------------------------------------------------------------
     */

    __device__ __forceinline__ void publish(const mst_cuda_attn_args &a, unsigned number,
                                            unsigned work, unsigned total)
    {
        uint32_t kept = item;
        barrier_wait(item_free(number % ITEMS), (number / ITEMS & 1u) ^ 1u);
        aim_item(number);
        if (work < total) {
            const uint4 *from = (const uint4 *)&a.items[work / (unsigned)a.num_kv_heads];
#pragma unroll
            for (int i = 0; i < 3; i++) {
                uint4 x = __ldg(from + i);
                asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(item + i * PITCH),
                             "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                             : "memory");
            }
        }
        shared_put(work_word(), work);
        barrier_arrive(item_full(number % ITEMS));
        item = kept;
    }

    __device__ __forceinline__ void fetch_block(uint32_t to, const mst_cuda_tensor_map *map,
                                                uint32_t full, uint32_t free, unsigned parity,
                                                int kv_head, int row)
    {
        barrier_wait(free, parity ^ 1u);
        barrier_expect(full, BLOCK_BYTES);
#pragma unroll
        for (int i = 0; i < ATOMS; i++)
            fetch(to + i * ATOM_BYTES, map, i * 64, kv_head, row, full);
    }

    /* One lane: work as it is taken, and its blocks of k and v. */
    __device__ __forceinline__ void fetch_all(const mst_cuda_hopper_args &args, unsigned total)
    {
        const mst_cuda_attn_args &a = args.attn;
        bool shared = total > gridDim.x; /* else every block has one piece of work at most */
        unsigned work = blockIdx.x, at = 0;
        publish(a, 0, work, total);
        for (unsigned number = 0; work < total; number++) {
            unsigned next = total;
            if (shared)
                next = atomicAdd(&a.counters->next, 1u) + gridDim.x;
            aim_item(number);
            int kv_head = (int)(work % (unsigned)a.num_kv_heads);
            int first = get(base::KEY_BEGIN) / BN, end = (get(base::KEY_END) + BN - 1) / BN;
            int row = get(base::KV_FIRST);
            if (get(base::KEY_END) <= get(base::KEY_BEGIN))
                end = first;
            for (int block = first; block < end; block++, at++) {
                fetch_block(k_at(at), &args.k, k_full(stage_of(at)), k_free(stage_of(at)),
                            parity_of(at), kv_head, row + block * BN);
                fetch_block(v_at(at), &args.v, v_full(stage_of(at)), v_free(stage_of(at)),
                            parity_of(at), kv_head, row + block * BN);
                if (block == first)
                    publish(a, number + 1, next < total ? next : total, total);
            }
            if (first == end)
                publish(a, number + 1, next < total ? next : total, total);
            work = next;
        }
    }

    /* Where a piece of a row of a group goes: swizzled, as products want it. */
    __device__ __forceinline__ static uint32_t place_of(int row, int chunk)
    {
        return (uint32_t)(chunk / 8) * ATOM_BYTES +
               (uint32_t)(row * 128 + (chunk % 8 ^ row % 8) * 16);
    }

    /* Rows of q of one tile, zeros past them and past the head dim. */
    __device__ __forceinline__ void copy_rows(const mst_cuda_attn_args &a, int head,
                                              unsigned number, int thread)
    {
        const char *from =
            (const char *)a.q +
            ((int64_t)get(base::Q_FIRST) * a.q_row_stride + (int64_t)head * a.q_head_stride) * 2;
        unsigned row_begin = (unsigned)get(base::ROW_BEGIN);
        int count = get(base::ROW_END) - (int)row_begin, chunks = a.head_dim / 8;
#pragma unroll 4
        for (int at = thread; at < ROWS * CHUNKS; at += QUERY_THREADS) {
            int row = at / CHUNKS, chunk = at % CHUNKS;
            unsigned packed = row_begin + (unsigned)row;
            unsigned token = a.group == 1 ? packed : packed / (unsigned)a.group;
            unsigned of = packed - token * (unsigned)a.group;
            copy16_or_zero(
                rows_at(number, row / 64) + place_of(row % 64, chunk),
                from + ((int64_t)token * a.q_row_stride + (int64_t)of * a.q_head_stride) * 2 +
                    chunk * 16,
                row < count && chunk < chunks);
        }
    }

    /* A negative scale is a positive one of -q: what this thread has copied. */
    __device__ __forceinline__ void negate_rows(unsigned number, int thread)
    {
        for (int at = thread; at < ROWS * CHUNKS; at += QUERY_THREADS) {
            uint32_t place =
                rows_at(number, at / CHUNKS / 64) + place_of(at / CHUNKS % 64, at % CHUNKS);
#pragma unroll
            for (int i = 0; i < 4; i++)
                shared_put(place + i * 4, shared_get(place + i * 4) ^ 0x80008000u);
        }
    }

    __device__ __forceinline__ void copy_all(const mst_cuda_attn_args &a, unsigned total,
                                             int thread)
    {
        for (unsigned number = 0;; number++) {
            unsigned work = next_item(number);
            if (work >= total)
                break;
            barrier_wait(q_free(number), (number / 2 & 1u) ^ 1u);
            copy_rows(a, (int)(work % (unsigned)a.num_kv_heads) * a.group, number, thread);
            copies_commit();
            copies_wait<0>();
            if (base::ONE && a.negative)
                negate_rows(number, thread);
            show_writes();
            barrier_arrive(q_full(number));
            barrier_arrive(item_free(number % ITEMS));
        }
    }

    /* ---- a group that multiplies ---------------------------------------------------------------
     */

    uint32_t described; /* the ring */
    uint32_t q[DG][4];  /* this thread's part of the rows */
    unsigned at;        /* blocks that are behind */

    __device__ __forceinline__ static int group()
    {
        return (int)threadIdx.x / GROUP;
    }

    /* This thread's part of the rows. */
    __device__ __forceinline__ void take_rows(unsigned number)
    {
        uint32_t from = rows_at(number, group());
        barrier_wait(q_full(number), number / 2 & 1u);
#pragma unroll
        for (int d = 0; d < DG; d++)
            load4(q[d], from + place_of(warp() % WARPS * 16 + (lane() & 15), 2 * d + (lane() >> 4)));
    }

    /* s = q k^T of the block at a place, not waited for. */
    __device__ __forceinline__ void start_scores(float (&s)[1][BN / 8][4], unsigned place)
    {
        uint32_t k = described + (uint32_t)stage_of(place) * (BLOCK_BYTES >> 4);
#pragma unroll
        for (int d = 0; d < DG; d++)
            multiply_add<T, 0>(s[0], q[d], k + d / 4 * (ATOM_BYTES >> 4) + d % 4 * 2, d > 0);
        multiply_commit();
    }

    /* o += p v of the block at a place, not waited for. */
    __device__ __forceinline__ void start_sums(const uint32_t (&p)[1][KT][4], unsigned place)
    {
        uint32_t v = described + (uint32_t)(STAGES + stage_of(place)) * (BLOCK_BYTES >> 4) +
                     (ATOM_BYTES >> 4 << 16);
#pragma unroll
        for (int n = 0; n < KT; n++)
            multiply_add<T, 1>(o[0], p[0][n], v + n * (2048 >> 4), 1);
        multiply_commit();
    }

    /* Scores as they come become those that weights are made of. */
    __device__ __forceinline__ void finish_scores(const mst_cuda_attn_args &a, int causal,
                                                  float (&s)[1][BN / 8][4], int block, bool edge)
    {
        if (!base::ONE && a.negative) {
#pragma unroll
            for (int j = 0; j < BN / 8; j++)
#pragma unroll
                for (int x = 0; x < 4; x++)
                    s[0][j][x] = -s[0][j][x];
        }
        if (__builtin_expect(edge, 0))
            mask(a, causal, s, block * BN);
    }

    /* Rows of v past the segment become 0. */
    __device__ __forceinline__ void clear_tail(uint32_t v, int keys)
    {
        for (int i = 0; i < ATOMS; i++)
            for (int chunk = keys * 8 + (int)threadIdx.x % GROUP; chunk < BN * 8; chunk += GROUP)
                shared_put4(v + i * ATOM_BYTES + (uint32_t)chunk * 16, 0);
        show_writes();
        meet(2 + group(), GROUP);
    }

    __device__ __forceinline__ bool holds_special(uint32_t v) const
    {
        bool found = false;
        for (int i = (int)threadIdx.x % GROUP; i < (int)BLOCK_BYTES / 16; i += GROUP) {
            uint32_t w0, w1, w2, w3;
            shared_get4(w0, w1, w2, w3, v + (uint32_t)i * 16);
            found |= is_special(w0) || is_special(w1) || is_special(w2) || is_special(w3);
        }
        return found;
    }

    /* A block that this group's rows see nothing of. */
    __device__ __forceinline__ void skip_block()
    {
        barrier_wait(k_full(stage_of(at)), parity_of(at));
        barrier_wait(v_full(stage_of(at)), parity_of(at));
        tell(k_free(stage_of(at)));
        tell(v_free(stage_of(at)));
        at++;
    }

    /* Blocks [first, last], of which the group's rows see [from, to], all of [whole_begin,
     * whole_end) whole. */
    struct range {
        int first, last, from, to, whole_begin, whole_end;
    };
    __device__ __forceinline__ range range_of(const mst_cuda_attn_args &a, int causal,
                                              bool row_mask, int key_begin, int key_end) const
    {
        range r;
        r.first = key_begin / BN;
        r.last = (key_end - 1) / BN;
        r.from = r.first, r.to = r.last;
        r.whole_begin = 0, r.whole_end = lk / BN;
        int row = same(group()) * 64;
        if (row >= rows) {
            r.to = r.from - 1;
        } else if (row_mask) {
            int low, high, last_low, last_high;
            sees(a, causal, row, low, high);
            sees(a, causal, min(row + 63, rows - 1), last_low, last_high);
            r.from = max(r.first, low / BN);
            r.to = min(r.last, (max(last_high, 0) + BN - 1) / BN - 1);
            r.whole_begin = last_low <= 0 ? 0 : (last_low + BN - 1) / BN;
            r.whole_end = high <= 0 ? 0 : high / BN;
            r.from = same(r.from), r.to = same(r.to);
            r.whole_begin = same(r.whole_begin), r.whole_end = same(r.whole_end);
        }
        return r;
    }

    __device__ __forceinline__ static bool is_edge(const range &r, int block)
    {
        return block < r.whole_begin || block >= r.whole_end;
    }

    /* Scores that have come become weights, not rounded. */
    __device__ __forceinline__ void weigh_scores(const mst_cuda_attn_args &a, int causal,
                                                 const range &r, int block,
                                                 float (&s)[1][BN / 8][4], float (&shrink)[1][2])
    {
        finish_scores(a, causal, s, block, is_edge(r, block));
        base::template weights<false, 4>(a, s, shrink);
    }

    /* Takes note of non-finite v of the block at a place, where a mask may hide it. */
    __device__ __forceinline__ void look_at(bool row_mask, const range &r, int block,
                                            unsigned place)
    {
        if (__builtin_expect(row_mask && is_edge(r, block), 0))
            special |= holds_special(v_at(place));
    }

    /* Waits for a product that is added to o; its v is done with, and o is next multiplied by p of
       the block whose weights are in s. */
    __device__ __forceinline__ void end_sums(const mst_cuda_attn_args &a, unsigned place,
                                             const float (&s)[1][BN / 8][4],
                                             const float (&shrink)[1][2], uint32_t (&p)[1][KT][4])
    {
        multiply_wait<0>(o[0]);
        tell(v_free(stage_of(place)));
        base::round(s, p);
        base::rescale(a, shrink);
    }

    /* One block, while p of the block before is multiplied. */
    __device__ __forceinline__ void one_block(const mst_cuda_attn_args &a, int causal,
                                              bool row_mask, const range &r, int block,
                                              uint32_t (&p)[1][KT][4])
    {
        float s[1][BN / 8][4], shrink[1][2];
        barrier_wait(v_full(stage_of(at - 1)), parity_of(at - 1), k_full(stage_of(at)),
                     parity_of(at));
        multiply_begin();
        start_scores(s, at);
        start_sums(p, at - 1);
        multiply_wait<1>(s[0]);
        tell(k_free(stage_of(at)));
        weigh_scores(a, causal, r, block, s, shrink);
        look_at(row_mask, r, block - 1, at - 1);
        end_sums(a, at - 1, s, shrink, p);
        at++;
    }

    /* A pass over the blocks, all rows by the cheap formula. */
    __device__ __forceinline__ void blocks(const mst_cuda_attn_args &a, int causal, bool row_mask,
                                           const range &r)
    {
        clear();
        int block = r.first;
#pragma unroll 1
        for (; block < r.from && block <= r.last; block++)
            skip_block();
        if (block <= r.to) {
            float s[1][BN / 8][4], shrink[1][2];
            uint32_t p[1][KT][4];
            barrier_wait(k_full(stage_of(at)), parity_of(at));
            multiply_begin();
            start_scores(s, at);
            multiply_wait<0>(s[0]);
            tell(k_free(stage_of(at)));
            weigh_scores(a, causal, r, block, s, shrink);
            base::round(s, p);
            base::rescale(a, shrink);
            block++;
            at++;
#pragma unroll 1
            for (; block <= r.to; block++)
                one_block(a, causal, row_mask, r, block, p);
            int keys = lk - r.to * BN;
            barrier_wait(v_full(stage_of(at - 1)), parity_of(at - 1));
            if (keys < BN)
                clear_tail(v_at(at - 1), keys);
            look_at(row_mask, r, r.to, at - 1);
            multiply_begin();
            start_sums(p, at - 1);
            multiply_wait<0>(o[0]);
            tell(v_free(stage_of(at - 1)));
        }
#pragma unroll 1
        for (; block <= r.last; block++)
            skip_block();
    }

    /* ---- the slow pass -------------------------------------------------------------------------
     */

    /* Two elements of a row in memory. */
    __device__ __forceinline__ static uint32_t pair(const void *data, int64_t element, bool wanted)
    {
        return wanted ? *(const uint32_t *)((const uint16_t *)data + element) : 0;
    }

    __device__ __forceinline__ void slow_rows(const mst_cuda_attn_args &a, int head,
                                              uint32_t (&q)[DG][4]) const
    {
#pragma unroll 1
        for (int h = 0; h < 2; h++) {
            int row = warp() * 16 + h * 8 + (lane() >> 2);
            unsigned packed = (unsigned)(get(base::ROW_BEGIN) + row);
            unsigned token = packed / (unsigned)a.group, of = packed - token * (unsigned)a.group;
            int64_t from = ((int64_t)get(base::Q_FIRST) + token) * a.q_row_stride +
                           (int64_t)(head + (int)of) * a.q_head_stride;
#pragma unroll
            for (int d = 0; d < DG; d++)
#pragma unroll
                for (int x = 0; x < 2; x++) {
                    int column = d * 16 + x * 8 + (lane() & 3) * 2;
                    uint32_t word = pair(a.q, from + column, row < rows && column < a.head_dim);
                    if (base::ONE && a.negative)
                        word ^= 0x80008000u;
                    if (h == 0)
                        q[d][2 * x] = word;
                    else
                        q[d][2 * x + 1] = word;
                }
        }
    }

    __device__ __forceinline__ void slow_scores(const mst_cuda_attn_args &a, int64_t k, int keys,
                                                const uint32_t (&q)[DG][4],
                                                float (&s)[1][BN / 8][4])
    {
#pragma unroll
        for (int j = 0; j < BN / 8; j++) {
            int key = j * 8 + (lane() >> 2);
            s[0][j][0] = s[0][j][1] = s[0][j][2] = s[0][j][3] = 0.0f;
#pragma unroll
            for (int d = 0; d < DG; d++) {
                int column = d * 16 + (lane() & 3) * 2;
                int64_t from = k + key * a.k_row_stride + column;
                mma<T>(s[0][j], q[d], pair(a.k, from, key < keys && column < a.head_dim),
                       pair(a.k, from + 8, key < keys && column + 8 < a.head_dim));
            }
        }
    }

    /* Two elements of a column of v, non-finite ones as 0 where asked for. */
    __device__ __forceinline__ static uint32_t
    column_pair(const mst_cuda_attn_args &a, int64_t v, int key, int keys, int column, bool finite)
    {
        uint32_t word = 0;
#pragma unroll
        for (int x = 0; x < 2; x++) {
            uint32_t bits = 0;
            if (key + x < keys && column < a.head_dim)
                bits = ((const uint16_t *)a.v)[v + (key + x) * a.v_row_stride + column];
            if (finite && is_special(bits))
                bits = 0;
            word |= bits << (16 * x);
        }
        return word;
    }

    /* Adds non-finite elements times their weights to the rows that see their key. */
    __device__ __forceinline__ void slow_settle(const mst_cuda_attn_args &a, int causal, int64_t v,
                                                int block, int keys, const uint32_t (&p)[1][KT][4])
    {
        int low[2], high[2];
        for (int h = 0; h < 2; h++)
            sees(a, causal, warp() * 16 + h * 8 + (lane() >> 2), low[h], high[h]);
#pragma unroll
        for (int n = 0; n < KT; n++)
#pragma unroll 1
            for (int key = n * 16; key < n * 16 + 16; key++) {
                float weight[2];
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    uint32_t word = (key & 8) != 0 ? p[0][n][h + 2] : p[0][n][h];
                    weight[h] =
                        __shfl_sync(0xffffffffu, widen<T>((uint16_t)(word >> (key & 1) * 16)),
                                    (lane() & ~3) | (key / 2 & 3));
                }
                int seen = block * BN + key;
#pragma unroll
                for (int j = 0; j < DT / 8; j++) {
                    int column = j * 8 + (lane() & 3) * 2;
                    uint32_t word = pair(a.v, v + key * a.v_row_stride + column,
                                         key < keys && column < a.head_dim);
                    if (!is_special(word))
                        continue;
#pragma unroll
                    for (int x = 0; x < 2; x++) {
                        uint32_t bits = word >> (16 * x) & 0xffffu;
                        for (int h = 0; is_special(bits) && h < 2; h++)
                            if (seen >= low[h] && seen < high[h])
                                o[0][j][2 * h + x] += widen<T>((uint16_t)bits) * weight[h];
                    }
                }
            }
    }

    /* What a thread has of its rows: o, m, l. */
    static constexpr int STATE = DT / 2 + 4;

    /* Everything of a warp's 16 rows, straight from memory. wide: the rows that are huge. */
    __device__ __noinline__ static void from_memory(const mst_cuda_attn_args &a, int causal,
                                                    int kv_head, uint32_t item, int key_begin,
                                                    int key_end, unsigned wide, float *state)
    {
        hopper t;
        t.item = item;
        t.lk = t.get(base::LK);
        t.rows = t.get(base::ROW_END) - t.get(base::ROW_BEGIN);
        t.wide = wide;
        uint32_t q[DG][4];
        t.slow_rows(a, kv_head * a.group, q);
        t.clear();
        bool row_mask =
            causal || a.window_left != MST_CUDA_NO_WINDOW || a.window_right != MST_CUDA_NO_WINDOW;
#pragma unroll 1
        for (int block = key_begin / BN; block <= (key_end - 1) / BN; block++) {
            float s[1][BN / 8][4];
            uint32_t p[1][KT][4];
            int keys = min(BN, t.lk - block * BN);
            int64_t row = (int64_t)t.get(base::KV_FIRST) + block * BN;
            int64_t k = row * a.k_row_stride + (int64_t)kv_head * a.k_head_stride;
            int64_t v = row * a.v_row_stride + (int64_t)kv_head * a.v_head_stride;
            t.slow_scores(a, k, keys, q, s);
            t.finish_scores(a, causal, s, block, true);
            t.template weigh<true>(a, s, p);
            if (row_mask)
                t.slow_settle(a, causal, v, block, keys, p);
#pragma unroll
            for (int n = 0; n < KT; n++)
                if (n * 16 < keys)
#pragma unroll
                    for (int j = 0; j < DT / 8; j++) {
                        int key = n * 16 + (lane() & 3) * 2, column = j * 8 + (lane() >> 2);
                        mma<T>(t.o[0][j], p[0][n], column_pair(a, v, key, keys, column, row_mask),
                               column_pair(a, v, key + 8, keys, column, row_mask));
                    }
        }
#pragma unroll
        for (int j = 0; j < DT / 8; j++)
#pragma unroll
            for (int x = 0; x < 4; x++)
                state[j * 4 + x] = t.o[0][j][x];
        for (int h = 0; h < 2; h++) {
            state[DT / 2 + h] = t.m[0][h];
            state[DT / 2 + 2 + h] = t.l[0][h];
        }
    }

    /* One part of the keys. */
    __device__ __forceinline__ void attend(const mst_cuda_attn_args &a, int causal, int kv_head,
                                           int key_begin, int key_end)
    {
        bool row_mask =
            causal || a.window_left != MST_CUDA_NO_WINDOW || a.window_right != MST_CUDA_NO_WINDOW;
        special = false;
        huge = wide = 0;
        if (key_end <= key_begin) {
            clear();
            return;
        }
        blocks(a, causal, row_mask, range_of(a, causal, row_mask, key_begin, key_end));
        base::note_huge(a);
        bool again = row_mask && meet_any(2 + group(), GROUP, special);
        if (again || __any_sync(0xffffffffu, huge != 0)) {
            float state[STATE];
            from_memory(a, causal, kv_head, item, key_begin, key_end, huge, state);
#pragma unroll
            for (int j = 0; j < DT / 8; j++)
#pragma unroll
                for (int x = 0; x < 4; x++)
                    o[0][j][x] = state[j * 4 + x];
            for (int h = 0; h < 2; h++) {
                m[0][h] = state[DT / 2 + h];
                l[0][h] = state[DT / 2 + 2 + h];
            }
        }
        l[0][0] = quad_sum(l[0][0]);
        l[0][1] = quad_sum(l[0][1]);
    }

    /* Rows of out, all read from shared memory before the first is written. */
    __device__ __forceinline__ void store_rows(const mst_cuda_attn_args &a, int head)
    {
        constexpr int PIECES = 16 * CHUNKS / 32; /* of a lane */
        int first = warp() * 16, count = min(16, rows - first);
        if (!a.out_vector) {
            base::store(a, head);
            return;
        }
        if (count <= 0)
            return;
        int64_t first_token = get(base::Q_FIRST);
        int row_first = get(base::ROW_BEGIN);
        base::stage(a, head, first_token, row_first);
        uint32_t own = q_smem + (uint32_t)(first * PITCH);
        char *out = (char *)a.out +
                    (first_token * a.out_row_stride + (int64_t)head * a.out_head_stride) * 2;
        unsigned row_begin = (unsigned)(row_first + first);
        uint32_t w[PIECES][4];
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            int piece = i * 32 + lane();
            shared_get4(w[i][0], w[i][1], w[i][2], w[i][3],
                        own + (uint32_t)(piece / CHUNKS * PITCH + piece % CHUNKS * 16));
        }
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            int row = (i * 32 + lane()) / CHUNKS, chunk = (i * 32 + lane()) % CHUNKS;
            unsigned packed = row_begin + (unsigned)row;
            unsigned token = a.group == 1 ? packed : packed / (unsigned)a.group;
            unsigned of = packed - token * (unsigned)a.group;
            char *to = out +
                       ((int64_t)token * a.out_row_stride + (int64_t)of * a.out_head_stride) * 2 +
                       chunk * 16;
            if (row < count && chunk * 8 < a.head_dim)
                *(uint4 *)to = make_uint4(w[i][0], w[i][1], w[i][2], w[i][3]);
        }
    }

    /* The first part of a tile, and what is in hand merged with one after it. */
    __device__ __forceinline__ void restore(const float *slot)
    {
        const float4 *from = (const float4 *)slot + threadIdx.x;
        float4 x = __ldcg(from);
        m[0][0] = x.x, m[0][1] = x.y, l[0][0] = x.z, l[0][1] = x.w;
#pragma unroll
        for (int j = 0; j < DT / 8; j++) {
            x = __ldcg(from + (j + 1) * MULTIPLIERS);
            o[0][j][0] = x.x, o[0][j][1] = x.y, o[0][j][2] = x.z, o[0][j][3] = x.w;
        }
    }
    __device__ __forceinline__ void merge_after(const mst_cuda_attn_args &a, const float *slot)
    {
        const float4 *from = (const float4 *)slot + threadIdx.x;
        float keep[2], add[2];
        base::template merge_sums<true>(a.scale_log2, 0, __ldcg(from), keep, add);
#pragma unroll
        for (int j = 0; j < DT / 8; j++)
            base::template merge_columns<true>(0, j, __ldcg(from + (j + 1) * MULTIPLIERS), keep,
                                               add);
    }

    /* One tile of one head: its rows of out, or its part of them. */
    __device__ __forceinline__ void compute(const mst_cuda_attn_args &a, int causal, int kv_head)
    {
        int num_splits = get(base::NUM_SPLITS);
        int slot = same(get(base::SLOT));
        int key_begin = same(get(base::KEY_BEGIN));
        int item_end = same(get(base::KEY_END));
        int part_keys = same(get(base::PART_KEYS));
        float *own = a.own_partials + (int64_t)blockIdx.x * SLOT_FLOATS;
        for (bool first = true;; first = false) {
            int key_end = base::part_end(key_begin, part_keys, item_end);
            attend(a, causal, kv_head, key_begin, key_end);
            if (!first)
                base::merge_before(a, own);
            if (key_end >= item_end)
                break;
            base::save(own);
            key_begin = key_end;
        }
        if (slot >= 0) {
            /* slots of a tile's parts follow each other; within a part, by head */
            int64_t place = (int64_t)slot * a.num_kv_heads + kv_head;
            int64_t part_floats = (int64_t)a.num_kv_heads * SLOT_FLOATS;
            float *slots = a.partials + place * SLOT_FLOATS;
            base::save(slots + get(base::SPLIT) * part_floats);
            meet(1, MULTIPLIERS);
            if (threadIdx.x == 0)
                shared_put(work_word(), arrive(&a.arrivals[place], (unsigned)num_splits - 1u));
            meet(1, MULTIPLIERS);
            if (shared_get(work_word()) != (unsigned)num_splits - 1u)
                return;
            restore(slots);
            for (int part = 1; part < num_splits; part++)
                merge_after(a, slots + part * part_floats);
        }
        store_rows(a, kv_head * a.group);
    }

    __device__ __forceinline__ void multiply_all(const mst_cuda_attn_args &a, unsigned total)
    {
        int causal = a.header->causal;
        at = 0;
        described = describe_low(ring, 0);
        for (unsigned number = 0;; number++) {
            unsigned work = (unsigned)same((int)next_item(number));
            if (work >= total)
                break;
            lk = same(get(base::LK));
            rows = same(get(base::ROW_END) - get(base::ROW_BEGIN));
            /* rows of out take the place of q's */
            q_smem = rows_at(number, group()) - (uint32_t)(group() * 64 * PITCH);
            take_rows(number);
            meet(2 + group(), GROUP); /* before rows of out lie over those of other warps */
            compute(a, causal, (int)(work % (unsigned)a.num_kv_heads));
            barrier_arrive(q_free(number));
            barrier_arrive(item_free(number % ITEMS));
        }
        base::finish(a);
    }

    __device__ __forceinline__ void run(const mst_cuda_hopper_args &args, char *smem)
    {
        const mst_cuda_attn_args &a = args.attn;
        ring = ((uint32_t)__cvta_generic_to_shared(smem) + 1023u) & ~1023u;
        if (threadIdx.x == 0)
            make_barriers();
        unsigned total = (unsigned)a.header->num_items * (unsigned)a.num_kv_heads;
        __syncthreads();
        if (group() == WGS) {
            asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(FEW_REGISTERS));
            int thread = (int)threadIdx.x - MULTIPLIERS;
            if (thread >= 32)
                copy_all(a, total, thread - 32);
            else if (thread == 0)
                fetch_all(args, total);
        } else {
            asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
            multiply_all(a, total);
        }
    }
};

} // namespace mst

/* An instance by its name. */
#define MST_HOPPER_KERNEL(NAME, T, DT, GROUPS, STAGES)                           \
    extern "C" __global__ void __launch_bounds__((GROUPS + 1) * mst::THREADS, 1) \
        NAME(const __grid_constant__ mst_cuda_hopper_args args)                  \
    {                                                                            \
        extern __shared__ __align__(128) char mst_smem[];                        \
        mst::hopper<mst::T, DT, STAGES, GROUPS> t;                               \
        t.run(args, mst_smem);                                                   \
    }

#endif
