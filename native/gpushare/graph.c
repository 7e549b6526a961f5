/* Graphs that allocate. A node takes nothing until its graph is launched; then the driver reserves from a pool of the
 * device that only an attribute tells the size of. So a node that can never fit is refused when it is added, a launch
 * when its largest node does not fit (nodes may use each other's memory, so their sum would refuse too much), and
 * after a launch what was reserved is counted. Programs whose
 * graphs do not allocate pay one load and one branch per launch. */
#include "graph.h"

#include <pthread.h>

#include "account.h"
#include "gate.h"
#include "pool.h"
#include "table.h"

static struct table needs; /* of graphs and their instances: the largest node */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t need_of(const void *graph, int *device) {
    pthread_mutex_lock(&lock);
    struct record *found = table_find(&needs, (uint64_t)(uintptr_t)graph);
    uint64_t bytes = found ? found->bytes : 0;
    if (found) *device = found->device;
    pthread_mutex_unlock(&lock);
    return bytes;
}

static void set_need(const void *graph, int device, uint64_t bytes) {
    pthread_mutex_lock(&lock);
    struct record gone;
    if (bytes) table_put(&needs, (struct record){.key = (uint64_t)(uintptr_t)graph, .device = device, .bytes = bytes});
    else table_take(&needs, (uint64_t)(uintptr_t)graph, &gone); /* the address is another graph's now */
    pthread_mutex_unlock(&lock);
}

static CUresult instantiated(CUresult result, CUgraph graph, CUgraphExec *exec) {
    int device = -1;
    mark_dirty();
    if (result || !graphs_allocate()) return result;
    uint64_t bytes = need_of(graph, &device);
    set_need(*exec, device, bytes);
    return result;
}

static bool node_fits(CUgraph graph, const CUallocNode *node) {
    if (!node || node->poolProps.location.type != CU_LOCATION_DEVICE) return true;
    int device = device_index(node->poolProps.location.id), same;
    if (!room_for(device, node->bytesize)) return false;
    graph_memory_used();
    if (node->bytesize > need_of(graph, &same)) set_need(graph, device, node->bytesize);
    return true;
}

EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUallocNode *params) {
    PASS_THROUGH(cuGraphAddMemAllocNode, node, graph, after, count, params);
    if (!node_fits(graph, params)) return CUDA_ERROR_OUT_OF_MEMORY;
    return CALL(cuGraphAddMemAllocNode, node, graph, after, count, params);
}

static bool any_fits(CUgraph graph, const CUnodeParams *params) {
    return !params || params->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || node_fits(graph, &params->u.alloc);
}

EXPORT CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUnodeParams *params) {
    PASS_THROUGH(cuGraphAddNode, node, graph, after, count, params);
    if (!any_fits(graph, params)) return CUDA_ERROR_OUT_OF_MEMORY;
    return CALL(cuGraphAddNode, node, graph, after, count, params);
}

EXPORT CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count, CUnodeParams *params) {
    PASS_THROUGH(cuGraphAddNode_v2, node, graph, after, edges, count, params);
    if (!any_fits(graph, params)) return CUDA_ERROR_OUT_OF_MEMORY;
    return CALL(cuGraphAddNode_v2, node, graph, after, edges, count, params);
}

/* Instantiation may upload nodes and take memory for them. */
EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, uint64_t flags) {
    PASS_THROUGH(cuGraphInstantiateWithFlags, exec, graph, flags);
    return instantiated(CALL(cuGraphInstantiateWithFlags, exec, graph, flags), graph, exec);
}

EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, void *params) {
    PASS_THROUGH(cuGraphInstantiateWithParams, exec, graph, params);
    return instantiated(CALL(cuGraphInstantiateWithParams, exec, graph, params), graph, exec);
}

EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, void *params) {
    PASS_THROUGH(cuGraphInstantiateWithParams_ptsz, exec, graph, params);
    return instantiated(CALL(cuGraphInstantiateWithParams_ptsz, exec, graph, params), graph, exec);
}

static bool may_launch(CUgraphExec exec) {
    if (!graphs_allocate()) return true;
    int device = current_device();
    uint64_t bytes = need_of(exec, &device);
    return bytes ? graph_charge(device, bytes) : room_for(device, 0);
}

static CUresult launched(CUresult result) {
    if (graphs_allocate()) pools_settle(current_device());
    return result;
}

EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    PASS_THROUGH(cuGraphLaunch, exec, stream);
    if (!may_launch(exec)) return CUDA_ERROR_OUT_OF_MEMORY;
    gate_launch(stream, false);
    return launched(CALL(cuGraphLaunch, exec, stream));
}

EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
    PASS_THROUGH(cuGraphLaunch_ptsz, exec, stream);
    if (!may_launch(exec)) return CUDA_ERROR_OUT_OF_MEMORY;
    gate_launch(stream, true);
    return launched(CALL(cuGraphLaunch_ptsz, exec, stream));
}

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
