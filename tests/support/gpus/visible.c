/* PID namespaces for the fake driver. As with the real driver, a program sees the processes of its own PID namespace and
 * of the namespaces below it, with the pids of its own namespace. Replaces card_clients, which ignores namespaces:
 * -Wl,--wrap=card_clients.
 *
 * The kernel knows the holders: a client of the GPU holds a lock on its byte of the file, and /proc lists the locks of
 * each open file. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "card.h"

int __wrap_card_clients(int c, int32_t *pids, uint64_t *bytes, int most);

/* The locks of one open file, as lines "lock: 1: OFDLCK ADVISORY WRITE -1 fe:00:123 FIRST LAST". */
static void read_locks(const char *path, int pid, int *holder) {
    char line[512];
    FILE *f = fopen(path, "re");
    if (!f) return;
    while (fgets(line, sizeof line, f)) {
        long first;
        if (strncmp(line, "lock:", 5) || sscanf(line, "lock: %*s OFDLCK %*s %*s %*s %*s %ld", &first) != 1) continue;
        long client = first - (1 << 29);
        /* a child inherits its parent's files: the first process found is the parent, as long as it is alive */
        if (client >= 0 && client < CLIENTS && !holder[client]) holder[client] = pid;
    }
    fclose(f);
}

static void read_process(int pid, const struct stat *card, int *holder) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *files = opendir(path);
    if (!files) return;
    for (struct dirent *e; (e = readdir(files));) {
        struct stat s;
        if (fstatat(dirfd(files), e->d_name, &s, 0) || s.st_ino != card->st_ino || s.st_dev != card->st_dev) continue;
        snprintf(path, sizeof path, "/proc/%d/fdinfo/%s", pid, e->d_name);
        read_locks(path, pid, holder);
    }
    closedir(files);
}

/* Fills in, for each client, the pid in /proc that holds it, or 0. */
static void find_holders(const struct stat *card, int *holder) {
    struct dirent **found;
    int n = scandir("/proc", &found, NULL, versionsort); /* parents mostly come before their children */
    for (int i = 0; i < n; i++) {
        int pid = atoi(found[i]->d_name);
        if (pid > 0) read_process(pid, card, holder);
        free(found[i]);
    }
    if (n >= 0) free(found);
}

/* This process's pid in /proc, which may belong to a namespace above its own. */
static int own_name(void) {
    char text[32] = "";
    return readlink("/proc/self", text, sizeof text - 1) > 0 ? atoi(text) : 0;
}

static int list(const struct card *card, const int *holder, int c, int32_t *pids, uint64_t *bytes, int most) {
    int n = 0, own = own_name();
    for (int i = 0; i < CLIENTS; i++) {
        if (!holder[i] || !card->client[i].bytes[c]) continue;
        int32_t pid = holder[i] == own ? getpid() : holder[i];
        int at = 0;
        while (at < n && pids[at] != pid) at++; /* a process with two copies of the driver library is listed once */
        if (at == most) break;
        if (at == n) pids[n] = pid, bytes[n++] = 0;
        bytes[at] += card->client[i].bytes[c];
    }
    return n;
}

int __wrap_card_clients(int c, int32_t *pids, uint64_t *bytes, int most) {
    const char *path = getenv("FAKE_CARD");
    struct stat s;
    int fd = open(path ? path : "/tmp/fake-card", O_RDONLY | O_CLOEXEC), n = 0;
    if (fd >= 0 && fstat(fd, &s) == 0 && s.st_size >= (off_t)sizeof(struct card)) {
        struct card *card = mmap(NULL, sizeof *card, PROT_READ, MAP_SHARED, fd, 0);
        if (card != MAP_FAILED) {
            int holder[CLIENTS] = {0};
            find_holders(&s, holder);
            n = list(card, holder, c, pids, bytes, most);
            munmap(card, sizeof *card);
        }
    }
    if (fd >= 0) close(fd);
    return n;
}
