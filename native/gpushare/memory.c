/* cuMemAlloc and its variants. The driver rounds sizes. Allocations below 2 MiB are rounded to 512 bytes and packed into
 * 2 MiB blocks (an allocation of 1.2 MiB shares its block with smaller ones). Larger ones take whole blocks that are not
 * shared. Measured on an H200: the driver holds exactly the blocks in use. So blocks are charged, not the bytes that
 * the program requested. */
#define _GNU_SOURCE
#include "memory.h"

#include <pthread.h>

#include "account.h"
#include "log.h"
#include "table.h"

enum kind { WHOLE, SMALL, SOFT };
static struct table records;
static struct table blocks; /* 2 MiB block number -> bytes of small allocations in it */
static uint64_t spare[MAX_DEVICES]; /* unused bytes of those blocks */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, small_lock = PTHREAD_MUTEX_INITIALIZER;

/* Small allocations share blocks, and the driver chooses the block. The sum of their sizes is too low when they pack
 * badly. The address shows the block, but only after the call. So one block is charged in advance and refunded when the
 * driver did not open a new one. When another block would exceed the limit but the open blocks have enough space, the
 * call is made without a charge and undone if it opened a block. */
static bool charge_small(int index, uint64_t bytes, bool *ahead) {
    struct allowance allowed;
    pthread_mutex_lock(&small_lock);
    bool may_fit = spare[index] >= bytes;
    pthread_mutex_unlock(&small_lock);
    if (!may_fit) return *ahead = charge(index, BLOCK, false);
    if (!device_allowance(index, &allowed)) return false;
    *ahead = ledger_charge(index, BLOCK, false, allowed.limit);
    return true;
}

/* Records a small allocation. False: the driver opened a new block that was not charged. */
static bool place_small(int index, uint64_t pointer, uint64_t bytes, bool ahead) {
    pthread_mutex_lock(&small_lock);
    struct record *block = table_find(&blocks, pointer / BLOCK);
    bool opened = !block, good = block || (ahead && table_put(&blocks, (struct record){.key = pointer / BLOCK, .bytes = bytes}));
    if (block) block->bytes += bytes, spare[index] -= bytes < spare[index] ? bytes : spare[index];
    else if (good) spare[index] += BLOCK - bytes;
    pthread_mutex_unlock(&small_lock);
    if (ahead && !opened) refund(index, BLOCK, false);
    return good;
}

static void refund_small(int index, uint64_t pointer, uint64_t bytes) {
    struct record gone;
    bool empty = false;
    pthread_mutex_lock(&small_lock);
    struct record *block = table_find(&blocks, pointer / BLOCK);
    if (block) {
        block->bytes -= bytes < block->bytes ? bytes : block->bytes;
        spare[index] += bytes;
        empty = !block->bytes;
        if (empty) table_take(&blocks, pointer / BLOCK, &gone), spare[index] -= BLOCK < spare[index] ? BLOCK : spare[index];
    }
    pthread_mutex_unlock(&small_lock);
    if (empty) refund(index, BLOCK, false);
}

static struct record plan(int index, uint64_t bytes, bool soft) {
    struct record r = {.device = index, .kind = soft ? SOFT : bytes < BLOCK ? SMALL : WHOLE};
    r.bytes = r.kind == SMALL ? round_up(bytes, 512) : round_up(bytes, BLOCK);
    return r;
}

static bool charge_record(struct record r, bool *ahead) {
    if (r.device < 0) return false;
    return r.kind == SMALL ? charge_small(r.device, r.bytes, ahead) : charge(r.device, r.bytes, r.kind == SOFT);
}

static void refund_record(struct record r) {
    if (r.kind == SMALL) refund_small(r.device, r.key, r.bytes);
    else refund(r.device, r.bytes, r.kind == SOFT);
}

static void remember(struct record r, uint64_t key) {
    r.key = key, r.owner = current_context();
    pthread_mutex_lock(&lock);
    bool kept = table_put(&records, r);
    pthread_mutex_unlock(&lock);
    if (!kept) log_line("no memory to remember an allocation: it stays charged until the process ends");
}

/* Without a current context the call goes to the driver, which returns the right error. */
static bool contextless(void) { return !current_context(); }

void memory_freed(CUdeviceptr pointer) {
    struct record r;
    pthread_mutex_lock(&lock);
    bool found = table_take(&records, pointer, &r);
    pthread_mutex_unlock(&lock);
    if (found) refund_record(r);
}

static void call_failed(struct record r, bool ahead) {
    if (r.kind != SMALL) refund_record(r);
    else if (ahead) refund(r.device, BLOCK, false);
}

