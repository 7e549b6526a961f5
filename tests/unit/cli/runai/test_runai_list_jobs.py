"""`list`: the layouts of 2020 and 2023, and other kinds."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from aliquot.api import Pod, Workload, decode
from aliquot.cli.runai.job_columns import job_status
from aliquot.cli.runai.list_jobs import LAYOUT_2020, LAYOUT_2023, JobRow, sort_2020, sort_2023, table
from support.cli.environment import CliEnvironment

NOW = 1_000_000_000.0
IMAGE = "gcr.io/run-ai-demo/quickstart"


def job_row(name: str, age: float, phase: str, gpu: float, *, node: str = "", cli: bool = True, **more: Any) -> JobRow:
    metadata = {"name": name, "namespace": "runai-team-a", "creationTimestamp": NOW - age}
    if cli:
        metadata["annotations"] = {"aliquot.dev/created-by": "cli"}
    spec = {"image": IMAGE, "user": "yaron", "compute": {"gpu": gpu}, **more.pop("spec", {})}
    status = {"phase": phase, "allocated": {"gpu": gpu if node else 0}, **more}
    workload = decode(Workload, {"metadata": metadata, "spec": spec, "status": status})
    pods = []
    if node:
        pod = {"metadata": {"name": f"{name}-0-0"}, "spec": {"nodeName": node}, "status": {"phase": "Running"}}
        pods = [decode(Pod, pod)]
    return JobRow(workload, pods, "team-a", job_status(workload, pods))


def lines(jobs: list[JobRow], layout: Any) -> list[str]:
    return table(jobs, layout, NOW).splitlines()


def test_the_layout_of_2020() -> None:
    url: dict[str, Any] = {"urls": [{"url": "http://10.61.218.134/nb"}, {"url": "https://10.61.218.134/nb"}]}
    jobs = [
        job_row("hyper1", 11, "Running", 1, node="dgx1-1"),
        job_row("nb", 125, "Running", 0.2, node="dgx1-2", spec={"type": "interactive"}, **url),
        job_row("other", 4 * 86400, "Completed", 1, cli=False),
        job_row("wait", 43300, "Pending", 2),
    ]
    assert lines(sort_2020(jobs), LAYOUT_2020) == [
        "NAME     STATUS      AGE   NODE     IMAGE                           TYPE          PROJECT   USER    GPUs   "
        "CREATED BY CLI   SERVICE URL(S)",
        "wait     Pending     12h            gcr.io/run-ai-demo/quickstart   Train         team-a    yaron   2      "
        "true",
        "hyper1   Running     11s   dgx1-1   gcr.io/run-ai-demo/quickstart   Train         team-a    yaron   1      "
        "true",
        "nb       Running     2m    dgx1-2   gcr.io/run-ai-demo/quickstart   Interactive   team-a    yaron   0.2    "
        "true             http://10.61.218.134/nb, https://10.61.218.134/nb",
        "other    Succeeded   4d             gcr.io/run-ai-demo/quickstart   Train         team-a    yaron   1      "
        "false",
    ]


def test_jobs_of_one_second() -> None:
    """Of jobs that were created in the same second, the highest number is the newest."""
    jobs = [job_row(name, age, "Running", 1) for name, age in (("job-10", 5), ("job-2", 5), ("job-9", 5), ("job-1", 4))]
    assert [each.workload.metadata.name for each in sort_2020(jobs)] == ["job-1", "job-10", "job-9", "job-2"]


def test_the_layout_of_2023() -> None:
    jobs = [
        job_row("frac05-3", 240, "Running", 0.5, node="gpu1"),
        job_row("frac03", 43300, "Failed", 0.3),
        job_row("anand-workspace", 4 * 86400, "Stopped", 0.1, spec={"type": "interactive"}),
    ]
    assert lines(sort_2023(jobs), LAYOUT_2023) == [
        "NAME              STATUS      AGE   NODE   IMAGE                           TYPE          PROJECT   USER    "
        "GPUs Allocated (Requested)   PODs Running (Pending)   SERVICE URL(S)",
        "anand-workspace   Suspended   4d           gcr.io/run-ai-demo/quickstart   Interactive   team-a    yaron   "
        "0.00 (0.10)                  0 (0)",
        "frac03            Failed      12h          gcr.io/run-ai-demo/quickstart   Train         team-a    yaron   "
        "- (0.30)                     0 (0)",
        "frac05-3          Running     4m    gpu1   gcr.io/run-ai-demo/quickstart   Train         team-a    yaron   "
        "0.50 (0.50)                  1 (0)",
    ]


@pytest.fixture
def teams(cli: CliEnvironment) -> CliEnvironment:
    for name in ("team-a", "team-b"):
        cli.create_project(name)
    cli.run_runai("config project team-a")
    cli.run_runai("submit one -i python -g 1")
    cli.run_runai("submit two -i python -p team-b")
    return cli


def test_one_project_has_a_first_line(teams: CliEnvironment) -> None:
    """The list of one project has a first line with its name; the list of all projects has none."""
    assert teams.run_runai("list").splitlines()[0] == "Showing jobs for project team-a"
    assert teams.run_runai("list jobs -p team-b").splitlines()[0] == "Showing jobs for project team-b"
    assert teams.run_runai("list -A").splitlines()[0].startswith("NAME ")
    assert [line.split()[0] for line in teams.run_runai("list jobs -A").splitlines()[1:]] == ["one", "two"]


def test_an_empty_list_has_its_titles(teams: CliEnvironment) -> None:
    teams.run_runai("delete one")
    assert len(teams.run_runai("list").splitlines()) == 2


@pytest.mark.parametrize(
    "line",
    ["list", "list jobs", "list -A", "list nodes", "list projects", "list templates", "list clusters", "top node"],
)
def test_every_listing_has_json_and_yaml(teams: CliEnvironment, line: str) -> None:
    assert json.loads(teams.run_runai(f"{line} --json")) == yaml.safe_load(teams.run_runai(f"{line} --yaml"))


def test_jobs_as_json_are_the_objects(teams: CliEnvironment) -> None:
    items = json.loads(teams.run_runai("list --json"))["items"]
    assert [(item["kind"], item["metadata"]["name"]) for item in items] == [("Workload", "one")]


def test_other_kinds(teams: CliEnvironment) -> None:
    """`list`, `get` and `describe` work for other kinds too."""
    assert teams.run_runai("list projects").splitlines()[1].startswith("team-a (default)")
    assert teams.run_runai("list namespaces -o name").split() == ["namespace/runai-team-a", "namespace/runai-team-b"]
    assert teams.run_runai("get projects -o name").split() == ["project/team-a", "project/team-b"]
    assert "Kind:" in teams.run_runai("describe project team-a")
    assert teams.run_runai("list clusters").splitlines()[1].split() == [
        "default",
        "(current)",
        "http://127.0.0.1:1",
        "Ready",
    ]
    assert teams.invoke_runai("list pigs").exit_code == 1
    assert teams.invoke_runai("list jobs one").exit_code == 2


def test_cells_do_not_carry_control_characters(teams: CliEnvironment) -> None:
    """Values of users are printed without control characters."""
    teams.create("workload", "evil", "runai-team-a", spec={"image": "a\x1b[31mb", "user": "u"})
    assert "\x1b" not in teams.run_runai("list")
