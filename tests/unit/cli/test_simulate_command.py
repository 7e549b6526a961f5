"""`aliquot simulate`: input, output and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from aliquot.cli.main import aliquot

FILE = """
name: busy
nodes: [{name: n1, gpus: 2}]
projects: [{name: a, quota: {gpu: 1}}, {name: b, quota: {gpu: 1}}]
workloads:
  - {name: b1, project: b, request: {gpu: 1}, tasks: [{state: running, node: n1}]}
  - {name: b2, project: b, request: {gpu: 1}, tasks: [{state: running, node: n1}]}
  - {name: a1, project: a, request: {gpu: 1}}
"""


def simulate(*arguments: str, input: str | None = FILE) -> Result:
    return CliRunner().invoke(aliquot, ["simulate", *arguments], input=input)


def simulate_json(*arguments: str, input: str | None = FILE) -> Any:
    result = simulate(*arguments, input=input)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return json.loads(result.stdout)


def test_from_stdin() -> None:
    """A scenario from stdin gives a result."""
    result = simulate_json("-")
    assert (result["name"], len(result["rounds"])) == ("busy", 1)


def test_from_files(tmp_path: Path) -> None:
    """Files may be YAML or JSON, with absolute times."""
    (tmp_path / "x.yaml").write_text("now: 2026-01-01T00:00:00Z\n" + FILE)
    data = {"now": "2026-01-01T00:00:00Z", "projects": [{"name": "a", "created": "2025-01-01T00:00:00Z"}]}
    (tmp_path / "x.json").write_text(json.dumps(data))
    assert simulate_json(str(tmp_path / "x.yaml"))["name"] == "busy"
    assert simulate_json(str(tmp_path / "x.json"))["final"]["fairShare"] == {"a": {"gpu": 0.0}}


def test_list_of_scenarios() -> None:
    """A list of scenarios gives a list of results."""
    result = simulate_json("-", input="[{name: x}, {name: y}]")
    assert [each["name"] for each in result] == ["x", "y"]
    assert simulate_json("-", input="[]") == []


def test_rounds() -> None:
    """--rounds overrides the file, and exactly that many rounds run."""
    assert len(simulate_json("-", "--rounds", "5", input="rounds: 2\n" + FILE)["rounds"]) == 5
    assert len(simulate_json("-", input="rounds: 2\n" + FILE)["rounds"]) == 2


def test_timing() -> None:
    """--timing adds the times of loading and planning, and the memory."""
    assert set(simulate_json("-", "--timing")["rounds"][0]["timing"]) == {"loadMs", "planMs", "peakMiB"}


def test_invalid_file() -> None:
    """An invalid file gives exit status 2, a line with the path of each fault, and nothing on stdout."""
    result = simulate("-", input="projects: [{name: a}, {name: b, quota: {gpu: -1}}]\nteams: 1\n")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "projects[1].quota.gpu: must be >= 0" in result.stderr.splitlines()[0]
    assert "teams: is not a field here" in result.stderr.splitlines()[1]


def test_syntax_errors() -> None:
    """Text that cannot be parsed gives exit status 2 and a line that names the file."""
    for text in ("a: [", "a: 1\na: 2\n", "---\na: 1\n---\nb: 1\n", "", "\x00"):
        result = simulate("-", input=text)
        assert (result.exit_code, result.stdout) == (2, ""), text
        assert result.stderr.startswith("error: stdin: ")


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe",
        b'{"rounds": ' + b"9" * 5000 + b"}",
        b'{"name": "\\ud800"}',
        b'{"rounds": 1e999}',
        b"[" * 100_000,
        b"a: &a [*a]",
        b"rounds: 0o9",
    ],
)
@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_odd_files(tmp_path: Path, content: bytes, suffix: str) -> None:
    """Any invalid content gives one line and exit status 2."""
    path = tmp_path / f"x.{suffix}"
    path.write_bytes(content)
    result = simulate(str(path), input=None)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {path}: ")


def test_fault_in_a_step() -> None:
    """Faults that appear only while the steps run are reported in the same way."""
    text = FILE + "steps: [{nodes: [{name: n1, gpus: 1}]}]\n"
    result = simulate("-", input=text)
    assert result.exit_code == 2
    assert "steps[0].nodes[0]: takes away GPU 1, which a1-0-0 holds" in result.stderr


def test_missing_file() -> None:
    """A file that cannot be opened is an ordinary error with exit status 1."""
    result = simulate("/nowhere/x.yaml")
    assert result.exit_code == 1
    assert "cannot read /nowhere/x.yaml" in result.stderr


def test_no_file() -> None:
    """Without a file the usage is wrong."""
    assert simulate().exit_code == 2


def test_table() -> None:
    """Each round has tables with the projects and the workloads."""
    result = simulate("-", "--format", "table", "--rounds", "2")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "busy: round 1"
    assert lines[1].split("   ")[0] == "PROJECT"
    evicted = next(line for line in lines if line.startswith("b2"))
    assert evicted.split() == ["b2", "b", "evicted", "0", "-", "reclaimed", "by", "a/a1"]
    assert lines[-1] == "not stable: more rounds would change more"


def test_table_of_steps() -> None:
    """Steps have tables too, even if they delete workloads."""
    result = simulate("-", "--format", "table", input=FILE + "steps: [{delete: [b1, b2]}]\n")
    assert "busy: step 1" in result.stdout
    assert result.stdout.splitlines()[-1] == "stable"


def test_explain_evicted() -> None:
    """The explanation of an evicted workload names the other one, and why it is still pending."""
    result = simulate("-", "--explain", "b2", "--rounds", "3")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "b2-0-0 was stopped: reclaimed by a/a1."
    assert lines[1] == "b2 of project b waits for 1 of 1 tasks."
    assert lines[-1] == "It is number 1 of 1 that wait in project b."


def test_explain_running() -> None:
    """The explanation of a running workload says where it runs."""
    assert simulate("-", "--explain", "b1").stdout == "b1-0-0 runs on n1, GPU 0.\n"


def test_explain_unknown() -> None:
    """A workload that is not in the file is an error."""
    result = simulate("-", "--explain", "zz")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no workload is called 'zz'" in result.stderr


def test_completion_of_workloads(tmp_path: Path) -> None:
    """The shell completes names of workloads in the file that was typed before."""
    path = tmp_path / "x.yaml"
    path.write_text(FILE)
    line = f"aliquot simulate {path} --explain b"
    env = {"_ALIQUOT_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": "4"}
    result = CliRunner().invoke(aliquot, [], env=env)
    assert [each.partition(",")[2] for each in result.stdout.splitlines()] == ["b1", "b2"]


def test_control_characters_do_not_reach_the_terminal() -> None:
    """Names from a file are printed without control characters."""
    result = simulate("-", input='"\\e[31mx": 1\n')
    assert result.exit_code == 2
    assert "\x1b" not in result.stderr
