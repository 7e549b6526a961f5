/* Stream-ordered memory. See pool.c. */
#ifndef GPUSHARE_POOL_H
#define GPUSHARE_POOL_H

#include <stdbool.h>
#include <stdint.h>

void pools_settle(int index); /* counts every pool of a device, and graph memory, as the driver holds it now */
void pools_trim(int index);   /* gives what they do not use back to the driver */
void pools_drop(int index);   /* their device's last context is gone */
void pools_forked(void);
void graph_memory_used(void); /* from now on a graph launch may take memory */
int graphs_allocate(void);
bool graph_fits(int index, uint64_t bytes);   /* is there room for one more node of so much? */
bool graph_charge(int index, uint64_t bytes, bool has_it); /* before a launch that needs so much, or may have it already */

#endif
