/*
 * soak_texts.c - many texts of all lengths through a real model, in batches of random sizes and
 * mixes: a text's vector has the bits that it has alone, on any number of threads, and no memory is
 * kept.
 *
 *   soak_texts MODEL TEXTS [POOL [SEED [DEVICE]]]
 *
 * POOL different texts (2000) are embedded alone first, on one thread; the batches draw from them
 * and run on two, in f32 and bf16 by turns. DEVICE:
 * "cuda:0", in place of a processor.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mstar.h"
#include "support_card.h"
#include "support_random.h"
#include "support_soak.h"

enum { MAX_BATCH = 300, MAX_TEXT = 4096, NUM_DTYPES = 2 };

typedef struct pool {
    int64_t count, dims;
    char *bytes;
    mstar_text *texts;
    float *alone[NUM_DTYPES];
} pool;

/* ---- texts ----------------------------------------------------------------------------------- */

/* Mostly sentences; also nothing, one word, pages that are cut, other scripts and broken bytes. */
static int64_t draw_words(test_random *random)
{
    static const int64_t most[] = {0, 1, 3, 8, 12, 12, 20, 20, 40, 300};
    return test_random_between(random, 0, most[test_random_between(random, 0, 9)]);
}

static size_t draw_text(test_random *random, char *text)
{
    static const char *const words[] = {"the",
                                        "river",
                                        "sleeps",
                                        "flooded",
                                        "roads",
                                        "in",
                                        "spring",
                                        "a",
                                        "query",
                                        "2026",
                                        "caf\xc3\xa9",
                                        ("Stra\xc3\x9f"
                                         "e"),
                                        "e.g.",
                                        "unbelievable",
                                        "xqzt",
                                        "(and)",
                                        "\xe4\xb8\xad\xe6\x96\x87",
                                        "\xf0\x9f\x98\x80",
                                        "\xff\xc3",
                                        "tokenizers",
                                        "\t"};
    enum { NUM_WORDS = sizeof words / sizeof words[0] };
    int64_t count = draw_words(random);
    size_t used = 0;
    for (int64_t i = 0; i < count && used + 32 < MAX_TEXT; i++) {
        const char *word = words[test_random_between(random, 0, NUM_WORDS - 1)];
        size_t bytes = strlen(word);
        memcpy(text + used, word, bytes);
        used += bytes;
        text[used++] = ' ';
    }
    return used;
}

static mstar_encoder *load(mstar_device *device, const char *model, int dtype)
{
    mstar_encoder_desc desc;
    mstar_encoder *encoder = NULL;
    mstar_encoder_desc_init(&desc);
    desc.dtype = dtype == 0 ? MSTAR_DTYPE_F32 : MSTAR_DTYPE_BF16;
    soak_must(mstar_encoder_load(device, model, &desc, &encoder), model);
    return encoder;
}

static void make_pool(pool *made, const char *model, int64_t count, test_random *random)
{
    static char text[MAX_TEXT];
    size_t used = 0;
    made->count = count;
    made->texts = soak_alloc((size_t)count * sizeof *made->texts);
    made->bytes = soak_alloc((size_t)count * MAX_TEXT);
    for (int64_t i = 0; i < count; i++) {
        size_t bytes = draw_text(random, text);
        memcpy(made->bytes + used, text, bytes);
        made->texts[i] = (mstar_text){made->bytes + used, bytes};
        used += bytes;
    }
    mstar_device *device = level_open(1);
    for (int dtype = 0; dtype < NUM_DTYPES; dtype++) {
        mstar_encoder *encoder = load(device, model, dtype);
        mstar_encoder_info info = {.struct_size = sizeof info};
        soak_must(mstar_encoder_query(encoder, &info), "query");
        made->dims = info.dims;
        made->alone[dtype] = soak_alloc((size_t)(count * made->dims) * sizeof(float));
        for (int64_t i = 0; i < count; i++)
            soak_must(mstar_encoder_embed(encoder, &made->texts[i], 1,
                                          made->alone[dtype] + i * made->dims, made->dims, NULL),
                      "embed alone");
        mstar_encoder_release(encoder);
    }
    level_close(device);
}

