/* A stand-in for libcuda.so.1: the entry points the library and its tests touch, counting as the driver does.
 *
 * FAKE_NEW_ABI=name   cuGetProcAddress answers that name with a function that is exported nowhere, as a newer driver may
 * FAKE_FAIL=name:n    the n-th call of it fails with error 999
 * FAKE_DIE=name:n     the process is killed in the n-th call of it
 * The simulated image "bytes N" takes N bytes when loaded as a module. A function handle is its run time in microseconds. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "card.h"
#include "driver.h"

#define BLOCK (2 * MIB)
#define CHUNK (32 * MIB)
static uint64_t up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

enum { MOST = 200000 };
struct piece { uint64_t key, bytes; int card, kind; CUcontext context; uint64_t owner; };
enum kind { PLAIN, PACKED, MANAGED, ARRAY, POOLED, BLOCK_OF_VMM, MAPPED, GRAPHED };
static struct piece pieces[MOST];
static int piece_count;
struct CUpool_st { int card; uint64_t reserved, used, threshold, releasing; };
struct small { uint64_t key, free; int live, card; CUcontext context; };
static struct small smalls[4096];
static int small_count;
struct CUctx_st { int card, primary, references, alive; size_t heap, stack; };
static struct CUctx_st contexts[64];
static int context_count, on_card[CARDS];
static struct CUpool_st default_pool[CARDS] = {{0, 0, 0, 0, 0}, {1, 0, 0, 0, 0}}, *current_pool[CARDS];
struct CUgraph_st { int nodes; uint64_t bytes[16]; CUdeviceptr pointer[16]; int card; };
static uint64_t graph_reserved[CARDS], graph_used[CARDS], next_key = 0x700000000000;
static __thread CUcontext current;
static __thread int capture;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t process;

static bool matches(const char *variable, const char *name, int *passed) {
    const char *wanted = getenv(variable);
    size_t n = strlen(name);
    return wanted && strncmp(wanted, name, n) == 0 && wanted[n] == ':' && ++*passed == atoi(wanted + n + 1);
}

static CUresult enter(const char *name) {
    static int failed, died;
    pthread_mutex_lock(&lock);
    if (process != getpid()) process = getpid();
    if (matches("FAKE_DIE", name, &died)) kill(getpid(), SIGKILL);
    if (!matches("FAKE_FAIL", name, &failed)) return 0;
    pthread_mutex_unlock(&lock);
    return 999;
}
#define ENTER() do { CUresult e_ = enter(__func__); if (e_) return e_; } while (0)
#define LEAVE(value) do { CUresult v_ = (value); pthread_mutex_unlock(&lock); return v_; } while (0)
#define NEED(condition, code) do { if (!(condition)) LEAVE(code); } while (0)

static uint64_t fresh(uint64_t bytes) {
    uint64_t key = next_key;
    next_key += up(bytes ? bytes : 1, BLOCK) + BLOCK;
    return key;
}

static struct piece *find(uint64_t key, int kind) {
    for (int i = piece_count - 1; i >= 0; i--)
        if (pieces[i].key == key && (kind < 0 || pieces[i].kind == kind)) return &pieces[i];
    return NULL;
}

static struct piece *keep(uint64_t key, uint64_t bytes, int card, int kind) {
    if (piece_count == MOST) abort();
    pieces[piece_count] = (struct piece){key, bytes, card, kind, current, 0};
    return &pieces[piece_count++];
}

static void drop(struct piece *p) { *p = pieces[--piece_count]; }

/* --- start, devices, contexts --------------------------------------------------------------------------------------- */

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
    *free = CARD_TOTAL - used, *total = CARD_TOTAL; /* like the real one, does not forgive NULL */
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

static void unpack(struct piece *p);

static void end(CUcontext c) {
    for (int i = piece_count - 1; i >= 0; i--) {
        struct piece *p = &pieces[i];
        if (p->context != c || p->kind == BLOCK_OF_VMM || p->kind == MAPPED || p->kind == POOLED || p->kind == GRAPHED) continue;
        if (p->kind == PACKED) unpack(p);
        else if (p->kind != MANAGED) card_give(p->card, p->bytes);
        drop(p);
    }
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
    } else if (l == CU_LIMIT_MALLOC_HEAP_SIZE) current->heap = v; /* taken by the first kernel that uses it */
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

