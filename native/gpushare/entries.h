/* The list of all entry points that the library knows. The tables in real.c and hook.c are generated from it, and a
 * test compares it with the design. The order does not matter. */
#ifndef GPUSHARE_ENTRIES_H
#define GPUSHARE_ENTRIES_H

/* replaced in every mode: functions that may allocate or report device memory */
#define MEMORY_ENTRIES(X) \
    X(cuGetProcAddress) X(cuGetProcAddress_v2) \
    X(cuMemAlloc) X(cuMemAlloc_v2) X(cuMemAllocPitch) X(cuMemAllocPitch_v2) X(cuMemAllocManaged) \
    X(cuMemFree) X(cuMemFree_v2) X(cuMemGetInfo) X(cuMemGetInfo_v2) X(cuDeviceTotalMem) X(cuDeviceTotalMem_v2) \
    X(cuMemAllocAsync) X(cuMemAllocAsync_ptsz) X(cuMemAllocFromPoolAsync) X(cuMemAllocFromPoolAsync_ptsz) \
    X(cuMemFreeAsync) X(cuMemFreeAsync_ptsz) \
    X(cuMemPoolCreate) X(cuMemPoolDestroy) X(cuMemPoolTrimTo) X(cuMemPoolSetAttribute) \
    X(cuMemCreate) X(cuMemRelease) X(cuMemMap) X(cuMemUnmap) X(cuMemRetainAllocationHandle) \
    X(cuMemImportFromShareableHandle) \
    X(cuArrayCreate) X(cuArrayCreate_v2) X(cuArray3DCreate) X(cuArray3DCreate_v2) X(cuArrayDestroy) \
    X(cuMipmappedArrayCreate) X(cuMipmappedArrayDestroy) \
    X(cuGraphAddMemAllocNode) X(cuGraphAddNode) X(cuGraphAddNode_v2) X(cuGraphInstantiateWithFlags) \
    X(cuGraphInstantiateWithParams) X(cuGraphInstantiateWithParams_ptsz) X(cuGraphLaunch) X(cuGraphLaunch_ptsz) \
    X(cuDeviceGraphMemTrim) \
    X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) X(cuDevicePrimaryCtxRelease_v2) \
    X(cuDevicePrimaryCtxReset) X(cuDevicePrimaryCtxReset_v2) \
    X(cuCtxCreate) X(cuCtxCreate_v2) X(cuCtxCreate_v3) X(cuCtxCreate_v4) X(cuCtxDestroy) X(cuCtxDestroy_v2) \
    X(cuGreenCtxCreate) X(cuGreenCtxDestroy) X(cuCtxSetLimit) \
    X(cuModuleLoad) X(cuModuleLoadData) X(cuModuleLoadDataEx) X(cuModuleLoadFatBinary) \
    X(cuLibraryLoadData) X(cuLibraryLoadFromFile)

/* replaced only in fair and strict mode */
#define COMPUTE_ENTRIES(X) \
    X(cuLaunchKernel) X(cuLaunchKernel_ptsz) X(cuLaunchKernelEx) X(cuLaunchKernelEx_ptsz) \
    X(cuLaunchCooperativeKernel) X(cuLaunchCooperativeKernel_ptsz) X(cuLaunchCooperativeKernelMultiDevice) \
    X(cuLaunch) X(cuLaunchGrid) X(cuLaunchGridAsync) \
    X(cuCtxSynchronize) X(cuCtxSynchronize_v2) X(cuStreamSynchronize) X(cuStreamSynchronize_ptsz) \
    X(cuEventSynchronize) X(cuMemcpyDtoH_v2) X(cuMemcpyDtoH_v2_ptds) \
    X(cuStreamBeginCapture) X(cuStreamBeginCapture_ptsz) X(cuStreamBeginCapture_v2) X(cuStreamBeginCapture_v2_ptsz) \
    X(cuStreamBeginCaptureToGraph) X(cuStreamBeginCaptureToGraph_ptsz) X(cuStreamEndCapture) X(cuStreamEndCapture_ptsz)

#define NVML_ENTRIES(X) \
    X(nvmlDeviceGetMemoryInfo) X(nvmlDeviceGetMemoryInfo_v2) \
    X(nvmlDeviceGetComputeRunningProcesses) X(nvmlDeviceGetComputeRunningProcesses_v2) \
    X(nvmlDeviceGetComputeRunningProcesses_v3) \
    X(nvmlDeviceGetMPSComputeRunningProcesses) X(nvmlDeviceGetMPSComputeRunningProcesses_v2) \
    X(nvmlDeviceGetMPSComputeRunningProcesses_v3) \
    X(nvmlDeviceGetGraphicsRunningProcesses) X(nvmlDeviceGetGraphicsRunningProcesses_v2) \
    X(nvmlDeviceGetGraphicsRunningProcesses_v3) X(nvmlDeviceGetProcessUtilization)

/* called, not replaced */
#define DRIVER_HELPERS(X) \
    X(cuCtxGetDevice) X(cuCtxGetCurrent) X(cuDeviceGetUuid) X(cuDeviceGetUuid_v2) X(cuDeviceGetAttribute) \
    X(cuDevicePrimaryCtxGetState) X(cuCtxGetLimit) X(cuStreamIsCapturing) X(cuStreamIsCapturing_ptsz) \
    X(cuDeviceGetMemPool) X(cuDeviceGetDefaultMemPool) X(cuMemPoolGetAttribute) X(cuDeviceGetGraphMemAttribute) \
    X(cuGraphGetNodes) X(cuGraphNodeGetType) X(cuGraphMemAllocNodeGetParams)
#define NVML_HELPERS(X) X(nvmlInit_v2) X(nvmlDeviceGetUUID) X(nvmlDeviceGetHandleByUUID)

#define DRIVER_ENTRIES(X) MEMORY_ENTRIES(X) COMPUTE_ENTRIES(X)
#define ALL_ENTRIES(X) DRIVER_ENTRIES(X) DRIVER_HELPERS(X) NVML_ENTRIES(X) NVML_HELPERS(X)

enum entry {
#define ENTRY(name) E_##name,
    ALL_ENTRIES(ENTRY)
#undef ENTRY
    ENTRIES
};

#endif
