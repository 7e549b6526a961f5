/* A memory pool reserves more memory than it hands out: it grows in steps of 32 MiB and shrinks at synchronization. The
 * reserved bytes are charged: the expected growth before the call, the actual growth after it. Nothing here
 * synchronizes: the driver does not either in these calls, and it would invalidate captures. */
#define _GNU_SOURCE
#include "pool.h"

#include <pthread.h>
#include <string.h>

#include "account.h"
#include "memory.h"

enum { MAX_POOLS = 256 };
static struct { CUmemoryPool pool; int device; uint64_t charged; } pools[MAX_POOLS];
static int count;
static uint64_t graph_charged[MAX_DEVICES];
static int graphs;
static int orphans; /* a pool was destroyed while allocations from it were live */
/* The step by which a pool grows: 32 MiB on all known drivers. It is charged in advance, so the container is never above
 * its limit, not even for a moment. If a driver is seen to use smaller steps, the step becomes one block. */
static uint64_t step = 32 * MIB;
static pthread_mutex_t lock; /* recursive: charging for a pool may settle all pools */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_lock(void) {
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&lock, &kind);
    pthread_mutexattr_destroy(&kind);
}

static void enter(void) {
    pthread_once(&once, make_lock);
    pthread_mutex_lock(&lock);
}

static void leave(void) { pthread_mutex_unlock(&lock); }

static int find(CUmemoryPool pool, int device) {
    for (int i = 0; i < count; i++)
        if (pools[i].pool == pool) return i;
    if (device < 0 || count == MAX_POOLS) return -1;
    pools[count].pool = pool, pools[count].device = device, pools[count].charged = 0;
    return count++;
}

static uint64_t attribute(CUmemoryPool pool, int which) {
    uint64_t value = 0;
    if (REAL(cuMemPoolGetAttribute)) CALL(cuMemPoolGetAttribute, pool, which, &value);
    return value;
}

/* Memory that the driver already holds is charged even beyond the limit. */
static void settle_to(uint64_t *charged, int device, uint64_t real) {
    if (real > *charged) ledger_force(device, real - *charged);
    else refund(device, *charged - real, false);
    *charged = real;
}

static void settle(int i) { settle_to(&pools[i].charged, pools[i].device, attribute(pools[i].pool, CU_POOL_RESERVED)); }

static void settle_graphs(int device) {
    CUdevice cuda = device_cuda(device);
    uint64_t held = 0;
    if (!__atomic_load_n(&graphs, __ATOMIC_RELAXED) || cuda < 0 || !REAL(cuDeviceGetGraphMemAttribute)) return;
    if (!CALL(cuDeviceGetGraphMemAttribute, cuda, CU_GRAPH_MEM_RESERVED, &held)) settle_to(&graph_charged[device], device, held);
}

void pools_settle(int index) {
    enter();
    for (int i = 0; i < count; i++)
        if (pools[i].device == index) settle(i);
    settle_graphs(index);
    leave();
}

void pools_trim(int index) {
    enter();
    for (int i = 0; i < count; i++)
        if (pools[i].device == index && REAL(cuMemPoolTrimTo)) CALL(cuMemPoolTrimTo, pools[i].pool, 0);
    if (__atomic_load_n(&graphs, __ATOMIC_RELAXED) && device_cuda(index) >= 0 && REAL(cuDeviceGraphMemTrim))
        CALL(cuDeviceGraphMemTrim, device_cuda(index));
    pools_settle(index);
    leave();
}

void pools_drop(int index) {
    enter();
    for (int i = count - 1; i >= 0; i--) {
        if (pools[i].device != index) continue;
        refund(index, pools[i].charged, false);
        pools[i] = pools[--count];
    }
    settle_to(&graph_charged[index], index, 0);
    leave();
}

static uint64_t graph_attribute(int index, int which) {
    uint64_t value = 0;
    if (device_cuda(index) >= 0 && REAL(cuDeviceGetGraphMemAttribute)) CALL(cuDeviceGetGraphMemAttribute, device_cuda(index), which, &value);
    return value;
}

static uint64_t graph_growth(int index, uint64_t bytes) {
    uint64_t wanted = graph_attribute(index, CU_GRAPH_MEM_USED) + bytes, reserved = graph_attribute(index, CU_GRAPH_MEM_RESERVED);
    return wanted > reserved ? wanted - reserved : 0;
}

