/*
 * support_loans.h - tensors of host memory, lent to a stream's device for the length of a call.
 *
 * A tensor in a block that is known (check_block_find) takes the whole block along, with its guards
 * and poison, and the whole comes back: what a kernel writes beside its rows shows. Of other memory
 * the bytes of the view go, and come back where they are written. On a CPU stream nothing is copied
 * and the call gets the tensors themselves.
 */
#ifndef SUPPORT_LOANS_H
#define SUPPORT_LOANS_H

#include "support_check.h"

enum { MAX_LOANS = 12 };

typedef struct loan {
    unsigned char *memory;
    size_t bytes, at; /* at: of the memory in the buffer */
    bool comes_back;
    bool by_rows; /* of a view whose rows lie far apart only these are copied */
    mstar_buffer *buffer;
    mstar_tensor tensor;
} loan;

typedef struct loans {
    mstar_stream *stream;
    int count;
    loan list[MAX_LOANS];
    bool aligned; /* the device's tensor begins on 16 bytes; else as far off as the host's */
} loans;

/* The tensor on the stream's device; NULL, and what has no memory or is there, stays. */
const mstar_tensor *loans_lend(loans *all, const mstar_tensor *tensor);
const mstar_tensor *loans_lend_out(loans *all, const mstar_tensor *tensor);
/* What the host's memory holds now goes to the device once more. */
void loans_send(const loans *all);
/* What the device has comes to the host, when all work of the stream is done. */
void loans_fetch(const loans *all);
/* Fetches and ends the loans; returns status. */
mstar_status loans_return(loans *all, mstar_status status);
void loans_drop(loans *all);

#endif
