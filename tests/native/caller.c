/* A library that looks up driver functions with dlsym. The tests build it under three names: libcudart.so.13 (part of
 * the program), libnvidia-ptxjit.so.1 (part of the driver) and libprofiler.so (preloaded beside libgpushare). */
#define _GNU_SOURCE
#include <dlfcn.h>

__attribute__((visibility("default"))) void *ask(void *handle, const char *name) {
    void *found = dlsym(handle, name); /* no tail call: the return address must be in this library */
    __asm__ volatile("" : : "r"(found) : "memory");
    return found;
}
__attribute__((visibility("default"))) void *ask_next(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    __asm__ volatile("" : : "r"(found) : "memory");
    return found;
}
__attribute__((visibility("default"))) int only_here(void) { return 1; }
