/*
 * test_graph_compile.c - captures specialised for their buckets: which choices there are, who wins
 * when a test says how long each takes, equal bits whatever wins, candidates with other bits, and
 * what fails on the way.
 */
#include "support_runner.h"

#include <stdlib.h>
#include <string.h>

#include "cpu/cpu_launch.h"
#include "graph/region.h"
#include "graph/runner.h"

static const char *const by_timing = "max-autotune-no-cudagraphs";

/* ---- pure functions -------------------------------------------------------------------------- */

static void check_covers(const mst_choice *choice, int64_t rows, int64_t panels)
{
    enum { MAX_ROWS = 200, MAX_PANELS = 40 };
    static unsigned char seen[MAX_ROWS][MAX_PANELS];
    memset(seen, 0, sizeof seen);
    for (int64_t task = 0; task < choice->grid.row_parts * choice->grid.panel_parts; task++) {
        int64_t row_begin, row_end, panel_begin, panel_end;
        mst_cut(rows, 1, choice->grid.row_parts, task / choice->grid.panel_parts, &row_begin,
                &row_end);
        mst_cut(panels, 1, choice->grid.panel_parts, task % choice->grid.panel_parts, &panel_begin,
                &panel_end);
        for (int64_t r = row_begin; r < row_end; r++)
            for (int64_t p = panel_begin; p < panel_end; p++)
                seen[r][p]++;
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t p = 0; p < panels; p++)
            assert_int_equal(seen[r][p], 1);
}

/* The rule's comes first, none comes twice, and each covers every row and panel once, for any rows
 * that it holds for. */
static void test_choices_of_product(void **state)
{
    (void)state;
    check_rng rng = {1};
    for (int round = 0; round < 2000; round++) {
        int64_t tile = check_integer(&rng, 1, 32), panels = check_integer(&rng, 1, 40);
        mst_choice rule = {.rows = check_integer(&rng, 1, 200),
                           .threads = (int32_t)check_integer(&rng, 1, 40),
                           .row_block = check_integer(&rng, 2, 40) * tile};
        rule.grid = mst_linear_split(rule.rows, panels, tile, rule.threads);
        mst_choice list[MST_MAX_CHOICES];
        int32_t count = mst_choices_of_product(&rule, panels, tile, list);
        assert_true(count >= 1 && count <= MST_MAX_CHOICES);
        assert_true(mst_choice_equal(&list[0], &rule));
        for (int32_t i = 0; i < count; i++) {
            for (int32_t j = 0; j < i; j++)
                assert_false(mst_choice_equal(&list[i], &list[j]));
            assert_true(list[i].row_block >= 2 * tile && list[i].row_block % tile == 0);
            assert_true(list[i].grid.row_parts * list[i].grid.panel_parts <=
                        2 * (int64_t)rule.threads);
            assert_true(list[i].grid.panel_parts <= panels);
            assert_int_equal(list[i].rows, rule.rows);
            assert_int_equal(list[i].threads, rule.threads);
            int64_t live = check_integer(&rng, 0, rule.rows);
            check_covers(&list[i], live, panels);
        }
    }
    /* sixteen threads, many rows and panels: the square grid is among them */
    mst_choice rule = {.rows = 100000, .threads = 16, .grid = {16, 1}, .row_block = 84};
    mst_choice list[MST_MAX_CHOICES];
    int32_t count = mst_choices_of_product(&rule, 1000, 14, list);
    bool square = false;
    for (int32_t i = 0; i < count; i++)
        square = square || (list[i].grid.row_parts == 4 && list[i].grid.panel_parts == 4);
    assert_true(square);
}

static void test_choices_of_tasks(void **state)
{
    (void)state;
    for (int32_t threads = 1; threads <= 9; threads++) {
        for (int32_t tasks = 1; tasks <= threads; tasks++) {
            mst_choice rule = {.rows = 50, .threads = threads, .tasks = tasks};
            mst_choice list[MST_MAX_CHOICES];
            int32_t count = mst_choices_of_tasks(&rule, 50, list);
            bool one = false, all = false;
            assert_int_equal(list[0].tasks, tasks);
            for (int32_t i = 0; i < count; i++) {
                for (int32_t j = 0; j < i; j++)
                    assert_int_not_equal(list[i].tasks, list[j].tasks);
                /* never more than the scratch of attention has pieces for */
                assert_true(list[i].tasks >= 1 && list[i].tasks <= threads);
                one = one || list[i].tasks == 1;
                all = all || list[i].tasks == threads;
            }
            assert_true(one && all);
        }
    }
}

