"""Traces through the scheduler in virtual time.

Replay       plays a trace under one policy
Contender    a policy under a name
figures      what came of it, in numbers
"""

from aliquot.sim.replay.engine import Contender, Replay
from aliquot.sim.replay.figures import figures

__all__ = ["Contender", "Replay", "figures"]
