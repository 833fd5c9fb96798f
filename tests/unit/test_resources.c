/*
 * test_resources.c - the phases of a set of resources, and which sets are refused. The resources
 * here write down each call: a test compares what was written.
 */
#include <stdio.h>
#include <string.h>

#include "step/step.h"
#include "support_check.h"

/* ---- resources that write down -----------------------------------------------------------------
 */

static char journal[4096];

static void note(const char *text, const char *name)
{
    size_t used = strlen(journal);
    (void)snprintf(journal + used, sizeof journal - used, "%s(%s) ", text, name);
}

typedef struct fake {
    const char *name;
    mstar_admission_outcome outcome;
    mstar_status admit_status, plan_status, commit_status, add_status;
    const char *wants; /* a result that must be there when it plans */
    int64_t most_bs;   /* of a claim */
    int64_t seen_segments, seen_first;
    int32_t seen_slot, seen_pre_plan;
    int64_t seen_padded;
} fake;

static mstar_status answer(mstar_status status)
{
    return status == MSTAR_OK ? MSTAR_OK : mst_fail(status, "as the test wants");
}

static mstar_status fake_claim(void *self, const mstar_claim *claim)
{
    note("claim", ((fake *)self)->name);
    return claim->max_bs > 100 ? mst_fail(MSTAR_OUT_OF_MEMORY, "too many") : MSTAR_OK;
}

static mstar_status fake_admit(void *self, const mstar_step_context *context,
                               const mstar_resource_step *step, mstar_admission *admission)
{
    fake *f = self;
    note("admit", f->name);
    f->seen_padded = context->num_padded_requests;
    admission->outcome = f->outcome;
    if (f->outcome != MSTAR_ADMITTED) {
        admission->request = step->segments[0].request;
        (void)snprintf(admission->reason, sizeof admission->reason, "two pages short");
    }
    return answer(f->admit_status);
}

static mstar_status fake_plan(void *self, const mstar_step_context *context,
                              const mstar_resource_step *step, const mstar_plan_results *results,
                              const void **result)
{
    fake *f = self;
    note(context->pre_plan ? "pre-plan" : "plan", f->name);
    f->seen_segments = step->num_segments;
    f->seen_slot = context->slot;
    f->seen_pre_plan = context->pre_plan;
    if (f->wants != NULL)
        assert_non_null(mstar_plan_results_find(results, f->wants));
    assert_null(mstar_plan_results_find(results, f->name)); /* the former step's is gone */
    assert_null(mstar_plan_results_find(results, "nobody"));
    *result = f;
    return answer(f->plan_status);
}

static mstar_status fake_commit(void *self, const mstar_step_context *context,
                                const mstar_resource_step *step)
{
    fake *f = self;
    (void)context;
    note("commit", f->name);
    f->seen_segments = step->num_segments;
    f->seen_first = step->num_segments > 0 ? step->segments[0].request : -1;
    return answer(f->commit_status);
}

static mstar_status fake_publish(void *self, const mstar_step_context *context,
                                 const mstar_resource_step *step)
{
    fake *f = self;
    (void)context;
    note("publish", f->name);
    f->seen_segments = step->num_segments;
    return MSTAR_OK;
}

static mstar_status fake_add(void *self, int64_t request)
{
    (void)request;
    note("add", ((fake *)self)->name);
    return answer(((fake *)self)->add_status);
}

static void fake_remove(void *self, int64_t request)
{
    (void)request;
    note("remove", ((fake *)self)->name);
}

static void fake_reset(void *self, int64_t request, int free_storage)
{
    (void)request;
    note(free_storage ? "free" : "keep", ((fake *)self)->name);
}

static void fake_drop(void *self, int32_t slot)
{
    assert_int_equal(slot, 1);
    note("drop", ((fake *)self)->name);
}

static mstar_status fake_validate(void *self)
{
    note("validate", ((fake *)self)->name);
    return MSTAR_OK;
}

static size_t fake_bytes(const void *self)
{
    (void)self;
    return 100;
}

static mstar_status fake_claim_bytes(void *self, const mstar_step_context *context,
                                     const mstar_resource_step *step, size_t *bytes)
{
    note("claim_bytes", ((fake *)self)->name);
    assert_non_null(context->lease);
    *bytes = (size_t)step->num_segments * 1000;
    return context->lease->key.bs > 100 ? mst_fail(MSTAR_OUT_OF_MEMORY, "too many") : MSTAR_OK;
}

