/* The functions behind the ones we replace. See real.c. */
#ifndef GPUSHARE_REAL_H
#define GPUSHARE_REAL_H

#include <stdbool.h>

#include "driver.h"
#include "entries.h"
#include "nvml.h"

extern void *real_functions[ENTRIES];

/* the driver's own function, or NULL where this driver has none */
#define REAL(name) ((__typeof__(&name))__atomic_load_n(&real_functions[E_##name], __ATOMIC_RELAXED))

typedef void *(*dlsym_function)(void *, const char *);
extern dlsym_function gpushare_real_dlsym; /* read by the trampoline */

/* Sanitizers look up functions before they are ready to watch anybody: what runs then must not be watched. */
#define EARLY __attribute__((no_sanitize("address", "undefined", "thread")))

void real_prepare(void);    /* finds the real dlsym; idempotent */
bool real_driver(bool load); /* libcuda's functions are there; `load` brings the library in when it is not */
bool real_nvml(bool load);

/* Entry points that are the driver's alone as things are configured: programs linked to ours are passed straight on. */
extern bool untouched[ENTRIES];

/* Above 0 while this thread is inside one of ours: a call back into us goes straight through. */
extern __thread int inside __attribute__((tls_model("initial-exec")));

/* The opening of every replacement: no driver, no answer; called from inside, or not ours here, no accounting. */
#define PASS_THROUGH(name, ...)                                              \
    do {                                                                     \
        if (!real_driver(false) || !REAL(name)) return CUDA_ERROR_NOT_INITIALIZED; \
        if (inside || untouched[E_##name]) return REAL(name)(__VA_ARGS__);   \
    } while (0)

/* A call into the driver, marked as ours. */
#define CALL(name, ...) __extension__({ inside++; __typeof__(REAL(name)(__VA_ARGS__)) r_ = REAL(name)(__VA_ARGS__); inside--; r_; })

#endif
