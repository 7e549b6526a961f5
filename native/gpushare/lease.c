/* Weighted leases with virtual time: the tenant that used the smallest part of its share gets the next lease. Time that
 * no other tenant wanted is not billed, so a tenant that ran alone overnight has no debt in the morning. A tenant that
 * was inactive has no credit either. */
#include "lease.h"

#include <string.h>

static bool waits(const struct tenant *t, uint64_t now) {
    uint64_t asked = __atomic_load_n(&t->asked, __ATOMIC_RELAXED);
    return asked && now < asked + STUCK_NS;
}

static bool active(const struct tenant *t, uint64_t now) { return t->name[0] && (waits(t, now) || t->active + INACTIVE_NS > now); }

static bool others_wait(const struct gate *g, int me, uint64_t now) {
    for (int i = 0; i < GATE_TENANTS; i++)
        if (i != me && waits(&g->tenant[i], now)) return true;
    return false;
}

/* Rule 5. A tenant that was active recently may soon want the lease again and would then wait for everything that we
 * have queued. CROWDED_NS is longer than the limit of rule 3 because that tenant may be in a long wait for its work. */
bool lease_crowded(const struct gate *g, int me, uint64_t now) {
    for (int i = 0; i < GATE_TENANTS; i++)
        if (i != me && (waits(&g->tenant[i], now) || __atomic_load_n(&g->tenant[i].active, __ATOMIC_RELAXED) + CROWDED_NS > now)) return true;
    return false;
}

/* The tenant with the least virtual time among those that wait and `me`; -1 when there is none. */
static int next(const struct gate *g, int me, uint64_t now) {
    int best = me;
    for (int i = 0; i < GATE_TENANTS; i++) {
        const struct tenant *t = &g->tenant[i];
        if (i == me || !waits(t, now)) continue;
        if (best < 0 || t->vtime < g->tenant[best].vtime) best = i;
    }
    return best;
}

/* Rule 3: a tenant that was inactive starts without credit or debt. */
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
    t->vtime += (end - start) * 1000 / (t->weight ? t->weight : 1); /* not trusted: every tenant can write the file */
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
    t->active = now, t->handing = 0;
    __atomic_store_n(&t->queued, 0, __ATOMIC_RELAXED);  /* also drops processes that died */
    __atomic_add_fetch(&t->futex, 1, __ATOMIC_RELEASE); /* the caller wakes the waiters */
}

/* Rule 4: a holder that is idle, dead or hung loses the lease. */
static void revoke(struct gate *g, uint64_t now) {
    if (!g->holder || g->holder > GATE_TENANTS) { g->holder = 0; return; }
    struct tenant *t = &g->tenant[g->holder - 1];
    uint64_t last = t->active > g->start ? t->active : g->start;
    bool idle = now > last && now - last > IDLE_NS && !__atomic_load_n(&t->waits_for_work, __ATOMIC_RELAXED);
    bool stuck = now > g->end && now - g->end > STUCK_NS && now > last && now - last > STUCK_NS;
    if (!idle && !stuck) return;
    bill(t, g->start, idle ? last : now);
    if (stuck) __atomic_store_n(&t->waits_for_work, 0, __ATOMIC_RELAXED); /* threads that died are still counted */
    g->holder = 0, t->handing = 0;
}

static enum turn answer(struct gate *g, int me, uint64_t now, uint64_t *until) {
    struct tenant *t = &g->tenant[me];
    if (t->strict) {
        turn_period(t, now);
        if (g->holder != (uint32_t)me + 1 && t->spent >= budget(t)) return *until = t->period + PERIOD_NS, SLEEP;
    }
    if (!g->holder && next(g, me, now) == me) hold(g, me, now);
    if (g->holder != (uint32_t)me + 1) return WAIT;
    t->active = now;
    if (now < g->end) return GO;
    if (t->strict || others_wait(g, me, now)) return DRAIN;
    g->start = now, g->end = now + QUANTUM_NS, t->handing = 0; /* rule 2: no other tenant waits, so the time is not billed */
    return GO;
}

enum turn lease_ask(struct gate *g, int me, uint64_t now, uint64_t *until) {
    revoke(g, now); /* also from the caller: its idle time is not billed */
    arrive(g, me, now);
    enum turn turn = answer(g, me, now, until);
    __atomic_store_n(&g->tenant[me].asked, turn == WAIT ? now : 0, __ATOMIC_RELAXED);
    return turn;
}

/* Work that other processes of this tenant queued would run under the next tenant's lease. So the last process to drain
 * hands the lease over. If a process of the tenant is waiting for its work, that work is still on the GPU. A process
 * that is dead or busy on the CPU is waited for only as long as its queue can last. */
bool lease_drained(struct gate *g, int me, uint64_t now) {
    struct tenant *t = &g->tenant[me];
    if (g->holder != (uint32_t)me + 1) return true;
    t->active = now;
    if (!t->handing) t->handing = now;
    uint64_t patience = __atomic_load_n(&t->waits_for_work, __ATOMIC_RELAXED) ? STUCK_NS : HAND_OVER_NS;
    if (__atomic_load_n(&t->queued, __ATOMIC_RELAXED) && now < t->handing + patience) return false;
    bill(t, g->start, now);
    g->start = now;
    turn_period(t, now);
    bool over = t->strict && t->spent >= budget(t);
    int heir = next(g, over ? -1 : me, now);
    t->handing = 0;
    if (heir < 0) g->holder = 0;
    else hold(g, heir, now);
    return true;
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
        arrive(g, found, now); /* marks the entry as taken for the next tenant that joins */
    }
    g->tenant[found].weight = weight ? weight : 1, g->tenant[found].strict = strict;
    return found;
}

/* --- without the lock -------------------------------------------------------------------------------------------------- */

static void less_one(uint32_t *at) { /* never below 0: another process may have reset it */
    uint32_t n = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (n && !__atomic_compare_exchange_n(at, &n, n - 1, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}

void lease_launched(struct tenant *t, uint32_t *counted) {
    uint32_t lease = __atomic_load_n(&t->futex, __ATOMIC_RELAXED);
    if (__atomic_load_n(counted, __ATOMIC_RELAXED) == lease) return; /* the usual case */
    if (__atomic_exchange_n(counted, lease, __ATOMIC_RELAXED) != lease) __atomic_add_fetch(&t->queued, 1, __ATOMIC_RELAXED);
}

void lease_emptied(struct tenant *t, uint32_t *counted) {
    uint32_t lease = __atomic_exchange_n(counted, 0, __ATOMIC_RELAXED);
    if (lease && lease == __atomic_load_n(&t->futex, __ATOMIC_RELAXED)) less_one(&t->queued);
}

void lease_wait_begins(struct tenant *t) { __atomic_add_fetch(&t->waits_for_work, 1, __ATOMIC_RELAXED); }

void lease_wait_ends(struct tenant *t, uint64_t now) {
    __atomic_store_n(&t->active, now, __ATOMIC_RELAXED);
    less_one(&t->waits_for_work);
}
