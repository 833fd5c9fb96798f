/*
 * tokenizer.h - the parts of a tokenizer and the order they run in.
 *
 *   bytes -> (utf8) valid UTF-8 -> (added_tokens) pieces between added tokens -> (normalizer) clean
 *   text, each byte with the code point it came from -> (added_tokens) pieces again, for tokens
 *   that match normalised text -> (pretokenizer) words -> (wordpiece) token records -> (template)
 *   truncation, special tokens, type ids -> mstar_tokens
 *
 * Everything here is immutable after loading; what an encode writes lies in an mst_encode of its
 * own, so that many threads may share one tokenizer.
 */
#ifndef MST_MODEL_TOKENIZER_H
#define MST_MODEL_TOKENIZER_H

#include "base/base.h"
#include "model/json.h"
#include "mstar/model.h"

/* Ids are indices into tables; more than this is a damaged file, not a vocabulary. */
#define MST_MAX_TOKEN_ID 0xFFFFFF

/* ---- utf8.c ---------------------------------------------------------------------------------- */

/* Bytes of the sequence that starts with this byte, in valid UTF-8. */
static inline size_t mst_utf8_length(unsigned char first)
{
    return first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

/* Code point at the start of valid UTF-8. */
static inline uint32_t mst_utf8_decode(const unsigned char *text)
{
    uint32_t first = text[0];
    if (first < 0x80)
        return first;
    if (first < 0xE0)
        return (first & 0x1F) << 6 | (text[1] & 0x3Fu);
    if (first < 0xF0)
        return (first & 0x0F) << 12 | (text[1] & 0x3Fu) << 6 | (text[2] & 0x3Fu);
    return (first & 0x07) << 18 | (text[1] & 0x3Fu) << 12 | (text[2] & 0x3Fu) << 6 |
           (text[3] & 0x3Fu);
}

/* Writes up to 4 bytes; returns how many. */
size_t mst_utf8_encode(uint32_t code, unsigned char *out);
/* Bytes of the longest valid prefix. */
size_t mst_utf8_valid_prefix(const unsigned char *text, size_t bytes);
/* Code points of valid UTF-8. */
int64_t mst_utf8_count(const unsigned char *text, size_t bytes);
/* Code point that ends at text + end of valid UTF-8, end > 0; *start is where it begins. */
uint32_t mst_utf8_decode_before(const unsigned char *text, size_t end, size_t *start);
/*
 * Copies with U+FFFD for each maximal subpart that is not UTF-8 (as Python's errors="replace").
 * out NULL counts. Returns the bytes written.
 */
size_t mst_utf8_repair(const unsigned char *text, size_t bytes, unsigned char *out);

/* ---- unicode.c: the only user of utf8proc ---------------------------------------------------- */

/* What BERT's cleaning drops: Cc, Cf, Co, NUL and U+FFFD, but not \t \n \r. */
bool mst_is_dropped(uint32_t code);
bool mst_is_space(uint32_t code);       /* White_Space */
bool mst_is_punctuation(uint32_t code); /* ASCII punctuation and P* */
bool mst_is_word(uint32_t code);        /* \w of a Unicode regular expression */
bool mst_is_ideograph(uint32_t code);   /* what BERT sets between spaces */
bool mst_is_nonspacing(uint32_t code);  /* Mn, what BERT strips as accents */
bool mst_is_mark(uint32_t code);        /* M*, what StripAccents drops */
bool mst_is_cased(uint32_t code);       /* Cased, but for what is Case_Ignorable too */
bool mst_is_case_ignorable(uint32_t code);
uint8_t mst_combining_class(uint32_t code);
#define MST_MAX_LOWER 2
int32_t mst_to_lower(uint32_t code, uint32_t out[MST_MAX_LOWER]);
#define MST_MAX_DECOMPOSED 18
/* Full canonical or compatibility decomposition of one code point. */
int32_t mst_decompose(uint32_t code, bool compatibility, uint32_t out[MST_MAX_DECOMPOSED]);
/* The primary composite of two code points; 0 for none. */
uint32_t mst_compose(uint32_t first, uint32_t second);

/* ---- normalizer.c ---------------------------------------------------------------------------- */

typedef enum mst_normalize_op {
    MST_OP_CLEAN,     /* BERT: drop control characters, whitespace becomes ' ' */
    MST_OP_IDEOGRAPH, /* BERT: spaces around ideographs */
    MST_OP_STRIP_MN,  /* BERT: drop Mn */
    MST_OP_STRIP_M,   /* StripAccents: drop M* */
    MST_OP_LOWER,
    MST_OP_NFD,
    MST_OP_NFC,
    MST_OP_NFKD,
    MST_OP_NFKC
} mst_normalize_op;

#define MST_MAX_NORMALIZE_OPS 16
typedef struct mst_normalizer {
    mst_normalize_op ops[MST_MAX_NORMALIZE_OPS];
    int32_t num_ops;
    bool composes;       /* some op joins a base with the mark after it */
    uint16_t plain[256]; /* what an ASCII byte becomes, or MST_NOT_PLAIN */
} mst_normalizer;
#define MST_NOT_PLAIN 0xFFFF

/* A code point on its way: where it came from, and what a composition did (see normalizer.c). */
typedef struct mst_char {
    uint32_t code;
    int32_t source;
    int32_t change;
} mst_char;

typedef struct mst_chars {
    mst_char *items;
    int64_t count, capacity;
} mst_chars;

/* Normalised text; source[i] is the code point, counted in the caller's text, of byte i. */
typedef struct mst_normal {
    unsigned char *bytes;
    int32_t *source;
    int64_t count, bytes_capacity, source_capacity;
} mst_normal;

/* false when there are too many. */
bool mst_normalizer_add(mst_normalizer *normalizer, mst_normalize_op op);
/* Fills the table of plain bytes; after the last add. */
void mst_normalizer_finish(mst_normalizer *normalizer);
/* Replaces out; first is the index of the first code point. run and spare are working memory. */
mstar_status mst_normalize(const mst_normalizer *normalizer, const unsigned char *text,
                           size_t bytes, int32_t first, mst_chars *run, mst_chars *spare,
                           mst_normal *out);

/* ---- pretokenizer.c -------------------------------------------------------------------------- */

typedef struct mst_pretokenizer {
    bool drop_space;          /* words end at whitespace, which goes */
    bool isolate_punctuation; /* every punctuation character is a word */
    bool split_word;          /* \w+ and [^\w\s]+ are words of their own */
    uint8_t ascii[128];
} mst_pretokenizer;

void mst_pretokenizer_finish(mst_pretokenizer *pretokenizer);
/*
 * The next word of text from *at on: its bytes [*start, *at) and its code points. false at the end.
 */
bool mst_next_word(const mst_pretokenizer *pretokenizer, const unsigned char *text, size_t bytes,
                   size_t *at, size_t *start, int64_t *chars);

/* ---- vocab.c --------------------------------------------------------------------------------- */

typedef struct mst_vocab_entry {
    uint32_t offset, length; /* in text; a NUL follows */
    int32_t id;
} mst_vocab_entry;

typedef struct mst_vocab_slot {
    uint32_t hash;
    int32_t entry; /* -1 empty */
} mst_vocab_slot;

typedef struct mst_vocab {
    char *text;
    mst_vocab_entry *entries;
    int64_t text_bytes, text_capacity, count, capacity;
    mst_vocab_slot *slots;
    uint32_t shift;       /* 32 - log2(slots) */
    int32_t *entry_of_id; /* -1 for an id without a token */
    int64_t id_limit;     /* largest id + 1 */
    size_t longest;       /* bytes */
} mst_vocab;

mstar_status mst_vocab_add(mst_vocab *vocab, const char *token, size_t bytes, int32_t id);
/* Builds the table. replace: a token that is there twice keeps its last id; else BAD_DATA. */
mstar_status mst_vocab_finish(mst_vocab *vocab, const char *where, bool replace);
void mst_vocab_release(mst_vocab *vocab);
/* -1 when there is none. */
int32_t mst_vocab_find(const mst_vocab *vocab, const char *token, size_t bytes);

#define MST_HASH_START 0x811C9DC5u
static inline uint32_t mst_hash_byte(uint32_t hash, unsigned char byte)
{
    return (hash ^ byte) * 0x01000193u;
}
/*
 * Id of prefix + word when hash is the hash of both; -1 when there is none. The split spares the
 * caller from joining them.
 */
int32_t mst_vocab_find_hashed(const mst_vocab *vocab, uint32_t hash, const char *prefix,
                              size_t prefix_bytes, const unsigned char *word, size_t bytes);

/* ---- added_tokens.c -------------------------------------------------------------------------- */

typedef struct mst_added_token {
    char *content;
    size_t bytes;
    unsigned char *pattern; /* what is looked for: content, or its normalised form */
    size_t pattern_bytes;
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
} mst_added_token;

/* Tokens of one kind, sorted by pattern. */
typedef struct mst_matcher {
    const mst_added_token **sorted;
    int64_t count;
    bool first[256]; /* bytes that start a pattern */
} mst_matcher;

typedef struct mst_added {
    mst_added_token *tokens;
    int64_t count, capacity;
    mst_matcher raw, normal;
} mst_added;

/* Copies content. */
mstar_status mst_added_add(mst_added *added, const char *where, const mst_added_token *token);
mstar_status mst_added_finish(mst_added *added, const char *where,
                              const mst_normalizer *normalizer);
void mst_added_release(mst_added *added);
/*
 * The id that the tokenizers package gives to an added token, which goes by its content and not by
 * the file: the vocabulary's, or the next one past everything.
 */
int32_t mst_added_deal_id(const mst_added *added, const mst_vocab *vocab, const char *content,
                          size_t bytes);

/* A stretch of text: an added token, or (token NULL) what lies between two. */
typedef struct mst_stretch {
    const mst_added_token *token;
    size_t start, end;
} mst_stretch;

typedef struct mst_splitter {
    const mst_matcher *matcher;
    const unsigned char *text;
    size_t bytes, search, done;
    mst_stretch held; /* the token that follows the stretch given last */
    bool holds;
} mst_splitter;

void mst_split_start(mst_splitter *splitter, const mst_matcher *matcher, const unsigned char *text,
                     size_t bytes);
/* false at the end. Stretches come in order; none between tokens is empty. */
bool mst_split_next(mst_splitter *splitter, mst_stretch *stretch);

/* ---- wordpiece.c ----------------------------------------------------------------------------- */

typedef struct mst_token {
    int32_t id;
    int32_t start, end;         /* code points */
    uint16_t leading, trailing; /* spaces of the token's own text, for trim_offsets */
} mst_token;

typedef struct mst_wordpiece {
    mst_vocab vocab;
    char *prefix; /* of pieces that continue a word */
    size_t prefix_bytes;
    uint32_t prefix_hash;
    int32_t unknown; /* id */
    int64_t max_chars;
} mst_wordpiece;

/* Working memory of one encode. */
typedef struct mst_encode {
    mst_chars run, spare;
    mst_normal normal;
    mst_token *tokens;
    int64_t count, capacity;
    uint32_t *hashes; /* one for each byte of the longest token */
} mst_encode;

/* Looks up the prefix and the unknown token; after the vocabulary is finished. */
mstar_status mst_wordpiece_finish(mst_wordpiece *model, const char *where, const char *unknown,
                                  const char *prefix);
/* Appends the tokens of one word, bytes [start, end) of work->normal. */
mstar_status mst_wordpiece_encode(const mst_wordpiece *model, size_t start, size_t end,
                                  int64_t chars, bool count_spaces, mst_encode *work);
mstar_status mst_encode_push(mst_encode *work, mst_token token);
/* Leading and trailing spaces as byte-level tokenizers count them: whitespace and U+0120. */
void mst_count_spaces(const unsigned char *text, size_t bytes, uint16_t *leading,
                      uint16_t *trailing);

/* ---- template.c: special tokens, type ids, truncation -----------------------------------------
 */

enum { MST_PIECE_TOKEN, MST_PIECE_FIRST, MST_PIECE_SECOND };
typedef struct mst_template_piece {
    int32_t kind;
    int32_t id; /* of a MST_PIECE_TOKEN */
    int32_t type_id;
} mst_template_piece;

#define MST_MAX_TEMPLATE 64
typedef struct mst_template {
    mst_template_piece pieces[MST_MAX_TEMPLATE];
    int32_t count;
    int32_t num_special;
} mst_template;

/* false when full. */
bool mst_template_add(mst_template *template, int32_t kind, int32_t id, int32_t type_id);
/* Largest id that the template adds, and its largest type id. */
void mst_template_limits(const mst_template *template, int32_t *max_id, int32_t *max_type);
/*
 * Into empty templates: cls A sep, and cls A sep B sep with type 1 from B on; RoBERTa has type 0
 * throughout and sep twice between the texts.
 */
void mst_template_bert(mst_template *single, mst_template *pair, int32_t cls, int32_t sep,
                       bool roberta);
/* How many tokens of a pair stay, longest first, when together they may be `room`. */
void mst_truncate_pair(int64_t first, int64_t second, int64_t room, int64_t *keep_first,
                       int64_t *keep_second);

/* ---- tokenizer.c, tokenizer_json.c, tokenizer_bert.c ------------------------------------------
 */

struct mstar_tokenizer {
    mst_normalizer normalizer;
    mst_pretokenizer pretokenizer;
    mst_wordpiece model;
    mst_added added;
    mst_template single, pair;
    bool trim_offsets, add_prefix_space;
};

/* Fill a zeroed tokenizer; the caller releases it on failure. */
mstar_status mst_tokenizer_read_json(const char *path, mstar_tokenizer *tokenizer);
mstar_status mst_tokenizer_read_bert(const char *vocab_path, const char *config_path,
                                     mstar_tokenizer *tokenizer);

/*
 * tokenizer_vocab.c: reads model.vocab of a tokenizer.json straight into vocab, since a parser's
 * tree of it costs more than everything else of loading. *start and *end are then the bytes
 * between its braces. false, with vocab empty, when anything is out of the ordinary: the parser
 * then sees the whole file.
 */
mstar_status mst_vocab_scan_json(const unsigned char *text, size_t bytes, mst_vocab *vocab,
                                 size_t *start, size_t *end, bool *found);
/* vocab.txt: one token a line, ids by line. */
mstar_status mst_vocab_read_lines(const char *path, mst_vocab *vocab);

#endif
