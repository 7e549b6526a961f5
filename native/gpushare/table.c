/* A hash table with open addressing and linear probing; it doubles when half full. Removal moves the following entries
 * up, so no tombstones accumulate in a program that runs for weeks. A list would be too slow: frameworks hold tens of
 * thousands of pointers. The callers do the locking. */
#include "table.h"

#include <stdlib.h>

static size_t place(const struct table *t, uint64_t key) {
    return (size_t)((key >> 9 ^ key) * 0x9E3779B97F4A7C15u >> 20) & (t->room - 1);
}

static size_t probe(const struct table *t, uint64_t key) {
    size_t i = place(t, key);
    while (t->cells[i].key && t->cells[i].key != key) i = (i + 1) & (t->room - 1);
    return i;
}

static bool grow(struct table *t) {
    struct table bigger = {.room = t->room ? t->room * 2 : 256, .used = t->used};
    bigger.cells = calloc(bigger.room, sizeof *bigger.cells);
    if (!bigger.cells) return false;
    for (size_t i = 0; i < t->room; i++)
        if (t->cells[i].key) bigger.cells[probe(&bigger, t->cells[i].key)] = t->cells[i];
    free(t->cells);
    *t = bigger;
    return true;
}

bool table_put(struct table *t, struct record r) {
    if (!r.key || (t->used * 2 >= t->room && !grow(t))) return false;
    size_t i = probe(t, r.key);
    t->used += !t->cells[i].key;
    t->cells[i] = r;
    return true;
}

struct record *table_find(const struct table *t, uint64_t key) {
    if (!t->room || !key) return NULL;
    size_t i = probe(t, key);
    return t->cells[i].key ? &t->cells[i] : NULL;
}

bool table_take(struct table *t, uint64_t key, struct record *out) {
    struct record *found = table_find(t, key);
    if (!found) return false;
    *out = *found;
    size_t hole = (size_t)(found - t->cells), mask = t->room - 1;
    for (size_t i = (hole + 1) & mask; t->cells[i].key; i = (i + 1) & mask) {
        size_t home = place(t, t->cells[i].key);
        if (((i - home) & mask) >= ((i - hole) & mask)) t->cells[hole] = t->cells[i], hole = i;
    }
    t->cells[hole].key = 0;
    t->used--;
    return true;
}

void table_clear(struct table *t) {
    free(t->cells);
    *t = (struct table){0};
}
