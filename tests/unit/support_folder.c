/* support_folder.c - see support_folder.h. */
#define _XOPEN_SOURCE 700
#include "support_folder.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"

static void die(const char *what, const char *which)
{
    fprintf(stderr, "test support: %s %s\n", what, which);
    abort();
}

static void *must(void *memory)
{
    if (memory == NULL)
        die("no", "memory");
    return memory;
}

/* ---- folders --------------------------------------------------------------------------------- */

char *folder_make(void)
{
    const char *base = getenv("TMPDIR");
    char *path = must(malloc(512));
    snprintf(path, 512, "%s/mstar-test-XXXXXX", base != NULL ? base : "/tmp");
    if (mkdtemp(path) == NULL)
        die("cannot make", path);
    return path;
}

static int remove_one(const char *path, const struct stat *facts, int kind, struct FTW *place)
{
    (void)facts;
    (void)kind;
    (void)place;
    return remove(path);
}

void folder_remove(char *folder)
{
    nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    free(folder);
}

const char *folder_path(const char *folder, const char *name)
{
    static char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

void folder_write(const char *folder, const char *name, const void *data, size_t bytes)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    for (char *at = path + strlen(folder) + 1; *at != '\0'; at++) {
        if (*at != '/')
            continue;
        *at = '\0';
        mkdir(path, 0777);
        *at = '/';
    }
    FILE *file = fopen(path, "wb");
    if (file == NULL || (bytes > 0 && fwrite(data, 1, bytes, file) != bytes) || fclose(file) != 0)
        die("cannot write", path);
}

void folder_text(const char *folder, const char *name, const char *text)
{
    folder_write(folder, name, text, strlen(text));
}

