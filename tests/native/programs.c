/* programs procaddr|dlsym|default|next [threads]
 *
 * Looks up the driver's functions in the given way, allocates 64 MiB at a time until it is refused, and prints the number
 * of allocations and the error code. With threads, each of them allocates 2 MiB at a time. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int (*init)(unsigned), (*retain)(void **, int), (*set_current)(void *), (*alloc)(uint64_t *, size_t);
static int (*proc_address)(const char *, void **, int, uint64_t, int *);
static void *context;
static int taken;

static void *get(const char *way, void *driver, const char *name, const char *exported) {
    void *found = NULL;
    if (strcmp(way, "procaddr") == 0) return proc_address(name, &found, 12000, 0, NULL) ? NULL : found;
    return dlsym(strcmp(way, "default") == 0 ? RTLD_DEFAULT : strcmp(way, "next") == 0 ? RTLD_NEXT : driver, exported);
}

static int fill(uint64_t step) {
    int code = set_current(context);
    for (uint64_t pointer; !code && !(code = alloc(&pointer, step)); __atomic_add_fetch(&taken, 1, __ATOMIC_RELAXED)) {}
    return code;
}

static void *racing(void *unused) { return (void)unused, (void *)(intptr_t)fill(2 << 20); }

int main(int argc, char **argv) {
    const char *way = argv[1];
    pthread_t threads[64];
    int count = argc > 2 ? atoi(argv[2]) : 0;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL), *code = NULL;
    if (!driver) return 3;
    *(void **)&proc_address = dlsym(driver, "cuGetProcAddress_v2");
    *(void **)&init = get(way, driver, "cuInit", "cuInit");
    *(void **)&retain = get(way, driver, "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain");
    *(void **)&set_current = get(way, driver, "cuCtxSetCurrent", "cuCtxSetCurrent");
    *(void **)&alloc = get(way, driver, "cuMemAlloc", "cuMemAlloc_v2");
    if (!init || !retain || !set_current || !alloc) return 4;
    if (init(0) || retain(&context, 0)) return 5;
    for (int i = 0; i < count; i++) pthread_create(&threads[i], NULL, racing, NULL);
    for (int i = 0; i < count; i++) pthread_join(threads[i], &code);
    int last = count ? (int)(intptr_t)code : fill(64 << 20);
    printf("%d %d\n", taken, last);
    return 0;
}
