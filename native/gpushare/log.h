/* Log messages. Only messages that a user must act on are printed, unless GPUSHARE_LOG=1. */
#ifndef GPUSHARE_LOG_H
#define GPUSHARE_LOG_H

#include <stdbool.h>

void log_line(const char *format, ...) __attribute__((format(printf, 1, 2)));  /* only with GPUSHARE_LOG=1 */
void say_once(int *said, const char *format, ...) __attribute__((format(printf, 2, 3))); /* always, once per flag */
void refuse_all(const char *format, ...) __attribute__((format(printf, 1, 2))); /* refuse all GPU memory from now on (fail closed) */
bool refusing(void); /* true after refuse_all; the first call prints the reason to stderr */

#endif
