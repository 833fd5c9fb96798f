/*
 * fuzz_folder.c - every JSON file that a model folder is described by, of any bytes: what is
 * accepted has widths that follow one another and limits inside the positions.
 */
#include <string.h>

#include "model/encoder.h"
#include "support_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const names[] = {"config.json",
                                        "modules.json",
                                        "1_Pooling/config.json",
                                        "2_Dense/config.json",
                                        "sentence_bert_config.json",
                                        "config_sentence_transformers.json",
                                        "tokenizer_config.json"};
    fuzz_begin();
    const char *path = fuzz_write_files(data, bytes, names, (int)(sizeof names / sizeof names[0]));
    mstar_encoder_desc desc;
    mstar_encoder_desc_init(&desc);
    for (int normalize = -1; normalize <= 1; normalize++) {
        mst_folder folder;
        desc.normalize = normalize;
        if (!fuzz_took(mst_folder_read(path, &desc, &folder)))
            continue;
        const mst_bert_config *config = &folder.config;
        FUZZ_CHECK(config->heads > 0 && config->hidden == config->heads * config->head_dim);
        FUZZ_CHECK(config->layers > 0 && config->intermediate > 0 && config->vocab_size > 0);
        FUZZ_CHECK(config->layer_norm_eps >= 0);
        FUZZ_CHECK(folder.num_poolings >= 1 && folder.num_poolings <= MST_NUM_POOLINGS);
        FUZZ_CHECK(folder.max_tokens >= 1 && folder.max_tokens <= config->max_positions);
        int64_t width = (int64_t)folder.num_poolings * config->hidden;
        for (int64_t i = 0; i < folder.num_modules; i++) {
            if (folder.modules[i].kind != MST_MODULE_DENSE)
                continue;
            FUZZ_CHECK(folder.modules[i].in_features == width);
            width = folder.modules[i].out_features;
        }
        FUZZ_CHECK(folder.dims == width && width > 0);
        FUZZ_CHECK(folder.transformer != NULL && folder.prompt != NULL);
        FUZZ_CHECK(normalize < 0 || folder.normalize == (normalize == 1));
        mst_folder_release(&folder);
    }
    fuzz_end();
    return 0;
}
