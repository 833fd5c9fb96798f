/*
 * test_ragged_manager.c - managers of ragged attention: which wrapper serves which label, bucket
 * and slot, pairs, stale plans, plans made ahead, and replays of what was captured through them.
 */
#include <pthread.h>
#include <string.h>

#include "support_ragged.h"

#define COUNT(list) (int)(sizeof(list) / sizeof((list)[0]))

/* ---- labels -----------------------------------------------------------------------------------
 */

static void labels_have_their_own_plans(void **state)
{
    (void)state;
    ragged_fixture f;
    ragged_open(&f, MSTAR_RAGGED_SELF, NULL);
    CHECK_FAILED(ragged_run(&f, NULL, 8, 8), MSTAR_NOT_FOUND,
                 "label \"main\" is not planned; planned are none");
    /* two labels in turn, the spans of each in their order */
    const ragged_part parts[] = {{"cond", 1, 5}, {NULL, 1, 2},   {"cond", 2, 0},
                                 {NULL, 2, 7},   {"cond", 3, 9}, {NULL, -2, 1}};
    ragged_declare(&f, parts, COUNT(parts), NULL, 0);
    CHECK_OK(ragged_plan(&f, NULL, 0));
    ragged_check(&f, "cond", MSTAR_RAGGED_SELF, (const int32_t[]){5, 0, 9}, NULL, 3, 0, 20, false);
    ragged_check(&f, NULL, MSTAR_RAGGED_SELF, (const int32_t[]){2, 7, 1}, NULL, 3, 0, 10, false);
    assert_int_equal(ragged_wrapper_info(&f, "cond").num_segments, 3);
    mstar_ragged_manager_info info = ragged_info(&f);
    assert_int_equal(info.planned_labels, 2);
    assert_int_equal(info.eager_wrappers, 2);
    assert_int_equal(info.graph_wrappers, 0);
    assert_int_equal(info.workspaces, 2);
    assert_int_equal(info.layer, 2);
    CHECK_FAILED(ragged_run(&f, "other", 8, 8), MSTAR_NOT_FOUND,
                 "label \"other\" is not planned; planned are \"cond\", \"main\"");
    CHECK_OK(mstar_ragged_manager_set_label(f.manager, "cond"));
    ragged_check(&f, NULL, MSTAR_RAGGED_SELF, (const int32_t[]){5, 0, 9}, NULL, 3, 0, 14, false);
    CHECK_FAILED(mstar_ragged_manager_set_label(f.manager, "other"), MSTAR_NOT_FOUND,
                 "planned are");

    /* the next step names one of them: the other's plan is gone, cursors begin again */
    ragged_declare(&f, &(const ragged_part){NULL, 1, 4}, 1, NULL, 1);
    CHECK_OK(ragged_plan(&f, NULL, 0));
    assert_int_equal(ragged_info(&f).layer, 0);
    ragged_check(&f, NULL, MSTAR_RAGGED_SELF, (const int32_t[]){4}, NULL, 1, 1, 4, false);
    CHECK_FAILED(ragged_run(&f, "cond", 8, 8), MSTAR_NOT_FOUND,
                 "label \"cond\" is not planned; planned is \"main\"");
    assert_int_equal(ragged_info(&f).eager_wrappers, 2); /* the wrapper itself is kept */

    /* nothing at all is a step too */
    ragged_declare(&f, NULL, 0, NULL, 1);
    CHECK_OK(ragged_plan(&f, NULL, 0));
    CHECK_FAILED(ragged_run(&f, NULL, 8, 8), MSTAR_NOT_FOUND, "planned are none");
    ragged_close(&f);
}

