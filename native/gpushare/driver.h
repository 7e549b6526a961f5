/* The CUDA driver's types and functions, declared independently of NVIDIA's headers.
 *
 * NVIDIA's headers may not be redistributed and differ between toolkits; the binary interface does not differ. This
 * file declares exactly what the library uses: handles as pointers, sizes as in the ABI, structures only as far as a
 * field is read, with static assertions on their offsets. Nothing here is linked: functions are declared for their
 * types and called through pointers (real.h). */
#ifndef GPUSHARE_DRIVER_H
#define GPUSHARE_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

typedef int CUresult;
enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_NOT_FOUND = 500,
};

typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUgreen_st *CUgreenCtx;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUfunc_st *CUfunction;
typedef struct CUmod_st *CUmodule;
typedef struct CUlib_st *CUlibrary;
typedef struct CUpool_st *CUmemoryPool;
typedef struct CUarray_st *CUarray;
typedef struct CUmip_st *CUmipmappedArray;
typedef struct CUgraph_st *CUgraph;
typedef struct CUnode_st *CUgraphNode;
typedef struct CUexec_st *CUgraphExec;
typedef struct CUdesc_st *CUdevResourceDesc;
typedef uint64_t CUhandle; /* CUmemGenericAllocationHandle */
typedef struct { uint8_t bytes[16]; } CUuuid;

enum { CU_LOCATION_DEVICE = 1 };
typedef struct { int type, id; } CUmemLocation;

typedef struct { /* CUmemAllocationProp */
    int type, requestedHandleTypes;
    CUmemLocation location;
    void *win32;
    uint8_t flags[8];
} CUmemProp;
_Static_assert(offsetof(CUmemProp, location) == 8, "CUmemAllocationProp.location");

typedef struct { /* CUmemPoolProps */
    int allocType, handleTypes;
    CUmemLocation location;
    void *win32;
    size_t maxSize;
    uint8_t reserved[56];
} CUpoolProps;

typedef struct { /* CUDA_MEM_ALLOC_NODE_PARAMS */
    CUpoolProps poolProps;
    const void *access;
    size_t accessCount;
    size_t bytesize;
    CUdeviceptr dptr;
} CUallocNode;
_Static_assert(sizeof(CUpoolProps) == 88 && offsetof(CUpoolProps, location) == 8, "CUmemPoolProps");
_Static_assert(sizeof(CUallocNode) == 120 && offsetof(CUallocNode, dptr) == 112, "CUDA_MEM_ALLOC_NODE_PARAMS");
_Static_assert(offsetof(CUallocNode, bytesize) == 104, "CUDA_MEM_ALLOC_NODE_PARAMS.bytesize");

enum { CU_GRAPH_NODE_TYPE_MEM_ALLOC = 10, CU_GRAPH_AUTO_FREE = 1 };
typedef struct { /* CUgraphNodeParams */
    int type;
    int reserved0[3];
    union { int64_t reserved1[29]; CUallocNode alloc; } u;
    int64_t reserved2;
} CUnodeParams;
_Static_assert(sizeof(CUnodeParams) == 256 && offsetof(CUnodeParams, u) == 16, "CUgraphNodeParams");

typedef struct { size_t width, height; int format; unsigned channels; } CUarrayDesc;
typedef struct { size_t width, height, depth; int format; unsigned channels, flags; } CUarray3dDesc;
typedef struct { unsigned width, height; int format; unsigned channels; } CUarrayDescV1;
typedef struct { unsigned width, height, depth; int format; unsigned channels, flags; } CUarray3dDescV1;
_Static_assert(sizeof(CUarrayDesc) == 24 && sizeof(CUarray3dDesc) == 40, "CUDA_ARRAY_DESCRIPTOR");
enum { CU_ARRAY_LAYERED = 1, CU_ARRAY_CUBEMAP = 4, CU_ARRAY_SPARSE = 0x40, CU_ARRAY_DEFERRED = 0x80 };

enum { CU_LIMIT_STACK_SIZE = 0, CU_LIMIT_MALLOC_HEAP_SIZE = 2 };
enum { CU_POOL_RELEASE_THRESHOLD = 4, CU_POOL_RESERVED = 5, CU_POOL_USED = 7 };
enum { CU_GRAPH_MEM_USED = 0, CU_GRAPH_MEM_RESERVED = 2 };
enum { CU_ATTRIBUTE_SMS = 16, CU_ATTRIBUTE_THREADS_PER_SM = 39 };

/* --- functions that the library replaces ------------------------------------------------------------------------- */
EXPORT CUresult cuGetProcAddress(const char *name, void **found, int version, uint64_t flags);
EXPORT CUresult cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status);