static void fake_unclaim(void *self, const mstar_lease *lease)
{
    note("unclaim", ((fake *)self)->name);
    assert_int_equal(lease->key.bs, 8);
}

static void fake_release(void *self)
{
    note("release", ((fake *)self)->name);
}

static const mstar_resource_hooks all_hooks = {.struct_size = sizeof all_hooks,
                                               .pre_plans = 1,
                                               .claim = fake_claim,
                                               .admit = fake_admit,
                                               .plan = fake_plan,
                                               .commit = fake_commit,
                                               .publish = fake_publish,
                                               .add_request = fake_add,
                                               .remove_request = fake_remove,
                                               .reset_request = fake_reset,
                                               .drop_pre_plan = fake_drop,
                                               .validate = fake_validate,
                                               .memory_bytes = fake_bytes,
                                               .release = fake_release,
                                               .claim_bytes = fake_claim_bytes,
                                               .unclaim = fake_unclaim};

/* attn needs pages, which needs positions; they are listed the other way round. */
typedef struct three {
    fake attn, pages, positions;
    mstar_resource_hooks hooks[3];
    mstar_resources *set;
    mstar_step *step;
    mstar_step_context context;
} three;

static const char *const on_pages[] = {"pages"}, *const on_positions[] = {"positions"};
static const int64_t requests[] = {4, 9};

static void three_open(three *t)
{
    memset(t, 0, sizeof *t);
    journal[0] = '\0';
    t->attn = (fake){.name = "attn", .wants = "pages"};
    t->pages = (fake){.name = "pages", .wants = "positions"};
    t->positions = (fake){.name = "positions"};
    for (int i = 0; i < 3; i++)
        t->hooks[i] = all_hooks;
    const mstar_resource list[] = {
        {.key = "attn",
         .hooks = &t->hooks[0],
         .self = &t->attn,
         .depends_on = on_pages,
         .num_depends = 1},
        {.key = "pages",
         .hooks = &t->hooks[1],
         .self = &t->pages,
         .depends_on = on_positions,
         .num_depends = 1},
        {.key = "positions", .hooks = &t->hooks[2], .self = &t->positions},
    };
    CHECK_OK(mstar_resources_create(list, 3, &t->set));
    CHECK_OK(mstar_step_create(&t->step));
    for (int i = 0; i < 3; i++)
        CHECK_OK(mstar_step_add_resource(t->step, list[i].key));
    CHECK_OK(mstar_step_add_segment(t->step, NULL, -2, NULL, 1));
    CHECK_OK(mstar_step_add_segment(t->step, NULL, 4, NULL, 3));
    CHECK_OK(mstar_step_add_segment(t->step, NULL, 9, NULL, 2));
    CHECK_OK(mstar_step_add_segment(t->step, NULL, -3, NULL, 0));
    mstar_step_context_init(&t->context);
    t->context.walk = "prefill";
    t->context.requests = requests;
    t->context.num_requests = 2;
}

static void three_close(three *t)
{
    mstar_resources_destroy(t->set);
    mstar_step_destroy(t->step);
}

static void expect_journal(const char *text)
{
    assert_string_equal(journal, text);
    journal[0] = '\0';
}

static mstar_admission admission_of(three *t)
{
    mstar_admission admission = {.struct_size = sizeof admission};
    CHECK_OK(mstar_resources_admit(t->set, &t->context, t->step, &admission));
    return admission;
}

