/* NVML functions that NVIDIA's Python binding needs and the sharing library does not: added to the fake driver for tests
 * of the agent. The device files are numbered in reverse order, as they may be on a real machine.
 *
 * Compiled with R615, it is a driver with memory limits for control groups. A limit is stored as a file in the group's
 * folder: a group that does not exist has no limit, and a limit is removed with its group. With FAKE_LIMITS=ignored,
 * setting a limit returns success and does nothing; with FAKE_LIMITS=refused it returns an error. The limits are stored,
 * not enforced. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
enum { NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6 };
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device);

EXPORT int nvmlInitWithFlags(unsigned flags) { (void)flags; return 0; }
EXPORT const char *nvmlErrorString(int code) { (void)code; return "not in the fake driver"; }
#ifdef R615
#define RELEASE "615.10.00"
#else
#define RELEASE "580.00.00"
#endif
EXPORT int nvmlSystemGetDriverVersion(char *text, unsigned n) { snprintf(text, n, RELEASE); return 0; }
EXPORT int nvmlDeviceGetMinorNumber(void *device, unsigned *number) {
    void *first;
    nvmlDeviceGetHandleByIndex_v2(0, &first);
    *number = device == first;
    return 0;
}
EXPORT int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *later) { (void)device, (void)now, (void)later; return NOT_SUPPORTED; }

#ifdef R615
struct set_limits { const char *group; uint64_t soft, hard; };
struct get_limits { const char *group; uint64_t soft, hard, used; };

static FILE *limits(void *device, const char *group, const char *how) {
    unsigned card;
    char path[4096];
    nvmlDeviceGetMinorNumber(device, &card);
    snprintf(path, sizeof path, "%s/gpu%u.limits", group, card);
    return fopen(path, how);
}
EXPORT int nvmlDeviceSetMemoryLimits_v1(void *device, const struct set_limits *l) {
    const char *fault = getenv("FAKE_LIMITS");
    if (fault) return strcmp(fault, "refused") == 0 ? NO_PERMISSION : 0;
    FILE *file = limits(device, l->group, "w");
    if (!file) return NOT_FOUND;
    fprintf(file, "%lu %lu", (unsigned long)l->soft, (unsigned long)l->hard);
    return fclose(file);
}
EXPORT int nvmlDeviceGetMemoryLimits_v1(void *device, struct get_limits *l) {
    unsigned long soft = 0, hard = UINT64_MAX;
    FILE *file = limits(device, l->group, "r");
    if (file) {
        if (fscanf(file, "%lu %lu", &soft, &hard) != 2) soft = hard = 0;
        fclose(file);
    }
    l->soft = soft, l->hard = hard, l->used = 0;
    return 0;
}
#endif
