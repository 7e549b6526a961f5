"""`apply`: creates and changes objects; an invalid file changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from aliquot.errors import NotFound
from support.cli.environment import CliEnvironment

Text = Callable[..., str]
HEAD = "apiVersion: aliquot.dev/v1\nkind: Project\n"


def test_created_unchanged_configured(cli: CliEnvironment, project_yaml: Text) -> None:
    """The first apply creates, the second changes nothing, a changed file configures."""
    assert cli.run("apply", "-f", "-", input=project_yaml(quota="{gpu: 2}")) == "project/team-a created\n"
    assert cli.run("apply", "-f", "-", input=project_yaml(quota="{gpu: 2}")) == "project/team-a unchanged\n"
    assert cli.run("apply", "-f", "-", input=project_yaml(quota="{gpu: 3}")) == "project/team-a configured\n"
    assert cli.get("project", "team-a")["spec"]["quota"]["gpu"] == 3


def test_apply_keeps_what_the_file_does_not_mention(cli: CliEnvironment, project_yaml: Text) -> None:
    """Fields that a file does not mention keep their value."""
    cli.run("apply", "-f", "-", input=project_yaml(quota="{gpu: 2}"))
    cli.run("apply", "-f", "-", input=project_yaml(description="ours"))
    assert cli.get("project", "team-a")["spec"] == {"quota": {"gpu": 2}, "description": "ours"}


def test_dry_run_changes_nothing(cli: CliEnvironment, project_yaml: Text) -> None:
    """A dry run prints what would happen."""
    assert cli.run("apply", "--dry-run", "-f", "-", input=project_yaml()) == "project/team-a created (dry run)\n"
    with pytest.raises(NotFound):
        cli.get("project", "team-a")


def test_apply_reads_what_get_printed(cli: CliEnvironment, project_yaml: Text, tmp_path: Path) -> None:
    """A saved listing can be applied again."""
    cli.run("apply", "-f", "-", input=project_yaml() + "---\n" + project_yaml("team-b"))
    for form in ("yaml", "json"):
        saved = tmp_path / f"saved.{form}"
        saved.write_text(cli.run("get", "projects", "-o", form))
        assert cli.run("apply", "-f", str(saved)) == "project/team-a unchanged\nproject/team-b unchanged\n"


def test_apply_takes_a_folder_and_several_files(cli: CliEnvironment, project_yaml: Text, tmp_path: Path) -> None:
    """Files of a folder are applied in the order of their names; files with other suffixes are ignored."""
    (tmp_path / "b.yaml").write_text(project_yaml("team-b"))
    (tmp_path / "a.yml").write_text(project_yaml("team-a"))
    (tmp_path / "notes.txt").write_text("not an object")
    other = tmp_path / "more" / "c.json"
    other.parent.mkdir()
    other.write_text('{"apiVersion": "aliquot.dev/v1", "kind": "Department", "metadata": {"name": "ml"}}')
    out = cli.run("apply", "-f", str(tmp_path), "-f", str(other))
    assert out == "project/team-a created\nproject/team-b created\ndepartment/ml created\n"


def test_one_bad_document_stops_all(cli: CliEnvironment, project_yaml: Text, tmp_path: Path) -> None:
    """All faults are reported with file, document and field, and nothing is applied."""
    bad = project_yaml("team-b", quota="{gpu: many}", colour="red")
    path = tmp_path / "teams.yaml"
    path.write_text(project_yaml() + "---\n" + bad + "---\nkind: Project\n")
    result = cli.invoke("apply", "-f", str(path))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        f"error: {path}: document 2: spec.quota.gpu: must be a number such as 4 or 0.5, not 'many'",
        f"error: {path}: document 2: spec.colour: unknown field",
        f"error: {path}: document 3: apiVersion: is required",
        "hint: nothing was applied",
    ]
    with pytest.raises(NotFound):
        cli.get("project", "team-a")


@pytest.mark.parametrize(
    "name, text, error",
    [
        ("a.yaml", "a: b\n  c: [\n", "line 2, column 4"),
        ("a.yaml", "a: 1\na: 2\n", "line 2, column 1: key 'a' appears twice"),
        ("a.json", '{"a": 1,\n "b": }', "line 2, column 7"),
        ("a.json", '{"a": 1, "a": 2}', "key 'a' appears twice"),
        ("a.yaml", "a: \x07\n", "line 1"),
        ("a.yaml", "", "no objects"),
        ("a.yaml", "- 1\n", "document 1: must be an object"),
        ("a.yaml", HEAD + "metadata: {name: a}\nspec: {1: 2}\n", "spec: key 1 must be text"),
        ("a.yaml", HEAD + "metadata: {name: a}\nspec: {quota: {gpu: .nan}}\n", "spec.quota.gpu: must be a number"),
        ("a.yaml", HEAD + "metadata: {name: Team_A}\n", "metadata.name"),
        ("a.json", '{"kind": "List", "items": [{"kind": "Project"}]}', "document 1, item 1: apiVersion: is required"),
        ("a.yaml", HEAD + "metadata: []\n", "metadata: must be an object"),
        ("a.yaml", HEAD + "metadata: {name: a, namespace: b}\n", "metadata.namespace"),
        ("a.yaml", HEAD.replace("Project", "Projekt") + "metadata: {name: a}\n", "no kind 'Projekt'"),
        ("a.yaml", HEAD + "metadata: {name: a}\nspec: &x {description: *x}\n", "recursive"),
    ],
)
def test_invalid_files(cli: CliEnvironment, tmp_path: Path, name: str, text: str, error: str) -> None:
    """The error of an invalid file names the position in one line."""
    path = tmp_path / name
    path.write_text(text)
    result = cli.invoke("apply", "-f", str(path))
    assert result.exit_code == 1
    assert error in result.stderr
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.output


def test_yaml_bomb(cli: CliEnvironment, tmp_path: Path) -> None:
    """YAML aliases that expand to billions of values are refused."""
    layers = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 10)]
    path = tmp_path / "bomb.yaml"
    path.write_text("\n".join(["l0: &l0 [x]", *layers]))
    result = cli.invoke("apply", "-f", str(path))
    assert result.exit_code == 1
    assert "values" in result.stderr


def test_times_stay_text(cli: CliEnvironment, tmp_path: Path) -> None:
    """Times in YAML stay text, because JSON has no times."""
    text = (
        "apiVersion: aliquot.dev/v1\nkind: Token\nmetadata: {name: t}\nspec: {user: me, expires: 2030-01-01T00:00:00Z"
    )
    cli.run("apply", "-f", "-", input=text + f", hash: '{'0' * 64}'}}\n")
    assert cli.get("token", "t")["spec"]["expires"] == "2030-01-01T00:00:00Z"


def test_default_namespace(cli: CliEnvironment) -> None:
    """An object without a namespace goes to the namespace of the given or the default project."""
    cli.create("namespace", "runai-team-a")
    text = "apiVersion: aliquot.dev/v1\nkind: Template\nmetadata: {name: t}\nspec: {description: x}\n"
    refused = cli.invoke("apply", "-f", "-", input=text)
    assert (refused.exit_code, "metadata.namespace" in refused.stderr) == (1, True)
    assert cli.run("apply", "-p", "team-a", "-f", "-", input=text) == "template/t created\n"
    assert cli.get("template", "t", "runai-team-a")["metadata"]["namespace"] == "runai-team-a"


def test_a_refused_object_does_not_stop_the_others(cli: CliEnvironment, project_yaml: Text) -> None:
    """An object that the server refuses is an error; the others are applied, and the exit status is 1."""
    template = "apiVersion: aliquot.dev/v1\nkind: Template\nmetadata: {name: t, namespace: runai-gone}\n---\n"
    result = cli.invoke("apply", "-f", "-", input=template + project_yaml())
    assert result.exit_code == 1
    assert result.stdout == "project/team-a created\n"
    assert "template/t: " in result.stderr
