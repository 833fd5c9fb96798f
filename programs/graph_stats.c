/*
 * graph_stats.c - what became of the batches of an encoder with graphs.
 */
#include <string.h>

#include "graph_file.h"
#include "report.h"

static int query(const cli_session *session, mstar_graph_runner_info *info)
{
    info->struct_size = sizeof *info;
    mstar_status status = mstar_encoder_query_graphs(session->encoder, info);
    return status == MSTAR_OK ? CLI_OK : cli_fail(cli_exit_code(status), "%s", mstar_last_error());
}

static double waste(int64_t padding, int64_t tokens)
{
    return padding > 0 ? (double)padding / (double)(padding + tokens) : 0;
}

/* One bucket over all workers: each has those up to the tokens of its own batches. */
typedef struct bucket_sum {
    mstar_runner_bucket_info info;
    bool there;
} bucket_sum;

static bucket_sum sum_bucket(const cli_session *session, int64_t tokens)
{
    bucket_sum sum = {.there = false};
    for (int32_t worker = 0; worker < session->model.num_workers; worker++) {
        for (int64_t i = 0;; i++) {
            mstar_runner_bucket_info one = {.struct_size = sizeof one};
            if (mstar_encoder_query_graph_bucket(session->encoder, worker, i, &one) != MSTAR_OK)
                break;
            if (one.size.num_tokens != tokens)
                continue;
            mstar_runner_bucket_info *all = &sum.info;
            bool first = !sum.there;
            sum.there = true;
            if (first) {
                *all = one;
                continue;
            }
            if (all->state == MSTAR_BUCKET_CAPTURED && one.state != MSTAR_BUCKET_CAPTURED) {
                all->state = one.state;
                memcpy(all->reason, one.reason, sizeof all->reason);
            }
            all->graph_bytes += one.graph_bytes;
            all->resource_bytes += one.resource_bytes;
            all->capture_ns += one.capture_ns;
            all->tuning_ns += one.tuning_ns;
            all->dropped_choices += one.dropped_choices;
            all->replays += one.replays;
            all->tokens += one.tokens;
            all->padding_tokens += one.padding_tokens;
        }
    }
    return sum;
}

static json_t *bucket_json(const mstar_runner_bucket_info *info)
{
    return json_pack("{s:I, s:I, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
                     "s:I}",
                     "bs", (json_int_t)info->size.bs, "tokens", (json_int_t)info->size.num_tokens,
                     "state", mstar_bucket_state_name(info->state), "reason", info->reason,
                     "compile_mode", info->compile_mode, "nodes", (json_int_t)info->nodes,
                     "specialised", (json_int_t)info->specialised, "tuned", (json_int_t)info->tuned,
                     "dropped_choices", (json_int_t)info->dropped_choices, "tuning_ns",
                     (json_int_t)info->tuning_ns, "bytes", (json_int_t)info->graph_bytes,
                     "wrapper_bytes", (json_int_t)info->resource_bytes, "capture_ns",
                     (json_int_t)info->capture_ns, "replays", (json_int_t)info->replays,
                     "replayed_tokens", (json_int_t)info->tokens, "padding_tokens",
                     (json_int_t)info->padding_tokens);
}

/* The tokens of the smallest bucket of any worker with more of them; -1: none. */
static int64_t next_bucket(const cli_session *session, int64_t tokens)
{
    int64_t next = -1;
    for (int32_t worker = 0; worker < session->model.num_workers; worker++) {
        for (int64_t i = 0;; i++) {
            mstar_runner_bucket_info one = {.struct_size = sizeof one};
            if (mstar_encoder_query_graph_bucket(session->encoder, worker, i, &one) != MSTAR_OK)
                break;
            if (one.size.num_tokens > tokens && (next < 0 || one.size.num_tokens < next))
                next = one.size.num_tokens;
        }
    }
    return next;
}

static json_t *buckets_json(const cli_session *session)
{
    json_t *list = json_array();
    for (int64_t tokens = next_bucket(session, -1); tokens >= 0;
         tokens = next_bucket(session, tokens)) {
        bucket_sum sum = sum_bucket(session, tokens);
        (void)json_array_append_new(list, bucket_json(&sum.info));
    }
    return list;
}

/* All buckets of an encoder have one config. */
static const char *compile_mode(const cli_session *session)
{
    mstar_runner_bucket_info one = {.struct_size = sizeof one};
    mstar_status status = mstar_encoder_query_graph_bucket(session->encoder, 0, 0, &one);
    return status == MSTAR_OK ? one.compile_mode : "none";
}

