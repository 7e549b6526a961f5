"""What a platform with GPUs says about how they are shared, on the stand-in driver, through its own commands."""

from __future__ import annotations

import re

from support.gpus.node import PROJECT, Node
from support.pods.world import needs_root
from support.seeds.platform import until

pytestmark = needs_root


def test_describe_node_says_who_keeps_the_limits(node: Node) -> None:
    """The backend, the library's version and the driver's; and that nothing unknown was met."""
    said = node.sh("runai describe node").out

    assert re.search(r"GPUSharing +True +Shim +library [0-9.a-z+]+, driver 580\.00\.00: the driver has no limits", said)
    assert re.search(r"ShimOutdated +False +NoneUnknown", said)


def test_a_node_says_how_busy_it_is(node: Node) -> None:
    """The stand-in has every process busy for half of the time: one on two cards makes a quarter."""
    node.begin("busy")
    program = node.start("busy", "held = cuda(); print('held', flush=True); hold()")
    assert program.says() == ["held"]

    until(lambda: " 25% " in node.sh("runai list nodes").out, "25 %")
    program.end()
    until(lambda: " 0% " in node.sh("runai list nodes").out, "0 %")


def test_mps_is_refused_where_it_is_off(node: Node) -> None:
    """A job that asks for it does not start, and finds out which setting would let it."""
    node.begin("served", "-g 0.25 --mps", phases=("Pending", "Failed", "Error"))

    until(lambda: "aliquot up --gpu-mps" in node.sh(f"runai describe job served -p {PROJECT}").out, "the setting")
