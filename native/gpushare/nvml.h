/* The NVML types and functions that the library replaces or calls. driver.h says why NVIDIA's headers are not used. */
#ifndef GPUSHARE_NVML_H
#define GPUSHARE_NVML_H

#include "driver.h"

typedef int nvmlReturn_t;
enum { NVML_SUCCESS = 0, NVML_UNINITIALIZED = 1, NVML_INVALID_ARGUMENT = 2, NVML_INSUFFICIENT_SIZE = 7 };
typedef struct nvmlDevice_st *nvmlDevice_t;

typedef struct { uint64_t total, free, used; } nvmlMemory;
typedef struct { unsigned version; uint64_t total, reserved, free, used; } nvmlMemoryV2;
typedef struct { unsigned pid; uint64_t bytes; } nvmlProcessV1;
typedef struct { unsigned pid; uint64_t bytes; unsigned gpu_instance, compute_instance; } nvmlProcess;
typedef struct { unsigned pid; uint64_t time; unsigned sm, memory, encoder, decoder; } nvmlSample;
_Static_assert(sizeof(nvmlMemoryV2) == 40 && sizeof(nvmlProcessV1) == 16, "NVML v1 and v2 structures");
_Static_assert(sizeof(nvmlProcess) == 24 && sizeof(nvmlSample) == 32, "NVML process structures");
#define NVML_BYTES_UNKNOWN UINT64_MAX

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory *memory);
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemoryV2 *memory);
EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned *count, nvmlProcessV1 *list);
EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count, nvmlProcess *list);
EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcess *list);
EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device, unsigned *count, nvmlProcessV1 *list);
EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count, nvmlProcess *list);
EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcess *list);
EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned *count, nvmlProcessV1 *list);
EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned *count, nvmlProcess *list);
EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcess *list);
EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlSample *list, unsigned *count, uint64_t since);

/* called, not replaced */
nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned bytes);
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device);

#endif
