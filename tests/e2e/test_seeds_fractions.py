"""Fractions of a GPU, as the documents show them: `nvidia-smi` through `runai bash` and `runai exec`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aliquot.labels import DEVICES
from support.seeds.platform import PREFIX, Platform

pytestmark = pytest.mark.xdist_group("seeds")
IDLE = "-i ubuntu --interactive --command sleep --args infinity"
TRAIN = IDLE.replace(" --interactive", "")
QUERY = "nvidia-smi --query-gpu=index,name,memory.total --format=csv,noheader"


@pytest.fixture
def jobs(demo: Platform) -> Iterator[list[str]]:
    """A list for names of jobs of team-d, which are deleted after the test."""
    names: list[str] = []
    yield names
    for name in names:
        demo.sh(f"runai delete {name} -p team-d")
    for name in names:
        demo.wait_until_gone(name, "team-d")


@pytest.fixture
def platform_with_gpus(tmp_path: Path) -> Iterator[Callable[..., Platform]]:
    """Starts a platform with simulated GPUs of a model, from this environment."""
    platforms: list[Platform] = []

    def up(model: str, mib: int, count: int = 1) -> Platform:
        preset = tmp_path / "cards.yaml"
        gpus = ", ".join([f"{{model: {model}, memoryMiB: {mib}}}"] * count)
        node = f"{{name: node-1, cpu: 16, memory: 32Gi, gpus: [{gpus}]}}"
        preset.write_text(f"nodes: [{node}]\nprojects: {{team-d: {{quota: {{gpu: {count}}}}}}}\n")
        platforms.append(Platform(Path(sys.executable).parent, tmp_path / "platform", "--simulate", str(preset)).up())
        return platforms[0]

    yield up
    for platform in platforms:
        platform.down()


def gpu_of(platform: Platform, job: str) -> tuple[str, Any]:
    """The node and the index of the GPU that a job shares."""
    pod = platform.get(f"{PREFIX}/namespaces/runai-team-d/pods/{job}-0-0")
    (share,) = json.loads(pod["metadata"]["annotations"][DEVICES])
    return pod["spec"]["nodeName"], share["index"]


def test_half_a_gpu(demo: Platform, jobs: list[str]) -> None:
    """F1: in a job with half of a V100 `nvidia-smi` shows one GPU, number 0, with 16255 MiB, as simulated."""
    jobs.append("frac05")
    demo.submit("frac05", "team-d", f"-g 0.5 {IDLE}")

    done = demo.sh("runai bash frac05 -p team-d", "nvidia-smi\nexit\n")

    assert done.status == 0, done
    assert re.search(r"^\|   0  Tesla V100-SXM2-32GB +On", done.out, re.MULTILINE), done.out
    assert "0MiB / 16255MiB" in done.out
    assert len(re.findall(r"MiB / ", done.out)) == 1
    assert "simulated" in done.out


def test_nvidia_smi_formats(demo: Platform, jobs: list[str]) -> None:
    """`nvidia-smi` prints lists, CSV and reports; a job without a GPU sees none."""
    jobs += ["frac03", "none"]
    demo.submit("frac03", "team-d", f"-g 0.3 {IDLE}")
    demo.submit("none", "team-d", IDLE)

    listed = demo.sh("runai exec frac03 -p team-d -- nvidia-smi -L").out
    assert re.fullmatch(r"GPU 0: Tesla V100-SXM2-32GB \(UUID: GPU-sim-dgx1-\d-\d\)\n", listed), listed
    assert demo.sh(f"runai exec frac03 -p team-d -- {QUERY}").out == "0, Tesla V100-SXM2-32GB, 9753 MiB\n"
    assert re.search(r"Total +: 9753 MiB", demo.sh("runai exec frac03 -p team-d -- nvidia-smi -q -d MEMORY").out)
    assert demo.sh("runai exec none -p team-d -- nvidia-smi").out == "No devices were found\n"


def test_fraction_with_a_limit(demo: Platform, jobs: list[str]) -> None:
    """F12: a job with request 0.25 and limit 0.8 counts as 0.25, and sees 0.8 of the GPU."""
    jobs.append("burst")
    demo.submit("burst", "team-d", f"-g 0.25 --gpu-portion-limit 0.8 {IDLE}")

    assert demo.sh(f"runai exec burst -p team-d -- {QUERY}").out.endswith("26008 MiB\n")
    assert re.search(r"^ALLOCATED GPUS: 0\.25$", demo.sh("runai describe job burst -p team-d").out, re.MULTILINE)


def test_eight_on_one(platform_with_gpus: Callable[..., Platform]) -> None:
    """F7, F8: eight jobs of 0.125 share one GPU, each with an eighth of its memory; the ninth gets another GPU."""
    platform = platform_with_gpus("Tesla V100-SXM2-32GB", 32510, 2)
    jobs = [f"eighth{index}" for index in range(9)]
    for job in jobs:
        platform.submit(job, "team-d", f"-g 0.125 {IDLE}")

    gpus = [gpu_of(platform, job) for job in jobs]

    assert len(set(gpus[:8])) == 1
    assert gpus[8] not in gpus[:8]
    for job in (jobs[0], jobs[7]):
        assert platform.sh(f"runai exec {job} -p team-d -- {QUERY}").out == "0, Tesla V100-SXM2-32GB, 4063 MiB\n"


def test_fractions_of_an_a10(platform_with_gpus: Callable[..., Platform]) -> None:
    """F3, F4, F7, F11: 0.3, 0.5 and 0.2 fill an A10, which has no MIG, exactly; another 0.1 is pending."""
    platform = platform_with_gpus("NVIDIA A10", 23028)
    for name, fraction, mib in (("train", "0.3", 6908), ("half", "0.5", 11514), ("fifth", "0.2", 4605)):
        platform.submit(name, "team-d", f"-g {fraction} {TRAIN}")
        assert platform.sh(f"runai exec {name} -p team-d -- {QUERY}").out == f"0, NVIDIA A10, {mib} MiB\n"

    platform.submit("tenth", "team-d", f"-g 0.1 {TRAIN}", "Pending")

    assert re.search(r"^node-1 +NVIDIA A10 +1/1 ", platform.sh("runai list nodes").out, re.MULTILINE)


def test_half_of_a_v100_with_16_gb(platform_with_gpus: Callable[..., Platform]) -> None:
    """F5: half of the GPU is 8065 of its 16130 MiB."""
    platform = platform_with_gpus("Tesla V100-SXM2-16GB", 16130)
    platform.submit("frac05", "team-d", f"-g 0.5 {IDLE}")

    assert platform.sh(f"runai exec frac05 -p team-d -- {QUERY}").out == "0, Tesla V100-SXM2-16GB, 8065 MiB\n"
