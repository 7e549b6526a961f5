/* Lease arithmetic, apart from files, locks and clocks. The gate's lock is held by the caller. See lease.c. */
#ifndef GPUSHARE_LEASE_H
#define GPUSHARE_LEASE_H

#include "gate.h"

#define QUANTUM_NS 10000000u       /* short enough for notebooks, long against a drain */
#define IDLE_NS 2000000u           /* a holder this long without a launch or a wait has nothing to do */
#define INACTIVE_NS 50000000u      /* after this a tenant starts afresh */
#define STUCK_NS 200000000u        /* past the quantum: killed or hung */
#define PERIOD_NS 100000000u       /* strict budgets */

enum turn { GO, DRAIN, WAIT, SLEEP };

enum turn lease_ask(struct gate *g, int me, uint64_t now, uint64_t *until); /* may I launch? */
void lease_drained(struct gate *g, int me, uint64_t now); /* my queue is empty: bill, and pass it on */
int lease_join(struct gate *g, const char *name, uint32_t weight, bool strict, uint64_t now); /* index, or -1 when full */

#endif
