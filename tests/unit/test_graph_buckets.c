/*
 * test_graph_buckets.c - enumeration, order and choice of buckets, batch caps, slots, padding
 * handles, the varying dimension and the memory rule: written vectors, known faults of other
 * engines (BR-...), and properties against slow versions.
 */
#include "support_check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "mstar/graph.h"

#define COUNT(array) ((int64_t)(sizeof(array) / sizeof(array)[0]))

static mstar_status make_input(void *user, int64_t num_tokens, mstar_node_input *input)
{
    (void)user, (void)num_tokens, (void)input;
    return MSTAR_OK;
}

typedef struct spec {
    const char *walk, *key;
    const char *aliases[3];
    int64_t num_aliases;
    int64_t sizes[6], num_sizes;
    int64_t lengths[6], num_lengths; /* none: batched of seq_len tokens */
    int64_t seq_len, multiplier;
    int32_t uncapped;
} spec;

static mstar_graph_config *make(const spec *s)
{
    mstar_graph_config_desc desc;
    mstar_packed_graph_config_desc_init(&desc);
    mstar_node_input single = {.input_seq_len = s->seq_len};
    desc.capture_graph_walk = s->walk;
    desc.additional_key_info = s->key;
    desc.replay_graph_walks = s->aliases;
    desc.num_replay_graph_walks = s->num_aliases;
    desc.capture_batch_sizes = s->sizes;
    desc.num_capture_batch_sizes = s->num_sizes;
    desc.total_tokens_multiplier = s->multiplier > 0 ? s->multiplier : 1;
    desc.caps_eager_batch_size = !s->uncapped;
    mstar_graph_config *config;
    if (s->num_lengths == 0) {
        desc.single_request_inputs = &single;
        CHECK_OK(mstar_batched_graph_config_create(&desc, &config));
    } else {
        desc.capture_token_lengths = s->lengths;
        desc.num_capture_token_lengths = s->num_lengths;
        desc.make_node_input = make_input;
        CHECK_OK(mstar_packed_graph_config_create(&desc, &config));
    }
    return config;
}

typedef struct buckets {
    mstar_graph_config *configs[4];
    int64_t num_configs;
    mstar_graph_bucket list[512];
    int64_t count;
} buckets;

static void make_all(const spec *specs, int64_t count, int32_t slots, buckets *b)
{
    b->num_configs = count;
    for (int64_t i = 0; i < count; i++)
        b->configs[i] = make(&specs[i]);
    CHECK_OK(mstar_graph_list_captures((const mstar_graph_config *const *)b->configs, count, slots,
                                       b->list, COUNT(b->list), &b->count));
    assert_in_range(b->count, 0, COUNT(b->list));
}

static void free_all(buckets *b)
{
    for (int64_t i = 0; i < b->num_configs; i++)
        mstar_graph_config_destroy(b->configs[i]);
    assert_int_equal(check_live_allocations(), 0);
}

static mstar_graph_choice ask(const buckets *b, const uint8_t *captured, const char *walk,
                              const char *key, int64_t bs, int64_t tokens, double max_waste)
{
    mstar_graph_request request;
    mstar_graph_request_init(&request);
    request.walk = walk;
    request.additional_key_info = key;
    request.bs = bs;
    request.num_tokens = tokens;
    request.max_waste = max_waste;
    mstar_graph_choice choice = {.struct_size = sizeof choice};
    CHECK_OK(mstar_graph_choose(b->list, captured, b->count, &request, &choice));
    assert_true((choice.index >= 0) == (choice.miss == MSTAR_GRAPH_MISS_NONE));
    return choice;
}

/* The chosen bucket's tokens, or minus the reason. */
static int64_t tokens_for(const buckets *b, const char *walk, int64_t bs, int64_t tokens)
{
    mstar_graph_choice choice = ask(b, NULL, walk, NULL, bs, tokens, (double)NAN);
    return choice.index >= 0 ? b->list[choice.index].num_tokens : -(int64_t)choice.miss;
}

