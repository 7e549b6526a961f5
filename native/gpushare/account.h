/* Charging: from a driver call to the ledger. See account.c. */
#ifndef GPUSHARE_ACCOUNT_H
#define GPUSHARE_ACCOUNT_H

#include "config.h"
#include "ledger.h"
#include "real.h"

#define MIB ((uint64_t)1 << 20)
#define BLOCK (2 * MIB)
static inline uint64_t round_up(uint64_t n, uint64_t to) { return n > UINT64_MAX - to ? UINT64_MAX / to * to : (n + to - 1) / to * to; }

int device_index(CUdevice device);  /* ledger index of a CUDA device, by UUID; -1: not ours, refuse */
int current_device(void);           /* of the calling thread's context; -1 without one */
CUcontext current_context(void);
bool device_allowance(int index, struct allowance *out);
CUdevice device_cuda(int index);    /* back again; -1 when not seen */

/* Room for bytes, or false: then the caller answers out of memory. Before a refusal dead processes are reaped, the
 * driver's own figure is asked, and unused pool memory is given up. */
bool charge(int index, uint64_t bytes, bool soft);
void refund(int index, uint64_t bytes, bool soft);
bool room_for(int index, uint64_t bytes);

/* A driver call that changes memory happens between these two, with its charge: a reconciliation in between would take
 * what is charged and not there yet for less overhead than there is. */
void change_begins(void);
void change_ends(void);

void mark_dirty(void);               /* something no call announces may have grown */
void reconcile(int index, bool now); /* now: whatever was asked last, else at most once a millisecond */
void account_forked(void);

#endif
