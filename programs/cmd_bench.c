/* cmd_bench.c - mstar bench: which bench. */
#include "bench.h"

#include <string.h>

int cli_run_bench(const cli_options *options)
{
    static const struct {
        const char *name;
        int (*run)(const cli_options *options);
    } benches[] = {{"attn", cli_bench_attn},     {"plan", cli_bench_plan},
                   {"linear", cli_bench_linear}, {"embed", cli_bench_embed},
                   {"replay", cli_bench_replay}, {"tower", cli_bench_tower},
                   {"graphs", cli_bench_graphs}};
    const char *name = options->operand;
    for (size_t i = 0; name != NULL && i < sizeof benches / sizeof benches[0]; i++) {
        if (strcmp(name, benches[i].name) == 0)
            return benches[i].run(options);
    }
    return cli_fail(
        CLI_USAGE,
        "bench needs what to measure: attn, plan, linear, embed, replay, tower or graphs%s%s%s",
        name != NULL ? "; it is '" : "", name != NULL ? name : "", name != NULL ? "'" : "");
}