/* ---- enumeration ----------------------------------------------------------------------------- */

static void test_order(void **state)
{
    (void)state;
    static const spec specs[] = {
        {.walk = "a", .sizes = {1, 4}, .num_sizes = 2, .lengths = {64, 256, 128}, .num_lengths = 3},
        {.walk = "b", .sizes = {2, 4, 1}, .num_sizes = 3, .seq_len = 32},
    };
    static buckets b;
    make_all(specs, 2, 2, &b);
    static const struct {
        int32_t config;
        int64_t bs, tokens;
    } want[] = {{0, 4, 256}, {0, 4, 128}, {1, 4, 128}, {0, 4, 64}, {1, 2, 64},
                {0, 1, 256}, {0, 1, 128}, {0, 1, 64},  {1, 1, 32}};
    assert_int_equal(b.count, 2 * COUNT(want));
    for (int64_t i = 0; i < b.count; i++) {
        assert_int_equal(b.list[i].config_index, want[i / 2].config);
        assert_ptr_equal(b.list[i].config, b.configs[want[i / 2].config]);
        assert_int_equal(b.list[i].bs, want[i / 2].bs);
        assert_int_equal(b.list[i].num_tokens, want[i / 2].tokens);
        assert_int_equal(b.list[i].slot, i % 2); /* the slots of a bucket stand together */
    }
    /* a small buffer gets the first of the same order */
    mstar_graph_bucket few[3];
    int64_t count;
    CHECK_OK(mstar_graph_list_captures((const mstar_graph_config *const *)b.configs, 2, 2, few, 3,
                                       &count));
    assert_int_equal(count, b.count);
    assert_memory_equal(few, b.list, sizeof few);
    CHECK_OK(mstar_graph_list_captures(NULL, 0, 1, NULL, 0, &count));
    assert_int_equal(count, 0);
    CHECK_INVALID(mstar_graph_list_captures(NULL, 1, 1, NULL, 0, &count), "configs is NULL");
    CHECK_INVALID(mstar_graph_list_captures(NULL, 0, 0, NULL, 0, &count), "num_slots is 0");
    free_all(&b);
}

/* ---- choice: written vectors ----------------------------------------------------------------- */

static void test_multiplier_vectors(void **state)
{
    (void)state;
    spec s = {.walk = "w", .sizes = {1}, .num_sizes = 1, .lengths = {256, 1024}, .num_lengths = 2};
    static buckets b;
    s.multiplier = 2;
    make_all(&s, 1, 1, &b);
    assert_int_equal(tokens_for(&b, "w", 1, 200), 512);
    assert_int_equal(tokens_for(&b, "w", 1, 300), 2048);
    assert_int_equal(tokens_for(&b, "w", 1, 1025), -MSTAR_GRAPH_MISS_TOKENS);
    assert_int_equal(tokens_for(&b, "w", 1, INT64_MAX), -MSTAR_GRAPH_MISS_TOKENS);
    free_all(&b);
    s.multiplier = 1;
    make_all(&s, 1, 1, &b);
    assert_int_equal(tokens_for(&b, "w", 1, 200), 256);
    assert_int_equal(tokens_for(&b, "w", 1, 300), 1024);
    free_all(&b);
}

