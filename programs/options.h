/*
 * options.h - the one table of commands and options.
 *
 * The parser, -h, --help, the man page and the environment all read it, so none can disagree.
 */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include "program.h"

typedef enum cli_command {
    CLI_EMBED = 1,
    CLI_SIMILAR = 2,
    CLI_TOKENIZE = 4,
    CLI_INFO = 8,
    CLI_VERSION = 16,
    CLI_HELP = 32,
    CLI_BENCH = 64,
    CLI_GRAPHS = 128
} cli_command;

enum { CLI_INPUT_LINES, CLI_INPUT_JSONL };
enum { CLI_FORMAT_JSONL, CLI_FORMAT_NPY, CLI_FORMAT_F32, CLI_FORMAT_CSV };
enum { CLI_TOKENS_JSONL, CLI_TOKENS_IDS, CLI_TOKENS_TOKENS };
enum { CLI_PROGRESS_AUTO, CLI_PROGRESS_BAR, CLI_PROGRESS_JSON, CLI_PROGRESS_NONE };

typedef struct cli_options {
    cli_command command;
    const char *model;             /* NULL: not given */
    const char *operand;           /* FILE, "-", a command for help; NULL: not given */
    const char *file;              /* graphs: the second operand; NULL: not given */
    const char *output;            /* NULL: standard output */
    const char *workloads, *input; /* bench */
    const char *backend;           /* bench attn, plan; NULL: auto */
    const char *device;            /* NULL: the CPU */
    const char *lengths, *svg;     /* graphs */
    const char *graphs;            /* "on", "off" or a FILE; NULL: off */
    int64_t stats;                 /* flag */
    int64_t max_buckets, budget, batch_size, step_tokens;
    int64_t max_gflop, check_goals;
    const char *prompt_name, *query_prompt_name, *query;
    int64_t input_format, format;              /* of the command */
    int64_t dtype;                             /* a mstar_dtype: f32, bf16 and f16 are 0, 1 and 2 */
    int64_t pooling;                           /* -1: as the folder says */
    int64_t truncate;                          /* a mstar_truncate */
    int64_t max_tokens, threads, batch_tokens; /* -1: not given */
    int64_t top, progress;
    int64_t no_normalize, no_special, pairs, json, quiet, man; /* flags */
    int64_t help;                                              /* 1: -h, 2: --help */
    int64_t version;
} cli_options;

typedef enum cli_kind { CLI_FLAG, CLI_TEXT, CLI_NUMBER, CLI_CHOICE } cli_kind;

typedef struct cli_option_row {
    unsigned commands; /* the commands that take it */
    char letter;       /* 0: none */
    const char *name;
    const char *value; /* what stands after it in help: "DIR" */
    cli_kind kind;
    const char *choices;   /* CLI_CHOICE: "end|start|error", in the order of the enumeration */
    int64_t low, high;     /* CLI_NUMBER */
    const char *initial;   /* read as if it had been given; NULL: nothing */
    const char *otherwise; /* what happens without it, where initial does not say so */
    const char *env;       /* NULL: none */
    size_t offset;         /* of the field in cli_options */
    const char *help;
} cli_option_row;

typedef struct cli_command_row {
    cli_command command;
    const char *name;
    const char *operand; /* "[FILE|-]" */
    const char *summary;
    const char *description;    /* paragraphs, parted by '\n' */
    const char *examples[2][2]; /* {what it does, the command line} */
} cli_command_row;

extern const cli_option_row cli_option_rows[];
extern const size_t cli_num_option_rows;
extern const cli_command_row cli_command_rows[];
extern const size_t cli_num_command_rows;

typedef struct cli_exit_row {
    int code;
    const char *text;
} cli_exit_row;
extern const cli_exit_row cli_exit_rows[];
extern const size_t cli_num_exit_rows;

/* NULL when there is none of that name. */
const cli_command_row *cli_find_command(const char *name);
/* The nearest command, for a message about one that does not exist; NULL when none is near. */
const char *cli_nearest_command(const char *name);

/*
 * Reads the arguments after the command: flag, then environment, then default. Stops early with
 * options->help or options->version set when -h, --help or --version is met.
 */
int cli_options_parse(cli_command command, int argc, char **argv, cli_options *options);

/* cmd_help.c */
int cli_print_short_help(const cli_command_row *command, const char *output);
int cli_print_full_help(const cli_command_row *command, const char *output);
int cli_print_man(const char *output);

/* cmd_*.c */
int cli_run_embed(const cli_options *options);
int cli_run_similar(const cli_options *options);
int cli_run_tokenize(const cli_options *options);
int cli_run_info(const cli_options *options);
int cli_run_bench(const cli_options *options);
int cli_run_graphs(const cli_options *options);
int cli_run_version(const cli_options *options);
int cli_run_help(const cli_options *options);

#endif
