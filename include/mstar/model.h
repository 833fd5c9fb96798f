/*
 * mstar/model.h - tokenizers and text encoders from folders in Hugging Face layout.
 *
 * A folder holds config.json, model.safetensors (or model.safetensors.index.json and its shards),
 * tokenizer.json or vocab.txt, and, for sentence-transformers models, modules.json and its parts
 * (both generations). Read: BERT-family encoders (model_type "bert": MiniLM, bge-*-en, e5-*-en,
 * gte), WordPiece, pooling, Dense and Normalize modules. Anything else is refused by name.
 *
 * A network of one's own behind captured graphs: the hooks of mstar/runner.h.
 */
#ifndef MSTAR_MODEL_H
#define MSTAR_MODEL_H

#include "mstar/device.h"
#include "mstar/ops.h"
#include "mstar/runner.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A text: bytes of UTF-8, NUL allowed, not terminated. Bytes that are not UTF-8 are read as U+FFFD.
 */
typedef struct mstar_text {
    const char *data;
    size_t bytes;
} mstar_text;

/* ---- tokenizer ------------------------------------------------------------------------------- */

typedef struct mstar_tokenizer mstar_tokenizer;

/* Which tokens give way when a text is longer than max_tokens. */
typedef enum mstar_truncate {
    MSTAR_TRUNCATE_END = 0,   /* keep the start */
    MSTAR_TRUNCATE_START = 1, /* keep the end */
    MSTAR_TRUNCATE_ERROR = 2  /* MSTAR_INVALID_ARGUMENT names the length and the bound */
} mstar_truncate;

typedef struct mstar_tokenize_desc {
    uint32_t struct_size;
    int32_t add_special_tokens; /* default 1: [CLS] text [SEP] as the file's post-processor says */
    int64_t max_tokens;         /* special tokens included; -1 (default) no limit */
    mstar_truncate truncate;    /* default END */
    int32_t reserved;
} mstar_tokenize_desc;
MSTAR_API void mstar_tokenize_desc_init(mstar_tokenize_desc *desc);

/* Growable result, owned by the caller: zero it (or _init), reuse it for many texts, release it. */
typedef struct mstar_tokens {
    int32_t *ids;
    int32_t *type_ids; /* 0 first text, 1 second */
    int32_t *starts;   /* offsets in Unicode code points of the text each token came from, */
    int32_t *ends;     /* [start, end); 0, 0 for special tokens that were added */
    int8_t *special;   /* 1 for special tokens that were added */
    int64_t count;
    int64_t untruncated_count; /* what count would be without max_tokens */
    int64_t capacity;
} mstar_tokens;
MSTAR_API void mstar_tokens_init(mstar_tokens *tokens);
MSTAR_API void mstar_tokens_release(mstar_tokens *tokens);

/*
 * path: a model folder (tokenizer.json, else vocab.txt with tokenizer_config.json) or one of those
 * files. A tokenizer may be used by many threads at once. Ids equal those of the tokenizers
 * package.
 */
MSTAR_API mstar_status mstar_tokenizer_load(const char *path, mstar_tokenizer **tokenizer);
MSTAR_API void mstar_tokenizer_release(mstar_tokenizer *tokenizer);

/* pair may be NULL. desc may be NULL for the defaults. tokens is replaced; unchanged on failure.
 * Pairs are truncated longest first. */
MSTAR_API mstar_status mstar_tokenizer_encode(const mstar_tokenizer *tokenizer,
                                              const mstar_tokenize_desc *desc,
                                              const mstar_text *text, const mstar_text *pair,
                                              mstar_tokens *tokens);

MSTAR_API int64_t
mstar_tokenizer_get_vocab_size(const mstar_tokenizer *tokenizer); /* largest id + 1 */
/* Content of a token, UTF-8, NUL-terminated, borrowed; NULL for an id without one. */
MSTAR_API const char *mstar_tokenizer_get_token(const mstar_tokenizer *tokenizer, int32_t id);
/* -1 when there is no such token. */
MSTAR_API int32_t mstar_tokenizer_get_id(const mstar_tokenizer *tokenizer, const char *token);

/* ---- text encoder ---------------------------------------------------------------------------- */

typedef struct mstar_encoder mstar_encoder;

