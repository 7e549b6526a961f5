/* The limits of this container. See config.c; README.md documents the file format. */
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

void config_load(void);  /* called once, at load; later changes of the file are picked up automatically */
enum mode config_mode(void);
bool config_driver_keeps(void); /* the driver enforces the memory limit itself, except for managed memory */
const char *config_tenant(void);
const char *config_ledger(void);
bool config_development(void); /* configured by environment variables: missing files are created */
void config_gate(char *path, unsigned bytes, const uint8_t uuid[16]);
bool config_allowance(const uint8_t uuid[16], struct allowance *out); /* false: not this container's GPU */

bool uuid_read(const char *text, uint8_t uuid[16]);       /* with or without the prefix "GPU-" */
void uuid_write(const uint8_t uuid[16], char text[41]);
uint64_t now_ns(void); /* monotonic */

#endif
