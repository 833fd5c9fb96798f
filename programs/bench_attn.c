/*
 * bench_attn.c - mstar bench attn: the wrappers over the workloads of a file.
 *
 * A workload has name, kind ("self", "cross", "prefixed"), causal, num_qo_heads, num_kv_heads,
 * head_dim, q_lens and, but for self, kv_lens. With max_num_segments and max_total_tokens the
 * wrapper is one of graph mode with these ceilings. Only visible pairs of query and key count as
 * work. Workloads above --max-gflop are listed as skipped, never dropped.
 */
#include "bench_attn.h"

#include <stdlib.h>
#include <string.h>

#include "bench_problem.h"

void cli_attn_work_release(cli_attn_work *work)
{
    free(work->q_cu);
    free(work->kv_cu);
    memset(work, 0, sizeof *work);
}

/* Two products of head_dim for each visible pair and head. */
static double count_flops(const cli_attn_work *work)
{
    double pairs = 0;
    for (int64_t i = 0; i < work->segments; i++) {
        int64_t lq = work->q_cu[i + 1] - work->q_cu[i];
        int64_t lk = work->kv_cu[i + 1] - work->kv_cu[i];
        if (!work->causal) {
            pairs += (double)lq * (double)lk;
            continue;
        }
        for (int64_t r = 0; r < lq; r++) {
            int64_t seen = lk - lq + r + 1;
            pairs += (double)(seen > 0 ? seen : 0);
        }
    }
    return pairs * 4 * work->dim * work->heads;
}

int cli_attn_work_read(const cli_options *options, const json_t *object, cli_attn_work *work)
{
    const char *path = options->workloads;
    memset(work, 0, sizeof *work);
    work->backend = options->backend;
    work->max_kv_tokens = -1;
    work->name = json_string_value(json_object_get(object, "name"));
    if (work->name == NULL)
        return cli_problem_fail(path, "?", "it has no \"name\"");
    work->kind = json_string_value(json_object_get(object, "kind"));
    if (work->kind == NULL ||
        (strcmp(work->kind, "self") != 0 && strcmp(work->kind, "cross") != 0 &&
         strcmp(work->kind, "prefixed") != 0))
        return cli_problem_fail(path, work->name, "\"kind\" must be self, cross or prefixed");
    work->causal = json_is_true(json_object_get(object, "causal"));
    work->heads = (int32_t)json_integer_value(json_object_get(object, "num_qo_heads"));
    work->kv_heads = (int32_t)json_integer_value(json_object_get(object, "num_kv_heads"));
    work->dim = (int32_t)json_integer_value(json_object_get(object, "head_dim"));
    const json_t *q_lens = json_object_get(object, "q_lens");
    const json_t *kv_lens = json_object_get(object, "kv_lens");
    work->max_segments = json_integer_value(json_object_get(object, "max_num_segments"));
    work->max_tokens = json_integer_value(json_object_get(object, "max_total_tokens"));
    bool self = strcmp(work->kind, "self") == 0;
    if (!cli_problem_has_lengths(q_lens) || (!self && !cli_problem_has_lengths(kv_lens)))
        return cli_problem_fail(
            path, work->name,
            "\"q_lens\" and \"kv_lens\" must be lists, or \"repeat\" and \"times\"");
    int64_t kv_segments = 0;
    work->q_cu = cli_problem_offsets(q_lens, &work->segments, &work->q_tokens);
    work->kv_cu = cli_problem_offsets(self ? q_lens : kv_lens, &kv_segments, &work->kv_tokens);
    if (work->q_cu == NULL || work->kv_cu == NULL || kv_segments != work->segments)
        return cli_problem_fail(
            path, work->name,
            "its lengths are not as many, no whole numbers, negative or too large");
    work->flops = count_flops(work);
    return CLI_OK;
}

cli_attn_work cli_attn_in_graph_mode(const cli_attn_work *work)
{
    cli_attn_work made = *work;
    if (made.max_segments == 0) {
        made.max_segments = work->segments > 0 ? work->segments : 1;
        made.max_tokens = work->q_tokens;
        made.max_kv_tokens = work->kv_tokens;
    }
    return made;
}

