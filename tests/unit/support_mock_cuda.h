/*
 * support_mock_cuda.h - a CUDA driver in host memory: the CUDA backend runs on it without a card.
 *
 * Device memory is host memory and copies happen at once. A launch of an attention kernel is
 * carried out item by item in double precision, from the very arguments and image that a card would
 * read, so a work list that misses or doubles a key gives a wrong result. A launch of a row kernel
 * runs the kernel's own source, see mock_simt.h. Any call can be made to fail.
 */
#ifndef SUPPORT_MOCK_CUDA_H
#define SUPPORT_MOCK_CUDA_H

#include "cuda/attn_args.h"
#include "cuda/cuda.h"

typedef enum mock_call {
#define MOCK_CALL(name, symbol, arguments) MOCK_##name,
    MST_CUDA_FUNCTIONS(MOCK_CALL)
#undef MOCK_CALL
        MOCK_CALLS
} mock_call;

typedef struct mock_cuda {
    int version, devices, major, multiprocessors;
    int ptx_version; /* that kernels were compiled for */
    int64_t calls[MOCK_CALLS];
    mock_call fail_call; /* of which the fail_after-th from now fails with fail_result; 0 none */
    int64_t fail_after;
    int fail_result;
    bool events_pending; /* recorded events have not ended */
    int live;            /* memory, streams, events, modules, graphs that are not given back */
    int context_depth;   /* pushed and not popped */
    bool is_current;     /* the host works in the device's context itself */
    int memory_ordinal;  /* the device that all memory is said to be of */
    int64_t free_bytes;
    int64_t graph_bytes; /* that the driver takes for each graph that is ready */
    int64_t launches, split_items, shared_items, items;
    /* runs the attention kernels' own source in place of double precision; NULL: not */
    const char *(*run_tile)(const char *symbol, const mst_cuda_attn_args *args, unsigned grid,
                            size_t shared_bytes, unsigned seed);
    unsigned grid, shared_bytes; /* of the last launch */
    bool overlaps;               /* the last launch did not wait for the one before */
    char kernel[64];             /* of the last launch */
    char fault[128];             /* what a launch found wrong; "" nothing */
    void *capturing;             /* the stream that captures */
    struct mock_graph *recorded; /* so far */
    int capture_mode;            /* that this thread's calls go by */
} mock_cuda;

/* Work of a library's on a stream: runs now, or is recorded with a copy of its arguments. */
typedef void mock_call_function(const void *args);
enum { MOCK_CALL_BYTES = 160 };
int mock_cuda_call(void *stream, mock_call_function *call, const void *args, size_t bytes);
/* What a launch found wrong; the first one is kept. */
void mock_cuda_fault(const char *text);
/* support_mock_attn.c: carries out one launch; 0. */
int mock_attention_run(mock_cuda *mock, const mst_cuda_kernel *kernel,
                       const mst_cuda_attn_args *args, unsigned grid);

/* Puts the mock in the driver's place, as good as new. */
mock_cuda *mock_cuda_install(void);
/* The one that is installed. */
mock_cuda *mock_cuda_now(void);
/* Takes it away; fails the test where something was not given back. */
void mock_cuda_remove(void);
/* Opens device 0 of the CUDA backend over the mock. Closed by mock_cuda_close. */
mstar_status mock_cuda_open(mstar_device **device);
/* The same with so many threads of the host; one above. */
mstar_status mock_cuda_open_threads(int32_t threads, mstar_device **device);
void mock_cuda_close(mstar_device *device);

#endif
