/* Pointers to the driver's own functions. See real.c. */
#ifndef GPUSHARE_REAL_H
#define GPUSHARE_REAL_H

#include <stdbool.h>

#include "driver.h"
#include "entries.h"
#include "nvml.h"

extern void *real_functions[ENTRIES];

/* the driver's own function, or NULL when this driver does not have it */
#define REAL(name) ((__typeof__(&name))__atomic_load_n(&real_functions[E_##name], __ATOMIC_RELAXED))

typedef void *(*dlsym_function)(void *, const char *);
extern dlsym_function gpushare_real_dlsym; /* read by the trampoline */

/* Sanitizers look up functions before they are initialized: code that runs then must not be instrumented. */
#define EARLY __attribute__((no_sanitize("address", "undefined", "thread")))

void real_prepare(void);    /* finds the real dlsym; idempotent */
bool real_driver(bool load); /* true when libcuda's functions are resolved; `load` loads the library if needed */
bool real_nvml(bool load);

/* Entry points that this configuration does not replace: calls from programs linked to ours go straight to the driver. */
extern bool untouched[ENTRIES];

/* Above 0 while this thread is inside one of our functions: a nested call goes straight to the driver. */
extern __thread int inside __attribute__((tls_model("initial-exec")));

/* The start of every replacement: without a driver it returns an error; a nested call, or an entry point that this
 * configuration does not replace, goes to the driver without accounting. */
#define PASS_THROUGH(name, ...)                                              \
    do {                                                                     \
        if (!real_driver(false) || !REAL(name)) return CUDA_ERROR_NOT_INITIALIZED; \
        if (inside || untouched[E_##name]) return REAL(name)(__VA_ARGS__);   \
    } while (0)

/* Calls the driver with `inside` set. */
#define CALL(name, ...) __extension__({ inside++; __typeof__(REAL(name)(__VA_ARGS__)) r_ = REAL(name)(__VA_ARGS__); inside--; r_; })

#endif
