/* One file per container, mapped by all its processes, guarded by one robust mutex.
 *
 *   - every change: lock, test against the limit, write the slot, write the total, unlock;
 *   - killed inside: the next locker is told (EOWNERDEAD) and rebuilds the totals from the slots;
 *   - killed elsewhere: each process holds a lock on its slot's byte of the file, which the kernel drops with the last
 *     copy of the descriptor. No pid is asked, so it works across PID namespaces and with pids used again. A forked
 *     child keeps the parent's descriptor, as it keeps the parent's memory on the device.
 *
 * The file is writable by the tenant. So each process remembers what it wrote (`mine`) and restores it when the file
 * says otherwise: scribbling makes a process no smaller than it is, and the agent's audit sees the rest. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "fault.h"
#include "layout.h"
#include "log.h"
#include "robust.h"

#ifndef F_OFD_GETLK /* glibc 2.17 is older than the kernel's interface */
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#define F_OFD_SETLKW 38
#endif

static struct ledger *ledger;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static dev_t file_device;
static ino_t file_inode;
static int file = -1, own = -1; /* our descriptor, our slot */
static pid_t own_pid, file_pid;
static uint64_t own_start;
static struct holding mine[MAX_DEVICES];

/* --- the file ---------------------------------------------------------------------------------------------------- */

static bool read_boot(uint8_t boot[16]) {
    char text[64] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n < 36) return false;
    text[36] = 0;
    return uuid_read(text, boot);
}

/* High up, so that programs that count on low numbers, or close "their" descriptors, do not meet it. */
static int open_high(const char *path, int flags) {
    int low = open(path, flags | O_CLOEXEC, 0666);
    if (low < 0) return -1;
    int high = fcntl(low, F_DUPFD_CLOEXEC, 700);
    if (high < 0) high = fcntl(low, F_DUPFD_CLOEXEC, 200);
    if (high < 0) return low;
    close(low);
    return high;
}

static int lock_byte(int fd, int command, short type, off_t byte) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = LOCK_BYTES + byte, .l_len = 1};
    int result = fcntl(fd, command, &lock);
    return result < 0 ? -1 : command == F_OFD_GETLK ? lock.l_type != F_UNLCK : 0;
}

/* A file of zeros is a fresh one. Whoever comes first fills it in, the others wait on the byte after the slots'. */
static const char *check_header(struct ledger *l, int fd) {
    const char *why = NULL;
    uint8_t boot[16] = {0};
    read_boot(boot);
    if (lock_byte(fd, F_OFD_SETLKW, F_WRLCK, LEDGER_SLOTS)) return "cannot be locked";
    if (!l->ready && !l->magic) {
        memcpy(l->boot, boot, 16);
        memcpy(l->tenant, config_tenant(), 64);
        l->version = LEDGER_VERSION, l->size = LEDGER_BYTES;
        if (!robust_init(&l->mutex)) why = "cannot hold a lock";
        __atomic_store_n(&l->ready, 1, __ATOMIC_RELEASE);
        __atomic_store_n(&l->magic, LEDGER_MAGIC, __ATOMIC_RELEASE);
    }
    lock_byte(fd, F_OFD_SETLK, F_UNLCK, LEDGER_SLOTS);
    if (why) return why;
    if (l->magic != LEDGER_MAGIC || l->version != LEDGER_VERSION || l->size != LEDGER_BYTES || l->ready != 1) return "is damaged or of another version";
    if (memcmp(l->boot, boot, 16) != 0) return "is from before the last restart";
    if (strncmp(l->tenant, config_tenant(), 64) != 0) return "belongs to another tenant";
    return NULL;
}

