/* Physical memory and mappings (cuMemCreate, cuMemMap). A block lives while a handle or a mapping refers to it.
 * Releasing the handle of a mapped block frees nothing; PyTorch's expandable segments do this all the time. The driver
 * may reuse a handle number while the old block lives on through its mappings, so blocks are tracked by their own
 * identity. */
#define _GNU_SOURCE
#include "vmm.h"

#include <pthread.h>
#include <stdlib.h>

#include "account.h"
#include "table.h"

struct block { uint64_t bytes; int device; unsigned handles, maps; };

static struct table handles, maps; /* owner: the block */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void drop_if_unused(struct block *b) {
    if (b->handles || b->maps) return;
    if (b->device >= 0) refund(b->device, b->bytes, false);
    free(b);
}

static void add_handle(CUhandle handle, struct block *b) {
    pthread_mutex_lock(&lock);
    if (table_put(&handles, (struct record){.key = handle, .owner = b})) b->handles++;
    pthread_mutex_unlock(&lock);
}

EXPORT CUresult cuMemCreate(CUhandle *handle, size_t bytes, const CUmemProp *prop, uint64_t flags) {
    PASS_THROUGH(cuMemCreate, handle, bytes, prop, flags);
    if (!handle || !prop || prop->location.type != CU_LOCATION_DEVICE) return CALL(cuMemCreate, handle, bytes, prop, flags);
    int index = device_index(prop->location.id); /* the device of the memory, not the current device */
    struct block *b = calloc(1, sizeof *b);
    change_begins();
    if (!b || !charge(index, bytes, false)) return change_ends(), free(b), CUDA_ERROR_OUT_OF_MEMORY;
    *b = (struct block){.bytes = bytes, .device = index};
    CUresult result = CALL(cuMemCreate, handle, bytes, prop, flags);
    if (result) refund(index, bytes, false), free(b);
    else add_handle(*handle, b);
    change_ends();
    return result;
}

EXPORT CUresult cuMemRelease(CUhandle handle) {
    PASS_THROUGH(cuMemRelease, handle);
    change_begins();
    pthread_mutex_lock(&lock);
    CUresult result = CALL(cuMemRelease, handle);
    struct record *found = result ? NULL : table_find(&handles, handle), gone;
    struct block *b = found ? found->owner : NULL;
    if (b && --b->handles == 0) { /* the last reference: no handle of the block is valid now */
        table_take(&handles, handle, &gone);
        drop_if_unused(b);
    }
    pthread_mutex_unlock(&lock);
    change_ends();
    return result;
}

EXPORT CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUhandle handle, uint64_t flags) {
    PASS_THROUGH(cuMemMap, pointer, bytes, offset, handle, flags);
    pthread_mutex_lock(&lock);
    CUresult result = CALL(cuMemMap, pointer, bytes, offset, handle, flags);
    struct record *found = result ? NULL : table_find(&handles, handle);
    struct block *b = found ? found->owner : NULL;
    if (b && table_put(&maps, (struct record){.key = pointer, .bytes = bytes, .owner = b})) b->maps++;
    pthread_mutex_unlock(&lock);
    return result;
}

static void unmapped(struct record r) {
    struct block *b = r.owner;
    b->maps--;
    drop_if_unused(b);
}

EXPORT CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes) {
    PASS_THROUGH(cuMemUnmap, pointer, bytes);
    change_begins();
    pthread_mutex_lock(&lock);
    CUresult result = CALL(cuMemUnmap, pointer, bytes);
    uint64_t left = result ? 0 : bytes;
    struct record r;
    while (left && table_take(&maps, pointer + (bytes - left), &r)) { /* the usual case: adjacent mappings */
        unmapped(r);
        left -= r.bytes < left ? r.bytes : left;
    }
    for (size_t i = 0; left && i < maps.room; i++) /* mappings with gaps between them */
        if (maps.cells[i].key >= pointer && maps.cells[i].key - pointer < bytes) table_take(&maps, maps.cells[i].key, &r), unmapped(r), i = (size_t)-1;
    pthread_mutex_unlock(&lock);
    change_ends();
    return result;
}

static struct block *block_at(uint64_t address) {
    struct record *found = table_find(&maps, address);
    for (size_t i = 0; !found && i < maps.room; i++)
        if (maps.cells[i].key && address - maps.cells[i].key < maps.cells[i].bytes) found = &maps.cells[i];
    return found ? found->owner : NULL;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUhandle *handle, void *address) {
    PASS_THROUGH(cuMemRetainAllocationHandle, handle, address);
    CUresult result = CALL(cuMemRetainAllocationHandle, handle, address);
    if (result) return result;
    pthread_mutex_lock(&lock);
    struct block *b = block_at((uint64_t)(uintptr_t)address);
    if (b && table_put(&handles, (struct record){.key = *handle, .owner = b})) b->handles++;
    pthread_mutex_unlock(&lock);
    return result;
}

/* The exporting process is charged. The block is recorded here, uncharged, so that its mappings are known. */
EXPORT CUresult cuMemImportFromShareableHandle(CUhandle *handle, void *shared, int type) {
    PASS_THROUGH(cuMemImportFromShareableHandle, handle, shared, type);
    CUresult result = CALL(cuMemImportFromShareableHandle, handle, shared, type);
    if (result) return result;
    pthread_mutex_lock(&lock);
    struct record *found = table_find(&handles, *handle);
    struct block *b = found ? found->owner : calloc(1, sizeof *b);
    if (b && !found) b->device = -1;
    if (b && table_put(&handles, (struct record){.key = *handle, .owner = b})) b->handles++;
    pthread_mutex_unlock(&lock);
    return result;
}

void vmm_forked(void) {
    pthread_mutex_init(&lock, NULL);
    table_clear(&handles);
    table_clear(&maps); /* leaks the blocks: a few bytes in a child that rarely lives long */
}