static void a_plan_that_fails_leaves_none(void **state)
{
    (void)state;
    ragged_fixture f;
    const mstar_lease lease = {.key = {"prefill", NULL, 2, 16}, .slot = 0};
    ragged_open(&f, MSTAR_RAGGED_SELF, NULL);
    ragged_declare(&f, (const ragged_part[]){{"a", 1, 9}, {"b", 1, 3}}, 2, NULL, 0);
    CHECK_OK(ragged_plan(&f, &lease, 0));
    ragged_declare(&f, (const ragged_part[]){{"a", 1, 2}, {"b", 1, 17}}, 2, NULL, 0);
    CHECK_INVALID(ragged_plan(&f, &lease, 0), "resource \"attn\": label \"b\": ");
    assert_non_null(strstr(mstar_last_error(), "17"));
    CHECK_FAILED(ragged_run(&f, "a", 16, 16), MSTAR_NOT_FOUND, "planned are none");
    ragged_declare(&f, (const ragged_part[]){{"a", 1, INT32_MAX}, {"a", 2, INT32_MAX}, {"a", 3, 5}},
                   3, NULL, 0);
    CHECK_INVALID(ragged_plan(&f, NULL, 0), "the spans add up to 4294967294 tokens at segment 1");
    ragged_declare(&f, (const ragged_part[]){{"a", 1, 2}}, 1, "a:a", 0);
    CHECK_INVALID(ragged_plan(&f, NULL, 0), "self attention reads single labels");
    ragged_declare(&f, (const ragged_part[]){{"a", 1, 2}}, 1, NULL, 0);
    CHECK_OK(ragged_plan(&f, &lease, 0));
    ragged_check(&f, "a", MSTAR_RAGGED_SELF, (const int32_t[]){2}, NULL, 1, 0, 16, true);
    ragged_close(&f);
}

/* ---- buckets and slots ------------------------------------------------------------------------
 */

static void wrappers_by_bucket_slot_and_label(void **state)
{
    (void)state;
    ragged_fixture f;
    mstar_ragged_manager_desc desc;
    char walk[] = "prefill";
    ragged_desc(MSTAR_RAGGED_SELF, &desc);
    desc.max_segments_per_request = 2;
    desc.max_tokens_per_request = 10;
    ragged_open(&f, MSTAR_RAGGED_SELF, &desc);
    const mstar_lease leases[] = {{.key = {walk, NULL, 2, 16}, .slot = 0},
                                  {.key = {walk, NULL, 2, 16}, .slot = 1},
                                  {.key = {walk, NULL, 4, 32}, .slot = 0},
                                  {.key = {walk, "hd", 2, 16}, .slot = 0},
                                  {.key = {"decode", NULL, 2, 16}, .slot = 0}};
    const int32_t *addresses[COUNT(leases)];
    ragged_declare(&f, (const ragged_part[]){{NULL, 1, 3}, {NULL, 2, 8}}, 2, NULL, 0);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < COUNT(leases); i++) {
            CHECK_OK(ragged_plan(&f, &leases[i], 5)); /* the lease's slot counts */
            mstar_ragged_prefill_info info = ragged_wrapper_info(&f, NULL);
            assert_int_equal(info.accelerator_graph, 1);
            assert_int_equal(info.max_num_segments, 2 * leases[i].key.bs);
            assert_int_equal(info.max_total_tokens, i == 2 ? 40 : 20);
            assert_int_equal(info.plans, round + 1);
            if (round == 0)
                addresses[i] = info.q_offsets;
            assert_ptr_equal(info.q_offsets, addresses[i]); /* what a graph holds stays */
            for (int j = 0; j < i; j++)
                assert_ptr_not_equal(addresses[i], addresses[j]);
            ragged_check(&f, NULL, MSTAR_RAGGED_SELF, (const int32_t[]){3, 8}, NULL, 2, 0, 20,
                         true);
        }
        CHECK_OK(ragged_plan(&f, NULL, 1));
        assert_int_equal(ragged_wrapper_info(&f, NULL).accelerator_graph, 0);
        const int64_t *count = &leases[0].key.bs;
        CHECK_OK(mstar_ragged_manager_get_counter(f.manager, NULL, MSTAR_COUNT_TOKENS, &count));
        assert_null(count);
    }
    mstar_ragged_manager_info info = ragged_info(&f);
    assert_int_equal(info.graph_wrappers, 5);
    assert_int_equal(info.eager_wrappers, 1);
    assert_int_equal(info.workspaces, 2); /* one a slot, whatever the bucket and mode */
    ragged_close(&f);
}

