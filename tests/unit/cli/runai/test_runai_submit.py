"""`submit` as a whole: what it says, how jobs get names, and what it refuses."""

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


def test_what_it_says(team: CliEnvironment) -> None:
    assert team.run_runai("submit frac03-3 -i gcr.io/run-ai-demo/quickstart -g 0.3") == (
        "Job frac03-3 submitted successfully.\n"
        "You can check the status of the job by running:\n"
        "    runai describe job frac03-3 -p user-agm\n"
    )


def test_names_are_counted(team: CliEnvironment) -> None:
    """Without a name: job-0, job-1, ... or after a prefix of one's own; never one that is taken."""
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


def test_a_counted_name_that_was_taken_meanwhile(team: CliEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else was faster: the next one is taken."""
    kind = KINDS.named("workload")
    create, rivals = team.driver.create, ["job-0"]

    async def contested(asked: object, document: Document) -> Document:
        if asked is kind and rivals:
            rival = {**document.data, "metadata": {**document.metadata, "name": rivals.pop()}}
            await create(kind, Document(rival))
        return await create(asked, document)

    team.driver.create = contested  # type: ignore[assignment, method-assign]  # a rival at the store's own door
    assert "Job job-1 submitted" in team.run_runai("submit -i python")


def test_the_name_may_be_a_flag(team: CliEnvironment) -> None:
    assert "Job x submitted" in team.run_runai("submit --name x -i python")
    assert "Job y submitted" in team.run_runai("submit y --name y -i python")
    result = team.invoke_runai("submit a --name b -i python")
    assert (result.exit_code, result.stderr) == (1, "error: the job has two names, 'a' and --name 'b': give one\n")


@pytest.mark.parametrize("name", ["Big", "under_score", "-x", "a" * 51, "a.b"])
def test_names_that_cannot_be(team: CliEnvironment, name: str) -> None:
    result = team.invoke_runai("submit -i python --name", name)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: job name: must ")


def test_two_words_are_no_name(team: CliEnvironment) -> None:
    assert team.invoke_runai("submit a b -i python").exit_code == 2


def test_a_name_is_taken_once(team: CliEnvironment) -> None:
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
    """The message says how to set one; nothing is created."""
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
    """The YAML is what would be stored, and `apply` takes it."""
    text = team.run_runai("submit x -i python -g 0.5 --dry-run")
    assert team.run_runai("list -o name") == ""
    made = yaml.safe_load(text)
    assert (made["kind"], made["spec"]["compute"]) == ("Workload", {"gpu": 0.5})
    (team.home / "x.yaml").write_text(text)
    assert team.run("apply", "-f", str(team.home / "x.yaml")) == "workload/x created\n"


def test_a_project_with_a_namespace_of_its_own(team: CliEnvironment) -> None:
    """Jobs go where the project says."""
    team.create("project", "old", spec={"namespace": "legacy"})
    team.create("namespace", "legacy", metadata={"labels": {"aliquot.dev/project": "old"}})
    team.run_runai("submit x -i python -p old")
    assert team.get("workload", "x", "legacy")["metadata"]["namespace"] == "legacy"
    assert team.run_runai("list -A").splitlines()[1].split()[5] == "old"


def test_jupyter(team: CliEnvironment) -> None:
    """A notebook with image, port and a token that is printed."""
    out = team.run_runai("submit nb --jupyter -g 0.5")
    spec = team.get("workload", "nb", "runai-user-agm")["spec"]
    assert (spec["type"], spec["image"], spec["ports"]) == (
        "interactive",
        "jupyter/base-notebook",
        [{"container": 8888}],
    )
    assert out.splitlines()[-1] == f"The token of the notebook: {spec['environment'][0]['value']}"


def test_a_default_template(team: CliEnvironment) -> None:
    """It fills every submission that names no other."""
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
    found = asyncio.run(team.driver.get(KINDS.named("workload"), "x", "runai-user-agm"))
    assert found.data["spec"]["user"] == "yaron"
