/* support_ragged.c - see support_ragged.h. */
#include "support_ragged.h"

#include <math.h>
#include <string.h>

void ragged_desc(mstar_ragged_kind kind, mstar_ragged_manager_desc *desc)
{
    mstar_ragged_manager_desc_init(desc);
    desc->kind = kind;
    desc->num_qo_heads = RAGGED_HEADS;
    desc->num_kv_heads = RAGGED_HEADS;
    desc->head_dim = RAGGED_DIM;
    desc->dtype = MSTAR_DTYPE_F32;
}

void ragged_open(ragged_fixture *f, mstar_ragged_kind kind, const mstar_ragged_manager_desc *desc)
{
    mstar_ragged_manager_desc own;
    mstar_resource resource;
    check_rng rng = {21};
    memset(f, 0, sizeof *f);
    ragged_desc(kind, &own);
    CHECK_OK(mstar_device_open("cpu", NULL, &f->device));
    CHECK_OK(mstar_stream_create(f->device, -1, &f->stream));
    CHECK_OK(mstar_ragged_manager_create(f->device, desc != NULL ? desc : &own, &f->manager));
    CHECK_OK(mstar_ragged_manager_get_resource(f->manager, "attn", &resource));
    CHECK_OK(mstar_resources_create(&resource, 1, &f->set));
    CHECK_OK(mstar_step_create(&f->step));
    mstar_step_context_init(&f->context);
    f->context.walk = "prefill";
    f->context.stream = f->stream;
    for (int t = 0; t < RAGGED_ROWS; t++) {
        for (int h = 0; h < RAGGED_HEADS; h++) {
            for (int d = 0; d < RAGGED_DIM; d++) {
                f->q[t][h][d] = (float)check_uniform(&rng, -2, 2);
                f->k[t][h][d] = (float)check_uniform(&rng, -2, 2);
                f->v[t][h][d] = (float)check_uniform(&rng, -2, 2);
            }
        }
    }
}

void ragged_close(ragged_fixture *f)
{
    mstar_step_destroy(f->step);
    mstar_resources_destroy(f->set);
    mstar_ragged_manager_destroy(f->manager);
    mstar_stream_destroy(f->stream);
    CHECK_OK(mstar_device_close(f->device));
}

void ragged_declare(ragged_fixture *f, const ragged_part *parts, int count, const char *pair,
                    int causal)
{
    mstar_step_clear(f->step);
    CHECK_OK(mstar_step_add_resource(f->step, "attn"));
    for (int i = 0; i < count; i++)
        CHECK_OK(mstar_step_add_segment(f->step, "attn", parts[i].request, parts[i].label,
                                        parts[i].span));
    CHECK_OK(mstar_step_set_causal(f->step, "attn", causal));
    if (pair != NULL) {
        char q_label[64];
        const char *colon = strchr(pair, ':');
        memcpy(q_label, pair, (size_t)(colon - pair));
        q_label[colon - pair] = '\0';
        CHECK_OK(mstar_step_add_pair(f->step, "attn", q_label, colon + 1));
    }
}

mstar_status ragged_plan(ragged_fixture *f, const mstar_lease *lease, int32_t slot)
{
    mstar_admission admission = {.struct_size = sizeof admission};
    f->context.lease = lease;
    f->context.slot = slot;
    MST_TRY(mstar_resources_admit(f->set, &f->context, f->step, &admission));
    assert_int_equal(admission.outcome, MSTAR_ADMITTED);
    return mstar_resources_plan(f->set, &f->context, f->step);
}

mstar_ragged_manager_info ragged_info(const ragged_fixture *f)
{
    mstar_ragged_manager_info info = {.struct_size = sizeof info};
    CHECK_OK(mstar_ragged_manager_query(f->manager, &info));
    return info;
}

mstar_ragged_prefill_info ragged_wrapper_info(const ragged_fixture *f, const char *label)
{
    mstar_ragged_prefill_info info = {.struct_size = sizeof info};
    CHECK_OK(mstar_ragged_manager_query_wrapper(f->manager, label, &info));
    return info;
}

