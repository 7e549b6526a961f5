/* One file per container, mapped by all of its processes and protected by one robust mutex.
 *
 *   - Every change: lock, check the limit, write the slot, write the total, unlock.
 *   - A process killed while it holds the lock: the next process gets EOWNERDEAD and rebuilds the totals from the slots.
 *   - A process killed at any other time: each process holds a lock on its slot's byte of the file. The kernel releases
 *     it with the last copy of the descriptor. No pid is compared, so this works across PID namespaces and with reused
 *     pids. A forked child keeps the parent's descriptor, just as it keeps the parent's memory on the device alive.
 *
 * The tenant can write to the file. So each process remembers what it wrote (`mine`) and restores it when the file
 * differs: a process cannot make itself appear smaller. The agent's audit detects everything else. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "fault.h"
#include "ledger_file.h"

/* --- changes ------------------------------------------------------------------------------------------------------- */

/* Writes the slot first, then the total: after a kill between the two, the total is rebuilt from the slots. */
static void publish(int d, struct holding next) {
    struct holding *held = &ledger->slot[own].device[d];
    uint64_t before = mine[d].charged + mine[d].overhead, after = next.charged + next.overhead;
    FAULT("before-slot");
    mine[d] = next;
    *held = next;
    FAULT("between");
    uint64_t total = ledger->device[d].total;
    ledger->device[d].total = total >= before ? total - before + after : after;
    FAULT("after-total");
    if (ledger->device[d].total < after) ledger_rebuild(); /* a program tampered with the file */
}

static bool fits(int d, uint64_t bytes, uint64_t limit) {
    ledger->device[d].limit = limit;
    uint64_t total = ledger->device[d].total;
    return total <= limit && bytes <= limit - total;
}

bool ledger_charge(int d, uint64_t bytes, bool soft, uint64_t limit) {
    if (!ledger_begin(d)) return false;
    bool good = fits(d, bytes, limit);
    if (good) publish(d, (struct holding){mine[d].charged + bytes, mine[d].overhead, mine[d].soft + (soft ? bytes : 0)});
    ledger_unlock();
    return good;
}

bool ledger_room(int d, uint64_t bytes, uint64_t limit) {
    if (!ledger_begin(d)) return false;
    bool good = fits(d, bytes, limit);
    ledger_unlock();
    return good;
}

static uint64_t less(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

void ledger_refund(int d, uint64_t bytes, bool soft) {
    if (!bytes || !ledger_begin(d)) return;
    publish(d, (struct holding){less(mine[d].charged, bytes), mine[d].overhead, less(mine[d].soft, soft ? bytes : 0)});
    ledger_unlock();
}

void ledger_force(int d, uint64_t bytes) {
    if (!bytes || !ledger_begin(d)) return;
    publish(d, (struct holding){mine[d].charged + bytes, mine[d].overhead, mine[d].soft});
    ledger_unlock();
}

bool ledger_context(int d, uint64_t bytes, uint64_t limit) {
    if (!ledger_begin(d)) return false;
    bool good = bytes <= mine[d].overhead || fits(d, bytes - mine[d].overhead, limit);
    if (good) publish(d, (struct holding){mine[d].charged, bytes, mine[d].soft});
    ledger_unlock();
    return good;
}

void ledger_overhead(int d, uint64_t bytes, bool only_grow) {
    if (!ledger_begin(d)) return;
    if (!only_grow || bytes > mine[d].overhead) publish(d, (struct holding){mine[d].charged, bytes, mine[d].soft});
    ledger->reconciled++;
    ledger_unlock();
}

void ledger_refused(int d, uint64_t bytes) {
    if (d < 0 || d >= MAX_DEVICES || !ledger_lock()) return;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    ledger->refused++;
    ledger->refusal.bytes = bytes, ledger->refusal.device = (uint32_t)d;
    ledger->refusal.time = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    ledger_unlock();
}

void ledger_outdated(const char *name) {
    if (!ledger_lock()) return;
    snprintf(ledger->outdated.name, sizeof ledger->outdated.name, "%s", name);
    ledger->outdated.set = 1;
    ledger_unlock();
}

int ledger_device(const uint8_t uuid[16]) {
    static const uint8_t none[16];
    int found = -1;
    if (!ledger_lock()) return -1;
    for (int d = 0; d < MAX_DEVICES && found < 0; d++) {
        if (memcmp(ledger->device[d].uuid, none, 16) == 0) memcpy(ledger->device[d].uuid, uuid, 16), FAULT("device-entered");
        if (memcmp(ledger->device[d].uuid, uuid, 16) == 0) found = d;
    }
    ledger_unlock();
    return found;
}

/* --- reading ------------------------------------------------------------------------------------------------------- */

uint64_t ledger_total(int d) {
    if (d < 0 || d >= MAX_DEVICES || !ledger_lock()) return 0;
    uint64_t total = ledger->device[d].total;
    ledger_unlock();
    return total;
}

uint64_t ledger_own(int d, uint64_t *overhead, uint64_t *soft) {
    if (d < 0 || d >= MAX_DEVICES || !ledger_lock()) return 0;
    struct holding held = ledger_is_own() ? mine[d] : (struct holding){0};
    ledger_unlock();
    *overhead = held.overhead, *soft = held.soft;
    return held.charged;
}

int ledger_pids(int32_t *pids, int most) {
    int count = 0;
    uint64_t ns = ledger_namespace();
    if (!ledger_lock()) return 0;
    for (int s = 0; s < LEDGER_SLOTS && count < most; s++)
        if (ledger->slot[s].state && ledger->slot[s].pid_ns == ns) pids[count++] = ledger->slot[s].pid;
    ledger_unlock();
    return count;
}
