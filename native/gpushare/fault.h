/* Fault points: a test build can kill itself there, so that tests can kill a process at every write of the critical
 * section. GPUSHARE_FAULT=between:3 kills the process when it passes the point `between` for the third time. Compiled
 * out of the shipped library. */
#ifndef GPUSHARE_FAULT_H
#define GPUSHARE_FAULT_H

#ifdef GPUSHARE_TEST
void fault_point(const char *name);
#define FAULT(name) fault_point(name)
#else
#define FAULT(name) ((void)0)
#endif

#endif
