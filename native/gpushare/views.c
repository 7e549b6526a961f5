/* Memory queries: programs see the container's limit as the GPU's size and the container's usage as the GPU's usage. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "account.h"
#include "log.h"
#include "pool.h"

static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* The container's current total and free bytes on a device. */
static void figures(int index, uint64_t real_total, uint64_t real_free, uint64_t *total, uint64_t *free) {
    struct allowance allowed;
    *total = *free = 0; /* not this container's GPU, or failing closed: no memory */
    if (!device_allowance(index, &allowed)) return;
    ledger_reap();
    pools_settle(index); /* pools shrink at synchronization, without a call that we hook */
    reconcile(index, false);
    uint64_t used = ledger_total(index);
    *total = smaller(allowed.limit, real_total);
    *free = smaller(*total > used ? *total - used : 0, real_free);
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
    PASS_THROUGH(cuMemGetInfo_v2, free, total);
    size_t real_free = 0, real_total = 0;
    CUresult result = CALL(cuMemGetInfo_v2, &real_free, &real_total);
    if (result) return result;
    uint64_t seen_total, seen_free;
    figures(current_device(), real_total, real_free, &seen_total, &seen_free);
    if (free) *free = seen_free;
    if (total) *total = seen_total;
    return result;
}

static unsigned capped(uint64_t n) { return (unsigned)smaller(n, UINT32_MAX); }

EXPORT CUresult cuMemGetInfo(unsigned *free, unsigned *total) {
    PASS_THROUGH(cuMemGetInfo, free, total);
    unsigned real_free = 0, real_total = 0;
    CUresult result = CALL(cuMemGetInfo, &real_free, &real_total);
    if (result) return result;
    uint64_t seen_total, seen_free;
    figures(current_device(), real_total, real_free, &seen_total, &seen_free);
    if (free) *free = capped(seen_free);
    if (total) *total = capped(seen_total);
    return result;
}

static uint64_t device_total(CUdevice device, uint64_t real) {
    struct allowance allowed;
    return device_allowance(device_index(device), &allowed) ? smaller(allowed.limit, real) : 0;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    PASS_THROUGH(cuDeviceTotalMem_v2, bytes, device);
    CUresult result = CALL(cuDeviceTotalMem_v2, bytes, device);
    if (!result && bytes) *bytes = device_total(device, *bytes);
    return result;
}

EXPORT CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device) {
    PASS_THROUGH(cuDeviceTotalMem, bytes, device);
    CUresult result = CALL(cuDeviceTotalMem, bytes, device);
    if (!result && bytes) *bytes = capped(device_total(device, *bytes));
    return result;
}

/* --- NVML, which nvidia-smi uses ------------------------------------------------------------------------------------- */

#define NVML_PASS(name, ...)                                                        \
    do {                                                                            \
        if (!real_nvml(false) || !REAL(name)) return NVML_UNINITIALIZED;            \
        if (inside || untouched[E_##name]) return REAL(name)(__VA_ARGS__);          \
    } while (0)

/* The real figures are shown for other GPUs: monitoring programs look at whole nodes, and this container has no memory
 * there. */
static bool nvml_figures(nvmlDevice_t device, uint64_t real_total, uint64_t *total, uint64_t *used) {
    char text[96];
    uint8_t uuid[16];
    struct allowance allowed;
    if (!REAL(nvmlDeviceGetUUID) || REAL(nvmlDeviceGetUUID)(device, text, sizeof text) || !uuid_read(text, uuid)) return false;
    *total = *used = 0;
    if (refusing()) return true;
    if (!config_allowance(uuid, &allowed)) return false;
    int index = ledger_device(uuid);
    if (index < 0) return true;
    ledger_reap();
    *total = smaller(allowed.limit, real_total);
    *used = smaller(ledger_total(index), *total);
    return true;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory *memory) {
    NVML_PASS(nvmlDeviceGetMemoryInfo, device, memory);
    nvmlReturn_t result = CALL(nvmlDeviceGetMemoryInfo, device, memory);
    uint64_t total, used;
    if (result || !nvml_figures(device, memory->total, &total, &used)) return result;
    memory->total = total, memory->used = used, memory->free = total - used;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemoryV2 *memory) {
    NVML_PASS(nvmlDeviceGetMemoryInfo_v2, device, memory);
    nvmlReturn_t result = CALL(nvmlDeviceGetMemoryInfo_v2, device, memory);
    uint64_t total, used;
    if (result || !nvml_figures(device, memory->total, &total, &used)) return result;
    memory->total = total, memory->used = used, memory->free = total - used, memory->reserved = 0;
    return result;
}

static bool listed(const int32_t *pids, int count, unsigned pid) {
    for (int i = 0; i < count; i++)
        if (pids[i] == (int32_t)pid) return true;
    return false;
}

/* Keeps the elements whose first field is the pid of a process of this container. All structure versions begin with
 * the pid. */
static unsigned keep_own(char *list, unsigned count, size_t size) {
    int32_t pids[LEDGER_SLOTS];
    int own = ledger_pids(pids, LEDGER_SLOTS);
    unsigned kept = 0;
    for (unsigned i = 0; i < count; i++) {
        unsigned pid;
        memcpy(&pid, list + i * size, sizeof pid);
        if (listed(pids, own, pid)) memmove(list + kept++ * size, list + i * size, size);
    }
    return kept;
}

enum { MOST = 1024 }; /* processes on one GPU; no GPU has room for so many contexts */

static nvmlReturn_t answer(const void *found, unsigned kept, size_t size, unsigned *count, void *list) {
    unsigned room = *count;
    *count = kept;
    if (kept > room || (kept && !list)) return NVML_INSUFFICIENT_SIZE;
    if (kept) memcpy(list, found, kept * size);
    return NVML_SUCCESS;
}

#define PROCESSES(name, type)                                                                 \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned *count, type *list) {              \
        NVML_PASS(name, device, count, list);                                                 \
        if (!count) return CALL(name, device, count, list);                                   \
        type *all = calloc(MOST, sizeof *all);                                                \
        unsigned found = MOST;                                                                \
        if (!all) return NVML_INSUFFICIENT_SIZE;                                              \
        nvmlReturn_t result = CALL(name, device, &found, all);                                \
        if (!result) result = answer(all, keep_own((char *)all, found, sizeof *all), sizeof *all, count, list); \
        free(all);                                                                            \
        return result;                                                                        \
    }

PROCESSES(nvmlDeviceGetComputeRunningProcesses, nvmlProcessV1)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcess)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcess)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessV1)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcess)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcess)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessV1)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcess)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcess)

EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlSample *list, unsigned *count, uint64_t since) {
    NVML_PASS(nvmlDeviceGetProcessUtilization, device, list, count, since);
    nvmlReturn_t result = CALL(nvmlDeviceGetProcessUtilization, device, list, count, since);
    if (!result && list && count) *count = keep_own((char *)list, *count, sizeof *list);
    return result;
}