static mstar_status run_status(const cli_attn_run *run)
{
    if (run->self != NULL)
        return mstar_ragged_prefill_run(run->self, run->stream, &run->q, &run->k, &run->v,
                                        &run->out, NULL);
    if (run->cross != NULL)
        return mstar_ragged_cross_prefill_run(run->cross, run->stream, &run->q, &run->k, &run->v,
                                              &run->out, NULL);
    return mstar_prefixed_prefill_run(run->prefixed, run->stream, &run->q, &run->k, &run->v,
                                      &run->out, NULL);
}

int cli_attn_run_once(void *context)
{
    mstar_status status = run_status(context);
    return status == MSTAR_OK ? CLI_OK : cli_fail(cli_exit_code(status), "%s", mstar_last_error());
}

int cli_attn_plan_once(void *context)
{
    const cli_attn_run *run = context;
    const cli_attn_work *work = run->work;
    mstar_status status;
    if (run->self != NULL)
        status = mstar_ragged_prefill_plan(run->self, run->stream, work->q_cu, work->segments,
                                           work->causal);
    else if (run->cross != NULL)
        status = mstar_ragged_cross_prefill_plan(run->cross, run->stream, work->q_cu,
                                                 work->segments, work->kv_cu, work->segments);
    else
        status = mstar_prefixed_prefill_plan(run->prefixed, run->stream, work->q_cu, work->segments,
                                             work->kv_cu, work->segments, work->causal);
    return status == MSTAR_OK ? CLI_OK : cli_fail(cli_exit_code(status), "%s", mstar_last_error());
}

int cli_attn_create(mstar_device *device, mstar_dtype dtype, cli_attn_run *run)
{
    const cli_attn_work *work = run->work;
    mstar_ragged_prefill_desc desc;
    mstar_ragged_prefill_desc_init(&desc);
    desc.num_qo_heads = work->heads;
    desc.num_kv_heads = work->kv_heads;
    desc.head_dim = work->dim;
    desc.q_data_type = dtype;
    desc.backend = work->backend;
    desc.accelerator_graph = work->max_segments > 0;
    desc.max_num_segments = work->max_segments > 0 ? work->max_segments : -1;
    desc.max_total_tokens = work->max_segments > 0 ? work->max_tokens : -1;
    desc.max_total_kv_tokens = work->max_kv_tokens;
    mstar_status status;
    if (strcmp(work->kind, "self") == 0)
        status = mstar_ragged_prefill_create(device, &desc, NULL, 0, &run->self);
    else if (strcmp(work->kind, "cross") == 0)
        status = mstar_ragged_cross_prefill_create(device, &desc, NULL, 0, &run->cross);
    else
        status = mstar_prefixed_prefill_create(device, &desc, NULL, 0, &run->prefixed);
    return status == MSTAR_OK ? CLI_OK : cli_fail(CLI_FAILED, "%s", mstar_last_error());
}

const char *cli_attn_kernel(const cli_attn_run *run)
{
    mstar_ragged_prefill_info info = {.struct_size = sizeof info};
    mstar_status status;
    if (run->self != NULL)
        status = mstar_ragged_prefill_query(run->self, &info);
    else if (run->cross != NULL)
        status = mstar_ragged_cross_prefill_query(run->cross, &info);
    else
        status = mstar_prefixed_prefill_query(run->prefixed, &info);
    return status == MSTAR_OK ? info.kernel : "";
}

void cli_attn_destroy(cli_attn_run *run)
{
    mstar_ragged_prefill_destroy(run->self);
    mstar_ragged_cross_prefill_destroy(run->cross);
    mstar_prefixed_prefill_destroy(run->prefixed);
}