/* With inputs tokens count before bs, without inputs bs before tokens. */
static void test_two_orders(void **state)
{
    (void)state;
    static const spec specs[] = {
        {.walk = "w", .sizes = {8}, .num_sizes = 1, .seq_len = 1},    /* (8, 8) */
        {.walk = "w", .sizes = {2, 4}, .num_sizes = 2, .seq_len = 5}, /* (2, 10) (4, 20) */
    };
    static buckets b;
    make_all(specs, 2, 1, &b);
    assert_int_equal(tokens_for(&b, "w", 2, 4), 8);   /* fewest tokens, though bs is 8 */
    assert_int_equal(tokens_for(&b, "w", 2, -1), 10); /* smallest bs */
    assert_int_equal(tokens_for(&b, "w", 3, -1), 20);
    assert_int_equal(tokens_for(&b, "w", 5, -1), 8);
    assert_int_equal(tokens_for(&b, "w", 9, -1), -MSTAR_GRAPH_MISS_BATCH_SIZE);
    free_all(&b);
    static const spec packed = {
        .walk = "w", .sizes = {8}, .num_sizes = 1, .lengths = {64}, .num_lengths = 1};
    make_all(&packed, 1, 1, &b);
    assert_int_equal(tokens_for(&b, "w", 2, -1), -MSTAR_GRAPH_MISS_NOT_BUILT);
    free_all(&b);
}

static void test_walks_and_keys(void **state)
{
    (void)state;
    static const spec specs[] = {
        {.walk = "own",
         .aliases = {"x", "y"},
         .num_aliases = 2,
         .sizes = {4},
         .num_sizes = 1,
         .seq_len = 1},
        {.walk = "keyed", .key = "cfg", .sizes = {16}, .num_sizes = 1, .seq_len = 1},
    };
    static buckets b;
    make_all(specs, 2, 1, &b);
    const mstar_graph_config *const *configs = (const mstar_graph_config *const *)b.configs;
    assert_int_equal(tokens_for(&b, "x", 1, 1), 4);
    assert_int_equal(tokens_for(&b, "y", 1, 1), 4);
    assert_int_equal(tokens_for(&b, "own", 1, 1), 4); /* registered under its own key as well */
    assert_int_equal(tokens_for(&b, "z", 1, 1), -MSTAR_GRAPH_MISS_WALK);
    assert_int_equal(tokens_for(&b, "keyed", 1, 1), -MSTAR_GRAPH_MISS_KEY_INFO);
    assert_int_equal(ask(&b, NULL, "keyed", "other", 1, 1, (double)NAN).miss,
                     MSTAR_GRAPH_MISS_KEY_INFO);
    char key[] = "cfg"; /* compared by value */
    assert_int_equal(ask(&b, NULL, "keyed", key, 1, 1, (double)NAN).miss, MSTAR_GRAPH_MISS_NONE);
    assert_int_equal(ask(&b, NULL, "own", "cfg", 1, 1, (double)NAN).miss,
                     MSTAR_GRAPH_MISS_KEY_INFO);
    /* the helper questions look at the listed walks only */
    assert_true(mstar_graph_replays_walk(configs, 2, "x"));
    assert_false(mstar_graph_replays_walk(configs, 2, "own"));
    assert_true(mstar_graph_replays_walk(configs, 2, "keyed"));
    assert_false(mstar_graph_replays_walk(configs, 2, "z"));
    assert_int_equal(mstar_graph_batch_cap(configs, 2, "x"), 4);
    assert_int_equal(mstar_graph_batch_cap(configs, 2, "own"), -1);
    assert_int_equal(mstar_graph_batch_cap(configs, 2, "keyed"), 16);
    free_all(&b);
}

static void test_batch_cap(void **state)
{
    (void)state;
    spec specs[] = {
        {.walk = "w", .sizes = {2, 8}, .num_sizes = 2, .seq_len = 1},
        {.walk = "w", .sizes = {16, 4}, .num_sizes = 2, .seq_len = 1},
        {.walk = "w", .sizes = {64}, .num_sizes = 1, .seq_len = 1, .uncapped = 1},
    };
    static buckets b;
    make_all(specs, 3, 1, &b);
    const mstar_graph_config *const *configs = (const mstar_graph_config *const *)b.configs;
    assert_int_equal(mstar_graph_batch_cap(configs, 3, "w"), 16); /* the largest that caps */
    assert_int_equal(mstar_graph_batch_cap(configs, 1, "w"), 8);
    assert_int_equal(mstar_graph_batch_cap(configs + 2, 1, "w"), -1); /* all opt out */
    assert_int_equal(mstar_graph_batch_cap(configs, 0, "w"), -1);
    free_all(&b);
}

