/* A fake libcuda.so.1: the entry points that the library and its tests use, with the memory accounting of the real driver.
 *
 * FAKE_NEW_ABI=name   cuGetProcAddress returns for that name a function that is not exported, as a newer driver may
 * FAKE_FAIL=name:n    the n-th call of that function fails with error 999
 * FAKE_DIE=name:n     the process is killed in the n-th call of that function
 * Loading the image "bytes N" as a module takes N bytes. The value of a function handle is the kernel's run time in
 * microseconds. */
#define _GNU_SOURCE
#include "fake.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

struct piece pieces[MOST];
int piece_count;
static struct CUctx_st contexts[64];
static int context_count, on_card[CARDS];
static uint64_t next_key = 0x700000000000;
__thread CUcontext current;
pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;

static bool matches(const char *variable, const char *name, int *passed) {
    const char *wanted = getenv(variable);
    size_t n = strlen(name);
    return wanted && strncmp(wanted, name, n) == 0 && wanted[n] == ':' && ++*passed == atoi(wanted + n + 1);
}

CUresult enter(const char *name) {
    static int failed, died;
    pthread_mutex_lock(&fake_lock);
    if (matches("FAKE_DIE", name, &died)) kill(getpid(), SIGKILL);
    if (!matches("FAKE_FAIL", name, &failed)) return 0;
    pthread_mutex_unlock(&fake_lock);
    return 999;
}

uint64_t fresh(uint64_t bytes) {
    uint64_t key = next_key;
    next_key += up(bytes ? bytes : 1, BLOCK) + BLOCK;
    return key;
}

struct piece *find(uint64_t key, int kind) {
    for (int i = piece_count - 1; i >= 0; i--)
        if (pieces[i].key == key && (kind < 0 || pieces[i].kind == kind)) return &pieces[i];
    return NULL;
}

struct piece *keep(uint64_t key, uint64_t bytes, int card, int kind) {
    if (piece_count == MOST) abort();
    pieces[piece_count] = (struct piece){key, bytes, card, kind, current, 0};
    return &pieces[piece_count++];
}

void drop(struct piece *p) { *p = pieces[--piece_count]; }

/* --- initialization, devices, contexts --------------------------------------------------------------------------------------- */

EXPORT CUresult cuInit(unsigned flags) { return flags ? CUDA_ERROR_INVALID_VALUE : 0; }
EXPORT CUresult cuDriverGetVersion(int *v) { *v = 13000; return 0; }
EXPORT CUresult cuDeviceGetCount(int *n) { *n = CARDS; return 0; }
EXPORT CUresult cuDeviceGet(CUdevice *d, int n) { *d = n; return n >= 0 && n < CARDS ? 0 : 101; }
EXPORT CUresult cuDeviceGetUuid(CUuuid *u, CUdevice d) { if (d < 0 || d >= CARDS) return 101; card_uuid(d, u->bytes); return 0; }
EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *u, CUdevice d) { return cuDeviceGetUuid(u, d); }
EXPORT CUresult cuDeviceGetAttribute(int *v, int a, CUdevice d) { (void)d; *v = a == 16 ? 132 : a == 39 ? 2048 : 0; return 0; }
EXPORT CUresult cuCtxGetDevice(CUdevice *d) { if (!current) return 201; *d = current->card; return 0; }
EXPORT CUresult cuCtxGetCurrent(CUcontext *c) { *c = current; return 0; }
EXPORT CUresult cuCtxSetCurrent(CUcontext c) { current = c; return 0; }
EXPORT CUresult cuDeviceTotalMem_v2(size_t *n, CUdevice d) { (void)d; *n = CARD_TOTAL; return 0; }
EXPORT CUresult cuDeviceTotalMem(unsigned *n, CUdevice d) { (void)d; *n = UINT32_MAX; return 0; }

EXPORT CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
    if (!current) return 201;
    uint64_t used = card_used(current->card);
    *free = CARD_TOTAL - used, *total = CARD_TOTAL; /* like the real driver, crashes on NULL */
    return 0;
}
EXPORT CUresult cuMemGetInfo(unsigned *free, unsigned *total) { if (!current) return 201; *free = *total = UINT32_MAX; return 0; }

