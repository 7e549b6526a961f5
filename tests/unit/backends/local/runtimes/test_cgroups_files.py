"""What is written into control groups, in the kernel's format. The folders are fakes; e2e tests use a real kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from aliquot.backends.local.runtimes.cgroups import Cgroup, Cgroups, killed_for_memory, remove

MIB = 1 << 20


def version_2(root: Path, controllers: str = "cpuset cpu io memory pids") -> Cgroups:
    for folder in (root, root / "aliquot"):
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.controllers").write_text(controllers + "\n")
        (folder / "cgroup.subtree_control").touch()
    return Cgroups(root, root)


def version_1(root: Path, *controllers: str) -> Cgroups:
    for controller in controllers:
        (root / controller).mkdir()
    return Cgroups(root)


def test_version_2(tmp_path: Path) -> None:
    """One group with all limits; the CPU request becomes a weight by Kubernetes' formula."""
    groups = version_2(tmp_path).groups("u", 64 * MIB, 1500, 1000)
    limits = {"memory.max": "67108864", "cpu.max": "150000 100000", "cpu.weight": "39"}
    assert groups == [Cgroup(tmp_path / "aliquot" / "u", limits)]
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory +cpu"
    assert (tmp_path / "aliquot" / "cgroup.subtree_control").read_text() == "+memory +cpu"


def test_version_1(tmp_path: Path) -> None:
    """A group in the tree of each controller."""
    assert version_1(tmp_path, "memory", "cpu").groups("u", 64 * MIB, 1500, 1000) == [
        Cgroup(tmp_path / "memory" / "aliquot" / "u", {"memory.limit_in_bytes": "67108864"}),
        Cgroup(tmp_path / "cpu" / "aliquot" / "u", {"cpu.cfs_quota_us": "150000", "cpu.shares": "1024"}),
    ]


def test_no_limits_no_group(tmp_path: Path) -> None:
    """A pod without limits gets no group."""
    assert version_2(tmp_path).groups("u", None, None, None) == []


@pytest.mark.parametrize("weight, wanted", [(0, "1"), (1, "1"), (10_000_000, "10000")])
def test_weights_stay_in_range(tmp_path: Path, weight: int, wanted: str) -> None:
    """However small or large the CPU request is, the weight is one that the kernel accepts."""
    (group,) = version_2(tmp_path).groups("u", None, None, weight)
    assert group.limits == {"cpu.weight": wanted}


def test_tiny_cpu_limit(tmp_path: Path) -> None:
    """The kernel accepts no limit below a hundredth of a core."""
    (group,) = version_2(tmp_path).groups("u", None, 1, None)
    assert group.limits == {"cpu.max": "1000 100000"}


def test_all_hold(tmp_path: Path) -> None:
    assert version_2(tmp_path).summary == "memory and CPU limits hold"


@pytest.mark.parametrize("version", [1, 2])
def test_one_of_two(tmp_path: Path, version: int) -> None:
    """Where only one controller exists, its limit is enforced and the summary says that the other is missing."""
    cgroups = version_1(tmp_path, "memory") if version == 1 else version_2(tmp_path, "memory")
    wanted = "memory limits hold, CPU limits are not enforced, because their controller is missing"
    assert cgroups.summary == wanted
    (group,) = cgroups.groups("u", MIB, 500, 500)
    assert [name.partition(".")[0] for name in group.limits] == ["memory"]


def test_none(tmp_path: Path) -> None:
    """Without control groups pods run all the same, and the summary says why they have no limits."""
    cgroups = Cgroups(tmp_path / "nothing")
    assert cgroups.groups("u", MIB, 500, 500) == []
    assert cgroups.summary == "memory and CPU limits are not enforced, because the machine has no control groups"


@pytest.mark.parametrize("name", ["memory.events", "memory.oom_control"])
@pytest.mark.parametrize("count", [0, 1, 10])
def test_ended_for_memory(tmp_path: Path, name: str, count: int) -> None:
    """Both versions count the processes that the kernel killed for lack of memory."""
    (tmp_path / name).write_text(f"low 0\noom 12\noom_kill {count}\noom_group_kill 0\n")
    assert killed_for_memory([tmp_path / "gone", tmp_path]) is (count > 0)


def test_removing_a_group_twice(tmp_path: Path) -> None:
    """Removing a group twice is no error."""
    (tmp_path / "u").mkdir()
    remove([tmp_path / "u", tmp_path / "never"])
    assert not (tmp_path / "u").exists()
