"""Pods and their specs: `builder` writes a workload's pod, `requests` reads what any pod asks for.

`volumes`, `probes` and `security` write the parts of a pod that their names say. When a pod is created or deleted is
decided in `aliquot.controllers.workloads`.
"""
