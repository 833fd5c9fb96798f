/*
 * mstar/base.h - statuses, error text, version, memory, and the rules that hold for every header.
 *
 * Rules for the whole library
 *   Errors      Every function that can fail returns mstar_status; 0 is MSTAR_OK. Nothing in the
 *               library aborts, exits or prints. When a call fails, mstar_last_error() of the same
 *               thread names the argument, its value and the bound. A refused call changes
 *               nothing: objects keep their former state and stay usable.
 *   Descs       A desc starts with `uint32_t struct_size`, written by its _desc_init function
 *               together with every default. Fields beyond the caller's struct_size take their
 *               defaults; a struct_size of 0 is refused. "Not given" is -1 for counts and windows
 *               and NaN for sm_scale; 0 is an ordinary value.
 *   Output      An info struct also starts with struct_size, set by the caller; the library never
 *   structs     writes past it.
 *   Ownership   Pointers passed in are borrowed for the call unless the declaration says "copied"
 *               or "kept". _create/_open/_load give an object to the caller; the matching
 *               _destroy/_close/_release takes it back and accepts NULL. _get returns something
 *               borrowed from the object, _query copies into the caller's memory.
 *   Threads     Functions without an object are safe on any thread at once. An object may be used
 *               by one thread at a time unless its declaration says otherwise; two objects may be
 *               used on two threads at once, also when they share a device.
 *   Units       Names carry them: _bytes, _tokens, _segments, _ns. Strides count elements.
 *   Letters     T packed tokens, S segments, H query heads, K kv heads, D head dim, M model width.
 *   Compilers   The headers compile as C11, C17 and C++17 and include only standard headers.
 */
#ifndef MSTAR_BASE_H
#define MSTAR_BASE_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define MSTAR_API
#else
#define MSTAR_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define MSTAR_VERSION_MAJOR 0
#define MSTAR_VERSION_MINOR 1
#define MSTAR_VERSION_PATCH 0

/*
 * The one table of statuses: value, name, short text, HTTP status of a server that met it, Python
 * exception class. Groups by what the caller can do: 1.. fix the call, 16.. use something else,
 * 32.. free or wait, 48.. look at the device, 64.. look at the data, 80.. give more time.
 */
#define MSTAR_STATUS_LIST(X)                                           \
    X(0, OK, "ok", 200, None)                                          \
    X(1, INVALID_ARGUMENT, "invalid argument", 400, ValueError)        \
    X(2, NOT_FOUND, "not found", 404, KeyError)                        \
    X(3, OUT_OF_ORDER, "call out of order", 409, RuntimeError)         \
    X(16, NOT_SUPPORTED, "not supported", 400, NotImplementedError)    \
    X(32, OUT_OF_MEMORY, "out of memory", 503, MemoryError)            \
    X(33, BUSY, "busy", 429, RuntimeError)                             \
    X(48, DEVICE_UNAVAILABLE, "device unavailable", 503, RuntimeError) \
    X(49, DEVICE_FAILED, "device failed", 500, RuntimeError)           \
    X(64, IO_FAILED, "input or output failed", 500, OSError)           \
    X(65, BAD_DATA, "malformed data", 422, ValueError)                 \
    X(80, TIMED_OUT, "timed out", 504, TimeoutError)                   \
    X(81, CANCELLED, "cancelled", 499, RuntimeError)                   \
    X(96, INTERNAL, "internal fault", 500, RuntimeError)

typedef enum mstar_status {
#define MSTAR_STATUS_ENUM(value, name, text, http, python) MSTAR_##name = value,
    MSTAR_STATUS_LIST(MSTAR_STATUS_ENUM)
#undef MSTAR_STATUS_ENUM
} mstar_status;

/* "INVALID_ARGUMENT"; "UNKNOWN" for a value outside the table. Static string. */
MSTAR_API const char *mstar_status_name(mstar_status status);
/* "invalid argument"; "unknown status" for a value outside the table. Static string. */
MSTAR_API const char *mstar_status_text(mstar_status status);
/* HTTP status code of the table; 500 for a value outside it. */
MSTAR_API int mstar_status_http(mstar_status status);
/* Name of the Python exception class of the table; "RuntimeError" for a value outside it. */
MSTAR_API const char *mstar_status_python(mstar_status status);

/*
 * Text of the last call that failed on this thread: which argument, its value, the bound. Never
 * NULL; "" when nothing has failed yet. A call that succeeds does not change it. The string is
 * borrowed and valid until the next library call on this thread.
 */
MSTAR_API const char *mstar_last_error(void);
/*
 * For the hooks and callbacks that a host gives to the library: leaves text (copied, cut at 1023
 * bytes; NULL is "") as this thread's last error and returns status, so that the call around it
 * says why: return mstar_fail(MSTAR_IO_FAILED, "the store is gone");
 */
MSTAR_API mstar_status mstar_fail(mstar_status status, const char *text);

/* "0.1.0" of the library that is loaded, which may be newer than the header. Static string. */
MSTAR_API const char *mstar_version(void);
/* One line: version, commit, compiler, ISA bodies built in, backends. Static string. */
MSTAR_API const char *mstar_build_info(void);

/*
 * Where every byte of the library comes from. alloc returns memory aligned to `alignment` (a power
 * of two) or NULL; release gets what alloc returned and the same bytes. Both may be called on any
 * thread. The struct is copied.
 */
typedef struct mstar_allocator {
    void *(*alloc)(void *context, size_t bytes, size_t alignment);
    void (*release)(void *context, void *memory, size_t bytes);
    void *context;
} mstar_allocator;

/*
 * Replaces the process-wide allocator; NULL restores the default one. Refused with
 * MSTAR_OUT_OF_ORDER while any allocation of the library is alive. Not safe at the same time as
 * any other call of the library.
 */
MSTAR_API mstar_status mstar_set_allocator(const mstar_allocator *allocator);

/*
 * Fault hook for tests: called before each allocation with its running number (from 1) and size; a
 * non-zero answer makes that allocation fail. NULL removes it. Setting it starts the numbers
 * again. Same thread rule as mstar_set_allocator.
 */
typedef int (*mstar_alloc_fault)(void *context, uint64_t number, size_t bytes);
MSTAR_API void mstar_set_alloc_fault(mstar_alloc_fault fault, void *context);

/* What the library holds now: bytes asked for, live allocations, and how many were ever made. */
typedef struct mstar_memory_info {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t live_bytes;
    uint64_t live_allocations;
    uint64_t total_allocations;
    uint64_t peak_bytes;
} mstar_memory_info;
MSTAR_API mstar_status mstar_memory_query(mstar_memory_info *info);

/*
 * Log sink: gets every message of the library (a machine that lacks a wished ISA, a model whose
 * pooling had to be assumed). Without one, messages are dropped; what they say is also in info
 * structs. level: 0 debug, 1 info, 2 warning, 3 error. May be called on any thread. Same thread
 * rule as mstar_set_allocator.
 */
typedef void (*mstar_log_sink)(void *context, int level, const char *message);
MSTAR_API void mstar_set_log_sink(mstar_log_sink sink, void *context);

#ifdef __cplusplus
}
#endif

#endif
