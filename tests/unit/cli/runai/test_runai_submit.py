"""`submit`: its output, generated names, and errors."""

from __future__ import annotations

import asyncio

import pytest
import yaml

from aliquot.api import KINDS
from aliquot.store.driver import Document
from support.cli.environment import CliEnvironment


@pytest.fixture
def team(cli: CliEnvironment) -> CliEnvironment:
    cli.create_project("user-agm")
    cli.run_runai("config project user-agm")
    return cli


def test_output(team: CliEnvironment) -> None:
    assert team.run_runai("submit frac03-3 -i gcr.io/run-ai-demo/quickstart -g 0.3") == (
        "Job frac03-3 submitted successfully.\n"
        "You can check the status of the job by running:\n"
        "    runai describe job frac03-3 -p user-agm\n"
    )


def test_generated_names(team: CliEnvironment) -> None:
    """Generated names are job-0, job-1, ... or have another prefix; existing names are skipped."""
    for name in ("job-0", "job-1"):
        assert f"Job {name} submitted" in team.run_runai("submit -i python")
    team.run_runai("submit job-7 -i python")
    assert "Job job-8 submitted" in team.run_runai("submit -i python")
    assert "Job exp-0 submitted" in team.run_runai("submit -i python --job-name-prefix exp")
    assert team.get("workload", "exp-0", "runai-user-agm")["spec"]["namePrefix"] == "exp"


def test_names_with_random_letters(team: CliEnvironment) -> None:
    first, second = (team.run_runai("submit -i python --name-prefix exp").split()[1] for _ in range(2))
    assert first.startswith("exp-")
    assert first != second


def test_a_generated_name_that_is_taken(team: CliEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    """When another client takes the name in the meantime, the next number is used."""
    kind = KINDS.named("workload")
    create, taken = team.driver.create, ["job-0"]

    async def contested(requested_kind: object, document: Document) -> Document:
        if requested_kind is kind and taken:
            other = {**document.data, "metadata": {**document.metadata, "name": taken.pop()}}
            await create(kind, Document(other))
        return await create(requested_kind, document)

    team.driver.create = contested  # type: ignore[assignment, method-assign]  # another client that creates the name first
    assert "Job job-1 submitted" in team.run_runai("submit -i python")


def test_the_name_may_be_a_flag(team: CliEnvironment) -> None:
    assert "Job x submitted" in team.run_runai("submit --name x -i python")
    assert "Job y submitted" in team.run_runai("submit y --name y -i python")
    result = team.invoke_runai("submit a --name b -i python")
    assert (result.exit_code, result.stderr) == (1, "error: the job has two names, 'a' and --name 'b': give one\n")


@pytest.mark.parametrize("name", ["Big", "under_score", "-x", "a" * 51, "a.b"])
def test_invalid_names(team: CliEnvironment, name: str) -> None:
    result = team.invoke_runai("submit -i python --name", name)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: job name: must ")


def test_two_names(team: CliEnvironment) -> None:
    assert team.invoke_runai("submit a b -i python").exit_code == 2


def test_duplicate_name(team: CliEnvironment) -> None:
    team.run_runai("submit x -i python")
    result = team.invoke_runai("submit x -i python -g 1")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: job 'x' already exists in project 'user-agm'\n")
    assert "compute" not in team.get("workload", "x", "runai-user-agm")["spec"]


def test_an_image_is_needed(team: CliEnvironment) -> None:
    result = team.invoke_runai("submit x -g 1")
    assert (result.exit_code, result.stderr) == (
        1,
        "error: --image: is required: give one, or a template that has one\n",
    )


def test_no_project_is_set(cli: CliEnvironment) -> None:
    """The error says how to set a project."""
    for line in ("submit x -i python", "list", "get x", "logs x", "bash x", "delete x"):
        result = cli.invoke_runai(line)
        assert result.exit_code == 1
        assert result.stderr == "error: no project is set: run `runai config project NAME`, or give -p NAME\n"


def test_unknown_project(team: CliEnvironment) -> None:
    for line in (
        "submit x -i python -p nobody",
        "list -p nobody",
        "get x -p nobody",
        "project set nobody",
        "config project nobody",
    ):
        result = team.invoke_runai(line)
        assert result.exit_code == 1
        assert result.stderr == (
            "error: project 'nobody' does not exist\nhint: `runai list projects` shows those there are\n"
        )
    assert team.run_runai("list -A -o name") == ""


def test_dry_run(team: CliEnvironment) -> None:
    """The YAML is what would be stored, and `apply` accepts it."""
    text = team.run_runai("submit x -i python -g 0.5 --dry-run")
    assert team.run_runai("list -o name") == ""
    workload = yaml.safe_load(text)
    assert (workload["kind"], workload["spec"]["compute"]) == ("Workload", {"gpu": 0.5})
    (team.home / "x.yaml").write_text(text)
    assert team.run("apply", "-f", str(team.home / "x.yaml")) == "workload/x created\n"


def test_a_project_with_a_namespace_of_its_own(team: CliEnvironment) -> None:
    """Jobs are created in the namespace of the project's spec."""
    team.create("project", "old", spec={"namespace": "legacy"})
    team.create("namespace", "legacy", metadata={"labels": {"aliquot.dev/project": "old"}})
    team.run_runai("submit x -i python -p old")
    assert team.get("workload", "x", "legacy")["metadata"]["namespace"] == "legacy"
    assert team.run_runai("list -A").splitlines()[1].split()[5] == "old"


def test_jupyter(team: CliEnvironment) -> None:
    """--jupyter sets image and port, and prints the token of the notebook."""
    out = team.run_runai("submit nb --jupyter -g 0.5")
    spec = team.get("workload", "nb", "runai-user-agm")["spec"]
    assert (spec["type"], spec["image"], spec["ports"]) == (
        "interactive",
        "jupyter/base-notebook",
        [{"container": 8888}],
    )
    assert out.splitlines()[-1] == f"The token of the notebook: {spec['environment'][0]['value']}"


def test_a_default_template(team: CliEnvironment) -> None:
    """The default template applies to submissions without --template."""
    team.create("namespace", "runai")
    team.create(
        "template", "base", "runai", spec={"default": True, "values": {"image": "ubuntu"}, "types": ["training"]}
    )
    team.run_runai("submit x")
    assert team.get("workload", "x", "runai-user-agm")["spec"]["image"] == "ubuntu"
    assert team.invoke_runai("submit y --interactive").exit_code == 1
    assert team.run_runai("list templates").splitlines()[1].split() == ["base", "(default)"]


def test_the_user_is_the_one_of_this_machine(team: CliEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "yaron")
    team.run_runai("submit x -i python")
    document = asyncio.run(team.driver.get(KINDS.named("workload"), "x", "runai-user-agm"))
    assert document.data["spec"]["user"] == "yaron"
