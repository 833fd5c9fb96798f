/*
 * fuzz_safetensors.c - a safetensors file of any bytes: a tensor that is handed out lies inside the
 * file, by name in order, and its bytes are those of its shape and dtype.
 */
#include <string.h>

#include "model/encoder.h"
#include "support_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fuzz_begin();
    mst_safetensors file = {.num_tensors = 0};
    if (fuzz_took(mst_safetensors_scan("fuzz.safetensors", data, bytes, &file))) {
        unsigned sum = 0;
        for (int64_t i = 0; i < file.num_tensors; i++) {
            const mst_stored_tensor *tensor = &file.tensors[i];
            const uint8_t *first = tensor->data;
            FUZZ_CHECK(tensor->bytes <= bytes);
            FUZZ_CHECK(tensor->bytes == 0 ||
                       (first >= data && first + tensor->bytes <= data + bytes));
            FUZZ_CHECK(tensor->bytes == (size_t)tensor->count * mstar_dtype_bytes(tensor->dtype));
            FUZZ_CHECK(i == 0 || strcmp(file.tensors[i - 1].name, tensor->name) < 0);
            for (size_t j = 0; j < tensor->bytes; j++)
                sum += first[j]; /* the sanitizer looks at every byte */
        }
        FUZZ_CHECK(sum <= bytes * 255);
    }
    mst_safetensors_close(&file);
    fuzz_end();
    return 0;
}
