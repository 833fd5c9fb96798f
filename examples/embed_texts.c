/*
 * embed_texts.c - texts to vectors with the model layer.
 *
 *   embed_texts MODEL_DIR [TEXT...]
 *
 * Prints each text's tokens and the cosine of every pair. All texts go through the model as one
 * packed batch; a text's vector has the same bits as if it had come alone.
 */
#include <mstar.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TEXTS = 64 };

static const char *const default_texts[] = {
    "How do I change my password?",
    "Steps to reset a forgotten login",
    "The bread needs to rise for two hours before baking",
};

static float dot(const float *a, const float *b, int32_t dims)
{
    float sum = 0;
    for (int32_t i = 0; i < dims; i++)
        sum += a[i] * b[i];
    return sum;
}

static int embed(mstar_encoder *encoder, const mstar_text *texts, int64_t count)
{
    mstar_encoder_info info = {.struct_size = sizeof info};
    if (mstar_encoder_query(encoder, &info) != MSTAR_OK)
        return 1;

    mstar_text_result results[MAX_TEXTS];
    float *vectors = malloc((size_t)count * (size_t)info.dims * sizeof *vectors);
    if (vectors == NULL)
        return 1;
    if (mstar_encoder_embed(encoder, texts, count, vectors, info.dims, results) != MSTAR_OK) {
        free(vectors);
        return 1;
    }

    printf("%d components, pooling from %s\n", info.dims, info.pooling_source);
    for (int64_t i = 0; i < count; i++)
        printf("%2lld: %lld tokens%s  %.*s\n", (long long)i, (long long)results[i].tokens,
               results[i].untruncated_tokens > results[i].tokens ? " (cut)" : "",
               (int)texts[i].bytes, texts[i].data);
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = i + 1; j < count; j++)
            printf("%.4f  %lld %lld\n",
                   (double)dot(vectors + i * info.dims, vectors + j * info.dims, info.dims),
                   (long long)i, (long long)j);
    free(vectors);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 2 || argc - 2 > MAX_TEXTS) {
        fprintf(stderr, "usage: embed_texts MODEL_DIR [TEXT...] (at most %d)\n", MAX_TEXTS);
        return 2;
    }
    mstar_text texts[MAX_TEXTS];
    int64_t count = 0;
    for (int i = 2; i < argc; i++)
        texts[count++] = (mstar_text){argv[i], strlen(argv[i])};
    if (count == 0)
        for (size_t i = 0; i < sizeof default_texts / sizeof default_texts[0]; i++)
            texts[count++] = (mstar_text){default_texts[i], strlen(default_texts[i])};

    mstar_device *device = NULL;
    mstar_encoder *encoder = NULL;
    mstar_encoder_desc desc;
    mstar_encoder_desc_init(&desc);
    desc.normalize = 1; /* so that a dot product is the cosine */
    int failed = mstar_device_open("cpu", NULL, &device) != MSTAR_OK ||
                 mstar_encoder_load(device, argv[1], &desc, &encoder) != MSTAR_OK ||
                 embed(encoder, texts, count) != 0;
    if (failed)
        fprintf(stderr, "embed_texts: %s\n", mstar_last_error());
    mstar_encoder_release(encoder);
    if (device != NULL && mstar_device_close(device) != MSTAR_OK)
        failed = 1;
    return failed;
}
