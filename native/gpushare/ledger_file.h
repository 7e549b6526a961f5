/* Between ledger.c and ledger_file.c. */
#ifndef GPUSHARE_LEDGER_FILE_H
#define GPUSHARE_LEDGER_FILE_H

#include "layout.h"

extern struct ledger *ledger;               /* mapped; valid while the lock is held */
extern int own;                             /* our slot; valid after ledger_begin */
extern struct holding mine[MAX_DEVICES];    /* what we wrote there */

bool ledger_lock(void); /* false after refuse_all */
void ledger_unlock(void);
bool ledger_begin(int device); /* the lock, and a slot that is ours */
void ledger_rebuild(void);     /* with the lock held: totals from the slots */
bool ledger_is_own(void);      /* `mine` is of this process, not of the one that forked it */
uint64_t ledger_namespace(void);

#endif
