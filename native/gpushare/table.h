/* A hash table from 64-bit keys (pointers, handles) to small records. See table.c. */
#ifndef GPUSHARE_TABLE_H
#define GPUSHARE_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct record {
    uint64_t key;   /* 0: an empty cell */
    uint64_t bytes; /* charged or mapped */
    void *owner;    /* context or physical block */
    int device;     /* ledger index */
    int kind;
};
struct table { struct record *cells; size_t room, used; };

bool table_put(struct table *t, struct record r); /* replaces; false when out of memory */
struct record *table_find(const struct table *t, uint64_t key); /* valid until the next change */
bool table_take(struct table *t, uint64_t key, struct record *out);
void table_clear(struct table *t);

#endif
