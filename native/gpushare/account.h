/* Charges driver calls to the ledger. See account.c. */
#ifndef GPUSHARE_ACCOUNT_H
#define GPUSHARE_ACCOUNT_H

#include "config.h"
#include "ledger.h"
#include "real.h"

#define MIB ((uint64_t)1 << 20)
#define BLOCK (2 * MIB)
static inline uint64_t round_up(uint64_t n, uint64_t to) { return n > UINT64_MAX - to ? UINT64_MAX / to * to : (n + to - 1) / to * to; }

int device_index(CUdevice device);  /* ledger index of a CUDA device, by UUID; -1: not this container's GPU, refuse */
int current_device(void);           /* ledger index of the calling thread's context; -1 without a context */
CUcontext current_context(void);
bool device_allowance(int index, struct allowance *out);
CUdevice device_cuda(int index);    /* the inverse of device_index; -1 when the device was not looked up before */

/* Charges bytes. Returns false when they do not fit; the caller then returns CUDA_ERROR_OUT_OF_MEMORY. Before it
 * refuses, it reaps dead processes, reconciles with the driver's figure and trims unused pool memory. */
bool charge(int index, uint64_t bytes, bool soft);
void refund(int index, uint64_t bytes, bool soft);
bool room_for(int index, uint64_t bytes); /* would charge() succeed? Charges nothing */

/* Bracket a driver call that changes memory together with its charge. A reconciliation in between would see bytes that
 * are charged but not yet allocated and would compute too little overhead. */
void change_begins(void);
void change_ends(void);

void mark_dirty(void);               /* memory outside of the hooked calls may have grown */
void reconcile(int index, bool now); /* now: query the driver at once; otherwise at most once per millisecond */
void account_forked(void);

#endif