static void a_whole_step(void **state)
{
    (void)state;
    three t;
    three_open(&t);
    assert_int_equal(mstar_resources_get_count(t.set), 3);
    assert_string_equal(mstar_resources_get_key(t.set, 0), "positions");
    assert_string_equal(mstar_resources_get_key(t.set, 2), "attn");
    assert_null(mstar_resources_get_key(t.set, 3));
    assert_ptr_equal(mstar_resources_get_self(t.set, "pages"), &t.pages);
    assert_null(mstar_resources_get_self(t.set, "nobody"));
    for (int round = 0; round < 3; round++) { /* lock step: the same calls, the same decisions */
        mstar_admission admission = admission_of(&t);
        assert_int_equal(admission.outcome, MSTAR_ADMITTED);
        assert_null(admission.resource);
        assert_int_equal(t.attn.seen_padded, 2); /* the real ones, where no others are given */
        CHECK_OK(mstar_resources_plan(t.set, &t.context, t.step));
        assert_int_equal(t.attn.seen_segments, 4); /* padding rows plan */
        assert_ptr_equal(mstar_resources_get_result(t.set, "attn"), &t.attn);
        CHECK_OK(mstar_resources_commit(t.set, &t.context, t.step));
        assert_int_equal(t.attn.seen_segments, 2); /* and do not commit */
        assert_int_equal(t.attn.seen_first, 4);
        CHECK_OK(mstar_resources_publish(t.set, &t.context, t.step));
        assert_int_equal(t.pages.seen_segments, 2);
        expect_journal("admit(positions) admit(pages) admit(attn) "
                       "plan(positions) plan(pages) plan(attn) "
                       "commit(positions) commit(pages) commit(attn) "
                       "publish(positions) publish(pages) publish(attn) ");
    }
    assert_int_equal(mstar_resources_memory_bytes(t.set), 300);
    CHECK_OK(mstar_resources_validate(t.set));
    expect_journal("validate(positions) validate(pages) validate(attn) ");
    mstar_resources_reset_request(t.set, 4, 1);
    mstar_resources_reset_request(t.set, 4, 0);
    expect_journal(
        "free(positions) free(pages) free(attn) keep(positions) keep(pages) keep(attn) ");
    three_close(&t);
    expect_journal("release(attn) release(pages) release(positions) ");
}

static void admission_stops_at_the_first(void **state)
{
    (void)state;
    three t;
    three_open(&t);
    t.pages.outcome = MSTAR_NOT_READY;
    mstar_admission admission = admission_of(&t);
    assert_int_equal(admission.outcome, MSTAR_NOT_READY);
    assert_string_equal(admission.resource, "pages");
    assert_string_equal(admission.reason, "two pages short");
    assert_int_equal(admission.request, -2);
    expect_journal("admit(positions) admit(pages) ");
    CHECK_FAILED(mstar_resources_plan(t.set, &t.context, t.step), MSTAR_OUT_OF_ORDER,
                 "plan of a step that is declared; it must be admitted first");
    t.pages.outcome = MSTAR_REFUSED;
    assert_int_equal(admission_of(&t).outcome, MSTAR_REFUSED);
    t.pages.outcome = MSTAR_ADMITTED;
    t.attn.admit_status = MSTAR_DEVICE_FAILED;
    CHECK_FAILED(mstar_resources_admit(t.set, &t.context, t.step, &admission), MSTAR_DEVICE_FAILED,
                 "resource \"attn\": as the test wants");
    t.attn.admit_status = MSTAR_OK;
    assert_int_equal(admission_of(&t).outcome, MSTAR_ADMITTED);
    CHECK_OK(mstar_resources_plan(t.set, &t.context, t.step));
    three_close(&t);
}

static void phases_have_an_order(void **state)
{
    (void)state;
    three t;
    three_open(&t);
    CHECK_FAILED(mstar_resources_plan(t.set, &t.context, t.step), MSTAR_OUT_OF_ORDER, "declared");
    CHECK_FAILED(mstar_resources_commit(t.set, &t.context, t.step), MSTAR_OUT_OF_ORDER,
                 "commit of a step that is declared; it must be planned first");
    CHECK_FAILED(mstar_resources_publish(t.set, &t.context, t.step), MSTAR_OUT_OF_ORDER,
                 "must be committed first");
    expect_journal("");
    (void)admission_of(&t);
    CHECK_FAILED(mstar_resources_commit(t.set, &t.context, t.step), MSTAR_OUT_OF_ORDER, "admitted");
    CHECK_OK(mstar_resources_plan(t.set, &t.context, t.step));
    CHECK_OK(mstar_resources_plan(t.set, &t.context, t.step)); /* again is fine */
    CHECK_OK(mstar_resources_commit(t.set, &t.context, t.step));
    CHECK_FAILED(mstar_resources_commit(t.set, &t.context, t.step), MSTAR_OUT_OF_ORDER,
                 "committed");
    CHECK_FAILED(mstar_resources_plan(t.set, &t.context, t.step), MSTAR_OUT_OF_ORDER, "committed");
    CHECK_OK(mstar_resources_publish(t.set, &t.context, t.step));
    (void)admission_of(&t); /* starts over */
    CHECK_OK(mstar_step_add_segment(t.step, NULL, 11, NULL, 1));
    CHECK_FAILED(mstar_resources_plan(t.set, &t.context, t.step), MSTAR_OUT_OF_ORDER, "declared");

    /* a commit that fails half way is not made again */
    (void)admission_of(&t);
    CHECK_OK(mstar_resources_plan(t.set, &t.context, t.step));
    t.attn.commit_status = MSTAR_DEVICE_FAILED;
    CHECK_FAILED(mstar_resources_commit(t.set, &t.context, t.step), MSTAR_DEVICE_FAILED,
                 "resource \"attn\"");
    CHECK_FAILED(mstar_resources_commit(t.set, &t.context, t.step), MSTAR_OUT_OF_ORDER, "commit");
    three_close(&t);
}