/* A dropped bucket: the next one that fits serves; without one the reason is told. */
static void test_dropped(void **state)
{
    (void)state;
    static const spec s = {
        .walk = "w", .sizes = {4}, .num_sizes = 1, .lengths = {16, 64}, .num_lengths = 2};
    static buckets b;
    make_all(&s, 1, 1, &b); /* (4, 64) (4, 16) */
    static const uint8_t none[2] = {0, 0}, large[2] = {1, 0};
    assert_int_equal(ask(&b, large, "w", NULL, 1, 10, (double)NAN).index, 0);
    assert_int_equal(ask(&b, none, "w", NULL, 1, 10, (double)NAN).miss,
                     MSTAR_GRAPH_MISS_NOT_CAPTURED);
    assert_int_equal(ask(&b, none, "w", NULL, 1, 65, (double)NAN).miss, MSTAR_GRAPH_MISS_TOKENS);
    free_all(&b);
}

static void test_miss_texts(void **state)
{
    (void)state;
    for (int i = 0; i < MSTAR_NUM_GRAPH_MISSES; i++) {
        assert_true(strlen(mstar_graph_miss_name((mstar_graph_miss)i)) > 3);
        assert_true(strlen(mstar_graph_miss_text((mstar_graph_miss)i)) > 8);
    }
    assert_string_equal(mstar_graph_miss_name((mstar_graph_miss)99), "unknown");
    assert_string_equal(mstar_graph_miss_text((mstar_graph_miss)-1), "unknown");
}

/* ---- known faults about buckets -------------------------------------------------------------- */

static int64_t size_for(const int64_t *sizes, int64_t count, int64_t bs)
{
    spec s = {.walk = "w", .num_sizes = count, .seq_len = 0};
    memcpy(s.sizes, sizes, (size_t)count * sizeof *sizes);
    static buckets b;
    make_all(&s, 1, 1, &b);
    mstar_graph_choice choice = ask(&b, NULL, "w", NULL, bs, 0, (double)NAN);
    int64_t size = choice.index >= 0 ? b.list[choice.index].bs : -(int64_t)choice.miss;
    free_all(&b);
    return size;
}

/* BR-174, BR-175: more requests than any capture run directly; none are no step at all. */
static void test_known_larger_than_any(void **state)
{
    (void)state;
    static const int64_t four[] = {1, 2, 4, 8};
    assert_int_equal(size_for(four, 4, 9), -MSTAR_GRAPH_MISS_BATCH_SIZE);
    assert_int_equal(size_for(four, 4, 0), -MSTAR_GRAPH_MISS_EMPTY);
    assert_int_equal(size_for(four, 4, 8), 8);
    assert_int_equal(size_for(four, 3, 5), -MSTAR_GRAPH_MISS_BATCH_SIZE);
    assert_int_equal(size_for(four, 3, 64), -MSTAR_GRAPH_MISS_BATCH_SIZE);
}

static void check_sizes(int64_t max_bs, int64_t stride, const int64_t *wished, int64_t num_wished,
                        const int64_t *want, int64_t num_want)
{
    int64_t sizes[128], count;
    memset(sizes, 0xff, sizeof sizes);
    CHECK_OK(mstar_graph_batch_sizes(max_bs, stride, wished, num_wished, sizes, 128, &count));
    assert_int_equal(count, num_want);
    assert_memory_equal(sizes, want, (size_t)num_want * sizeof *want);
    assert_int_equal(sizes[num_want], -1);
}

