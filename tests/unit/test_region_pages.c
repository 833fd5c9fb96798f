/*
 * test_region_pages.c - regions over a resource that has pages to lose, and the batches of images
 * that users of regions rely on: pages before and after captures and replays, buckets of 256 and
 * 512 tokens, ceilings of their own, a batch that no bucket holds.
 */
#include "support_region.h"

#include <string.h>

#include "graph/region.h"

enum { PAGE = 4, NUM_PAGES = 512, MOST_ROWS = 32 };

/* Storage by pages of four tokens: admit reserves, commit counts, reset gives back. */
typedef struct pages {
    int64_t free;
    int64_t handles[MOST_ROWS], held[MOST_ROWS], tokens[MOST_ROWS];
    int64_t count;
} pages;

static int64_t row_of(pages *p, int64_t request)
{
    for (int64_t i = 0; i < p->count; i++)
        if (p->handles[i] == request)
            return i;
    assert_true(p->count < MOST_ROWS);
    p->handles[p->count] = request;
    p->held[p->count] = p->tokens[p->count] = 0;
    return p->count++;
}

static mstar_status admit(void *self, const mstar_step_context *context,
                          const mstar_resource_step *step, mstar_admission *admission)
{
    pages *p = self;
    (void)context;
    for (int64_t i = 0; i < step->num_segments; i++) {
        int64_t row = row_of(p, step->segments[i].request);
        int64_t need = (p->tokens[row] + step->segments[i].span + PAGE - 1) / PAGE - p->held[row];
        if (need > p->free) {
            admission->outcome = MSTAR_NOT_READY;
            return MSTAR_OK;
        }
        if (need > 0) {
            p->free -= need;
            p->held[row] += need;
        }
    }
    return MSTAR_OK;
}

static mstar_status commit(void *self, const mstar_step_context *context,
                           const mstar_resource_step *step)
{
    pages *p = self;
    (void)context;
    for (int64_t i = 0; i < step->num_segments; i++)
        p->tokens[row_of(p, step->segments[i].request)] += step->segments[i].span;
    return MSTAR_OK;
}

static void reset_request(void *self, int64_t request, int free_storage)
{
    pages *p = self;
    int64_t row = row_of(p, request);
    p->tokens[row] = 0;
    if (free_storage) {
        p->free += p->held[row];
        p->held[row] = 0;
    }
}

static void remove_request(void *self, int64_t request)
{
    reset_request(self, request, 1);
}

static int64_t pages_of(pages *p, int64_t request)
{
    return p->held[row_of(p, request)];
}

static const mstar_resource_hooks hooks_of_pages = {
    .struct_size = sizeof hooks_of_pages,
    .admit = admit,
    .commit = commit,
    .remove_request = remove_request,
    .reset_request = reset_request,
};

/* A manager of so many segments a request, and pages beside it. */
static void give_resources(region_bench *b, int64_t segments_per_request, pages *p)
{
    mstar_ragged_manager_desc desc;
    node_close(&b->node);
    node_open(&b->node, b->device, 21);
    mstar_ragged_manager_desc_init(&desc);
    desc.num_qo_heads = desc.num_kv_heads = NODE_HEADS;
    desc.head_dim = NODE_DIM;
    desc.dtype = MSTAR_DTYPE_F32;
    desc.max_segments_per_request = segments_per_request;
    CHECK_OK(mstar_ragged_manager_create(b->device, &desc, &b->node.manager));
    mstar_resource list[2] = {{.key = "pages", .hooks = &hooks_of_pages, .self = p}};
    CHECK_OK(mstar_ragged_manager_get_resource(b->node.manager, "attn", &list[1]));
    CHECK_OK(mstar_resources_create(list, 2, &b->node.resources));
    b->also = "pages";
    *p = (pages){.free = NUM_PAGES};
}

/* ---- pages ----------------------------------------------------------------------------------- */

static void packed_captures_leak_none(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 2}, totals[] = {8, 16};
    static region_bench b;
    static pages p;
    check_rng rng = {51};
    region_bench_open(&b, sizes, 2, 0, totals, 2);
    give_resources(&b, 1, &p);
    region_bench_start(&b);
    assert_int_equal(region_bench_query(&b).num_captured, 4);
    assert_int_equal(p.free, NUM_PAGES);
    (void)region_bench_check(&b, &rng, (int64_t[]){5}, 1, 1); /* request 11 */
    assert_int_equal(pages_of(&p, 11), 2);
    assert_int_equal(p.free, NUM_PAGES - 2);
    (void)region_bench_check(&b, &rng, (int64_t[]){3, 4}, 2, 2); /* 11 goes on, 12 begins */
    assert_int_equal(pages_of(&p, 11), 2);
    assert_int_equal(pages_of(&p, 12), 1);
    for (int i = 0; i < 20; i++) { /* a padding row keeps nothing */
        (void)region_bench_check(&b, &rng, (int64_t[]){0}, 1, 1);
        assert_int_equal(p.free, NUM_PAGES - 3);
    }
    mstar_resources_remove_request(b.node.resources, 11);
    mstar_resources_remove_request(b.node.resources, 12);
    assert_int_equal(p.free, NUM_PAGES);
    region_bench_close(&b);
}