/* What a manager says it holds is what the library has given out, but for the lists' spare room. */
static void memory_is_told_and_flat(void **state)
{
    (void)state;
    ragged_fixture f;
    const mstar_lease leases[2] = {{.key = {"w", NULL, 2, 16}, .slot = 0},
                                   {.key = {"w", NULL, 2, 16}, .slot = 1}};
    ragged_open(&f, MSTAR_RAGGED_SELF, NULL);
    size_t empty = ragged_info(&f).memory_bytes;
    mstar_memory_info before = {.struct_size = sizeof before}, after = before;
    CHECK_OK(mstar_memory_query(&before));
    ragged_declare(&f, (const ragged_part[]){{NULL, 1, 3}, {NULL, 2, 8}}, 2, NULL, 0);
    for (int i = 0; i < 2; i++)
        CHECK_OK(ragged_plan(&f, &leases[i], 0));
    CHECK_OK(mstar_memory_query(&after));
    size_t told = ragged_info(&f).memory_bytes - empty;
    assert_int_equal(told, mstar_resources_memory_bytes(f.set) - empty);
    double given = (double)(after.live_bytes - before.live_bytes);
    assert_true((double)told <= given);
    assert_true((double)told >= 0.9 * given - 2048); /* the step's own memory is in it too */
    before = after;
    for (int i = 0; i < 1000; i++)
        CHECK_OK(ragged_plan(&f, &leases[i % 2], 0));
    CHECK_OK(mstar_memory_query(&after));
    assert_int_equal(after.total_allocations, before.total_allocations);
    const mstar_claim claim = {.struct_size = sizeof claim, .leases = leases, .num_leases = 2};
    CHECK_OK(mstar_resources_claim(f.set, &claim));
    const mstar_lease large = {.key = {"w", NULL, 2, (int64_t)INT32_MAX + 1}, .slot = 0};
    const mstar_claim refused = {.struct_size = sizeof claim, .leases = &large, .num_leases = 1};
    CHECK_INVALID(mstar_resources_claim(f.set, &refused), "resource \"attn\": bucket.num_tokens");
    ragged_close(&f);
}

static int64_t live_bytes(void)
{
    mstar_memory_info info = {.struct_size = sizeof info};
    CHECK_OK(mstar_memory_query(&info));
    return (int64_t)info.live_bytes;
}

static size_t ask_bytes(const ragged_fixture *f, const mstar_lease *lease)
{
    mstar_step_context context = f->context;
    size_t bytes = SIZE_MAX;
    context.lease = lease;
    context.slot = lease->slot;
    CHECK_OK(mstar_resources_claim_bytes(f->set, &context, f->step, &bytes));
    return bytes;
}

/* Random steps, buckets, slots and labels: what a plan will take is told before, to the byte, and
 * nothing is taken by the question; a bucket that is not captured gives its wrappers back. */
static void bytes_are_told_before(void **state)
{
    (void)state;
    static const char *const labels[] = {NULL, "cond", "w", "a label of some length"};
    check_rng rng = {17};
    for (int kind = MSTAR_RAGGED_SELF; kind <= MSTAR_RAGGED_PREFIXED; kind++) {
        ragged_fixture f;
        bool pairs = kind != MSTAR_RAGGED_SELF;
        ragged_open(&f, (mstar_ragged_kind)kind, NULL);
        for (int round = 0; round < 300; round++) {
            const mstar_lease lease = {.key = {"w", check_integer(&rng, 0, 1) ? "hd" : NULL,
                                               check_integer(&rng, 8, 11),
                                               check_integer(&rng, 0, 1) ? 100 : 200},
                                       .slot = (int32_t)check_integer(&rng, 0, 2)};
            ragged_part parts[8];
            int count = (int)check_integer(&rng, pairs ? 1 : 0, 4);
            for (int i = 0; i < count; i++) {
                const char *label = labels[check_integer(&rng, 0, COUNT(labels) - 1)];
                parts[i] = (ragged_part){pairs ? "q" : label, i + 1, 3};
                parts[count + i] = (ragged_part){"kv", i + 1, 5};
            }
            ragged_declare(&f, parts, pairs ? 2 * count : count, pairs ? "q:kv" : NULL, 0);
            int64_t live = live_bytes();
            size_t held = ragged_info(&f).memory_bytes, told = ask_bytes(&f, &lease);
            assert_int_equal(live_bytes(), live);
            CHECK_OK(ragged_plan(&f, &lease, 0));
            assert_int_equal(live_bytes() - live, told);
            assert_int_equal(ragged_info(&f).memory_bytes - held, told);
            assert_int_equal(ask_bytes(&f, &lease), 0);
            if (check_integer(&rng, 0, 9) > 0 || count == 0)
                continue;
            const mstar_claim claim = {
                .struct_size = sizeof claim, .leases = &lease, .num_leases = 1};
            CHECK_OK(mstar_resources_claim(f.set, &claim));
            live = live_bytes();
            held = ragged_info(&f).memory_bytes;
            mstar_resources_unclaim(f.set, &lease);
            assert_true(live_bytes() < live);
            assert_int_equal(live - live_bytes(), held - ragged_info(&f).memory_bytes);
            assert_true(ask_bytes(&f, &lease) > 0);
            CHECK_FAILED(ragged_run(&f, NULL, 16, 16), MSTAR_NOT_FOUND, "planned are none");
            mstar_resources_unclaim(f.set, &lease); /* nothing is left to give */
        }
        ragged_close(&f);
    }
}

