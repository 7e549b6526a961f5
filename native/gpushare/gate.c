/* Leases of GPU time, for the modes `fair` and `strict`. Every launch checks the lease; in the usual case that costs one
 * clock read and one store. lease.c has the rules; this file shares the lease state between processes and makes the
 * driver calls. If the gate file cannot be opened, the driver's own time slicing applies and one line is logged. */
#define _GNU_SOURCE
#include "gate.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "account.h"
#include "lease.h"
#include "log.h"
#include "robust.h"

static struct {
    struct gate *gate;
    int me, tried;
    uint32_t counted;          /* see lease.h */
    unsigned launched, window; /* launches since the last drain, and the most allowed (rule 5) */
} gates[MAX_DEVICES];
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static int captures;       /* streams of this process under capture */

/* --- the file ------------------------------------------------------------------------------------------------------- */

static struct gate *map_gate(const uint8_t uuid[16]) {
    char path[320];
    config_gate(path, sizeof path, uuid);
    int fd = open(path, O_RDWR | O_CLOEXEC | (config_development() ? O_CREAT : 0), 0666);
    if (fd < 0) return NULL;
    struct stat status;
    struct gate *g = MAP_FAILED;
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (fcntl(fd, 38 /* F_OFD_SETLKW */, &whole) == 0 && fstat(fd, &status) == 0 &&
        (status.st_size == GATE_BYTES || (config_development() && status.st_size == 0 && ftruncate(fd, GATE_BYTES) == 0)))
        g = mmap(NULL, GATE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (g != MAP_FAILED && !g->magic && robust_init(&g->mutex))
        g->version = GATE_VERSION, g->size = GATE_BYTES, g->ready = 1, g->magic = GATE_MAGIC;
    whole.l_type = F_UNLCK; /* explicitly: the mapping keeps the open file description, and with it the lock */
    fcntl(fd, 37 /* F_OFD_SETLK */, &whole);
    close(fd);
    if (g == MAP_FAILED) return NULL;
    if (g->magic == GATE_MAGIC && g->version == GATE_VERSION && g->size == GATE_BYTES && g->ready == 1) return g;
    munmap(g, GATE_BYTES);
    return NULL;
}

static bool lock(struct gate *g) { return robust_lock(&g->mutex) != BROKEN; } /* nothing to repair after a crash: every field is valid at any moment */
static void unlock(struct gate *g) { pthread_mutex_unlock(&g->mutex); }

static int take_place(struct gate *g, int index) {
    struct allowance allowed;
    if (!device_allowance(index, &allowed)) return -1;
    return lease_join(g, config_tenant(), allowed.weight, config_mode() == MODE_STRICT, now_ns());
}

static void join(int index) {
    CUuuid uuid;
    static int said;
    gates[index].me = -1, gates[index].window = 64;
    __typeof__(&cuDeviceGetUuid) get = REAL(cuDeviceGetUuid_v2) ? REAL(cuDeviceGetUuid_v2) : REAL(cuDeviceGetUuid);
    if (!get || get(&uuid, device_cuda(index))) return;
    struct gate *g = map_gate(uuid.bytes);
    if (g && lock(g)) {
        gates[index].me = take_place(g, index);
        unlock(g);
    }
    if (gates[index].me < 0) say_once(&said, "no lease gate for this GPU; its time is shared by the driver");
    else __atomic_store_n(&gates[index].gate, g, __ATOMIC_RELEASE);
}

static int current_gate(void) {
    static __thread CUcontext last;
    static __thread int last_index;
    CUcontext context = current_context();
    if (!context) return -1;
    if (context != last) last_index = current_device(), last = context;
    int index = last_index;
    if (index < 0) return -1;
    if (!__atomic_load_n(&gates[index].tried, __ATOMIC_ACQUIRE)) {
        pthread_mutex_lock(&opening);
        if (!gates[index].tried) {
            inside++;
            join(index);
            inside--;
            __atomic_store_n(&gates[index].tried, 1, __ATOMIC_RELEASE);
        }
        pthread_mutex_unlock(&opening);
    }
    return gates[index].gate ? index : -1;
}

/* --- waiting for the lease ------------------------------------------------------------------------------------------- */

static void wake(struct gate *g, int who) { syscall(SYS_futex, &g->tenant[who].futex, FUTEX_WAKE, 64, NULL, NULL, 0); }

static void doze(struct gate *g, int me, uint32_t value) {
    struct timespec half_ms = {.tv_nsec = 500000};
    syscall(SYS_futex, &g->tenant[me].futex, FUTEX_WAIT, value, &half_ms, NULL, 0);
}

/* The work that this process queued has run, unless another thread launched since. Synchronizing one stream counts as
 * synchronizing all of them: otherwise programs with a single stream, the majority, would pause at every hand-over. */
static void emptied(int index, unsigned before) {
    struct tenant *t = &gates[index].gate->tenant[gates[index].me];
    if (!__atomic_compare_exchange_n(&gates[index].launched, &before, 0, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return;
    lease_emptied(t, &gates[index].counted);
    if (__atomic_load_n(&t->handing, __ATOMIC_RELAXED)) wake(gates[index].gate, gates[index].me); /* another process of this tenant waits for us */
}

static void fit_window(int index, uint64_t took) { /* rule 5 */
    unsigned size = __atomic_load_n(&gates[index].window, __ATOMIC_RELAXED);
    if (took > QUANTUM_NS / 2 && size > 1) size /= 2;
    else if (took < QUANTUM_NS / 4 && size < 65536) size *= 2;
    __atomic_store_n(&gates[index].window, size, __ATOMIC_RELAXED);
}

static void drain(int index) {
    struct tenant *t = &gates[index].gate->tenant[gates[index].me];
    unsigned queued = __atomic_load_n(&gates[index].launched, __ATOMIC_RELAXED);
    uint64_t before = now_ns();
    lease_wait_begins(t);
    if (REAL(cuCtxSynchronize)) CALL(cuCtxSynchronize);
    uint64_t now = now_ns();
    lease_wait_ends(t, now);
    if (queued) fit_window(index, now - before); /* draining an empty queue gives no measurement */
    emptied(index, queued);
}

/* False: other processes of this tenant still have work on the GPU. */
static bool hand_over(struct gate *g, int me) {
    if (!lock(g)) return true;
    bool done = lease_drained(g, me, now_ns());
    int holder = (int)g->holder - 1;
    unlock(g);
    if (holder >= 0 && holder != me) wake(g, holder);
    return done;
}

/* This tenant's index. When there are many tenants, one that was inactive for long may have lost its entry to another
 * and joins again. */
static int own_place(struct gate *g, int index) {
    int me = __atomic_load_n(&gates[index].me, __ATOMIC_RELAXED);
    if (strncmp(g->tenant[me].name, config_tenant(), sizeof g->tenant[me].name) == 0) return me;
    int found = take_place(g, index);
    if (found >= 0) __atomic_store_n(&gates[index].me, found, __ATOMIC_RELAXED);
    return found;
}

static void wait_for_turn(int index) {
    struct gate *g = gates[index].gate;
    for (;;) {
        uint64_t until = 0;
        if (!lock(g)) return;
        int me = own_place(g, index);
        if (me < 0) return unlock(g);
        enum turn turn = lease_ask(g, me, now_ns(), &until);
        uint32_t value = __atomic_load_n(&g->tenant[me].futex, __ATOMIC_ACQUIRE);
        unlock(g);
        if (turn == GO) return;
        if (turn == DRAIN) {
            drain(index);
            if (!hand_over(g, me)) turn = WAIT;
        }
        if (turn == WAIT) doze(g, me, value);
        if (turn == SLEEP) {
            uint64_t now = now_ns(), rest = until > now ? until - now : 0;
            struct timespec pause = {.tv_nsec = (long)(rest < 999999999u ? rest : 999999999u)};
            nanosleep(&pause, NULL);
        }
    }
}

void gate_launch(CUstream stream, bool per_thread) {
    (void)stream, (void)per_thread;
    if (config_mode() == MODE_TIMESHARING || __atomic_load_n(&captures, __ATOMIC_RELAXED) > 0) return;
    int index = current_gate();
    if (index < 0) return;
    struct gate *g = gates[index].gate;
    struct tenant *t = &g->tenant[gates[index].me];
    uint64_t now = now_ns();
    bool holds = __atomic_load_n(&g->holder, __ATOMIC_RELAXED) == (uint32_t)gates[index].me + 1;
    if (holds && now < __atomic_load_n(&g->end, __ATOMIC_RELAXED)) __atomic_store_n(&t->active, now, __ATOMIC_RELAXED);
    else wait_for_turn(index);
    unsigned depth = __atomic_add_fetch(&gates[index].launched, 1, __ATOMIC_RELAXED);
    lease_launched(t, &gates[index].counted);
    if (depth >= __atomic_load_n(&gates[index].window, __ATOMIC_RELAXED) && (t->strict || lease_crowded(g, gates[index].me, now))) drain(index);
}

void gate_forked(void) {
    pthread_mutex_init(&opening, NULL);
    memset(gates, 0, sizeof gates);
    captures = 0;
}

/* --- the entry points -------------------------------------------------------------------------------------------------- */

#define LAUNCH(name, stream, ...)          \
    PASS_THROUGH(name, __VA_ARGS__);       \
    gate_launch(stream, false);            \
    return CALL(name, __VA_ARGS__)
#define DIMENSIONS f, gx, gy, gz, bx, by, bz, shared, stream, params

EXPORT CUresult cuLaunchKernel(LAUNCH_ARGS, void **extra) { LAUNCH(cuLaunchKernel, stream, DIMENSIONS, extra); }
EXPORT CUresult cuLaunchKernel_ptsz(LAUNCH_ARGS, void **extra) { LAUNCH(cuLaunchKernel_ptsz, stream, DIMENSIONS, extra); }
EXPORT CUresult cuLaunchCooperativeKernel(LAUNCH_ARGS) { LAUNCH(cuLaunchCooperativeKernel, stream, DIMENSIONS); }
EXPORT CUresult cuLaunchCooperativeKernel_ptsz(LAUNCH_ARGS) { LAUNCH(cuLaunchCooperativeKernel_ptsz, stream, DIMENSIONS); }
EXPORT CUresult cuLaunchKernelEx(const void *c, CUfunction f, void **p, void **e) { LAUNCH(cuLaunchKernelEx, NULL, c, f, p, e); }
EXPORT CUresult cuLaunchKernelEx_ptsz(const void *c, CUfunction f, void **p, void **e) { LAUNCH(cuLaunchKernelEx_ptsz, NULL, c, f, p, e); }
EXPORT CUresult cuLaunchCooperativeKernelMultiDevice(void *list, unsigned n, unsigned flags) {
    LAUNCH(cuLaunchCooperativeKernelMultiDevice, NULL, list, n, flags);
}
EXPORT CUresult cuLaunch(CUfunction f) { LAUNCH(cuLaunch, NULL, f); }
EXPORT CUresult cuLaunchGrid(CUfunction f, int w, int h) { LAUNCH(cuLaunchGrid, NULL, f, w, h); }
EXPORT CUresult cuLaunchGridAsync(CUfunction f, int w, int h, CUstream stream) { LAUNCH(cuLaunchGridAsync, stream, f, w, h, stream); }

/* A tenant inside a synchronize call counts as busy although it launches nothing. */
static int wait_begins(unsigned *queued) {
    int index = current_gate();
    if (index < 0) return index;
    *queued = __atomic_load_n(&gates[index].launched, __ATOMIC_RELAXED);
    lease_wait_begins(&gates[index].gate->tenant[gates[index].me]);
    return index;
}

static void wait_ends(int index, unsigned queued) {
    if (index < 0) return;
    lease_wait_ends(&gates[index].gate->tenant[gates[index].me], now_ns());
    emptied(index, queued);
}

#define WAITING(name, ...)                         \
    PASS_THROUGH(name, ##__VA_ARGS__);             \
    unsigned queued = 0;                           \
    int index = wait_begins(&queued);              \
    CUresult result = CALL(name, ##__VA_ARGS__);   \
    wait_ends(index, queued);                      \
    return result

EXPORT CUresult cuCtxSynchronize(void) { WAITING(cuCtxSynchronize); }
EXPORT CUresult cuCtxSynchronize_v2(CUcontext context) { WAITING(cuCtxSynchronize_v2, context); }
EXPORT CUresult cuStreamSynchronize(CUstream stream) { WAITING(cuStreamSynchronize, stream); }
EXPORT CUresult cuStreamSynchronize_ptsz(CUstream stream) { WAITING(cuStreamSynchronize_ptsz, stream); }
EXPORT CUresult cuEventSynchronize(CUevent event) { WAITING(cuEventSynchronize, event); }
EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) { WAITING(cuMemcpyDtoH_v2, to, from, bytes); }
EXPORT CUresult cuMemcpyDtoH_v2_ptds(void *to, CUdeviceptr from, size_t bytes) { WAITING(cuMemcpyDtoH_v2_ptds, to, from, bytes); }

/* Rule 6: no lease during stream capture. A drain would invalidate the capture, and a captured launch runs nothing. */
#define CAPTURE(change, name, ...)                                              \
    PASS_THROUGH(name, __VA_ARGS__);                                            \
    CUresult result = CALL(name, __VA_ARGS__);                                  \
    if (!result || change < 0) __atomic_add_fetch(&captures, change, __ATOMIC_RELAXED); \
    if (__atomic_load_n(&captures, __ATOMIC_RELAXED) < 0) __atomic_store_n(&captures, 0, __ATOMIC_RELAXED); \
    return result
#define TO_GRAPH CUstream stream, CUgraph graph, const CUgraphNode *after, const void *edges, size_t n, int mode

EXPORT CUresult cuStreamBeginCapture(CUstream stream) { CAPTURE(1, cuStreamBeginCapture, stream); }
EXPORT CUresult cuStreamBeginCapture_ptsz(CUstream stream) { CAPTURE(1, cuStreamBeginCapture_ptsz, stream); }
EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) { CAPTURE(1, cuStreamBeginCapture_v2, stream, mode); }
EXPORT CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode) { CAPTURE(1, cuStreamBeginCapture_v2_ptsz, stream, mode); }
EXPORT CUresult cuStreamBeginCaptureToGraph(TO_GRAPH) { CAPTURE(1, cuStreamBeginCaptureToGraph, stream, graph, after, edges, n, mode); }
EXPORT CUresult cuStreamBeginCaptureToGraph_ptsz(TO_GRAPH) { CAPTURE(1, cuStreamBeginCaptureToGraph_ptsz, stream, graph, after, edges, n, mode); }
EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) { CAPTURE(-1, cuStreamEndCapture, stream, graph); }
EXPORT CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) { CAPTURE(-1, cuStreamEndCapture_ptsz, stream, graph); }
