"""What users see of allocations, policies, templates and events, on a platform that runs real jobs."""

from __future__ import annotations

import json
import re

import pytest

from support.seeds.platform import PREFIX, CommandResult, Platform
from support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("seeds")

SLEEP = "-i python --command sleep --args infinity"
PRESETS = """
apiVersion: aliquot.dev/v1
kind: Template
metadata: {name: batch-ops, namespace: runai-team-c}
spec: {values: {image: python, command: [sleep], args: [infinity], compute: {gpu: 1, cpu: 0.5}}}
---
apiVersion: aliquot.dev/v1
kind: Policy
metadata: {name: small, namespace: runai-team-c}
spec: {types: [interactive], rules: {compute.gpu: {max: 4}}, defaults: {labels: {seen: "yes"}}}
"""


def allocated(platform: Platform, queue: str, *command: str) -> str:
    """The cell of the column ALLOCATED GPUs in a listing."""
    out = platform.sh(" ".join(command)).out
    head, *rows = out.splitlines()
    column = re.split(r"  +", head.strip()).index("ALLOCATED GPUs")
    row = next(row for row in rows if row.split()[0] == queue)
    return re.split(r"  +", row.strip())[column]


def wait_for_allocated(platform: Platform, gpus: str, queue: str, *command: str) -> None:
    wait_until(lambda: allocated(platform, queue, *command) == gpus, f"{' '.join(command)}: {queue} with {gpus}")


def test_allocated_gpus_in_listings(fresh: Platform) -> None:
    """Listings count the allocated GPUs, fractions too; also after a kill, and after a job is deleted."""
    fresh.submit("whole", "team-a", f"{SLEEP} -g 2")
    fresh.submit("part", "team-a", f"{SLEEP} -g 0.3")
    fresh.submit("other", "team-b", f"{SLEEP} -g 0.5")
    for command in ("runai list projects", "runai project list", "aliquot project list"):
        wait_for_allocated(fresh, "2.3", "team-a", command)
        wait_for_allocated(fresh, "0.5", "team-b", command)
        wait_for_allocated(fresh, "0", "team-c", command)
    wait_for_allocated(fresh, "2.8", "default", "aliquot department list")
    fresh.kill()
    assert allocated(fresh, "team-a", "runai list projects") == "2.3"
    assert fresh.sh("runai delete whole -p team-a").status == 0
    wait_for_allocated(fresh, "0.3", "team-a", "runai list projects")
    requested = fresh.get(f"{PREFIX}/projects/team-a")["status"]["requested"]
    assert (requested["gpu"], requested["cpu"]) == (0.3, 1)


@pytest.fixture(scope="module")
def with_policy(demo: Platform) -> Platform:
    """The shared platform with a template and a policy for team-c."""
    file = demo.home / "presets.yaml"
    file.write_text(PRESETS)
    assert demo.sh(f"aliquot apply -f {file}").status == 0
    wait_until(
        lambda: "seen: 'yes'" in demo.sh("runai submit x -p team-c -i python --interactive --dry-run").out, "the policy"
    )
    return demo


def test_more_than_a_policy_allows(with_policy: Platform) -> None:
    """A submission above the limit of a policy is refused with the rule in one line."""
    done = with_policy.sh("runai submit --gpu 5 --interactive -p team-c")
    assert done == CommandResult(1, "", "error: gpu: must be no greater than 4\n")


def test_a_policy_holds_for_manifests_too(with_policy: Platform) -> None:
    """The policy applies to manifests as well."""
    job = {
        "apiVersion": "aliquot.dev/v1",
        "kind": "Workload",
        "metadata": {"name": "greedy", "namespace": "runai-team-c"},
        "spec": {"type": "interactive", "image": "python", "compute": {"gpu": 5}},
    }
    done = with_policy.sh("aliquot apply -f -", json.dumps(job))
    assert (done.status, done.err) == (1, "error: workload/greedy: gpu: must be no greater than 4\n")


def test_a_template_with_a_flag(with_policy: Platform) -> None:
    """The image comes from the template and the GPUs from the flag; `describe` shows which."""
    with_policy.submit("batched", "team-c", "--template batch_ops -g 2")
    spec = with_policy.job("batched", "team-c")["spec"]
    assert (spec["image"], spec["compute"], spec["template"]) == ("python", {"gpu": 2, "cpu": 0.5}, "batch-ops")
    lines = with_policy.sh("runai describe job batched -p team-c").out.splitlines()
    assert "FILLED IN BY: template runai-team-c/batch-ops (args, command, compute.cpu, image)" in lines
    assert with_policy.sh("runai delete batched -p team-c").status == 0


def test_dry_run_shows_the_whole_job(with_policy: Platform) -> None:
    """The YAML of a dry run has the values of the template, and nothing is created."""
    done = with_policy.sh("runai submit dry -p team-c --template batch-ops --dry-run")
    assert "image: python" in done.out.replace('"', "")
    assert with_policy.job("dry", "team-c") is None


def test_one_event_for_a_pending_job(demo: Platform) -> None:
    """A pending job has one event with the reason, however many cycles the scheduler runs."""
    demo.submit("patient", "team-d", f"{SLEEP} -g 9", "Pending")
    wait_until(lambda: "[Unschedulable]" in demo.sh("runai describe job patient -p team-d").out, "the event")
    for name in ("busy-1", "busy-2", "busy-3"):
        demo.submit(name, "team-d", f"{SLEEP} -g 0.1")
    lines = demo.sh("runai describe job patient -p team-d").out.splitlines()
    (event,) = [line for line in lines if "Unschedulable" in line]
    assert re.fullmatch(
        r"workload/patient +Warning +\d+s +\[Unschedulable\] no node has 9 GPUs"
        r"; the largest of the 2 nodes have 8 each",
        event,
    )
    assert demo.sh("runai delete patient busy-1 busy-2 busy-3 -p team-d").status == 0


def test_events_of_a_failed_job(demo: Platform) -> None:
    """Each attempt and the failure have an event."""
    demo.submit("sorry", "team-d", "-i busybox --backoff-limit 1 --command -- sh -c 'exit 3'", "Failed")
    wait_until(lambda: "[Failed]" in demo.sh("runai describe job sorry -p team-d").out, "the last event")
    text = demo.sh("runai describe job sorry -p team-d").out
    events = [line.split("[", 1)[1] for line in text.splitlines() if line.startswith("workload/")]
    assert events == ["BackOff] exit status 3; attempt 1 of 2", "Failed] exit status 3"]
    assert "MESSAGE: exit status 3" in text.splitlines()
    # Both pods were placed and started, and the first is gone.
    assert (text.count("[Scheduled]"), text.count("[Started]")) == (2, 2)
