"""`runai describe node` and `runai list nodes` show GPU sharing, on a platform with the fake driver."""

from __future__ import annotations

import re

from support.gpus.node import PROJECT, Node
from support.pods.agent_harness import needs_root
from support.waiting import wait_until

pytestmark = needs_root


def test_describe_node_shows_the_enforcement(node: Node) -> None:
    """It shows the enforcement, the versions of library and driver, and that no unknown entry point was called."""
    description = node.sh("runai describe node").out

    assert re.search(
        r"GPUSharing +True +Shim +library [0-9.a-z+]+, driver 580\.00\.00: the driver has no limits", description
    )
    assert re.search(r"ShimOutdated +False +NoneUnknown", description)


def test_a_node_shows_its_utilization(node: Node) -> None:
    """The fake driver reports every process as 50% busy: one process on two GPUs makes 25%."""
    node.submit_job("busy")
    program = node.start("busy", "held = cuda(); print('held', flush=True); hold()")
    assert program.read_words() == ["held"]

    wait_until(lambda: " 25% " in node.sh("runai list nodes").out, "25 %")
    program.end()
    wait_until(lambda: " 0% " in node.sh("runai list nodes").out, "0 %")


def test_mps_is_refused_where_it_is_off(node: Node) -> None:
    """A job that asks for MPS does not start, and its message names the setting that allows it."""
    node.submit_job("served", "-g 0.25 --mps", phases=("Pending", "Failed", "Error"))

    wait_until(lambda: "aliquot up --gpu-mps" in node.sh(f"runai describe job served -p {PROJECT}").out, "the setting")
