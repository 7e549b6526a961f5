"""Run:ai's own custom resources: TrainingWorkload and InteractiveWorkload of `run.ai/v2alpha1`.

fields        the table that maps their fields to fields of a Workload
translation   pure: an object -> the spec of a Workload, its faults, and what is left out
definitions   the CustomResourceDefinitions
controller    keeps a Workload for each object and writes its status back; the entry point
"""
