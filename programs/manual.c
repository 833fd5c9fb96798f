/*
 * manual.c - the manual page mstar(1), in roff, from the table of option_table.c.
 *
 * Without dates and values of the environment: the same program prints the same page.
 */
#include <stdio.h>
#include <string.h>

#include "options.h"
#include "output.h"

/* A line that starts with '.' or '\'' would be a request; '-' must stay a minus sign. */
static void put_roff(cli_output *output, const char *text)
{
    bool line_start = true;
    for (; *text != '\0'; text++) {
        if (line_start && (*text == '.' || *text == '\''))
            cli_put_text(output, "\\&");
        line_start = *text == '\n';
        if (*text == '\\')
            cli_put_text(output, "\\e");
        else if (*text == '-')
            cli_put_text(output, "\\-");
        else if (*text == '"')
            cli_put_text(output, "\\(dq"); /* a macro would take it away */
        else if (*text == '\n')
            cli_put_text(output, "\n.PP\n");
        else
            cli_put(output, text, 1);
    }
    cli_put(output, "\n", 1);
}

static void put_option(cli_output *output, const cli_option_row *row)
{
    char text[512];
    cli_put_text(output, ".TP\n.B ");
    if (row->letter != '\0')
        cli_put_format(output, "\\-%c\\fR, \\fB", row->letter);
    (void)snprintf(text, sizeof text, "--%s%s%s", row->name, row->value != NULL ? " \\fI" : "",
                   row->value != NULL ? row->value : "");
    for (const char *at = text; *at != '\0'; at++)
        cli_put_text(output, *at == '-' ? "\\-" : (char[2]){*at, '\0'});
    cli_put_text(output, "\\fR\n");
    put_roff(output, row->help);
    const char *otherwise = row->initial != NULL ? row->initial : row->otherwise;
    if (otherwise != NULL) {
        (void)snprintf(text, sizeof text, "[default: %s]", otherwise);
        put_roff(output, text);
    }
    if (row->kind == CLI_CHOICE) {
        (void)snprintf(text, sizeof text, "[one of: %s]", row->choices);
        put_roff(output, text);
    }
    if (row->kind == CLI_NUMBER) {
        (void)snprintf(text, sizeof text, "[range: %lld..%lld]", (long long)row->low,
                       (long long)row->high);
        put_roff(output, text);
    }
    if (row->env != NULL) {
        (void)snprintf(text, sizeof text, "[env: %s]", row->env);
        put_roff(output, text);
    }
}

static void put_command(cli_output *output, const cli_command_row *command)
{
    cli_put_format(output, ".SS \"mstar %s [OPTIONS]%s%s\"\n", command->name,
                   command->operand[0] != '\0' ? " " : "", command->operand);
    put_roff(output, command->description);
    for (size_t i = 0; i < cli_num_option_rows; i++) {
        if ((cli_option_rows[i].commands & (unsigned)command->command) != 0)
            put_option(output, &cli_option_rows[i]);
    }
}

static void put_environment(cli_output *output)
{
    static const char *const others[][2] = {
        {"MSTAR_MAX_ISA",
         "highest ISA level to use: scalar, avx2, avx512, avx512bf16, amx, or scalar, neon "
         "on 64-bit ARM"},
        {"OMP_NUM_THREADS", "threads, where neither --threads nor MSTAR_NUM_THREADS says so"},
        {"NO_COLOR", "no colour in the progress bar"},
        {"CLICOLOR_FORCE", "colour without a terminal too"},
        {"TMPDIR", "where rows wait when --format npy goes to a pipe; /tmp without it"},
    };
    cli_put_text(output, ".SH ENVIRONMENT\nA flag wins over the environment, the environment over "
                         "the model's files, those over\ndefaults. Empty variables count as not "
                         "set.\n");
    for (size_t i = 0; i < cli_num_option_rows; i++) {
        const cli_option_row *row = &cli_option_rows[i];
        if (row->env == NULL)
            continue;
        cli_put_format(output, ".TP\n.B %s\nas \\-\\-", row->env);
        put_roff(output, row->name);
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        cli_put_format(output, ".TP\n.B %s\n", others[i][0]);
        put_roff(output, others[i][1]);
    }
}

int cli_print_man(const char *path)
{
    cli_output output;
    int code = cli_output_open(&output, path);
    if (code == CLI_OK) {
        cli_put_format(&output, ".TH MSTAR 1 \"\" \"mstar %s\" \"User Commands\"\n",
                       mstar_version());
        cli_put_text(&output, ".SH NAME\nmstar \\- texts to vectors with exact, packed encoders on "
                              "CPUs\n.SH SYNOPSIS\n.B mstar\n.I COMMAND\n[OPTIONS] [ARGUMENTS]\n"
                              ".SH DESCRIPTION\nData goes to standard output, everything else to "
                              "standard error.\n.SH COMMANDS\n");
        for (size_t i = 0; i < cli_num_command_rows; i++)
            put_command(&output, &cli_command_rows[i]);
        put_environment(&output);
        cli_put_text(&output, ".SH EXIT STATUS\n");
        for (size_t i = 0; i < cli_num_exit_rows; i++) {
            cli_put_format(&output, ".TP\n.B %d\n", cli_exit_rows[i].code);
            put_roff(&output, cli_exit_rows[i].text);
        }
        cli_put_text(&output, ".SH EXAMPLES\n");
        for (size_t i = 0; i < cli_num_command_rows; i++) {
            for (size_t j = 0; j < 2; j++) {
                cli_put_text(&output, ".TP\n");
                put_roff(&output, cli_command_rows[i].examples[j][0]);
                cli_put_text(&output, ".nf\n.B ");
                put_roff(&output, cli_command_rows[i].examples[j][1]);
                cli_put_text(&output, ".fi\n");
            }
        }
        code = cli_output_commit(&output);
    }
    cli_output_close(&output);
    return code;
}