/* --- plain memory ---------------------------------------------------------------------------------------------------- */

static bool pack(uint64_t bytes, uint64_t *key) {
    int i = 0;
    while (i < small_count && !(smalls[i].live && smalls[i].context == current && smalls[i].free >= bytes)) i++;
    if (i == small_count) {
        for (i = 0; i < small_count && smalls[i].live; i++) {}
        if (i == 4096 || !card_take(current->card, BLOCK)) return false;
        if (i == small_count) small_count++;
        smalls[i] = (struct small){fresh(BLOCK), BLOCK, 0, current->card, current};
    }
    *key = smalls[i].key + BLOCK - smalls[i].free;
    smalls[i].free -= bytes, smalls[i].live++;
    return true;
}

static void unpack(struct piece *p) {
    for (int i = 0; i < small_count; i++)
        if (smalls[i].live && p->key >= smalls[i].key && p->key < smalls[i].key + BLOCK && --smalls[i].live == 0) card_give(p->card, BLOCK);
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t n) {
    ENTER();
    NEED(current, 201);
    NEED(p && n, CUDA_ERROR_INVALID_VALUE);
    uint64_t key;
    if (n < BLOCK) {
        NEED(pack(up(n, 512), &key), 2);
        keep(key, up(n, 512), current->card, PACKED);
    } else {
        NEED(n <= CARD_TOTAL && card_take(current->card, up(n, BLOCK)), 2);
        key = fresh(n);
        keep(key, up(n, BLOCK), current->card, PLAIN);
    }
    *p = key;
    LEAVE(0);
}
EXPORT CUresult cuMemAlloc(unsigned *p, unsigned n) { (void)p, (void)n; return CUDA_ERROR_INVALID_VALUE; }
EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *p, size_t *pitch, size_t w, size_t h, unsigned e) {
    (void)e;
    *pitch = up(w, 512);
    return cuMemAlloc_v2(p, *pitch * h);
}
EXPORT CUresult cuMemAllocManaged(CUdeviceptr *p, size_t n, unsigned flags) {
    (void)flags;
    ENTER();
    NEED(current, 201);
    *p = fresh(n);
    keep(*p, up(n, BLOCK), current->card, MANAGED);
    LEAVE(0);
}

static void pool_freed(struct piece *p) {
    CUmemoryPool pool = (CUmemoryPool)(uintptr_t)p->owner;
    pool->used -= p->bytes;
    drop(p);
}

static CUresult release(CUdeviceptr key) {
    struct piece *p = find(key, -1);
    if (!p || p->kind == BLOCK_OF_VMM || p->kind == MAPPED || p->kind == ARRAY) return CUDA_ERROR_INVALID_VALUE;
    if (p->kind == POOLED) return pool_freed(p), 0;
    if (p->kind == GRAPHED) return graph_used[p->card] -= p->bytes, drop(p), 0;
    if (p->kind == PACKED) unpack(p);
    if (p->kind == PLAIN) card_give(p->card, p->bytes);
    drop(p);
    return 0;
}
EXPORT CUresult cuMemFree_v2(CUdeviceptr p) { ENTER(); NEED(current, 201); LEAVE(p ? release(p) : 0); }
EXPORT CUresult cuMemFree(unsigned p) { return cuMemFree_v2(p); }

/* --- pools -------------------------------------------------------------------------------------------------------------- */

static void shrink(CUmemoryPool pool, uint64_t keep_bytes) {
    uint64_t want = up(pool->used, CHUNK);
    if (want < up(keep_bytes, CHUNK)) want = up(keep_bytes, CHUNK);
    if (want >= pool->reserved) return;
    card_give(pool->card, pool->reserved - want);
    pool->reserved = want;
}

static CUmemoryPool pools[512];
static void settle(int card) {
    shrink(&default_pool[card], default_pool[card].threshold);
    for (int i = 0; i < 512; i++)
        if (pools[i] && pools[i]->card == card) shrink(pools[i], pools[i]->threshold);
}