static void a_plan_that_fails(void **state)
{
    (void)state;
    three t;
    three_open(&t);
    (void)admission_of(&t);
    CHECK_OK(mstar_resources_plan(t.set, &t.context, t.step));
    t.pages.plan_status = MSTAR_OUT_OF_MEMORY;
    CHECK_FAILED(mstar_resources_plan(t.set, &t.context, t.step), MSTAR_OUT_OF_MEMORY,
                 "resource \"pages\": as the test wants");
    assert_null(mstar_resources_get_result(t.set, "positions"));
    assert_null(mstar_resources_get_result(t.set, "attn"));
    CHECK_FAILED(mstar_resources_commit(t.set, &t.context, t.step), MSTAR_OUT_OF_ORDER, "admitted");
    t.pages.plan_status = MSTAR_OK;
    CHECK_OK(mstar_resources_plan(t.set, &t.context, t.step));
    three_close(&t);
}

/* Resources that a step does not name take no part, and leave no result of an older step. */
static void steps_name_some_resources(void **state)
{
    (void)state;
    three t;
    three_open(&t);
    (void)admission_of(&t);
    CHECK_OK(mstar_resources_plan(t.set, &t.context, t.step));
    mstar_step_clear(t.step);
    CHECK_OK(mstar_step_add_resource(t.step, "positions"));
    journal[0] = '\0';
    (void)admission_of(&t);
    CHECK_OK(mstar_resources_plan(t.set, &t.context, t.step));
    expect_journal("admit(positions) plan(positions) ");
    assert_null(mstar_resources_get_result(t.set, "attn"));
    CHECK_OK(mstar_step_add_resource(t.step, "sampler"));
    mstar_admission admission = {.struct_size = sizeof admission};
    CHECK_FAILED(mstar_resources_admit(t.set, &t.context, t.step, &admission), MSTAR_NOT_FOUND,
                 "\"sampler\", which is not in the set; it has \"positions\", \"pages\", \"attn\"");
    three_close(&t);
}

static void plans_ahead(void **state)
{
    (void)state;
    three t;
    three_open(&t);
    const mstar_lease lease = {.key = {"prefill", NULL, 4, 16}, .slot = 1};
    assert_int_equal(mstar_resources_can_pre_plan(t.set, t.step), 1);
    CHECK_FAILED(mstar_resources_pre_plan(t.set, &t.context, t.step), MSTAR_OUT_OF_ORDER,
                 "without a lease");
    t.context.lease = &lease;
    CHECK_OK(mstar_resources_pre_plan(t.set, &t.context, t.step));
    expect_journal("pre-plan(positions) pre-plan(pages) pre-plan(attn) ");
    assert_int_equal(t.attn.seen_slot, 1);                  /* the lease's */
    assert_null(mstar_resources_get_result(t.set, "attn")); /* the present step's are others */
    t.attn.plan_status = MSTAR_BUSY;
    CHECK_FAILED(mstar_resources_pre_plan(t.set, &t.context, t.step), MSTAR_BUSY,
                 "resource \"attn\"");
    expect_journal("pre-plan(positions) pre-plan(pages) pre-plan(attn) drop(positions) "
                   "drop(pages) ");
    mstar_resources_drop_pre_plan(t.set, 1);
    expect_journal("drop(positions) drop(pages) drop(attn) ");
    t.context.pre_plan = 1; /* not the caller's to set */
    (void)admission_of(&t);
    t.attn.plan_status = MSTAR_OK;
    CHECK_OK(mstar_resources_plan(t.set, &t.context, t.step));
    assert_int_equal(t.attn.seen_pre_plan, 0);
    three_close(&t);

    /* all of a step or none */
    fake one = {.name = "one"}, two = {.name = "two"};
    mstar_resource_hooks later = all_hooks, buffered = all_hooks;
    later.pre_plans = 0;
    buffered.double_buffers = 1;
    const mstar_resource list[] = {{.key = "one", .hooks = &buffered, .self = &one},
                                   {.key = "two", .hooks = &later, .self = &two}};
    mstar_resources *set;
    mstar_step *step;
    CHECK_OK(mstar_resources_create(list, 2, &set));
    CHECK_OK(mstar_step_create(&step));
    CHECK_OK(mstar_step_add_resource(step, "two"));
    assert_int_equal(mstar_resources_double_buffers(set, NULL), 1);
    assert_int_equal(mstar_resources_double_buffers(set, step), 0);
    CHECK_OK(mstar_step_add_resource(step, "one"));
    assert_int_equal(mstar_resources_double_buffers(set, step), 1);
    assert_int_equal(mstar_resources_can_pre_plan(set, step), 0);
    assert_int_equal(mstar_resources_can_pre_plan(set, NULL), 0);
    mstar_step_context context;
    mstar_step_context_init(&context);
    context.lease = &lease;
    CHECK_FAILED(mstar_resources_pre_plan(set, &context, step), MSTAR_NOT_SUPPORTED,
                 "resource \"two\" plans and does not pre-plan");
    mstar_step_clear(step);
    assert_int_equal(mstar_resources_can_pre_plan(set, step), 0); /* nothing to plan */
    mstar_step_destroy(step);
    mstar_resources_destroy(set);
}

