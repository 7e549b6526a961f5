"""get, describe, label, delete and edit, for any kind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from aliquot.errors import NotFound
from support.cli.environment import CliEnvironment


@pytest.fixture
def teams(cli: CliEnvironment) -> CliEnvironment:
    cli.create("project", "team-b", spec={"department": "ml", "quota": {"gpu": 0.5}})
    cli.create("project", "team-a", spec={"quota": {"gpu": 4}}, metadata={"labels": {"tier": "gold"}})
    return cli


def test_listing_is_sorted_and_aligned(teams: CliEnvironment) -> None:
    """The table is sorted by name, has an age, and no trailing spaces."""
    lines = teams.run("get", "projects").splitlines()
    assert lines[0].split()[0] == "NAME"
    assert lines[0].split()[-1] == "AGE"
    assert [line.split()[0] for line in lines[1:]] == ["team-a", "team-b"]
    assert all(line == line.rstrip() for line in lines)
    assert len({line.index("GPU QUOTA") for line in lines[:1]}) == 1


def test_output_formats(teams: CliEnvironment) -> None:
    """Objects as names, JSON and YAML; one named object is not wrapped in a List."""
    assert teams.run("get", "proj", "-o", "name") == "project/team-a\nproject/team-b\n"
    listed = json.loads(teams.run("get", "projects", "--json"))
    assert [item["metadata"]["name"] for item in listed["items"]] == ["team-a", "team-b"]
    assert yaml.safe_load(teams.run("get", "projects", "--yaml")) == listed
    assert json.loads(teams.run("get", "project/team-a", "-o", "json"))["metadata"]["name"] == "team-a"
    assert not teams.run("get", "projects", "--no-headers").startswith("NAME")
    assert "NAMESPACE" in teams.run("get", "projects", "-o", "wide")


def test_several_kinds(teams: CliEnvironment) -> None:
    """Several kinds give a table each, with the kind before the name."""
    teams.create("department", "ml")
    out = teams.run("get", "projects,departments")
    assert "project/team-a" in out
    assert "\n\nNAME" in out
    assert "department/ml" in out


def test_selectors(teams: CliEnvironment) -> None:
    """Labels and fields select objects."""
    assert teams.run("get", "projects", "-l", "tier=gold", "-o", "name") == "project/team-a\n"
    assert teams.run("get", "projects", "--field-selector", "spec.department=ml", "-o", "name") == "project/team-b\n"
    nothing = teams.invoke("get", "projects", "-l", "tier=lead")
    assert (nothing.exit_code, nothing.stdout, nothing.stderr) == (0, "", "No projects match.\n")


def test_an_empty_list_says_how_to_create_one(cli: CliEnvironment) -> None:
    """An empty list is no error: the hint goes to stderr, and JSON output has no items."""
    result = cli.invoke("get", "projects")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "aliquot project create NAME" in result.stderr
    assert json.loads(cli.run("get", "projects", "--json"))["items"] == []


def test_missing_names_are_errors(teams: CliEnvironment) -> None:
    """Existing objects are printed, missing ones are errors, and the exit status is 1."""
    result = teams.invoke("get", "project", "team-a", "nobody", "nowhere")
    assert result.exit_code == 1
    assert "team-a" in result.stdout
    assert result.stderr == "error: project 'nobody' not found\nerror: project 'nowhere' not found\n"


def test_an_unknown_kind_lists_the_known(cli: CliEnvironment) -> None:
    """The hint of an unknown kind lists the known kinds."""
    result = cli.invoke("get", "gadgets")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: unknown kind 'gadgets'\nhint: one of: ")


@pytest.mark.parametrize("arguments", [("get",), ("get", "projects", "-o", "xml"), ("delete", "project"), ("frob",)])
def test_usage_errors_exit_2(cli: CliEnvironment, arguments: tuple[str, ...]) -> None:
    """Wrong usage gives one line, a hint and exit status 2."""
    result = cli.invoke(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert "--help" in result.stderr


def test_namespaced_kinds_need_a_project(cli: CliEnvironment) -> None:
    """Namespaced kinds need -p, -n, -A or a default project."""
    cli.create("namespace", "runai-team-a")
    cli.create("template", "t", "runai-team-a", spec={"description": "x"})
    refused = cli.invoke("get", "templates")
    assert refused.exit_code == 1
    assert "-p PROJECT" in refused.stderr
    assert cli.run("get", "templates", "-p", "team-a", "-o", "name") == "template/t\n"
    assert cli.run("get", "templates", "-n", "runai-team-a", "-o", "name") == "template/t\n"
    assert "NAMESPACE" in cli.run("get", "templates", "-A")
    assert cli.invoke("get", "templates", "-A", "-p", "team-a").exit_code == 2


def test_describe(teams: CliEnvironment) -> None:
    """The description has labels, spec and events."""
    project = teams.get("project", "team-a")
    teams.create("namespace", "runai")
    about = {"kind": "Project", "name": "team-a", "uid": project["metadata"]["uid"]}
    teams.create(
        "event", "e1", "runai", involvedObject=about, reason="Created", message="namespace made", type="Normal"
    )
    out = teams.run("describe", "project", "team-a")
    assert "Name:         team-a" in out
    assert "Labels:       tier=gold" in out
    assert "    GPU: 4" in out
    assert "namespace made" in out
    assert yaml.safe_load(teams.run("describe", "project/team-a", "-o", "yaml")) == project


def test_label(teams: CliEnvironment) -> None:
    """k=v sets a label, k- removes it, and repeating it changes nothing."""
    assert teams.run("label", "project", "team-a", "tier-", "cost=42") == "project/team-a labeled\n"
    assert teams.get("project", "team-a")["metadata"]["labels"] == {"cost": "42"}
    assert teams.run("label", "project/team-a", "cost=42") == "project/team-a unchanged\n"
    assert teams.invoke("label", "project", "team-a").exit_code == 2
    assert teams.invoke("label", "project", "team-a", "cost=not valid!").exit_code == 1


def test_delete_of_a_project_needs_confirmation(teams: CliEnvironment) -> None:
    """Deleting a project needs confirmation; deleting a token does not."""
    refused = teams.invoke("delete", "project", "team-a")
    assert refused.exit_code == 1
    assert "--yes" in refused.stderr
    assert (
        teams.run("delete", "project", "team-a", "team-b", "--yes")
        == "project/team-a deleted\nproject/team-b deleted\n"
    )
    teams.create("token", "t", spec={"user": "me"})
    assert teams.run("delete", "token", "t") == "token/t deleted\n"


def test_delete_of_an_object_with_a_finalizer(cli: CliEnvironment) -> None:
    """An object with a finalizer is being deleted, not deleted."""
    cli.create("user", "ann", metadata={"finalizers": ["aliquot.dev/test"]})
    assert cli.run("delete", "user", "ann") == "user/ann is being deleted\n"


def test_delete_goes_on_after_a_missing_name(teams: CliEnvironment) -> None:
    """A missing name does not stop the deletion of the others."""
    result = teams.invoke("delete", "project", "nobody", "team-a", "-y")
    assert (result.exit_code, result.stdout) == (1, "project/team-a deleted\n")
    with pytest.raises(NotFound):
        teams.get("project", "team-a")


def _editor(path: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set EDITOR to a script."""
    program = path / "editor"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    monkeypatch.setenv("EDITOR", str(program))
    monkeypatch.setenv("TMPDIR", str(path))
    monkeypatch.setattr("tempfile.tempdir", str(path))


