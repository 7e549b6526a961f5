/* Charging. An allocation is charged before the driver call and refunded if the call fails; a free calls the driver
 * first and refunds afterwards. The ledger is therefore below the driver's figure by at most the memory that no hooked
 * call allocates: modules, stacks, streams, library workspaces. NVML includes that memory: its figure for this process
 * minus the bytes tracked here is the process's overhead. The overhead is updated whenever no allocation was in
 * progress during the query. */
#define _GNU_SOURCE
#include "account.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "log.h"
#include "pool.h"

#define QUERY_EVERY_NS 1000000u       /* a memory query takes 16 microseconds: once per millisecond costs at most 2 % */
#define TRUST_FOR_NS 200000000u       /* an allocation reconciles first when the last query is older than this */

static struct { CUdevice device; int index; } seen[64];
static int seen_count;
static struct { uint8_t uuid[16]; CUdevice device; uint64_t asked; nvmlDevice_t nvml; } known[MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int under_way, dirty;
static __thread int own_changes __attribute__((tls_model("initial-exec"))); /* this thread's part of under_way */
static uint64_t changes;

static int index_locked(CUdevice device) {
    for (int i = 0; i < seen_count; i++)
        if (seen[i].device == device) return seen[i].index;
    CUuuid uuid;
    struct allowance allowed;
    if (refusing()) return -1;
    __typeof__(&cuDeviceGetUuid) get = REAL(cuDeviceGetUuid_v2) ? REAL(cuDeviceGetUuid_v2) : REAL(cuDeviceGetUuid);
    if (!get || get(&uuid, device)) return -1;
    if (!config_allowance(uuid.bytes, &allowed)) {
        static int said;
        char text[41];
        uuid_write(uuid.bytes, text);
        say_once(&said, "%s is not among this container's GPUs; its memory is refused", text);
        return -1;
    }
    int index = ledger_device(uuid.bytes);
    if (index < 0) return -1;
    memcpy(known[index].uuid, uuid.bytes, 16);
    known[index].device = device;
    if (seen_count < 64) seen[seen_count].device = device, seen[seen_count++].index = index;
    return index;
}

int device_index(CUdevice device) {
    pthread_mutex_lock(&lock);
    inside++;
    int index = index_locked(device);
    inside--;
    pthread_mutex_unlock(&lock);
    return index;
}

int current_device(void) {
    CUdevice device;
    if (!REAL(cuCtxGetDevice) || CALL(cuCtxGetDevice, &device)) return -1;
    return device_index(device);
}

CUcontext current_context(void) {
    CUcontext context = NULL;
    if (REAL(cuCtxGetCurrent)) CALL(cuCtxGetCurrent, &context);
    return context;
}

CUdevice device_cuda(int index) {
    for (int i = 0; i < seen_count; i++)
        if (seen[i].index == index) return seen[i].device;
    return -1;
}

bool device_allowance(int index, struct allowance *out) {
    return index >= 0 && !refusing() && config_allowance(known[index].uuid, out);
}

/* --- the driver's figure -------------------------------------------------------------------------------------------- */

/* Bytes the driver holds for this process; false when it does not report them (no NVML, pids of another namespace). */
static bool ask(int index, uint64_t *bytes) {
    static int broken;
    if (broken || !real_nvml(true)) return false;
    __typeof__(&nvmlDeviceGetComputeRunningProcesses_v3) list = REAL(nvmlDeviceGetComputeRunningProcesses_v3);
    if (!list) list = REAL(nvmlDeviceGetComputeRunningProcesses_v2); /* the same structure */
    if (!list || !REAL(nvmlInit_v2) || !REAL(nvmlDeviceGetHandleByUUID)) return false;
    if (!known[index].nvml) {
        char text[41];
        uuid_write(known[index].uuid, text);
        nvmlDevice_t found;
        if (REAL(nvmlInit_v2)() || REAL(nvmlDeviceGetHandleByUUID)(text, &found)) return broken = 1, false;
        known[index].nvml = found;
    }
    nvmlProcess processes[512];
    unsigned count = 512, self = (unsigned)getpid();
    if (list(known[index].nvml, &count, processes)) return false;
    for (unsigned i = 0; i < count && i < 512; i++)
        if (processes[i].pid == self) return *bytes = processes[i].bytes, processes[i].bytes != NVML_BYTES_UNKNOWN;
    return false;
}

void reconcile(int index, bool now) {
    if (index < 0) return;
    uint64_t time = now_ns();
    now = now || __atomic_load_n(&dirty, __ATOMIC_RELAXED);
    if (!now && time - __atomic_load_n(&known[index].asked, __ATOMIC_RELAXED) < QUERY_EVERY_NS) return;
    __atomic_store_n(&known[index].asked, time, __ATOMIC_RELAXED);
    inside++;
    pools_settle(index);
    pthread_mutex_lock(&lock);
    uint64_t before = changes, bytes, overhead, soft;
    /* This thread's own change has not called the driver yet when it reconciles; another thread's change may have. */
    bool calm = under_way == own_changes;
    __atomic_store_n(&dirty, 0, __ATOMIC_RELAXED);
    if (calm && ask(index, &bytes) && before == changes && under_way == own_changes) {
        uint64_t tracked = ledger_own(index, &overhead, &soft);
        if (config_driver_keeps()) ledger_overhead(index, bytes, false); /* the driver's figure excludes managed memory */
        else ledger_overhead(index, bytes > tracked ? bytes - tracked : 0, soft > 0);
    } else if (!calm) {
        __atomic_store_n(&dirty, 1, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&lock);
    inside--;
}

void mark_dirty(void) { __atomic_store_n(&dirty, 1, __ATOMIC_RELAXED); }

/* --- changes ------------------------------------------------------------------------------------------------------- */

void change_begins(void) {
    pthread_mutex_lock(&lock);
    under_way++, own_changes++;
    pthread_mutex_unlock(&lock);
}

void change_ends(void) {
    pthread_mutex_lock(&lock);
    under_way--, own_changes--;
    changes++;
    pthread_mutex_unlock(&lock);
}

static bool try_charge(int index, uint64_t bytes, bool soft, bool keep, uint64_t limit) {
    return keep ? ledger_charge(index, bytes, soft, limit) : ledger_room(index, bytes, limit);
}

static bool charge_or_check(int index, uint64_t bytes, bool soft, bool keep) {
    struct allowance allowed;
    if (!device_allowance(index, &allowed)) return false;
    uint64_t age = now_ns() - __atomic_load_n(&known[index].asked, __ATOMIC_RELAXED);
    bool unseen = config_driver_keeps(); /* most calls are not hooked, so the tracked figure is stale */
    if (unseen || __atomic_load_n(&dirty, __ATOMIC_RELAXED) || age > TRUST_FOR_NS) reconcile(index, true);
    if (try_charge(index, bytes, soft, keep, allowed.limit)) return true;
    ledger_reap();
    reconcile(index, true);
    if (try_charge(index, bytes, soft, keep, allowed.limit)) return true;
    pools_trim(index);
    reconcile(index, true);
    if (try_charge(index, bytes, soft, keep, allowed.limit)) return true;
    log_line("refused %llu bytes: %llu of %llu in use", (unsigned long long)bytes, (unsigned long long)ledger_total(index),
             (unsigned long long)allowed.limit);
    ledger_refused(index, bytes);
    return false;
}

bool charge(int index, uint64_t bytes, bool soft) { return index >= 0 && charge_or_check(index, bytes, soft, true); }
bool room_for(int index, uint64_t bytes) { return index >= 0 && charge_or_check(index, bytes, false, false); }
void refund(int index, uint64_t bytes, bool soft) { ledger_refund(index, bytes, soft); }

void account_forked(void) {
    pthread_mutex_init(&lock, NULL);
    under_way = own_changes = 0, dirty = 0;
    for (int i = 0; i < MAX_DEVICES; i++) known[i].asked = 0;
}
