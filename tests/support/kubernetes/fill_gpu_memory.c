/* A job's program that fills GPU memory: on each GPU it creates a context and allocates 64 MiB at a time until it is
 * refused. For each GPU it prints the name, the total memory it sees, what it could allocate, and the last error code. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

enum { STEP = 64 };

static void *driver;
static int call(const char *name, void *a, uint64_t b) {
    int (*function)(void *, uint64_t) = (int (*)(void *, uint64_t))dlsym(driver, name);
    return function ? function(a, b) : -1;
}

int main(void) {
    int count = 0, (*init)(unsigned), (*current)(void *), (*number)(int *);
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return puts(dlerror()), 3;
    *(void **)&init = dlsym(driver, "cuInit");
    *(void **)&current = dlsym(driver, "cuCtxSetCurrent");
    *(void **)&number = dlsym(driver, "cuDeviceGetCount");
    if (init(0) || number(&count)) return 4;
    for (int device = 0; device < count; device++) {
        uint8_t uuid[16];
        void *context;
        size_t total = 0;
        uint64_t pointer, taken = 0;
        call("cuDeviceGetUuid", uuid, (uint64_t)device);
        call("cuDeviceTotalMem_v2", &total, (uint64_t)device);
        int code = call("cuDevicePrimaryCtxRetain", &context, (uint64_t)device);
        if (!code) code = current(context);
        while (!code && !(code = call("cuMemAlloc_v2", &pointer, (uint64_t)STEP << 20))) taken += STEP;
        printf("GPU-%02x%02x %d %d %d\n", uuid[0], uuid[1], (int)(total >> 20), (int)taken, code);
    }
    return 0;
}