/* Charges, calls the driver, and records or refunds the allocation. The pointer is read only after a success. */
#define TAKE(planned, name, ...)                                                                 \
    do {                                                                                         \
        struct record r = planned;                                                               \
        bool ahead = false;                                                                      \
        change_begins();                                                                         \
        if (!charge_record(r, &ahead)) return change_ends(), CUDA_ERROR_OUT_OF_MEMORY;           \
        CUresult result = CALL(name, __VA_ARGS__);                                               \
        if (result) call_failed(r, ahead);                                                       \
        else if (r.kind != SMALL || place_small(r.device, *pointer, r.bytes, ahead)) remember(r, *pointer); \
        else CALL(cuMemFree_v2, *pointer), *pointer = 0, result = CUDA_ERROR_OUT_OF_MEMORY;      \
        change_ends();                                                                           \
        return result;                                                                           \
    } while (0)

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    PASS_THROUGH(cuMemAlloc_v2, pointer, bytes);
    if (contextless() || !pointer || !bytes) return CALL(cuMemAlloc_v2, pointer, bytes);
    TAKE(plan(current_device(), bytes, false), cuMemAlloc_v2, pointer, bytes);
}

EXPORT CUresult cuMemAlloc(unsigned *pointer, unsigned bytes) {
    PASS_THROUGH(cuMemAlloc, pointer, bytes);
    if (contextless() || !pointer || !bytes) return CALL(cuMemAlloc, pointer, bytes);
    TAKE(plan(current_device(), bytes, false), cuMemAlloc, pointer, bytes);
}

/* The driver pads each row, to a multiple of 512 bytes at most on all known devices. */
static struct record plan_rows(size_t width, size_t height) {
    uint64_t row = round_up(width, 512);
    uint64_t bytes = height && row > UINT64_MAX / 2 / height ? UINT64_MAX / 2 : row * height;
    return plan(current_device(), bytes, false);
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element) {
    PASS_THROUGH(cuMemAllocPitch_v2, pointer, pitch, width, height, element);
    if (contextless() || !pointer || !pitch) return CALL(cuMemAllocPitch_v2, pointer, pitch, width, height, element);
    TAKE(plan_rows(width, height), cuMemAllocPitch_v2, pointer, pitch, width, height, element);
}

EXPORT CUresult cuMemAllocPitch(unsigned *pointer, unsigned *pitch, unsigned width, unsigned height, unsigned element) {
    PASS_THROUGH(cuMemAllocPitch, pointer, pitch, width, height, element);
    if (contextless() || !pointer || !pitch) return CALL(cuMemAllocPitch, pointer, pitch, width, height, element);
    TAKE(plan_rows(width, height), cuMemAllocPitch, pointer, pitch, width, height, element);
}

/* Charged in full: pages that migrate to the GPU later would evict the memory of other tenants. */
EXPORT CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags) {
    PASS_THROUGH(cuMemAllocManaged, pointer, bytes, flags);
    if (contextless() || !pointer || !bytes) return CALL(cuMemAllocManaged, pointer, bytes, flags);
    TAKE(plan(current_device(), bytes, true), cuMemAllocManaged, pointer, bytes, flags);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer) {
    PASS_THROUGH(cuMemFree_v2, pointer);
    change_begins();
    CUresult result = CALL(cuMemFree_v2, pointer);
    if (!result) memory_freed(pointer);
    change_ends();
    return result;
}

EXPORT CUresult cuMemFree(unsigned pointer) {
    PASS_THROUGH(cuMemFree, pointer);
    change_begins();
    CUresult result = CALL(cuMemFree, pointer);
    if (!result) memory_freed(pointer);
    change_ends();
    return result;
}

CUresult memory_charged(int index, uint64_t bytes, uint64_t *granted) {
    *granted = round_up(bytes, BLOCK);
    if (*granted && !charge(index, *granted, false)) return CUDA_ERROR_OUT_OF_MEMORY;
    return CUDA_SUCCESS;
}

void memory_created(uint64_t key, int index, uint64_t bytes) {
    if (bytes) remember((struct record){.device = index, .kind = WHOLE, .bytes = bytes}, key);
}

void memory_context_gone(CUcontext context, int last) {
    pthread_mutex_lock(&lock);
    struct table kept = {0}, gone = records;
    records = (struct table){0};
    for (size_t i = 0; i < gone.room; i++) {
        struct record *r = &gone.cells[i];
        if (!r->key) continue;
        if (r->owner == context || r->device == last) refund_record(*r);
        else table_put(&kept, *r);
    }
    table_clear(&gone);
    records = kept;
    pthread_mutex_unlock(&lock);
}

void memory_forked(void) {
    pthread_mutex_init(&lock, NULL);
    pthread_mutex_init(&small_lock, NULL);
    table_clear(&records);
    table_clear(&blocks);
    for (int i = 0; i < MAX_DEVICES; i++) spare[i] = 0;
}