static CUresult from_pool(CUdeviceptr *p, size_t n, CUmemoryPool pool) {
    uint64_t bytes = up(n, 512);
    if (capture) return *p = fresh(n), 0;
    if (pool->used + bytes > pool->reserved) {
        uint64_t more = up(pool->used + bytes - pool->reserved, CHUNK);
        if (!card_take(pool->card, more)) return 2;
        pool->reserved += more;
    }
    pool->used += bytes;
    *p = fresh(n);
    keep(*p, bytes, pool->card, POOLED)->owner = (uint64_t)(uintptr_t)pool;
    return 0;
}
static CUmemoryPool pool_of(int card) { return current_pool[card] ? current_pool[card] : &default_pool[card]; }
EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *p, CUdevice d) { *p = &default_pool[d]; return 0; }
EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *p, CUdevice d) { *p = pool_of(d); return 0; }
EXPORT CUresult cuDeviceSetMemPool(CUdevice d, CUmemoryPool p) { current_pool[d] = p; return 0; }
EXPORT CUresult cuMemAllocAsync(CUdeviceptr *p, size_t n, CUstream s) { (void)s; ENTER(); NEED(current, 201); NEED(n <= CARD_TOTAL, 2); LEAVE(from_pool(p, n, pool_of(current->card))); }
EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *p, size_t n, CUstream s) { return cuMemAllocAsync(p, n, s); }
EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *p, size_t n, CUmemoryPool pool, CUstream s) { (void)s; ENTER(); NEED(n <= CARD_TOTAL, 2); LEAVE(from_pool(p, n, pool)); }
EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *p, size_t n, CUmemoryPool pool, CUstream s) { return cuMemAllocFromPoolAsync(p, n, pool, s); }
EXPORT CUresult cuMemFreeAsync(CUdeviceptr p, CUstream s) { (void)s; ENTER(); LEAVE(release(p)); }
EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr p, CUstream s) { return cuMemFreeAsync(p, s); }
EXPORT CUresult cuMemPoolCreate(CUmemoryPool *p, const CUpoolProps *props) {
    ENTER();
    int i = 0;
    while (i < 512 && pools[i]) i++;
    NEED(i < 512, 1);
    *p = pools[i] = calloc(1, sizeof **p);
    (*p)->card = props->location.id;
    LEAVE(0);
}
EXPORT CUresult cuMemPoolDestroy(CUmemoryPool p) {
    ENTER();
    for (int i = 0; i < 512; i++)
        if (pools[i] == p) pools[i] = NULL;
    for (int i = piece_count - 1; i >= 0; i--)
        if (pieces[i].kind == POOLED && pieces[i].owner == (uint64_t)(uintptr_t)p) pool_freed(&pieces[i]);
    shrink(p, 0);
    free(p);
    LEAVE(0);
}
EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool p, size_t n) { ENTER(); shrink(p, n); LEAVE(0); }
EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool p, int a, void *v) {
    uint64_t value = a == CU_POOL_RESERVED ? p->reserved : a == CU_POOL_USED ? p->used : p->threshold;
    memcpy(v, &value, 8);
    return 0;
}
EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool p, int a, void *v) { if (a == CU_POOL_RELEASE_THRESHOLD) memcpy(&p->threshold, v, 8); return 0; }

/* --- physical memory and maps --------------------------------------------------------------------------------------------- */

