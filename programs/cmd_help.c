/*
 * cmd_help.c - mstar help, -h and --help. What is printed comes from the table of option_table.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"
#include "output.h"

enum { WIDTH = 80 };

/* Words of text, wrapped; column is where the line stands already. */
static void put_wrapped(cli_output *output, const char *text, int indent, int column)
{
    while (*text != '\0') {
        size_t bytes = strcspn(text, " \n");
        bool breaks = column + (column > indent ? 1 : 0) + (int)bytes > WIDTH && column > indent;
        if (breaks) {
            cli_put_format(output, "\n%*s", indent, "");
            column = indent;
        }
        if (column > indent) {
            cli_put(output, " ", 1);
            column++;
        }
        cli_put(output, text, bytes);
        column += (int)bytes;
        text += bytes;
        if (*text == '\n') {
            cli_put_format(output, "\n\n%*s", indent, "");
            column = indent;
        }
        if (*text != '\0')
            text++;
    }
    cli_put(output, "\n", 1);
}

static int put_option_name(cli_output *output, const cli_option_row *row)
{
    char text[96];
    char letter[8] = "    ";
    if (row->letter != '\0')
        (void)snprintf(letter, sizeof letter, "-%c, ", row->letter);
    int written = snprintf(text, sizeof text, "  %s--%s%s%s", letter, row->name,
                           row->value != NULL ? " " : "", row->value != NULL ? row->value : "");
    cli_put_text(output, text);
    return written;
}

static void put_usage(cli_output *output, const cli_command_row *command)
{
    cli_put_format(output, "Usage: mstar %s [OPTIONS]%s%s\n", command->name,
                   command->operand[0] != '\0' ? " " : "", command->operand);
}

/* "[default: end] [one of: end, start, error] [env: MSTAR_TRUNCATE=]" */
static void make_notes(const cli_option_row *row, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    const char *otherwise = row->initial != NULL ? row->initial : row->otherwise;
    if (otherwise != NULL)
        used += (size_t)snprintf(text + used, bytes - used, " [default: %s]", otherwise);
    if (row->kind == CLI_CHOICE)
        used += (size_t)snprintf(text + used, bytes - used, " [one of: %s]", row->choices);
    if (row->kind == CLI_NUMBER)
        used += (size_t)snprintf(text + used, bytes - used, " [range: %lld..%lld]",
                                 (long long)row->low, (long long)row->high);
    if (row->env != NULL) {
        const char *value = getenv(row->env);
        (void)snprintf(text + used, bytes - used, " [env: %s=%.200s]", row->env,
                       value != NULL ? value : "");
    }
}

static int finish(cli_output *output, int code)
{
    if (code == CLI_OK)
        code = cli_output_commit(output);
    cli_output_close(output);
    return code;
}

static void put_commands(cli_output *output)
{
    cli_put_text(output, "Usage: mstar COMMAND [OPTIONS] [ARGUMENTS]\n\nCommands:\n");
    for (size_t i = 0; i < cli_num_command_rows; i++)
        cli_put_format(output, "  %-10s %s\n", cli_command_rows[i].name,
                       cli_command_rows[i].summary);
}

int cli_print_short_help(const cli_command_row *command, const char *path)
{
    cli_output output;
    int code = cli_output_open(&output, path);
    if (code != CLI_OK)
        return finish(&output, code);
    if (command == NULL) {
        put_commands(&output);
        cli_put_text(&output, "\n'mstar COMMAND --help' says more.\n");
        return finish(&output, code);
    }
    put_usage(&output, command);
    cli_put_format(&output, "\nmstar %s: %s\n\nOptions:\n", command->name, command->summary);
    for (size_t i = 0; i < cli_num_option_rows; i++) {
        const cli_option_row *row = &cli_option_rows[i];
        if ((row->commands & (unsigned)command->command) == 0)
            continue;
        enum { COLUMN = 32 };
        int column = put_option_name(&output, row);
        cli_put_format(&output, "%*s", column < COLUMN ? COLUMN - column : 1, "");
        size_t bytes = strcspn(row->help, ";:");
        if (bytes > WIDTH - COLUMN)
            bytes = strcspn(row->help, ";:,");
        cli_put(&output, row->help, bytes);
        cli_put(&output, "\n", 1);
    }
    cli_put_format(&output, "\n'mstar %s --help' says more.\n", command->name);
    return finish(&output, code);
}

static void put_overview(cli_output *output)
{
    cli_put_text(output, "mstar - texts to vectors with exact, packed encoders on CPUs\n\n");
    put_commands(output);
    cli_put_text(output, "\nOptions:\n  -h, --help     -h prints a summary, --help everything\n"
                         "  -V, --version  print version, commit, build and best ISA\n"
                         "\nExit codes:\n");
    for (size_t i = 0; i < cli_num_exit_rows; i++)
        cli_put_format(output, "  %3d  %s\n", cli_exit_rows[i].code, cli_exit_rows[i].text);
    cli_put_text(output, "\nA flag wins over the environment, that over the model's files, those "
                         "over defaults.\n'mstar COMMAND --help' says more on a command.\n");
}

int cli_print_full_help(const cli_command_row *command, const char *path)
{
    cli_output output;
    int code = cli_output_open(&output, path);
    if (code != CLI_OK)
        return finish(&output, code);
    if (command == NULL) {
        put_overview(&output);
        return finish(&output, code);
    }
    put_usage(&output, command);
    cli_put(&output, "\n", 1);
    put_wrapped(&output, command->description, 0, 0);
    cli_put_text(&output, "\nOptions:\n");
    for (size_t i = 0; i < cli_num_option_rows; i++) {
        const cli_option_row *row = &cli_option_rows[i];
        if ((row->commands & (unsigned)command->command) == 0)
            continue;
        char notes[512], text[1024];
        (void)put_option_name(&output, row);
        make_notes(row, notes, sizeof notes);
        (void)snprintf(text, sizeof text, "%s%s", row->help, notes);
        cli_put_text(&output, "\n          ");
        put_wrapped(&output, text, 10, 10);
    }
    cli_put_text(&output, "\nExamples:\n");
    for (size_t i = 0; i < 2; i++)
        cli_put_format(&output, "  # %s\n  %s\n", command->examples[i][0], command->examples[i][1]);
    return finish(&output, code);
}

int cli_run_help(const cli_options *options)
{
    if (options->man)
        return cli_print_man(options->output);
    if (options->operand == NULL)
        return cli_print_full_help(NULL, options->output);
    const cli_command_row *command = cli_find_command(options->operand);
    if (command != NULL)
        return cli_print_full_help(command, options->output);
    const char *nearest = cli_nearest_command(options->operand);
    if (nearest != NULL)
        return cli_fail(CLI_USAGE, "unknown command '%s'; did you mean '%s'? Try 'mstar --help'",
                        options->operand, nearest);
    return cli_fail(CLI_USAGE, "unknown command '%s'. Try 'mstar --help'", options->operand);
}
