/*
 * options.c - reads the command line and the environment by the table of option_table.c.
 *
 * Our own parser and not getopt_long: it must know the range of every value, name the nearest
 * option, and take "--" and "-" the same way on every C library.
 */
#include "options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- nearest names --------------------------------------------------------------------------- */

enum { NAME_LIMIT = 31 };

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Edits (insert, delete, change, swap of neighbours) that turn a into b; names of up to NAME_LIMIT.
 */
static size_t edit_distance(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    if (n > NAME_LIMIT || m > NAME_LIMIT)
        return SIZE_MAX;
    size_t d[NAME_LIMIT + 1][NAME_LIMIT + 1];
    for (size_t i = 0; i <= n; i++)
        d[i][0] = i;
    for (size_t j = 0; j <= m; j++)
        d[0][j] = j;
    for (size_t i = 1; i <= n; i++) {
        for (size_t j = 1; j <= m; j++) {
            size_t change = d[i - 1][j - 1] + (a[i - 1] != b[j - 1] ? 1 : 0);
            d[i][j] = least(change, least(d[i - 1][j], d[i][j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                d[i][j] = least(d[i][j], d[i - 2][j - 2] + 1);
        }
    }
    return d[n][m];
}

/* A name counts as near when less than half of the longer one has to be edited, or when one is the
 * start of the other. */
static bool is_nearer(const char *given, const char *name, size_t *best)
{
    size_t distance = edit_distance(given, name);
    size_t n = strlen(given), m = strlen(name);
    size_t shorter = least(n, m), longer = n > m ? n : m;
    if (shorter >= 2 && strncmp(given, name, shorter) == 0)
        distance = least(distance, 1);
    if (distance * 2 >= longer + 1 || distance >= *best)
        return false;
    *best = distance;
    return true;
}

const cli_command_row *cli_find_command(const char *name)
{
    for (size_t i = 0; i < cli_num_command_rows; i++) {
        if (strcmp(cli_command_rows[i].name, name) == 0)
            return &cli_command_rows[i];
    }
    return NULL;
}

const char *cli_nearest_command(const char *name)
{
    const char *nearest = NULL;
    size_t best = SIZE_MAX;
    for (size_t i = 0; i < cli_num_command_rows; i++) {
        if (is_nearer(name, cli_command_rows[i].name, &best))
            nearest = cli_command_rows[i].name;
    }
    return nearest;
}

static const char *command_text(cli_command command)
{
    for (size_t i = 0; i < cli_num_command_rows; i++) {
        if (cli_command_rows[i].command == command)
            return cli_command_rows[i].name;
    }
    return "";
}

static int fail_unknown(cli_command command, const char *argument, const char *name)
{
    const char *nearest = NULL;
    size_t best = SIZE_MAX;
    for (size_t i = 0; i < cli_num_option_rows; i++) {
        const cli_option_row *row = &cli_option_rows[i];
        if ((row->commands & (unsigned)command) != 0 && is_nearer(name, row->name, &best))
            nearest = row->name;
    }
    if (nearest != NULL)
        return cli_fail(CLI_USAGE,
                        "unknown option '%s'; did you mean '--%s'? Try 'mstar %s --help'", argument,
                        nearest, command_text(command));
    return cli_fail(CLI_USAGE, "unknown option '%s'. Try 'mstar %s --help'", argument,
                    command_text(command));
}

/* ---- values ---------------------------------------------------------------------------------- */

static int64_t *number_field(const cli_option_row *row, cli_options *options)
{
    return (int64_t *)(void *)((char *)options + row->offset);
}

static const char **text_field(const cli_option_row *row, cli_options *options)
{
    return (const char **)(void *)((char *)options + row->offset);
}

static int read_number(const cli_option_row *row, const char *name, const char *text, int code,
                       int64_t *value)
{
    char *end = NULL;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    bool digits = (text[0] >= '0' && text[0] <= '9') || text[0] == '-';
    if (!digits || end == text || *end != '\0')
        return cli_fail(code, "%s is '%s'; it must be a whole number from %lld to %lld", name, text,
                        (long long)row->low, (long long)row->high);
    if (errno == ERANGE || number < row->low || number > row->high)
        return cli_fail(code, "%s is %s; it must be from %lld to %lld", name, text,
                        (long long)row->low, (long long)row->high);
    *value = number;
    return CLI_OK;
}

static int read_choice(const cli_option_row *row, const char *name, const char *text, int code,
                       int64_t *value)
{
    size_t length = strlen(text);
    int64_t index = 0;
    for (const char *at = row->choices; at != NULL; index++) {
        const char *bar = strchr(at, '|');
        size_t bytes = bar != NULL ? (size_t)(bar - at) : strlen(at);
        if (bytes == length && memcmp(at, text, length) == 0) {
            *value = index;
            return CLI_OK;
        }
        at = bar != NULL ? bar + 1 : NULL;
    }
    return cli_fail(code, "%s is '%s'; it must be one of %s", name, text, row->choices);
}

/* name is how messages call it: "--threads" or "MSTAR_NUM_THREADS". */
static int store(const cli_option_row *row, const char *name, const char *text, int code,
                 cli_options *options)
{
    switch (row->kind) {
    case CLI_FLAG:
        *number_field(row, options) = 1;
        return CLI_OK;
    case CLI_TEXT:
        *text_field(row, options) = text;
        return CLI_OK;
    case CLI_NUMBER:
        return read_number(row, name, text, code, number_field(row, options));
    case CLI_CHOICE:
        return read_choice(row, name, text, code, number_field(row, options));
    }
    return cli_fail(CLI_INTERNAL, "option %s has no kind", name);
}

/* ---- the command line ------------------------------------------------------------------------ */

typedef struct parser {
    cli_command command;
    int argc;
    char **argv;
    int at;
    cli_options *options;
    bool given[96]; /* by row */
} parser;

static const cli_option_row *find_row(cli_command command, const char *name, size_t bytes,
                                      char letter)
{
    for (size_t i = 0; i < cli_num_option_rows; i++) {
        const cli_option_row *row = &cli_option_rows[i];
        if ((row->commands & (unsigned)command) == 0)
            continue;
        if (letter != '\0' ? row->letter == letter
                           : strlen(row->name) == bytes && memcmp(row->name, name, bytes) == 0)
            return row;
    }
    return NULL;
}

static int take(parser *p, const cli_option_row *row, const char *name, const char *value)
{
    if (value == NULL && row->kind != CLI_FLAG) {
        if (p->at + 1 >= p->argc)
            return cli_fail(CLI_USAGE, "%s needs a value: %s %s. Try 'mstar %s --help'", name, name,
                            row->value, command_text(p->command));
        value = p->argv[++p->at];
    }
    p->given[row - cli_option_rows] = true;
    return store(row, name, value, CLI_USAGE, p->options);
}

static int take_long(parser *p, const char *argument)
{
    const char *equals = strchr(argument, '=');
    size_t bytes = equals != NULL ? (size_t)(equals - argument) : strlen(argument);
    const cli_option_row *row = find_row(p->command, argument + 2, bytes - 2, '\0');
    if (row == NULL) {
        char name[NAME_LIMIT + 1] = "";
        if (bytes - 2 <= NAME_LIMIT)
            memcpy(name, argument + 2, bytes - 2);
        return fail_unknown(p->command, argument, name);
    }
    char shown[NAME_LIMIT + 3];
    (void)snprintf(shown, sizeof shown, "--%s", row->name);
    if (row->kind == CLI_FLAG && equals != NULL)
        return cli_fail(CLI_USAGE, "%s takes no value; '%s' was given", shown, equals + 1);
    if (row->offset == offsetof(cli_options, help)) {
        p->options->help = 2;
        return CLI_OK;
    }
    return take(p, row, shown, equals != NULL ? equals + 1 : NULL);
}

/* -q, -o FILE, -oFILE, -qo FILE */
static int take_letters(parser *p, const char *argument)
{
    for (const char *at = argument + 1; *at != '\0'; at++) {
        const cli_option_row *row = find_row(p->command, NULL, 0, *at);
        if (row == NULL)
            return fail_unknown(p->command, argument, argument + 1);
        char shown[3] = {'-', *at, '\0'};
        bool flag = row->kind == CLI_FLAG;
        const char *value = !flag && at[1] != '\0' ? at + 1 : NULL;
        int code = take(p, row, shown, value);
        if (code != CLI_OK || !flag)
            return code;
    }
    return CLI_OK;
}

static int take_operand(parser *p, const char *argument)
{
    const char *wanted = "";
    for (size_t i = 0; i < cli_num_command_rows; i++) {
        if (cli_command_rows[i].command == p->command)
            wanted = cli_command_rows[i].operand;
    }
    if (wanted[0] == '\0')
        return cli_fail(CLI_USAGE, "'%s' is one argument too many. Try 'mstar %s --help'", argument,
                        command_text(p->command));
    if (p->options->operand != NULL && p->command == CLI_GRAPHS && p->options->file == NULL) {
        p->options->file = argument;
        return CLI_OK;
    }
    if (p->options->operand != NULL)
        return cli_fail(CLI_USAGE,
                        "'%s' is one argument too many after '%s'. Try 'mstar %s --help'", argument,
                        p->options->file != NULL ? p->options->file : p->options->operand,
                        command_text(p->command));
    p->options->operand = argument;
    return CLI_OK;
}

static int read_environment(parser *p)
{
    for (size_t i = 0; i < cli_num_option_rows; i++) {
        const cli_option_row *row = &cli_option_rows[i];
        if (row->env == NULL || p->given[i] || (row->commands & (unsigned)p->command) == 0)
            continue;
        const char *text = getenv(row->env);
        if (text == NULL || text[0] == '\0')
            continue;
        int code = store(row, row->env, text, CLI_BAD_CONFIG, p->options);
        if (code != CLI_OK)
            return code;
    }
    return CLI_OK;
}

static int check_together(const cli_options *options)
{
    const char *name = command_text(options->command);
    unsigned needs_model = CLI_EMBED | CLI_SIMILAR | CLI_TOKENIZE;
    if (((unsigned)options->command & needs_model) != 0 && options->model == NULL)
        return cli_fail(CLI_USAGE,
                        "no model: give --model DIR or set MSTAR_MODEL. Try 'mstar %s --help'",
                        name);
    if (options->command == CLI_SIMILAR && (options->query != NULL) == (options->pairs != 0))
        return cli_fail(CLI_USAGE, "%s --query TEXT and --pairs. Try 'mstar %s --help'",
                        options->pairs ? "give only one of" : "give one of", name);
    return CLI_OK;
}

int cli_options_parse(cli_command command, int argc, char **argv, cli_options *options)
{
    memset(options, 0, sizeof *options);
    options->command = command;
    for (size_t i = 0; i < cli_num_option_rows; i++) {
        const cli_option_row *row = &cli_option_rows[i];
        if ((row->commands & (unsigned)command) == 0)
            continue;
        if (row->initial != NULL) {
            if (store(row, row->name, row->initial, CLI_INTERNAL, options) != CLI_OK)
                return CLI_INTERNAL;
        } else if (row->kind == CLI_NUMBER || row->kind == CLI_CHOICE) {
            *number_field(row, options) = -1;
        }
    }
    parser p = {.command = command, .argc = argc, .argv = argv, .options = options};
    bool ended = false;
    for (p.at = 0; p.at < argc; p.at++) {
        const char *argument = argv[p.at];
        int code;
        if (!ended && strcmp(argument, "--") == 0) {
            ended = true;
            continue;
        }
        if (ended || argument[0] != '-' || argument[1] == '\0')
            code = take_operand(&p, argument);
        else if (argument[1] == '-')
            code = take_long(&p, argument);
        else
            code = take_letters(&p, argument);
        if (code != CLI_OK || options->help != 0 || options->version != 0)
            return code;
    }
    int code = read_environment(&p);
    return code != CLI_OK ? code : check_together(options);
}