/* BR-176, BR-177, BR-179: the largest batch always has a bucket, and the list is never empty. */
static void test_known_no_gap_at_the_top(void **state)
{
    (void)state;
    check_sizes(8, 0, NULL, 0, (int64_t[]){1, 2, 4, 8}, 4);
    check_sizes(12, 0, NULL, 0, (int64_t[]){1, 2, 4, 8, 12}, 5);
    check_sizes(16, 0, NULL, 0, (int64_t[]){1, 2, 4, 8, 16}, 5);
    check_sizes(20, 0, NULL, 0, (int64_t[]){1, 2, 4, 8, 16, 20}, 6);
    check_sizes(1, 0, NULL, 0, (int64_t[]){1}, 1);
    check_sizes(64, 0, (int64_t[]){256, 128}, 2, (int64_t[]){64}, 1);
    check_sizes(64, 0, (int64_t[]){32, 8, 32, 128}, 4, (int64_t[]){8, 32, 64}, 3);
    check_sizes(40, 16, NULL, 0, (int64_t[]){16, 32, 40}, 3);
    int64_t sizes[64], count;
    CHECK_OK(mstar_graph_batch_sizes(700, 16, NULL, 0, sizes, 64, &count));
    assert_int_equal(count, 44);
    assert_int_equal(sizes[43], 700);
    CHECK_INVALID(mstar_graph_batch_sizes(0, 0, NULL, 0, sizes, 64, &count), "max_bs is 0");
    CHECK_INVALID(mstar_graph_batch_sizes(1, -1, NULL, 0, sizes, 64, &count), "stride is -1");
    CHECK_INVALID(mstar_graph_batch_sizes(1, 0, (int64_t[]){0}, 1, sizes, 64, &count),
                  "wished is 0");
}

/* BR-181: a bucket that would pad more than twice is not worth it; exactly twice is. */
static void test_known_max_waste(void **state)
{
    (void)state;
    static const spec s = {
        .walk = "w", .sizes = {1}, .num_sizes = 1, .lengths = {2816, 3072, 8192}, .num_lengths = 3};
    static const struct {
        int64_t tokens, want;
    } rows[] = {{3208, -1}, {3353, -1}, {2700, 2816}, {4096, 8192}, {4095, -1}};
    static buckets b;
    make_all(&s, 1, 1, &b);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        mstar_graph_choice choice = ask(&b, NULL, "w", NULL, 1, rows[i].tokens, 2.0);
        if (rows[i].want > 0)
            assert_int_equal(b.list[choice.index].num_tokens, rows[i].want);
        else
            assert_int_equal(choice.miss, MSTAR_GRAPH_MISS_WASTE);
    }
    free_all(&b);
}

/* BR-182: one token past the captured maximum runs directly. */
static void test_known_past_the_maximum(void **state)
{
    (void)state;
    static const spec s = {
        .walk = "w", .sizes = {1, 2, 4}, .num_sizes = 3, .lengths = {8192}, .num_lengths = 1};
    static buckets b;
    make_all(&s, 1, 1, &b);
    mstar_graph_choice choice = ask(&b, NULL, "w", NULL, 2, 8192, (double)NAN);
    assert_int_equal(b.list[choice.index].bs, 2);
    assert_int_equal(tokens_for(&b, "w", 2, 8193), -MSTAR_GRAPH_MISS_TOKENS);
    free_all(&b);
}

