/* The lease rules as functions of state and time, without files, locks or clocks. See lease.c. The same rules in Python:
 * tests/native/lease_model.py. */
#ifndef GPUSHARE_LEASE_H
#define GPUSHARE_LEASE_H

#include "gate.h"

#define QUANTUM_NS 10000000u       /* length of a lease: short enough for notebooks, much longer than a drain */
#define IDLE_NS 2000000u           /* a holder that neither launches nor waits for this long is idle */
#define INACTIVE_NS 50000000u      /* after this long a tenant loses its credit and its debt */
#define CROWDED_NS 1000000000u     /* another tenant may come back within this time, so queues stay short */
#define STUCK_NS 200000000u        /* a holder this far past its quantum, or a waiter that did not ask for this long, is dead or hung */
#define PERIOD_NS 100000000u       /* of strict budgets */
#define HAND_OVER_NS 5000000u      /* longest wait for a process that does not drain: its queue is kept below half a quantum */

enum turn { GO, DRAIN, WAIT, SLEEP };

/* Call these with the gate's lock held. */
enum turn lease_ask(struct gate *g, int me, uint64_t now, uint64_t *until); /* may this tenant launch? */
bool lease_drained(struct gate *g, int me, uint64_t now); /* the caller's queue is empty: bill, hand over; false: not yet */
int lease_join(struct gate *g, const char *name, uint32_t weight, bool strict, uint64_t now); /* index, or -1 when full */

/* Call these without the lock, at every launch and wait. `counted` belongs to the process: the lease under which the
 * process is counted in `queued`. */
bool lease_crowded(const struct gate *g, int me, uint64_t now); /* is another tenant active? */
void lease_launched(struct tenant *t, uint32_t *counted);
void lease_emptied(struct tenant *t, uint32_t *counted);
void lease_wait_begins(struct tenant *t);
void lease_wait_ends(struct tenant *t, uint64_t now);

#endif