static void test_holds(void **state)
{
    (void)state;
    mst_choice choice = {.rows = 64, .threads = 2};
    assert_true(mst_choice_holds(&choice, 64, 2));
    assert_true(mst_choice_holds(&choice, 33, 2));
    assert_false(mst_choice_holds(&choice, 32, 2));
    assert_false(mst_choice_holds(&choice, 65, 2));
    assert_false(mst_choice_holds(&choice, 64, 1));
    choice.rows = 1;
    assert_true(mst_choice_holds(&choice, 1, 2));
    assert_false(mst_choice_holds(&choice, 0, 2));
    choice.rows = 0; /* nothing is decided */
    assert_false(mst_choice_holds(&choice, 0, 2));
}

static void test_fastest(void **state)
{
    (void)state;
    const bool all[] = {true, true, true, true};
    const bool not_second[] = {true, false, true, true};
    static const struct {
        int64_t ns[4];
        int32_t want, without_second;
    } rows[] = {
        {{1600, 1499, 1600, 1600}, 1, 0}, /* clearly faster */
        {{1600, 1500, 1600, 1600}, 0, 0}, /* by one part in 16: noise */
        {{1600, 800, 800, 900}, 1, 2},    /* the first of equals */
        {{1600, 900, 800, 900}, 2, 2},         {{0, 0, 0, 0}, 0, 0},
        {{16, 1, INT64_MAX, INT64_MAX}, 1, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(mst_choice_fastest(rows[i].ns, all, 4), rows[i].want);
        assert_int_equal(mst_choice_fastest(rows[i].ns, not_second, 4), rows[i].without_second);
    }
    assert_int_equal(mst_choice_fastest((int64_t[]){5}, all, 1), 0);
}

/* ---- who wins -------------------------------------------------------------------------------- */

/* Says how long candidates take, and can spoil what one of them leaves. */
typedef struct script {
    int32_t winner;
    int64_t calls, most_candidates;
    bench *b;
    int64_t spoiled_node; /* -1: none */
    int32_t spoiled;      /* candidate */
} script;

static int64_t say(void *user, int64_t place, int32_t candidate, void (*run)(void *context),
                   void *context)
{
    script *s = user;
    run(context);
    s->calls++;
    s->most_candidates = candidate >= s->most_candidates ? candidate + 1 : s->most_candidates;
    if (place == s->spoiled_node && candidate == s->spoiled) {
        /* the last byte of everything that forwards write: rows of "hidden" begin the pool */
        unsigned char *pool = mstar_buffer_get_data(s->b->runner->pool);
        pool[0] ^= 1;
    }
    return candidate == s->winner ? 10 : 1000;
}

static mstar_graph_config *make_config(const char *mode, int compile)
{
    mstar_packed_graph_config_desc desc;
    mstar_packed_graph_config_desc_init(&desc);
    desc.capture_graph_walk = "w";
    desc.capture_batch_sizes = bench_sizes;
    desc.num_capture_batch_sizes = 1;
    desc.capture_token_lengths = bench_lengths;
    desc.num_capture_token_lengths = 3;
    desc.make_node_input = node_make_input;
    desc.compile = compile;
    desc.compile_mode = mode;
    mstar_graph_config *config;
    CHECK_OK(mstar_packed_graph_config_create(&desc, &config));
    return config;
}

/* A runner of the bench's three buckets, prepared; its choices are the script's. */
static void open_with(bench *b, int32_t threads, int32_t slots, const char *mode, int compile,
                      script *s)
{
    bench_open(b, threads);
    b->configs[0] = make_config(mode, compile);
    b->num_configs = 1;
    mstar_node_hooks hooks = node_hooks(&b->node);
    mstar_graph_runner_desc desc = bench_desc(b, &hooks);
    desc.num_slots = slots;
    CHECK_OK(mstar_graph_runner_create(b->device, &desc, &b->runner));
    s->b = b;
    s->calls = s->most_candidates = 0;
    b->runner->tuning = (mst_tuning){.measure = say, .user = s};
    CHECK_OK(mstar_graph_runner_prepare(b->runner));
}

static void check_steps(bench *b, check_rng *rng)
{
    bench_check_step(b, "w", rng, (int64_t[]){16, 16, 16, 16}, 4, MSTAR_GRAPH_MISS_NONE);
    bench_check_step(b, "w", rng, (int64_t[]){40}, 1, MSTAR_GRAPH_MISS_NONE);
    bench_check_step(b, "w", rng, (int64_t[]){9, 8}, 2, MSTAR_GRAPH_MISS_NONE);
    bench_check_step(b, "w", rng, (int64_t[]){1}, 1, MSTAR_GRAPH_MISS_NONE);
    bench_check_step(b, "w", rng, (int64_t[]){0, 0, 0}, 3, MSTAR_GRAPH_MISS_NONE);
}

enum { NODES = 2 + 4 * NODE_LAYERS }; /* launches of a forward, each with something to choose */

/* Whatever candidate wins, a replay has eager's bits, on any number of threads. */
static void test_every_winner(void **state)
{
    (void)state;
    static bench b;
    check_rng rng = {2};
    for (int32_t threads = 1; threads <= 4; threads++) {
        int64_t candidates = 1;
        for (int32_t winner = 0; winner < candidates; winner++) {
            script s = {.winner = winner, .spoiled_node = -1};
            open_with(&b, threads, 1 + winner % 2, by_timing, 1, &s);
            CHECK_OK(mstar_graph_runner_capture(b.runner));
            candidates = s.most_candidates;
            mstar_graph_runner_info info = bench_query(&b);
            assert_int_equal(info.num_captured, 3);
            assert_int_equal(info.dropped_choices, 0);
            assert_int_equal(info.specialised, 3 * NODES);
            assert_true(winner == 0 ? info.tuned == 0 : info.tuned > 0);
            mstar_runner_bucket_info bucket = bench_query_bucket(&b, 0);
            assert_string_equal(bucket.compile_mode, by_timing);
            assert_int_equal(bucket.specialised, NODES);
            check_steps(&b, &rng);
            bench_close(&b);
        }
        assert_true(threads == 1 || candidates >= 3);
    }
}

/* By rule nothing is timed, and compile 0 specialises nothing; the environment has the last word.
 */
static void test_modes(void **state)
{
    (void)state;
    static const struct {
        const char *mode, *environment, *want;
        int compile;
        int64_t specialised;
        bool timed;
    } rows[] = {
        {NULL, NULL, "default", 1, NODES, false},
        {"default", NULL, "default", 1, NODES, false},
        {NULL, "max-autotune-no-cudagraphs", "max-autotune-no-cudagraphs", 1, NODES, true},
        {"max-autotune-no-cudagraphs", "default", "default", 1, NODES, false},
        {"max-autotune-no-cudagraphs", NULL, "none", 0, 0, false},
    };
    static bench b;
    check_rng rng = {3};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        script s = {.winner = 1, .spoiled_node = -1};
        if (rows[i].environment != NULL)
            setenv("MSTAR_GRAPH_COMPILE_MODE", rows[i].environment, 1);
        open_with(&b, 2, 1, rows[i].mode, rows[i].compile, &s);
        unsetenv("MSTAR_GRAPH_COMPILE_MODE");
        CHECK_OK(mstar_graph_runner_capture(b.runner));
        mstar_runner_bucket_info bucket = bench_query_bucket(&b, 1);
        assert_string_equal(bucket.compile_mode, rows[i].want);
        assert_int_equal(bucket.specialised, rows[i].specialised);
        assert_true((s.calls > 0) == rows[i].timed);
        assert_true((bucket.tuned > 0) == rows[i].timed);
        check_steps(&b, &rng);
        bench_close(&b);
    }
}