static void requests_begin_and_end(void **state)
{
    (void)state;
    three t;
    three_open(&t);
    CHECK_OK(mstar_resources_add_request(t.set, 4));
    expect_journal("add(positions) add(pages) add(attn) ");
    mstar_resources_remove_request(t.set, 4);
    expect_journal("remove(attn) remove(pages) remove(positions) ");
    t.attn.add_status = MSTAR_OUT_OF_MEMORY;
    CHECK_FAILED(mstar_resources_add_request(t.set, 4), MSTAR_OUT_OF_MEMORY, "resource \"attn\"");
    expect_journal("add(positions) add(pages) add(attn) remove(pages) remove(positions) ");
    CHECK_INVALID(mstar_resources_add_request(t.set, -1), "request is -1");
    const mstar_claim claim = {.struct_size = sizeof claim, .max_bs = 8};
    const mstar_claim large = {.struct_size = sizeof large, .max_bs = 800};
    CHECK_OK(mstar_resources_claim(t.set, &claim));
    expect_journal("claim(positions) claim(pages) claim(attn) ");
    CHECK_FAILED(mstar_resources_claim(t.set, &large), MSTAR_OUT_OF_MEMORY,
                 "resource \"positions\": too many");
    mstar_lease lease = {.key = {"prefill", NULL, 8, 16}};
    size_t bytes = 0;
    t.context.lease = &lease;
    CHECK_OK(mstar_resources_claim_bytes(t.set, &t.context, t.step, &bytes));
    assert_int_equal(bytes, 3 * 4000); /* four segments each */
    journal[0] = '\0';
    mstar_resources_unclaim(t.set, &lease);
    expect_journal("unclaim(attn) unclaim(pages) unclaim(positions) ");
    lease.key.bs = 800;
    CHECK_FAILED(mstar_resources_claim_bytes(t.set, &t.context, t.step, &bytes),
                 MSTAR_OUT_OF_MEMORY, "resource \"positions\": too many");
    three_close(&t);
}

/* ---- building a set ---------------------------------------------------------------------------
 */

static mstar_status build(const mstar_resource *list, int64_t count)
{
    mstar_resources *set = NULL;
    mstar_status status = mstar_resources_create(list, count, &set);
    mstar_resources_destroy(set);
    return status;
}

