/*
 * support_tokenizer.h - a small tokenizer.json written from parts, any of which a test replaces.
 */
#ifndef SUPPORT_TOKENIZER_H
#define SUPPORT_TOKENIZER_H

#include "support_check.h"
#include "support_folder.h"

#define ADDED(id, content, flags) \
    "{\"id\":" id ",\"content\":\"" content "\",\"single_word\":false," flags "}"
#define RAW "\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true"
#define MODEL(type, rest) "{\"type\":\"" type "\"," rest "}"
#define VOCAB                                                                                \
    "\"vocab\":{\"[UNK]\":0,\"[CLS]\":1,\"[SEP]\":2,\"[MASK]\":3,\"a\":4,\"b\":5,\"##b\":6," \
    "\"hello\":7,\"##s\":8,\",\":9,\"\\u00df\":10,\"e\":11,\"\\ud83d\\ude00\":12,\"##\\n\":13}"
#define SPECIALS                                                       \
    "\"special_tokens\":{\"[CLS]\":{\"id\":\"[CLS]\",\"ids\":[1],"     \
    "\"tokens\":[\"[CLS]\"]},\"[SEP]\":{\"id\":\"[SEP]\",\"ids\":[2]," \
    "\"tokens\":[\"[SEP]\"]}}"
#define SPECIAL(name, type) "{\"SpecialToken\":{\"id\":\"" name "\",\"type_id\":" type "}}"
#define SEQUENCE(name, type) "{\"Sequence\":{\"id\":\"" name "\",\"type_id\":" type "}}"
#define SINGLE \
    "\"single\":[" SPECIAL("[CLS]", "0") "," SEQUENCE("A", "0") "," SPECIAL("[SEP]", "0") "]"
#define PAIR                                                               \
    "\"pair\":[" SPECIAL("[CLS]", "0") "," SEQUENCE("A", "0") "," SPECIAL( \
        "[SEP]", "0") "," SEQUENCE("B", "1") "," SPECIAL("[SEP]", "1") "]"
#define BERT_NORMALIZER                                                               \
    "{\"type\":\"BertNormalizer\",\"clean_text\":true,\"handle_chinese_chars\":true," \
    "\"strip_accents\":null,\"lowercase\":true}"

typedef struct parts {
    const char *model, *normalizer, *pre_tokenizer, *post_processor, *added, *extra;
} parts;

/* What a test leaves out (NULL) is as in usual_parts. */
extern const parts usual_parts;

/* One folder for all tests of a program: group setup and teardown. */
extern char *scratch;
int make_scratch(void **state);
int remove_scratch(void **state);

void write_parts(const char *folder, const parts *given);
/* Writes to scratch and loads from there. */
mstar_tokenizer *load_parts(const parts *given);
/* The load must fail like this, give nothing and leave nothing allocated. */
void refuse_parts(const parts *given, mstar_status want, const char *piece, int line);

mstar_text text_of(const char *text);
/* Ids as "1 4 2", to compare and to read; static memory. */
const char *ids_of(const mstar_tokens *tokens);
const char *encode(const mstar_tokenizer *tokenizer, const char *text, mstar_tokens *tokens);

/* A vocab.txt: [UNK] [CLS] [SEP] a b ##b e-acute [PAD], an empty line, b again. */
extern const char vocab_lines[];

#endif
