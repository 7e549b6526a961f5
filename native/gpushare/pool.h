/* Stream-ordered memory pools. See pool.c. */
#ifndef GPUSHARE_POOL_H
#define GPUSHARE_POOL_H

#include <stdbool.h>
#include <stdint.h>

void pools_settle(int index); /* charges the pools and the graph memory of a device as the driver holds them now */
void pools_trim(int index);   /* returns their unused memory to the driver */
void pools_drop(int index);   /* refunds them when the device's last context is destroyed */
void pools_forked(void);
void graph_memory_used(void); /* from now on graph launches may allocate memory */
int graphs_allocate(void);
bool graph_fits(int index, uint64_t bytes);   /* does one more allocation node of this size fit? */
bool graph_charge(int index, uint64_t bytes, bool has_it); /* before a launch; has_it: the graph may still hold its memory */

#endif
