/*
 * support_encoder.h - what the tests of encoders share: a tiny model on a device, texts for it, and
 * short ways to load and call.
 */
#ifndef SUPPORT_ENCODER_H
#define SUPPORT_ENCODER_H

#include "model/encoder.h"
#include "support_folder.h"

#define DIMS 32
#define NUM_TEXTS 120
#define TEXT_BYTES 400

/* Of the level of support_card.h; closed by level_close. */
mstar_device *encoder_device(int32_t threads);
mstar_encoder_desc encoder_defaults(void);
/* desc may be NULL. */
mstar_encoder *encoder_load(mstar_device *device, const char *folder,
                            const mstar_encoder_desc *desc);
mstar_encoder_info encoder_query(const mstar_encoder *encoder);

/* Empty texts, short ones, and some over any limit. */
typedef struct text_set {
    char bytes[NUM_TEXTS][TEXT_BYTES];
    mstar_text texts[NUM_TEXTS];
} text_set;
text_set *encoder_texts(uint64_t seed);

/* count compact rows, which the caller frees; all finite. */
float *encoder_embed(mstar_encoder *encoder, const mstar_text *texts, int64_t count);

/* A folder with the tiny model and a device of two threads; tearing down looks for leaks. */
typedef struct encoder_fixture {
    char *folder;
    mstar_device *device;
    uint64_t live;
} encoder_fixture;
int encoder_set_up(void **state);
int encoder_tear_down(void **state);
#define ENCODER_TEST(name) cmocka_unit_test_setup_teardown(name, encoder_set_up, encoder_tear_down)

/* A fresh folder with the tiny model. */
char *folder_tiny(void);
/* mst_folder_read that must succeed; desc may be NULL. */
mst_folder folder_read_ok(const char *folder, const mstar_encoder_desc *desc);
/* mst_folder_read that must fail with this status and text, and leave nothing behind. */
void folder_refuse_desc(const char *folder, const mstar_encoder_desc *desc, mstar_status want,
                        const char *piece);
void folder_refuse(const char *folder, mstar_status want, const char *piece);

#endif
