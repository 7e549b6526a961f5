"""What-if: a cluster and its queue in one file, the scheduler's decisions out. No server, store or clock.

worlds     data of a file -> worlds, checked whole before anything is played
Player     plays one of them through the same `plan()` as the live scheduler
"""

from aliquot.sim.player import Player, worlds
from aliquot.sim.world import World

__all__ = ["Player", "World", "worlds"]
