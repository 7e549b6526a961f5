/* Simulates a failing disk or a power cut; loaded into a program with LD_PRELOAD.
 *
 * Only files in the folder DISK_FOLDER are affected.
 *
 *   DISK_SWITCH  while this file exists, writes and syncs may fail. It contains three words: the probability in
 *                thousandths; "EIO", "ENOSPC" or "both"; "syncs" or "all".
 *   DISK_SEED    seed of the random numbers.
 *   DISK_SHADOW  a folder that receives what the disk would contain after a power cut: each file's content at its last
 *                sync, named by its inode number, and in "names" the folder's entries at the folder's last sync.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static unsigned int seed;
static int seeded;

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* 0: elsewhere; 1: a file in the folder; 2: the folder itself. */
static int ours(int fd)
{
    const char *folder = getenv("DISK_FOLDER");
    char link[64], path[PATH_MAX];
    if (folder == NULL)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    size_t size = strlen(folder);
    if (strncmp(path, folder, size) != 0)
        return 0;
    return path[size] == 0 ? 2 : path[size] == '/' ? 1 : 0;
}

/* The errno with which this call fails, or 0. */
static int failure(int fd, int syncing)
{
    const char *control = getenv("DISK_SWITCH");
    int saved = errno, chance = 0, result = 0;
    char error[16] = "", calls[16] = "";
    if (control == NULL || access(control, F_OK) != 0 || !ours(fd)) {
        errno = saved;
        return 0;
    }
    FILE *file = fopen(control, "re");
    if (file != NULL) {
        if (fscanf(file, "%d %15s %15s", &chance, error, calls) != 3)
            chance = 0;
        fclose(file);
    }
    pthread_mutex_lock(&guard);
    if (!seeded) {
        seed = getenv("DISK_SEED") ? (unsigned int)atoi(getenv("DISK_SEED")) : 1;
        seeded = 1;
    }
    if ((syncing || strcmp(calls, "all") == 0) && (int)(rand_r(&seed) % 1000) < chance) {
        result = strcmp(error, "ENOSPC") == 0 ? ENOSPC : EIO;
        if (strcmp(error, "both") == 0 && rand_r(&seed) % 2)
            result = ENOSPC;
    }
    pthread_mutex_unlock(&guard);
    errno = saved;
    return result;
}

/* Opens a draft, to be renamed when complete: the program may be killed while it writes. */
static int begin(const char *shadow, char *draft)
{
    snprintf(draft, PATH_MAX, "%s/draft-%d", shadow, (int)getpid());
    return open(draft, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
}

static void keep_content(int fd, const char *shadow)
{
    char draft[PATH_MAX], target[PATH_MAX], link[64], block[65536];
    struct stat facts;
    ssize_t got;
    int out = begin(shadow, draft);
    /* A write-only descriptor cannot be read, so such a file is opened again. */
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    /* Not for SQLite's files: its POSIX locks are per process, and closing any descriptor of the file drops them. */
    int in = fcntl(fd, F_GETFL) & O_RDWR ? fd : open(link, O_RDONLY | O_CLOEXEC);
    off_t at = 0;
    if (fstat(fd, &facts) != 0 || in < 0 || out < 0)
        abort();
    while ((got = pread(in, block, sizeof block, at)) > 0) {
        if (NEXT(write)(out, block, (size_t)got) != got)
            abort();
        at += got;
    }
    close(out);
    if (in != fd)
        close(in);
    snprintf(target, sizeof target, "%s/%llu", shadow, (unsigned long long)facts.st_ino);
    if (rename(draft, target) != 0)
        abort();
}

static void keep_names(const char *shadow)
{
    char draft[PATH_MAX], target[PATH_MAX];
    DIR *folder = opendir(getenv("DISK_FOLDER"));
    int out = begin(shadow, draft);
    if (folder == NULL || out < 0)
        abort();
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;)
        if (entry->d_type == DT_REG)
            dprintf(out, "%llu %s\n", (unsigned long long)entry->d_ino, entry->d_name);
    closedir(folder);
    close(out);
    snprintf(target, sizeof target, "%s/names", shadow);
    if (rename(draft, target) != 0)
        abort();
}

static int synced(int fd, int result)
{
    const char *shadow = getenv("DISK_SHADOW");
    int what = shadow == NULL || result != 0 ? 0 : ours(fd);
    if (what) {
        pthread_mutex_lock(&guard);
        if (what == 1)
            keep_content(fd, shadow);
        else
            keep_names(shadow);
        pthread_mutex_unlock(&guard);
    }
    return result;
}

#define FAIL_IF(fd, syncing)                 \
    do {                                     \
        int error = failure(fd, syncing);    \
        if (error) {                         \
            errno = error;                   \
            return -1;                       \
        }                                    \
    } while (0)

int fsync(int fd)
{
    FAIL_IF(fd, 1);
    return synced(fd, NEXT(fsync)(fd));
}

int fdatasync(int fd)
{
    FAIL_IF(fd, 1);
    return synced(fd, NEXT(fdatasync)(fd));
}

ssize_t write(int fd, const void *bytes, size_t count)
{
    FAIL_IF(fd, 0);
    return NEXT(write)(fd, bytes, count);
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t at)
{
    FAIL_IF(fd, 0);
    return NEXT(pwrite)(fd, bytes, count, at);
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t at)
{
    FAIL_IF(fd, 0);
    return NEXT(pwrite64)(fd, bytes, count, at);
}
