/*
 * checkpoint.c - the weights of a folder: one safetensors file, or an index and its shards.
 *
 * The index is believed for which shard holds which tensor, and checked: a shard is a plain file
 * name of the same folder, and every tensor of the map must be in its shard. A tensor that the map
 * leaves out does not exist.
 */
#include <stdlib.h>
#include <string.h>

#include "model/encoder.h"

#define SINGLE_NAME "model.safetensors"
#define INDEX_NAME "model.safetensors.index.json"

static mstar_status add_file(mst_checkpoint *checkpoint, const char *folder, const char *name)
{
    char *path = NULL;
    mstar_status status;
    MST_TRY(mst_grow((void **)&checkpoint->files, &checkpoint->capacity, checkpoint->num_files + 1,
                     sizeof *checkpoint->files, "shard table"));
    MST_TRY_GOTO(mst_path_join(folder, name, &path), done);
    MST_TRY_GOTO(mst_safetensors_open(path, &checkpoint->files[checkpoint->num_files]), done);
    checkpoint->num_files++;
done:
    mst_free(path);
    return status;
}

static mst_stored_tensor *find_in(const mst_safetensors *file, const char *name)
{
    int64_t low = 0;
    int64_t high = file->num_tensors;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        int order = strcmp(file->tensors[middle].name, name);
        if (order == 0)
            return &file->tensors[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

static mst_safetensors *find_shard(mst_checkpoint *checkpoint, const char *name)
{
    for (int64_t i = 0; i < checkpoint->num_files; i++) {
        if (strcmp(mst_json_file_name(checkpoint->files[i].file.path), name) == 0)
            return &checkpoint->files[i];
    }
    return NULL;
}

static mstar_status map_tensor(mst_checkpoint *checkpoint, const char *folder, const char *name,
                               const json_t *map)
{
    const char *shard;
    MST_TRY(mst_json_get_string(map, INDEX_NAME ": weight_map", name, &shard));
    if (strchr(shard, '/') != NULL || shard[0] == '\0' || shard[0] == '.')
        return mst_fail(
            MSTAR_BAD_DATA,
            "%s: weight_map.%.64s is \"%.64s\"; a plain file name of the folder is wanted",
            INDEX_NAME, name, shard);
    mst_safetensors *file = find_shard(checkpoint, shard);
    if (file == NULL) {
        MST_TRY(add_file(checkpoint, folder, shard));
        file = &checkpoint->files[checkpoint->num_files - 1];
        for (int64_t i = 0; i < file->num_tensors; i++)
            file->tensors[i].mapped = false;
    }
    mst_stored_tensor *tensor = find_in(file, name);
    if (tensor == NULL)
        return mst_fail(MSTAR_BAD_DATA, "%s: weight_map puts %.128s into %.64s, which lacks it",
                        INDEX_NAME, name, shard);
    tensor->mapped = true;
    return MSTAR_OK;
}

static mstar_status open_shards(const char *folder, const char *path, mst_checkpoint *checkpoint)
{
    json_t *root = NULL;
    const json_t *map;
    mstar_status status;
    MST_TRY(mst_json_read(path, &root));
    MST_TRY_GOTO(mst_json_check_object(root, INDEX_NAME, "the document"), done);
    MST_TRY_GOTO(mst_json_get_object(root, INDEX_NAME, "weight_map", &map), done);
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)map, name, value)
    {
        MST_TRY_GOTO(map_tensor(checkpoint, folder, name, map), done);
    }
done:
    json_decref(root);
    return status;
}

static mstar_status fail_absent(const char *folder)
{
    char *path = NULL;
    MST_TRY(mst_path_join(folder, "pytorch_model.bin", &path));
    bool pickled;
    mstar_status status = mst_file_look(path, &pickled);
    mst_free(path);
    MST_TRY(status);
    return mst_fail(MSTAR_NOT_FOUND, "%s: neither %s nor %s%s", folder, SINGLE_NAME, INDEX_NAME,
                    pickled ? "; pytorch_model.bin is not read, convert it to safetensors" : "");
}

mstar_status mst_checkpoint_open(const char *folder, mst_checkpoint *checkpoint)
{
    char *single = NULL;
    char *index = NULL;
    mstar_status status;
    bool one, many;
    *checkpoint = (mst_checkpoint){NULL, 0, 0};
    MST_TRY_GOTO(mst_path_join(folder, SINGLE_NAME, &single), done);
    MST_TRY_GOTO(mst_path_join(folder, INDEX_NAME, &index), done);
    MST_TRY_GOTO(mst_file_look(single, &one), done);
    MST_TRY_GOTO(mst_file_look(index, &many), done);
    if (one)
        status = add_file(checkpoint, folder, SINGLE_NAME);
    else if (many)
        status = open_shards(folder, index, checkpoint);
    else
        status = fail_absent(folder);
done:
    mst_free(single);
    mst_free(index);
    if (status != MSTAR_OK)
        mst_checkpoint_close(checkpoint);
    return status;
}

void mst_checkpoint_close(mst_checkpoint *checkpoint)
{
    for (int64_t i = 0; i < checkpoint->num_files; i++)
        mst_safetensors_close(&checkpoint->files[i]);
    mst_free(checkpoint->files);
    *checkpoint = (mst_checkpoint){NULL, 0, 0};
}

const mst_stored_tensor *mst_checkpoint_find(const mst_checkpoint *checkpoint, const char *name)
{
    for (int64_t i = 0; i < checkpoint->num_files; i++) {
        const mst_stored_tensor *tensor = find_in(&checkpoint->files[i], name);
        if (tensor != NULL && tensor->mapped)
            return tensor;
    }
    return NULL;
}

void mst_checkpoint_let_go(const mst_checkpoint *checkpoint, const mst_stored_tensor *tensor)
{
    uintptr_t data = (uintptr_t)tensor->data;
    for (int64_t i = 0; i < checkpoint->num_files; i++) {
        const mst_file *file = &checkpoint->files[i].file;
        uintptr_t begin = (uintptr_t)file->data;
        if (data >= begin && data - begin < file->bytes)
            mst_file_let_go(file, data - begin, data - begin + tensor->bytes);
    }
}
