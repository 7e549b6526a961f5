/* Graphs, streams and kernels of the fake driver. A graph's nodes run in the order in which they were added. Like the
 * real driver, it reuses the addresses of allocations that were freed earlier in the same graph, and keeps the memory
 * of a launch reserved. */
#include "fake.h"

enum { NODES = 16, ALLOC = CU_GRAPH_NODE_TYPE_MEM_ALLOC, FREE = 11, AUTO_FREE = 1 };
struct CUnode_st { int type, freed, reused; uint64_t bytes; CUdeviceptr pointer; };
struct CUgraph_st { int count, card; struct CUnode_st node[NODES]; };
struct CUexec_st { struct CUgraph_st graph; uint64_t flags; };
static uint64_t reserved[CARDS], used[CARDS];
static __thread CUgraph capture; /* the graph into which this thread's stream is captured */

static CUdeviceptr address(CUgraph g, uint64_t bytes) {
    for (int i = 0; i < g->count; i++) {
        struct CUnode_st *old = &g->node[i];
        if (old->type == ALLOC && old->freed && !old->reused && old->bytes >= bytes) return old->reused = 1, old->pointer;
    }
    return fresh(bytes);
}

static CUgraphNode add(CUgraph g, int type, uint64_t bytes, CUdeviceptr pointer) {
    if (g->count == NODES) abort();
    g->node[g->count] = (struct CUnode_st){.type = type, .bytes = bytes, .pointer = pointer};
    return &g->node[g->count++];
}

static CUgraphNode add_free(CUgraph g, CUdeviceptr pointer) {
    for (int i = g->count - 1; i >= 0; i--)
        if (g->node[i].type == ALLOC && g->node[i].pointer == pointer && !g->node[i].freed) {
            g->node[i].freed = 1;
            return add(g, FREE, 0, pointer);
        }
    return NULL;
}

CUresult captured_alloc(CUdeviceptr *p, size_t n) {
    if (!capture) return -1;
    *p = address(capture, n);
    capture->card = current->card;
    add(capture, ALLOC, n, *p);
    return 0;
}

CUresult captured_free(CUdeviceptr p) { return capture && add_free(capture, p) ? 0 : -1; }

CUresult graph_freed(struct piece *p) {
    used[p->card] -= p->bytes;
    drop(p);
    return 0;
}

EXPORT CUresult cuGraphCreate(CUgraph *g, unsigned f) { (void)f; *g = calloc(1, sizeof **g); return 0; }
EXPORT CUresult cuGraphDestroy(CUgraph g) { free(g); return 0; }
EXPORT CUresult cuGraphExecDestroy(CUgraphExec e) { free(e); return 0; }
EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph g, const CUgraphNode *after, size_t n, CUallocNode *p) {
    (void)after, (void)n;
    ENTER();
    g->card = p->poolProps.location.id;
    p->dptr = address(g, p->bytesize);
    *node = add(g, ALLOC, p->bytesize, p->dptr);
    LEAVE(0);
}
EXPORT CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph g, const CUgraphNode *after, size_t n, CUdeviceptr p) {
    (void)after, (void)n;
    ENTER();
    *node = add_free(g, p);
    LEAVE(*node ? 0 : CUDA_ERROR_INVALID_VALUE);
}
EXPORT CUresult cuGraphAddNode(CUgraphNode *node, CUgraph g, const CUgraphNode *after, size_t n, CUnodeParams *p) {
    return p->type == ALLOC ? cuGraphAddMemAllocNode(node, g, after, n, &p->u.alloc) : 0;
}
EXPORT CUresult cuGraphGetNodes(CUgraph g, CUgraphNode *nodes, size_t *n) {
    for (size_t i = 0; nodes && i < *n && i < (size_t)g->count; i++) nodes[i] = &g->node[i];
    *n = (size_t)g->count;
    return 0;
}
EXPORT CUresult cuGraphNodeGetType(CUgraphNode node, int *type) { *type = node->type; return 0; }
EXPORT CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUallocNode *p) {
    memset(p, 0, sizeof *p);
    p->poolProps.location.type = CU_LOCATION_DEVICE;
    p->bytesize = node->bytes, p->dptr = node->pointer;
    return 0;
}
EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *e, CUgraph g, uint64_t flags) {
    *e = calloc(1, sizeof **e);
    (*e)->graph = *g, (*e)->flags = flags;
    return 0;
}

