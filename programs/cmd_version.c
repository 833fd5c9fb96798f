/*
 * cmd_version.c - mstar version: what was built, and the best ISA level here.
 */
#include <string.h>

#include "options.h"
#include "report.h"
#include "session.h"

#ifndef MST_COMMIT
#define MST_COMMIT ""
#endif

int cli_run_version(const cli_options *options)
{
    cli_session session;
    /* One thread: opening the device must not start any. */
    int code = cli_session_open_device(&session, 1);
    if (code != CLI_OK) {
        cli_session_close(&session);
        return code;
    }
    cli_report report;
    cli_report_start(&report);
    cli_report_text(&report, NULL, "version", mstar_version());
    cli_report_text(&report, NULL, "commit", MST_COMMIT[0] != '\0' ? MST_COMMIT : "unknown");
    cli_report_text(&report, NULL, "build", mstar_build_info());
    cli_report_text(&report, NULL, "isa", session.machine.isa);
    cli_report_text(&report, NULL, "isa_best", session.machine.isa_best);
    cli_session_close(&session);
    return cli_report_print(&report, options->json != 0);
}
