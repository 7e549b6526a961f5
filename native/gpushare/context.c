/* A context itself takes memory (518 MiB on an H200) before the program allocates anything. The first context on a
 * device is charged at its calibrated size and then corrected with the driver's figure. When the last context on a
 * device is destroyed, everything allocated in it is refunded. */
#define _GNU_SOURCE
#include "context.h"

#include <pthread.h>
#include <stdlib.h>

#include "account.h"
#include "log.h"
#include "memory.h"
#include "pool.h"

enum { MAX_CONTEXTS = 128 };
static struct { CUcontext context; int device; bool primary; } contexts[MAX_CONTEXTS];
static int count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int on_device(int index) {
    int n = 0;
    for (int i = 0; i < count; i++) n += contexts[i].device == index;
    return n;
}

static bool is_known(CUcontext context) {
    for (int i = 0; i < count; i++)
        if (contexts[i].context == context) return true;
    return false;
}

static CUresult too_small(uint64_t limit, uint64_t need) {
    static int said;
    say_once(&said, "limit %llu MiB is less than one CUDA context (%llu MiB)", (unsigned long long)(limit / MIB), (unsigned long long)(need / MIB));
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* With the lock held, before the driver creates a context: charges the first context on the device. */
static CUresult before(int index) {
    struct allowance allowed;
    if (index < 0 || !device_allowance(index, &allowed)) return CUDA_ERROR_OUT_OF_MEMORY;
    if (on_device(index)) return CUDA_SUCCESS;
    if (allowed.limit < allowed.context || !allowed.limit) return too_small(allowed.limit, allowed.context);
    if (ledger_context(index, allowed.context, allowed.limit)) return CUDA_SUCCESS;
    ledger_reap();
    if (ledger_context(index, allowed.context, allowed.limit)) return CUDA_SUCCESS;
    ledger_refused(index, allowed.context);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static void forget(CUcontext context, int index) {
    for (int i = count - 1; i >= 0; i--)
        if (contexts[i].context == context && contexts[i].device == index) contexts[i] = contexts[--count];
    bool last = !on_device(index);
    memory_context_gone(context, last ? index : -1);
    if (!last) return;
    pools_drop(index);
    ledger_overhead(index, 0, false);
}

/* After the driver call: records the context, or refunds it if the call failed. True when the context is larger than
 * calibrated and does not fit. */
static bool after(CUresult result, CUcontext context, int index, bool primary) {
    bool first = !on_device(index);
    if (result) {
        if (first) ledger_overhead(index, 0, false);
        return false;
    }
    if (is_known(context)) return false;
    if (count < MAX_CONTEXTS) contexts[count].context = context, contexts[count].device = index, contexts[count++].primary = primary;
    if (!first) return mark_dirty(), false;
    reconcile(index, true);
    struct allowance allowed;
    if (!device_allowance(index, &allowed) || ledger_total(index) > allowed.limit) {
        ledger_reap();
        uint64_t overhead = 0, soft = 0;
        ledger_own(index, &overhead, &soft);
        if (ledger_total(index) <= allowed.limit) return false;
        if (overhead > allowed.limit) too_small(allowed.limit, overhead);
        return true;
    }
    return false;
}

/* The driver counts references to a primary context: two retains need two releases. */
EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    PASS_THROUGH(cuDevicePrimaryCtxRetain, context, device);
    pthread_mutex_lock(&lock);
    int index = device_index(device);
    CUresult result = before(index);
    if (!result) {
        result = CALL(cuDevicePrimaryCtxRetain, context, device);
        if (after(result, result ? NULL : *context, index, true)) {
            if (REAL(cuDevicePrimaryCtxRelease_v2)) CALL(cuDevicePrimaryCtxRelease_v2, device);
            forget(*context, index);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static void primary_may_be_gone(CUdevice device) {
    int index = device_index(device), active = 1;
    unsigned flags;
    if (!REAL(cuDevicePrimaryCtxGetState) || CALL(cuDevicePrimaryCtxGetState, device, &flags, &active) || active) return;
    for (int i = 0; i < count; i++)
        if (contexts[i].primary && contexts[i].device == index) {
            forget(contexts[i].context, index);
            return;
        }
}

#define PRIMARY(name, device)                      \
    PASS_THROUGH(name, device);                    \
    pthread_mutex_lock(&lock);                     \
    change_begins();                               \
    CUresult result = CALL(name, device);          \
    change_ends();                                 \
    if (!result) primary_may_be_gone(device);      \
    pthread_mutex_unlock(&lock);                   \
    return result

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device) { PRIMARY(cuDevicePrimaryCtxRelease, device); }
EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) { PRIMARY(cuDevicePrimaryCtxRelease_v2, device); }
EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device) { PRIMARY(cuDevicePrimaryCtxReset, device); }
EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) { PRIMARY(cuDevicePrimaryCtxReset_v2, device); }

static CUresult destroy(CUcontext context) {
    if (REAL(cuCtxDestroy_v2)) return CALL(cuCtxDestroy_v2, context);
    return CALL(cuCtxDestroy, context);
}

#define MAKE(name, device, ...)                                                \
    PASS_THROUGH(name, __VA_ARGS__);                                           \
    pthread_mutex_lock(&lock);                                                 \
    int index = device_index(device);                                          \
    CUresult result = before(index);                                           \
    if (!result) {                                                             \
        result = CALL(name, __VA_ARGS__);                                      \
        if (after(result, result ? NULL : *context, index, false)) {           \
            destroy(*context);                                                 \
            forget(*context, index);                                           \
            result = CUDA_ERROR_OUT_OF_MEMORY;                                 \
        }                                                                      \
    }                                                                          \
    pthread_mutex_unlock(&lock);                                               \
    return result

