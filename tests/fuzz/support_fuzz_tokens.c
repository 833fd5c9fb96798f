/* support_fuzz_tokens.c - see support_fuzz_tokens.h. */
#include "support_fuzz_tokens.h"

#include <stdlib.h>
#include <string.h>

#include "model/tokenizer.h"
#include "support_fuzz.h"

/* Code points of a text as the tokenizer reads it. */
static int64_t count_code_points(const mstar_text *text)
{
    const unsigned char *data = (const unsigned char *)text->data;
    size_t bytes = mst_utf8_repair(data, text->bytes, NULL);
    FUZZ_CHECK(bytes <= text->bytes * 3);
    unsigned char *repaired = malloc(bytes + 1);
    FUZZ_CHECK(repaired != NULL);
    FUZZ_CHECK(mst_utf8_repair(data, text->bytes, repaired) == bytes);
    FUZZ_CHECK(mst_utf8_valid_prefix(repaired, bytes) == bytes);
    int64_t count = mst_utf8_count(repaired, bytes);
    free(repaired);
    return count;
}

static void check_one(const mstar_tokenizer *tokenizer, const mstar_tokens *tokens,
                      const int64_t code_points[2])
{
    int64_t size = mstar_tokenizer_get_vocab_size(tokenizer);
    FUZZ_CHECK(tokens->count >= 0 && tokens->count <= tokens->untruncated_count);
    for (int64_t i = 0; i < tokens->count; i++) {
        FUZZ_CHECK(tokens->ids[i] >= 0 && tokens->ids[i] < size);
        FUZZ_CHECK(tokens->special[i] == 0 || tokens->special[i] == 1);
        int64_t longest = code_points[0] > code_points[1] ? code_points[0] : code_points[1];
        FUZZ_CHECK(tokens->starts[i] >= 0 && tokens->starts[i] <= tokens->ends[i] &&
                   tokens->ends[i] <= longest);
        FUZZ_CHECK(!tokens->special[i] || tokens->ends[i] == 0);
    }
}

/* Without special tokens, a cut text is a run of the whole one's tokens. */
static void check_cut(const mstar_tokenizer *tokenizer, const mstar_text *text)
{
    mstar_tokenize_desc desc;
    mstar_tokens whole, cut;
    mstar_tokenize_desc_init(&desc);
    mstar_tokens_init(&whole);
    mstar_tokens_init(&cut);
    desc.add_special_tokens = 0;
    if (fuzz_took(mstar_tokenizer_encode(tokenizer, &desc, text, NULL, &whole))) {
        desc.max_tokens = whole.count / 2;
        for (int side = MSTAR_TRUNCATE_END; side <= MSTAR_TRUNCATE_START; side++) {
            desc.truncate = (mstar_truncate)side;
            if (!fuzz_took(mstar_tokenizer_encode(tokenizer, &desc, text, NULL, &cut)))
                continue;
            FUZZ_CHECK(cut.count <= desc.max_tokens);
            FUZZ_CHECK(cut.untruncated_count == whole.count);
            int64_t skip = side == MSTAR_TRUNCATE_START ? whole.count - cut.count : 0;
            FUZZ_CHECK(cut.count == 0 ||
                       memcmp(cut.ids, whole.ids + skip, (size_t)cut.count * sizeof *cut.ids) == 0);
        }
    }
    mstar_tokens_release(&whole);
    mstar_tokens_release(&cut);
}

void fuzz_check_tokens(const mstar_tokenizer *tokenizer, const mstar_text *text,
                       const mstar_text *pair)
{
    mstar_tokens tokens;
    int64_t code_points[2] = {count_code_points(text), 0};
    mstar_tokens_init(&tokens);
    if (fuzz_took(mstar_tokenizer_encode(tokenizer, NULL, text, NULL, &tokens)))
        check_one(tokenizer, &tokens, code_points);
    code_points[1] = count_code_points(pair);
    if (fuzz_took(mstar_tokenizer_encode(tokenizer, NULL, text, pair, &tokens)))
        check_one(tokenizer, &tokens, code_points);
    mstar_tokens_release(&tokens);
    check_cut(tokenizer, text);
}
