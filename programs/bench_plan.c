/*
 * bench_plan.c - mstar bench plan: what planning costs, over the workloads of mstar bench attn.
 *
 * Every workload is planned in graph mode, as a step of a server does it. plan_us is what the host
 * spends in one call; ready_us the same until the stream has what was sent, which a replay given
 * next would wait for. Only the goals and peers of plans are carried into the rows: no attention
 * is run.
 */
#include "bench_attn.h"

#include <stdlib.h>

#include "bench_problem.h"

static int plan_and_wait(void *context)
{
    const cli_attn_run *run = context;
    int code = cli_attn_plan_once(context);
    if (code == CLI_OK && mstar_stream_synchronize(run->stream) != MSTAR_OK)
        code = cli_fail(CLI_FAILED, "%s", mstar_last_error());
    return code;
}

static int bench_workload(cli_session *session, mstar_stream *stream, const cli_attn_work *work,
                          mstar_dtype dtype, cli_report *report, json_t *row)
{
    cli_attn_work graph_work = cli_attn_in_graph_mode(work);
    cli_attn_run run = {.work = &graph_work, .stream = stream};
    double plan_time = 0, ready_time = 0;
    int plans = 0, unused = 0;
    int code = cli_attn_create(session->device, dtype, &run);
    if (code == CLI_OK)
        code = cli_bench_time(plan_and_wait, &run, 20, 0.05, &ready_time, &unused);
    if (code == CLI_OK)
        code = cli_bench_time(cli_attn_plan_once, &run, 20, 0.05, &plan_time, &plans);
    cli_attn_destroy(&run);
    if (code != CLI_OK)
        return code;
    cli_bench_put_integer(report, row, "segments", work->segments);
    cli_bench_put_integer(report, row, "tokens", work->q_tokens);
    cli_bench_put_number(report, row, "plan_us", plan_time * 1e6);
    cli_bench_put_number(report, row, "ready_us", ready_time * 1e6);
    cli_bench_put_integer(report, row, "runs", plans);
    return CLI_OK;
}

int cli_bench_plan(const cli_options *options)
{
    mstar_dtype dtype = options->dtype == 1 ? MSTAR_DTYPE_BF16 : MSTAR_DTYPE_F32;
    cli_session session = {0};
    cli_report report = {0};
    mstar_stream *stream = NULL;
    json_t *list;
    int code = cli_problems_read(options, "plan", &list);
    if (code == CLI_OK)
        code = cli_session_open_named(&session, options->device, options->threads);
    if (code == CLI_OK && mstar_stream_create(session.device, -1, &stream) != MSTAR_OK)
        code = cli_fail(CLI_FAILED, "%s", mstar_last_error());
    if (code == CLI_OK)
        cli_bench_start(&report, "plan", &session.machine, mstar_dtype_name(dtype));
    for (size_t i = 0; code == CLI_OK && i < json_array_size(list); i++) {
        const json_t *problem = json_array_get(list, i);
        cli_attn_work work;
        code = cli_attn_work_read(options, problem, &work);
        if (code == CLI_OK) {
            json_t *row = cli_bench_row(&report);
            cli_bench_put_text(&report, row, "name", work.name);
            code = bench_workload(&session, stream, &work, dtype, &report, row);
            cli_problem_put_figure(problem, "plan_us", &report, row);
        }
        cli_attn_work_release(&work);
    }
    if (code == CLI_OK)
        code = cli_bench_finish(&report, options, 0);
    else
        json_decref(report.root);
    mstar_stream_destroy(stream);
    cli_session_close(&session);
    json_decref(list);
    return code;
}