typedef struct mstar_encoder_desc {
    uint32_t struct_size;
    mstar_dtype dtype;  /* storage of matrices and tables: F32 (default) or BF16, on a GPU also
                           F16. With BF16, what products read is rounded to bf16 where the kernels
                           multiply pairs of bf16; the residual stream is f32 in both on a CPU, and
                           of this dtype on a GPU; vectors are f32 */
    int32_t pooling;    /* -1 as the folder says; else a mstar_pooling */
    int32_t normalize;  /* -1 as the folder says; 0 never; 1 always */
    int64_t max_tokens; /* -1 as the folder says; else from the special tokens to the positions,
                           also above the folder's own limit */
    mstar_truncate truncate;  /* default END */
    int32_t max_batch_tokens; /* tokens of one forward, which bounds the arena; -1: 1024 where all
                                 threads share it, 256 where a thread has it to itself, 8192 on a
                                 GPU, and no less than max_tokens */
    const char *
        prompt_name; /* a prompt of config_sentence_transformers.json; NULL: its default, "" none */
    int32_t timing;  /* 1: keep the times that mstar_encoder_query_times tells; on a GPU by events
                        between the launches, which cost some time themselves. Default 0 */
    int32_t graphs;  /* 1: forwards are captured at load, once a bucket, and replayed; the vectors
                        have the same bits. Not together with timing. Default 0 */
    const int64_t *graph_tokens; /* with graphs: tokens of the buckets, each >= 1; none: four an
                                    octave up to max_batch_tokens, which is always one */
    int64_t num_graph_tokens;
    const char *graph_compile_mode; /* with graphs: as in mstar_packed_graph_config_desc; NULL */
    int32_t graph_compile;          /* the same; default 1 */
    int32_t reserved;
} mstar_encoder_desc;
MSTAR_API void mstar_encoder_desc_init(mstar_encoder_desc *desc);

/*
 * Loads a folder onto a device. Fails before anything is allocated on the device when the folder is
 * incomplete or says something we cannot honour. The device must outlive the encoder. Strings of
 * desc are copied. The weights' files stay mapped until release: put a new version beside the old
 * one and rename it, since a file that is cut short under a mapping ends the process (SIGBUS).
 */
MSTAR_API mstar_status mstar_encoder_load(mstar_device *device, const char *folder,
                                          const mstar_encoder_desc *desc, mstar_encoder **encoder);
MSTAR_API void mstar_encoder_release(mstar_encoder *encoder);

typedef struct mstar_encoder_info {
    uint32_t struct_size;
    int32_t layers, heads, head_dim, hidden, intermediate;
    int32_t dims;         /* components of an output vector */
    int32_t normalize;    /* 1 when vectors have length 1 */
    int32_t num_poolings; /* modes, concatenated in this order */
    mstar_pooling poolings[6];
    mstar_dtype dtype;
    int32_t reserved;
    int64_t vocab_size;
    int64_t max_tokens; /* special tokens included */
    int64_t max_batch_tokens;
    uint64_t parameters;
    size_t weight_bytes; /* packed panels, tables, norms */
    size_t arena_bytes;  /* activations, attention workspaces and plans of all workers, as
                            they are now: plans grow with the first batches */
    int32_t num_workers;
    int32_t reserved2;
    char model_type[32];
    char activation[16];
    char pooling_source[128]; /* "1_Pooling/config.json", "assumed: mean (no modules.json)",
                                 "caller" */
    char normalize_source[128];
    char max_tokens_source[128]; /* "sentence_bert_config.json max_seq_length", ... */
    char prompt_source[128];
    char prompt[256]; /* the prompt in force, cut to fit */
} mstar_encoder_info;
MSTAR_API mstar_status mstar_encoder_query(const mstar_encoder *encoder, mstar_encoder_info *info);
/* What an encoder does with texts, in order: NAME, "name". */
#define MSTAR_STAGE_LIST(X)                                                                 \
    X(TOKENIZE, "tokenize")     /* texts to ids */                                          \
    X(EMBEDDING, "embedding")   /* tables summed, and the first norm */                     \
    X(QKV, "qkv")               /* query, key and value product */                          \
    X(ATTENTION, "attention")   /* plan and run */                                          \
    X(PROJECTION, "projection") /* attention's output product and residual */               \
    X(UP, "up")                 /* first product of the feed-forward part and activation */ \
    X(DOWN, "down")             /* second product and residual */                           \
    X(NORM, "norm")             /* the layers' norms */                                     \
    X(POOL, "pool")             /* pooling, modules after it, results */