static void bytes_refused(void **state)
{
    (void)state;
    ragged_fixture f;
    size_t bytes = 7;
    ragged_open(&f, MSTAR_RAGGED_SELF, NULL);
    ragged_declare(&f, (const ragged_part[]){{NULL, 1, 3}}, 1, NULL, 0);
    CHECK_INVALID(mstar_resources_claim_bytes(f.set, &f.context, f.step, &bytes),
                  "context.lease is NULL");
    const mstar_lease large = {.key = {"w", NULL, 2, (int64_t)INT32_MAX + 1}, .slot = 0};
    f.context.lease = &large;
    CHECK_INVALID(mstar_resources_claim_bytes(f.set, &f.context, f.step, &bytes),
                  "resource \"attn\": bucket.num_tokens");
    assert_int_equal(bytes, 7);
    f.context.lease = NULL;
    ragged_close(&f);
}

/* ---- pairs ------------------------------------------------------------------------------------
 */

static const ragged_part pair_parts[] = {{"text", 1, 4},  {"text", 2, 0},  {"text", 3, 6},
                                         {"image", 1, 9}, {"image", 2, 5}, {"image", 3, 0}};

static void cross_pairs(void **state)
{
    (void)state;
    ragged_fixture f;
    const mstar_lease lease = {.key = {"prefill", NULL, 4, 16}, .slot = 0};
    ragged_open(&f, MSTAR_RAGGED_CROSS, NULL);
    ragged_declare(&f, pair_parts, COUNT(pair_parts), "text:image", 1);
    for (int leased = 0; leased < 2; leased++) {
        CHECK_OK(ragged_plan(&f, leased ? &lease : NULL, 0));
        ragged_check(&f, "text:image", MSTAR_RAGGED_CROSS, (const int32_t[]){4, 0, 6},
                     (const int32_t[]){9, 5, 0}, 3, 0, leased ? 16 : 10, leased);
        ragged_check(&f, NULL, MSTAR_RAGGED_CROSS, (const int32_t[]){4, 0, 6},
                     (const int32_t[]){9, 5, 0}, 3, 0, leased ? 16 : 10, leased);
        CHECK_FAILED(ragged_run(&f, "text", 10, 14), MSTAR_NOT_FOUND,
                     "label \"text\" is not planned; planned is \"text:image\"");
    }
    const int64_t *tokens, *keys, *segments;
    CHECK_OK(mstar_ragged_manager_get_counter(f.manager, NULL, MSTAR_COUNT_TOKENS, &tokens));
    CHECK_OK(mstar_ragged_manager_get_counter(f.manager, NULL, MSTAR_COUNT_KV_TOKENS, &keys));
    CHECK_OK(mstar_ragged_manager_get_counter(f.manager, NULL, MSTAR_COUNT_SEGMENTS, &segments));
    assert_true(*tokens == 10 && *keys == 14 && *segments == 3);

    /* both ways round, and a label with itself */
    CHECK_OK(mstar_step_add_pair(f.step, "attn", "image", "text"));
    CHECK_OK(mstar_step_add_pair(f.step, "attn", "image", "image"));
    CHECK_OK(ragged_plan(&f, NULL, 0));
    ragged_check(&f, "image:text", MSTAR_RAGGED_CROSS, (const int32_t[]){9, 5, 0},
                 (const int32_t[]){4, 0, 6}, 3, 0, 14, false);
    CHECK_OK(mstar_step_add_pair(f.step, "attn", "text", "image"));
    CHECK_INVALID(ragged_plan(&f, NULL, 0), "pair \"text:image\" is named twice");
    ragged_close(&f);
}

