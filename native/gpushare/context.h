/* Contexts, their limits and the modules loaded into them. See context.c. */
#ifndef GPUSHARE_CONTEXT_H
#define GPUSHARE_CONTEXT_H

void context_forked(void);

#endif