static mstar_tensor rows_of(float (*data)[RAGGED_HEADS][RAGGED_DIM], int64_t rows)
{
    return mstar_tensor_make(data, MSTAR_DTYPE_F32, 3,
                             (const int64_t[]){rows, RAGGED_HEADS, RAGGED_DIM});
}

mstar_status ragged_run(ragged_fixture *f, const char *label, int64_t rows, int64_t kv_rows)
{
    const mstar_tensor q = rows_of(f->q, rows), k = rows_of(f->k, kv_rows);
    const mstar_tensor v = rows_of(f->v, kv_rows), out = rows_of(f->out, rows);
    memset(f->out, 0xff, sizeof f->out);
    return mstar_ragged_manager_run(f->manager, f->stream, label, &q, &k, &v, &out, NULL);
}

static void offsets_of(const int32_t *lengths, int count, int32_t *offsets)
{
    offsets[0] = 0;
    for (int i = 0; i < count; i++)
        offsets[i + 1] = offsets[i] + lengths[i];
}

/* The prefixed wrapper serves all three kinds: cross is it without causal, self with equal sides.
 */
static void expect(ragged_fixture *f, const int32_t *q_offsets, const int32_t *kv_offsets,
                   int count, int causal, float (*want)[RAGGED_HEADS][RAGGED_DIM])
{
    mstar_ragged_prefill_desc desc;
    mstar_prefixed_prefill *plain;
    mstar_ragged_prefill_desc_init(&desc);
    desc.num_qo_heads = desc.num_kv_heads = RAGGED_HEADS;
    desc.head_dim = RAGGED_DIM;
    desc.q_data_type = MSTAR_DTYPE_F32;
    CHECK_OK(mstar_prefixed_prefill_create(f->device, &desc, NULL, 0, &plain));
    CHECK_OK(
        mstar_prefixed_prefill_plan(plain, f->stream, q_offsets, count, kv_offsets, count, causal));
    const mstar_tensor q = rows_of(f->q, q_offsets[count]), k = rows_of(f->k, kv_offsets[count]);
    const mstar_tensor v = rows_of(f->v, kv_offsets[count]), o = rows_of(want, q_offsets[count]);
    CHECK_OK(mstar_prefixed_prefill_run(plain, f->stream, &q, &k, &v, &o, NULL));
    mstar_prefixed_prefill_destroy(plain);
}

void ragged_check(ragged_fixture *f, const char *label, mstar_ragged_kind kind, const int32_t *q,
                  const int32_t *kv, int count, int causal, int64_t rows, bool zero_tail)
{
    static float want[RAGGED_ROWS][RAGGED_HEADS][RAGGED_DIM];
    int32_t q_offsets[RAGGED_MAX_SEGMENTS + 1], kv_offsets[RAGGED_MAX_SEGMENTS + 1];
    offsets_of(q, count, q_offsets);
    offsets_of(kind == MSTAR_RAGGED_SELF ? q : kv, count, kv_offsets);
    int64_t tokens = q_offsets[count];
    CHECK_OK(ragged_run(f, label, rows,
                        RAGGED_ROWS < kv_offsets[count] ? RAGGED_ROWS
                        : kind == MSTAR_RAGGED_SELF     ? rows
                                                        : kv_offsets[count]));
    expect(f, q_offsets, kv_offsets, count, causal, want);
    for (int64_t t = 0; t < tokens; t++) {
        if (!isfinite(want[t][0][0]) || memcmp(f->out[t], want[t], sizeof want[t]) != 0)
            fail_msg("label %s, row %lld: %a instead of %a", label, (long long)t,
                     (double)f->out[t][0][0], (double)want[t][0][0]);
    }
    for (int64_t t = tokens; zero_tail && t < rows; t++) {
        for (int h = 0; h < RAGGED_HEADS; h++)
            for (int d = 0; d < RAGGED_DIM; d++)
                assert_true(f->out[t][h][d] == 0.0F);
    }
}