static const char *open_file(void) {
    bool make = config_development();
    int fd = open_high(config_ledger(), O_RDWR | (make ? O_CREAT : 0));
    if (fd < 0) return "cannot be opened";
    struct stat status;
    const char *why = NULL;
    if (fstat(fd, &status)) why = "cannot be examined";
    else if (make && status.st_size == 0 && ftruncate(fd, LEDGER_BYTES)) why = "cannot be made";
    else if ((!make || status.st_size) && status.st_size != LEDGER_BYTES) why = "has the wrong size";
    void *map = why ? MAP_FAILED : mmap(NULL, LEDGER_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (!why && map == MAP_FAILED) why = "cannot be mapped";
    if (!why) why = check_header(map, fd);
    if (why) {
        if (map != MAP_FAILED) munmap(map, LEDGER_BYTES);
        close(fd);
        return why;
    }
    file = fd, file_pid = getpid(), file_device = status.st_dev, file_inode = status.st_ino;
    __atomic_store_n(&ledger, map, __ATOMIC_RELEASE);
    return NULL;
}

bool ledger_open(void) {
    if (refusing()) return false;
    if (__atomic_load_n(&ledger, __ATOMIC_ACQUIRE)) return true;
    pthread_mutex_lock(&opening);
    if (!ledger) {
        const char *why = open_file();
        if (why) refuse_all("the ledger %s %s", config_ledger(), why);
    }
    pthread_mutex_unlock(&opening);
    return !refusing();
}

/* --- the lock ----------------------------------------------------------------------------------------------------- */

static void rebuild(void) {
    for (int d = 0; d < MAX_DEVICES; d++) {
        uint64_t sum = 0;
        for (int s = 0; s < LEDGER_SLOTS; s++)
            if (ledger->slot[s].state) sum += ledger->slot[s].device[d].charged + ledger->slot[s].device[d].overhead;
        ledger->device[d].total = sum;
    }
}

static bool lock(void) {
    if (!ledger_open()) return false;
    enum robust result = robust_lock(&ledger->mutex);
    if (result == BROKEN) return refuse_all("the ledger's lock is broken"), false;
    if (result == RECOVERED) {
        rebuild();
        ledger->owner_died++;
    }
    return true;
}

static void unlock(void) { pthread_mutex_unlock(&ledger->mutex); }

/* --- slots -------------------------------------------------------------------------------------------------------- */

static uint64_t start_time(void) {
    char text[1024];
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    if (n <= 0) return 0;
    text[n] = 0;
    char *at = strrchr(text, ')'); /* the name may hold spaces and brackets */
    for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
    return at ? strtoull(at + 1, NULL, 10) : 0;
}

static uint64_t pid_namespace(void) {
    struct stat status;
    return stat("/proc/self/ns/pid", &status) ? 0 : (uint64_t)status.st_ino;
}

static bool file_is_ours(void) {
    struct stat status;
    return file >= 0 && file_pid == getpid() && !fstat(file, &status) && status.st_dev == file_device && status.st_ino == file_inode;
}

static void clear_slot(struct slot *s) {
    for (int d = 0; d < MAX_DEVICES; d++) s->device[d] = (struct holding){0};
    s->state = 0;
}

static void reap_locked(void) {
    bool changed = false;
    for (int s = 0; s < LEDGER_SLOTS; s++) {
        if (!ledger->slot[s].state || s == own || lock_byte(file, F_OFD_GETLK, F_WRLCK, s) != 0) continue;
        clear_slot(&ledger->slot[s]);
        ledger->reaped++;
        changed = true;
    }
    if (changed) rebuild();
}

static bool take_slot(void) {
    for (int s = 0; s < LEDGER_SLOTS; s++) {
        struct slot *slot = &ledger->slot[s];
        if (slot->state || lock_byte(file, F_OFD_SETLK, F_WRLCK, s)) continue; /* locked: a dying process's child */
        clear_slot(slot);
        slot->pid = own_pid, slot->start_time = own_start, slot->pid_ns = pid_namespace();
        memcpy(slot->device, mine, sizeof mine);
        FAULT("slot-taken");
        slot->state = 1;
        own = s;
        rebuild();
        return true;
    }
    return false;
}

static bool slot_is_ours(void) {
    const struct slot *s = &ledger->slot[own];
    return s->state == 1 && s->pid == own_pid && s->start_time == own_start;
}

/* With the lock held: a slot that is ours, whatever happened to the process since the last time (fork, closed
 * descriptors) or to the file (somebody wrote into it). */
static bool settled(void) {
    pid_t pid = getpid();
    if (own_pid != pid) { /* forked without our handler, or first time here; the inherited descriptor stays open */
        if (own_pid) memset(mine, 0, sizeof mine);
        own = -1, own_pid = pid, own_start = start_time();
    }
    if (!file_is_ours()) {
        file = open_high(config_ledger(), O_RDWR), file_pid = pid;
        if (!file_is_ours()) return refuse_all("the ledger %s was replaced", config_ledger()), false;
        if (own >= 0) lock_byte(file, F_OFD_SETLK, F_WRLCK, own); /* refused: our mapping still holds the old one */
    }
    if (own >= 0 && slot_is_ours()) {
        if (memcmp(ledger->slot[own].device, mine, sizeof mine) == 0) return true;
        memcpy(ledger->slot[own].device, mine, sizeof mine);
        rebuild();
        return true;
    }
    own = -1;
    if (take_slot()) return true;
    reap_locked();
    if (take_slot()) return true;
    static int said;
    say_once(&said, "more than %d processes share one GPU fraction", LEDGER_SLOTS);
    return false;
}

static bool begin(int device) {
    if (device < 0 || device >= MAX_DEVICES || !lock()) return false;
    if (settled()) return true;
    unlock();
    return false;
}

/* --- changes ------------------------------------------------------------------------------------------------------- */

/* Slot first, total after: a kill between the two is mended from the slots. */
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
    if (ledger->device[d].total < after) rebuild(); /* somebody wrote into the file */
}