static void bad_pairs(void **state)
{
    (void)state;
    ragged_fixture f;
    ragged_open(&f, MSTAR_RAGGED_CROSS, NULL);
    ragged_declare(&f, pair_parts, COUNT(pair_parts), "text:sound", 0);
    CHECK_FAILED(ragged_plan(&f, NULL, 0), MSTAR_NOT_FOUND,
                 "a pair's kv_label is \"sound\", which no segment has");
    ragged_declare(&f, pair_parts, COUNT(pair_parts), "sound:text", 0);
    CHECK_FAILED(ragged_plan(&f, NULL, 0), MSTAR_NOT_FOUND, "a pair's q_label is \"sound\"");
    ragged_declare(&f, pair_parts, COUNT(pair_parts) - 1, "text:image", 0);
    CHECK_INVALID(ragged_plan(&f, NULL, 0), "are a pair with 3 and 2 segments");
    const ragged_part swapped[] = {
        {"text", 1, 4}, {"text", 2, 3}, {"image", 2, 9}, {"image", 1, 5}};
    ragged_declare(&f, swapped, 4, "text:image", 0);
    CHECK_INVALID(ragged_plan(&f, NULL, 0), "segment 0 is of request 1 and of request 2");
    ragged_declare(&f, pair_parts, COUNT(pair_parts), NULL, 0);
    CHECK_INVALID(ragged_plan(&f, NULL, 0), "the step names no pair");
    /* the key side has the bucket's tokens as its ceiling, or max_tokens_per_request */
    const mstar_lease lease = {.key = {"prefill", NULL, 3, 12}, .slot = 0};
    ragged_declare(&f, pair_parts, COUNT(pair_parts), "text:image", 0);
    CHECK_INVALID(ragged_plan(&f, &lease, 0), "label \"text:image\"");
    assert_non_null(strstr(mstar_last_error(), "key"));
    ragged_close(&f);
    mstar_ragged_manager_desc desc;
    ragged_desc(MSTAR_RAGGED_CROSS, &desc);
    desc.max_tokens_per_request = 5;
    ragged_open(&f, MSTAR_RAGGED_CROSS, &desc);
    ragged_declare(&f, pair_parts, COUNT(pair_parts), "text:image", 0);
    CHECK_OK(ragged_plan(&f, &lease, 0));
    ragged_check(&f, NULL, MSTAR_RAGGED_CROSS, (const int32_t[]){4, 0, 6},
                 (const int32_t[]){9, 5, 0}, 3, 0, 12, true);
    ragged_close(&f);
}

/* The key side holds prefix and own tokens; causal counts from its end. */
static void prefixed_pairs(void **state)
{
    (void)state;
    ragged_fixture f;
    const ragged_part parts[] = {{"own", 1, 2}, {"all", 1, 5}, {"own", 2, 4}, {"all", 2, 13}};
    ragged_open(&f, MSTAR_RAGGED_PREFIXED, NULL);
    for (int causal = 0; causal < 2; causal++) {
        ragged_declare(&f, parts, COUNT(parts), "own:all", causal);
        CHECK_OK(ragged_plan(&f, NULL, 0));
        ragged_check(&f, "own:all", MSTAR_RAGGED_PREFIXED, (const int32_t[]){2, 4},
                     (const int32_t[]){5, 13}, 2, causal, 6, false);
    }
    ragged_close(&f);
}

/* ---- plans made ahead -------------------------------------------------------------------------
 */

