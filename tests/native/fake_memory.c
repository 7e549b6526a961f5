/* Memory of the fake driver: plain allocations, pools, physical memory with mappings, arrays. */
#include "fake.h"

struct CUpool_st { int card; uint64_t reserved, used, threshold; };
struct small { uint64_t key, free; int live, card; CUcontext context; };
static struct small smalls[4096];
static int small_count;
static struct CUpool_st default_pool[CARDS] = {{.card = 0}, {.card = 1}}, *current_pool[CARDS], *pools[512];

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

void context_ended(CUcontext c) {
    for (int i = piece_count - 1; i >= 0; i--) {
        struct piece *p = &pieces[i];
        if (p->context != c || p->kind > ARRAY) continue; /* the other kinds belong to the device */
        if (p->kind == PACKED) unpack(p);
        else if (p->kind != MANAGED) card_give(p->card, p->bytes);
        drop(p);
    }
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
    if (p->kind == GRAPHED) return graph_freed(p);
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

void pools_shrink(int card) {
    shrink(&default_pool[card], default_pool[card].threshold);
    for (int i = 0; i < 512; i++)
        if (pools[i] && pools[i]->card == card) shrink(pools[i], pools[i]->threshold);
}

static CUresult from_pool(CUdeviceptr *p, size_t n, CUmemoryPool pool) {
    uint64_t bytes = up(n, 512);
    if (captured_alloc(p, n) == 0) return 0;
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
EXPORT CUresult cuMemFreeAsync(CUdeviceptr p, CUstream s) { (void)s; ENTER(); LEAVE(captured_free(p) == 0 ? 0 : release(p)); }
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

/* --- physical memory and mappings --------------------------------------------------------------------------------------------- */

static void unused(struct piece *p) { /* owner: handles << 32 | mappings */
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