static void unused(struct piece *p) { /* owner: handles << 32 | maps */
    if (p->owner) return;
    if (p->card >= 0) card_give(p->card, p->bytes);
    drop(p);
}
EXPORT CUresult cuMemAddressReserve(CUdeviceptr *p, size_t n, size_t a, CUdeviceptr at, uint64_t f) { (void)a, (void)at, (void)f; ENTER(); *p = fresh(n); LEAVE(0); }
EXPORT CUresult cuMemAddressFree(CUdeviceptr p, size_t n) { (void)p, (void)n; return 0; }
EXPORT CUresult cuMemCreate(CUhandle *h, size_t n, const CUmemProp *prop, uint64_t f) {
    (void)f;
    ENTER();
    NEED(n && n % BLOCK == 0, CUDA_ERROR_INVALID_VALUE);
    int where = prop->location.type == CU_LOCATION_DEVICE ? prop->location.id : -1;
    if (where >= 0) NEED(n <= CARD_TOTAL && card_take(where, n), 2);
    *h = fresh(1);
    keep(*h, n, where, BLOCK_OF_VMM)->owner = 1ull << 32;
    LEAVE(0);
}
EXPORT CUresult cuMemRelease(CUhandle h) {
    ENTER();
    struct piece *p = find(h, BLOCK_OF_VMM);
    NEED(p && p->owner >> 32, CUDA_ERROR_INVALID_VALUE);
    p->owner -= 1ull << 32;
    unused(p);
    LEAVE(0);
}
EXPORT CUresult cuMemMap(CUdeviceptr at, size_t n, size_t offset, CUhandle h, uint64_t f) {
    (void)offset, (void)f;
    ENTER();
    struct piece *p = find(h, BLOCK_OF_VMM);
    NEED(p && p->owner >> 32, CUDA_ERROR_INVALID_VALUE);
    p->owner++;
    keep(at, n, -1, MAPPED)->owner = h;
    LEAVE(0);
}
EXPORT CUresult cuMemUnmap(CUdeviceptr at, size_t n) {
    ENTER();
    int found = 0;
    for (int i = piece_count - 1; i >= 0; i--) {
        if (i >= piece_count || pieces[i].kind != MAPPED || pieces[i].key < at || pieces[i].key >= at + n) continue;
        struct piece *block = find(pieces[i].owner, BLOCK_OF_VMM);
        uint64_t handle = block->key;
        drop(&pieces[i]);
        block = find(handle, BLOCK_OF_VMM);
        block->owner--;
        unused(block);
        found++, i = piece_count;
    }
    LEAVE(found ? 0 : CUDA_ERROR_INVALID_VALUE);
}
EXPORT CUresult cuMemRetainAllocationHandle(CUhandle *h, void *address) {
    ENTER();
    uint64_t a = (uint64_t)(uintptr_t)address;
    for (int i = 0; i < piece_count; i++)
        if (pieces[i].kind == MAPPED && a >= pieces[i].key && a < pieces[i].key + pieces[i].bytes) {
            *h = pieces[i].owner;
            find(*h, BLOCK_OF_VMM)->owner += 1ull << 32;
            LEAVE(0);
        }
    LEAVE(CUDA_ERROR_INVALID_VALUE);
}
EXPORT CUresult cuMemImportFromShareableHandle(CUhandle *h, void *shared, int type) {
    (void)shared, (void)type;
    ENTER();
    *h = fresh(1);
    keep(*h, BLOCK, -1, BLOCK_OF_VMM)->owner = 1ull << 32;
    LEAVE(0);
}

/* --- arrays -------------------------------------------------------------------------------------------------------------------- */

static CUresult array(CUarray *a, size_t w, size_t h, size_t d, int format, unsigned channels, int mip) {
    uint64_t element = (uint64_t)channels * (format == 0x20 || format == 3 || format == 0xa ? 4 : format == 1 || format == 8 ? 1 : 2);
    uint64_t bytes = up(up(w * element, 512) * (h > 1 ? up(h, 8) : 1) * (d ? d : 1), BLOCK);
    if (mip) bytes = up(bytes + bytes / 3, BLOCK);
    if (!current) return 201;
    if (!card_take(current->card, bytes)) return 2;
    *a = (CUarray)(uintptr_t)fresh(1);
    keep((uint64_t)(uintptr_t)*a, bytes, current->card, ARRAY);
    return 0;
}
static CUresult array_gone(void *a) {
    struct piece *p = find((uint64_t)(uintptr_t)a, ARRAY);
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    card_give(p->card, p->bytes);
    drop(p);
    return 0;
}
EXPORT CUresult cuArrayCreate_v2(CUarray *a, const CUarrayDesc *d) { ENTER(); LEAVE(array(a, d->width, d->height, 0, d->format, d->channels, 0)); }
EXPORT CUresult cuArray3DCreate_v2(CUarray *a, const CUarray3dDesc *d) { ENTER(); LEAVE(array(a, d->width, d->height, d->depth, d->format, d->channels, 0)); }
EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *a, const CUarray3dDesc *d, unsigned l) { (void)l; ENTER(); LEAVE(array((CUarray *)a, d->width, d->height, d->depth, d->format, d->channels, 1)); }
EXPORT CUresult cuArrayDestroy(CUarray a) { ENTER(); LEAVE(array_gone(a)); }
EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray a) { ENTER(); LEAVE(array_gone(a)); }

