/* test_status.c - the status table and the last-error text. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "support_check.h"

static void the_table(void **state)
{
    (void)state;
    static const struct {
        int value;
        const char *name, *text, *python;
        int http;
    } rows[] = {
        {0, "OK", "ok", "None", 200},
        {1, "INVALID_ARGUMENT", "invalid argument", "ValueError", 400},
        {2, "NOT_FOUND", "not found", "KeyError", 404},
        {3, "OUT_OF_ORDER", "call out of order", "RuntimeError", 409},
        {16, "NOT_SUPPORTED", "not supported", "NotImplementedError", 400},
        {32, "OUT_OF_MEMORY", "out of memory", "MemoryError", 503},
        {33, "BUSY", "busy", "RuntimeError", 429},
        {48, "DEVICE_UNAVAILABLE", "device unavailable", "RuntimeError", 503},
        {49, "DEVICE_FAILED", "device failed", "RuntimeError", 500},
        {64, "IO_FAILED", "input or output failed", "OSError", 500},
        {65, "BAD_DATA", "malformed data", "ValueError", 422},
        {80, "TIMED_OUT", "timed out", "TimeoutError", 504},
        {81, "CANCELLED", "cancelled", "RuntimeError", 499},
        {96, "INTERNAL", "internal fault", "RuntimeError", 500},
    };
    size_t next = 0;
    for (int value = -3; value < 300; value++) {
        mstar_status status = (mstar_status)value;
        if (next < sizeof rows / sizeof rows[0] && rows[next].value == value) {
            assert_string_equal(mstar_status_name(status), rows[next].name);
            assert_string_equal(mstar_status_text(status), rows[next].text);
            assert_string_equal(mstar_status_python(status), rows[next].python);
            assert_int_equal(mstar_status_http(status), rows[next].http);
            next++;
            continue;
        }
        assert_string_equal(mstar_status_name(status), "UNKNOWN");
        assert_string_equal(mstar_status_text(status), "unknown status");
        assert_string_equal(mstar_status_python(status), "RuntimeError");
        assert_int_equal(mstar_status_http(status), 500);
    }
    assert_int_equal(next, sizeof rows / sizeof rows[0]);
}

static void *fail_elsewhere(void *argument)
{
    const char *before = mstar_last_error();
    int empty = before != NULL && before[0] == '\0';
    (void)mst_fail(MSTAR_BUSY, "the other thread's text");
    *(int *)argument = empty && strcmp(mstar_last_error(), "the other thread's text") == 0;
    return NULL;
}

static void last_error_is_of_the_thread(void **state)
{
    (void)state;
    assert_int_equal(mst_fail(MSTAR_NOT_FOUND, "door %d of %s", 7, "nine"), MSTAR_NOT_FOUND);
    assert_string_equal(mstar_last_error(), "door 7 of nine");
    int good = 0;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, &good), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(good, 1);
    assert_string_equal(mstar_last_error(), "door 7 of nine");
    mstar_dtype dtype; /* a call that succeeds leaves the text alone */
    CHECK_OK(mstar_dtype_parse("f32", &dtype));
    assert_string_equal(mstar_last_error(), "door 7 of nine");
}

static void long_texts_are_cut(void **state)
{
    (void)state;
    static char text[5000];
    memset(text, 'a', sizeof text - 1);
    (void)mst_fail(MSTAR_INTERNAL, "%s", text);
    size_t length = strlen(mstar_last_error());
    assert_true(length >= 500 && length < sizeof text - 1);
    assert_memory_equal(mstar_last_error(), text, length);
    /* with a context before a long text, and with a context that is itself too long */
    (void)mst_fail_in(MSTAR_INTERNAL, "layer %d", 3);
    assert_memory_equal(mstar_last_error(), "layer 3: aaaa", 13);
    assert_true(strlen(mstar_last_error()) <= length);
    for (size_t bytes = length - 8; bytes <= length + 8; bytes++) {
        (void)mst_fail(MSTAR_INTERNAL, "short");
        (void)mst_fail_in(MSTAR_INTERNAL, "%.*s", (int)bytes, text);
        assert_true(strlen(mstar_last_error()) <= length);
        assert_memory_equal(mstar_last_error(), text, length - 8);
    }
    (void)mst_fail_in(MSTAR_INTERNAL, "%s", text);
    assert_true(strlen(mstar_last_error()) <= length);
}