/* A request longer than a batched capture's leaves no room for the rows that pad. */
static void test_with_padding(void **state)
{
    (void)state;
    static const spec s = {.walk = "w", .sizes = {4, 2}, .num_sizes = 2, .seq_len = 5};
    static buckets b;
    make_all(&s, 1, 1, &b); /* (4, 20) (2, 10) */
    static const struct {
        int64_t bs, tokens, want; /* tokens of the bucket, or minus the reason */
    } rows[] = {{1, 5, 10},
                {1, 6, -MSTAR_GRAPH_MISS_TOKENS},
                {2, 10, 10},
                {3, 15, 20},
                {3, 16, -MSTAR_GRAPH_MISS_TOKENS}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        mstar_graph_request request;
        mstar_graph_request_init(&request);
        request.walk = "w";
        request.with_padding = 1;
        request.bs = rows[i].bs;
        request.num_tokens = rows[i].tokens;
        mstar_graph_choice choice = {.struct_size = sizeof choice};
        CHECK_OK(mstar_graph_choose(b.list, NULL, b.count, &request, &choice));
        assert_int_equal(choice.index >= 0 ? b.list[choice.index].num_tokens
                                           : -(int64_t)choice.miss,
                         rows[i].want);
    }
    assert_int_equal(tokens_for(&b, "w", 1, 6), 10); /* without it: the written rule */
    free_all(&b);
}

/* ---- choice: against a slow version ---------------------------------------------------------- */

/* Sorts candidates by repeated search, all rules written out once more. */
static int64_t slow_choose(const spec *specs, const buckets *b, const uint8_t *captured,
                           const char *walk, const char *key, int64_t bs, int64_t tokens)
{
    int64_t best = -1;
    for (int64_t i = 0; i < b->count; i++) {
        const spec *s = &specs[b->list[i].config_index];
        bool listed = strcmp(s->walk, walk) == 0;
        for (int64_t j = 0; j < s->num_aliases; j++)
            listed = listed || strcmp(s->aliases[j], walk) == 0;
        bool same = (s->key == NULL) == (key == NULL) && (key == NULL || strcmp(s->key, key) == 0);
        int64_t multiplier = s->multiplier > 0 ? s->multiplier : 1;
        if (!listed || !same || b->list[i].bs < bs || !captured[i])
            continue;
        if (tokens < 0 ? s->num_lengths > 0 : b->list[i].num_tokens < tokens * multiplier)
            continue;
        if (best < 0) {
            best = i;
            continue;
        }
        int64_t a[2] = {b->list[i].num_tokens, b->list[i].bs};
        int64_t c[2] = {b->list[best].num_tokens, b->list[best].bs};
        int first = tokens < 0 ? 1 : 0;
        if (a[first] < c[first] || (a[first] == c[first] && a[!first] < c[!first]))
            best = i;
    }
    return best;
}

static void test_choose_property(void **state)
{
    (void)state;
    static const char *const walks[] = {"a", "b", "c"};
    static const char *const keys[] = {NULL, "k"};
    check_rng rng = {77};
    static buckets b;
    for (int round = 0; round < 300; round++) {
        spec specs[3];
        memset(specs, 0, sizeof specs);
        int64_t count = check_integer(&rng, 1, 3);
        for (int64_t i = 0; i < count; i++) {
            spec *s = &specs[i];
            s->walk = walks[check_integer(&rng, 0, 2)];
            s->key = keys[check_integer(&rng, 0, 1)];
            s->num_aliases = check_integer(&rng, 0, 2);
            for (int64_t j = 0; j < s->num_aliases; j++)
                s->aliases[j] = walks[check_integer(&rng, 0, 2)];
            s->multiplier = check_integer(&rng, 1, 3);
            s->num_sizes = check_integer(&rng, 1, 4);
            for (int64_t j = 0; j < s->num_sizes; j++)
                s->sizes[j] = j * 3 + check_integer(&rng, 1, 3);
            s->num_lengths = check_integer(&rng, 0, 1) * check_integer(&rng, 1, 4);
            for (int64_t j = 0; j < s->num_lengths; j++)
                s->lengths[j] = j * 8 + check_integer(&rng, 0, 7);
            s->seq_len = check_integer(&rng, 0, 4);
        }
        make_all(specs, count, 1, &b);
        uint8_t captured[512];
        for (int64_t i = 0; i < b.count; i++)
            captured[i] = check_integer(&rng, 0, 5) > 0;
        for (int step = 0; step < 40; step++) {
            const char *walk = walks[check_integer(&rng, 0, 2)];
            const char *key = keys[check_integer(&rng, 0, 1)];
            int64_t bs = check_integer(&rng, 1, 13), tokens = check_integer(&rng, -1, 40);
            mstar_graph_choice got = ask(&b, captured, walk, key, bs, tokens, (double)NAN);
            assert_int_equal(got.index, slow_choose(specs, &b, captured, walk, key, bs, tokens));
        }
        free_all(&b);
    }
}

