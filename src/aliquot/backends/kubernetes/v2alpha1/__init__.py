"""Run:ai's own YAML: TrainingWorkload and InteractiveWorkload of `run.ai/v2alpha1`, as workloads of ours.

fields        the table: which field of theirs is which of ours
translation   pure: one object of theirs -> the spec of a workload, what is wrong with it, what is left out
definitions   the custom resources
loop          keeps a workload for each object, and writes back how it fares
"""
