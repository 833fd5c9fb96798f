/* support_tokenizer.c - see support_tokenizer.h. */
#include "support_tokenizer.h"

#include <stdio.h>
#include <string.h>

char *scratch;

const parts usual_parts = {
    .model = MODEL("WordPiece", "\"unk_token\":\"[UNK]\",\"continuing_subword_prefix\":\"##\","
                                "\"max_input_chars_per_word\":10," VOCAB),
    .normalizer = BERT_NORMALIZER,
    .pre_tokenizer = "{\"type\":\"BertPreTokenizer\"}",
    .post_processor = "{\"type\":\"TemplateProcessing\"," SINGLE "," PAIR "," SPECIALS "}",
    .added = ADDED("0", "[UNK]", RAW) "," ADDED("1", "[CLS]", RAW) "," ADDED(
        "2", "[SEP]", RAW) "," ADDED("3", "[MASK]", RAW),
    .extra = "\"version\":\"1.0\",\"truncation\":{\"max_length\":1},\"padding\":null,",
};

static const char *or_usual(const char *part, const char *fallback)
{
    return part != NULL ? part : fallback;
}

void write_parts(const char *folder, const parts *given)
{
    static char text[8192];
    int written = snprintf(text, sizeof text,
                           "{%s\"added_tokens\":[%s],\"normalizer\":%s,\"pre_tokenizer\":%s,"
                           "\"post_processor\":%s,\"decoder\":null,\"model\":%s}",
                           or_usual(given->extra, usual_parts.extra),
                           or_usual(given->added, usual_parts.added),
                           or_usual(given->normalizer, usual_parts.normalizer),
                           or_usual(given->pre_tokenizer, usual_parts.pre_tokenizer),
                           or_usual(given->post_processor, usual_parts.post_processor),
                           or_usual(given->model, usual_parts.model));
    assert_true(written > 0 && (size_t)written < sizeof text);
    folder_text(folder, "tokenizer.json", text);
}

mstar_tokenizer *load_parts(const parts *given)
{
    mstar_tokenizer *tokenizer = NULL;
    write_parts(scratch, given);
    CHECK_OK(mstar_tokenizer_load(scratch, &tokenizer));
    return tokenizer;
}

void refuse_parts(const parts *given, mstar_status want, const char *piece, int line)
{
    mstar_tokenizer *untouched = (mstar_tokenizer *)(void *)scratch, *tokenizer = untouched;
    const uint64_t live = check_live_allocations();
    write_parts(scratch, given);
    check_failed(mstar_tokenizer_load(scratch, &tokenizer), want, piece, __FILE__, line);
    assert_ptr_equal(tokenizer, untouched);
    assert_int_equal(check_live_allocations(), live);
}
mstar_text text_of(const char *text)
{
    return (mstar_text){text, strlen(text)};
}

/* Ids as "1 4 2", to compare and to read. */
const char *ids_of(const mstar_tokens *tokens)
{
    static char text[4096];
    size_t at = 0;
    text[0] = '\0';
    for (int64_t i = 0; i < tokens->count; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, i > 0 ? " %d" : "%d", tokens->ids[i]);
    return text;
}

const char *encode(const mstar_tokenizer *tokenizer, const char *text, mstar_tokens *tokens)
{
    const mstar_text one = text_of(text);
    CHECK_OK(mstar_tokenizer_encode(tokenizer, NULL, &one, NULL, tokens));
    return ids_of(tokens);
}

const char vocab_lines[] = "[UNK]\n[CLS]\r\n[SEP]\na \nb\n##b\n\xC3\xA9\n[PAD]\n\nb";

int make_scratch(void **state)
{
    (void)state;
    scratch = folder_make();
    return 0;
}

int remove_scratch(void **state)
{
    (void)state;
    folder_remove(scratch);
    return 0;
}
