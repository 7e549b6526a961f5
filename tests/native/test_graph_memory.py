"""Graphs that allocate are charged exactly the memory that the driver reserves, however often they run."""

from __future__ import annotations

import pytest

from native.rig import CONTEXT, Rig

# builds graphs from steps: a positive number allocates that many MiB, -n frees the n-th allocation
GRAPH = """
cuda, ledger, nvml = Cuda(), Ledger(os.environ["GPUSHARE_LEDGER"]), Nvml()
device = nvml.device(cuda.uuid())
class Graph:
    def __init__(self, *steps, flags=0):
        self.graph, self.run, self.pointers = ptr(), ptr(), []
        cuda.call("cuGraphCreate", c.byref(self.graph), 0)
        for step in steps:
            node = ptr()
            if step > 0:
                params = AllocNode(pool=PoolProps(type=1, location=Location(1, 0)), bytes=step * MIB)
                cuda.call("cuGraphAddMemAllocNode", c.byref(node), self.graph, None, size_t(0), c.byref(params))
                self.pointers.append(params.pointer)
            else:
                at = u64(self.pointers[-step - 1])
                cuda.call("cuGraphAddMemFreeNode", c.byref(node), self.graph, None, size_t(0), at)
        cuda.call("cuGraphInstantiateWithFlags", c.byref(self.run), self.graph, u64(flags))
    def launch(self):
        return cuda.status("cuGraphLaunch", self.run, None)
def held():
    "MiB in the ledger without the context; asserts that the driver has the same total"
    total = ledger.total()
    assert total == nvml.self_bytes(device), (total, nvml.self_bytes(device))
    return total // MIB - 518
"""


def test_several_nodes_add_up(rig: Rig) -> None:
    """A graph with three simultaneous allocations is charged for all three and refused when they do not fit."""
    output = rig.python(
        GRAPH
        + """
print(Graph(100, 200, 300).launch(), held())
print(Graph(400, 400, 400).launch(), held())
""",
        limit=CONTEXT + 1500,
    )
    assert output == ["0", "608", "2", "608"]


def test_memory_freed_in_a_graph_is_reused(rig: Rig) -> None:
    """Memory freed inside a graph is reused by the next node: two times 600 MiB fit into 800."""
    output = rig.python(GRAPH + "print(Graph(600, -1, 600, -2).launch(), held())", limit=CONTEXT + 800)
    assert output == ["0", "608"]


def test_a_second_launch_is_not_charged_again(rig: Rig) -> None:
    """A graph that frees its memory needs no more at its second launch; after a trim nothing is charged."""
    output = rig.python(
        GRAPH
        + """
graph = Graph(600, -1)
print(graph.launch(), graph.launch(), held())
cuda.call("cuDeviceGraphMemTrim", 0)
print(held())
""",
        limit=CONTEXT + 800,
    )
    assert output == ["0", "0", "608", "0"]


def test_graphs_share_freed_memory(rig: Rig) -> None:
    """Memory that one graph has freed is reused by another graph."""
    output = rig.python(
        GRAPH + "print(Graph(600, -1).launch(), Graph(500, -1).launch(), held())",
        limit=CONTEXT + 800,
    )
    assert output == ["0", "0", "608"]


def test_automatic_free_at_the_next_launch(rig: Rig) -> None:
    """A graph that frees the memory of its previous launch can be launched repeatedly without growing."""
    output = rig.python(
        GRAPH + "graph = Graph(600, flags=1)\nprint(*(graph.launch() for _ in range(3)), held())",
        limit=CONTEXT + 800,
    )
    assert output == ["0", "0", "0", "608"]


def test_a_graph_does_not_trim_its_own_reserve(rig: Rig) -> None:
    """Trimming a graph's own reserve does not free memory for that graph: its launch is refused."""
    output = rig.python(
        GRAPH
        + """
small, large = Graph(600, -1), Graph(620, -1)
small.launch()
cuda.alloc(380 * MIB)
print(held(), large.launch(), held())
""",
        limit=CONTEXT + 990,
    )
    assert output == ["988", "2", "380"]


@pytest.mark.parametrize("limit,code,after", [(1300, "0", "1216"), (1100, "2", "0")])
def test_captured_allocations_count(rig: Rig, limit: int, code: str, after: str) -> None:
    """Allocations captured from a stream are charged like nodes added explicitly."""
    output = rig.python(
        GRAPH
        + """
cuda.call("cuStreamBeginCapture_v2", None, 0)
first, second, graph, run = u64(), u64(), ptr(), ptr()
for p in (first, second):
    cuda.call("cuMemAllocAsync", c.byref(p), size_t(600 * MIB), None)
cuda.call("cuStreamEndCapture", None, c.byref(graph))
cuda.call("cuGraphInstantiateWithFlags", c.byref(run), graph, u64(0))
print(held(), cuda.status("cuGraphLaunch", run, None), held())
""",
        limit=CONTEXT + limit,
    )
    assert output == ["0", code, after]
