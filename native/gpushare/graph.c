/* CUDA graphs that allocate memory. An allocation node takes no memory until its graph is launched. Then the driver
 * reserves memory from a pool of the device, whose size only a device attribute shows. Therefore:
 *
 *   - adding a node is refused when the node alone cannot fit;
 *   - a launch is refused when the memory that the graph needs does not fit;
 *   - after a launch the memory actually reserved is charged.
 *
 * Within a graph the driver reuses the addresses of freed allocations for later ones, so a graph needs exactly the
 * bytes that its address ranges cover. In programs whose graphs do not allocate, a launch costs one load and one branch
 * more. */
#include "graph.h"

#include <pthread.h>
#include <stdlib.h>

#include "account.h"
#include "gate.h"
#include "pool.h"
#include "table.h"

enum kind { ONCE, FREES_BEFORE, FREES_BEFORE_AND_RAN };
static struct table needs; /* bytes that each instantiated graph needs */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct range { uint64_t from, end; };

static int by_address(const void *a, const void *b) {
    uint64_t x = ((const struct range *)a)->from, y = ((const struct range *)b)->from;
    return x < y ? -1 : x > y;
}

static uint64_t covered(struct range *ranges, size_t count) {
    uint64_t sum = 0, end = 0;
    qsort(ranges, count, sizeof *ranges, by_address);
    for (size_t i = 0; i < count; i++) {
        if (ranges[i].from > end) end = ranges[i].from;
        if (ranges[i].end > end) sum += ranges[i].end - end, end = ranges[i].end;
    }
    return sum;
}

static size_t allocations(const CUgraphNode *nodes, size_t count, struct range *found, CUdevice *device) {
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        int type = 0;
        CUallocNode params = {0};
        if (CALL(cuGraphNodeGetType, nodes[i], &type) || type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) continue;
        if (CALL(cuGraphMemAllocNodeGetParams, nodes[i], &params)) continue;
        if (params.poolProps.location.type == CU_LOCATION_DEVICE) *device = params.poolProps.location.id;
        found[n++] = (struct range){params.dptr, params.dptr + params.bytesize};
    }
    return n;
}

static uint64_t need_of(CUgraph graph, CUdevice *device) {
    size_t count = 0;
    if (!REAL(cuGraphGetNodes) || !REAL(cuGraphNodeGetType) || !REAL(cuGraphMemAllocNodeGetParams)) return 0;
    if (CALL(cuGraphGetNodes, graph, NULL, &count) || !count) return 0;
    CUgraphNode *nodes = calloc(count, sizeof *nodes);
    struct range *ranges = calloc(count, sizeof *ranges);
    uint64_t bytes = 0;
    if (nodes && ranges && !CALL(cuGraphGetNodes, graph, nodes, &count)) bytes = covered(ranges, allocations(nodes, count, ranges, device));
    free(nodes), free(ranges);
    return bytes;
}

static CUresult instantiated(CUresult result, CUgraph graph, CUgraphExec *exec, uint64_t flags) {
    CUdevice device = -1;
    struct record gone, r = {.kind = flags & CU_GRAPH_AUTO_FREE ? FREES_BEFORE : ONCE};
    mark_dirty();
    if (result || !graphs_allocate()) return result;
    r.key = (uint64_t)(uintptr_t)*exec, r.bytes = need_of(graph, &device);
    r.device = device >= 0 ? device_index(device) : current_device();
    pthread_mutex_lock(&lock);
    if (r.bytes) table_put(&needs, r);
    else table_take(&needs, r.key, &gone); /* an earlier graph had this address */
    pthread_mutex_unlock(&lock);
    return result;
}

static bool node_fits(const CUallocNode *node) {
    if (!node || node->poolProps.location.type != CU_LOCATION_DEVICE) return true;
    graph_memory_used();
    return graph_fits(device_index(node->poolProps.location.id), node->bytesize);
}

EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUallocNode *params) {
    PASS_THROUGH(cuGraphAddMemAllocNode, node, graph, after, count, params);
    if (!node_fits(params)) return CUDA_ERROR_OUT_OF_MEMORY;
    return CALL(cuGraphAddMemAllocNode, node, graph, after, count, params);
}

static bool any_fits(const CUnodeParams *params) {
    return !params || params->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || node_fits(&params->u.alloc);
}

EXPORT CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUnodeParams *params) {
    PASS_THROUGH(cuGraphAddNode, node, graph, after, count, params);
    if (!any_fits(params)) return CUDA_ERROR_OUT_OF_MEMORY;
    return CALL(cuGraphAddNode, node, graph, after, count, params);
}

EXPORT CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count, CUnodeParams *params) {
    PASS_THROUGH(cuGraphAddNode_v2, node, graph, after, edges, count, params);
    if (!any_fits(params)) return CUDA_ERROR_OUT_OF_MEMORY;
    return CALL(cuGraphAddNode_v2, node, graph, after, edges, count, params);
}

/* Instantiation may upload nodes, which takes memory. */
EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, uint64_t flags) {
    PASS_THROUGH(cuGraphInstantiateWithFlags, exec, graph, flags);
    return instantiated(CALL(cuGraphInstantiateWithFlags, exec, graph, flags), graph, exec, flags);
}

static uint64_t flags_of(const void *params) { return params ? *(const uint64_t *)params : 0; } /* the flags are the first field */

EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, void *params) {
    PASS_THROUGH(cuGraphInstantiateWithParams, exec, graph, params);
    return instantiated(CALL(cuGraphInstantiateWithParams, exec, graph, params), graph, exec, flags_of(params));
}

EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, void *params) {
    PASS_THROUGH(cuGraphInstantiateWithParams_ptsz, exec, graph, params);
    return instantiated(CALL(cuGraphInstantiateWithParams_ptsz, exec, graph, params), graph, exec, flags_of(params));
}

/* A graph with automatic free releases the memory of its previous launch first, so a relaunch needs no more memory. */
static bool may_launch(CUgraphExec exec, int *device) {
    *device = -1;
    if (!graphs_allocate()) return true;
    struct record r = {0};
    pthread_mutex_lock(&lock);
    struct record *found = table_find(&needs, (uint64_t)(uintptr_t)exec);
    if (found) r = *found;
    if (found && found->kind == FREES_BEFORE) found->kind = FREES_BEFORE_AND_RAN;
    pthread_mutex_unlock(&lock);
    *device = r.bytes ? r.device : current_device();
    return r.bytes ? graph_charge(r.device, r.bytes, r.kind == FREES_BEFORE_AND_RAN) : room_for(*device, 0);
}

static CUresult launched(CUresult result, int device) {
    if (device >= 0) pools_settle(device);
    return result;
}

#define LAUNCH_GRAPH(name, per_thread)                               \
    int device;                                                      \
    PASS_THROUGH(name, exec, stream);                                \
    if (!may_launch(exec, &device)) return CUDA_ERROR_OUT_OF_MEMORY; \
    gate_launch(stream, per_thread);                                 \
    return launched(CALL(name, exec, stream), device)

EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) { LAUNCH_GRAPH(cuGraphLaunch, false); }
EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) { LAUNCH_GRAPH(cuGraphLaunch_ptsz, true); }

EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device) {
    PASS_THROUGH(cuDeviceGraphMemTrim, device);
    CUresult result = CALL(cuDeviceGraphMemTrim, device);
    pools_settle(device_index(device));
    return result;
}

void graph_forked(void) {
    pthread_mutex_init(&lock, NULL);
    table_clear(&needs);
}
