/* Lease arithmetic, apart from files, locks and clocks. See lease.c; tests/native/lease_model.py says the same in Python. */
#ifndef GPUSHARE_LEASE_H
#define GPUSHARE_LEASE_H

#include "gate.h"

#define QUANTUM_NS 10000000u       /* short enough for notebooks, long against a drain */
#define IDLE_NS 2000000u           /* a holder this long without a launch or a wait has nothing to do */
#define INACTIVE_NS 50000000u      /* after this a tenant starts afresh */
#define CROWDED_NS 1000000000u     /* until then another may come back, so queues stay short */
#define STUCK_NS 200000000u        /* past the quantum: killed or hung. Who waits asks every half millisecond: as long */
#define PERIOD_NS 100000000u       /* strict budgets */
#define HAND_OVER_NS 5000000u      /* for a process that does not come: its queue is kept below half a quantum */

enum turn { GO, DRAIN, WAIT, SLEEP };

/* With the gate's lock held. */
enum turn lease_ask(struct gate *g, int me, uint64_t now, uint64_t *until); /* may I launch? */
bool lease_drained(struct gate *g, int me, uint64_t now); /* my queue is empty: bill, and pass it on; false: not yet */
int lease_join(struct gate *g, const char *name, uint32_t weight, bool strict, uint64_t now); /* index, or -1 when full */

/* Without it, on the way of every launch and wait. `counted` is the process's own: under which lease it is in `queued`. */
bool lease_crowded(const struct gate *g, int me, uint64_t now); /* is anybody else here? */
void lease_launched(struct tenant *t, uint32_t *counted);
void lease_emptied(struct tenant *t, uint32_t *counted);
void lease_wait_begins(struct tenant *t);
void lease_wait_ends(struct tenant *t, uint64_t now);

#endif