def test_edit_writes_back(teams: CliEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The saved text replaces the object, and the temporary file is removed."""
    _editor(tmp_path, 'sed -i "s/gpu: 4/gpu: 6/" "$1"', monkeypatch)
    assert teams.run("edit", "project", "team-a") == "project/team-a configured\n"
    assert teams.get("project", "team-a")["spec"]["quota"]["gpu"] == 6
    assert not list(tmp_path.glob("*.yaml"))


def test_edit_can_remove_a_field(teams: CliEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Removing a line removes the field."""
    _editor(tmp_path, 'sed -i "/department/d" "$1"', monkeypatch)
    teams.run("edit", "project", "team-b")
    assert "department" not in teams.get("project", "team-b")["spec"]


def test_edit_without_change(teams: CliEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing the editor without a change does nothing."""
    _editor(tmp_path, "true", monkeypatch)
    assert teams.run("edit", "project", "team-a") == "project/team-a unchanged\n"


@pytest.mark.parametrize(
    "script, error", [("s/gpu: 4/gpu: many/", "spec.quota.gpu"), ("s/name: team-a/name: other/", "name")]
)
def test_edit_keeps_text_it_cannot_apply(
    teams: CliEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, error: str
) -> None:
    """Text that cannot be applied is kept in a file, which the error names."""
    _editor(tmp_path, f'sed -i "{script}" "$1"', monkeypatch)
    result = teams.invoke("edit", "project", "team-a")
    (kept,) = tmp_path.glob("*.yaml")
    assert result.exit_code == 1
    assert error in result.stderr
    assert str(kept) in result.stderr
    assert teams.get("project", "team-a")["spec"]["quota"]["gpu"] == 4


def test_edit_does_not_overwrite_another_change(
    teams: CliEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change by another client in the meantime is a conflict."""
    from aliquot.cli.edit import changed_document, editable
    from aliquot.cli.object_refs import parse_refs
    from aliquot.cli.output import as_yaml
    from aliquot.errors import Conflict
    from aliquot.store.driver import Document

    (target,) = parse_refs("project", ["team-a"])
    before = Document(teams.get("project", "team-a"))
    edited = changed_document(target, before, as_yaml(editable(before.data)).replace("gpu: 4", "gpu: 6"))
    teams.run("project", "update", "team-a", "--gpu", "5")
    with pytest.raises(Conflict):
        teams.context().run(lambda driver: driver.update(target.kind, edited))
    assert teams.get("project", "team-a")["spec"]["quota"]["gpu"] == 5
