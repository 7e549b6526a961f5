/* Arrays and mipmaps. The driver stores them in tiles: it pads a row to 512 bytes and the number of rows to a multiple
 * of 8. */
#include "account.h"
#include "memory.h"

static uint64_t element_bytes(int format, unsigned channels) {
    switch (format) {
    case 0x01: case 0x08: return channels;                                     /* 8 bits */
    case 0x02: case 0x09: case 0x10: return 2 * (uint64_t)channels;            /* 16 bits, half */
    case 0x03: case 0x0a: case 0x20: return 4 * (uint64_t)channels;            /* 32 bits, float */
    default: return 4 * (uint64_t)(channels ? channels : 1);                   /* packed formats: an upper bound */
    }
}

static uint64_t product(uint64_t a, uint64_t b) { return b && a > UINT64_MAX / 4 / b ? UINT64_MAX / 4 : a * b; }

static uint64_t array_bytes(const CUarray3dDesc *d) {
    if (d->flags & (CU_ARRAY_SPARSE | CU_ARRAY_DEFERRED)) return 0; /* memory is mapped later, by cuMemMapArrayAsync */
    uint64_t row = round_up(product(d->width, element_bytes(d->format, d->channels)), 512);
    uint64_t rows = d->height ? d->height : 1, layers = d->depth ? d->depth : 1;
    if (rows > 1) rows = round_up(rows, 8);
    return round_up(product(product(row, rows), layers), BLOCK);
}

/* Every create function: charge, call the driver, then record the allocation or refund it. */
#define CREATE(name, key, bytes, ...)                                                   \
    do {                                                                                \
        int index = current_device();                                                   \
        uint64_t granted;                                                               \
        if (!current_context()) return CALL(name, __VA_ARGS__);                         \
        change_begins();                                                                \
        if (memory_charged(index, bytes, &granted)) return change_ends(), CUDA_ERROR_OUT_OF_MEMORY; \
        CUresult result = CALL(name, __VA_ARGS__);                                      \
        if (result) refund(index, granted, false);                                      \
        else memory_created((uint64_t)(uintptr_t)*(key), index, granted);               \
        change_ends();                                                                  \
        return result;                                                                  \
    } while (0)

EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUarrayDesc *d) {
    PASS_THROUGH(cuArrayCreate_v2, array, d);
    if (!array || !d) return CALL(cuArrayCreate_v2, array, d);
    CUarray3dDesc whole = {.width = d->width, .height = d->height, .format = d->format, .channels = d->channels};
    CREATE(cuArrayCreate_v2, array, array_bytes(&whole), array, d);
}

EXPORT CUresult cuArrayCreate(CUarray *array, const CUarrayDescV1 *d) {
    PASS_THROUGH(cuArrayCreate, array, d);
    if (!array || !d) return CALL(cuArrayCreate, array, d);
    CUarray3dDesc whole = {.width = d->width, .height = d->height, .format = d->format, .channels = d->channels};
    CREATE(cuArrayCreate, array, array_bytes(&whole), array, d);
}

EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUarray3dDesc *d) {
    PASS_THROUGH(cuArray3DCreate_v2, array, d);
    if (!array || !d) return CALL(cuArray3DCreate_v2, array, d);
    CREATE(cuArray3DCreate_v2, array, array_bytes(d), array, d);
}

EXPORT CUresult cuArray3DCreate(CUarray *array, const CUarray3dDescV1 *d) {
    PASS_THROUGH(cuArray3DCreate, array, d);
    if (!array || !d) return CALL(cuArray3DCreate, array, d);
    CUarray3dDesc whole = {.width = d->width, .height = d->height, .depth = d->depth, .format = d->format, .channels = d->channels, .flags = d->flags};
    CREATE(cuArray3DCreate, array, array_bytes(&whole), array, d);
}

EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUarray3dDesc *d, unsigned levels) {
    PASS_THROUGH(cuMipmappedArrayCreate, array, d, levels);
    if (!array || !d) return CALL(cuMipmappedArrayCreate, array, d, levels);
    uint64_t bytes = array_bytes(d);
    if (levels > 1) bytes += bytes / 3; /* 1 + 1/4 + 1/16 + … */
    CREATE(cuMipmappedArrayCreate, array, bytes, array, d, levels);
}

EXPORT CUresult cuArrayDestroy(CUarray array) {
    PASS_THROUGH(cuArrayDestroy, array);
    change_begins();
    CUresult result = CALL(cuArrayDestroy, array);
    if (!result) memory_freed((uint64_t)(uintptr_t)array);
    change_ends();
    return result;
}

EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
    PASS_THROUGH(cuMipmappedArrayDestroy, array);
    change_begins();
    CUresult result = CALL(cuMipmappedArrayDestroy, array);
    if (!result) memory_freed((uint64_t)(uintptr_t)array);
    change_ends();
    return result;
}
