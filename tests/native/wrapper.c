/* A second preloaded library that wraps an allocation function, as profilers do: counts the calls and forwards them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

static int calls;
__attribute__((visibility("default"))) int cuMemAlloc_v2(uint64_t *pointer, size_t bytes);
__attribute__((visibility("default"))) int cuMemAlloc_v2(uint64_t *pointer, size_t bytes) {
    int (*next)(uint64_t *, size_t);
    *(void **)&next = dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    calls++;
    return next ? next(pointer, bytes) : 77;
}
__attribute__((destructor)) static void tell(void) { printf("wrapped %d\n", calls); }
