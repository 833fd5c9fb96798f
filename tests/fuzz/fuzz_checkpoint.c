/*
 * fuzz_checkpoint.c - a folder's index of any bytes over two shards, of which the second is of any
 * bytes too: shard names stay inside the folder, and what is found was mapped.
 */
#include <string.h>

#include "model/encoder.h"
#include "support_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const names[] = {"model.safetensors.index.json", "b.safetensors"};
    static const char header[] = "{\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                                 "\"y\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}} ";
    unsigned char shard[8 + sizeof header + 1] = {(unsigned char)(sizeof header - 1)};
    memcpy(shard + 8, header, sizeof header - 1);
    fuzz_begin();
    const char *folder = fuzz_write_files(data, bytes, names, 2);
    fuzz_write_file("a.safetensors", shard, 8 + sizeof header - 1 + 2);
    mst_checkpoint checkpoint;
    if (fuzz_took(mst_checkpoint_open(folder, &checkpoint))) {
        for (int64_t i = 0; i < checkpoint.num_files; i++) {
            const char *path = checkpoint.files[i].file.path;
            FUZZ_CHECK(strncmp(path, folder, strlen(folder)) == 0);
            FUZZ_CHECK(strchr(path + strlen(folder) + 1, '/') == NULL);
        }
        const mst_stored_tensor *tensor = mst_checkpoint_find(&checkpoint, "x");
        FUZZ_CHECK(tensor == NULL || tensor->mapped);
        mst_checkpoint_close(&checkpoint);
    }
    fuzz_end();
    return 0;
}
