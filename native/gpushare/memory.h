/* Plain allocations and the table of all allocated pointers. See memory.c. */
#ifndef GPUSHARE_MEMORY_H
#define GPUSHARE_MEMORY_H

#include "driver.h"

void memory_freed(CUdeviceptr pointer);                /* call after the driver freed it */
void memory_context_gone(CUcontext context, int last); /* refunds everything it owned; last: a device that has no context any more, or -1 */
void memory_forked(void);

/* Arrays are recorded in the same table: a handle is as unique as a pointer. */
CUresult memory_charged(int index, uint64_t bytes, uint64_t *granted); /* before the driver call */
void memory_created(uint64_t key, int index, uint64_t bytes);         /* after the driver call */

#endif
