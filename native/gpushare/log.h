/* What the library says. Silent unless GPUSHARE_LOG=1, except for the few lines a user needs to act on. */
#ifndef GPUSHARE_LOG_H
#define GPUSHARE_LOG_H

#include <stdbool.h>

void log_line(const char *format, ...) __attribute__((format(printf, 1, 2)));  /* only with GPUSHARE_LOG=1 */
void say_once(int *said, const char *format, ...) __attribute__((format(printf, 2, 3))); /* always, once per flag */
void refuse_all(const char *format, ...) __attribute__((format(printf, 1, 2))); /* fail closed from now on */
bool refusing(void); /* after refuse_all; tells why on stderr the first time it is asked */

#endif