typedef enum mstar_stage {
#define MSTAR_STAGE_ENUM(NAME, name) MSTAR_STAGE_##NAME,
    MSTAR_STAGE_LIST(MSTAR_STAGE_ENUM)
#undef MSTAR_STAGE_ENUM
        MSTAR_NUM_STAGES
} mstar_stage;
/* "qkv"; "unknown" outside the list. Static string. */
MSTAR_API const char *mstar_stage_name(mstar_stage stage);

typedef struct mstar_encoder_times {
    uint32_t struct_size;
    int32_t num_stages; /* MSTAR_NUM_STAGES of the library */
    int64_t ns[16];     /* by mstar_stage: since load, summed over the workers that ran at once; on
                           a GPU the device's time, but for texts to ids */
} mstar_encoder_times;
/* MSTAR_OUT_OF_ORDER when the encoder was loaded without desc.timing. */
MSTAR_API mstar_status mstar_encoder_query_times(const mstar_encoder *encoder,
                                                 mstar_encoder_times *times);

/*
 * What became of the batches of an encoder that was loaded with desc.graphs, all workers together;
 * and of one bucket of one worker (MSTAR_NOT_FOUND past the last). resource_bytes are those of the
 * buckets' attention wrappers. MSTAR_OUT_OF_ORDER without graphs.
 */
MSTAR_API mstar_status mstar_encoder_query_graphs(const mstar_encoder *encoder,
                                                  mstar_graph_runner_info *info);
MSTAR_API mstar_status mstar_encoder_query_graph_bucket(const mstar_encoder *encoder,
                                                        int32_t worker, int64_t index,
                                                        mstar_runner_bucket_info *info);

/* The encoder's tokenizer, borrowed. */
MSTAR_API const mstar_tokenizer *mstar_encoder_get_tokenizer(const mstar_encoder *encoder);

/* What happened to each text of a call. */
typedef struct mstar_text_result {
    int64_t tokens;             /* used, special tokens and prompt included */
    int64_t untruncated_tokens; /* before truncation; more than tokens when the text was cut */
} mstar_text_result;

/*
 * Texts to vectors: tokenise, forward, pool, normalise. vectors: count rows of dims f32,
 * row_stride elements apart (>= dims). results: count entries, or NULL. Vectors come in the order
 * of texts, and a text's bits do not depend on the others. An empty text is its special tokens. The
 * prompt in force goes before every text; where the folder keeps it out of pooling
 * (include_prompt), its tokens and the [CLS] before them stay out of every mode but cls, and places
 * still count from the text's first token. Ends with nothing written when a text is refused. One
 * thread at a time; the device's threads share the work.
 */
MSTAR_API mstar_status mstar_encoder_embed(mstar_encoder *encoder, const mstar_text *texts,
                                           int64_t count, float *vectors, int64_t row_stride,
                                           mstar_text_result *results);

/*
 * The same from token ids: S segments packed by cu_seqlens (host, S + 1 entries, first 0). type_ids
 * may be NULL (all 0). skip as in mstar_pooling_run. Ids outside the vocabulary and segments longer
 * than max_tokens are refused; an empty segment gives zeros.
 */
MSTAR_API mstar_status mstar_encoder_embed_ids(mstar_encoder *encoder, const int32_t *ids,
                                               const int32_t *type_ids, const int32_t *cu_seqlens,
                                               int64_t num_segments, const int32_t *skip,
                                               float *vectors, int64_t row_stride);

/* Last hidden states instead of vectors: out [T, hidden] f32, one row a token in the order of ids,
 * row_stride elements apart (>= hidden). */
MSTAR_API mstar_status mstar_encoder_hidden(mstar_encoder *encoder, const int32_t *ids,
                                            const int32_t *type_ids, const int32_t *cu_seqlens,
                                            int64_t num_segments, float *out, int64_t row_stride);

#ifdef __cplusplus
}
#endif

#endif
