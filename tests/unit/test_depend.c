/*
 * test_depend.c - which launches wait for which: regions against sets of bytes, waves against their
 * definition, both on random cases. A failure prints the seed that repeats it.
 */
#include <string.h>

#include "cpu/cpu_launch.h"
#include "support_check.h"

enum { ROUNDS = 20000, SPACE = 256, MAX_LAUNCHES = 90 };

/* ---- regions --------------------------------------------------------------------------------- */

static mst_region random_region(check_rng *rng, int64_t shared_stride)
{
    mst_region region = {.width = (uint64_t)check_integer(rng, 1, 12),
                         .num_rows = check_integer(rng, 1, 6),
                         .written = check_integer(rng, 0, 1) == 1};
    region.stride =
        (uint64_t)(check_integer(rng, 0, 2) > 0 ? shared_stride : check_integer(rng, 0, 24));
    region.begin = 1000 + (uintptr_t)check_integer(rng, 0, 60);
    return region;
}

static void mark(const mst_region *region, bool *bytes)
{
    memset(bytes, 0, SPACE * sizeof *bytes);
    for (int64_t row = 0; row < region->num_rows; row++) {
        for (uint64_t i = 0; i < region->width; i++)
            bytes[region->begin - 1000 + (uint64_t)row * region->stride + i] = true;
    }
}

static void regions_against_bytes(void **state)
{
    (void)state;
    bool one[SPACE], other[SPACE];
    int64_t apart_inside = 0;
    for (uint64_t seed = 0; seed < ROUNDS; seed++) {
        check_rng rng = {seed};
        int64_t stride = check_integer(&rng, 1, 24);
        mst_region a = random_region(&rng, stride);
        mst_region b = random_region(&rng, stride);
        mark(&a, one);
        mark(&b, other);
        bool share = false;
        for (int i = 0; i < SPACE; i++)
            share = share || (one[i] && other[i]);
        bool said = mst_regions_overlap(&a, &b);
        if (said != mst_regions_overlap(&b, &a) || (share && !said))
            fail_msg("seed %llu: shared bytes %d, said %d", (unsigned long long)seed, share, said);
        uintptr_t a_end = a.begin + (uintptr_t)(a.num_rows - 1) * a.stride + a.width;
        uintptr_t b_end = b.begin + (uintptr_t)(b.num_rows - 1) * b.stride + b.width;
        if (!said && a.begin < b_end && b.begin < a_end)
            apart_inside++; /* interleaved, and seen to be */
    }
    assert_true(apart_inside > ROUNDS / 100);
}

/* The slices of a fused projection: interleaved in memory and yet apart. */
static void slices_are_apart(void **state)
{
    (void)state;
    mst_regions slices[3] = {{0}, {0}, {0}};
    static float fused[8][3 * 16];
    for (int i = 0; i < 3; i++)
        mst_regions_add_heads(&slices[i], &fused[0][i * 16], MSTAR_DTYPE_F32, 8, 48, 4, 4, 4,
                              i == 0);
    assert_false(mst_regions_conflict(&slices[0], &slices[1]));
    assert_false(mst_regions_conflict(&slices[2], &slices[0]));
    assert_true(mst_regions_conflict(&slices[0], &slices[0]));
    assert_false(mst_regions_conflict(&slices[1], &slices[1])); /* both only read */
    mst_regions wide = {0};
    mst_regions_add_heads(&wide, &fused[0][12], MSTAR_DTYPE_F32, 8, 48, 2, 4, 4, true);
    assert_true(mst_regions_conflict(&wide, &slices[0]));
    assert_true(mst_regions_conflict(&wide, &slices[1]));
    assert_false(mst_regions_conflict(&wide, &slices[2]));
    mst_regions none = {0};
    mst_regions_add_bytes(&none, NULL, 100, true);
    mst_regions_add_heads(&none, fused, MSTAR_DTYPE_F32, 0, 48, 4, 4, 4, true);
    mst_regions_add_bytes(&none, fused, 0, true);
    assert_int_equal(none.count, 0);
}

/* ---- waves ----------------------------------------------------------------------------------- */

typedef struct graph_case {
    int64_t count;
    bool edge[MAX_LAUNCHES][MAX_LAUNCHES]; /* [i][j], i < j */
} graph_case;

static bool edge_of(const void *context, int64_t i, int64_t j)
{
    const graph_case *c = context;
    assert_true(0 <= i && i < j && j < c->count);
    return c->edge[i][j];
}

