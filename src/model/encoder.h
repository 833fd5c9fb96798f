/*
 * encoder.h - the parts of a text encoder, in the order in which a folder becomes vectors: the
 * checkpoint's files, the configs of the folder, weights, one forward over packed tokens, and how a
 * call is cut into batches.
 */
#ifndef MST_ENCODER_H
#define MST_ENCODER_H

#include "base/base.h"
#include "device/backend.h"
#include "model/json.h"
#include "mstar/attention.h"
#include "mstar/model.h"
#include "mstar/ops.h"

/* ---- safetensors.c: checkpoints -------------------------------------------------------------- */

typedef struct mst_stored_tensor {
    const char *name; /* borrowed from the file's names */
    mstar_dtype dtype;
    int32_t rank;
    int64_t shape[MSTAR_MAX_RANK];
    int64_t count;    /* elements; 1 for rank 0 */
    uint64_t begin;   /* in the data area */
    size_t bytes;     /* count elements of dtype */
    const void *data; /* read-only, aligned to nothing */
    bool mapped;      /* the folder's index names it (always, without an index) */
} mst_stored_tensor;

typedef struct mst_safetensors {
    mst_file file;
    char *names;
    mst_stored_tensor *tensors; /* by name, ascending */
    int64_t num_tensors;
} mst_safetensors;

/* A whole file in memory: fills names and tensors; path is for errors. Nothing of data is copied
 * but names. */
mstar_status mst_safetensors_scan(const char *path, const void *data, size_t bytes,
                                  mst_safetensors *out);
mstar_status mst_safetensors_open(const char *path, mst_safetensors *out);
/* Takes a zeroed struct. */
void mst_safetensors_close(mst_safetensors *file);

typedef struct mst_checkpoint {
    mst_safetensors *files;
    int64_t num_files, capacity;
} mst_checkpoint;

/* model.safetensors of a folder, else model.safetensors.index.json and the shards it names. */
mstar_status mst_checkpoint_open(const char *folder, mst_checkpoint *checkpoint);
void mst_checkpoint_close(mst_checkpoint *checkpoint);
/* NULL when there is no such tensor. */
const mst_stored_tensor *mst_checkpoint_find(const mst_checkpoint *checkpoint, const char *name);
/* What was copied from a tensor is all that is needed of it: its pages may leave memory. */
void mst_checkpoint_let_go(const mst_checkpoint *checkpoint, const mst_stored_tensor *tensor);

/* ---- config.c: config.json ------------------------------------------------------------------- */

typedef struct mst_bert_config {
    char model_type[32];
    int32_t layers, heads, head_dim, hidden, intermediate;
    int32_t vocab_size, max_positions, type_vocab_size;
    double layer_norm_eps;
    mstar_activation activation;
} mst_bert_config;

/* folder/config.json of a BERT encoder; NOT_SUPPORTED names what we cannot honour. */
mstar_status mst_bert_config_read(const char *folder, mst_bert_config *config);
/* transformers' names of activations ("gelu", "gelu_new", ...). */
mstar_status mst_hidden_act_parse(const char *where, const char *text,
                                  mstar_activation *activation);
/* A Python path ("torch.nn.modules.activation.Tanh"), by its last part. */
mstar_status mst_activation_path_parse(const char *where, const char *text,
                                       mstar_activation *activation);

/* ---- folder.c, modules.c: everything else a folder says -------------------------------------- */

typedef enum mst_module_kind { MST_MODULE_DENSE, MST_MODULE_NORMALIZE } mst_module_kind;

/* A step after pooling. */
typedef struct mst_module {
    mst_module_kind kind;
    char *folder; /* Dense: where its weights are */
    int64_t in_features, out_features;
    mstar_activation activation;
    bool bias, residual;
} mst_module;

#define MST_SOURCE_BYTES 128
#define MST_NUM_POOLINGS 6

typedef struct mst_folder {
    char *transformer; /* folder of config.json, weights and tokenizer */
    mst_bert_config config;
    int32_t num_poolings;
    mstar_pooling poolings[MST_NUM_POOLINGS];
    bool include_prompt; /* the prompt's tokens count in pooling */
    bool lower_case;     /* texts are lowercased before the tokenizer sees them */
    mst_module *modules;
    int64_t num_modules, modules_capacity;
    int64_t dims;
    bool normalize; /* the last step is Normalize */
    int64_t max_tokens;
    char *prompt; /* "" for none */
    char pooling_source[MST_SOURCE_BYTES];
    char normalize_source[MST_SOURCE_BYTES];
    char max_tokens_source[MST_SOURCE_BYTES];
    char prompt_source[MST_SOURCE_BYTES];
} mst_folder;

/* Reads every config of a folder and applies the caller's overrides. */
mstar_status mst_folder_read(const char *folder, const mstar_encoder_desc *desc, mst_folder *out);
void mst_folder_release(mst_folder *folder);

