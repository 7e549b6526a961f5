"""A training resumes from its checkpoint, whatever stopped it."""

from __future__ import annotations

import re

from support.seeds.platform import PREFIX, Platform
from support.waiting import wait_until

POD = f"{PREFIX}/namespaces/runai-team-a/pods/t-0-0"
# As the image does it, only faster.
FAST = "-i gcr.io/run-ai-demo/quickstart -g 1 --args --step-seconds=0.001 --args --cpu-share=1"


class Training:
    """A job that trains for ever."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        platform.submit("t", "team-a", FAST)

    def pod(self) -> str:
        pod = self._platform.get(POD) or {}
        running = pod.get("status", {}).get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        return str(pod["metadata"]["uid"]) if running else ""

    def log(self) -> str:
        return self._platform.sh("runai logs t -p team-a").out

    def comes_to(self, epoch: int) -> None:
        wait_until(lambda: f"Epoch {epoch}/" in self.log(), f"epoch {epoch}: {self.log()[-300:]}")

    def resumes(self, before: str) -> int:
        """The epoch at which the next pod says it goes on."""
        wait_until(lambda: self.pod() not in ("", before), "another pod")
        wait_until(lambda: "Epoch" in self.log(), "it prints")
        first = self.log().splitlines()[0]
        match = re.fullmatch(r"Resumed from \S+: epoch (\d+), step \d+", first)
        assert match, first
        return int(match[1])


def test_evicted(platform: Platform) -> None:
    """Its pod is evicted: the next one resumes at the epoch it had reached."""
    job = Training(platform)
    job.comes_to(3)
    before = job.pod()
    assert platform.sh("aliquot delete pod t-0-0 -n runai-team-a").status == 0
    assert job.resumes(before) >= 3


def test_killed(platform: Platform) -> None:
    """Its process is killed with SIGKILL: the next pod resumes after the last finished epoch."""
    job = Training(platform)
    job.comes_to(3)
    before = job.pod()
    platform.sh("runai exec t -p team-a -- sh -c 'kill -9 $(pgrep -f [a]liquot.quickstart)'")  # may take itself along
    assert job.resumes(before) >= 3


def test_down_and_up(platform: Platform) -> None:
    """`aliquot down` stops it with the platform: after the next `up` it resumes."""
    job = Training(platform)
    job.comes_to(3)
    before = job.pod()
    platform.down()
    platform.up()
    assert job.resumes(before) >= 3


def test_deleted(platform: Platform) -> None:
    """A job that is deleted and submitted again starts from the beginning: nothing of the old one is left."""
    job = Training(platform)
    job.comes_to(2)
    assert platform.sh("runai delete t -p team-a").status == 0
    platform.wait_until_gone("t", "team-a")
    kept = platform.server.folder / "checkpoints"
    wait_until(lambda: not any(kept.glob("*/*")), "its checkpoints are gone")
    assert Training(platform).log().splitlines()[0].startswith("Epoch 1/")
