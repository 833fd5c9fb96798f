/*
 * fuzz_ids.c - ids, type ids, skips and offsets of any values into a text encoder: refused by name
 * or finite, and a refused call writes nothing.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support_folder.h"
#include "support_fuzz.h"

enum { MAX_TOKENS = 96, MAX_SEGMENTS = 12, DIMS = 32 };

static mstar_encoder *load(void)
{
    mstar_device *device = NULL;
    mstar_encoder *encoder = NULL;
    mstar_device_desc desc;
    mstar_device_desc_init(&desc);
    desc.num_threads = 1;
    tiny_model_write(fuzz_folder(), &tiny_model_default);
    FUZZ_CHECK(mstar_device_open("cpu", &desc, &device) == MSTAR_OK);
    FUZZ_CHECK(mstar_encoder_load(device, fuzz_folder(), NULL, &encoder) == MSTAR_OK);
    /* what an encoder keeps between calls is taken here, not in the first input */
    static const int32_t offsets[MAX_SEGMENTS + 1];
    float vectors[MAX_SEGMENTS * DIMS];
    FUZZ_CHECK(mstar_encoder_embed_ids(encoder, NULL, NULL, offsets, MAX_SEGMENTS, NULL, vectors,
                                       DIMS) == MSTAR_OK);
    return encoder;
}

static void draw(fuzz_input *input, bool raw, int range, int32_t *values, int count)
{
    for (int i = 0; i < count; i++)
        values[i] = raw ? fuzz_int32(input) : fuzz_byte(input) % range;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static mstar_encoder *encoder;
    static unsigned char pattern[MAX_SEGMENTS * DIMS * sizeof(float)];
    if (encoder == NULL) {
        encoder = load();
        memset(pattern, 0xff, sizeof pattern);
    }
    int32_t ids[MAX_TOKENS], type_ids[MAX_TOKENS], skip[MAX_SEGMENTS], offsets[MAX_SEGMENTS + 1];
    float vectors[MAX_SEGMENTS * DIMS];
    fuzz_input input = {data, bytes};
    uint8_t flags = fuzz_byte(&input);
    int segments = fuzz_byte(&input) % (MAX_SEGMENTS + 1);
    draw(&input, flags & 2, MAX_TOKENS / MAX_SEGMENTS + 1, offsets, MAX_SEGMENTS + 1);
    offsets[0] = flags & 4 ? offsets[0] : 0;
    for (int i = 0; i < segments && !(flags & 2); i++)
        offsets[i + 1] += offsets[i];
    draw(&input, flags & 8, 62, ids, MAX_TOKENS); /* 60 are known */
    draw(&input, flags & 16, 3, type_ids, MAX_TOKENS);
    draw(&input, flags & 32, 4, skip, MAX_SEGMENTS);
    memcpy(vectors, pattern, sizeof vectors);
    /* offsets that pass every check but tell of more tokens than there are would be the caller's
       own fault: the arrays have no length of their own */
    if (segments > 0 && offsets[segments] > MAX_TOKENS)
        offsets[segments] = MAX_TOKENS;
    mstar_status status =
        mstar_encoder_embed_ids(encoder, ids, flags & 64 ? type_ids : NULL, offsets, segments,
                                flags & 128 ? skip : NULL, vectors, DIMS);
    int written = 0;
    if (fuzz_took(status)) {
        written = segments * DIMS;
        for (int i = 0; i < written; i++)
            FUZZ_CHECK(isfinite(vectors[i]));
    }
    FUZZ_CHECK(
        memcmp(vectors + written, pattern, sizeof vectors - (size_t)written * sizeof(float)) == 0);
    return 0;
}
