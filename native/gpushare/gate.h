/* The lease gate: whose turn it is on a GPU. The file's layout, and the few calls the launch entry points make. */
#ifndef GPUSHARE_GATE_H
#define GPUSHARE_GATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "driver.h"

enum { GATE_BYTES = 16384, GATE_TENANTS = 32, GATE_MAGIC = 0x47415445, GATE_VERSION = 1 };

struct tenant {
    char name[64];
    uint32_t weight;   /* milli-GPU */
    uint32_t strict;
    uint64_t vtime;    /* billed nanoseconds x 1000 / weight */
    uint64_t held;     /* nanoseconds the lease was held, for readers */
    uint64_t active;   /* last launch or end of a wait, monotonic */
    uint64_t period;   /* strict: when the current period began */
    uint64_t spent;    /* strict: nanoseconds used of it, overrun carried over */
    uint64_t asked;    /* last time one of its processes asked in vain; 0: none waits. A time, for a count outlives the killed */
    uint64_t handing;  /* since when it wants to hand the lease over; 0: it does not */
    uint32_t waits_for_work; /* threads inside a synchronise call */
    uint32_t futex;    /* leases it was given so far */
    uint32_t queued;   /* of its processes, those that launched under this lease and have not waited for it since */
    uint32_t unused[3];
};
struct gate {
    uint32_t magic, version, size, ready;
    union { pthread_mutex_t mutex; char space[64]; };
    uint32_t holder;   /* tenant + 1; 0 nobody */
    uint32_t unused;
    uint64_t start, end; /* of the holder's lease, monotonic; billing begins at start */
    char space2[152];
    struct tenant tenant[GATE_TENANTS];
};
_Static_assert(sizeof(struct tenant) == 152 && offsetof(struct gate, tenant) == 256, "gate layout");
_Static_assert(sizeof(struct gate) <= GATE_BYTES, "gate size");

void gate_launch(CUstream stream, bool per_thread); /* returns when this process may launch */
void gate_forked(void);

#endif
