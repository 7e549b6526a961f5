/* See card.h. Linked into both libraries of the fake driver; they share state through the file. */
#define _GNU_SOURCE
#include "card.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static struct card *card;
static int fd = -1, me = -1;
static pid_t owner;
static pthread_mutex_t threads = PTHREAD_MUTEX_INITIALIZER;

static int byte_lock(int command, short type, off_t at) {
    struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    int result = fcntl(fd, command, &l);
    return result < 0 ? -1 : command == F_OFD_GETLK ? l.l_type != F_UNLCK : 0;
}

static void enter(void) {
    pthread_mutex_lock(&threads);
    if (owner != getpid()) { /* a forked child keeps the parent's descriptor open and opens its own */
        owner = getpid(), me = -1;
        const char *path = getenv("FAKE_CARD");
        fd = open(path ? path : "/tmp/fake-card", O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (fd < 0 || ftruncate(fd, sizeof *card)) abort();
        card = mmap(NULL, sizeof *card, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (card == MAP_FAILED) abort();
    }
    byte_lock(F_OFD_SETLKW, F_WRLCK, 1 << 30);
}

static void leave(void) {
    byte_lock(F_OFD_SETLK, F_UNLCK, 1 << 30);
    pthread_mutex_unlock(&threads);
}

/* Frees the memory of dead processes, as the kernel module does. */
static void bury(void) {
    for (int i = 0; i < CLIENTS; i++)
        if (card->client[i].used && i != me && byte_lock(F_OFD_GETLK, F_WRLCK, (1 << 29) + i) == 0)
            memset(&card->client[i], 0, sizeof card->client[i]);
}

static struct client *self(void) {
    for (int i = 0; me < 0 && i < CLIENTS; i++) {
        if (card->client[i].used || byte_lock(F_OFD_SETLK, F_WRLCK, (1 << 29) + i)) continue;
        memset(&card->client[i], 0, sizeof card->client[i]);
        card->client[i].used = 1, card->client[i].pid = getpid(), me = i;
    }
    if (me < 0) abort();
    return &card->client[me];
}

static uint64_t used(int c) {
    uint64_t sum = 0;
    bury();
    for (int i = 0; i < CLIENTS; i++) sum += card->client[i].bytes[c];
    return sum;
}

bool card_take(int c, uint64_t bytes) {
    enter();
    uint64_t now = used(c);
    bool good = bytes <= CARD_TOTAL && now <= CARD_TOTAL - bytes;
    if (good) self()->bytes[c] += bytes;
    leave();
    return good;
}

void card_give(int c, uint64_t bytes) {
    enter();
    struct client *s = self();
    if (s->bytes[c] < bytes) fprintf(stderr, "fake driver: freed more than was allocated\n"), abort();
    s->bytes[c] -= bytes;
    leave();
}

uint64_t card_used(int c) {
    enter();
    uint64_t sum = used(c);
    leave();
    return sum;
}

int card_clients(int c, int32_t *pids, uint64_t *bytes, int most) {
    int n = 0;
    enter();
    bury();
    for (int i = 0; i < CLIENTS && n < most; i++)
        if (card->client[i].used && card->client[i].bytes[c]) pids[n] = card->client[i].pid, bytes[n++] = card->client[i].bytes[c];
    leave();
    return n;
}

static uint64_t clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void sleep_until(uint64_t end) {
    for (uint64_t now = clock_ns(); now < end; now = clock_ns()) {
        struct timespec rest = {.tv_sec = (time_t)((end - now) / 1000000000u), .tv_nsec = (long)((end - now) % 1000000000u)};
        nanosleep(&rest, NULL);
    }
}

/* Like the driver, queues at most this many launches of a process; the next launch blocks. */
enum { DEPTH = 1024 };

void card_work(int c, uint64_t nanoseconds) {
    static uint64_t ends[CARDS][DEPTH];
    static unsigned launched[CARDS];
    uint64_t *end = &ends[c][__atomic_fetch_add(&launched[c], 1, __ATOMIC_RELAXED) % DEPTH];
    sleep_until(__atomic_load_n(end, __ATOMIC_RELAXED));
    enter();
    uint64_t now = clock_ns(), from = card->busy_until[c] > now ? card->busy_until[c] : now;
    card->busy_until[c] = self()->end[c] = from + nanoseconds;
    __atomic_store_n(end, from + nanoseconds, __ATOMIC_RELAXED);
    card->launches[c]++;
    leave();
}

void card_wait(int c) {
    enter();
    uint64_t end = self()->end[c];
    leave();
    sleep_until(end);
}

void card_uuid(int c, uint8_t uuid[16]) {
    memset(uuid, 0xa0 + c, 16);
    uuid[0] = (uint8_t)(c + 1);
}

void card_set_limit(int c, uint64_t bytes) {
    enter();
    card->limit[c] = bytes;
    leave();
}

uint64_t card_get_limit(int c) {
    enter();
    uint64_t bytes = card->limit[c];
    leave();
    return bytes;
}
