/* A library linked to libcuda. Tests load it into its own link namespace, where its calls are resolved. */
#include <stddef.h>
#include <stdint.h>

int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *), cuMemAlloc_v2(uint64_t *, size_t);

__attribute__((visibility("default"))) int take(int device, size_t bytes) {
    void *context;
    uint64_t pointer;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, device) || cuCtxSetCurrent(context)) return -1;
    return cuMemAlloc_v2(&pointer, bytes);
}