static const ragged_part first_batch[] = {{NULL, 1, 3}, {NULL, 2, 8}};
static const ragged_part second_batch[] = {{NULL, 1, 6}, {NULL, 2, 1}};
static const ragged_part other_batch[] = {{NULL, 1, 6}, {NULL, 3, 1}};

static mstar_status pre_plan(ragged_fixture *f, const ragged_part *parts, const mstar_lease *lease)
{
    ragged_declare(f, parts, 2, NULL, 0);
    f->context.lease = lease;
    return mstar_resources_pre_plan(f->set, &f->context, f->step);
}

static void plans_ahead(void **state)
{
    (void)state;
    ragged_fixture f;
    const mstar_lease leases[2] = {{.key = {"decode", NULL, 2, 16}, .slot = 0},
                                   {.key = {"decode", NULL, 2, 16}, .slot = 1}};
    ragged_open(&f, MSTAR_RAGGED_SELF, NULL);
    assert_int_equal(mstar_resources_double_buffers(f.set, NULL), 1);
    assert_int_equal(mstar_resources_can_pre_plan(f.set, NULL), 1);
    CHECK_FAILED(pre_plan(&f, first_batch, NULL), MSTAR_OUT_OF_ORDER, "without a lease");

    ragged_declare(&f, first_batch, 2, NULL, 0);
    CHECK_OK(ragged_plan(&f, &leases[0], 0));
    CHECK_FAILED(pre_plan(&f, second_batch, &leases[0]), MSTAR_OUT_OF_ORDER,
                 "that the present step has");
    CHECK_OK(pre_plan(&f, second_batch, &leases[1]));
    assert_int_equal(ragged_info(&f).pending, 1);
    CHECK_FAILED(pre_plan(&f, other_batch, &leases[1]), MSTAR_OUT_OF_ORDER,
                 "a pre-plan is pending on slot 1");
    ragged_check(&f, NULL, MSTAR_RAGGED_SELF, (const int32_t[]){3, 8}, NULL, 2, 0, 16, true);

    /* the plan of the same step takes it over and does nothing else */
    ragged_declare(&f, second_batch, 2, NULL, 0);
    CHECK_OK(ragged_plan(&f, &leases[1], 0));
    assert_int_equal(ragged_wrapper_info(&f, NULL).plans, 1);
    ragged_check(&f, NULL, MSTAR_RAGGED_SELF, (const int32_t[]){6, 1}, NULL, 2, 0, 16, true);
    mstar_ragged_manager_info info = ragged_info(&f);
    assert_true(info.promoted == 1 && info.pending == 0 && info.stale == 0 && info.pre_plans == 1);

    /* a batch that has changed is planned anew */
    CHECK_OK(pre_plan(&f, second_batch, &leases[0]));
    ragged_declare(&f, other_batch, 2, NULL, 0);
    CHECK_OK(ragged_plan(&f, &leases[0], 0));
    assert_int_equal(ragged_info(&f).stale, 1);
    assert_int_equal(ragged_info(&f).promoted, 1);
    ragged_check(&f, NULL, MSTAR_RAGGED_SELF, (const int32_t[]){6, 1}, NULL, 2, 0, 16, true);

    /* a step on another slot leaves it alone; dropping is by slot */
    CHECK_OK(pre_plan(&f, second_batch, &leases[1]));
    ragged_declare(&f, first_batch, 2, NULL, 0);
    CHECK_OK(ragged_plan(&f, &leases[0], 0));
    assert_int_equal(ragged_info(&f).pending, 1);
    mstar_resources_drop_pre_plan(f.set, 0);
    assert_int_equal(ragged_info(&f).pending, 1);
    mstar_resources_drop_pre_plan(f.set, 1);
    assert_int_equal(ragged_info(&f).pending, 0);
    assert_int_equal(ragged_info(&f).stale, 2);

    /* causal and the bucket are part of what was planned; so is being leased at all */
    CHECK_OK(pre_plan(&f, second_batch, &leases[1]));
    ragged_declare(&f, second_batch, 2, NULL, 1);
    CHECK_OK(ragged_plan(&f, &leases[1], 0));
    ragged_check(&f, NULL, MSTAR_RAGGED_SELF, (const int32_t[]){6, 1}, NULL, 2, 1, 16, true);
    ragged_declare(&f, first_batch, 2, NULL, 0);
    CHECK_OK(ragged_plan(&f, &leases[0], 0));
    CHECK_OK(pre_plan(&f, second_batch, &leases[1]));
    ragged_declare(&f, second_batch, 2, NULL, 0);
    CHECK_OK(ragged_plan(&f, NULL, 1));
    assert_int_equal(ragged_wrapper_info(&f, NULL).accelerator_graph, 0);
    assert_int_equal(ragged_info(&f).promoted, 1);
    ragged_close(&f);
}