/* Memory left from the previous launch is freed if the graph was instantiated with automatic free; otherwise it is an
 * error. */
static CUresult again(CUgraphExec e) {
    for (int i = 0; i < e->graph.count; i++) {
        struct piece *left = e->graph.node[i].type == ALLOC ? find(e->graph.node[i].pointer, GRAPHED) : NULL;
        if (left && !(e->flags & AUTO_FREE)) return CUDA_ERROR_INVALID_VALUE;
        if (left) graph_freed(left);
    }
    return 0;
}

EXPORT CUresult cuGraphLaunch(CUgraphExec e, CUstream s) {
    (void)s;
    ENTER();
    struct CUgraph_st *g = &e->graph;
    uint64_t need = 0, keeps = 0;
    NEED(again(e) == 0, CUDA_ERROR_INVALID_VALUE);
    for (int i = 0; i < g->count; i++) {
        bool first = g->node[i].type == ALLOC;
        for (int j = 0; j < i; j++) first = first && g->node[j].pointer != g->node[i].pointer;
        if (first) need += g->node[i].bytes;
    }
    uint64_t want = up(used[g->card] + need, CHUNK);
    if (want > reserved[g->card]) {
        NEED(card_take(g->card, want - reserved[g->card]), 2);
        reserved[g->card] = want;
    }
    for (int i = 0; i < g->count; i++)
        if (g->node[i].type == ALLOC && !g->node[i].freed) keeps += g->node[i].bytes, keep(g->node[i].pointer, g->node[i].bytes, g->card, GRAPHED);
    used[g->card] += keeps;
    LEAVE(0);
}
EXPORT CUresult cuDeviceGraphMemTrim(CUdevice d) {
    ENTER();
    uint64_t want = up(used[d], CHUNK);
    if (want < reserved[d]) card_give(d, reserved[d] - want), reserved[d] = want;
    LEAVE(0);
}
EXPORT CUresult cuDeviceGetGraphMemAttribute(CUdevice d, int a, void *v) { uint64_t n = a == CU_GRAPH_MEM_RESERVED ? reserved[d] : used[d]; memcpy(v, &n, 8); return 0; }

/* --- streams and kernels ---------------------------------------------------------------------------------------------------- */

static int streams_made;
EXPORT CUresult cuStreamCreate(CUstream *s, unsigned f) {
    (void)f;
    ENTER();
    NEED(current, 201);
    if (streams_made++ == 0) NEED(card_take(current->card, 34 * MIB), 2); /* the size of 64 streams; never freed */
    *s = (CUstream)(uintptr_t)fresh(1);
    LEAVE(0);
}
EXPORT CUresult cuStreamDestroy_v2(CUstream s) { (void)s; return 0; }
EXPORT CUresult cuStreamIsCapturing(CUstream s, int *status) { (void)s; *status = capture != NULL; return 0; }
EXPORT CUresult cuStreamBeginCapture_v2(CUstream s, int mode) { (void)s, (void)mode; return cuGraphCreate(&capture, 0); }
EXPORT CUresult cuStreamEndCapture(CUstream s, CUgraph *g) { (void)s; *g = capture, capture = NULL; return 0; }
EXPORT CUresult cuLaunchKernel(LAUNCH_ARGS, void **extra) {
    (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)params, (void)extra;
    if (!current) return 201;
    if (!capture) card_work(current->card, (uint64_t)(uintptr_t)f * 1000);
    return 0;
}
EXPORT CUresult cuCtxSynchronize(void) {
    if (!current) return 201;
    if (capture) return 900;
    card_wait(current->card);
    pthread_mutex_lock(&fake_lock);
    pools_shrink(current->card);
    pthread_mutex_unlock(&fake_lock);
    return 0;
}
EXPORT CUresult cuStreamSynchronize(CUstream s) { (void)s; return cuCtxSynchronize(); }