static void test_choose_refused(void **state)
{
    (void)state;
    mstar_graph_request request;
    mstar_graph_request_init(&request);
    mstar_graph_choice choice = {.struct_size = sizeof choice, .index = 77};
    CHECK_INVALID(mstar_graph_choose(NULL, NULL, 0, NULL, &choice), "request is NULL");
    CHECK_INVALID(mstar_graph_choose(NULL, NULL, 0, &request, &choice), "request.walk is NULL");
    request.walk = "w";
    request.bs = -1;
    CHECK_INVALID(mstar_graph_choose(NULL, NULL, 0, &request, &choice), "request.bs is -1");
    request.bs = 1;
    request.num_tokens = -2;
    CHECK_INVALID(mstar_graph_choose(NULL, NULL, 0, &request, &choice), "num_tokens is -2");
    request.num_tokens = 1;
    CHECK_INVALID(mstar_graph_choose(NULL, NULL, 1, &request, &choice), "buckets is NULL");
    CHECK_INVALID(mstar_graph_choose(NULL, NULL, 0, &request, NULL), "choice is NULL");
    choice.struct_size = 0;
    CHECK_INVALID(mstar_graph_choose(NULL, NULL, 0, &request, &choice), "choice.struct_size is 0");
    assert_int_equal(choice.index, 77);
    choice.struct_size = sizeof choice;
    CHECK_OK(mstar_graph_choose(NULL, NULL, 0, &request, &choice));
    assert_int_equal(choice.miss, MSTAR_GRAPH_MISS_WALK);
}

/* ---- slots, padding handles, dims, memory ---------------------------------------------------- */

static void test_slots(void **state)
{
    (void)state;
    assert_int_equal(mstar_graph_num_slots(0, 0, 1, 2), 1);
    assert_int_equal(mstar_graph_num_slots(0, 0, 0, 8), 1);
    assert_int_equal(mstar_graph_num_slots(0, 1, 0, 2), 1);
    assert_int_equal(mstar_graph_num_slots(0, 1, 1, 2), 2);
    assert_int_equal(mstar_graph_num_slots(1, 0, 0, 2), 2);
    assert_int_equal(mstar_graph_num_slots(1, 0, 0, 1), 2);
    assert_int_equal(mstar_graph_num_slots(1, 1, 1, 3), 3);
}

static void test_pad_handles(void **state)
{
    (void)state;
    static const int64_t real[] = {10, 11};
    int64_t padded[5] = {77, 77, 77, 77, 77};
    CHECK_OK(mstar_graph_pad_handles(real, 2, 4, -2, padded)); /* d0 is -2, d2 is -4, d3 is -5 */
    static const int64_t want[] = {10, 11, -4, -5, 77};
    assert_memory_equal(padded, want, sizeof want);
    CHECK_OK(mstar_graph_pad_handles(real, 2, 2, -2, padded)); /* a full batch has no tail */
    assert_int_equal(padded[2], -4);
    assert_int_equal(real[0], 10);
    CHECK_INVALID(mstar_graph_pad_handles(real, 2, 1, -2, padded), "num_real is 2");
    CHECK_INVALID(mstar_graph_pad_handles(real, 2, 4, -1, padded), "first_handle is -1");
    CHECK_INVALID(mstar_graph_pad_handles((int64_t[]){-3}, 1, 4, -2, padded), "real[0] is -3");
    CHECK_OK(mstar_graph_pad_handles(NULL, 0, 0, -2, NULL));
}