/* ---- batches --------------------------------------------------------------------------------- */

static int64_t run_batch(mstar_encoder *encoder, const pool *from, int dtype, test_random *random,
                         int64_t left, float *vectors)
{
    mstar_text texts[MAX_BATCH];
    int64_t picks[MAX_BATCH];
    int64_t count = test_random_between(random, 1, left < MAX_BATCH ? left : MAX_BATCH);
    for (int64_t i = 0; i < count; i++) {
        picks[i] = test_random_between(random, 0, from->count - 1);
        texts[i] = from->texts[picks[i]];
    }
    memset(vectors, 0xff, (size_t)(count * from->dims) * sizeof *vectors);
    soak_must(mstar_encoder_embed(encoder, texts, count, vectors, from->dims, NULL), "embed");
    size_t bytes = (size_t)from->dims * sizeof *vectors;
    for (int64_t i = 0; i < count; i++) {
        const float *alone = from->alone[dtype] + picks[i] * from->dims;
        if (memcmp(vectors + i * from->dims, alone, bytes) != 0)
            soak_fail("text %lld of the pool, %lld of %lld in its batch: the vector differs from "
                      "that of the text alone",
                      (long long)picks[i], (long long)i, (long long)count);
    }
    return count;
}

typedef struct soak {
    pool texts;
    mstar_encoder *encoders[NUM_DTYPES];
    float *vectors;
} soak;

/* The largest call there is, the same at every look. */
static void settle(void *context)
{
    soak *all = context;
    int64_t count = all->texts.count < MAX_BATCH ? all->texts.count : MAX_BATCH;
    for (int dtype = 0; dtype < NUM_DTYPES; dtype++)
        soak_must(mstar_encoder_embed(all->encoders[dtype], all->texts.texts, count, all->vectors,
                                      all->texts.dims, NULL),
                  "embed");
}

int main(int argc, char **argv)
{
    soak all;
    soak_memory memory;
    if (argc < 3 || argc > 6)
        soak_fail("usage: soak_texts MODEL TEXTS [POOL [SEED [DEVICE]]]");
    int64_t total = soak_count(argv[2]);
    if (argc > 5)
        soak_level(argv[5]);
    test_random random = {argc > 4 ? (uint64_t)soak_count(argv[4]) : 1};
    make_pool(&all.texts, argv[1], argc > 3 ? soak_count(argv[3]) : 2000, &random);
    mstar_device *device = level_open(2);
    all.vectors = soak_alloc((size_t)(MAX_BATCH * all.texts.dims) * sizeof *all.vectors);
    for (int dtype = 0; dtype < NUM_DTYPES; dtype++)
        all.encoders[dtype] = load(device, argv[1], dtype);
    /* Which thread takes which text differs from call to call, and so do their buffers; a thread
       takes them with its first text, which on a busy machine may be late. */
    soak_memory_start(&memory, total, 1 << 20, 32);
    memory.library_only = level_is_card(); /* a driver keeps memory of its own */
    int64_t done = 0;
    for (int64_t batch = 0; done < total; batch++) {
        int dtype = (int)(batch % NUM_DTYPES);
        done +=
            run_batch(all.encoders[dtype], &all.texts, dtype, &random, total - done, all.vectors);
        soak_memory_step(&memory, done, settle, &all);
    }
    for (int dtype = 0; dtype < NUM_DTYPES; dtype++) {
        mstar_encoder_release(all.encoders[dtype]);
        free(all.texts.alone[dtype]);
    }
    level_close(device);
    free(all.vectors);
    free(all.texts.bytes);
    free(all.texts.texts);
    soak_memory_end();
    printf("%lld texts, no bit differs\n", (long long)done);
    return 0;
}
