"""The fake driver counts memory like a real one."""

from __future__ import annotations

import json
import subprocess
import sys

from native.rig import HERE, Rig


def test_the_fake_driver_counts_like_an_h200(rig: Rig) -> None:
    """After every kind of request the fake driver holds the bytes that were recorded on an H200 with driver 580."""
    recorded = json.loads((HERE / "h200.json").read_text())
    environment = rig.environment(limit=None, preload=False)
    output = subprocess.check_output([sys.executable, HERE / "accounting.py"], env=environment, timeout=60)

    assert json.loads(output) == recorded
