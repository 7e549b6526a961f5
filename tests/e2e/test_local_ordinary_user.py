"""The platform of an ordinary user: it runs, and reports what it does not isolate. Root becomes such a user first."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.backends.local.runtimes import syscalls
from support.seeds.platform import Platform
from support.stores.unprivileged import UID, unprivileged_programs
from support.waiting import wait_until

USER = UID if os.geteuid() == 0 else os.geteuid()


@pytest.fixture(scope="module")
def ours() -> Iterator[Platform]:
    """Shared: each test names its own jobs. Not below pytest's own folder, which other users may not enter."""
    folder = Path(tempfile.mkdtemp(prefix="aliquot-ordinary-"))
    platform = Platform(unprivileged_programs(Path(sys.executable).parent, USER, folder / "bin"), folder / "platform")
    for place in (folder, platform.home.parent, platform.home):
        os.chown(place, USER, -1)
    platform.up()
    assert platform.sh("runai project set team-a").status == 0
    yield platform
    platform.down()
    shutil.rmtree(folder)


def uid_of(pid: int) -> int:
    return os.stat(f"/proc/{pid}").st_uid


def test_nothing_runs_as_root(ours: Platform) -> None:
    """The server and its jobs are that user's processes."""
    ours.submit("who", "team-a", "-i ubuntu --command -- sleep 1000")
    assert [uid_of(ours.server.pid), uid_of(ours.job_instances()["who"].pid)] == [USER, USER]


def test_status_says_what_is_not_isolated(ours: Platform) -> None:
    """`aliquot status` says that jobs are not isolated, why, and that limits are not enforced."""
    done = ours.sh("aliquot status")
    assert done.status == 0, done
    (line,) = [line for line in done.out.splitlines() if line.startswith("Isolation:")]
    assert "not kept apart" in line
    assert "started by a user" in line
    assert "limits are not enforced, because" in line


def test_submit_list_logs(ours: Platform) -> None:
    """A job with a GPU fraction runs, is listed and has a log."""
    ours.submit("talk", "team-a", "-i ubuntu -g 0.5 --command -- sh -c 'echo hello from $JOB_NAME'", "Completed")
    assert ours.sh("runai logs -f talk").out == "hello from talk\n"
    (row,) = [line for line in ours.sh("runai list").out.splitlines() if line.startswith("talk ")]
    assert "Succeeded" in row


def test_exec(ours: Platform) -> None:
    """`exec` runs as that user too, and its exit status comes back."""
    ours.submit("inside", "team-a", "-i ubuntu --command -- sleep 1000")
    done = ours.sh("runai exec inside -- sh -c 'id -u; exit 5'")
    assert (done.status, done.out) == (5, f"{USER}\n")


def test_delete(ours: Platform) -> None:
    """A deleted job is stopped, together with its background processes."""
    script = "sleep 1234 & exec sleep 4321"
    ours.submit("short", "team-a", f"-i ubuntu --command -- sh -c '{script}'")
    pod = ours.job_instances()["short"]
    assert (
        len(syscalls.pids_with_variable(f"ALIQUOT_POD={pod.pod}".encode())) == 3
    )  # supervisor, command and what it left
    assert ours.sh("runai delete short").status == 0
    ours.wait_until_gone("short", "team-a")
    wait_until(lambda: not (ours.server.folder / "pods" / pod.pod).exists(), "its folder is gone")
    assert syscalls.start_time(pod.pid) == ""
    assert syscalls.pids_with_variable(f"ALIQUOT_POD={pod.pod}".encode()) == []


def test_killed_and_recovered(ours: Platform) -> None:
    """After kill -9 of the platform the same processes run, and their logs go on."""
    ours.submit("stays", "team-a", "-i ubuntu --command -- sh -c 'i=0; while :; do echo $((i+=1)); sleep 0.1; done'")
    before = ours.job_instances()["stays"]
    ours.kill()
    wait_until(lambda: ours.job_instances().get("stays") == before, "it is found again")
    lines = len(ours.sh("runai logs stays").out.splitlines())
    wait_until(lambda: len(ours.sh("runai logs stays").out.splitlines()) > lines, "its log goes on")
    assert ours.sh("runai logs stays").out.startswith("1\n2\n3\n")


def test_training_resumes(ours: Platform) -> None:
    """Checkpoints are kept here too: the next pod of a training resumes where the last one was."""
    ours.submit("learn", "team-a", "-i gcr.io/run-ai-demo/quickstart --args --step-seconds=0 --args --cpu-share=1")
    wait_until(lambda: "Epoch 2/" in ours.sh("runai logs learn").out, "it has learnt something")
    assert ours.sh("aliquot delete pod learn-0-0 -n runai-team-a").status == 0
    wait_until(lambda: ours.sh("runai logs learn").out.startswith("Resumed from "), "it has gone on")
