/* How a program comes to hold our functions instead of the driver's.
 *
 *   dlsym             its own trampoline (trampoline.c) asks gpushare_filter first
 *   cuGetProcAddress  the driver answers, and a pointer we know is swapped for ours: no table of versions to keep
 *   direct linking    the names are exported, and preloaded libraries come first
 *
 * A pointer we do not know behind a name that could allocate is a newer driver's ABI: it is refused, loudly, rather
 * than handed out unwatched. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "account.h"
#include "context.h"
#include "gate.h"
#include "graph.h"
#include "log.h"
#include "memory.h"
#include "pool.h"
#include "real.h"
#include "vmm.h"

enum group { MEMORY, COMPUTE, NVML };
static const struct hook { const char *name; void *ours; enum entry entry; enum group group; } hooks[] = {
#define HOOK_MEMORY(name) {#name, (void *)name, E_##name, MEMORY},
#define HOOK_COMPUTE(name) {#name, (void *)name, E_##name, COMPUTE},
#define HOOK_NVML(name) {#name, (void *)name, E_##name, NVML},
    MEMORY_ENTRIES(HOOK_MEMORY) COMPUTE_ENTRIES(HOOK_COMPUTE) NVML_ENTRIES(HOOK_NVML)
};
enum { HOOKS = sizeof hooks / sizeof *hooks };

/* Where the driver keeps the limit, only what it does not count is ours. */
static bool watched(const struct hook *h) {
    static const char *const all[] = {"cuGetProcAddress", "cuMemAllocManaged", "cuMemFree"};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
        if (strncmp(h->name, all[i], strlen(all[i])) == 0) return true;
    return false;
}

/* In timesharing a launch goes through the driver's own pointer, so it costs nothing. */
static bool wanted(const struct hook *h) {
    bool leased = config_mode() != MODE_TIMESHARING;
    if (h->group == COMPUTE) return leased;
    if (!config_driver_keeps()) return true;
    return watched(h) || (leased && (h->entry == E_cuGraphLaunch || h->entry == E_cuGraphLaunch_ptsz));
}

static const struct hook *by_name(const char *name) {
    for (int i = 0; i < HOOKS; i++)
        if (strcmp(hooks[i].name, name) == 0) return wanted(&hooks[i]) ? &hooks[i] : NULL;
    return NULL;
}

static const char *base(const char *path) {
    const char *slash = path ? strrchr(path, '/') : NULL;
    return slash ? slash + 1 : path ? path : "";
}

static bool begins(const char *text, const char *with) { return strncmp(text, with, strlen(with)) == 0; }

static bool lies_in(const void *address, const char *one, const char *other) {
    Dl_info info;
    if (!address || !dladdr(address, &info)) return false;
    const char *file = base(info.dli_fname);
    return begins(file, one) || begins(file, other);
}

/* Called by the trampoline; NULL: nothing to say, the real dlsym goes on with the caller's own arguments. */
EARLY __attribute__((visibility("hidden"), used)) void *gpushare_filter(void *handle, const char *name, void *caller) {
    real_prepare();
    if (!name || inside) return NULL;
    bool cuda = name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
    if (!cuda && !(name[0] == 'n' && name[1] == 'v' && name[2] == 'm' && name[3] == 'l')) return NULL;
    const struct hook *h = by_name(name);
    if (!h) return NULL;
    if (handle == RTLD_NEXT) return h->ours;
    void *found = gpushare_real_dlsym(handle, name);
    /* the driver's own look-ups stay its own; libcudart, whose name begins alike, is a program like any other */
    if (!lies_in(found, "libcuda.so", "libnvidia-ml.so") || lies_in(caller, "libcuda.so", "libcudadebugger") || lies_in(caller, "libnvidia-", "libnvidia-"))
        return NULL;
    /* in another link namespace (dlmopen) ours would have no driver to call: bring it into this one */
    if (cuda ? real_driver(true) : real_nvml(true)) return h->ours;
    return NULL;
}

/* --- cuGetProcAddress ----------------------------------------------------------------------------------------------- */


static size_t stem(const char *name) {
    size_t n = strlen(name);
    for (bool cut = true; cut;) {
        cut = false;
        if (n > 5 && (strncmp(name + n - 5, "_ptsz", 5) == 0 || strncmp(name + n - 5, "_ptds", 5) == 0)) n -= 5, cut = true;
        else if (n > 3 && name[n - 3] == '_' && name[n - 2] == 'v' && name[n - 1] >= '0' && name[n - 1] <= '9') n -= 3, cut = true;
    }
    return n;
}

static bool could_allocate(const char *name) {
    size_t n = stem(name);
    if (config_driver_keeps()) return false; /* it counts its own newer functions */
    for (int i = 0; i < HOOKS; i++)
        if (hooks[i].group == MEMORY && stem(hooks[i].name) == n && strncmp(hooks[i].name, name, n) == 0) return true;
    return false;
}

static CUresult swap(const char *name, void **found) {
    for (int i = 0; i < HOOKS; i++) {
        if (real_functions[hooks[i].entry] != *found || hooks[i].group == NVML || !wanted(&hooks[i])) continue;
        *found = hooks[i].ours;
        return CUDA_SUCCESS;
    }
    if (!could_allocate(name)) return CUDA_SUCCESS;
    static int said;
    say_once(&said, "this driver's %s is unknown; update aliquot", name);
    ledger_outdated(name);
    *found = NULL;
    return CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuGetProcAddress(const char *name, void **found, int version, uint64_t flags) {
    PASS_THROUGH(cuGetProcAddress, name, found, version, flags);
    CUresult result = CALL(cuGetProcAddress, name, found, version, flags);
    return result || !name || !found || !*found ? result : swap(name, found);
}

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status) {
    PASS_THROUGH(cuGetProcAddress_v2, name, found, version, flags, status);
    CUresult result = CALL(cuGetProcAddress_v2, name, found, version, flags, status);
    if (result || !name || !found || !*found) return result;
    result = swap(name, found);
    if (result && status) *status = 1; /* CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND */
    return result;
}

/* --- life ------------------------------------------------------------------------------------------------------------ */

/* A child has no context and no slot of its own; its first driver call takes one. */
static void forked(void) {
    inside = 0;
    ledger_forked();
    account_forked();
    memory_forked();
    pools_forked();
    vmm_forked();
    context_forked();
    graph_forked();
    gate_forked();
}

__attribute__((constructor)) static void loaded(void) {
    real_prepare();
    config_load();
    for (int i = 0; i < HOOKS; i++) untouched[hooks[i].entry] = !wanted(&hooks[i]);
    pthread_atfork(NULL, NULL, forked);
}

EXPORT int gpushare_loaded(void);
EXPORT int gpushare_loaded(void) { return 1; } /* the contract of README.md */
