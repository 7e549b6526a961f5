"""What-if runs of the scheduler without a server, a store or a clock: `aliquot simulate` and `aliquot replay`.

Both call the planner of the live scheduler. A scenario is one file with a cluster and its workloads (scenario_file.py
reads it, simulation.py runs it, result.py writes the result). export.py writes the live cluster as a scenario.
Traces of many jobs over time are in traces/ and replay/. Nothing here talks to a server: the commands are in cli/.

load_clusters      data of a file -> one SimulatedCluster per scenario, or `Invalid` with every fault
Simulation         plans for a cluster and applies the plan, round by round or step by step
"""

from aliquot.sim.cluster import SimulatedCluster
from aliquot.sim.simulation import Simulation, load_clusters

__all__ = ["SimulatedCluster", "Simulation", "load_clusters"]