/* modules.c: modules.json (absent: *found false) and the configs of its modules. */
mstar_status mst_modules_read(const char *folder, mst_folder *out, bool *found);
mstar_status mst_modules_add(mst_folder *folder, const mst_module *module);

/* ---- weights.c ------------------------------------------------------------------------------- */

typedef struct mst_norm {
    mstar_tensor weight, bias; /* f32 [hidden] */
} mst_norm;

typedef struct mst_layer {
    mstar_linear *qkv, *attention_out, *up, *down;
    mst_norm attention_norm, out_norm;
} mst_layer;

typedef struct mst_dense {
    mstar_linear *linear;
    mstar_linear *residual; /* NULL unless the widths differ and the module has a residual */
} mst_dense;

enum { MST_PLACED_NORMS = 3, MST_NUM_PLACED = 4 };

typedef struct mst_weights {
    mst_checkpoint checkpoint;            /* stays open: tables point into it */
    mstar_tensor words, positions, types; /* [rows, hidden] */
    mst_norm embedding_norm;
    mst_layer *layers;
    int32_t num_layers;
    mst_dense *dense; /* one a module; NULLs for Normalize */
    int64_t num_dense;
    void *owned_tables[3];
    void *norms;
    mstar_buffer *placed[MST_NUM_PLACED]; /* tables and norms on another device than the host */
    size_t bytes;
    uint64_t parameters;
} mst_weights;

/* Checks every tensor's shape before anything is built. dtype: F32 or BF16; F16 on a GPU. */
mstar_status mst_weights_load(mstar_device *device, const mst_folder *folder, mstar_dtype dtype,
                              mst_weights *weights);
void mst_weights_release(mst_weights *weights);
/* The dtype of activations that the layers' products read as it is. */
mstar_status mst_weights_x_dtype(const mst_weights *weights, mstar_dtype *dtype);

/* ---- batching.c: pure functions -------------------------------------------------------------- */

typedef enum mst_batch_mode {
    MST_BATCH_ROWS,    /* one batch after another, all threads on its rows */
    MST_BATCH_SEGMENTS /* whole batches handed out to serial workers */
} mst_batch_mode;

mst_batch_mode mst_batch_choose(int64_t num_segments, int64_t num_tokens, int32_t num_workers);
/* Batches to aim for, so that workers finish together and none passes max_batch_tokens by much. */
int64_t mst_batch_parts(int64_t num_tokens, int64_t max_batch_tokens, mst_batch_mode mode,
                        int32_t num_workers);
/*
 * Places of the lengths > 0, longest first, equal ones as they come; returns how many. lengths are
 * at most max_length; counts is scratch of max_length + 1 entries.
 */
int64_t mst_batch_order(const int32_t *lengths, int64_t num_lengths, int32_t max_length,
                        int64_t *counts, int64_t *order);
/*
 * Cuts the ordered segments into consecutive batches: none empty, none over max_batch_tokens (no
 * length may be), about num_tokens / num_parts tokens each. ends[b]: one past the last place of
 * batch b; room for num_segments. Returns the number of batches.
 */
int64_t mst_batch_cut(const int32_t *lengths, const int64_t *order, int64_t num_segments,
                      int64_t num_tokens, int64_t num_parts, int64_t max_batch_tokens,
                      int64_t *ends);

/* Work of one text, in tokens: its products, and its attention, which grows with the square. */
int64_t mst_batch_cost(int64_t length, int64_t hidden);
#define MST_EVEN_WORKERS 64
/*
 * Whether serial workers that take the batches in order, each as soon as it is free, are done no
 * later than all threads sharing the rows would be. Always true with more than four batches a
 * worker, which even out, or more than MST_EVEN_WORKERS workers.
 */
bool mst_batch_is_even(const int32_t *lengths, const int64_t *order, const int64_t *ends,
                       int64_t num_batches, int64_t hidden, int32_t num_workers);

/* ---- worker.c: one stream, one arena --------------------------------------------------------- */

#define MST_STAGE_SLOTS 16
_Static_assert(MSTAR_NUM_STAGES <= MST_STAGE_SLOTS, "every stage has its place in the times");

typedef struct mst_worker_graphs mst_worker_graphs;
typedef struct mst_stage_marks mst_stage_marks;

