"""Which nodes and devices tasks get, and the state of a node pool during a cycle.

`gang.Placer` places the tasks that start together. `pool_state` holds the nodes with what is free on them, and can roll
back what was tried. `fit` says which nodes a task may use at all. Which job is next is decided in `queues`, which tasks
are evicted in `preemption`.
"""
