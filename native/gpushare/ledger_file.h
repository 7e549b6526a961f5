/* Shared by ledger.c and ledger_file.c only. */
#ifndef GPUSHARE_LEDGER_FILE_H
#define GPUSHARE_LEDGER_FILE_H

#include "layout.h"

extern struct ledger *ledger;               /* the mapped file; access it with the lock held */
extern int own;                             /* this process's slot; valid after ledger_begin */
extern struct holding mine[MAX_DEVICES];    /* what this process wrote to its slot */

bool ledger_lock(void); /* false after refuse_all */
void ledger_unlock(void);
bool ledger_begin(int device); /* takes the lock and makes sure that this process has a slot */
void ledger_rebuild(void);     /* with the lock held: recomputes the totals from the slots */
bool ledger_is_own(void);      /* `mine` belongs to this process, not to its parent */
uint64_t ledger_namespace(void);

#endif