typedef struct mst_worker {
    mstar_stream *stream; /* serial */
    mstar_ragged_prefill *attention;
    mst_worker_graphs *graphs; /* NULL: every forward runs eager */
    void *memory;
    size_t memory_bytes;
    /* cut from memory */
    void *x;           /* [tokens, hidden] */
    void *sum;         /* the same in f32: what the norms read; on the host it is x */
    void *scratch;     /* qkv and context, or the intermediate rows, or pooled vectors (f32) */
    mstar_dtype dtype; /* of qkv, context and intermediate rows: what the products read as it is */
    int32_t *ids, *type_ids, *positions;
    int32_t *offsets, *skip;
    /* on another device than the host */
    mstar_buffer *device_memory; /* of x, sum and scratch */
    float *host_rows;            /* results on their way to the caller */
    mstar_dtype x_dtype;         /* f32 on the host */
    /* tokenising: kept between calls */
    mstar_tokens tokens;
    int32_t *stored_ids;
    int64_t num_stored, stored_capacity;
    void *text, *lower; /* with the prompt; lowercased */
    int64_t text_capacity, lower_capacity;
    bool timing;
    mst_stage_marks *marks; /* between stages of a device with memory of its own */
    int64_t stage_ns[MST_STAGE_SLOTS];
    /* outcome of a call */
    mstar_status status;
    int64_t failed_text;
    char error[1024];
} mst_worker;

/* What a worker's attention is; its workspace comes from whoever opens the worker. */
void mst_worker_attention(const mst_folder *folder, mstar_dtype dtype,
                          mstar_ragged_prefill_desc *desc);
mstar_status mst_worker_open(mstar_device *device, const mst_folder *folder, mstar_dtype dtype,
                             int64_t max_batch_tokens, void *workspace, size_t workspace_bytes,
                             mst_worker *worker);
/* One that only tokenises: where one worker gives a device all its work. */
void mst_worker_open_bare(mst_worker *worker);
void mst_worker_close(mst_worker *worker);
/* Arena and plan as they are now. */
mstar_status mst_worker_bytes(const mst_worker *worker, size_t *bytes);

/* stages.c: the worker keeps times from here on; closing frees what that takes. */
mstar_status mst_stages_open(mstar_device *device, mst_worker *worker);
void mst_stages_close(mst_worker *worker);
/* Around a batch on this stream. The end waits for the batch's last event, if there is one, and
 * gives the batch's status or what went wrong with its events. */
void mst_stages_begin(mst_worker *worker, mstar_stream *stream);
mstar_status mst_stages_end(mst_worker *worker, mstar_status status);
/* Now, and adding the time since `start` to a stage; both 0 and nothing without timing. */
int64_t mst_stage_start(const mst_worker *worker);
int64_t mst_stage_end(mst_worker *worker, mstar_stage stage, int64_t start);

/* A compact f32 matrix. */
static inline mstar_tensor mst_matrix(float *data, int64_t rows, int64_t columns)
{
    const int64_t shape[2] = {rows, columns};
    return mstar_tensor_make(data, MSTAR_DTYPE_F32, 2, shape);
}

/*
 * Rows of activations, one a token. Rows whose distance is a multiple of 4096 bytes would share the
 * few sets of a first-level cache, so those are kept a line further apart.
 */
static inline int64_t mst_token_stride(int64_t columns)
{
    return columns % 1024 == 0 ? columns + 16 : columns;
}

static inline mstar_tensor mst_token_rows(void *data, mstar_dtype dtype, int64_t tokens,
                                          int64_t columns)
{
    const int64_t shape[2] = {tokens, columns};
    mstar_tensor rows = mstar_tensor_make(data, dtype, 2, shape);
    rows.strides[0] = mst_token_stride(columns);
    return rows;
}

/* ---- place.c: memory of another device than the host ----------------------------------------- */

bool mst_place_is_host(const mstar_device *device);
/* The tensor as one of the device's. */
mstar_tensor mst_place(const mstar_device *device, mstar_tensor tensor);
/* Sends tables and norms, built in host memory, to the device; nothing on the host. */
mstar_status mst_weights_place(mstar_device *device, size_t norm_bytes, mst_weights *weights);
/* Waits for rows of f32 that a forward has left, stride apart; *rows becomes where the host reads
 * them. */
mstar_status mst_worker_fetch(mst_worker *worker, mstar_stream *stream, const float **rows,
                              int64_t num_rows, int64_t stride);
/* Makes worker->sum the last hidden states in f32; on the host it is them already. */
mstar_status mst_worker_hidden(const mst_bert_config *config, mst_worker *worker,
                               mstar_stream *stream, int64_t num_tokens);

/* ---- bert.c, pooler.c: the forward ----------------------------------------------------------- */

/*
 * ids, type_ids and positions of num_tokens packed tokens and their offsets lie in the worker; the
 * last hidden states end up in worker->x.
 */
mstar_status mst_bert_forward(const mst_bert_config *config, const mst_weights *weights,
                              mst_worker *worker, mstar_stream *stream, int64_t num_tokens,
                              int64_t num_segments);
