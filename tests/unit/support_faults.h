/*
 * support_faults.h - the cases of tests/data/known-faults.json as tests.
 *
 * A case is an input that went wrong in some library, and the right answer. A test takes the
 * numbers from the file, never from its own text, and every key of the case has to be read: one
 * that no test asked for fails the test, so a case cannot be run in part without anybody noticing.
 *
 * The index tests/known_faults/index names the test of each case; tools/check_faults.py reads the
 * FAULT lines to see that it is there.
 */
#ifndef SUPPORT_FAULTS_H
#define SUPPORT_FAULTS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "support_attn.h"
#include "support_check.h"

/* ---- cases ----------------------------------------------------------------------------------- */

typedef struct fault_case {
    const char *id;
    json_t *all;
    const json_t *trigger, *expect;
    const char *read[48]; /* keys of trigger and expect that were asked for */
    int num_read;
    bool skipped;
} fault_case;

/* One test of a case; the function's state is the fault_case. */
#define FAULT(case_id, function)                                                    \
    {                                                                               \
        .name = case_id, .test_func = function, .setup_func = fault_open,           \
        .teardown_func = fault_close, .initial_state = (void *)(uintptr_t)(case_id) \
    }
/* The same of a test that runs on processors only; fault_run leaves it out on a GPU. */
#define FAULT_HOST(case_id, function)                                               \
    {                                                                               \
        .name = case_id, .test_func = function, .setup_func = fault_open_host,      \
        .teardown_func = fault_close, .initial_state = (void *)(uintptr_t)(case_id) \
    }
int fault_open(void **state);
int fault_open_host(void **state);
/* Fails where a key was not read. The keys op, note, check and outcome are prose. */
int fault_close(void **state);

/* Values of the trigger; a key that is not there fails the test. */
const json_t *fault_get(fault_case *c, const char *key);
bool fault_has(const fault_case *c, const char *key);
int64_t fault_integer(fault_case *c, const char *key);
double fault_real(fault_case *c, const char *key);
bool fault_flag(fault_case *c, const char *key);
/* Fails unless the trigger's text is this one: prose that the test puts into code. */
void fault_says(fault_case *c, const char *key, const char *text);
/* A list of integers, or {"repeat": n, "times": m}; returns how many, at most max. */
int64_t fault_list(fault_case *c, const char *key, int64_t *list, int64_t max);
int64_t fault_json_list(const json_t *value, int64_t *list, int64_t max);
/* Values of what is expected. */
const json_t *fault_want(fault_case *c, const char *key);
double fault_want_real(fault_case *c, const char *key);
void fault_outcome(const fault_case *c, const char *outcome);

/* True in the release preset, but for the mock of a GPU. Elsewhere fault_skip ends the test as
 * skipped, with a reason. */
bool fault_large_runs(void);
void fault_skip(fault_case *c, const char *reason);
/* Skips over the mock of a GPU, which is one thread's. */
void fault_threads(fault_case *c);

/*
 * What main does: runs the tests over fault_isas, on the levels of this machine or, as the first
 * argument says, on a GPU or over its mock (support_card.h).
 */
int fault_run(int argc, char **argv, const struct CMUnitTest *tests, size_t count);

/* ---- attention ------------------------------------------------------------------------------- */

/* One device for each level of the machine, of three threads; opened and closed by the group's
   fixtures. */
extern attn_isas fault_isas;
int fault_open_devices(void **state);
int fault_close_devices(void **state);
/* The highest level of this machine. */
mstar_device *fault_best(void);

/*
 * Reads q_lens, kv_lens, hq, hkv, d_qk, d_vo, causal, dtype, scale and windows where they are
 * given. Self where both sides are equal, else prefixed; bf16 where no dtype is given.
 */
void fault_problem(fault_case *c, attn_problem *problem);
/* The same from any object: "d" stands for both head dims, kv_lens may be left out. */
void fault_problem_from(const json_t *object, attn_problem *problem);
/* The case's own keys with those of an object in it ("capture", "a", ...) in their place. */
void fault_problem_with(fault_case *c, const json_t *more, attn_problem *problem);
void fault_lengths(attn_problem *problem, const int64_t *q, const int64_t *kv, int64_t count);
/* Floating-point operations of all visible pairs, windows not counted. */
double fault_work(const attn_problem *problem);

/* k or v of a packed row, whatever the layout. */
float fault_kv(const attn_problem *problem, const mstar_tensor *tensor, int64_t row, int64_t head,
               int64_t d);
void fault_set_kv(const attn_problem *problem, const mstar_tensor *tensor, int64_t row,
                  int64_t head, int64_t d, float value);
/* One value over whole tensors, the rows of the plan only. */
void fault_fill_qkv(const attn_problem *problem, const attn_data *data, float q, float k, float v);
void fault_fill_kv_rows(const attn_problem *problem, const mstar_tensor *tensor, int64_t begin,
                        int64_t end, float value);

typedef struct fault_ways {
    /* Changes the data after it was drawn; NULL for none. */
    void (*fill)(fault_case *c, const attn_problem *problem, attn_data *data);
    /* Looks at the result of each run; NULL for none. */
    void (*look)(fault_case *c, const attn_problem *problem, const attn_data *data);
} fault_ways;
/*
 * Runs the problem by every wrapper that can say it, in both layouts of keys, eager and in graph
 * mode, on every level, with NaN in rows past the plan: the reference's numbers (sampled rows of
 * large problems), the same bits in every way of one level, nothing written outside. Also checks
 * "empty_rows" and "visible" of the case. Problems with much work run in fewer ways, and on the
 * fast levels only; those over 2e10 operations in the release preset only.
 */
void fault_match(fault_case *c, const attn_problem *problem, const fault_ways *ways);

/* Both out and lse of these rows hold the same bits, or the test fails. */
void fault_same(const attn_problem *problem, const attn_data *a, int64_t a_row, const attn_data *b,
                int64_t b_row, int64_t rows);
/* A wrapper in graph mode; ceilings as given. */
attn_wrapper fault_graph(mstar_device *device, const attn_problem *problem, int64_t segments,
                         int64_t tokens, int64_t kv_tokens);
/* Plans the problem's layout on a wrapper and runs it. */
void fault_plan_run(const attn_wrapper *wrapper, const attn_problem *problem,
                    const attn_data *data);
/* All heads of a row of out are those of one row of v, to the bit. */
void fault_row_is_v(const attn_problem *problem, const attn_data *data, int64_t row, int64_t key);
/* One number in all of a row of out, and its lse within a few roundings. */
void fault_row_is(const attn_problem *problem, const attn_data *data, int64_t row, float out,
                  double lse);
/* Rows of out are exactly +0 and of lse -inf. */
void fault_zero_rows(const attn_data *data, int64_t begin, int64_t end);

/* Bytes with a page before and after that may not be touched. */
typedef struct fault_fenced {
    unsigned char *pages, *data;
    size_t mapped;
} fault_fenced;
fault_fenced fault_fence(size_t bytes, bool at_end);
void fault_unfence(fault_fenced *fenced);
/* Memory that costs nothing until it is written to, zeros; for tensors past 2^31 elements. */
void *fault_sparse(size_t bytes);
void fault_sparse_free(void *memory, size_t bytes);

#endif
