/* A program linked to libcuda, like Triton's launchers: allocates 64 MiB at a time until it is refused, then prints the
 * number of allocations and the error code. */
#include <stdio.h>
#include <stdint.h>

int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *), cuMemAlloc_v2(uint64_t *, uint64_t);

int main(void) {
    void *context;
    uint64_t pointer;
    int code, n = 0;
    cuInit(0);
    if ((code = cuDevicePrimaryCtxRetain(&context, 0)) == 0) {
        cuCtxSetCurrent(context);
        while (n < 1000 && (code = cuMemAlloc_v2(&pointer, 64 << 20)) == 0) n++;
    }
    printf("%d %d\n", n, code);
    return 0;
}
