/*
 * cpu_choice.c - the ways in which a launch may be cut, and which of them is taken. All pure.
 *
 * A choice is made for the rows of a bucket, and a replay computes the real rows of a step only. It
 * is kept down to half of the bucket's rows; with fewer, what suits the bucket may leave threads
 * idle, and the rule decides as in an eager call.
 */
#include "cpu/cpu_launch.h"

/* A choice replaces the rule's where it takes less by more than this part: less is noise. */
#define CLEARLY_FASTER 16

bool mst_choice_holds(const mst_choice *choice, int64_t rows, int32_t threads)
{
    return choice->rows > 0 && choice->threads == threads && rows > choice->rows / 2 &&
           rows <= choice->rows;
}

/* Rows of a block in effect: a part has no more. */
static int64_t block_of(const mst_choice *choice)
{
    int64_t part = mst_ceil_div(choice->rows, mst_max_i64(choice->grid.row_parts, 1));
    return mst_min_i64(choice->row_block, part);
}

bool mst_choice_equal(const mst_choice *a, const mst_choice *b)
{
    return a->rows == b->rows && a->threads == b->threads && a->tasks == b->tasks &&
           a->grid.row_parts == b->grid.row_parts && a->grid.panel_parts == b->grid.panel_parts &&
           block_of(a) == block_of(b);
}

static void add(const mst_choice *choice, mst_choice *list, int32_t *count)
{
    for (int32_t i = 0; i < *count; i++) {
        if (mst_choice_equal(&list[i], choice))
            return;
    }
    if (*count < MST_MAX_CHOICES)
        list[(*count)++] = *choice;
}

int32_t mst_choices_of_tasks(const mst_choice *rule, int64_t most, mst_choice *list)
{
    const int32_t tasks[] = {rule->threads, rule->threads / 2, 1};
    int32_t count = 0;
    add(rule, list, &count);
    for (size_t i = 0; i < sizeof tasks / sizeof tasks[0]; i++) {
        mst_choice other = *rule;
        other.tasks = tasks[i];
        if (other.tasks >= 1 && other.tasks <= most)
            add(&other, list, &count);
    }
    return count;
}

/* A grid is worth trying where every task has a tile of rows and a panel. */
static void add_grid(const mst_choice *rule, int64_t row_parts, int64_t panel_parts, int64_t panels,
                     int64_t tile, mst_choice *list, int32_t *count)
{
    mst_choice other = *rule;
    other.grid = (mst_linear_grid){row_parts, panel_parts};
    if (row_parts <= mst_ceil_div(rule->rows, tile) && panel_parts <= panels)
        add(&other, list, count);
}

/* The largest divisor of n that is no more than its root. */
static int64_t middle_divisor(int64_t n)
{
    int64_t found = 1;
    for (int64_t i = 2; i * i <= n; i++)
        found = n % i == 0 ? i : found;
    return found;
}

int32_t mst_choices_of_product(const mst_choice *rule, int64_t panels, int64_t tile,
                               mst_choice *list)
{
    int64_t threads = rule->threads;
    int32_t count = 0;
    add(rule, list, &count);
    for (int64_t tasks = threads; threads > 1 && tasks <= 2 * threads; tasks *= 2) {
        int64_t divisor = middle_divisor(tasks);
        add_grid(rule, tasks, 1, panels, tile, list, &count);
        add_grid(rule, 1, tasks, panels, tile, list, &count);
        add_grid(rule, divisor, tasks / divisor, panels, tile, list, &count);
        add_grid(rule, tasks / divisor, divisor, panels, tile, list, &count);
    }
    add_grid(rule, 1, 1, panels, tile, list, &count);
    static const int64_t quarters[] = {1, 2, 8, 16};
    for (size_t i = 0; i < sizeof quarters / sizeof quarters[0]; i++) {
        mst_choice other = *rule;
        int64_t tiles = rule->row_block / tile * quarters[i] / 4;
        other.row_block = mst_max_i64(tiles, 2) * tile;
        add(&other, list, &count);
    }
    return count;
}

int32_t mst_choice_fastest(const int64_t *ns, const bool *kept, int32_t count)
{
    int32_t best = 0;
    for (int32_t i = 1; i < count; i++) {
        if (kept[i] && ns[i] < ns[best])
            best = i;
    }
    return ns[0] - ns[best] > ns[0] / CLEARLY_FASTER ? best : 0;
}
