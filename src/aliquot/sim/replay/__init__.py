"""Replays a trace of jobs through the planner in virtual time, for `aliquot replay`.

The trace formats are in sim/traces, the command and its table in cli/replay.py.

Replay         runs one trace under one policy (engine.py)
ReplayPolicy   a policy and its name; policies.py makes them
figures        the outcome of a replay in numbers; chart.py draws it
"""

from aliquot.sim.replay.engine import Replay, ReplayPolicy
from aliquot.sim.replay.figures import figures

__all__ = ["Replay", "ReplayPolicy", "figures"]