static CUcontext make(int card, int primary) {
    if (!on_card[card] && !card_take(card, CONTEXT_BYTES)) return NULL;
    on_card[card]++;
    int i = 0;
    while (i < context_count && contexts[i].alive) i++;
    if (i == context_count) context_count++;
    contexts[i] = (struct CUctx_st){card, primary, 1, 1, 8 * MIB, 1024};
    return &contexts[i];
}

static void end(CUcontext c) {
    context_ended(c);
    c->alive = 0;
    if (--on_card[c->card] == 0) card_give(c->card, CONTEXT_BYTES);
    if (current == c) current = NULL;
}

static CUcontext primary(int card) {
    for (int i = 0; i < context_count; i++)
        if (contexts[i].alive && contexts[i].primary && contexts[i].card == card) return &contexts[i];
    return NULL;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d) {
    ENTER();
    NEED(d >= 0 && d < CARDS, 101);
    CUcontext p = primary(d);
    if (p) p->references++;
    else p = make(d, 1);
    NEED(p, 2);
    *c = p;
    LEAVE(0);
}
EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice d) {
    ENTER();
    CUcontext p = primary(d);
    NEED(p, 201);
    if (--p->references == 0) end(p);
    LEAVE(0);
}
EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice d) {
    ENTER();
    CUcontext p = primary(d);
    if (p) end(p);
    LEAVE(0);
}
EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice d, unsigned *flags, int *active) { *flags = 0, *active = primary(d) != NULL; return 0; }
EXPORT CUresult cuCtxCreate_v2(CUcontext *c, unsigned flags, CUdevice d) {
    (void)flags;
    ENTER();
    CUcontext made = make(d, 0);
    NEED(made, 2);
    *c = current = made;
    LEAVE(0);
}
EXPORT CUresult cuCtxDestroy_v2(CUcontext c) { ENTER(); NEED(c && c->alive, 201); end(c); LEAVE(0); }
EXPORT CUresult cuCtxGetLimit(size_t *v, int l) { if (!current) return 201; *v = l == 2 ? current->heap : current->stack; return 0; }
EXPORT CUresult cuCtxSetLimit(int l, size_t v) {
    ENTER();
    NEED(current, 201);
    if (l == CU_LIMIT_STACK_SIZE) {
        uint64_t was = current->stack * 2048 * 132, will = v * 2048 * 132;
        if (will > was) NEED(card_take(current->card, will - was), 2);
        else card_give(current->card, was - will);
        current->stack = v;
    } else if (l == CU_LIMIT_MALLOC_HEAP_SIZE) current->heap = v; /* allocated by the first kernel that uses it */
    LEAVE(0);
}
EXPORT CUresult cuModuleLoadData(CUmodule *m, const void *image) {
    ENTER();
    NEED(current && image, 201);
    unsigned long long bytes = 0;
    if (sscanf(image, "bytes %llu", &bytes) == 1) NEED(card_take(current->card, bytes), 2);
    *m = (CUmodule)(uintptr_t)fresh(1);
    LEAVE(0);
}

/* --- function lookup --------------------------------------------------------------------------------------------------- */

static CUresult newer_abi(void) { return 0; }

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status) {
    static const char *const newest_first[] = {"_v4", "_v3", "_v2", ""};
    const char *new_abi = getenv("FAKE_NEW_ABI");
    char full[128];
    void *handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    *found = NULL;
    if (new_abi && strcmp(new_abi, name) == 0) *found = (void *)newer_abi;
    for (int i = version < 3020 ? 3 : 0; i < 4 && !*found; i++) {
        snprintf(full, sizeof full, "%s%s_ptsz", name, newest_first[i]);
        if (flags == 2) *found = dlsym(handle, full);
        snprintf(full, sizeof full, "%s%s", name, newest_first[i]);
        if (!*found) *found = dlsym(handle, full);
    }
    if (status) *status = *found ? 0 : 1;
    return *found ? 0 : CUDA_ERROR_NOT_FOUND;
}
EXPORT CUresult cuGetProcAddress(const char *name, void **found, int version, uint64_t flags) { return cuGetProcAddress_v2(name, found, version, flags, NULL); }
