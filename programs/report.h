/*
 * report.h - a document of named values, printed as one JSON object or as aligned lines: the two
 * cannot disagree.
 */
#ifndef CLI_REPORT_H
#define CLI_REPORT_H

#include <jansson.h>

#include "output.h"

/* NULL values and failed allocations are kept in mind; cli_report_print tells. */
typedef struct cli_report {
    json_t *root;
    bool failed;
} cli_report;

void cli_report_start(cli_report *report);
/* section NULL: at the top. Keys are static; texts are copied, bytes that are not UTF-8 become
 * '?'. */
void cli_report_text(cli_report *report, const char *section, const char *key, const char *text);
void cli_report_integer(cli_report *report, const char *section, const char *key, int64_t value);
void cli_report_flag(cli_report *report, const char *section, const char *key, bool value);
/* Takes the value over; NULL is a failed allocation. */
void cli_report_value(cli_report *report, const char *section, const char *key, json_t *value);
/* Prints to standard output and frees. */
int cli_report_print(cli_report *report, bool as_json);
json_t *cli_report_string(const char *text);

#endif
