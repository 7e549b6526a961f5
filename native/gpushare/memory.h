/* Plain allocations, and the records of all pointers. See memory.c. */
#ifndef GPUSHARE_MEMORY_H
#define GPUSHARE_MEMORY_H

#include "driver.h"

void memory_freed(CUdeviceptr pointer);                /* the driver let go of it */
void memory_context_gone(CUcontext context, int last); /* with all it owned; last: the index of a device without contexts now, or -1 */
void memory_forked(void);

/* arrays keep their records here too: a handle is as unique as a pointer */
CUresult memory_charged(int index, uint64_t bytes, uint64_t *granted); /* before the call */
void memory_created(uint64_t key, int index, uint64_t bytes);         /* after it */

#endif