/* ---- captured through a manager, the next step planned on a second thread ---------------------
 */

typedef struct ahead {
    ragged_fixture *f;
    mstar_step *step;
    mstar_lease lease;
    mstar_status status;
} ahead;

static void *plan_on_a_thread(void *argument)
{
    ahead *a = argument;
    mstar_step_context context;
    mstar_step_context_init(&context);
    context.walk = "decode";
    context.lease = &a->lease;
    a->status = mstar_resources_pre_plan(a->f->set, &context, a->step);
    return NULL;
}

static void random_parts(check_rng *rng, ragged_part *parts, int32_t *lengths)
{
    for (int i = 0; i < 4; i++) {
        lengths[i] = (int32_t)check_integer(rng, 0, 8);
        parts[i] = (ragged_part){NULL, i, lengths[i]};
    }
}

static void slots_alternate(void **state)
{
    (void)state;
    ragged_fixture f;
    mstar_graph *graphs[2] = {NULL, NULL};
    mstar_lease leases[2] = {{.key = {"decode", NULL, 4, 32}, .slot = 0},
                             {.key = {"decode", NULL, 4, 32}, .slot = 1}};
    ragged_part now[4], next[4];
    int32_t lengths[4], next_lengths[4];
    check_rng rng = {3};
    ragged_open(&f, MSTAR_RAGGED_SELF, NULL);
    random_parts(&rng, now, lengths);
    for (int s = 0; s < 2; s++) {
        ragged_declare(&f, now, 4, NULL, 0);
        CHECK_OK(ragged_plan(&f, &leases[s], 0));
        CHECK_OK(mstar_graph_capture_begin(f.stream));
        CHECK_OK(ragged_run(&f, NULL, 32, 32));
        CHECK_OK(mstar_graph_capture_end(f.stream, &graphs[s]));
    }
    static float replayed[RAGGED_ROWS][RAGGED_HEADS][RAGGED_DIM];
    mstar_step *step;
    CHECK_OK(mstar_step_create(&step));
    for (int i = 0; i < 60; i++) {
        int slot = i % 2;
        ahead a = {&f, step, leases[1 - slot], MSTAR_OK};
        pthread_t thread;
        random_parts(&rng, next, next_lengths);
        ragged_declare(&f, now, 4, NULL, 0);
        CHECK_OK(ragged_plan(&f, &leases[slot], 0));
        mstar_step_clear(step);
        CHECK_OK(mstar_step_add_resource(step, "attn"));
        for (int p = 0; p < 4; p++)
            CHECK_OK(mstar_step_add_segment(step, NULL, next[p].request, NULL, next[p].span));
        CHECK_OK(mstar_step_set_causal(step, "attn", 0));
        memset(f.out, 0xff, sizeof f.out);
        assert_int_equal(pthread_create(&thread, NULL, plan_on_a_thread, &a), 0);
        CHECK_OK(mstar_graph_replay(graphs[slot], f.stream));
        CHECK_OK(mstar_resources_commit(f.set, &f.context, f.step));
        assert_int_equal(pthread_join(thread, NULL), 0);
        CHECK_OK(a.status);
        memcpy(replayed, f.out, sizeof replayed);
        ragged_check(&f, NULL, MSTAR_RAGGED_SELF, lengths, NULL, 4, 0, 32, true);
        assert_memory_equal(replayed, f.out, 32 * sizeof f.out[0]);
        memcpy(now, next, sizeof now);
        memcpy(lengths, next_lengths, sizeof lengths);
    }
    assert_int_equal(ragged_info(&f).promoted, 59);
    assert_int_equal(ragged_info(&f).stale, 0);
    mstar_step_destroy(step);
    mstar_graph_destroy(graphs[0]);
    mstar_graph_destroy(graphs[1]);
    ragged_close(&f);
}

