/* Physical memory and its mappings. See vmm.c. */
#ifndef GPUSHARE_VMM_H
#define GPUSHARE_VMM_H

void vmm_forked(void);

#endif