/* Slots and runners of one config are tuned once, and have the same choices. */
static void test_taken_over(void **state)
{
    (void)state;
    static bench b;
    check_rng rng = {4};
    script s = {.winner = 1, .spoiled_node = -1};
    open_with(&b, 2, 2, by_timing, 1, &s);
    CHECK_OK(mstar_graph_runner_capture(b.runner));
    int64_t calls = s.calls;
    mstar_graph_runner_info both = bench_query(&b);
    mstar_node_hooks hooks = node_hooks(&b.node);
    mstar_graph_runner_desc desc = bench_desc(&b, &hooks);
    desc.num_slots = 2;
    mstar_graph_runner *first = b.runner;
    CHECK_OK(mstar_graph_runner_create(b.device, &desc, &b.runner));
    b.runner->tuning = first->tuning;
    mst_graph_runner_take_over(b.runner, first);
    CHECK_OK(mstar_graph_runner_prepare(b.runner));
    CHECK_OK(mstar_graph_runner_capture(b.runner));
    mstar_graph_runner_info other = bench_query(&b);
    assert_int_equal(s.calls, calls); /* nothing is timed again */
    assert_int_equal(other.specialised, both.specialised);
    assert_int_equal(other.tuned, both.tuned);
    assert_true(both.tuned > 0);
    check_steps(&b, &rng);
    /* of a stream of other threads: by rule */
    mstar_graph_runner_destroy(b.runner);
    desc.num_threads = 1;
    CHECK_OK(mstar_graph_runner_create(b.device, &desc, &b.runner));
    mst_graph_runner_take_over(b.runner, first);
    CHECK_OK(mstar_graph_runner_prepare(b.runner));
    CHECK_OK(mstar_graph_runner_capture(b.runner));
    assert_int_equal(bench_query(&b).tuned, 0);
    assert_int_equal(bench_query(&b).specialised, both.specialised);
    check_steps(&b, &rng);
    mstar_graph_runner_destroy(first);
    /* slot 1 alone would have been timed once more */
    bench_close(&b);
    script once = {.winner = 1, .spoiled_node = -1};
    open_with(&b, 2, 1, by_timing, 1, &once);
    CHECK_OK(mstar_graph_runner_capture(b.runner));
    assert_int_equal(once.calls, calls);
    bench_close(&b);
}