static bool fits(int d, uint64_t bytes, uint64_t limit) {
    ledger->device[d].limit = limit;
    uint64_t total = ledger->device[d].total;
    return total <= limit && bytes <= limit - total;
}

bool ledger_charge(int d, uint64_t bytes, bool soft, uint64_t limit) {
    if (!begin(d)) return false;
    bool good = fits(d, bytes, limit);
    if (good) publish(d, (struct holding){mine[d].charged + bytes, mine[d].overhead, mine[d].soft + (soft ? bytes : 0)});
    unlock();
    return good;
}

bool ledger_room(int d, uint64_t bytes, uint64_t limit) {
    if (!begin(d)) return false;
    bool good = fits(d, bytes, limit);
    unlock();
    return good;
}

static uint64_t less(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

void ledger_refund(int d, uint64_t bytes, bool soft) {
    if (!bytes || !begin(d)) return;
    publish(d, (struct holding){less(mine[d].charged, bytes), mine[d].overhead, less(mine[d].soft, soft ? bytes : 0)});
    unlock();
}

void ledger_force(int d, uint64_t bytes) {
    if (!bytes || !begin(d)) return;
    publish(d, (struct holding){mine[d].charged + bytes, mine[d].overhead, mine[d].soft});
    unlock();
}

bool ledger_context(int d, uint64_t bytes, uint64_t limit) {
    if (!begin(d)) return false;
    bool good = bytes <= mine[d].overhead || fits(d, bytes - mine[d].overhead, limit);
    if (good) publish(d, (struct holding){mine[d].charged, bytes, mine[d].soft});
    unlock();
    return good;
}

void ledger_overhead(int d, uint64_t bytes, bool only_grow) {
    if (!begin(d)) return;
    if (!only_grow || bytes > mine[d].overhead) publish(d, (struct holding){mine[d].charged, bytes, mine[d].soft});
    ledger->reconciled++;
    unlock();
}

void ledger_refused(int d, uint64_t bytes) {
    if (d < 0 || d >= MAX_DEVICES || !lock()) return;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    ledger->refused++;
    ledger->refusal.bytes = bytes, ledger->refusal.device = (uint32_t)d;
    ledger->refusal.time = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    unlock();
}

void ledger_outdated(const char *name) {
    if (!lock()) return;
    snprintf(ledger->outdated.name, sizeof ledger->outdated.name, "%s", name);
    ledger->outdated.set = 1;
    unlock();
}

int ledger_device(const uint8_t uuid[16]) {
    static const uint8_t none[16];
    int found = -1;
    if (!lock()) return -1;
    for (int d = 0; d < MAX_DEVICES && found < 0; d++) {
        if (memcmp(ledger->device[d].uuid, none, 16) == 0) memcpy(ledger->device[d].uuid, uuid, 16);
        if (memcmp(ledger->device[d].uuid, uuid, 16) == 0) found = d;
    }
    unlock();
    return found;
}

/* --- reading ------------------------------------------------------------------------------------------------------- */

void ledger_reap(void) {
    if (!lock()) return;
    if (file_is_ours()) reap_locked();
    unlock();
}

uint64_t ledger_total(int d) {
    if (d < 0 || d >= MAX_DEVICES || !lock()) return 0;
    uint64_t total = ledger->device[d].total;
    unlock();
    return total;
}

uint64_t ledger_own(int d, uint64_t *overhead, uint64_t *soft) {
    if (d < 0 || d >= MAX_DEVICES || !lock()) return 0;
    struct holding held = own_pid == getpid() ? mine[d] : (struct holding){0};
    unlock();
    *overhead = held.overhead, *soft = held.soft;
    return held.charged;
}

int ledger_pids(int32_t *pids, int most) {
    int count = 0;
    uint64_t ns = pid_namespace();
    if (!lock()) return 0;
    for (int s = 0; s < LEDGER_SLOTS && count < most; s++)
        if (ledger->slot[s].state && ledger->slot[s].pid_ns == ns) pids[count++] = ledger->slot[s].pid;
    unlock();
    return count;
}

/* In the child: its parent's slot is not its own. The descriptor stays open on purpose (see the top). */
void ledger_forked(void) {
    file = -1, own = -1, own_pid = 0;
    memset(mine, 0, sizeof mine);
    pthread_mutex_init(&opening, NULL);
}