bool graph_fits(int index, uint64_t bytes) { return bytes < UINT64_MAX / 2 && room_for(index, graph_growth(index, bytes)); }

/* The charge is corrected to the actual size after the launch. The charge may trim the memory that the graph was going
 * to reuse. The graph then needs more than was charged, so the charge is computed again. */
bool graph_charge(int index, uint64_t bytes, bool has_it) {
    bool good = false;
    enter();
    for (int tries = 0; tries < 3 && !good; tries++) {
        settle_graphs(index);
        uint64_t used = graph_attribute(index, CU_GRAPH_MEM_USED), reserved = graph_charged[index];
        uint64_t ahead = round_up(graph_growth(index, !has_it ? bytes : bytes > used ? bytes - used : 0), step);
        if (ahead && !charge(index, ahead, false)) break;
        good = graph_charged[index] == reserved;
        if (good) graph_charged[index] += ahead;
        else refund(index, ahead, false);
    }
    leave();
    return good;
}

void graph_memory_used(void) { __atomic_store_n(&graphs, 1, __ATOMIC_RELAXED); }
int graphs_allocate(void) { return __atomic_load_n(&graphs, __ATOMIC_RELAXED); }

/* --- allocation ---------------------------------------------------------------------------------------------------- */

static bool capturing(CUstream stream, bool per_thread) {
    int status = 0;
    if (per_thread && REAL(cuStreamIsCapturing_ptsz)) CALL(cuStreamIsCapturing_ptsz, stream, &status);
    else if (REAL(cuStreamIsCapturing)) CALL(cuStreamIsCapturing, stream, &status);
    return status != 0;
}

/* The four entry points differ in the source of the pool and in the meaning of the default stream. */
static CUresult take(enum entry entry, CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    switch (entry) {
    case E_cuMemAllocAsync: return CALL(cuMemAllocAsync, pointer, bytes, stream);
    case E_cuMemAllocAsync_ptsz: return CALL(cuMemAllocAsync_ptsz, pointer, bytes, stream);
    case E_cuMemAllocFromPoolAsync: return CALL(cuMemAllocFromPoolAsync, pointer, bytes, pool, stream);
    default: return CALL(cuMemAllocFromPoolAsync_ptsz, pointer, bytes, pool, stream);
    }
}

static CUresult give_up(CUdeviceptr *pointer, CUstream stream, bool per_thread, int i) {
    if (per_thread && REAL(cuMemFreeAsync_ptsz)) CALL(cuMemFreeAsync_ptsz, *pointer, stream);
    else CALL(cuMemFreeAsync, *pointer, stream);
    *pointer = 0;
    pools_trim(pools[i].device);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult take_counted(enum entry entry, CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream, bool per_thread, int device) {
    int i = find(pool, device);
    if (i < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    settle(i);
    uint64_t used = attribute(pool, CU_POOL_USED), reserved = pools[i].charged;
    uint64_t ahead = bytes > UINT64_MAX - used ? UINT64_MAX : used + bytes > reserved ? round_up(used + bytes - reserved, step) : 0;
    change_begins();
    if (ahead) {
        if (!charge(device, ahead, false)) return change_ends(), CUDA_ERROR_OUT_OF_MEMORY;
        if ((i = find(pool, device)) < 0) return change_ends(), CUDA_ERROR_OUT_OF_MEMORY;
        pools[i].charged += ahead;
    }
    CUresult result = take(entry, pointer, bytes, pool, stream);
    change_ends();
    uint64_t held = attribute(pool, CU_POOL_RESERVED), before = pools[i].charged;
    if (!result && ahead && held < before && held > reserved) step = BLOCK;
    if (result || held <= before) return settle(i), result;
    if (!charge(device, held - before, false)) return give_up(pointer, stream, per_thread, i);
    if (pools[i].charged == before) pools[i].charged = held; /* otherwise the charge has settled the pools already */
    else refund(device, held - before, false);
    return settle(i), result;
}

static CUresult allocate(enum entry entry, CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream, bool per_thread) {
    int device = current_device();
    if (!pointer) return CUDA_ERROR_INVALID_VALUE;
    if (capturing(stream, per_thread)) { /* the call becomes a graph node: memory is taken at the launch */
        graph_memory_used();
        if (!graph_fits(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
        return take(entry, pointer, bytes, pool, stream);
    }
    CUdevice cuda;
    if (!pool && (!REAL(cuCtxGetDevice) || CALL(cuCtxGetDevice, &cuda) || !REAL(cuDeviceGetMemPool) || CALL(cuDeviceGetMemPool, &pool, cuda)))
        return take(entry, pointer, bytes, pool, stream); /* no context: the driver returns the right error */
    enter();
    int i = find(pool, -1);
    CUresult result = take_counted(entry, pointer, bytes, pool, stream, per_thread, i >= 0 ? pools[i].device : device);
    leave();
    return result;
}

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    PASS_THROUGH(cuMemAllocAsync, pointer, bytes, stream);
    return allocate(E_cuMemAllocAsync, pointer, bytes, NULL, stream, false);
}

EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    PASS_THROUGH(cuMemAllocAsync_ptsz, pointer, bytes, stream);
    return allocate(E_cuMemAllocAsync_ptsz, pointer, bytes, NULL, stream, true);
}

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    PASS_THROUGH(cuMemAllocFromPoolAsync, pointer, bytes, pool, stream);
    return allocate(E_cuMemAllocFromPoolAsync, pointer, bytes, pool, stream, false);
}

EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    PASS_THROUGH(cuMemAllocFromPoolAsync_ptsz, pointer, bytes, pool, stream);
    return allocate(E_cuMemAllocFromPoolAsync_ptsz, pointer, bytes, pool, stream, true);
}