/* A batched region's padding rows carry spans at every replay: their pages stay, and stay as many.
 */
static void batched_captures_keep_theirs(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 2};
    static region_bench b;
    static pages p;
    check_rng rng = {52};
    region_bench_open(&b, sizes, 2, 6, NULL, 0);
    give_resources(&b, 1, &p);
    region_bench_start(&b);
    int64_t slots = region_bench_query(&b).num_slots, resident = 2 * slots * 2;
    assert_int_equal(p.free, NUM_PAGES - resident); /* two rows a slot, 6 tokens on 2 pages */
    for (int i = 0; i < 5; i++) {
        (void)region_bench_check(&b, &rng, (int64_t[]){6}, 1, 1);
        mstar_resources_remove_request(b.node.resources, 11);
        assert_int_equal(p.free, NUM_PAGES - resident);
    }
    mstar_region_runner_destroy(b.runner);
    b.runner = NULL;
    assert_int_equal(p.free, NUM_PAGES); /* forgotten with the runner */
    region_bench_close(&b);
}

/* ---- images ---------------------------------------------------------------------------------- */

static void run_images(region_bench *b, check_rng *rng, const int64_t *lengths, int64_t count,
                       int64_t bucket)
{
    int64_t bs = count > 2 ? 2 : count, tokens = 0;
    for (int64_t i = 0; i < count; i++)
        tokens += lengths[i];
    assert_int_equal(mstar_region_runner_can_run(b->runner, bs, tokens), MSTAR_GRAPH_MISS_NONE);
    int64_t padding = region_bench_query(b).padding_tokens;
    (void)region_bench_check(b, rng, lengths, count, bs);
    assert_int_equal(region_bench_query(b).padding_tokens - padding, bucket - tokens);
    for (int64_t request = 11; request < 11 + bs; request++) /* images are done at once */
        mstar_resources_remove_request(b->node.resources, request);
}

static void batches_of_images(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 2}, totals[] = {256, 512};
    static region_bench b;
    static region_rows rows;
    static pages p;
    check_rng rng = {53};
    region_bench_open(&b, sizes, 2, 0, totals, 2);
    give_resources(&b, 2, &p);
    region_bench_start(&b);
    assert_int_equal(region_bench_query(&b).num_captured, 4);
    for (int round = 0; round < 2; round++) {
        run_images(&b, &rng, (int64_t[]){128, 100}, 2, 256);
        run_images(&b, &rng, (int64_t[]){200}, 1, 256);
        run_images(&b, &rng, (int64_t[]){300}, 1, 512); /* passes over the smaller one */
        run_images(&b, &rng, (int64_t[]){256}, 1, 256);
        run_images(&b, &rng, (int64_t[]){128}, 1, 256);
        run_images(&b, &rng, (int64_t[]){256}, 1, 256);
    }
    /* no bucket holds these: asked, refused, and the eager code is right all the same */
    const int64_t large[] = {1024};
    assert_int_equal(mstar_region_runner_can_run(b.runner, 1, 1024), MSTAR_GRAPH_MISS_TOKENS);
    mstar_region_call call;
    mstar_region_result result = {.struct_size = sizeof result};
    mstar_region_call_init(&call);
    call.seq_lens = large;
    call.num_seq_lens = 1;
    CHECK_FAILED(mstar_region_runner_run(b.runner, &call, &result), MSTAR_OUT_OF_ORDER,
                 "1024 tokens");
    region_bench_eager(&b, &rng, large, 1, &rows);
    run_images(&b, &rng, (int64_t[]){200}, 1, 256);
    region_bench_close(&b);
}

/* Two segments a request: a bucket of two requests has wrappers of four segments, and as many
 * tokens as it says. */
static void ceilings_of_a_bucket(void **state)
{
    (void)state;
    static const int64_t sizes[] = {2}, totals[] = {256};
    static region_bench b;
    static pages p;
    check_rng rng = {54};
    region_bench_open(&b, sizes, 1, 0, totals, 1);
    give_resources(&b, 2, &p);
    region_bench_start(&b);
    run_images(&b, &rng, (int64_t[]){100, 20, 60, 5}, 4, 256);
    mstar_ragged_prefill_info info = {.struct_size = sizeof info};
    CHECK_OK(mstar_ragged_manager_query_wrapper(b.node.manager, NULL, &info));
    assert_int_equal(info.accelerator_graph, 1);
    assert_int_equal(info.max_num_segments, 4);
    assert_int_equal(info.max_total_tokens, 256);
    region_bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_captures_leak_none),
        cmocka_unit_test(batched_captures_keep_theirs),
        cmocka_unit_test(batches_of_images),
        cmocka_unit_test(ceilings_of_a_bucket),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
