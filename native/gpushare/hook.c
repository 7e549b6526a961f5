/* Replaces the driver's functions in the three ways a program can get them:
 *
 *   dlsym             our dlsym (trampoline.c) calls gpushare_filter first
 *   cuGetProcAddress  the driver answers, and a pointer that we know is replaced by ours: no table of versions is needed
 *   direct linking    our symbols have the same names, and preloaded libraries come first in the search order
 *
 * An unknown pointer for a name that could allocate memory belongs to the ABI of a newer driver. It is refused with a
 * message instead of being returned without accounting. */
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

/* When the driver enforces the limit, only the functions whose memory it does not count are replaced. */
static bool watched(const struct hook *h) {
    static const char *const all[] = {"cuGetProcAddress", "cuMemAllocManaged", "cuMemFree"};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
        if (strncmp(h->name, all[i], strlen(all[i])) == 0) return true;
    return false;
}

/* In timesharing mode launches use the driver's own pointer, so they have no extra cost. */
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

/* Called by the trampoline with the arguments of dlsym. NULL: not replaced, the trampoline goes on to the real dlsym. */
EARLY __attribute__((visibility("hidden"), used)) void *gpushare_filter(void *handle, const char *name, void *caller) {
    real_prepare();
    if (!name || inside) return NULL;
    bool cuda = name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
    if (!cuda && !(name[0] == 'n' && name[1] == 'v' && name[2] == 'm' && name[3] == 'l')) return NULL;
    const struct hook *h = by_name(name);
    if (!h) return NULL;
    if (handle == RTLD_NEXT) return h->ours;
    void *found = gpushare_real_dlsym(handle, name);
    /* lookups by the driver itself are not replaced; libcudart has a similar name but counts as part of the program */
    if (!lies_in(found, "libcuda.so", "libnvidia-ml.so") || lies_in(caller, "libcuda.so", "libcudadebugger") || lies_in(caller, "libnvidia-", "libnvidia-"))
        return NULL;
    /* if the driver was found in another link namespace (dlmopen), load it into this one too: our function calls it here */
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
    if (config_driver_keeps()) return false; /* the driver counts its newer functions itself */
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

/* --- load and fork ---------------------------------------------------------------------------------------------------- */

/* A forked child has no context and no ledger slot; its first driver call takes a slot. */
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
EXPORT int gpushare_loaded(void) { return 1; } /* version of the contract in README.md */
