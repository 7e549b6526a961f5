/* Shared by the parts of the fake driver: fake_cuda.c, fake_memory.c, fake_graph.c. */
#ifndef FAKE_H
#define FAKE_H

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "card.h"
#include "driver.h"

#define BLOCK (2 * MIB)
#define CHUNK (32 * MIB)
static inline uint64_t up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

enum kind { PLAIN, PACKED, MANAGED, ARRAY, POOLED, BLOCK_OF_VMM, MAPPED, GRAPHED };
struct piece { uint64_t key, bytes; int card, kind; CUcontext context; uint64_t owner; };
struct CUctx_st { int card, primary, references, alive; size_t heap, stack; };

enum { MOST = 200000 };
extern struct piece pieces[MOST];
extern int piece_count;
extern __thread CUcontext current;
extern pthread_mutex_t fake_lock;
CUresult enter(const char *name); /* takes the lock, or fails when FAKE_FAIL asks for it */
#define ENTER() do { CUresult e_ = enter(__func__); if (e_) return e_; } while (0)
#define LEAVE(value) do { CUresult v_ = (value); pthread_mutex_unlock(&fake_lock); return v_; } while (0)
#define NEED(condition, code) do { if (!(condition)) LEAVE(code); } while (0)

uint64_t fresh(uint64_t bytes); /* an address that was not used before */
struct piece *find(uint64_t key, int kind);
struct piece *keep(uint64_t key, uint64_t bytes, int card, int kind);
void drop(struct piece *p);
void context_ended(CUcontext c); /* frees what the context owned */
void pools_shrink(int card);     /* at a synchronization */

CUresult graph_freed(struct piece *p);
CUresult captured_alloc(CUdeviceptr *p, size_t n); /* 0: added as a node; -1: no capture in progress */
CUresult captured_free(CUdeviceptr p);

#endif
