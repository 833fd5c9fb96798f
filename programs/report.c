/*
 * report.c - a document of named values, as JSON or as aligned lines.
 */
#include "report.h"

#include <stdlib.h>
#include <string.h>

#include "utf8.h"

json_t *cli_report_string(const char *text)
{
    size_t bytes = strlen(text);
    char *copy = malloc(bytes + 1);
    if (copy == NULL)
        return NULL;
    memcpy(copy, text, bytes + 1);
    for (size_t i = 0; i < bytes;) {
        size_t length = cli_utf8_length(copy + i, bytes - i);
        if (length == 0)
            copy[i] =
                '?'; /* a folder's name may be any bytes; a cut text ends in half a character */
        i += length > 0 ? length : 1;
    }
    json_t *string = json_string(copy);
    free(copy);
    return string;
}

void cli_report_start(cli_report *report)
{
    report->root = json_object();
    report->failed = report->root == NULL;
}

void cli_report_value(cli_report *report, const char *section, const char *key, json_t *value)
{
    json_t *into = report->root;
    if (section != NULL) {
        into = json_object_get(report->root, section);
        if (into == NULL && json_object_set_new(report->root, section, json_object()) == 0)
            into = json_object_get(report->root, section);
    }
    if (json_object_set_new(into, key, value) != 0)
        report->failed = true;
}

void cli_report_text(cli_report *report, const char *section, const char *key, const char *text)
{
    cli_report_value(report, section, key, cli_report_string(text));
}

void cli_report_integer(cli_report *report, const char *section, const char *key, int64_t value)
{
    cli_report_value(report, section, key, json_integer(value));
}

void cli_report_flag(cli_report *report, const char *section, const char *key, bool value)
{
    cli_report_value(report, section, key, json_boolean(value));
}

/* "l2_bytes" -> "l2 bytes" */
static void put_key(cli_output *output, const char *key, const char *indent)
{
    enum { COLUMN = 22 };
    size_t bytes = strlen(key), used = strlen(indent) + bytes;
    cli_put_text(output, indent);
    for (size_t i = 0; i < bytes; i++)
        cli_put(output, key[i] == '_' ? " " : key + i, 1);
    do {
        cli_put(output, " ", 1);
    } while (++used < COLUMN);
}

static void put_scalar(cli_output *output, const json_t *value)
{
    if (json_is_string(value)) {
        for (const char *at = json_string_value(value); *at != '\0'; at++)
            cli_put(output, (unsigned char)*at < 0x20 || *at == 0x7f ? "?" : at, 1);
    } else if (json_is_integer(value)) {
        cli_put_integer(output, json_integer_value(value));
    } else if (json_is_real(value)) {
        cli_put_format(output, "%.6g", json_real_value(value));
    } else if (json_is_boolean(value)) {
        cli_put_text(output, json_is_true(value) ? "yes" : "no");
    }
}

static void put_value(cli_output *output, const char *key, json_t *value, const char *indent)
{
    if (json_is_null(value))
        return;
    put_key(output, key, indent);
    size_t i;
    json_t *item;
    bool nested = json_is_array(value) && json_is_object(json_array_get(value, 0));
    json_array_foreach(value, i, item)
    {
        const char *name;
        json_t *field;
        if (i > 0)
            cli_put_text(output, nested ? "\n" : ", ");
        if (i > 0 && nested)
            put_key(output, "", indent);
        if (!json_is_object(item)) {
            put_scalar(output, item);
            continue;
        }
        json_object_foreach(item, name, field)
        {
            if (field != json_object_iter_value(json_object_iter(item)))
                cli_put_text(output, "  ");
            put_scalar(output, field);
        }
    }
    put_scalar(output, value);
    cli_put(output, "\n", 1);
}

int cli_report_print(cli_report *report, bool as_json)
{
    cli_output output = {0};
    int code = cli_output_open(&output, NULL);
    char *text = NULL;
    if (code == CLI_OK && as_json) {
        text = report->failed ? NULL : json_dumps(report->root, JSON_INDENT(2));
        if (text == NULL)
            report->failed = true;
    }
    if (code == CLI_OK && report->failed)
        code = cli_fail_memory("a report", 0);
    if (code == CLI_OK && text != NULL) {
        cli_put_text(&output, text);
        cli_put(&output, "\n", 1);
    } else if (code == CLI_OK) {
        const char *key, *inner_key;
        json_t *value, *inner;
        json_object_foreach(report->root, key, value)
        {
            if (!json_is_object(value)) {
                put_value(&output, key, value, "");
                continue;
            }
            cli_put_format(&output, "\n%s\n", key);
            json_object_foreach(value, inner_key, inner) put_value(&output, inner_key, inner, "  ");
        }
    }
    if (code == CLI_OK)
        code = cli_output_commit(&output);
    free(text);
    cli_output_close(&output);
    json_decref(report->root);
    report->root = NULL;
    return code;
}
