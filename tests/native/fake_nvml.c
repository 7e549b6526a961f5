/* A fake libnvidia-ml.so.1 with the same GPUs as fake_cuda.c but in reverse order: NVML and CUDA may number GPUs
 * differently. FAKE_NVML=silent: it does not report the memory of processes. Compiled with FAKE_R615, it also has the
 * memory limits of driver r615. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "card.h"
#include "nvml.h"

static int card_of(nvmlDevice_t d) { return (int)(uintptr_t)d - 1; }
static nvmlDevice_t device_of(int card) { return (nvmlDevice_t)(uintptr_t)(card + 1); }

static void name(int card, char *text, unsigned n) {
    uint8_t u[16];
    card_uuid(card, u);
    snprintf(text, n, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2], u[3], u[4], u[5], u[6],
             u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

EXPORT nvmlReturn_t nvmlInit_v2(void) { return 0; }
EXPORT nvmlReturn_t nvmlInit(void) { return 0; }
EXPORT nvmlReturn_t nvmlShutdown(void) { return 0; }
EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *n) { *n = CARDS; return 0; }
EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned i, nvmlDevice_t *d) {
    *d = device_of(CARDS - 1 - (int)i);
    return i < CARDS ? 0 : NVML_INVALID_ARGUMENT;
}
EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *d) {
    char text[96];
    for (int c = 0; c < CARDS; c++) {
        name(c, text, sizeof text);
        if (strcmp(text, uuid) == 0) return *d = device_of(c), 0;
    }
    return 6;
}
EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char *uuid, unsigned n) { name(card_of(d), uuid, n); return 0; }
EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char *text, unsigned n) { (void)d; snprintf(text, n, "Fake 16GB"); return 0; }
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t d, nvmlMemory *m) {
    uint64_t used = card_used(card_of(d)) + CARD_RESERVED;
    *m = (nvmlMemory){CARD_TOTAL + CARD_RESERVED, CARD_TOTAL + CARD_RESERVED - used, used};
    return 0;
}
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t d, nvmlMemoryV2 *m) {
    uint64_t used = card_used(card_of(d));
    *m = (nvmlMemoryV2){m->version, CARD_TOTAL + CARD_RESERVED, CARD_RESERVED, CARD_TOTAL - used, used};
    return 0;
}

static nvmlReturn_t list(nvmlDevice_t d, unsigned *count, void *out, bool old) {
    int32_t pids[CLIENTS];
    uint64_t bytes[CLIENTS];
    int n = card_clients(card_of(d), pids, bytes, CLIENTS);
    const char *kind = getenv("FAKE_NVML");
    unsigned room = *count;
    *count = (unsigned)n;
    if ((unsigned)n > room || (n && !out)) return NVML_INSUFFICIENT_SIZE;
    for (int i = 0; i < n; i++) {
        if (kind && strcmp(kind, "silent") == 0) bytes[i] = NVML_BYTES_UNKNOWN;
        if (old) ((nvmlProcessV1 *)out)[i] = (nvmlProcessV1){(unsigned)pids[i], bytes[i]};
        else ((nvmlProcess *)out)[i] = (nvmlProcess){(unsigned)pids[i], bytes[i], ~0u, ~0u};
    }
    return 0;
}
EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t d, unsigned *n, nvmlProcessV1 *l) { return list(d, n, l, true); }
EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t d, unsigned *n, nvmlProcess *l) { return list(d, n, l, false); }
EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, unsigned *n, nvmlProcess *l) { return list(d, n, l, false); }
EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t d, nvmlSample *l, unsigned *n, uint64_t since) {
    int32_t pids[CLIENTS];
    uint64_t bytes[CLIENTS];
    (void)since;
    int found = card_clients(card_of(d), pids, bytes, CLIENTS);
    if (!l || *n < (unsigned)found) return *n = (unsigned)found, NVML_INSUFFICIENT_SIZE;
    for (int i = 0; i < found; i++) l[i] = (nvmlSample){(unsigned)pids[i], 1, 50, 10, 0, 0};
    return *n = (unsigned)found, 0;
}

#ifdef FAKE_R615
struct limits { unsigned version; char space[4]; uint64_t soft, hard; };
EXPORT nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t d, const struct limits *l);
EXPORT nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t d, const struct limits *l) { card_set_limit(card_of(d), l->hard); return 0; }
EXPORT nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t d, struct limits *l);
EXPORT nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t d, struct limits *l) { l->hard = card_get_limit(card_of(d)); return 0; }
#endif
