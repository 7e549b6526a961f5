/* Reads the limits file or, for development, environment variables.
 *
 * The file is a read-only bind mount, so a process cannot raise its own limit. A process can change its environment, so
 * the environment is used only when there is no file. The agent rewrites the file in place to change a limit while
 * processes run. The library checks the file at most every 50 ms, with one stat. A half-written file lacks its last
 * line and is ignored. */
#define _GNU_SOURCE
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "log.h"

#define FOLDER "/run/gpushare"
#define LOOK_EVERY_NS 50000000u

struct config {
    enum mode mode;
    bool driver_keeps;
    char tenant[64];
    int count;
    struct allowance gpu[MAX_DEVICES];
};

static struct config config;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool from_file, from_environment;
static struct timespec seen;
static off_t seen_size;
static uint64_t looked;
static char limits_path[256], ledger_path[256], gate_path[256];

uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int hex(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

bool uuid_read(const char *text, uint8_t uuid[16]) {
    if (strncmp(text, "GPU-", 4) == 0) text += 4;
    int digits = 0;
    for (; *text && digits < 32; text++) {
        if (*text == '-') continue;
        int value = hex(*text);
        if (value < 0) return false;
        uuid[digits / 2] = (uint8_t)(digits % 2 ? uuid[digits / 2] | value : value << 4);
        digits++;
    }
    return digits == 32 && !*text;
}

void uuid_write(const uint8_t u[16], char text[41]) {
    snprintf(text, 41, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2], u[3],
             u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

static bool read_number(const char *text, uint64_t *out) {
    if (*text < '0' || *text > '9') return false;
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno || *end) return false;
    *out = value;
    return true;
}

static bool read_mode(const char *word, enum mode *mode) {
    static const char *const words[] = {"timesharing", "fair", "strict"};
    for (int i = 0; i < 3; i++)
        if (strcmp(word, words[i]) == 0) return *mode = (enum mode)i, true;
    return false;
}

static bool read_keeper(const char *word, bool *driver) {
    *driver = strcmp(word, "driver") == 0;
    return *driver || strcmp(word, "library") == 0;
}

static bool read_tenant(const char *word, char tenant[64]) {
    size_t n = strlen(word);
    if (n < 1 || n > 63 || strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-") != n)
        return false;
    memset(tenant, 0, 64);
    memcpy(tenant, word, n);
    return true;
}

static bool read_gpu(char *rest, struct config *to) {
    if (to->count == MAX_DEVICES) return false;
    struct allowance *gpu = &to->gpu[to->count];
    *gpu = (struct allowance){.weight = 1000};
    char *state, *word = strtok_r(rest, " ", &state);
    if (!word || !uuid_read(word, gpu->uuid)) return false;
    bool limited = false;
    while ((word = strtok_r(NULL, " ", &state))) {
        char *value = strchr(word, '=');
        if (!value) return false;
        *value++ = 0;
        uint64_t number = 0;
        bool good = read_number(value, &number);
        if (strcmp(word, "limit") == 0) limited = good, gpu->limit = number;
        else if (strcmp(word, "guaranteed") == 0) gpu->guaranteed = number;
        else if (strcmp(word, "context") == 0) gpu->context = number;
        else if (strcmp(word, "weight") == 0) gpu->weight = (uint32_t)(number < 1 ? 1 : number > 1000 ? 1000 : number);
        else continue;
        if (!good) return false;
    }
    to->count += limited;
    return limited;
}

/* NULL when the text is valid, otherwise the error. */
static const char *parse(char *text, struct config *to) {
    *to = (struct config){0};
    char *state, *line = strtok_r(text, "\n", &state);
    if (!line || strcmp(line, "gpushare 1") != 0) return "has another version than 1";
    for (line = strtok_r(NULL, "\n", &state); line; line = strtok_r(NULL, "\n", &state)) {
        bool good = false;
        if (strcmp(line, "end") == 0) return strtok_r(NULL, "\n", &state) ? "goes on after end" : to->tenant[0] ? NULL : "names no tenant";
        if (strncmp(line, "tenant ", 7) == 0) good = read_tenant(line + 7, to->tenant);
        else if (strncmp(line, "mode ", 5) == 0) good = read_mode(line + 5, &to->mode);
        else if (strncmp(line, "keeper ", 7) == 0) good = read_keeper(line + 7, &to->driver_keeps);
        else if (strncmp(line, "gpu ", 4) == 0) good = read_gpu(line + 4, to);
        if (!good) return "has a line that is not understood";
    }
    return "has no end";
}

/* 0: read; 1: there is no such file; -1: the file is unreadable or invalid. */
static int read_file(struct config *to, const char **why) {
    char text[4097];
    int fd = open(limits_path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return *why = "cannot be opened", errno == ENOENT || errno == ENOTDIR ? 1 : -1;
    struct stat status;
    ssize_t n = read(fd, text, sizeof text - 1);
    if (fstat(fd, &status) == 0) seen = status.st_mtim, seen_size = status.st_size;
    close(fd);
    if (n < 0) return *why = "cannot be read", -1;
    text[n] = 0;
    *why = parse(text, to);
    return *why ? -1 : 0;
}

static const char *from_env(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value && *value ? value : otherwise;
}

static void read_environment(void) {
    uint64_t limit, weight, context;
    if (!read_number(from_env("GPUSHARE_LIMIT_MIB", ""), &limit)) {
        refuse_all("there is no %s", limits_path);
        return;
    }
    config = (struct config){.count = 1};
    if (!read_number(from_env("GPUSHARE_WEIGHT", "1000"), &weight) || weight < 1 || weight > 1000) weight = 1000;
    if (!read_number(from_env("GPUSHARE_CONTEXT_MIB", "0"), &context)) context = 0;
    config.gpu[0] = (struct allowance){.limit = limit << 20, .guaranteed = limit << 20, .context = context << 20, .weight = (uint32_t)weight};
    if (!read_mode(from_env("GPUSHARE_MODE", "timesharing"), &config.mode)) refuse_all("GPUSHARE_MODE is none of timesharing, fair, strict");
    if (!read_tenant(from_env("GPUSHARE_TENANT", "env"), config.tenant)) refuse_all("GPUSHARE_TENANT has characters that may not be used");
    snprintf(ledger_path, sizeof ledger_path, "%s", from_env("GPUSHARE_LEDGER", FOLDER "/ledger"));
    snprintf(gate_path, sizeof gate_path, "%s", from_env("GPUSHARE_GATE", FOLDER "/gate"));
    from_environment = true;
}

void config_load(void) {
    const char *folder = FOLDER;
#ifdef GPUSHARE_TEST /* not in the shipped build: a process must not choose its limits file */
    folder = from_env("GPUSHARE_FOLDER", FOLDER);
#endif
    snprintf(limits_path, sizeof limits_path, "%s/limits", folder);
    snprintf(ledger_path, sizeof ledger_path, "%s/ledger", folder);
    snprintf(gate_path, sizeof gate_path, "%s/gate", folder);
    const char *why;
    int result = read_file(&config, &why);
    if (result == 0) from_file = true;
    else if (result < 0) refuse_all("%s %s", limits_path, why);
    else read_environment();
}

/* Called with the lock held. If the file has become unreadable, the last valid limits stay in force. */
static void look_again(void) {
    uint64_t now = now_ns();
    if (!from_file || now - looked < LOOK_EVERY_NS) return;
    looked = now;
    struct stat status;
    if (stat(limits_path, &status) || (status.st_mtim.tv_sec == seen.tv_sec && status.st_mtim.tv_nsec == seen.tv_nsec && status.st_size == seen_size))
        return;
    struct config fresh;
    const char *why;
    if (read_file(&fresh, &why) == 0) config = fresh;
    else seen.tv_sec = -1; /* half-written: read it again next time, even if the mtime is too coarse to show the next write */
}

bool config_allowance(const uint8_t uuid[16], struct allowance *out) {
    bool found = false;
    pthread_mutex_lock(&lock);
    look_again();
    for (int i = 0; i < config.count && !found; i++)
        if (from_environment || memcmp(config.gpu[i].uuid, uuid, 16) == 0) *out = config.gpu[i], found = true;
    pthread_mutex_unlock(&lock);
    return found;
}

enum mode config_mode(void) { return config.mode; }
bool config_driver_keeps(void) { return config.driver_keeps; }
const char *config_tenant(void) { return config.tenant; }
const char *config_ledger(void) { return ledger_path; }
bool config_development(void) { return from_environment; }

void config_gate(char *path, unsigned bytes, const uint8_t uuid[16]) {
    char text[41];
    uuid_write(uuid, text);
    snprintf(path, bytes, "%s/%s", gate_path, text);
}
