/* The ledger file, its lock and this process's slot. The rules are at the top of ledger.c. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fault.h"
#include "ledger_file.h"
#include "log.h"
#include "robust.h"

#ifndef F_OFD_GETLK /* glibc 2.17 is older than this kernel interface */
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#define F_OFD_SETLKW 38
#endif

struct ledger *ledger;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static dev_t file_device;
static ino_t file_inode;
int own = -1;
static int file = -1; /* this process's descriptor of the ledger */
static pid_t own_pid, file_pid;
static uint64_t own_start;
struct holding mine[MAX_DEVICES];

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

/* Uses a high number: some programs rely on low descriptor numbers or close all low descriptors. */
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

/* A new file is all zeros. The first process writes the header; the others wait for the lock on the byte after the
 * slots' bytes. */
static const char *check_header(struct ledger *l, int fd) {
    const char *why = NULL;
    uint8_t boot[16] = {0};
    read_boot(boot);
    if (lock_byte(fd, F_OFD_SETLKW, F_WRLCK, LEDGER_SLOTS)) return "cannot be locked";
    if (!l->magic) { /* written last: a process that started before us died before it finished */
        memcpy(l->boot, boot, 16);
        memcpy(l->tenant, config_tenant(), 64);
        l->version = LEDGER_VERSION, l->size = LEDGER_BYTES;
        if (!robust_init(&l->mutex)) why = "cannot hold a lock";
        FAULT("header");
        __atomic_store_n(&l->ready, 1, __ATOMIC_RELEASE);
        FAULT("header-ready");
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

void ledger_rebuild(void) {
    for (int d = 0; d < MAX_DEVICES; d++) {
        uint64_t sum = 0;
        for (int s = 0; s < LEDGER_SLOTS; s++)
            if (ledger->slot[s].state) sum += ledger->slot[s].device[d].charged + ledger->slot[s].device[d].overhead;
        ledger->device[d].total = sum;
        FAULT("rebuilding");
    }
}

bool ledger_lock(void) {
    if (!ledger_open()) return false;
    enum robust result = robust_lock(&ledger->mutex);
    if (result == BROKEN) return refuse_all("the ledger's lock is broken"), false;
    if (result == RECOVERED) {
        ledger_rebuild();
        ledger->owner_died++;
    }
    return true;
}

void ledger_unlock(void) { pthread_mutex_unlock(&ledger->mutex); }

/* --- slots -------------------------------------------------------------------------------------------------------- */

static uint64_t start_time(void) {
    char text[1024];
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    if (n <= 0) return 0;
    text[n] = 0;
    char *at = strrchr(text, ')'); /* the process name may contain spaces and parentheses */
    for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
    return at ? strtoull(at + 1, NULL, 10) : 0;
}

uint64_t ledger_namespace(void) {
    struct stat status;
    return stat("/proc/self/ns/pid", &status) ? 0 : (uint64_t)status.st_ino;
}

static bool file_is_ours(void) {
    struct stat status;
    return file >= 0 && file_pid == getpid() && !fstat(file, &status) && status.st_dev == file_device && status.st_ino == file_inode;
}

static void clear_slot(struct slot *s) {
    for (int d = 0; d < MAX_DEVICES; d++) s->device[d] = (struct holding){0};
    FAULT("slot-cleared");
    s->state = 0;
}

static void reap_locked(void) {
    bool changed = false;
    for (int s = 0; s < LEDGER_SLOTS; s++) {
        if (!ledger->slot[s].state || s == own || lock_byte(file, F_OFD_GETLK, F_WRLCK, s) != 0) continue;
        clear_slot(&ledger->slot[s]);
        ledger->reaped++;
        changed = true;
        FAULT("slot-reaped");
    }
    if (changed) ledger_rebuild();
}

static bool take_slot(void) {
    for (int s = 0; s < LEDGER_SLOTS; s++) {
        struct slot *slot = &ledger->slot[s];
        if (slot->state || lock_byte(file, F_OFD_SETLK, F_WRLCK, s)) continue; /* free but locked: a child of a dead process still holds it */
        clear_slot(slot);
        slot->pid = own_pid, slot->start_time = own_start, slot->pid_ns = ledger_namespace();
        memcpy(slot->device, mine, sizeof mine);
        FAULT("slot-taken");
        slot->state = 1;
        FAULT("slot-used");
        own = s;
        ledger_rebuild();
        return true;
    }
    return false;
}

bool ledger_is_own(void) { return own_pid == getpid(); }

static bool slot_is_ours(void) {
    const struct slot *s = &ledger->slot[own];
    return s->state == 1 && s->pid == own_pid && s->start_time == own_start;
}

/* With the lock held: makes sure that this process has a valid slot, even after a fork, after the program closed our
 * descriptor, or after a program wrote into the file. */
static bool settled(void) {
    pid_t pid = getpid();
    if (own_pid != pid) { /* first call, or a fork without our handler; the inherited descriptor stays open */
        if (own_pid) memset(mine, 0, sizeof mine);
        own = -1, own_pid = pid, own_start = start_time();
    }
    if (!file_is_ours()) {
        file = open_high(config_ledger(), O_RDWR), file_pid = pid;
        if (!file_is_ours()) return refuse_all("the ledger %s was replaced", config_ledger()), false;
        if (own >= 0) lock_byte(file, F_OFD_SETLK, F_WRLCK, own); /* may fail: our mapping still holds the old lock */
    }
    if (own >= 0 && slot_is_ours()) {
        if (memcmp(ledger->slot[own].device, mine, sizeof mine) == 0) return true;
        memcpy(ledger->slot[own].device, mine, sizeof mine);
        ledger_rebuild();
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

bool ledger_begin(int device) {
    if (device < 0 || device >= MAX_DEVICES || !ledger_lock()) return false;
    if (settled()) return true;
    ledger_unlock();
    return false;
}

void ledger_reap(void) {
    if (!ledger_lock()) return;
    if (file_is_ours()) reap_locked();
    ledger_unlock();
}

/* In a forked child: the parent's slot is not the child's. The descriptor stays open on purpose (see ledger.c). */
void ledger_forked(void) {
    file = -1, own = -1, own_pid = 0;
    memset(mine, 0, sizeof mine);
    pthread_mutex_init(&opening, NULL);
}