EXPORT CUresult cuMemAlloc(unsigned *pointer, unsigned bytes);
EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes);
EXPORT CUresult cuMemAllocPitch(unsigned *pointer, unsigned *pitch, unsigned width, unsigned height, unsigned element);
EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element);
EXPORT CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags);
EXPORT CUresult cuMemFree(unsigned pointer);
EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer);
EXPORT CUresult cuMemGetInfo(unsigned *free, unsigned *total);
EXPORT CUresult cuMemGetInfo_v2(size_t *free, size_t *total);
EXPORT CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device);
EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device);

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream);
EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream);
EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream);
EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream);
EXPORT CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream);
EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream);
EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUpoolProps *props);
EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool);
EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep);
EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value);

EXPORT CUresult cuMemCreate(CUhandle *handle, size_t bytes, const CUmemProp *prop, uint64_t flags);
EXPORT CUresult cuMemRelease(CUhandle handle);
EXPORT CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUhandle handle, uint64_t flags);
EXPORT CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes);
EXPORT CUresult cuMemRetainAllocationHandle(CUhandle *handle, void *address);
EXPORT CUresult cuMemImportFromShareableHandle(CUhandle *handle, void *shared, int type);

EXPORT CUresult cuArrayCreate(CUarray *array, const CUarrayDescV1 *desc);
EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUarrayDesc *desc);
EXPORT CUresult cuArray3DCreate(CUarray *array, const CUarray3dDescV1 *desc);
EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUarray3dDesc *desc);
EXPORT CUresult cuArrayDestroy(CUarray array);
EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUarray3dDesc *desc, unsigned levels);
EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray array);

EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUallocNode *params);
EXPORT CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUnodeParams *params);
EXPORT CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count, CUnodeParams *params);
EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, uint64_t flags);
EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, void *params);
EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, void *params);
EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream);
EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream);
EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device);

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device);
EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device);
EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device);
EXPORT CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device);
EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);
EXPORT CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned flags, CUdevice device);
EXPORT CUresult cuCtxCreate_v4(CUcontext *context, void *params, unsigned flags, CUdevice device);
EXPORT CUresult cuCtxDestroy(CUcontext context);
EXPORT CUresult cuCtxDestroy_v2(CUcontext context);
EXPORT CUresult cuGreenCtxCreate(CUgreenCtx *context, CUdevResourceDesc desc, CUdevice device, unsigned flags);
EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx context);
EXPORT CUresult cuCtxSetLimit(int limit, size_t value);

EXPORT CUresult cuModuleLoad(CUmodule *module, const char *file);
EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image);
EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, int *options, void **values);
EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image);
EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, int *jit, void **jit_values, unsigned jit_count, int *options, void **values, unsigned count);
EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *file, int *jit, void **jit_values, unsigned jit_count, int *options, void **values, unsigned count);

/* launches and waits: replaced only in fair and strict mode (gate.c) */
#define LAUNCH_ARGS CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream stream, void **params
EXPORT CUresult cuLaunchKernel(LAUNCH_ARGS, void **extra);
EXPORT CUresult cuLaunchKernel_ptsz(LAUNCH_ARGS, void **extra);
EXPORT CUresult cuLaunchCooperativeKernel(LAUNCH_ARGS);
EXPORT CUresult cuLaunchCooperativeKernel_ptsz(LAUNCH_ARGS);
EXPORT CUresult cuLaunchKernelEx(const void *config, CUfunction f, void **params, void **extra);
EXPORT CUresult cuLaunchKernelEx_ptsz(const void *config, CUfunction f, void **params, void **extra);
EXPORT CUresult cuLaunchCooperativeKernelMultiDevice(void *list, unsigned count, unsigned flags);
EXPORT CUresult cuLaunch(CUfunction f);
EXPORT CUresult cuLaunchGrid(CUfunction f, int width, int height);
EXPORT CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream);
EXPORT CUresult cuCtxSynchronize(void);
EXPORT CUresult cuCtxSynchronize_v2(CUcontext context);
EXPORT CUresult cuStreamSynchronize(CUstream stream);
EXPORT CUresult cuStreamSynchronize_ptsz(CUstream stream);
EXPORT CUresult cuEventSynchronize(CUevent event);
EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes);
EXPORT CUresult cuMemcpyDtoH_v2_ptds(void *to, CUdeviceptr from, size_t bytes);
EXPORT CUresult cuStreamBeginCapture(CUstream stream);
EXPORT CUresult cuStreamBeginCapture_ptsz(CUstream stream);
EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, int mode);
EXPORT CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode);
EXPORT CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count, int mode);
EXPORT CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count, int mode);
EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph);
EXPORT CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph);

/* --- functions that the library only calls: declared for their types, never defined ------------------------------- */
CUresult cuCtxGetDevice(CUdevice *device);
CUresult cuCtxGetCurrent(CUcontext *context);
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device);
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device);
CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device);
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active);
CUresult cuCtxGetLimit(size_t *value, int limit);
CUresult cuStreamIsCapturing(CUstream stream, int *status);
CUresult cuStreamIsCapturing_ptsz(CUstream stream, int *status);
CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device);
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device);
CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value);
CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int attribute, void *value);
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count);
CUresult cuGraphNodeGetType(CUgraphNode node, int *type);
CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUallocNode *params);

#endif
