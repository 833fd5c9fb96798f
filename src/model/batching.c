/*
 * batching.c - how a call is cut into batches and who runs them: integers in, integers out.
 *
 * Texts run longest first, so that batches that cost the most start first and a worker that comes
 * last only has a short one left. A large call goes to serial workers, each taking a batch through
 * all layers without meeting the others; a small one has too little work to hand out, so all
 * threads share the rows of one batch. Vectors have the same bits either way, so the rule is about
 * speed alone.
 */
#include "model/encoder.h"

/* Fewer tokens than this a worker are not worth a batch of their own. */
#define MIN_WORKER_TOKENS 256
/* Rounds that even out workers of unequal speed. */
#define WANTED_ROUNDS 4
/* What sharing rows costs: a part of the work, since no cut is exact, and meetings after each
 * operation. */
#define SHARING_PART 32
#define SHARING_TOKENS 8

mst_batch_mode mst_batch_choose(int64_t num_segments, int64_t num_tokens, int32_t num_workers)
{
    bool many = num_workers > 1 && num_segments / 2 >= num_workers &&
                num_tokens / MIN_WORKER_TOKENS >= num_workers;
    return many ? MST_BATCH_SEGMENTS : MST_BATCH_ROWS;
}

int64_t mst_batch_parts(int64_t num_tokens, int64_t max_batch_tokens, mst_batch_mode mode,
                        int32_t num_workers)
{
    if (mode == MST_BATCH_ROWS)
        return mst_max_i64(1, mst_ceil_div(num_tokens, max_batch_tokens));
    int64_t rounds = mst_ceil_div(num_tokens, max_batch_tokens * num_workers);
    int64_t affordable = num_tokens / ((int64_t)MIN_WORKER_TOKENS * num_workers);
    rounds = mst_max_i64(rounds, mst_min_i64(WANTED_ROUNDS, affordable));
    return mst_max_i64(1, rounds) * num_workers;
}

int64_t mst_batch_order(const int32_t *lengths, int64_t num_lengths, int32_t max_length,
                        int64_t *counts, int64_t *order)
{
    /* counting sort: counts[l] becomes the place of the first text of length l */
    for (int32_t length = 0; length <= max_length; length++)
        counts[length] = 0;
    for (int64_t i = 0; i < num_lengths; i++)
        counts[lengths[i]]++;
    int64_t place = 0;
    for (int32_t length = max_length; length >= 1; length--) {
        int64_t count = counts[length];
        counts[length] = place;
        place += count;
    }
    for (int64_t i = 0; i < num_lengths; i++) {
        if (lengths[i] > 0)
            order[counts[lengths[i]]++] = i;
    }
    return place;
}

static int64_t ideal_border(int64_t num_tokens, int64_t num_parts, int64_t part)
{
    return num_tokens * part / num_parts;
}

int64_t mst_batch_cut(const int32_t *lengths, const int64_t *order, int64_t num_segments,
                      int64_t num_tokens, int64_t num_parts, int64_t max_batch_tokens,
                      int64_t *ends)
{
    int64_t batches = 0;
    int64_t before = 0; /* tokens placed so far */
    int64_t inside = 0; /* of them in the open batch */
    int64_t part = 1;
    for (int64_t i = 0; i < num_segments; i++) {
        int64_t length = lengths[order[i]];
        /* a segment goes to the side of the ideal border where most of it lies */
        bool past_border = 2 * before + length > 2 * ideal_border(num_tokens, num_parts, part);
        if (inside > 0 && (past_border || inside + length > max_batch_tokens)) {
            ends[batches++] = i;
            inside = 0;
            /* on to a border that leaves the next batch at least half a part */
            while (part < num_parts && 2 * (ideal_border(num_tokens, num_parts, part) - before) <
                                           num_tokens / num_parts)
                part++;
        }
        before += length;
        inside += length;
    }
    if (inside > 0)
        ends[batches++] = num_segments;
    return batches;
}

int64_t mst_batch_cost(int64_t length, int64_t hidden)
{
    /* a layer's products take 24 hidden^2 operations a token; attention takes 4 hidden length, at
       half their speed */
    return length + length * length / (3 * hidden);
}

/* Cost of the worker that is last when each takes the next batch as soon as it is free. */
static int64_t longest_load(const int64_t *costs, int64_t num_batches, int32_t num_workers)
{
    int64_t loads[MST_EVEN_WORKERS] = {0};
    int64_t longest = 0;
    for (int64_t b = 0; b < num_batches; b++) {
        int32_t first = 0;
        for (int32_t w = 1; w < num_workers; w++)
            first = loads[w] < loads[first] ? w : first;
        loads[first] += costs[b];
        longest = mst_max_i64(longest, loads[first]);
    }
    return longest;
}

bool mst_batch_is_even(const int32_t *lengths, const int64_t *order, const int64_t *ends,
                       int64_t num_batches, int64_t hidden, int32_t num_workers)
{
    int64_t costs[MST_EVEN_WORKERS * WANTED_ROUNDS];
    int64_t sum = 0;
    if (num_workers > MST_EVEN_WORKERS || num_batches > (int64_t)num_workers * WANTED_ROUNDS)
        return true;
    for (int64_t b = 0, i = 0; b < num_batches; b++) {
        costs[b] = 0;
        for (; i < ends[b]; i++)
            costs[b] += mst_batch_cost(lengths[order[i]], hidden);
        sum += costs[b];
    }
    int64_t shared = mst_ceil_div(sum, num_workers);
    shared += shared / SHARING_PART + SHARING_TOKENS;
    return longest_load(costs, num_batches, num_workers) <= shared;
}