int cli_graph_stats_print(const cli_session *session, bool as_json)
{
    mstar_graph_runner_info info;
    int code = query(session, &info);
    if (code != CLI_OK)
        return code;
    cli_report report;
    cli_report_start(&report);
    cli_report_integer(&report, NULL, "workers", session->model.num_workers);
    cli_report_integer(&report, NULL, "steps", info.replays + info.eager_steps);
    cli_report_integer(&report, NULL, "replays", info.replays);
    cli_report_integer(&report, NULL, "eager_steps", info.eager_steps);
    for (int i = 1; i < MSTAR_NUM_GRAPH_MISSES; i++)
        cli_report_integer(&report, "misses", mstar_graph_miss_name((mstar_graph_miss)i),
                           info.misses[i]);
    cli_report_integer(&report, "tokens", "replayed", info.replayed_tokens);
    cli_report_integer(&report, "tokens", "padding", info.padding_tokens);
    cli_report_integer(&report, "tokens", "eager", info.eager_tokens);
    cli_report_value(&report, "tokens", "waste",
                     json_real(waste(info.padding_tokens, info.replayed_tokens)));
    cli_report_integer(&report, "captures", "buckets", info.num_buckets);
    cli_report_integer(&report, "captures", "captured", info.num_captured);
    cli_report_integer(&report, "captures", "failed", info.num_failed);
    cli_report_integer(&report, "captures", "unaffordable", info.num_unaffordable);
    cli_report_integer(&report, "captures", "capture_ns", info.capture_ns);
    cli_report_text(&report, "captures", "compile_mode", compile_mode(session));
    cli_report_integer(&report, "captures", "specialised", info.specialised);
    cli_report_integer(&report, "captures", "tuned", info.tuned);
    cli_report_integer(&report, "captures", "dropped_choices", info.dropped_choices);
    cli_report_integer(&report, "captures", "tuning_ns", info.tuning_ns);
    cli_report_integer(&report, "bytes", "graphs", (int64_t)info.graph_bytes);
    cli_report_integer(&report, "bytes", "host", (int64_t)info.host_bytes);
    cli_report_integer(&report, "bytes", "scratch", (int64_t)info.scratch_bytes);
    cli_report_integer(&report, "bytes", "static_inputs", (int64_t)info.static_input_bytes);
    cli_report_integer(&report, "bytes", "eager", (int64_t)info.eager_bytes);
    cli_report_integer(&report, "bytes", "wrappers", (int64_t)info.resource_bytes);
    cli_report_integer(&report, "bytes", "total",
                       (int64_t)(info.total_bytes + info.resource_bytes));
    if (session->machine.kind != MSTAR_DEVICE_CPU) /* measured, and not in the total */
        cli_report_integer(&report, "bytes", "driver", (int64_t)info.driver_bytes);
    if (as_json) /* a table of its own kind: for scripts */
        cli_report_value(&report, NULL, "buckets", buckets_json(session));
    return cli_report_print(&report, as_json);
}

int cli_graph_stats_note(const cli_session *session)
{
    mstar_graph_runner_info info;
    if (mstar_encoder_query_graphs(
            session->encoder, &(mstar_graph_runner_info){.struct_size = sizeof info}) != MSTAR_OK) {
        cli_note("graphs are off");
        return CLI_OK;
    }
    int code = query(session, &info);
    if (code != CLI_OK)
        return code;
    cli_note("%lld batches replayed, %lld eager; %lld tokens, %.2f %% of the buckets' rows spare",
             (long long)info.replays, (long long)info.eager_steps,
             (long long)(info.replayed_tokens + info.eager_tokens),
             100 * waste(info.padding_tokens, info.replayed_tokens));
    for (int i = 1; i < MSTAR_NUM_GRAPH_MISSES; i++) {
        if (info.misses[i] > 0)
            cli_note("%lld eager: %s", (long long)info.misses[i],
                     mstar_graph_miss_text((mstar_graph_miss)i));
    }
    cli_note("%lld of %lld buckets captured in %.1f ms, %lld bytes", (long long)info.num_captured,
             (long long)info.num_buckets, (double)info.capture_ns * 1e-6,
             (long long)(info.total_bytes + info.resource_bytes));
    for (int64_t tokens = next_bucket(session, -1); tokens >= 0;
         tokens = next_bucket(session, tokens)) {
        bucket_sum sum = sum_bucket(session, tokens);
        if (sum.info.state != MSTAR_BUCKET_CAPTURED)
            cli_note("the bucket of %lld tokens is %s: %s", (long long)tokens,
                     mstar_bucket_state_name(sum.info.state), sum.info.reason);
    }
    cli_note("compile mode \"%s\": %lld of %lld launches cut otherwise than by rule, %.1f ms",
             compile_mode(session), (long long)info.tuned, (long long)info.specialised,
             (double)info.tuning_ns * 1e-6);
    return CLI_OK;
}
