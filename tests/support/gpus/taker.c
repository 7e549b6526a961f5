/* A library that is linked to the driver's, to be loaded into a namespace of its own: what it calls is found there. */
#include <stddef.h>
#include <stdint.h>

int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *), cuMemAlloc_v2(uint64_t *, size_t);

__attribute__((visibility("default"))) int take(int device, size_t bytes) {
    void *context;
    uint64_t pointer;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, device) || cuCtxSetCurrent(context)) return -1;
    return cuMemAlloc_v2(&pointer, bytes);
}
