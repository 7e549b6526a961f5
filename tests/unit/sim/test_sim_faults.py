"""An invalid scenario file is reported with every fault, its path and the condition."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from aliquot.errors import Invalid
from aliquot.sim.scenario_file import read_scenarios

GOOD = """
nodes: [{name: n1, gpus: 2}]
departments: [{name: dept}]
projects: [{name: a, department: dept}]
"""

BAD = [
    # fields that replace those of the valid file, and the fault
    ("projects: [{name: a}, {name: b, quota: {gpu: -1}}]", "projects[1].quota.gpu: must be >= 0"),
    ("projects: [{name: a, quota: {gpu: x}}]", "projects[0].quota.gpu: must be a number"),
    ("projects: [{name: a, quota: {gpu: 0.0001}}]", "projects[0].quota.gpu: must have at most three decimals"),
    ("projects: [{name: a, quota: 4}]", "projects[0].quota: must be an object, not 4"),
    ("projects: {a: 1}", "projects: must be a list, not an object"),
    ("projects: [{quota: {gpu: 1}}]", "projects[0].name: is required"),
    ("projects: [{name: ''}]", "projects[0].name: must be 1 to 253 characters long, not 0"),
    (f"projects: [{{name: {'x' * 254}}}]", "projects[0].name: must be 1 to 253 characters long, not 254"),
    ('projects: [{name: "a\\tb"}]', "projects[0].name: must not contain control characters"),
    ("projects: [{name: 7}]", "projects[0].name: must be text, not 7: put it in quotes"),
    ("projects: [{name: a, limits: {}}]", "projects[0].limits: is not a field here"),
    ("projects: [{name: a, overQuota: yes please}]", "projects[0].overQuota: must be true or false"),
    ("projects: [{name: a, overQuotaWeight: -2}]", "projects[0].overQuotaWeight: must be >= 0"),
    ("projects: [{name: a, overQuotaWeight: {gpu: -2}}]", "projects[0].overQuotaWeight.gpu: must be >= 0"),
    ("projects: [{name: a, pools: {default: {}}}]", "projects[0].pools.default: must not be here"),
    ("projects: [{name: a, pools: {h100: {quotas: {}}}}]", "projects[0].pools.h100.quotas: is not a field here"),
    ("projects: [{name: a, department: other}]", "projects[0].department: no department is called 'other'"),
    ("projects: [{name: a, parent: other}]", "projects[0].parent: no project or department is called 'other'"),
    ("projects: [{name: a, parent: b}, {name: b, parent: a}]", "projects[0].parent: forms a cycle"),
    ("projects: [{name: a}, {name: a}]", "projects[1].name: 'a' appears twice"),
    ("projects: [{name: a}, {name: dept}]", "projects[1].name: 'dept' appears twice"),
    ("projects: [{name: a, created: 2026-01-01T00:00:00Z}]", "projects[0].created: is an absolute time"),
    ("now: yesterday", "now: must be a time such as"),
    ("rounds: 0", "rounds: must be >= 1"),
    ("rounds: many", "rounds: must be a whole number, not 'many'"),
    ("teams: []", "teams: is not a field here"),
    ("policy: {spare: both}", "policy.spare: must be quota or weight, not 'both'"),
    ("policy: {steps: [allocate, dance]}", "policy.steps[1]: must be allocate, consolidate"),
    ("policy: {steps: [allocate, allocate]}", "policy.steps[1]: allocate appears twice"),
    ("policy: {placement: {gpu: pack}}", "policy.placement.gpu: must be binpack, spread or least-fragments"),
    ("policy: {placement: {device: least-fragments}}", "policy.placement.device: must be binpack or spread"),
    ("policy: {staleGangGrace: -2}", "policy.staleGangGrace: must be >= 0, or -1 for never"),
    ("policy: {usageWeight: .nan}", "policy.usageWeight: must be a number, not nan"),
    ("nodes: [{name: n1, gpus: -1}]", "nodes[0].gpus: must be >= 0"),
    ("nodes: [{name: n1, gpus: [{index: 0}, {index: 0}]}]", "nodes[0].gpus[1].index: GPU 0 appears twice"),
    ("nodes: [{name: n1, memory: lots}]", "nodes[0].memory: must be an amount such as 512Mi or 4G"),
    ("nodes: [{name: n1, labels: {a: 1}}]", "nodes[0].labels.a: must be text, not 1: put it in quotes"),
    ("nodes: [{name: n1, labels: {a/b: 1}}]", "nodes[0].labels['a/b']: must be text"),
    ("nodes: [{name: n1, taints: [{value: x}]}]", "nodes[0].taints[0].key: is required"),
    ("nodes: [{name: n1, mig: {big: 1}, migStrategy: mixed}]", "nodes[0].mig.big: is not a MIG profile"),
    ("nodes: [{name: n1, mig: {1g.5gb: 1}, migStrategy: none}]", "nodes[0].mig: needs migStrategy single or mixed"),
    ("workloads: [{name: w}]", "workloads[0].project: is required"),
    ("workloads: [{name: w, project: z}]", "workloads[0].project: no project is called 'z'"),
    ("workloads: [{name: w, project: dept}]", "workloads[0].project: no project is called 'dept'"),
    ("workloads: [{name: w, project: a}, {name: w, project: a}]", "workloads[1].name: 'w' appears twice"),
    ("workloads: [{name: w, project: a, type: job}]", "workloads[0].type: must be training, interactive or inference"),
    ("workloads: [{name: w, project: a, request: {gpu: 0.5}}]", "workloads[0].request.gpu: must be a whole number"),
    ("workloads: [{name: w, project: a, request: {gpuFraction: 1.5}}]", "request.gpuFraction: must be > 0 and <= 1"),
    ("workloads: [{name: w, project: a, request: {gpuFraction: 0}}]", "request.gpuFraction: must be > 0 and <= 1"),
    ("workloads: [{name: w, project: a, request: {gpu: 1, gpuFraction: 1}}]", "request: must have one of gpu and"),
    ("workloads: [{name: w, project: a, request: {gpu: 1, devices: 2}}]", "request.devices: only goes with"),
    ("workloads: [{name: w, project: a, replicas: 2, tasks: []}]", "workloads[0].replicas: must not be given together"),
    ("workloads: [{name: w, project: a, replicas: 0}]", "workloads[0].replicas: must be >= 1"),
    (
        "workloads: [{name: w, project: a, tasks: [{state: running}]}]",
        "tasks[0].node: is required: the task is running",
    ),
    ("workloads: [{name: w, project: a, tasks: [{state: running, node: x}]}]", "tasks[0].node: no node is called 'x'"),
    ("workloads: [{name: w, project: a, tasks: [{node: n1}]}]", "tasks[0].node: only goes with state running"),
    ("workloads: [{name: w, project: a, tasks: [{name: t}, {name: t}]}]", "tasks[1].name: 't' appears twice"),
    ("workloads: [{name: w, project: a, tasks: [{subgroup: g}]}]", "tasks[0].subgroup: no subgroup is called 'g'"),
    ("workloads: [{name: w, project: a, tasks: [{state: asleep}]}]", "tasks[0].state: must be pending"),
    ("workloads: [{name: w, project: a, subgroups: [{name: g, parent: h}]}]", "subgroups[0].parent: no subgroup"),
    ("workloads: [{name: w, project: a, topology: {required: rack}}]", "workloads[0].topology.name: no topology"),
    (
        "topology: [zone, rack]\nworkloads: [{name: w, project: a, topology: {required: row}}]",
        "workloads[0].topology.required: must be one of zone, rack, not 'row'",
    ),
    ("workloads: [{name: w, project: a, podAffinity: {labels: {}}}]", "podAffinity.topologyKey: is required"),
    ("steps: [{}]", "steps[0]: must have one of submit, delete"),
    ("steps: [{advance: 1, delete: []}]", "steps[0]: must have one of submit, delete"),
    ("steps: [{advance: -1}]", "steps[0].advance: must be >= 0"),
    ("steps: [{delete: [w]}]", "steps[0].delete[0]: no workload is called 'w' now"),
    ("steps: [{finish: [w]}]", "steps[0].finish[0]: no workload is called 'w' now"),
    ("steps: [{nodes: [{name: n9, ready: false}]}]", "steps[0].nodes[0].name: no node is called 'n9'"),
    ("steps: [{nodes: [{ready: false}]}]", "steps[0].nodes[0].name: is required"),
    ("steps: [{projects: [{name: a, parent: a}]}]", "steps[0].projects[0].parent: forms a cycle"),
    ("steps: [{submit: [{name: w, project: z}]}]", "steps[0].submit[0].project: no project is called 'z'"),
    (
        "steps: [{submit: [{name: w, project: a, tasks: [{state: running, node: n1}]}]}]",
        "steps[0].submit[0].tasks[0].state: must be pending or gated",
    ),
]


def faults(data: Any) -> list[str]:
    with pytest.raises(Invalid) as caught:
        read_scenarios(data)
    return [str(fault) for fault in caught.value.faults]


def good() -> Any:
    return yaml.safe_load(GOOD)


def with_fields(text: str) -> Any:
    """A valid file with some fields replaced; times stay text, as the program reads them."""
    return {**good(), **yaml.safe_load(text.replace("2026-01-01T00:00:00Z", "'2026-01-01T00:00:00Z'"))}


@pytest.mark.parametrize("text, wanted", BAD, ids=[wanted for _, wanted in BAD])
def test_fault(text: str, wanted: str) -> None:
    """Each mistake gives a fault with its path."""
    reported = faults(with_fields(text))
    assert any(wanted in fault for fault in reported), reported


def test_all_faults_at_once() -> None:
    """Invalid values, unknown fields and unknown names are reported together."""
    data = {
        "rounds": 0,
        "nodes": [{"name": "n1", "gpu": 8}],
        "projects": [{"name": "a", "quota": {"gpu": -1}}],
        "workloads": [{"name": "w", "project": "b", "priority": "high"}],
    }
    assert [fault.partition(":")[0] for fault in faults(data)] == [
        "rounds",
        "nodes[0].gpu",
        "projects[0].quota.gpu",
        "workloads[0].priority",
        "workloads[0].project",
    ]


def test_paths_in_a_list_of_scenarios() -> None:
    """In a file with several scenarios, paths begin with the scenario's index."""
    assert faults([good(), {"projects": [{"name": "a"}, {"name": "b", "quota": {"gpu": -1}}]}]) == [
        "[1].projects[1].quota.gpu: must be >= 0"
    ]


@pytest.mark.parametrize("data", [None, 7, "text", [None], [[]], True])
def test_not_a_scenario(data: Any) -> None:
    """Data that is not an object is refused with one line."""
    assert "must be an object" in faults(data)[0]


def test_one_mistake_is_reported_once() -> None:
    """A reference to an entry that has a fault is not another fault."""
    data = {**good(), "projects": [{"name": "a", "quota": 1}], "workloads": [{"name": "w", "project": "a"}]}
    assert faults(data) == ["projects[0].quota: must be an object, not 1"]


def test_name_of_a_deleted_workload_can_be_reused() -> None:
    """A workload that was deleted can be submitted again."""
    step = {"submit": [{"name": "w", "project": "a"}]}
    (scenario,) = read_scenarios({**good(), "steps": [step, {"delete": ["w"]}, step]})
    assert [step.action for step in scenario.steps] == ["submit", "delete", "submit"]
