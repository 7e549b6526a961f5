/* CUDA graphs that allocate memory. See graph.c. */
#ifndef GPUSHARE_GRAPH_H
#define GPUSHARE_GRAPH_H

void graph_forked(void);

#endif
