/* Finds the driver's functions.
 *
 * The program's `dlsym` is ours, so it cannot be used to find the driver's functions. The C library's dlsym is fetched
 * by its symbol version, which is unambiguous. Libraries are looked up among those already loaded and stay open, so that
 * the pointers stay valid when a program closes and reopens the driver. */
#define _GNU_SOURCE
#include "real.h"

#include <dlfcn.h>
#include <pthread.h>

void *real_functions[ENTRIES];
dlsym_function gpushare_real_dlsym;
bool untouched[ENTRIES];
__thread int inside;

static const char *const names[ENTRIES] = {
#define NAME(name) [E_##name] = #name,
    ALL_ENTRIES(NAME)
#undef NAME
};

EARLY void real_prepare(void) {
    if (__atomic_load_n(&gpushare_real_dlsym, __ATOMIC_ACQUIRE)) return;
    static const char *const versions[] = {"GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.34"};
    void *found = NULL;
    for (unsigned i = 0; i < sizeof versions / sizeof *versions && !found; i++)
        found = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    __atomic_store_n(&gpushare_real_dlsym, (dlsym_function)found, __ATOMIC_RELEASE);
}

static bool find(const char *library, bool load, enum entry first, enum entry end, int *state) {
    if (__atomic_load_n(state, __ATOMIC_ACQUIRE)) return true;
    real_prepare();
    void *handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
    if (!handle && load) handle = dlopen(library, RTLD_NOW);
    if (!handle) return false;
    for (int e = (int)first; e < (int)end; e++) {
        void *f = gpushare_real_dlsym(handle, names[e]);
        __atomic_store_n(&real_functions[e], f, __ATOMIC_RELAXED);
    }
    __atomic_store_n(state, 1, __ATOMIC_RELEASE);
    return true;
}

bool real_driver(bool load) {
    static int ready;
    return find("libcuda.so.1", load, 0, E_nvmlDeviceGetMemoryInfo, &ready);
}

bool real_nvml(bool load) {
    static int ready;
    return find("libnvidia-ml.so.1", load, E_nvmlDeviceGetMemoryInfo, ENTRIES, &ready);
}