void folder_delete(const char *folder, const char *name)
{
    if (unlink(folder_path(folder, name)) != 0)
        die("cannot delete", name);
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

void checkpoint_begin(checkpoint_writer *writer)
{
    memset(writer, 0, sizeof *writer);
    writer->header = must(malloc(1 << 20));
    writer->header[writer->header_bytes++] = '{';
}

void checkpoint_add(checkpoint_writer *writer, const char *name, mstar_dtype dtype, int64_t rows,
                    int64_t columns, const float *values)
{
    static const char *const names[] = {"F32", "BF16", "F16"};
    size_t count = (size_t)(rows * (columns == 0 ? 1 : columns));
    size_t bytes = count * mstar_dtype_bytes(dtype);
    char shape[64];
    if (columns == 0)
        snprintf(shape, sizeof shape, "[%lld]", (long long)rows);
    else
        snprintf(shape, sizeof shape, "[%lld,%lld]", (long long)rows, (long long)columns);
    writer->header_bytes +=
        (size_t)snprintf(writer->header + writer->header_bytes, 256,
                         "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
                         writer->header_bytes > 1 ? "," : "", name, names[dtype], shape,
                         writer->data_bytes, writer->data_bytes + bytes);
    writer->data = must(realloc(writer->data, writer->data_bytes + bytes + 1));
    unsigned char *to = writer->data + writer->data_bytes;
    for (size_t i = 0; i < count; i++) {
        if (dtype == MSTAR_DTYPE_F32) {
            memcpy(to + 4 * i, &values[i], 4);
        } else {
            uint16_t narrow =
                dtype == MSTAR_DTYPE_BF16 ? mst_f32_to_bf16(values[i]) : mst_f32_to_f16(values[i]);
            memcpy(to + 2 * i, &narrow, 2);
        }
    }
    writer->data_bytes += bytes;
}

void checkpoint_random(checkpoint_writer *writer, const char *name, mstar_dtype dtype, int64_t rows,
                       int64_t columns, double middle, double spread, test_random *random)
{
    int64_t count = rows * (columns == 0 ? 1 : columns);
    float *values = must(malloc((size_t)count * sizeof *values + 1));
    for (int64_t i = 0; i < count; i++)
        values[i] = (float)(middle + spread * test_random_normal(random));
    checkpoint_add(writer, name, dtype, rows, columns, values);
    free(values);
}

unsigned char *checkpoint_end(checkpoint_writer *writer, size_t align, size_t *bytes)
{
    writer->header[writer->header_bytes++] = '}';
    while (writer->header_bytes % align != 0)
        writer->header[writer->header_bytes++] = ' ';
    *bytes = 8 + writer->header_bytes + writer->data_bytes;
    unsigned char *file = must(malloc(*bytes));
    for (int i = 0; i < 8; i++)
        file[i] = (unsigned char)((uint64_t)writer->header_bytes >> (8 * i));
    memcpy(file + 8, writer->header, writer->header_bytes);
    if (writer->data_bytes > 0)
        memcpy(file + 8 + writer->header_bytes, writer->data, writer->data_bytes);
    free(writer->header);
    free(writer->data);
    return file;
}

/* ---- a tiny model ---------------------------------------------------------------------------- */

const tiny_model tiny_model_default = {.layers = 2,
                                       .heads = 4,
                                       .hidden = 32,
                                       .intermediate = 48,
                                       .positions = 40,
                                       .dtype = MSTAR_DTYPE_F32,
                                       .prefix = "",
                                       .align = 8,
                                       .seed = 1};

void tiny_model_config(const char *folder, const tiny_model *model, const char *extra)
{
    char text[1024];
    snprintf(text, sizeof text,
             "{%s\"model_type\": \"bert\", \"hidden_size\": %d, \"num_hidden_layers\": %d, "
             "\"num_attention_heads\": %d, \"intermediate_size\": %d, \"vocab_size\": %d, "
             "\"max_position_embeddings\": %d, \"type_vocab_size\": 2, \"hidden_act\": \"gelu\", "
             "\"layer_norm_eps\": 1e-12}",
             extra, model->hidden, model->layers, model->heads, model->intermediate, TINY_VOCAB,
             model->positions);
    folder_text(folder, "config.json", text);
}

static void add_named(checkpoint_writer *writer, const tiny_model *model, int layer,
                      const char *name, int64_t rows, int64_t columns, test_random *random)
{
    char full[128];
    if (layer < 0)
        snprintf(full, sizeof full, "%s%s", model->prefix, name);
    else
        snprintf(full, sizeof full, "%sencoder.layer.%d.%s", model->prefix, layer, name);
    const char *dot = strrchr(name, '.');
    bool norm_weight = strstr(name, "LayerNorm") != NULL && strcmp(dot, ".weight") == 0;
    checkpoint_random(writer, full, model->dtype, rows, columns, norm_weight ? 1.0 : 0.0,
                      columns > 0 ? 0.3 : 0.1, random);
}

static void write_weights(const char *folder, const tiny_model *model)
{
    test_random random = {model->seed};
    checkpoint_writer writer;
    int64_t h = model->hidden;
    int64_t m = model->intermediate;
    checkpoint_begin(&writer);
    add_named(&writer, model, -1, "embeddings.word_embeddings.weight", TINY_VOCAB, h, &random);
    add_named(&writer, model, -1, "embeddings.position_embeddings.weight", model->positions, h,
              &random);
    add_named(&writer, model, -1, "embeddings.token_type_embeddings.weight", 2, h, &random);
    add_named(&writer, model, -1, "embeddings.LayerNorm.weight", h, 0, &random);
    add_named(&writer, model, -1, "embeddings.LayerNorm.bias", h, 0, &random);
    for (int i = 0; i < model->layers; i++) {
        add_named(&writer, model, i, "attention.self.query.weight", h, h, &random);
        add_named(&writer, model, i, "attention.self.query.bias", h, 0, &random);
        add_named(&writer, model, i, "attention.self.key.weight", h, h, &random);
        add_named(&writer, model, i, "attention.self.key.bias", h, 0, &random);
        add_named(&writer, model, i, "attention.self.value.weight", h, h, &random);
        add_named(&writer, model, i, "attention.self.value.bias", h, 0, &random);
        add_named(&writer, model, i, "attention.output.dense.weight", h, h, &random);
        add_named(&writer, model, i, "attention.output.dense.bias", h, 0, &random);
        add_named(&writer, model, i, "attention.output.LayerNorm.weight", h, 0, &random);
        add_named(&writer, model, i, "attention.output.LayerNorm.bias", h, 0, &random);
        add_named(&writer, model, i, "intermediate.dense.weight", m, h, &random);
        add_named(&writer, model, i, "intermediate.dense.bias", m, 0, &random);
        add_named(&writer, model, i, "output.dense.weight", h, m, &random);
        add_named(&writer, model, i, "output.dense.bias", h, 0, &random);
        add_named(&writer, model, i, "output.LayerNorm.weight", h, 0, &random);
        add_named(&writer, model, i, "output.LayerNorm.bias", h, 0, &random);
    }
    size_t bytes;
    unsigned char *file = checkpoint_end(&writer, model->align, &bytes);
    folder_write(folder, "model.safetensors", file, bytes);
    free(file);
}

/* [PAD] [UNK] [CLS] [SEP] [MASK], then 26 letters and 26 continuations, then words. */
static void write_vocabulary(const char *folder)
{
    char text[1024] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
    size_t used = strlen(text);
    for (int i = 0; i < 26; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%c\n", 'a' + i);
    for (int i = 0; i < 26; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "##%c\n", 'a' + i);
    snprintf(text + used, sizeof text - used, "hello\nworld\n##ing\n");
    folder_text(folder, "vocab.txt", text);
}

void tiny_model_write(const char *folder, const tiny_model *model)
{
    tiny_model_config(folder, model, "");
    write_weights(folder, model);
    write_vocabulary(folder);
    folder_text(folder, "tokenizer_config.json",
                "{\"do_lower_case\": true, \"tokenizer_class\": \"BertTokenizer\", "
                "\"model_max_length\": 1000000000000000019884624838656}");
    folder_text(folder, "modules.json",
                "[{\"idx\": 0, \"name\": \"0\", \"path\": \"\", "
                "\"type\": \"sentence_transformers.models.Transformer\"},"
                "{\"idx\": 1, \"name\": \"1\", \"path\": \"1_Pooling\", "
                "\"type\": \"sentence_transformers.models.Pooling\"},"
                "{\"idx\": 2, \"name\": \"2\", \"path\": \"2_Normalize\", "
                "\"type\": \"sentence_transformers.models.Normalize\"}]");
    folder_text(folder, "1_Pooling/config.json", "{\"pooling_mode_mean_tokens\": true}");
}

void tiny_text(test_random *random, int64_t words, char *text, size_t bytes)
{
    static const char *const known[] = {"hello", "world", "a", "helloing", "xyz", "q", "?"};
    size_t used = 0;
    text[0] = '\0';
    for (int64_t i = 0; i < words && used + 16 < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", i > 0 ? " " : "",
                                 known[test_random_between(random, 0, 6)]);
}

/* ---- checks ---------------------------------------------------------------------------------- */

void folder_check_ok(mstar_status status, const char *file, int line)
{
    if (status != MSTAR_OK)
        print_error("%s: %s\n", mstar_status_name(status), mstar_last_error());
    _assert_int_equal((uintmax_t)status, MSTAR_OK, file, line);
}

void folder_check_fails(mstar_status got, mstar_status want, const char *piece, const char *file,
                        int line)
{
    if (got != want || strstr(mstar_last_error(), piece) == NULL)
        print_error("%s wanted, with \"%s\"; got %s: %s\n", mstar_status_name(want), piece,
                    mstar_status_name(got), mstar_last_error());
    _assert_int_equal((uintmax_t)got, (uintmax_t)want, file, line);
    _assert_true(strstr(mstar_last_error(), piece) != NULL, "the error's text", file, line);
}

uint64_t folder_live(void)
{
    mstar_memory_info info = {.struct_size = sizeof info};
    FOLDER_OK(mstar_memory_query(&info));
    return info.live_allocations;
}
