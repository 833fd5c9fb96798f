/*
 * cmd_info.c - mstar info: what this machine and a model come to, and why.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"
#include "report.h"
#include "session.h"

static json_t *list_kernels(const mstar_device *device)
{
    json_t *list = json_array();
    for (int32_t i = 0; list != NULL; i++) {
        mstar_kernel_info kernel = {.struct_size = sizeof kernel};
        if (mstar_device_query_kernel(device, i, &kernel) != MSTAR_OK)
            break;
        json_t *row = json_object();
        bool failed = json_object_set_new(row, "op", cli_report_string(kernel.op)) != 0;
        failed |= json_object_set_new(row, "dtype", cli_report_string(kernel.dtype)) != 0;
        failed |= json_object_set_new(row, "symbol", cli_report_string(kernel.symbol)) != 0;
        failed |= json_object_set_new(row, "reason", cli_report_string(kernel.reason)) != 0;
        if (json_array_append_new(list, row) != 0 || failed) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static void report_machine(cli_report *report, const cli_session *session)
{
    const mstar_device_info *machine = &session->machine;
    static const char at[] = "machine";
    cli_report_text(report, at, "device", machine->name);
    cli_report_text(report, at, "processor", machine->model);
    cli_report_text(report, at, "isa", machine->isa);
    cli_report_text(report, at, "isa_best", machine->isa_best);
    cli_report_text(report, at, "isa_reason",
                    machine->isa_reason[0] != '\0' ? machine->isa_reason
                                                   : "best of this machine and build");
    cli_report_integer(report, at, "threads", machine->num_threads);
    cli_report_integer(report, at, "l1d_bytes", machine->l1d_bytes);
    cli_report_integer(report, at, "l2_bytes", machine->l2_bytes);
    cli_report_integer(report, at, "l3_bytes", machine->l3_bytes);
    if (machine->memory_bytes > 0) {
        cli_report_integer(report, at, "memory_bytes", machine->memory_bytes);
        cli_report_integer(report, at, "free_bytes", machine->free_bytes);
    }
    cli_report_value(report, at, "kernels", list_kernels(session->device));
}

static json_t *list_poolings(const mstar_encoder_info *model)
{
    json_t *list = json_array();
    for (int32_t i = 0; i < model->num_poolings && list != NULL; i++) {
        const char *name = mstar_pooling_name(model->poolings[i]);
        if (json_array_append_new(list, json_string(name)) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* The first GPU by name, or why there is none; that memory is short is no such reason. */
static int report_gpu(cli_report *report)
{
    mstar_device *device = NULL;
    mstar_device_info info = {.struct_size = sizeof info};
    mstar_status status = mstar_device_open("cuda:0", NULL, &device);
    if (status == MSTAR_OK)
        status = mstar_device_query(device, &info);
    if (status == MSTAR_OUT_OF_MEMORY) {
        (void)mstar_device_close(device);
        return cli_fail(cli_exit_code(status), "%s", mstar_last_error());
    }
    if (status != MSTAR_OK) {
        cli_report_value(report, NULL, "gpu", json_null());
        cli_report_text(report, NULL, "gpu_reason", mstar_last_error());
    } else {
        cli_report_text(report, NULL, "gpu", info.model);
        cli_report_value(report, NULL, "gpu_reason", json_null());
    }
    (void)mstar_device_close(device);
    return CLI_OK;
}

/* What captures do unless their config asks for something else. */
static int report_graphs(cli_report *report)
{
    static const char name[] = "MSTAR_GRAPH_COMPILE_MODE";
    const char *mode = NULL, *given = getenv(name);
    if (mstar_effective_compile_mode(NULL, &mode) != MSTAR_OK)
        return cli_fail(CLI_BAD_CONFIG, "%s", mstar_last_error());
    cli_report_text(report, "graphs", "compile_mode", mode);
    cli_report_text(report, "graphs", "compile_mode_source",
                    given != NULL && given[0] != '\0' ? name : "default");
    return CLI_OK;
}

static void report_model(cli_report *report, const cli_options *options,
                         const mstar_encoder_info *model)
{
    static const char at[] = "model";
    cli_report_text(report, at, "folder", options->model);
    cli_report_text(report, at, "model_type", model->model_type);
    cli_report_text(report, at, "activation", model->activation);
    cli_report_integer(report, at, "layers", model->layers);
    cli_report_integer(report, at, "heads", model->heads);
    cli_report_integer(report, at, "head_dim", model->head_dim);
    cli_report_integer(report, at, "hidden", model->hidden);
    cli_report_integer(report, at, "intermediate", model->intermediate);
    cli_report_integer(report, at, "dims", model->dims);
    cli_report_integer(report, at, "vocab_size", model->vocab_size);
    cli_report_integer(report, at, "parameters", (int64_t)model->parameters);
    cli_report_text(report, at, "dtype", mstar_dtype_name(model->dtype));
    cli_report_value(report, at, "pooling", list_poolings(model));
    cli_report_text(report, at, "pooling_source", model->pooling_source);
    cli_report_flag(report, at, "normalize", model->normalize != 0);
    cli_report_text(report, at, "normalize_source", model->normalize_source);
    cli_report_text(report, at, "prompt", model->prompt);
    cli_report_text(report, at, "prompt_source", model->prompt_source);
    cli_report_integer(report, at, "max_tokens", model->max_tokens);
    cli_report_text(report, at, "max_tokens_source", model->max_tokens_source);
    cli_report_integer(report, at, "max_batch_tokens", model->max_batch_tokens);
    cli_report_integer(report, at, "workers", model->num_workers);
    cli_report_integer(report, at, "weight_bytes", (int64_t)model->weight_bytes);
    cli_report_integer(report, at, "arena_bytes", (int64_t)model->arena_bytes);
}

int cli_run_info(const cli_options *options)
{
    cli_session session = {0};
    int code = cli_session_open_named(&session, options->device, options->threads);
    if (code == CLI_OK && options->model != NULL)
        code = cli_session_load(&session, options, options->prompt_name);
    if (code == CLI_OK) {
        cli_report report;
        cli_report_start(&report);
        cli_report_text(&report, NULL, "version", mstar_version());
        report_machine(&report, &session);
        code = report_gpu(&report);
        if (code == CLI_OK)
            code = report_graphs(&report);
        if (options->model != NULL)
            report_model(&report, options, &session.model);
        else
            cli_report_value(&report, NULL, "model", json_null());
        if (code == CLI_OK)
            code = cli_report_print(&report, options->json != 0);
        else
            json_decref(report.root);
    }
    cli_session_close(&session);
    return code;
}
