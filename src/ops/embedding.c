/* embedding.c - sums of table rows. Every id is checked before the first row is written. */
#include <stdio.h>

#include "ops/ops.h"

static mstar_status check_table(const mstar_device *device, int32_t index,
                                const mstar_tensor *table, const mstar_tensor *out)
{
    char name[24];
    (void)snprintf(name, sizeof name, "tables[%d]", index);
    MST_TRY(mst_ops_check_input(device, name, table, 2));
    MST_TRY(mst_tensor_check_dim(name, table, 1, out->shape[1]));
    return mst_tensor_check_apart(name, table, "out", out);
}

/* rows: how many ids are read now; none while a graph records, which checks them at each replay. */
static mstar_status check_ids(int32_t index, const int32_t *ids, const mstar_tensor *table,
                              const mstar_tensor *out, int64_t rows)
{
    char name[24];
    (void)snprintf(name, sizeof name, "ids[%d]", index);
    MST_TRY(mst_ops_check_ints(name, ids, out->shape[0], out));
    for (int64_t t = 0; t < rows; t++) {
        if (ids[t] < 0 || ids[t] >= table->shape[0])
            return mst_fail(MSTAR_INVALID_ARGUMENT,
                            "ids[%d][%lld] is %d; tables[%d] has rows 0 to %lld", index,
                            (long long)t, ids[t], index, (long long)table->shape[0] - 1);
    }
    return MSTAR_OK;
}

static mstar_status run_embedding(mstar_stream *stream, const mstar_tensor *const *tables,
                                  const int32_t *const *ids, int32_t num_tables,
                                  const mstar_tensor *out)
{
    MST_TRY(mst_check_not_null("stream", stream));
    MST_TRY(
        mst_ops_check_has(stream->device, stream->device->backend->embedding != NULL, "embedding"));
    MST_TRY(mst_check_range("num_tables", num_tables, 1, MST_MAX_TABLES));
    MST_TRY(mst_check_not_null("tables", (const void *)tables));
    MST_TRY(mst_check_not_null("ids", (const void *)ids));
    MST_TRY(mst_ops_check_output(stream->device, "out", out, 2));
    mst_rows rows[MST_MAX_TABLES];
    int64_t read_now;
    MST_TRY(mst_ops_rows_now(stream, out->shape[0], &read_now));
    for (int32_t i = 0; i < num_tables; i++) {
        MST_TRY(check_table(stream->device, i, tables[i], out));
        MST_TRY(check_ids(i, ids[i], tables[i], out, read_now));
        rows[i] = mst_ops_rows(tables[i]);
    }
    if (out->shape[0] == 0 || out->shape[1] == 0)
        return MSTAR_OK;
    return stream->device->backend->embedding(stream, out->shape[0], out->shape[1], rows, ids,
                                              num_tables, mst_ops_rows(out));
}

mstar_status mstar_embedding(mstar_stream *stream, const mstar_tensor *const *tables,
                             const int32_t *const *ids, int32_t num_tables, const mstar_tensor *out)
{
    return mst_capture_note(stream, run_embedding(stream, tables, ids, num_tables, out));
}