/* ---- without memory ---------------------------------------------------------------------------
 */

static mstar_status try_manager(void *context)
{
    ragged_fixture *f = context;
    mstar_ragged_manager_desc desc;
    mstar_ragged_manager *manager = NULL;
    mstar_resource resource;
    mstar_resource_step part = {.key = "attn", .causal = 0};
    const mstar_segment segments[] = {{.request = 1, .label = "a", .span = 3},
                                      {.request = 1, .label = "b", .span = 4}};
    const mstar_lease lease = {.key = {"walk", "more", 1, 8}, .slot = 1};
    const void *result;
    mstar_step_context step_context;
    mstar_step_context_init(&step_context);
    part.segments = segments;
    part.num_segments = 2;
    ragged_desc(MSTAR_RAGGED_SELF, &desc);
    mstar_status status = mstar_ragged_manager_create(f->device, &desc, &manager);
    if (status == MSTAR_OK)
        status = mstar_ragged_manager_get_resource(manager, "attn", &resource);
    for (int leased = 0; leased < 2 && status == MSTAR_OK; leased++) {
        step_context.lease = leased ? &lease : NULL;
        step_context.slot = leased;
        status = resource.hooks->plan(manager, &step_context, &part, NULL, &result);
    }
    mstar_ragged_manager_destroy(manager);
    return status;
}

static void a_manager_without_memory(void **state)
{
    (void)state;
    ragged_fixture f;
    ragged_open(&f, MSTAR_RAGGED_SELF, NULL);
    assert_true(check_alloc_faults(try_manager, &f) >= 20);
    ragged_close(&f);
}

static void arguments(void **state)
{
    (void)state;
    ragged_fixture f;
    mstar_resource resource;
    const int64_t *count;
    mstar_ragged_manager_info info = {.struct_size = sizeof info};
    ragged_open(&f, MSTAR_RAGGED_SELF, NULL);
    CHECK_INVALID(mstar_ragged_manager_create(NULL, NULL, NULL), "device is NULL");
    CHECK_INVALID(mstar_ragged_manager_create(f.device, NULL, NULL), "manager is NULL");
    CHECK_INVALID(mstar_ragged_manager_get_resource(NULL, "a", &resource), "manager is NULL");
    CHECK_INVALID(mstar_ragged_manager_get_resource(f.manager, NULL, &resource), "key is NULL");
    CHECK_INVALID(mstar_ragged_manager_get_resource(f.manager, "a", NULL), "resource is NULL");
    CHECK_INVALID(mstar_ragged_manager_run(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
                  "manager is NULL");
    CHECK_INVALID(mstar_ragged_manager_set_label(f.manager, NULL), "label is NULL");
    CHECK_INVALID(mstar_ragged_manager_query(NULL, &info), "manager is NULL");
    CHECK_INVALID(mstar_ragged_manager_query(f.manager, NULL), "info is NULL");
    CHECK_INVALID(
        mstar_ragged_manager_get_counter(f.manager, NULL, (mstar_ragged_counter)3, &count),
        "which is 3");
    mstar_ragged_manager_destroy(NULL);
    mstar_ragged_manager_desc_init(NULL);
    ragged_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(labels_have_their_own_plans),
        cmocka_unit_test(a_plan_that_fails_leaves_none),
        cmocka_unit_test(wrappers_by_bucket_slot_and_label),
        cmocka_unit_test(memory_is_told_and_flat),
        cmocka_unit_test(bytes_are_told_before),
        cmocka_unit_test(bytes_refused),
        cmocka_unit_test(cross_pairs),
        cmocka_unit_test(bad_pairs),
        cmocka_unit_test(prefixed_pairs),
        cmocka_unit_test(plans_ahead),
        cmocka_unit_test(slots_alternate),
        cmocka_unit_test(a_manager_without_memory),
        cmocka_unit_test(arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
