/* support_faults.c - reading the cases, and which of their keys were read. */
#include "support_faults.h"

#include "support_card.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- life of a case -------------------------------------------------------------------------- */

static json_t *load_cases(void)
{
    json_error_t error;
    json_t *list = json_load_file(MST_TEST_DATA "/known-faults.json",
                                  JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (list == NULL)
        print_error("%s:%d: %s\n", error.source, error.line, error.text);
    return list;
}

int fault_open(void **state)
{
    const char *id = *state;
    json_t *list = load_cases();
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *entry = json_array_get(list, i);
        if (strcmp(json_string_value(json_object_get(entry, "id")), id) != 0)
            continue;
        fault_case *c = calloc(1, sizeof *c);
        if (c == NULL)
            break;
        c->id = id;
        c->all = list;
        c->trigger = json_object_get(entry, "trigger");
        c->expect = json_object_get(entry, "expect");
        *state = c;
        return 0;
    }
    print_error("%s is not in known-faults.json\n", id);
    json_decref(list);
    return -1;
}

int fault_open_host(void **state)
{
    return fault_open(state);
}

static bool was_read(const fault_case *c, const char *key)
{
    static const char *const prose[] = {"op", "note", "check", "outcome"};
    for (size_t i = 0; i < sizeof prose / sizeof prose[0]; i++) {
        if (strcmp(key, prose[i]) == 0)
            return true;
    }
    for (int i = 0; i < c->num_read; i++) {
        if (strcmp(key, c->read[i]) == 0)
            return true;
    }
    return false;
}

int fault_close(void **state)
{
    fault_case *c = *state;
    const json_t *parts[] = {c->trigger, c->expect};
    int unread = 0;
    for (int i = 0; i < 2 && !c->skipped; i++) {
        const char *key;
        json_t *value;
        json_object_foreach((json_t *)(uintptr_t)parts[i], key, value)
        {
            if (was_read(c, key))
                continue;
            print_error("%s: the test never read \"%s\"\n", c->id, key);
            unread++;
        }
    }
    json_decref(c->all);
    free(c);
    *state = NULL;
    return unread == 0 ? 0 : -1;
}

/* ---- values ---------------------------------------------------------------------------------- */

static const json_t *get(fault_case *c, const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (value == NULL)
        fail_msg("%s has no \"%s\"", c->id, key);
    if (!was_read(c, key)) {
        assert_true(c->num_read < (int)(sizeof c->read / sizeof c->read[0]));
        c->read[c->num_read++] = key;
    }
    return value;
}

const json_t *fault_get(fault_case *c, const char *key)
{
    return get(c, c->trigger, key);
}

bool fault_has(const fault_case *c, const char *key)
{
    return json_object_get(c->trigger, key) != NULL;
}

int64_t fault_integer(fault_case *c, const char *key)
{
    const json_t *value = fault_get(c, key);
    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

double fault_real(fault_case *c, const char *key)
{
    const json_t *value = fault_get(c, key);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

bool fault_flag(fault_case *c, const char *key)
{
    const json_t *value = fault_get(c, key);
    assert_true(json_is_boolean(value));
    return json_is_true(value);
}

void fault_says(fault_case *c, const char *key, const char *text)
{
    const json_t *value = fault_get(c, key);
    assert_true(json_is_string(value));
    assert_string_equal(json_string_value(value), text);
}

int64_t fault_json_list(const json_t *value, int64_t *list, int64_t max)
{
    if (json_is_object(value)) {
        int64_t times = json_integer_value(json_object_get(value, "times"));
        assert_true(times >= 0 && times <= max);
        for (int64_t i = 0; i < times; i++)
            list[i] = json_integer_value(json_object_get(value, "repeat"));
        return times;
    }
    assert_true(json_is_array(value));
    int64_t count = (int64_t)json_array_size(value);
    assert_true(count <= max);
    for (int64_t i = 0; i < count; i++) {
        assert_true(json_is_integer(json_array_get(value, (size_t)i)));
        list[i] = json_integer_value(json_array_get(value, (size_t)i));
    }
    return count;
}

int64_t fault_list(fault_case *c, const char *key, int64_t *list, int64_t max)
{
    return fault_json_list(fault_get(c, key), list, max);
}

const json_t *fault_want(fault_case *c, const char *key)
{
    return get(c, c->expect, key);
}

double fault_want_real(fault_case *c, const char *key)
{
    const json_t *value = fault_want(c, key);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

void fault_outcome(const fault_case *c, const char *outcome)
{
    assert_string_equal(json_string_value(json_object_get(c->expect, "outcome")), outcome);
}

/* ---- running --------------------------------------------------------------------------------- */

enum { MOST_TESTS = 64 };

int fault_run(int argc, char **argv, const struct CMUnitTest *tests, size_t count)
{
    struct CMUnitTest chosen[MOST_TESTS];
    size_t num_chosen = 0;
    assert_true(count <= MOST_TESTS);
    level_choose(argc, argv);
    for (size_t i = 0; i < count; i++) {
        if (!level_is_card() || tests[i].setup_func != fault_open_host)
            chosen[num_chosen++] = tests[i];
    }
    return _cmocka_run_group_tests("faults", chosen, num_chosen, fault_open_devices,
                                   fault_close_devices);
}

/* ---- large cases ----------------------------------------------------------------------------- */

bool fault_large_runs(void)
{
#if defined(MST_TEST_LARGE)
    return !level_is_card() || card_is_real();
#else
    return false;
#endif
}

void fault_skip(fault_case *c, const char *reason)
{
    print_message("%s is skipped: %s\n", c->id, reason);
    c->skipped = true;
    skip();
}

void fault_threads(fault_case *c)
{
    if (level_is_card() && !card_is_real())
        fault_skip(c, "the mock of a GPU is one thread's");
}
