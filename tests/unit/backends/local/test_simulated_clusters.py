"""Simulated clusters: presets and users' files."""

from __future__ import annotations

from pathlib import Path

import pytest

from aliquot.backends.local import simulated_clusters
from aliquot.errors import Invalid


def described(folder: Path, text: str) -> str:
    file = folder / "cluster.yaml"
    file.write_text(text)
    return str(file)


def test_the_demo_is_two_dgx() -> None:
    """The demo has two DGX-1 with eight V100 each, as in the first tour."""
    nodes = simulated_clusters.load("demo").nodes

    assert [node.name for node in nodes] == ["dgx1-1", "dgx1-2"]
    assert {(d.model, d.memory_mib) for node in nodes for d in node.devices} == {("Tesla V100-SXM2-32GB", 32510)}
    assert [(len(node.devices), node.cpu, node.memory, node.simulated) for node in nodes] == [
        (8, 80_000, 512 << 30, True)
    ] * 2


def test_the_demo_has_its_teams() -> None:
    """The demo's projects have the quotas of the first tour."""
    quotas = {project.metadata.name: project.spec.quota.gpu for project in simulated_clusters.load("demo").projects}

    assert quotas == {"team-a": 4000, "team-b": 2000, "team-c": 2000, "team-d": 8000, "user-agm": 1000}


@pytest.mark.parametrize("name", simulated_clusters.names())
def test_gpu_uuids_are_unique_and_stable(name: str) -> None:
    """Every GPU of a preset has a unique uuid, and the same one at the next start."""
    uuids = [device.uuid for node in simulated_clusters.load(name).nodes for device in node.devices]

    assert len(set(uuids)) == len(uuids)
    assert uuids == [device.uuid for node in simulated_clusters.load(name).nodes for device in node.devices]


def test_other_presets() -> None:
    """A laptop has one GPU; empty has nothing."""
    laptop, empty = simulated_clusters.load("laptop"), simulated_clusters.load("empty")

    assert [len(node.devices) for node in laptop.nodes] == [1]
    assert (empty.nodes, empty.projects) == ((), ())


def test_a_users_file(tmp_path: Path) -> None:
    """A node may have GPUs of several kinds; they are numbered in the order of the file."""
    text = """
      nodes:
        - name: mixed
          cpu: 12.5
          memory: 64Gi
          gpus: [{count: 2, model: A, memoryMiB: 10}, {model: B, memoryMiB: 20}]
      projects:
        one: {quota: {gpu: 0.5}, overQuota: false}
    """

    made = simulated_clusters.load(described(tmp_path, text))

    assert [(d.index, d.model, d.memory_mib) for d in made.nodes[0].devices] == [
        (0, "A", 10),
        (1, "A", 10),
        (2, "B", 20),
    ]
    assert (made.nodes[0].cpu, made.projects[0].spec.quota.gpu, made.projects[0].spec.over_quota) == (
        12_500,
        500,
        False,
    )


@pytest.mark.parametrize(
    "text, fault",
    [
        ("nodes: [{cpu: 4}]", "nodes[0].name: is required"),
        (
            "nodes: [{name: a, gpus: [{model: X, memoryMiB: 1, count: 0}]}]",
            "nodes[0].gpus[0].count: must be at least 1",
        ),
        ("nodes: [{name: a, gpus: [{model: X, memoryMiB: 1, count: 65}]}]", "nodes[0].gpus[0].count: must be at most"),
        ("nodes: [{name: a, gpus: [{model: X}]}]", "nodes[0].gpus[0].memoryMiB: is required"),
        ("nodes: [{name: a}, {name: a}]", "nodes[1].name: appears twice"),
        ("nodes: [{name: Big_One}]", "nodes[0].name: must be lower-case letters"),
        ("nodes: [{name: a, memory: lots}]", "nodes[0].memory: must be an amount"),
        ("nodes: [{name: a, gpu: 3}]", "nodes[0].gpu: unknown field"),
        ("projects: {team-a: {quota: {gpu: many}}}", "projects['team-a'].quota.gpu: must be a number"),
        ("projects: {-x: {}}", "projects['-x']: must be lower-case letters"),
        ("projects: {a: {}, a: {}}", ":1:19: key 'a' appears twice"),
        ("nodes: [", "cluster.yaml:1:9: "),
        ("[]", "must be an object"),
        ("1: 2", "key 1 must be text"),
    ],
)
def test_faults_name_their_position(tmp_path: Path, text: str, fault: str) -> None:
    """Every fault names the file and the position in it."""
    path = described(tmp_path, text)

    with pytest.raises(Invalid) as caught:
        simulated_clusters.load(path)

    assert str(caught.value).startswith(path)
    assert fault in str(caught.value)


def test_all_faults_are_reported_at_once(tmp_path: Path) -> None:
    """A file with two faults gets one error with both."""
    with pytest.raises(Invalid) as caught:
        simulated_clusters.load(described(tmp_path, "nodes: [{name: 1}, {cpu: -1}]"))

    assert len(caught.value.faults) == 3


def test_an_unknown_preset_names_the_known() -> None:
    """The error for an unknown preset lists the known ones."""
    with pytest.raises(Invalid, match="presets: demo, empty, laptop"):
        simulated_clusters.load("dmeo")


def test_a_file_that_is_not_there() -> None:
    """A path is not taken for a preset, and the error says what is wrong with it."""
    with pytest.raises(Invalid, match=r"cannot read \./none\.yaml|cannot read none\.yaml"):
        simulated_clusters.load("./none.yaml")
