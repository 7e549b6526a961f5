/* Messages, and the state of failing closed. The library runs inside other programs, so it writes with a single write()
 * to stderr. It does not use stdio: the interrupted thread may hold a stdio lock. */
#define _GNU_SOURCE
#include "log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char reason[256];
static int closed, told;

static void put(const char *format, va_list args) {
    char line[512] = "gpushare: ";
    int n = vsnprintf(line + 10, sizeof line - 12, format, args);
    if (n < 0) return;
    size_t length = 10 + (size_t)n;
    if (length > sizeof line - 2) length = sizeof line - 2;
    line[length] = '\n';
    ssize_t written = write(STDERR_FILENO, line, length + 1);
    (void)written;
}

void log_line(const char *format, ...) {
    static int wanted = -1;
    if (wanted < 0) {
        const char *value = getenv("GPUSHARE_LOG");
        wanted = value && *value == '1';
    }
    if (!wanted) return;
    va_list args;
    va_start(args, format);
    put(format, args);
    va_end(args);
}

void say_once(int *said, const char *format, ...) {
    if (__atomic_exchange_n(said, 1, __ATOMIC_RELAXED)) return;
    va_list args;
    va_start(args, format);
    put(format, args);
    va_end(args);
}

void refuse_all(const char *format, ...) {
    if (__atomic_exchange_n(&closed, 1, __ATOMIC_ACQ_REL)) return;
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    __atomic_store_n(&closed, 2, __ATOMIC_RELEASE);
}

bool refusing(void) {
    if (!__atomic_load_n(&closed, __ATOMIC_ACQUIRE)) return false;
    say_once(&told, "%s; GPU memory is refused", reason);
    return true;
}
