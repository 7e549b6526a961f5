/* The container's ledger: how much memory each process holds, in a file that all of them map. See ledger.c and
 * README.md. */
#ifndef GPUSHARE_LEDGER_H
#define GPUSHARE_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

enum { LEDGER_BYTES = 131072, LEDGER_SLOTS = 256 };

bool ledger_open(void); /* maps the file; false after refuse_all */
int ledger_device(const uint8_t uuid[16]); /* its index; adds a new device; -1 when the ledger is unusable or full */

/* Adds bytes if the total stays within the limit. `soft` bytes may not be resident yet: managed memory, heaps. */
bool ledger_charge(int device, uint64_t bytes, bool soft, uint64_t limit);
void ledger_refund(int device, uint64_t bytes, bool soft);
void ledger_force(int device, uint64_t bytes); /* adds bytes that the driver already holds, even beyond the limit */
bool ledger_context(int device, uint64_t bytes, uint64_t limit); /* sets the overhead, if it fits */
void ledger_overhead(int device, uint64_t bytes, bool only_grow); /* sets the bytes that no hooked call allocated */
bool ledger_room(int device, uint64_t bytes, uint64_t limit);  /* would ledger_charge succeed? */
void ledger_refused(int device, uint64_t bytes);

void ledger_reap(void); /* frees the slots of dead processes */
uint64_t ledger_total(int device);
uint64_t ledger_own(int device, uint64_t *overhead, uint64_t *soft); /* bytes charged to this process */
int ledger_pids(int32_t *pids, int most); /* in this PID namespace, including dead ones not yet reaped */
void ledger_outdated(const char *name);
void ledger_forked(void);

#endif