static void hosts_leave_texts(void **state)
{
    char text[3000];
    (void)state;
    assert_int_equal(mstar_fail(MSTAR_IO_FAILED, "the store is 100%s gone"), MSTAR_IO_FAILED);
    assert_string_equal(mstar_last_error(), "the store is 100%s gone");
    assert_int_equal(mstar_fail(MSTAR_BUSY, mstar_last_error()), MSTAR_BUSY);
    assert_string_equal(mstar_last_error(), "the store is 100%s gone");
    memset(text, 'b', sizeof text);
    text[sizeof text - 1] = '\0';
    (void)mstar_fail(MSTAR_BUSY, text);
    assert_int_equal(strlen(mstar_last_error()), 1023);
    assert_int_equal(mstar_fail(MSTAR_CANCELLED, NULL), MSTAR_CANCELLED);
    assert_string_equal(mstar_last_error(), "");
}

static void contexts_nest(void **state)
{
    (void)state;
    (void)mst_fail(MSTAR_BAD_DATA, "offset is 9");
    assert_int_equal(mst_fail_in(MSTAR_BAD_DATA, "tensor %s", "w"), MSTAR_BAD_DATA);
    assert_int_equal(mst_fail_in(MSTAR_IO_FAILED, "file"), MSTAR_IO_FAILED);
    assert_string_equal(mstar_last_error(), "file: tensor w: offset is 9");
    /* the present text as an argument of the next one */
    (void)mst_fail(MSTAR_BAD_DATA, "again %s", mstar_last_error());
    assert_string_equal(mstar_last_error(), "again file: tensor w: offset is 9");
}

static void common_checks(void **state)
{
    (void)state;
    CHECK_OK(mst_check_range("n", 5, 5, 5));
    CHECK_OK(mst_check_range("n", INT64_MIN, INT64_MIN, INT64_MAX));
    CHECK_INVALID(mst_check_range("n", 4, 5, 6), "n is 4; it must be from 5 to 6");
    CHECK_INVALID(mst_check_range("n", 7, 5, 6), "n is 7; it must be from 5 to 6");
    CHECK_OK(mst_check_not_null("p", state));
    CHECK_INVALID(mst_check_not_null("p", NULL), "p is NULL");
}

static int sink_calls;
static void count_message(void *context, int level, const char *message)
{
    assert_ptr_equal(context, &sink_calls);
    assert_int_equal(level, MST_LOG_WARNING);
    assert_string_equal(message, "ram 7");
    sink_calls++;
}

static void log_goes_to_the_sink(void **state)
{
    (void)state;
    mst_log(MST_LOG_ERROR, "to nobody");
    mstar_set_log_sink(count_message, &sink_calls);
    mst_log(MST_LOG_WARNING, "ram %d", 7);
    mstar_set_log_sink(NULL, NULL);
    mst_log(MST_LOG_WARNING, "to nobody");
    assert_int_equal(sink_calls, 1);
}

static void version_texts(void **state)
{
    (void)state;
    char version[64];
    (void)snprintf(version, sizeof version, "%d.%d.%d", MSTAR_VERSION_MAJOR, MSTAR_VERSION_MINOR,
                   MSTAR_VERSION_PATCH);
    assert_string_equal(mstar_version(), version);
    assert_non_null(strstr(mstar_build_info(), version));
    assert_non_null(strstr(mstar_build_info(), "scalar"));
    assert_null(strchr(mstar_build_info(), '\n'));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table),          cmocka_unit_test(last_error_is_of_the_thread),
        cmocka_unit_test(long_texts_are_cut), cmocka_unit_test(contexts_nest),
        cmocka_unit_test(common_checks),      cmocka_unit_test(log_goes_to_the_sink),
        cmocka_unit_test(version_texts),      cmocka_unit_test(hosts_leave_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