static int bench_workload(cli_session *session, mstar_stream *stream, const cli_attn_work *work,
                          mstar_dtype dtype, cli_report *report, json_t *row)
{
    cli_attn_run run = {.work = work, .stream = stream};
    size_t bytes = mstar_dtype_bytes(dtype);
    size_t q_count = (size_t)work->q_tokens * (size_t)work->heads * (size_t)work->dim;
    size_t k_count = (size_t)work->kv_tokens * (size_t)work->kv_heads * (size_t)work->dim;
    void *memory = malloc((2 * q_count + 2 * k_count) * bytes + 1);
    if (memory == NULL)
        return cli_fail_memory("workload", (2 * q_count + 2 * k_count) * bytes);
    char *at = memory;
    cli_bench_fill(at, dtype, 2 * q_count + 2 * k_count, 7);
    int64_t q_shape[3] = {work->q_tokens, work->heads, work->dim};
    int64_t k_shape[3] = {work->kv_tokens, work->kv_heads, work->dim};
    run.q = mstar_tensor_make(at, dtype, 3, q_shape);
    run.k = mstar_tensor_make(at + q_count * bytes, dtype, 3, k_shape);
    run.v = mstar_tensor_make(at + (q_count + k_count) * bytes, dtype, 3, k_shape);
    run.out = mstar_tensor_make(at + (q_count + 2 * k_count) * bytes, dtype, 3, q_shape);
    double plan_time = 0, run_time = 0;
    int plans = 0, runs = 0;
    int code = cli_attn_create(session->device, dtype, &run);
    if (code == CLI_OK)
        code = cli_bench_time(cli_attn_plan_once, &run, 20, 0.02, &plan_time, &plans);
    if (code == CLI_OK)
        code = cli_bench_time(cli_attn_run_once, &run, 3, 0.5, &run_time, &runs);
    if (code == CLI_OK) {
        cli_bench_put_text(report, row, "kernel", cli_attn_kernel(&run));
        cli_bench_put_number(report, row, "us", run_time * 1e6);
        cli_bench_put_number(report, row, "gflops", work->flops / run_time * 1e-9);
        cli_bench_put_number(report, row, "plan_us", plan_time * 1e6);
        cli_bench_put_integer(report, row, "runs", runs);
    }
    cli_attn_destroy(&run);
    free(memory);
    return code;
}

/* What others reach, and our share of the time of the best of our kernel's kind. */
static void put_peers(const json_t *problem, cli_report *report, json_t *row)
{
    double us = json_number_value(json_object_get(row, "us"));
    double peer = json_number_value(json_object_get(problem, "fa2_class_us"));
    cli_problem_put_peers(problem, report, row);
    if (us > 0 && peer > 0)
        cli_bench_put_number(report, row, "of_fa2_class", us / peer);
}

int cli_bench_attn(const cli_options *options)
{
    mstar_dtype dtype = (mstar_dtype)options->dtype;
    cli_session session = {0};
    cli_report report = {0};
    mstar_stream *stream = NULL;
    double peak = 0;
    json_t *list;
    int code = cli_problems_read(options, "attn", &list);
    if (code == CLI_OK)
        code = cli_session_open_named(&session, options->device, options->threads);
    if (code == CLI_OK && mstar_stream_create(session.device, -1, &stream) != MSTAR_OK)
        code = cli_fail(CLI_FAILED, "%s", mstar_last_error());
    if (code == CLI_OK)
        cli_bench_start(&report, "attn", &session.machine, mstar_dtype_name(dtype));
    for (size_t i = 0; code == CLI_OK && i < json_array_size(list); i++) {
        cli_attn_work work;
        code = cli_attn_work_read(options, json_array_get(list, i), &work);
        if (code == CLI_OK) {
            bool on_gpu = session.machine.kind == MSTAR_DEVICE_CUDA;
            double now = on_gpu ? 0 : cli_bench_peak(&session.machine, dtype);
            peak = now > peak ? now : peak;
            json_t *row = cli_bench_row(&report);
            cli_bench_put_text(&report, row, "name", work.name);
            if (work.flops > (double)options->max_gflop * 1e9)
                cli_bench_put_text(&report, row, "skipped", "more work than --max-gflop");
            else if (on_gpu)
                code = cli_bench_attn_gpu(&session, stream, &work, dtype, &report, row);
            else
                code = bench_workload(&session, stream, &work, dtype, &report, row);
            put_peers(json_array_get(list, i), &report, row);
        }
        cli_attn_work_release(&work);
    }
    if (code == CLI_OK)
        code = cli_bench_finish(&report, options, peak);
    else
        json_decref(report.root);
    mstar_stream_destroy(stream);
    cli_session_close(&session);
    json_decref(list);
    return code;
}
