/*
 * cmd_graphs.c - mstar graphs: buckets from traffic, and pictures of them.
 */
#include <stdlib.h>
#include <string.h>

#include "graph_file.h"
#include "options.h"

static int show_svg(const cli_graph_plan *plan, const char *path)
{
    cli_output output = {0};
    int code = cli_output_open(&output, path);
    if (code == CLI_OK) {
        cli_graph_plan_put_svg(&output, plan);
        code = cli_output_commit(&output);
    }
    cli_output_close(&output);
    return code;
}

int cli_graph_plan_print(const cli_graph_plan *plan, bool as_json, const char *path)
{
    cli_output output = {0};
    int code = cli_output_open(&output, path);
    if (code == CLI_OK && as_json) {
        json_t *document = cli_graph_plan_to_json(plan);
        char *text = document != NULL ? json_dumps(document, JSON_INDENT(1)) : NULL;
        json_decref(document);
        if (text == NULL)
            code = cli_fail_memory("a document", 0);
        else
            cli_put_text(&output, text);
        cli_put(&output, "\n", 1);
        free(text);
    } else if (code == CLI_OK) {
        cli_graph_plan_put_text(&output, plan);
    }
    if (code == CLI_OK)
        code = cli_output_commit(&output);
    cli_output_close(&output);
    return code;
}

static int show(const cli_options *options)
{
    if (options->file == NULL)
        return cli_fail(CLI_USAGE, "graphs show needs the FILE of a plan. Try 'mstar graphs "
                                   "--help'");
    if (options->lengths != NULL)
        return cli_fail(CLI_USAGE, "--lengths is an option of graphs plan");
    cli_graph_plan plan;
    int code = cli_graph_plan_read(options->file, &plan);
    if (code != CLI_OK)
        return code;
    code = options->svg != NULL ? show_svg(&plan, options->svg)
                                : cli_graph_plan_print(&plan, options->json != 0, options->output);
    cli_graph_plan_release(&plan);
    return code;
}

int cli_run_graphs(const cli_options *options)
{
    const char *name = options->operand;
    if (name != NULL && strcmp(name, "plan") == 0)
        return cli_run_graphs_plan(options);
    if (name != NULL && strcmp(name, "show") == 0)
        return show(options);
    if (name != NULL && strcmp(name, "stats") == 0)
        return cli_run_graphs_stats(options);
    return cli_fail(CLI_USAGE, "graphs needs what to do: plan, show or stats%s%s%s",
                    name != NULL ? "; it is '" : "", name != NULL ? name : "",
                    name != NULL ? "'" : "");
}
