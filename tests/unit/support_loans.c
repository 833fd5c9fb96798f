/* support_loans.c - see support_loans.h. */
#include "support_loans.h"

#include "base/base.h"

static const loan *first_of(const loans *all, const unsigned char *memory, size_t bytes)
{
    for (int i = 0; i < all->count; i++) {
        if (all->list[i].memory == memory && all->list[i].bytes == bytes)
            return &all->list[i];
    }
    return NULL;
}

/* Memory of this much and few elements is taken row by row. */
#define FAR_BYTES ((size_t)1 << 30)

static size_t bytes_of_elements(const mstar_tensor *tensor)
{
    size_t bytes = mstar_dtype_bytes(tensor->dtype);
    for (int32_t i = 0; i < tensor->rank; i++)
        bytes *= (size_t)tensor->shape[i];
    return bytes;
}

/* The block of the tensor, or the bytes that it touches. */
static void find_memory(const mstar_tensor *tensor, bool written, loan *made)
{
    const check_block *block = check_block_find(tensor->data);
    uintptr_t first, end;
    mst_tensor_extent(tensor, &first, &end);
    made->memory = block != NULL ? block->memory : (unsigned char *)first;
    made->bytes = block != NULL ? block->bytes : (size_t)(end - first);
    if (made->bytes == 0)
        made->memory = tensor->data;
    made->by_rows = made->bytes >= FAR_BYTES && tensor->rank >= 2 &&
                    made->bytes / 64 > bytes_of_elements(tensor);
    made->comes_back = made->bytes > 0 && (block != NULL || written);
}

/* Calls copy for each row of the last dimension. */
static void copy_rows(const loans *all, const loan *l,
                      mstar_status (*copy)(const loans *all, const loan *l, size_t at,
                                           size_t bytes))
{
    const mstar_tensor *t = &l->tensor;
    size_t element = mstar_dtype_bytes(t->dtype);
    size_t begin =
        (size_t)((unsigned char *)t->data - (unsigned char *)mstar_buffer_get_data(l->buffer)) -
        l->at;
    int64_t outer = t->rank == 3 ? t->shape[0] : 1, inner = t->shape[t->rank - 2];
    for (int64_t a = 0; a < outer; a++) {
        for (int64_t b = 0; b < inner; b++) {
            int64_t elements = (t->rank == 3 ? a * t->strides[0] : 0) + b * t->strides[t->rank - 2];
            CHECK_OK(copy(all, l, begin + (size_t)elements * element,
                          (size_t)t->shape[t->rank - 1] * element));
        }
    }
}

static mstar_status up(const loans *all, const loan *l, size_t at, size_t bytes)
{
    return mstar_buffer_upload(l->buffer, all->stream, l->at + at, l->memory + at, bytes);
}

static mstar_status down(const loans *all, const loan *l, size_t at, size_t bytes)
{
    return mstar_buffer_download(l->buffer, all->stream, l->at + at, l->memory + at, bytes);
}

static void send(const loans *all, const loan *l)
{
    if (l->by_rows)
        copy_rows(all, l, up);
    else if (l->bytes > 0)
        CHECK_OK(up(all, l, 0, l->bytes));
}

static void fetch(const loans *all, const loan *l)
{
    if (l->by_rows)
        copy_rows(all, l, down);
    else
        CHECK_OK(down(all, l, 0, l->bytes));
}

static const mstar_tensor *lend(loans *all, const mstar_tensor *tensor, bool written)
{
    if (tensor == NULL || tensor->data == NULL || tensor->device_kind != MSTAR_DEVICE_CPU ||
        mst_device_is_host(mstar_stream_get_device(all->stream)))
        return tensor;
    assert_true(all->count < MAX_LOANS);
    loan made = {.tensor = *tensor};
    find_memory(tensor, written, &made);
    size_t offset = (size_t)((unsigned char *)tensor->data - made.memory);
    const loan *former = first_of(all, made.memory, made.bytes);
    if (former != NULL) {
        made.buffer = former->buffer;
        made.at = former->at;
    } else {
        made.at = all->aligned ? (16 - offset % 16) % 16 : 0;
        CHECK_OK(mstar_buffer_create(mstar_stream_get_device(all->stream), made.at + made.bytes + 1,
                                     &made.buffer));
    }
    made.tensor.device_kind = MSTAR_DEVICE_CUDA;
    made.tensor.data = (unsigned char *)mstar_buffer_get_data(made.buffer) + made.at + offset;
    if (former == NULL || made.by_rows)
        send(all, &made);
    all->list[all->count] = made;
    return &all->list[all->count++].tensor;
}

const mstar_tensor *loans_lend(loans *all, const mstar_tensor *tensor)
{
    return lend(all, tensor, false);
}

const mstar_tensor *loans_lend_out(loans *all, const mstar_tensor *tensor)
{
    return lend(all, tensor, true);
}

/* A block that was lent twice has one buffer. */
static bool is_again(const loans *all, int at)
{
    return first_of(all, all->list[at].memory, all->list[at].bytes) != &all->list[at];
}

void loans_send(const loans *all)
{
    for (int i = 0; i < all->count; i++) {
        const loan *l = &all->list[i];
        if (!is_again(all, i) || l->by_rows)
            send(all, l);
    }
}

void loans_fetch(const loans *all)
{
    for (int i = 0; i < all->count; i++) {
        const loan *l = &all->list[i];
        if (l->comes_back && (!is_again(all, i) || check_block_find(l->memory) == NULL))
            fetch(all, l);
    }
    if (all->count > 0)
        CHECK_OK(mstar_stream_synchronize(all->stream));
}

void loans_drop(loans *all)
{
    for (int i = 0; i < all->count; i++) {
        if (!is_again(all, i))
            mstar_buffer_destroy(all->list[i].buffer);
    }
    all->count = 0;
}

mstar_status loans_return(loans *all, mstar_status status)
{
    loans_fetch(all);
    loans_drop(all);
    return status;
}
