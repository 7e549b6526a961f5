/* Places where a test build can be made to die, so that every write of the critical section is hit by a kill.
 * GPUSHARE_FAULT=between:3 kills the process the third time it passes that place. Compiled out of the shipped library. */
#ifndef GPUSHARE_FAULT_H
#define GPUSHARE_FAULT_H

#ifdef GPUSHARE_TEST
void fault_point(const char *name);
#define FAULT(name) fault_point(name)
#else
#define FAULT(name) ((void)0)
#endif

#endif
