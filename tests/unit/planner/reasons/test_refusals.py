"""Why jobs wait: every refusal code in the smallest cluster that produces it, and the facts of a refusal."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import aliquot.planner
from aliquot.labels import GPU_WORKER
from aliquot.planner import (
    Device,
    Node,
    NodeSelectorRequirement,
    PodAffinityTerm,
    Policy,
    Request,
    Taint,
    Task,
    TaskState,
    Verdict,
)
from support.planner import World, cluster, gpus, quota, request

_ALL = Policy(hold_after=None)
NOT_NOW, NEVER = Verdict.NOT_NOW, Verdict.NEVER
A_DISK = NodeSelectorRequirement("disk", "In", ("fast",))
PAGE = Path(__file__).parents[4] / "docs/scheduler.md"


def one_node(count: int = 2, own: float = 8, policy: Policy = _ALL, **more: Any) -> World:
    return cluster([gpus(count, "n1", **more)], {"a": quota(own), "b": quota(0)}, policy=policy)


def together() -> World:
    return one_node().running("x", "n1", [0]).pending("j", gpu=1, count=2)


def neighbours() -> World:
    pod_anti_affinity = PodAffinityTerm((("app", "x"),), "rack")
    world = one_node(labels={"rack": "r"}).running("x", "n1", [0], labels={"app": "x"})
    return world.pending("j", gpu=1, pod_anti_affinity=pod_anti_affinity)


def slices() -> World:
    node = Node("n1", (Device(0, 5000, profile="1g.5gb"),), 80_000, 1 << 40, mig="mixed")
    return cluster([node], {"a": quota(8)}).pending("j", gpu=1)


def claim_missing() -> World:
    world = one_node().pending("j", gpu=1, claims=("data",))
    world.claims = frozenset()
    return world


def incomplete() -> World:
    return one_node().job(
        "j", "a", Task("j-0-0", request(1)), Task("j-1-0", request(1), TaskState.GATED), min_available=2
    )


def not_enough_free() -> World:
    return one_node().running("x", "n1", [0], preemptible=False).pending("j", gpu=2)


def not_preemptible() -> World:
    world = one_node(1, policy=Policy(victims="newest", hold_after=None)).running("x", "n1", [0])
    return world.pending("j", gpu=1, preemptible=False)


def over_fair_share() -> World:
    return one_node(2, 0).running("x", "n1", [0, 1], gpu=2).pending("j", "b", gpu=2)


def nothing_to_reclaim() -> World:
    world = cluster([gpus(2, "n1")], {"a": quota(2), "b": quota(2)})
    return world.running("x", "n1", [0, 1], gpu=2).pending("j", "b", gpu=1)


def nothing_to_preempt() -> World:
    world = one_node().running("x", "n1", [0], preemptible=False, priority=100).running("y", "n1", [1], priority=10)
    return world.pending("j", gpu=2)


def preemption_delay() -> World:
    world = one_node(1).running("x", "n1", [0], "b")
    return world.pending("j", gpu=1, created=world.now - 10, preemption_delay=60)


def no_arrangement() -> World:
    """Each node runs a nonpreemptible job beside a preemptible one."""
    world = cluster([gpus(2, "n1"), gpus(2, "n2")], {"a": quota(2), "b": quota(2)})
    world.running("f1", "n1", [0], "b", preemptible=False).running("f2", "n2", [0], "b", preemptible=False)
    return world.running("x", "n1", [1], "b").running("y", "n2", [1], "b").pending("j", gpu=2)


Made = Callable[[], World]
# (code, step, verdict, a cluster in which job j is refused with it)
CASES: list[tuple[str, str, Verdict, Made]] = [
    ("no-project", "allocate", NEVER, lambda: one_node().pending("j", "nobody", gpu=1)),
    ("no-nodes", "allocate", NEVER, lambda: cluster([], {"a": quota(8)}).pending("j", gpu=1)),
    ("claim-missing", "allocate", NOT_NOW, claim_missing),
    ("cannot-give", "allocate", NEVER, lambda: one_node().pending("j", gpu=1, hindrance="it wants the moon")),
    ("incomplete", "allocate", NOT_NOW, incomplete),
    ("over-limit", "allocate", NEVER, lambda: cluster([gpus(2)], {"a": quota(0, limit=1)}).pending("j", gpu=2)),
    ("over-quota", "allocate", NEVER, lambda: one_node(2, 1).pending("j", gpu=2, preemptible=False)),
    ("enough-gpu", "allocate", NOT_NOW, lambda: one_node(1).running("x", "n1", [0]).pending("j", gpu=1)),
    ("enough-cpu", "allocate", NOT_NOW, lambda: one_node().pending("i", cpu=80_000).pending("j", cpu=1)),
    ("enough-memory", "allocate", NOT_NOW, lambda: one_node().pending("i", memory=512 << 30).pending("j", memory=1)),
    ("enough-pods", "allocate", NOT_NOW, lambda: one_node(pods=1).pending("i", gpu=1).pending("j", gpu=1)),
    ("together", "allocate", NOT_NOW, together),
    ("neighbours", "allocate", NOT_NOW, neighbours),
    ("too-large", "allocate", NEVER, lambda: one_node(2).pending("j", gpu=3)),
    ("node-selector", "allocate", NEVER, lambda: one_node().pending("j", gpu=1, selector={"disk": "fast"})),
    ("node-affinity", "allocate", NEVER, lambda: one_node().pending("j", gpu=1, affinity=(((A_DISK,),),))),
    ("node-type", "allocate", NEVER, lambda: one_node().pending("j", gpu=1, node_types=("dgx",))),
    ("node-role", "allocate", NEVER, lambda: one_node(labels={GPU_WORKER: ""}).pending("j", cpu=1)),
    ("taint", "allocate", NEVER, lambda: one_node(taints=(Taint("keep", "out"),)).pending("j", gpu=1)),
    ("mig", "allocate", NEVER, slices),
    ("not-ready", "allocate", NOT_NOW, lambda: one_node(ready=False).pending("j", gpu=1)),
    ("not-enough-free", "consolidate", NOT_NOW, not_enough_free),
    ("not-preemptible", "consolidate", NEVER, not_preemptible),
    ("over-fair-share", "reclaim", NOT_NOW, over_fair_share),
    ("nothing-to-reclaim", "reclaim", NOT_NOW, nothing_to_reclaim),
    ("no-lower-priority", "preempt", NOT_NOW, lambda: one_node(1).running("x", "n1", [0]).pending("j", gpu=1)),
    ("nothing-to-preempt", "preempt", NOT_NOW, nothing_to_preempt),
    ("preemption-delay", "consolidate", NOT_NOW, preemption_delay),
    ("no-arrangement", "reclaim", NOT_NOW, no_arrangement),
    (
        "kept",
        "allocate",
        NOT_NOW,
        lambda: one_node(policy=Policy(hold_after=900)).running("x", "n1", [0]).pending("j", gpu=2),
    ),
    ("not-tried", "allocate", NOT_NOW, lambda: one_node(policy=Policy(steps=("stale-gang",))).pending("j", gpu=1)),
]
# Reported by `aliquot simulate` for tasks that no plan considered.
SIMULATED = {"gated", "evicted", "not-considered"}


@pytest.mark.parametrize(("code", "step", "verdict", "made"), CASES, ids=[code for code, *_ in CASES])
def test_every_code(code: str, step: str, verdict: Verdict, made: Made) -> None:
    """The job waits, and the step that refused it reports this code."""
    world = made()
    assert "j" not in world.started()
    refusal = next(refusal for refusal in world.plan().refusals["j"] if refusal.code == code)
    assert (refusal.step, refusal.verdict) == (step, verdict)
    assert re.match(r"\S.*\S$", refusal.text)


def codes_in_the_source() -> set[str]:
    """First arguments of `Refusal`, and what the functions return that name a reason."""
    codes: set[str] = set()
    for path in Path(aliquot.planner.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Refusal":
                codes |= _texts(node.args[:1])
            elif isinstance(node, ast.FunctionDef) and node.name in ("precheck", "_shortage"):
                returned = [child.value for child in ast.walk(node) if isinstance(child, ast.Return) and child.value]
                codes |= _texts([value.elts[0] if isinstance(value, ast.Tuple) else value for value in returned])
    return {text for text in codes if re.fullmatch(r"[a-z]+(-[a-z]+)*", text)} - {"quota"}


def _texts(nodes: list[ast.expr]) -> set[str]:
    parts = [part for node in nodes for part in ((node.body, node.orelse) if isinstance(node, ast.IfExp) else (node,))]
    return {part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)}


def test_every_code_has_a_case() -> None:
    """A code that is added to the planner needs a case here."""
    assert codes_in_the_source() - {code for code, *_ in CASES} == set()


def test_every_code_is_explained() -> None:
    """The table in docs/scheduler.md has exactly the codes that exist."""
    table = PAGE.read_text().partition("| code | step |")[2].partition("\n\n")[0]
    documented = {code for line in table.splitlines() for code in re.findall(r"`([a-z-]+)`", line.split("|")[1:2][0])}
    assert documented == {code for code, *_ in CASES} | SIMULATED


def test_facts_of_a_full_cluster() -> None:
    """The nearest node, what is missing there, and the jobs that hold it."""
    world = cluster([gpus(4, "n1"), gpus(4, "n2")], {"a": quota(8)})
    world.running("x", "n1", [0, 1, 2, 3], gpu=4).running("y", "n2", [0, 1], gpu=2).pending("j", gpu=3)
    reason = world.plan().refusals["j"][0]
    assert (reason.node, reason.nodes, reason.missing, reason.holders) == ("n2", 2, (1000, 0, 0), ("y",))


def test_one_refusal_for_each_step() -> None:
    """A job that no step could place has a refusal of each step."""
    world = one_node(1).running("x", "n1", [0]).pending("j", gpu=1)
    assert [reason.step for reason in world.plan().refusals["j"]] == ["allocate", "consolidate", "reclaim", "preempt"]


def test_same_code_in_two_steps() -> None:
    """Two steps that fail for the same reason are both reported, although equal sentences are reported once."""
    world = cluster([gpus(2, f"n{i}") for i in range(4)], {"a": quota(4), "b": quota(0), "c": quota(4)})
    for i, queue in enumerate("aabb"):
        world.running(f"fixed{i}", f"n{i}", [0], "c", preemptible=False).running(f"x{i}", f"n{i}", [1], queue)
    refusals = world.pending("j", gpu=2, priority=75).plan().refusals["j"]
    assert [refusal.step for refusal in refusals if refusal.code == "no-arrangement"] == ["reclaim", "preempt"]


def test_only_the_steps_of_the_policy() -> None:
    """A step that the policy leaves out reports nothing."""
    world = one_node(1).running("x", "n1", [0]).pending("j", gpu=1)
    world.policy = Policy(steps=("allocate",), hold_after=None)
    assert [reason.step for reason in world.plan().refusals["j"]] == ["allocate"]


def test_end_of_a_delay() -> None:
    """The refusal for a delay has the time at which the delay ends."""
    world = preemption_delay()
    until = {reason.until for reason in world.plan().refusals["j"] if reason.code == "preemption-delay"}
    assert until == {world.now + 50}


def test_job_that_starts_is_not_refused() -> None:
    """A job that is placed has no refusal, although an equal job has one."""
    world = one_node(1).pending("i", gpu=1).pending("j", gpu=1)
    assert set(world.plan().refusals) == {"j"}


@pytest.mark.parametrize(
    ("need", "text"),
    [
        (request(3), "no node has 3 GPUs; the only node has 2"),
        (request(mib=90_000), "no node can provide 90000 MiB of GPU memory: 1 node with no GPU of 90000 MiB or more"),
        (
            Request(devices=1, milli=1000, mig=(("1g.5gb", 1),)),
            "no node can provide 1 × 1g.5gb: 1 node without MIG slices",
        ),
    ],
)
def test_sentences(need: Request, text: str) -> None:
    """A sentence names the request and what the nodes have instead."""
    world = one_node(2).job("j", "a", replace(Task("j-0-0", need)))
    assert world.plan().refusals["j"][0].text == text


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ((8, 8), "no node has 9 GPUs; the largest of the 2 nodes have 8 each"),
        ((8, 4), "no node has 9 GPUs; the largest of the 2 nodes has 8"),
        ((0, 0), "no node has 9 GPUs; none of the 2 nodes has a GPU"),
    ],
)
def test_larger_than_every_node(sizes: tuple[int, ...], text: str) -> None:
    """A request for more GPUs than any node has is compared with the largest nodes."""
    nodes = [gpus(count, f"n{number}") for number, count in enumerate(sizes)]
    world = cluster(nodes, {"a": quota(9)}).pending("j", gpu=9)
    assert [refusal.text for refusal in world.plan().refusals["j"]] == [text]
