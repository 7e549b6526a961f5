"""The live scheduler: it watches the store, asks the planner for a plan and carries the plan out.

`loop.Scheduler` is the entry point. `cache` keeps the planner's input up to date from informer events, `binder` carries
out bindings and evictions, and `refusal_writer` writes why jobs wait. `explain/` answers questions about the last plan.

No scheduling rule belongs here: those are in `aliquot.planner`. What differs between back ends (volumes, pod groups,
placeholder pods, how a pod is bound) comes in through `scheduling_context` and `binder`.
"""
