/* A library that asks for a driver function in its own name: under the names libcudart.so.13 (a program like any
 * other), libnvidia-ptxjit.so.1 (the driver's own) and libprofiler.so (preloaded beside ours, wrapping the same name). */
#define _GNU_SOURCE
#include <dlfcn.h>

__attribute__((visibility("default"))) void *ask(void *handle, const char *name) {
    void *found = dlsym(handle, name); /* no tail call: the return address must lie in here */
    __asm__ volatile("" : : "r"(found) : "memory");
    return found;
}
__attribute__((visibility("default"))) void *ask_next(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    __asm__ volatile("" : : "r"(found) : "memory");
    return found;
}
__attribute__((visibility("default"))) int only_here(void) { return 1; }
