/*
 * test_shared_claims.c - the claims of a lease: a manager's wrappers for it are there until it has
 * been given back as often as it was claimed, by runners or by regions.
 */
#include "support_ragged.h"
#include "support_region.h"

#include <string.h>

/* Claims of a lease are counted: its wrappers go with the last, those of other slots stay. */
static void claims_are_counted(void **state)
{
    (void)state;
    ragged_fixture f;
    ragged_open(&f, MSTAR_RAGGED_SELF, NULL);
    const mstar_lease leases[] = {{.key = {"w", "hd", 4, 16}, .slot = 0},
                                  {.key = {"w", "hd", 4, 16}, .slot = 1},
                                  {.key = {"w", NULL, 4, 16}, .slot = 0}};
    const mstar_claim three = {.struct_size = sizeof three, .leases = leases, .num_leases = 3};
    const mstar_claim first = {.struct_size = sizeof first, .leases = leases, .num_leases = 1};
    ragged_declare(&f, (const ragged_part[]){{NULL, 1, 3}, {NULL, 2, 4}}, 2, NULL, 0);
    CHECK_OK(mstar_resources_claim(f.set, &three));
    CHECK_OK(mstar_resources_claim(f.set, &first));
    for (int i = 0; i < 3; i++)
        CHECK_OK(ragged_plan(&f, &leases[i], 0));
    CHECK_OK(ragged_plan(&f, &leases[0], 0));
    mstar_resources_unclaim(f.set, &leases[0]);
    assert_int_equal(ragged_info(&f).graph_wrappers, 3);
    CHECK_OK(ragged_run(&f, NULL, 16, 16)); /* the plan holds */
    mstar_resources_unclaim(f.set, &leases[0]);
    assert_int_equal(ragged_info(&f).graph_wrappers, 2);
    CHECK_FAILED(ragged_run(&f, NULL, 16, 16), MSTAR_NOT_FOUND, "planned are none");
    CHECK_OK(ragged_plan(&f, &leases[1], 0));
    mstar_resources_unclaim(f.set, &leases[2]); /* not the present plan's */
    CHECK_OK(ragged_run(&f, NULL, 16, 16));
    mstar_resources_unclaim(f.set, &leases[1]);
    assert_int_equal(ragged_info(&f).graph_wrappers, 0);
    /* claimed anew, a lease counts from one */
    CHECK_OK(mstar_resources_claim(f.set, &first));
    CHECK_OK(ragged_plan(&f, &leases[0], 0));
    mstar_resources_unclaim(f.set, &leases[0]);
    assert_int_equal(ragged_info(&f).graph_wrappers, 0);
    /* one that nobody claims stays as it is */
    CHECK_OK(ragged_plan(&f, &leases[0], 0));
    mstar_resources_unclaim(f.set, &leases[0]);
    assert_int_equal(ragged_info(&f).graph_wrappers, 1);
    CHECK_OK(ragged_run(&f, NULL, 16, 16));
    ragged_close(&f);
}

static int fails_from(void *context, uint64_t number, size_t bytes)
{
    (void)bytes;
    return number >= *(const uint64_t *)context;
}

/* Every allocation of a claim failed once: it claims all of its leases or none. */
static void claims_that_fail(void **state)
{
    (void)state;
    const mstar_lease leases[] = {{.key = {"w", "hd", 4, 16}}, {.key = {"v", "sd", 4, 16}}};
    const mstar_claim claim = {.struct_size = sizeof claim, .leases = leases, .num_leases = 2};
    uint64_t failures = 1;
    for (mstar_status status = MSTAR_OUT_OF_MEMORY; status != MSTAR_OK; failures++) {
        ragged_fixture f;
        ragged_open(&f, MSTAR_RAGGED_SELF, NULL);
        ragged_declare(&f, (const ragged_part[]){{NULL, 1, 3}}, 1, NULL, 0);
        mstar_set_alloc_fault(fails_from, &failures);
        status = mstar_resources_claim(f.set, &claim);
        mstar_set_alloc_fault(NULL, NULL);
        for (int i = 0; i < 2; i++) {
            CHECK_OK(ragged_plan(&f, &leases[i], 0));
            mstar_resources_unclaim(f.set, &leases[i]);
        }
        int64_t left = ragged_info(&f).graph_wrappers; /* of leases that are not claimed */
        assert_int_equal(left, status == MSTAR_OK ? 0 : 2);
        CHECK_OK(mstar_resources_claim(f.set, &claim));
        for (int i = 0; i < 2; i++)
            mstar_resources_unclaim(f.set, &leases[i]);
        assert_int_equal(ragged_info(&f).graph_wrappers, 0); /* nothing more is claimed */
        ragged_close(&f);
    }
    assert_true(failures > 6); /* four texts, and two lists */
}

/* Two regions of one name, and so of equal keys, over one node. */
static void regions_share(void **state)
{
    (void)state;
    static region_bench b;
    static const int64_t sizes[] = {1}, totals[] = {32, 64};
    check_rng rng = {72};
    region_bench_open(&b, sizes, 1, 0, totals, 2);
    region_bench_start(&b);
    for (int call = 1; call <= 20; call++) {
        mstar_region_runner *first = b.runner;
        b.calls_capture = 0;
        b.fail_capture = call;
        region_bench_start(&b);
        b.fail_capture = 0;
        assert_int_equal(region_bench_query(&b).num_captured, 1);
        mstar_region_runner_destroy(b.runner);
        b.runner = first;
        (void)region_bench_check(&b, &rng, (int64_t[]){20}, 1, 1);
        (void)region_bench_check(&b, &rng, (int64_t[]){50}, 1, 1);
    }
    region_bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(claims_are_counted),
                                       cmocka_unit_test(claims_that_fail),
                                       cmocka_unit_test(regions_share)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
