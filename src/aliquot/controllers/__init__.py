"""Controllers: each watches a few kinds and brings the objects to the state that their spec asks for.

One module per subject: workloads, projects, usage, events, garbage collection, and what the first start creates
(`bootstrap`). `runtime` holds the workqueue and leader election. Placement belongs to `aliquot.scheduler`, and whatever
runs pods to `aliquot.backends`. `aliquot.serve` starts all of them.
"""