/* --- graphs, streams, work ------------------------------------------------------------------------------------------------------- */

EXPORT CUresult cuGraphCreate(CUgraph *g, unsigned f) { (void)f; *g = calloc(1, sizeof **g); return 0; }
EXPORT CUresult cuGraphDestroy(CUgraph g) { free(g); return 0; }
EXPORT CUresult cuGraphExecDestroy(CUgraphExec e) { (void)e; return 0; }
EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph g, const CUgraphNode *after, size_t n, CUallocNode *p) {
    (void)after, (void)n;
    ENTER();
    NEED(g->nodes < 16, 1);
    g->card = p->poolProps.location.id, g->bytes[g->nodes] = p->bytesize;
    p->dptr = g->pointer[g->nodes++] = fresh(p->bytesize);
    *node = (CUgraphNode)(uintptr_t)p->dptr;
    LEAVE(0);
}
EXPORT CUresult cuGraphAddNode(CUgraphNode *node, CUgraph g, const CUgraphNode *after, size_t n, CUnodeParams *p) {
    return p->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ? cuGraphAddMemAllocNode(node, g, after, n, &p->u.alloc) : 0;
}
EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *e, CUgraph g, uint64_t f) { (void)f; *e = (CUgraphExec)g; return 0; }
EXPORT CUresult cuGraphLaunch(CUgraphExec e, CUstream s) {
    (void)s;
    ENTER();
    CUgraph g = (CUgraph)e;
    uint64_t need = 0;
    for (int i = 0; i < g->nodes; i++) need += g->bytes[i];
    uint64_t want = up(graph_used[g->card] + need, CHUNK);
    if (want > graph_reserved[g->card]) {
        NEED(card_take(g->card, want - graph_reserved[g->card]), 2);
        graph_reserved[g->card] = want;
    }
    for (int i = 0; i < g->nodes; i++) keep(g->pointer[i], g->bytes[i], g->card, GRAPHED), graph_used[g->card] += g->bytes[i];
    LEAVE(0);
}
EXPORT CUresult cuDeviceGraphMemTrim(CUdevice d) {
    ENTER();
    uint64_t want = up(graph_used[d], CHUNK);
    if (want < graph_reserved[d]) card_give(d, graph_reserved[d] - want), graph_reserved[d] = want;
    LEAVE(0);
}
EXPORT CUresult cuDeviceGetGraphMemAttribute(CUdevice d, int a, void *v) { uint64_t n = a == 2 ? graph_reserved[d] : graph_used[d]; memcpy(v, &n, 8); return 0; }
static int streams_made;
EXPORT CUresult cuStreamCreate(CUstream *s, unsigned f) {
    (void)f;
    ENTER();
    NEED(current, 201);
    if (streams_made++ == 0) NEED(card_take(current->card, 34 * MIB), 2); /* what 64 of them take; never given back */
    *s = (CUstream)(uintptr_t)fresh(1);
    LEAVE(0);
}
EXPORT CUresult cuStreamDestroy_v2(CUstream s) { (void)s; return 0; }
EXPORT CUresult cuStreamIsCapturing(CUstream s, int *status) { (void)s; *status = capture; return 0; }
EXPORT CUresult cuStreamBeginCapture_v2(CUstream s, int mode) { (void)s, (void)mode; capture = 1; return 0; }
EXPORT CUresult cuStreamEndCapture(CUstream s, CUgraph *g) { (void)s; capture = 0; return cuGraphCreate(g, 0); }
EXPORT CUresult cuLaunchKernel(LAUNCH_ARGS, void **extra) {
    (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)params, (void)extra;
    if (!current) return 201;
    if (!capture) card_work(current->card, (uint64_t)(uintptr_t)f * 1000);
    return 0;
}
EXPORT CUresult cuCtxSynchronize(void) {
    if (!current) return 201;
    if (capture) return 900;
    card_wait(current->card);
    pthread_mutex_lock(&lock);
    settle(current->card);
    pthread_mutex_unlock(&lock);
    return 0;
}
EXPORT CUresult cuStreamSynchronize(CUstream s) { (void)s; return cuCtxSynchronize(); }

/* --- asking for functions ------------------------------------------------------------------------------------------------------------ */

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
