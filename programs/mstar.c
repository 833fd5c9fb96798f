/*
 * mstar.c - main: finds the command, reads its options, runs it.
 */
#include <stdio.h>
#include <string.h>

#include "options.h"

/* Warnings of the library: a pooling that had to be assumed, an ISA that is not there. */
static void print_log(void *context, int level, const char *message)
{
    (void)context;
    if (level >= 2)
        cli_note("%s: %s", level == 2 ? "warning" : "error", message);
}

static int run(const cli_options *options)
{
    switch (options->command) {
    case CLI_EMBED:
        return cli_run_embed(options);
    case CLI_SIMILAR:
        return cli_run_similar(options);
    case CLI_TOKENIZE:
        return cli_run_tokenize(options);
    case CLI_INFO:
        return cli_run_info(options);
    case CLI_BENCH:
        return cli_run_bench(options);
    case CLI_GRAPHS:
        return cli_run_graphs(options);
    case CLI_VERSION:
        return cli_run_version(options);
    case CLI_HELP:
        return cli_run_help(options);
    }
    return cli_fail(CLI_INTERNAL, "command %d is not in the table", (int)options->command);
}

static int fail_command(const char *name)
{
    const char *nearest = cli_nearest_command(name);
    const char *kind = name[0] == '-' ? "option" : "command";
    if (nearest != NULL)
        return cli_fail(CLI_USAGE, "unknown %s '%s'; did you mean '%s'? Try 'mstar --help'", kind,
                        name, nearest);
    return cli_fail(CLI_USAGE, "unknown %s '%s'. Try 'mstar --help'", kind, name);
}

int main(int argc, char **argv)
{
    cli_json_install();
    cli_signals_install();
    if (argc < 2)
        return cli_fail(CLI_USAGE, "no command. Try 'mstar --help'");
    const char *name = argv[1];
    cli_options options = {0};
    if (strcmp(name, "-h") == 0)
        return cli_print_short_help(NULL, NULL);
    if (strcmp(name, "--help") == 0)
        return cli_print_full_help(NULL, NULL);
    if (strcmp(name, "-V") == 0 || strcmp(name, "--version") == 0) {
        options.command = CLI_VERSION;
        return run(&options);
    }
    const cli_command_row *command = cli_find_command(name);
    if (command == NULL)
        return fail_command(name);
    cli_set_command_name(command->name);
    int code = cli_options_parse(command->command, argc - 2, argv + 2, &options);
    if (code != CLI_OK)
        return code;
    if (options.help != 0)
        return options.help == 1 ? cli_print_short_help(command, NULL)
                                 : cli_print_full_help(command, NULL);
    if (options.version != 0) {
        options.command = CLI_VERSION;
        options.json = 0;
    }
    cli_set_quiet(options.quiet != 0);
    mstar_set_log_sink(print_log, NULL);
    return run(&options);
}