static int32_t seq_dim(int32_t rank, const int64_t *shape, int64_t tokens, int32_t override)
{
    mstar_tensor tensor = mstar_tensor_make(NULL, MSTAR_DTYPE_F32, rank, shape);
    int32_t dim = -7;
    CHECK_OK(mstar_graph_choose_seq_dim(&tensor, tokens, override, &dim));
    return dim;
}

static void test_seq_dim(void **state)
{
    (void)state;
    assert_int_equal(seq_dim(2, (int64_t[]){1, 512}, 512, -1), 1);
    assert_int_equal(seq_dim(2, (int64_t[]){3, 40}, 40, -1), 1);
    assert_int_equal(seq_dim(3, (int64_t[]){2, 1, 256}, 256, -1), 2); /* the known collision */
    assert_int_equal(seq_dim(3, (int64_t[]){2, 1, 256}, 256, 0), 0);  /* which the override ends */
    assert_int_equal(seq_dim(2, (int64_t[]){7680, 7680}, 7680, -1), 0); /* first of equals */
    assert_int_equal(seq_dim(2, (int64_t[]){5, 6}, 40, -1), 0);
    mstar_tensor scalar = mstar_tensor_make(NULL, MSTAR_DTYPE_F32, 0, NULL);
    mstar_tensor row = mstar_tensor_make(NULL, MSTAR_DTYPE_F32, 1, (int64_t[]){4});
    int32_t dim;
    CHECK_INVALID(mstar_graph_choose_seq_dim(&scalar, 1, -1, &dim), "tensor.rank is 0");
    CHECK_INVALID(mstar_graph_choose_seq_dim(&row, 1, 1, &dim), "override_dim is 1");
}

static void test_budget(void **state)
{
    (void)state;
    const int64_t gib = INT64_C(1) << 30;
    const int64_t needs[] = {4 * gib, 2 * gib, gib, gib / 2};
    uint8_t keep[4];
    /* 6.5 free, floor 4, needs {32: 4, 16: 2, 8: 1, 1: 0.5} keeps 16 and 1 */
    int64_t left = mstar_graph_fit_budget(13 * gib / 2, 4 * gib, needs, 4, keep);
    static const uint8_t want[] = {0, 1, 0, 1};
    assert_memory_equal(keep, want, sizeof want);
    assert_int_equal(left, 4 * gib);
    assert_int_equal(mstar_graph_fit_budget(100, 0, (int64_t[]){100, 1}, 2, keep), 0);
    assert_true(keep[0] && !keep[1]);
    assert_int_equal(mstar_graph_fit_budget(5, 5, (int64_t[]){0, -1}, 2, keep), 5);
    assert_true(keep[0] && !keep[1]); /* a need below 0 is a fault, not room */
    assert_int_equal(mstar_graph_fit_budget(INT64_MIN, 0, (int64_t[]){INT64_MAX}, 1, keep),
                     INT64_MIN);
    assert_false(keep[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_multiplier_vectors),
        cmocka_unit_test(test_two_orders),
        cmocka_unit_test(test_walks_and_keys),
        cmocka_unit_test(test_batch_cap),
        cmocka_unit_test(test_dropped),
        cmocka_unit_test(test_miss_texts),
        cmocka_unit_test(test_known_larger_than_any),
        cmocka_unit_test(test_known_no_gap_at_the_top),
        cmocka_unit_test(test_known_max_waste),
        cmocka_unit_test(test_known_past_the_maximum),
        cmocka_unit_test(test_with_padding),
        cmocka_unit_test(test_choose_property),
        cmocka_unit_test(test_choose_refused),
        cmocka_unit_test(test_slots),
        cmocka_unit_test(test_pad_handles),
        cmocka_unit_test(test_seq_dim),
        cmocka_unit_test(test_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
