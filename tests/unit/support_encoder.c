/* support_encoder.c - see support_encoder.h. */
#include "support_encoder.h"

#include "support_card.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

mstar_device *encoder_device(int32_t threads)
{
    return level_open(threads);
}

mstar_encoder_desc encoder_defaults(void)
{
    mstar_encoder_desc desc;
    memset(&desc, 0xff, sizeof desc);
    mstar_encoder_desc_init(&desc);
    return desc;
}

mstar_encoder *encoder_load(mstar_device *device, const char *folder,
                            const mstar_encoder_desc *desc)
{
    mstar_encoder *encoder = NULL;
    FOLDER_OK(mstar_encoder_load(device, folder, desc, &encoder));
    assert_non_null(encoder);
    return encoder;
}

mstar_encoder_info encoder_query(const mstar_encoder *encoder)
{
    mstar_encoder_info info;
    memset(&info, 0xff, sizeof info);
    info.struct_size = sizeof info;
    FOLDER_OK(mstar_encoder_query(encoder, &info));
    return info;
}

text_set *encoder_texts(uint64_t seed)
{
    test_random random = {seed};
    text_set *set = calloc(1, sizeof *set);
    assert_non_null(set);
    for (int i = 0; i < NUM_TEXTS; i++) {
        int64_t words = i % 17 == 0 ? 0 : test_random_between(&random, 1, i % 5 == 0 ? 45 : 9);
        tiny_text(&random, words, set->bytes[i], TEXT_BYTES);
        set->texts[i] = (mstar_text){set->bytes[i], strlen(set->bytes[i])};
    }
    return set;
}

float *encoder_embed(mstar_encoder *encoder, const mstar_text *texts, int64_t count)
{
    int64_t dims = encoder_query(encoder).dims;
    float *vectors = malloc((size_t)(count * dims + 1) * sizeof *vectors);
    assert_non_null(vectors);
    memset(vectors, 0xff, (size_t)(count * dims + 1) * sizeof *vectors);
    FOLDER_OK(mstar_encoder_embed(encoder, texts, count, vectors, dims, NULL));
    for (int64_t i = 0; i < count * dims; i++)
        assert_true(isfinite(vectors[i]));
    return vectors;
}

int encoder_set_up(void **state)
{
    encoder_fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->live = folder_live();
    f->folder = folder_make();
    tiny_model_write(f->folder, &tiny_model_default);
    f->device = encoder_device(2);
    *state = f;
    return 0;
}

int encoder_tear_down(void **state)
{
    encoder_fixture *f = *state;
    level_close(f->device);
    assert_int_equal(folder_live(), f->live);
    folder_remove(f->folder);
    free(f);
    return 0;
}

/* ---- folders without a device ------------------------------------------------------------------
 */

mst_folder folder_read_ok(const char *folder, const mstar_encoder_desc *desc)
{
    mstar_encoder_desc fallback = encoder_defaults();
    mst_folder out;
    FOLDER_OK(mst_folder_read(folder, desc != NULL ? desc : &fallback, &out));
    return out;
}

void folder_refuse_desc(const char *folder, const mstar_encoder_desc *desc, mstar_status want,
                        const char *piece)
{
    mst_folder out;
    uint64_t live = folder_live();
    FOLDER_FAILS(mst_folder_read(folder, desc, &out), want, piece);
    assert_int_equal(folder_live(), live);
}

void folder_refuse(const char *folder, mstar_status want, const char *piece)
{
    mstar_encoder_desc desc = encoder_defaults();
    folder_refuse_desc(folder, &desc, want, piece);
}

char *folder_tiny(void)
{
    char *folder = folder_make();
    tiny_model_write(folder, &tiny_model_default);
    return folder;
}
