/* test_resource_order.c - the order in which the resources of a set plan. */
#include <stdio.h>
#include <string.h>

#include "step/step.h"
#include "support_check.h"

/* Against the definition: the first listed whose dependencies are placed comes next. */
static void orders_of_random_sets(void **state)
{
    (void)state;
    enum { MAX = 20 };
    static char names[MAX][8];
    static const char *depends[MAX][MAX];
    mstar_resource_hooks hooks = {.struct_size = sizeof hooks};
    for (int i = 0; i < MAX; i++)
        (void)snprintf(names[i], sizeof names[i], "r%d", i);
    for (uint64_t seed = 0; seed < 500; seed++) {
        check_rng rng = {seed};
        int count = (int)check_integer(&rng, 1, MAX), rank[MAX];
        mstar_resource list[MAX];
        int64_t order[MAX], place[MAX];
        for (int i = 0; i < count; i++)
            rank[i] = (int)check_integer(&rng, 0, 5);
        memset(list, 0, sizeof list);
        for (int i = 0; i < count; i++) {
            list[i] = (mstar_resource){.key = names[i], .hooks = &hooks, .depends_on = depends[i]};
            for (int j = 0; j < count; j++) {
                if (rank[j] < rank[i] && check_integer(&rng, 0, 3) == 0)
                    depends[i][list[i].num_depends++] = names[j];
            }
        }
        CHECK_OK(mst_resource_order(list, count, order));
        for (int i = 0; i < count; i++)
            place[order[i]] = i;
        for (int i = 0; i < count; i++) {
            for (int32_t d = 0; d < list[i].num_depends; d++) {
                int on = 0;
                while (strcmp(names[on], list[i].depends_on[d]) != 0)
                    on++;
                if (place[on] >= place[i])
                    fail_msg("seed %llu: r%d before r%d", (unsigned long long)seed, i, on);
            }
            if (list[i].num_depends == 0) { /* listed earlier and free: stays earlier */
                for (int j = i + 1; j < count; j++)
                    assert_true(list[j].num_depends > 0 || place[i] < place[j]);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(orders_of_random_sets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