/* What a plan is made for once it has been made: nothing but work given to the stream. */
mstar_status mst_bert_run(const mst_bert_config *config, const mst_weights *weights,
                          mst_worker *worker, mstar_ragged_prefill *attention, mstar_stream *stream,
                          int64_t num_tokens);

/* ---- worker_graphs.c: forwards captured once a bucket ---------------------------------------- */

/*
 * Pure: token counts of the buckets for batches of up to max_tokens, ascending, the last of them
 * max_tokens: those given, else four an octave. Writes at most capacity; returns how many there
 * are.
 */
int64_t mst_graph_buckets(int64_t max_tokens, const int64_t *given, int64_t num_given,
                          int64_t *tokens, int64_t capacity);
/* Their config. */
mstar_status mst_graph_config_open(int64_t max_tokens, const mstar_encoder_desc *desc,
                                   mstar_graph_config **config);
/* Captures the worker's buckets; buckets is kept. workers: of the encoder, opened in their order.
 */
mstar_status mst_worker_graphs_open(mstar_device *device, const mst_folder *folder,
                                    const mst_weights *weights, const mstar_graph_config *buckets,
                                    void *workspace, size_t workspace_bytes,
                                    const mst_worker *workers, mst_worker *worker);
void mst_worker_graphs_close(mst_worker_graphs *graphs);
/* The forward of what lies in the worker, replayed where a bucket holds it. */
mstar_status mst_worker_graphs_forward(mst_worker_graphs *graphs, mstar_stream *stream,
                                       int64_t num_segments);
mstar_status mst_worker_graphs_bytes(const mst_worker_graphs *graphs, size_t *bytes);

/* Floats of scratch that pooling and the modules need for one segment. */
int64_t mst_pooler_width(const mst_folder *folder);
/*
 * Pools worker->x and runs the modules: *vectors are num_segments rows of folder->dims floats in
 * the worker's scratch. skip NULL: nothing stays out; cls_skips: CLS too takes the first token
 * that is not skipped.
 */
mstar_status mst_pooler_run(const mst_folder *folder, const mst_weights *weights,
                            mst_worker *worker, mstar_stream *stream, int64_t num_tokens,
                            int64_t num_segments, const int32_t *skip, bool cls_skips,
                            const float **vectors);

/* ---- lowercase.c ----------------------------------------------------------------------------- */

/*
 * str.lower() of Python; what is not UTF-8 becomes U+FFFD, as the tokenizer reads it. out grows as
 * by mst_grow.
 */
mstar_status mst_lowercase(const char *text, size_t bytes, void **out, int64_t *capacity,
                           size_t *out_bytes);

/* ---- encoder.c, texts.c ---------------------------------------------------------------------- */

/* A text or id list of a call. */
typedef struct mst_segment {
    const int32_t *ids;
    const int32_t *type_ids; /* NULL: zeros */
    int64_t first;           /* row of the caller's; while tokenising: place in a worker's store */
    int64_t untruncated;
    int32_t worker; /* while tokenising: whose store */
    int32_t skip;
    bool typed; /* while tokenising: type ids lie behind the ids */
} mst_segment;

struct mstar_encoder {
    mstar_device *device;
    mst_folder folder;
    mstar_dtype dtype;
    mstar_tokenizer *tokenizer;
    mstar_tokenize_desc tokenize;
    int32_t prompt_tokens; /* of [CLS] and prompt, when they stay out of pooling; else 0 */
    mst_weights weights;
    int64_t max_batch_tokens;    /* of a forward that all threads share */
    int64_t worker_batch_tokens; /* of one that a worker has to itself; at most the above */
    mst_worker *workers;
    int32_t num_workers;
    /* buckets of the first worker, whose batches are the largest, and of the others; NULL: eager */
    mstar_graph_config *graph_configs[2];
    void *workspaces;                /* of the workers' attention, overlapping */
    mstar_buffer *workspaces_buffer; /* what they lie in on another device than the host */
    size_t workspaces_bytes;
    mstar_stream *stream; /* all threads */
    int64_t *counts;      /* folder.max_tokens + 1 */
    /* a call's arrays, kept and grown */
    mst_segment *segments;
    int64_t segments_capacity;
    int32_t *lengths;
    int64_t lengths_capacity;
    int64_t *order;
    int64_t order_capacity;
    int64_t *ends;
    int64_t ends_capacity;
};

/* place.c: workers that do forwards: all on the host, the first on a device, where the others only
 * tokenise. */
int32_t mst_encoder_forwarders(const mstar_encoder *encoder);
/* encoder.c: room for a call of num_segments. */
mstar_status mst_encoder_reserve(mstar_encoder *encoder, int64_t num_segments);
/* texts.c: fills segments and lengths of a call, whose arrays have been reserved. */
mstar_status mst_encoder_tokenize(mstar_encoder *encoder, const mstar_text *texts, int64_t count);

#endif