EXPORT CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device) { MAKE(cuCtxCreate, device, context, flags, device); }
EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device) { MAKE(cuCtxCreate_v2, device, context, flags, device); }

EXPORT CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int n, unsigned flags, CUdevice device) {
    MAKE(cuCtxCreate_v3, device, context, affinity, n, flags, device);
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *context, void *params, unsigned flags, CUdevice device) {
    MAKE(cuCtxCreate_v4, device, context, params, flags, device);
}

static int device_of(CUcontext context) {
    for (int i = 0; i < count; i++)
        if (contexts[i].context == context) return contexts[i].device;
    return -1;
}

#define UNMAKE(name, context)                                    \
    PASS_THROUGH(name, context);                                 \
    pthread_mutex_lock(&lock);                                   \
    change_begins();                                             \
    CUresult result = CALL(name, context);                       \
    change_ends();                                               \
    int index = device_of((CUcontext)context);                   \
    if (!result && index >= 0) forget((CUcontext)context, index); \
    pthread_mutex_unlock(&lock);                                 \
    return result

EXPORT CUresult cuCtxDestroy(CUcontext context) { UNMAKE(cuCtxDestroy, context); }
EXPORT CUresult cuCtxDestroy_v2(CUcontext context) { UNMAKE(cuCtxDestroy_v2, context); }
EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx context) { UNMAKE(cuGreenCtxDestroy, context); }

EXPORT CUresult cuGreenCtxCreate(CUgreenCtx *context, CUdevResourceDesc desc, CUdevice device, unsigned flags) {
    PASS_THROUGH(cuGreenCtxCreate, context, desc, device, flags);
    pthread_mutex_lock(&lock);
    int index = device_index(device);
    CUresult result = before(index);
    if (!result) {
        result = CALL(cuGreenCtxCreate, context, desc, device, flags);
        if (after(result, result ? NULL : (CUcontext)*context, index, false)) {
            CALL(cuGreenCtxDestroy, *context);
            forget((CUcontext)*context, index);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* The driver allocates a stack for every thread that the device can run at once: 16 KiB each make 4 GiB on an H200. */
static bool stacks_fit(int index, size_t value) {
    size_t now = 0;
    int threads = 0, processors = 0;
    CUdevice device = device_cuda(index);
    if (device < 0 || !REAL(cuCtxGetLimit) || CALL(cuCtxGetLimit, &now, CU_LIMIT_STACK_SIZE) || value <= now) return true;
    if (CALL(cuDeviceGetAttribute, &threads, CU_ATTRIBUTE_THREADS_PER_SM, device)) return true;
    if (CALL(cuDeviceGetAttribute, &processors, CU_ATTRIBUTE_SMS, device)) return true;
    uint64_t per_byte = (uint64_t)threads * (uint64_t)processors;
    return per_byte == 0 || (value - now <= UINT64_MAX / 2 / per_byte && room_for(index, (value - now) * per_byte));
}

/* The driver allocates the heap when a kernel that uses it is loaded, so it is charged as soft: it may not be resident
 * yet. */
static CUresult set_heap(int index, size_t value) {
    size_t now = 0;
    if (!REAL(cuCtxGetLimit) || CALL(cuCtxGetLimit, &now, CU_LIMIT_MALLOC_HEAP_SIZE)) now = 0;
    uint64_t more = value > now ? round_up(value - now, BLOCK) : 0, less = value < now ? (now - value) / BLOCK * BLOCK : 0;
    if (more && !charge(index, more, true)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = CALL(cuCtxSetLimit, CU_LIMIT_MALLOC_HEAP_SIZE, value);
    if (result) refund(index, more, true);
    else refund(index, less, true);
    return result;
}

EXPORT CUresult cuCtxSetLimit(int limit, size_t value) {
    PASS_THROUGH(cuCtxSetLimit, limit, value);
    if (!current_context()) return CALL(cuCtxSetLimit, limit, value);
    int index = current_device();
    CUresult result;
    if (limit == CU_LIMIT_STACK_SIZE && !stacks_fit(index, value)) result = CUDA_ERROR_OUT_OF_MEMORY;
    else if (limit == CU_LIMIT_MALLOC_HEAP_SIZE) result = set_heap(index, value);
    else result = CALL(cuCtxSetLimit, limit, value);
    mark_dirty();
    return result;
}

void context_forked(void) {
    pthread_mutex_init(&lock, NULL);
    count = 0;
}

/* --- modules: their arrays and stacks are allocated without a call that we hook -------------------------------------- */

#define LOAD(name, ...)                         \
    PASS_THROUGH(name, __VA_ARGS__);            \
    CUresult result = CALL(name, __VA_ARGS__);  \
    mark_dirty();                               \
    return result

EXPORT CUresult cuModuleLoad(CUmodule *module, const char *path) { LOAD(cuModuleLoad, module, path); }
EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image) { LOAD(cuModuleLoadData, module, image); }
EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) { LOAD(cuModuleLoadFatBinary, module, image); }

EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned n, int *options, void **values) {
    LOAD(cuModuleLoadDataEx, module, image, n, options, values);
}

EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, int *jit, void **jit_values, unsigned jit_count, int *options, void **values, unsigned n) {
    LOAD(cuLibraryLoadData, library, code, jit, jit_values, jit_count, options, values, n);
}

EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, int *jit, void **jit_values, unsigned jit_count, int *options, void **values, unsigned n) {
    LOAD(cuLibraryLoadFromFile, library, path, jit, jit_values, jit_count, options, values, n);
}
