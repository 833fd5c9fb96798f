/*
 * fuzz_tokenizer.c - tokenizer.json, vocab.txt and tokenizer_config.json of any bytes; what loads
 * must encode.
 */
#include <string.h>

#include "support_fuzz.h"
#include "support_fuzz_tokens.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const names[] = {"tokenizer.json", "vocab.txt", "tokenizer_config.json"};
    static const char *const texts[] = {"", "Hello, w\xc3\xb6rld \xf0\x9f\x98\x80 [CLS]\n##b",
                                        "a\xcc\x81 \xe4\xb8\xad\xff\x00 b"};
    fuzz_begin();
    const char *folder = fuzz_write_files(data, bytes, names, 3);
    mstar_tokenizer *tokenizer = NULL;
    if (fuzz_took(mstar_tokenizer_load(folder, &tokenizer))) {
        int64_t size = mstar_tokenizer_get_vocab_size(tokenizer);
        FUZZ_CHECK(size > 0);
        for (int64_t id = 0; id < size && id < 4096; id++) {
            const char *token = mstar_tokenizer_get_token(tokenizer, (int32_t)id);
            /* ids may be shared, and tokens hold a NUL: what is found need not be this id */
            FUZZ_CHECK(token == NULL || strlen(token) == 0 ||
                       mstar_tokenizer_get_id(tokenizer, token) < size);
        }
        for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
            const mstar_text text = {texts[i], i == 2 ? 11 : strlen(texts[i])};
            fuzz_check_tokens(tokenizer, &text, &text);
        }
        mstar_tokenizer_release(tokenizer);
    }
    fuzz_end();
    return 0;
}