static void sets_that_are_refused(void **state)
{
    (void)state;
    fake f = {.name = "f"};
    mstar_resource_hooks hooks = all_hooks, later = all_hooks;
    later.pre_plans = 0;
    static const char *const on_a[] = {"a"}, *const on_b[] = {"b"}, *const on_c[] = {"c"};
    static const char *const on_null[] = {NULL};
    mstar_resource list[] = {
        {.key = "a", .hooks = &hooks, .self = &f, .depends_on = on_b, .num_depends = 1},
        {.key = "b", .hooks = &hooks, .self = &f, .depends_on = on_c, .num_depends = 1},
        {.key = "c", .hooks = &hooks, .self = &f},
    };
    journal[0] = '\0';
    CHECK_INVALID(build(list, 2), "resource \"b\" depends on \"c\", which is not in the list");
    list[2].depends_on = on_c;
    list[2].num_depends = 1;
    CHECK_INVALID(build(list, 3), "resource \"c\" depends on itself");
    list[2].depends_on = on_a;
    CHECK_INVALID(build(list, 3), "in a circle");
    list[2].depends_on = on_b; /* b and c; a only hangs on it */
    CHECK_INVALID(build(list, 3), "in a circle");
    assert_null(strstr(mstar_last_error(), "\"a\""));
    list[2].depends_on = on_null;
    CHECK_INVALID(build(list, 3), "depends_on[0] is NULL");
    list[2].depends_on = NULL;
    CHECK_INVALID(build(list, 3), "num_depends is 1 with depends_on NULL");
    list[2].num_depends = 0;
    list[2].key = "a";
    CHECK_INVALID(build(list, 3), "list[0] and list[2] both have key \"a\"");
    list[2].key = NULL;
    CHECK_INVALID(build(list, 3), "list[2].key is NULL");
    list[2].key = "c";
    list[2].hooks = NULL;
    CHECK_INVALID(build(list, 3), "resource \"c\": hooks is NULL");
    list[2].hooks = &later;
    CHECK_INVALID(build(list, 3), "resource \"b\" pre-plans and depends on \"c\", which does not");
    later.plan = NULL;  /* a resource that plans nothing is never in the way */
    expect_journal(""); /* nothing that was refused is released */
    CHECK_OK(build(list, 3));
    CHECK_INVALID(build(NULL, 1), "list is NULL");
    CHECK_INVALID(build(list, -1), "count is -1");
    CHECK_OK(build(NULL, 0));
    hooks.struct_size = 0;
    CHECK_INVALID(build(list, 3), "struct_size");
}

/* A struct of an older header: hooks past its end are taken for NULL, whatever lies there. */
static void an_older_struct_of_hooks(void **state)
{
    (void)state;
    fake f = {.name = "f"};
    mstar_resource_hooks hooks = all_hooks;
    hooks.struct_size = offsetof(mstar_resource_hooks, add_request);
    const mstar_resource list[] = {{.key = "f", .hooks = &hooks, .self = &f}};
    mstar_resources *set;
    journal[0] = '\0';
    CHECK_OK(mstar_resources_create(list, 1, &set));
    CHECK_OK(mstar_resources_add_request(set, 3));
    mstar_resources_destroy(set);
    expect_journal("");
}

static mstar_status try_set(void *context)
{
    fake f = {.name = "f"};
    mstar_resources *set = NULL;
    const mstar_resource list[] = {{.key = "a", .hooks = &all_hooks, .self = &f},
                                   {.key = "b", .hooks = &all_hooks, .self = &f}};
    (void)context;
    mstar_status status = mstar_resources_create(list, 2, &set);
    mstar_resources_destroy(set);
    journal[0] = '\0';
    return status;
}

static void a_set_without_memory(void **state)
{
    (void)state;
    assert_true(check_alloc_faults(try_set, NULL) >= 7);
}

static void contexts(void **state)
{
    (void)state;
    three t;
    three_open(&t);
    mstar_admission admission = {.struct_size = sizeof admission};
    CHECK_INVALID(mstar_resources_admit(NULL, &t.context, t.step, &admission), "resources is NULL");
    CHECK_INVALID(mstar_resources_admit(t.set, NULL, t.step, &admission), "context is NULL");
    CHECK_INVALID(mstar_resources_admit(t.set, &t.context, NULL, &admission), "step is NULL");
    CHECK_INVALID(mstar_resources_admit(t.set, &t.context, t.step, NULL), "admission is NULL");
    t.context.struct_size = 0;
    CHECK_INVALID(mstar_resources_admit(t.set, &t.context, t.step, &admission), "struct_size");
    mstar_step_context_init(NULL);
    assert_int_equal(mstar_resources_get_count(NULL), 0);
    assert_null(mstar_resources_get_result(NULL, "a"));
    mstar_resources_destroy(NULL);
    three_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_step),
        cmocka_unit_test(admission_stops_at_the_first),
        cmocka_unit_test(phases_have_an_order),
        cmocka_unit_test(a_plan_that_fails),
        cmocka_unit_test(steps_name_some_resources),
        cmocka_unit_test(plans_ahead),
        cmocka_unit_test(requests_begin_and_end),
        cmocka_unit_test(sets_that_are_refused),
        cmocka_unit_test(an_older_struct_of_hooks),
        cmocka_unit_test(a_set_without_memory),
        cmocka_unit_test(contexts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