/* Pairs of the transitive reduction, by the definition. */
static int64_t reduced_edges(const graph_case *c)
{
    static bool path[MAX_LAUNCHES][MAX_LAUNCHES];
    int64_t edges = 0;
    memcpy(path, c->edge, sizeof path);
    for (int64_t k = 0; k < c->count; k++)
        for (int64_t i = 0; i < c->count; i++)
            for (int64_t j = 0; j < c->count; j++)
                path[i][j] = path[i][j] || (path[i][k] && path[k][j]);
    for (int64_t i = 0; i < c->count; i++) {
        for (int64_t j = i + 1; j < c->count; j++) {
            bool direct = c->edge[i][j];
            for (int64_t k = i + 1; k < j; k++)
                direct = direct && !(path[i][k] && path[k][j]);
            edges += direct;
        }
    }
    return edges;
}

static void check_case(const graph_case *c, uint64_t seed)
{
    int64_t wave[MAX_LAUNCHES], num_waves, num_edges, widest = 0;
    CHECK_OK(mst_depend(c->count, edge_of, c, wave, &num_waves, &num_edges));
    assert_int_equal(num_edges, reduced_edges(c));
    int64_t sizes[MAX_LAUNCHES] = {0};
    for (int64_t j = 0; j < c->count; j++) {
        assert_in_range(wave[j], 0, num_waves - 1);
        sizes[wave[j]]++;
        for (int64_t i = 0; i < j; i++) {
            if (c->edge[i][j] && wave[i] >= wave[j])
                fail_msg("seed %llu: %lld before %lld, waves %lld and %lld",
                         (unsigned long long)seed, (long long)i, (long long)j, (long long)wave[i],
                         (long long)wave[j]);
        }
    }
    for (int64_t w = 0; w < num_waves; w++) {
        assert_true(sizes[w] > 0);
        widest = mst_max_i64(widest, sizes[w]);
    }
    assert_true(widest <= MST_WAVE_WINDOW);
}

static void waves_of_random_graphs(void **state)
{
    (void)state;
    static graph_case c;
    for (uint64_t seed = 0; seed < 400; seed++) {
        check_rng rng = {seed};
        memset(&c, 0, sizeof c);
        c.count = check_integer(&rng, 0, MAX_LAUNCHES);
        int64_t odds = check_integer(&rng, 0, 20);
        for (int64_t i = 0; i < c.count; i++)
            for (int64_t j = i + 1; j < c.count; j++)
                c.edge[i][j] = check_integer(&rng, 0, 20) < odds * odds / 20;
        check_case(&c, seed);
    }
}

static void waves_of_known_graphs(void **state)
{
    (void)state;
    static graph_case c;
    int64_t wave[MAX_LAUNCHES], num_waves, num_edges;
    memset(&c, 0, sizeof c);
    CHECK_OK(mst_depend(0, edge_of, &c, wave, &num_waves, &num_edges));
    assert_int_equal(num_waves, 0);
    assert_int_equal(num_edges, 0);

    /* a chain, with every pair in conflict: one launch a wave */
    c.count = 70;
    for (int i = 0; i < 70; i++)
        for (int j = i + 1; j < 70; j++)
            c.edge[i][j] = true;
    CHECK_OK(mst_depend(70, edge_of, &c, wave, &num_waves, &num_edges));
    assert_int_equal(num_waves, 70);
    assert_int_equal(num_edges, 69);
    for (int i = 0; i < 70; i++)
        assert_int_equal(wave[i], i);

    /* q, k and v from x, then attention: two waves */
    memset(&c, 0, sizeof c);
    c.count = 4;
    c.edge[0][3] = c.edge[1][3] = c.edge[2][3] = true;
    CHECK_OK(mst_depend(4, edge_of, &c, wave, &num_waves, &num_edges));
    assert_int_equal(num_waves, 2);
    assert_int_equal(num_edges, 3);
    assert_true(wave[0] == 0 && wave[1] == 0 && wave[2] == 0 && wave[3] == 1);

    /* nothing in conflict: no more in a wave than the window holds */
    memset(&c, 0, sizeof c);
    c.count = 2 * MST_WAVE_WINDOW;
    CHECK_OK(mst_depend(c.count, edge_of, &c, wave, &num_waves, &num_edges));
    assert_int_equal(num_waves, 2);
}

static mstar_status try_depend(void *context)
{
    graph_case *c = context;
    int64_t wave[MAX_LAUNCHES], num_waves, num_edges;
    return mst_depend(c->count, edge_of, c, wave, &num_waves, &num_edges);
}

static void without_memory(void **state)
{
    (void)state;
    static graph_case c;
    c.count = 10;
    assert_true(check_alloc_faults(try_depend, &c) == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(regions_against_bytes),  cmocka_unit_test(slices_are_apart),
        cmocka_unit_test(waves_of_random_graphs), cmocka_unit_test(waves_of_known_graphs),
        cmocka_unit_test(without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
