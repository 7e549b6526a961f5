/* Weighted leases with virtual time: who has had the least of its share goes next. Time nobody else wanted is free, so
 * a tenant that ran alone all night owes nothing in the morning; one that was away has saved up nothing either. */
#include "lease.h"

#include <string.h>

static bool active(const struct tenant *t, uint64_t now) { return t->name[0] && (t->waiting || t->active + INACTIVE_NS > now); }

static bool others_wait(const struct gate *g, int me) {
    for (int i = 0; i < GATE_TENANTS; i++)
        if (i != me && g->tenant[i].name[0] && g->tenant[i].waiting) return true;
    return false;
}

/* The waiting tenant, or `me`, with the least virtual time; -1 when nobody waits. */
static int next(const struct gate *g, int me) {
    int best = me;
    for (int i = 0; i < GATE_TENANTS; i++) {
        const struct tenant *t = &g->tenant[i];
        if (i == me || !t->name[0] || !t->waiting) continue;
        if (best < 0 || t->vtime < g->tenant[best].vtime) best = i;
    }
    return best;
}

/* Rule 3: neither credit nor debt from before. */
static void arrive(struct gate *g, int me, uint64_t now) {
    struct tenant *t = &g->tenant[me];
    uint64_t least = UINT64_MAX;
    if (active(t, now) && t->active) return;
    for (int i = 0; i < GATE_TENANTS; i++)
        if (i != me && active(&g->tenant[i], now) && g->tenant[i].vtime < least) least = g->tenant[i].vtime;
    if (least != UINT64_MAX) t->vtime = least;
    t->active = now;
}

static void bill(struct tenant *t, uint64_t start, uint64_t end) {
    if (end <= start) return;
    t->held += end - start;
    t->spent += end - start;
    t->vtime += (end - start) * 1000 / t->weight;
}

static uint64_t budget(const struct tenant *t) { return (uint64_t)PERIOD_NS * t->weight / 1000; }

static void turn_period(struct tenant *t, uint64_t now) {
    if (now - t->period < PERIOD_NS) return;
    uint64_t periods = (now - t->period) / PERIOD_NS, allowed = budget(t) * periods;
    t->period += periods * PERIOD_NS;
    t->spent = t->spent > allowed ? t->spent - allowed : 0;
}

static void hold(struct gate *g, int who, uint64_t now) {
    struct tenant *t = &g->tenant[who];
    uint64_t quantum = QUANTUM_NS;
    if (t->strict) {
        turn_period(t, now);
        uint64_t left = budget(t) > t->spent ? budget(t) - t->spent : 0;
        if (left < quantum) quantum = left;
    }
    g->holder = (uint32_t)who + 1, g->start = now, g->end = now + quantum;
    t->active = now;
    __atomic_add_fetch(&t->futex, 1, __ATOMIC_RELEASE); /* the caller wakes it */
}

/* Rule 4: a holder that does nothing, or is gone, loses the lease. */
static void revoke(struct gate *g, uint64_t now) {
    if (!g->holder || g->holder > GATE_TENANTS) { g->holder = 0; return; }
    struct tenant *t = &g->tenant[g->holder - 1];
    uint64_t last = t->active > g->start ? t->active : g->start;
    bool idle = now > last && now - last > IDLE_NS && t->waits_for_work <= 0;
    bool stuck = now > g->end && now - g->end > STUCK_NS && now > last && now - last > STUCK_NS;
    if (!idle && !stuck) return;
    bill(t, g->start, idle ? last : now);
    if (stuck) t->waits_for_work = 0, t->waiting = 0; /* counters of the dead */
    g->holder = 0;
}

enum turn lease_ask(struct gate *g, int me, uint64_t now, uint64_t *until) {
    struct tenant *t = &g->tenant[me];
    revoke(g, now); /* also from ourselves: time we did nothing in is not billed */
    arrive(g, me, now);
    if (t->strict) {
        turn_period(t, now);
        if (g->holder != (uint32_t)me + 1 && t->spent >= budget(t)) return *until = t->period + PERIOD_NS, SLEEP;
    }
    if (!g->holder && next(g, me) == me) hold(g, me, now);
    if (g->holder != (uint32_t)me + 1) return WAIT;
    t->active = now;
    if (now < g->end) return GO;
    if (t->strict || others_wait(g, me)) return DRAIN;
    g->start = now, g->end = now + QUANTUM_NS; /* rule 2: nobody waits, so it costs nothing */
    return GO;
}

void lease_drained(struct gate *g, int me, uint64_t now) {
    struct tenant *t = &g->tenant[me];
    if (g->holder != (uint32_t)me + 1) return;
    t->active = now;
    bill(t, g->start, now);
    g->start = now;
    turn_period(t, now);
    bool over = t->strict && t->spent >= budget(t);
    int heir = next(g, over ? -1 : me);
    if (heir < 0) g->holder = 0;
    else hold(g, heir, now);
}

int lease_join(struct gate *g, const char *name, uint32_t weight, bool strict, uint64_t now) {
    int found = -1, oldest = -1;
    for (int i = 0; i < GATE_TENANTS && found < 0; i++) {
        struct tenant *t = &g->tenant[i];
        if (strncmp(t->name, name, sizeof t->name) == 0 && *name) found = i;
        else if (g->holder != (uint32_t)i + 1 && (oldest < 0 || t->active < g->tenant[oldest].active)) oldest = i;
    }
    if (found < 0) {
        if (oldest < 0 || active(&g->tenant[oldest], now)) return -1;
        found = oldest;
        memset(&g->tenant[found], 0, sizeof g->tenant[found]);
        strncpy(g->tenant[found].name, name, sizeof g->tenant[found].name - 1);
        g->tenant[found].period = now;
        arrive(g, found, now); /* so that the next to join sees the place taken */
    }
    g->tenant[found].weight = weight ? weight : 1, g->tenant[found].strict = strict;
    return found;
}