/* ---- what goes wrong ------------------------------------------------------------------------- */

/* A candidate that leaves another byte is out, however fast it is, and is counted. */
static void test_other_bits(void **state)
{
    (void)state;
    static bench b;
    check_rng rng = {5};
    /* node 0 is the embedding, which writes the pool's first row; so does node 4, the first norm */
    for (int64_t place = 0; place <= 4; place += 4) {
        script s = {.winner = 1, .spoiled_node = place, .spoiled = 1};
        open_with(&b, 2, 1, by_timing, 1, &s);
        CHECK_OK(mstar_graph_runner_capture(b.runner));
        mstar_graph_runner_info info = bench_query(&b);
        assert_int_equal(info.num_captured, 3);
        assert_int_equal(info.dropped_choices, 3); /* one in each bucket */
        assert_int_equal(bench_query_bucket(&b, 0).dropped_choices, 1);
        assert_true(info.tuned > 0); /* the other launches' winners are not in doubt */
        check_steps(&b, &rng);
        bench_close(&b);
    }
}

static uint64_t refused;

static int refuse(void *context, uint64_t number, size_t bytes)
{
    (void)bytes;
    if (number != *(const uint64_t *)context)
        return 0;
    refused++;
    return 1;
}

/* Every allocation of a capture by timing fails once: at most one bucket is dropped, nothing is
 * lost, and the others are right. */
static void test_no_memory(void **state)
{
    (void)state;
    static bench b;
    check_rng rng = {6};
    int dropped = 0, in_choosing = 0;
    for (uint64_t at = 1;; at++) {
        script s = {.winner = 1, .spoiled_node = -1};
        open_with(&b, 2, 1, by_timing, 1, &s);
        refused = 0;
        mstar_set_alloc_fault(refuse, &at);
        CHECK_OK(mstar_graph_runner_capture(b.runner));
        mstar_set_alloc_fault(NULL, NULL);
        mstar_graph_runner_info info = bench_query(&b);
        assert_int_equal(info.num_captured, refused > 0 ? 2 : 3);
        dropped += info.num_failed > 0;
        for (int64_t i = 0; i < 3; i++) {
            mstar_runner_bucket_info bucket = bench_query_bucket(&b, i);
            if (bucket.state == MSTAR_BUCKET_CAPTURED)
                continue;
            assert_non_null(strstr(bucket.reason, "could not be allocated"));
            assert_int_equal(bucket.specialised, 0);
            in_choosing += strstr(bucket.reason, "compile_mode") != NULL;
        }
        bench_check_step(&b, "w", &rng, (int64_t[]){3}, 1, MSTAR_GRAPH_MISS_NONE);
        bench_close(&b);
        if (refused == 0)
            break;
    }
    assert_true(dropped > 20);
    assert_true(in_choosing >= 3 * 3); /* classes, and what is compared, in each bucket */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choices_of_product),
        cmocka_unit_test(test_choices_of_tasks),
        cmocka_unit_test(test_holds),
        cmocka_unit_test(test_fastest),
        cmocka_unit_test(test_every_winner),
        cmocka_unit_test(test_modes),
        cmocka_unit_test(test_taken_over),
        cmocka_unit_test(test_other_bits),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
