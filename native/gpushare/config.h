/* What this container may use. See config.c and README.md for the file's form. */
#ifndef GPUSHARE_CONFIG_H
#define GPUSHARE_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

enum { MAX_DEVICES = 16 };
enum mode { MODE_TIMESHARING, MODE_FAIR, MODE_STRICT };

struct allowance {
    uint8_t uuid[16];
    uint64_t limit, guaranteed, context;
    uint32_t weight;
};

void config_load(void);  /* once, at load; afterwards the limits follow the file by themselves */
enum mode config_mode(void);
bool config_driver_keeps(void); /* the driver limits memory itself, all but the managed kind */
const char *config_tenant(void);
const char *config_ledger(void);
bool config_development(void); /* the environment decides: files may be made when missing */
void config_gate(char *path, unsigned bytes, const uint8_t uuid[16]);
bool config_allowance(const uint8_t uuid[16], struct allowance *out); /* false: not our device */

bool uuid_read(const char *text, uint8_t uuid[16]);       /* "GPU-…" or bare */
void uuid_write(const uint8_t uuid[16], char text[41]);
uint64_t now_ns(void); /* monotonic */

#endif
