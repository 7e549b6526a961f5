/* The container's ledger: who holds how much, in a file all its processes map. See ledger.c and README.md. */
#ifndef GPUSHARE_LEDGER_H
#define GPUSHARE_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

enum { LEDGER_BYTES = 131072, LEDGER_SLOTS = 256 };

bool ledger_open(void); /* maps the file; false after refuse_all */
int ledger_device(const uint8_t uuid[16]); /* its index, entered when new; -1 when the ledger is no use */

/* Adds bytes if the total then stays within the limit. `soft` bytes may not be resident yet: managed memory, heaps. */
bool ledger_charge(int device, uint64_t bytes, bool soft, uint64_t limit);
void ledger_refund(int device, uint64_t bytes, bool soft);
void ledger_force(int device, uint64_t bytes); /* what the driver already holds is counted, limit or not */
bool ledger_context(int device, uint64_t bytes, uint64_t limit); /* sets the overhead to this, if it fits */
void ledger_overhead(int device, uint64_t bytes, bool only_grow); /* replaces what no call announced */
bool ledger_room(int device, uint64_t bytes, uint64_t limit);  /* would ledger_charge succeed? */
void ledger_refused(int device, uint64_t bytes);

void ledger_reap(void); /* gives back what dead processes held */
uint64_t ledger_total(int device);
uint64_t ledger_own(int device, uint64_t *overhead, uint64_t *soft); /* this process's charged bytes */
int ledger_pids(int32_t *pids, int most); /* of this PID namespace, alive or not */
void ledger_outdated(const char *name);
void ledger_forked(void);

#endif
