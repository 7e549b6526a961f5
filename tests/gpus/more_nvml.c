/* What NVIDIA's Python binding asks for beyond what the sharing library does: added to the stand-in for tests of the
 * agent. The cards' device files are numbered the other way round, as they may be on a real machine. */
#include <stdint.h>
#include <stdio.h>

#define EXPORT __attribute__((visibility("default")))
enum { NOT_SUPPORTED = 3 };
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device);

EXPORT int nvmlInitWithFlags(unsigned flags) { (void)flags; return 0; }
EXPORT const char *nvmlErrorString(int code) { (void)code; return "not in the stand-in"; }
EXPORT int nvmlSystemGetDriverVersion(char *text, unsigned n) { snprintf(text, n, "580.00.00"); return 0; }
EXPORT int nvmlDeviceGetMinorNumber(void *device, unsigned *number) {
    void *first;
    nvmlDeviceGetHandleByIndex_v2(0, &first);
    *number = device == first;
    return 0;
}
EXPORT int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *later) { (void)device, (void)now, (void)later; return NOT_SUPPORTED; }
