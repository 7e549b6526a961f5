/* The lease gate: which tenant may launch work on a GPU. The layout of the gate file and the calls that the launch entry
 * points make. */
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
    uint64_t vtime;    /* virtual time: billed nanoseconds x 1000 / weight */
    uint64_t held;     /* nanoseconds the lease was held; for readers of the file */
    uint64_t active;   /* last launch or end of a wait, monotonic */
    uint64_t period;   /* strict: start of the current period */
    uint64_t spent;    /* strict: nanoseconds used in it, with the overrun of earlier periods */
    uint64_t asked;    /* when one of its processes last had to wait; 0: none waits. Not a count: that would survive a kill */
    uint64_t handing;  /* since when it is handing the lease over; 0: it is not */
    uint32_t waits_for_work; /* threads inside a synchronize call */
    uint32_t futex;    /* number of leases it was granted; waiters wait on it */
    uint32_t queued;   /* its processes that launched work under this lease and have not synchronized since */
    uint32_t unused[3];
};
struct gate {
    uint32_t magic, version, size, ready;
    union { pthread_mutex_t mutex; char space[64]; };
    uint32_t holder;   /* index of the tenant + 1; 0: nobody */
    uint32_t unused;
    uint64_t start, end; /* of the holder's lease, monotonic; billed from start */
    char space2[152];
    struct tenant tenant[GATE_TENANTS];
};
_Static_assert(sizeof(struct tenant) == 152 && offsetof(struct gate, tenant) == 256, "gate layout");
_Static_assert(sizeof(struct gate) <= GATE_BYTES, "gate size");

void gate_launch(CUstream stream, bool per_thread); /* blocks until this process may launch */
void gate_forked(void);

#endif
