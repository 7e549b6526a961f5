/* The layout of the ledger file. README.md documents it; programs in other languages read it. */
#ifndef GPUSHARE_LAYOUT_H
#define GPUSHARE_LAYOUT_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "config.h"
#include "ledger.h"

enum { LEDGER_MAGIC = 0x47505348, LEDGER_VERSION = 1, LOCK_BYTES = 1 << 20 };

struct holding { uint64_t charged, overhead, soft; };
struct slot {
    uint32_t state;
    int32_t pid;
    uint64_t pid_ns, start_time, unused[5];
    struct holding device[MAX_DEVICES];
};
struct ledger {
    uint32_t magic, version, size, ready;
    uint8_t boot[16];
    char tenant[64];
    uint64_t reaped, owner_died, refused, reconciled;
    union { pthread_mutex_t mutex; char space[64]; };
    struct { uint8_t uuid[16]; uint64_t limit, total; } device[MAX_DEVICES];
    struct { uint64_t bytes; uint32_t device, zero; uint64_t time; } refusal;
    struct { uint32_t set, zero; char name[64]; } outdated;
    char unused[4096 - 800];
    struct slot slot[LEDGER_SLOTS];
};
_Static_assert(offsetof(struct ledger, mutex) == 128 && offsetof(struct ledger, device) == 192, "ledger header");
_Static_assert(offsetof(struct ledger, refusal) == 704 && offsetof(struct ledger, outdated) == 728, "ledger events");
_Static_assert(offsetof(struct ledger, slot) == 4096 && sizeof(struct slot) == 448, "ledger slots");
_Static_assert(sizeof(struct ledger) <= LEDGER_BYTES, "ledger size");

#endif