/* The driver frees memory of a destroyed pool without a trace in any pool's figures: reconcile at the next query. */
static CUresult freed(CUresult result, CUdeviceptr pointer) {
    if (!result) memory_freed(pointer);
    if (!result && __atomic_load_n(&orphans, __ATOMIC_RELAXED)) mark_dirty();
    return result;
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    PASS_THROUGH(cuMemFreeAsync, pointer, stream);
    CUresult result = CALL(cuMemFreeAsync, pointer, stream);
    return freed(result, pointer);
}

EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
    PASS_THROUGH(cuMemFreeAsync_ptsz, pointer, stream);
    CUresult result = CALL(cuMemFreeAsync_ptsz, pointer, stream);
    return freed(result, pointer);
}

/* --- pools ---------------------------------------------------------------------------------------------------------- */

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUpoolProps *props) {
    PASS_THROUGH(cuMemPoolCreate, pool, props);
    CUresult result = CALL(cuMemPoolCreate, pool, props);
    if (result || !props || props->location.type != CU_LOCATION_DEVICE) return result;
    int device = device_index(props->location.id);
    enter();
    int i = find(*pool, device);
    if (i >= 0) settle(i);
    leave();
    return result;
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    PASS_THROUGH(cuMemPoolDestroy, pool);
    enter();
    int i = find(pool, -1), device = i >= 0 ? pools[i].device : -1;
    uint64_t live = attribute(pool, CU_POOL_USED);
    CUresult result = CALL(cuMemPoolDestroy, pool);
    if (!result && i >= 0) {
        refund(device, pools[i].charged, false);
        pools[i] = pools[--count];
        if (live) __atomic_store_n(&orphans, 1, __ATOMIC_RELAXED);
        reconcile(device, true); /* live allocations stay with the driver until they are freed: they now count as overhead */
    }
    leave();
    return result;
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    PASS_THROUGH(cuMemPoolTrimTo, pool, keep);
    enter();
    CUresult result = CALL(cuMemPoolTrimTo, pool, keep);
    int i = find(pool, -1);
    if (i >= 0) settle(i);
    leave();
    return result;
}

EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int which, void *value) {
    PASS_THROUGH(cuMemPoolSetAttribute, pool, which, value);
    enter();
    CUresult result = CALL(cuMemPoolSetAttribute, pool, which, value);
    int i = find(pool, -1);
    if (i >= 0) settle(i);
    leave();
    return result;
}

void pools_forked(void) {
    make_lock();
    count = 0, graphs = 0, orphans = 0;
    memset(graph_charged, 0, sizeof graph_charged);
}
