"""`aliquot replay`: options, output and errors."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from aliquot.cli.main import aliquot

TRACE = """submit,duration,gpus,project
0,1000,2,b
100,50,1,a
110,10,1,b
"""


def replay(*arguments: str, input: str = TRACE) -> Result:
    return CliRunner().invoke(aliquot, ["replay", "-", "--nodes", "1", "--gpus-per-node", "2", *arguments], input=input)


def replay_json(*arguments: str, input: str = TRACE) -> Any:
    result = replay("--json", "-", *arguments, input=input)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return json.loads(result.stdout)


def test_table() -> None:
    """The table has a column per policy."""
    result = replay("--policy", "binpack", "--policy", "no-preemption")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "stdin (csv): 1 node × 2 GPUs, 2 projects, 3 jobs"
    assert lines[1].split() == ["FIGURE", "BINPACK", "NO-PREEMPTION"]
    row = {line.split("  ")[0]: line.split()[-2:] for line in lines[2:]}
    assert row["evictions"] == ["1", "0"]
    assert row["makespan s"] == ["1,210", "1,050"]


def test_quotas(tmp_path: Path) -> None:
    """Projects have equal quotas by default, so `a` reclaims its GPU from `b`; with quota 0 from a file it waits."""
    assert replay_json()["quotas"] == {"a": 1, "b": 1}
    assert replay_json()["policies"][0]["disruption"]["evictions"] == 1
    path = tmp_path / "q.csv"
    path.write_text("project,gpus\na,0\nb,2\n")
    assert replay_json("--quotas", str(path))["policies"][0]["disruption"]["evictions"] == 0


def test_restart_cost_and_checkpoints() -> None:
    """Restart cost and rare checkpoints lose GPU hours; by default nothing is lost."""
    lost = [
        replay_json("--restart-cost", cost, "--checkpoint-every", every)["policies"][0]["disruption"]["gpuHoursLost"]
        for cost, every in (("0", "0"), ("10m", "0"), ("0", "1h"))
    ]
    assert lost[0] == 0
    assert min(lost[1:]) > 0


def test_teams() -> None:
    """--teams distributes the jobs over projects of equal quota."""
    assert replay_json("--teams", "2")["quotas"] == {"team-00": 1, "team-01": 1}


def test_policy_files(tmp_path: Path) -> None:
    """A policy may come from a file in the format of `aliquot apply`, and be compared with others."""
    path = tmp_path / "calm.yaml"
    path.write_text("kind: SchedulingPolicy\nmetadata: {name: calm}\nspec: {steps: [allocate]}\n")
    results = replay_json("--policy", str(path), "--policy", "newest")["policies"]
    assert [(each["policy"], each["disruption"]["evictions"] > 0) for each in results] == [
        ("calm", False),
        ("newest", True),
    ]


def test_seed() -> None:
    """The seed determines the order of jobs that are submitted at the same time."""
    many = "submit,duration,gpus\n" + "".join(f"0,{seconds},2\n" for seconds in range(1, 30))
    means = [replay_json("--seed", seed, input=many)["policies"][0]["jctSeconds"]["mean"] for seed in ("1", "2", "1")]
    assert means[0] == means[2] != means[1]


def test_charts(tmp_path: Path) -> None:
    """Charts are PNG or SVG files, and equal for equal results."""
    files = [tmp_path / name for name in ("a.png", "a.svg", "b.svg")]
    result = replay(*(argument for file in files for argument in ("--chart", str(file))))
    assert result.exit_code == 0, result.output
    assert files[0].read_bytes()[:4] == b"\x89PNG"
    assert b">binpack<" in files[1].read_bytes()
    assert files[1].read_bytes() == files[2].read_bytes()


def test_json_file(tmp_path: Path) -> None:
    """The table goes to stdout, the figures to the file, and a note names the file."""
    path = tmp_path / "x.json"
    result = replay("--json", str(path))
    assert "FIGURE" in result.stdout
    assert json.loads(path.read_text())["policies"][0]["jobs"]["finished"] == 3
    assert result.stderr == f"figures are in {path}\n"


def test_progress(tmp_path: Path) -> None:
    """On a terminal each policy has a progress bar on stderr; with -q there is none."""
    (tmp_path / "t.csv").write_text(TRACE)

    def terminal_output(*arguments: str) -> str:
        outer, inner = pty.openpty()
        command = [
            sys.executable,
            "-m",
            "aliquot.cli.main",
            "replay",
            str(tmp_path / "t.csv"),
            "--json",
            "-",
            *arguments,
        ]
        subprocess.run(command, stdout=subprocess.PIPE, stderr=inner, check=True)
        os.write(inner, b"END")  # so that there is something to read
        return os.read(outer, 10_000).decode()

    assert "binpack" in terminal_output()
    assert "3/3" in terminal_output()
    assert terminal_output("-q") == "END"


def test_jobs_that_never_start() -> None:
    """A job that can never start is reported with a reason."""
    result = replay(input="submit,duration,gpus\n0,10,1\n0,10,8\n")
    assert result.stderr.startswith("binpack: 1 left in the end; job-1: ")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--policy", "nice"], "error: --policy nice: neither a name nor a file\nhint: names are binpack, "),
        (["--ladder", "2h,1h", "--policy", "ladder"], "error: --ladder 2h,1h: each step must be longer"),
        (["--ladder", "x", "--policy", "ladder"], "error: --ladder x: must be times such as 1h,10h"),
        (["--chart", "x.pdf"], "error: x.pdf: must end in .png or .svg"),
        (["--chart", "no/such/x.png"], "error: no/such/x.png: its folder does not exist"),
        (["--json", "no/such/x.json"], "error: no/such/x.json: its folder does not exist"),
        (["--format", "muri"], "error: stdin: line 1: column job_id is missing"),
        (["--restart-cost", "soon"], "error: Invalid value for '--restart-cost': 'soon' is not a time such as 90, 30s"),
    ],
)
def test_bad_input(arguments: list[str], message: str) -> None:
    """Invalid input gives one line and exit status 2."""
    result = replay(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(message)


def test_bad_policy_files(tmp_path: Path) -> None:
    """The error has the path of the field and the rule."""
    path = tmp_path / "p.yaml"
    for text, message in (
        ("kind: Project", "kind: must be SchedulingPolicy"),
        ("kind: SchedulingPolicy\nmetadata: {name: x}\nspec: {victims: all}", "spec.victims: must be one of"),
        (
            "kind: SchedulingPolicy\nmetadata: {name: x}\nspec: {usage: {weight: 1}}",
            "spec.usage.weight: past use is not",
        ),
    ):
        path.write_text(text)
        result = replay("--policy", str(path))
        assert (result.exit_code, result.stdout) == (2, "")
        assert message in result.stderr
        assert result.stderr.count("\n") == 1


def test_missing_file() -> None:
    """A missing file is an ordinary error with exit status 1."""
    result = CliRunner().invoke(aliquot, ["replay", "/no/such/trace.csv"])
    assert (result.exit_code, result.stderr) == (1, "error: /no/such/trace.csv: No such file or directory\n")


def test_without_matplotlib(tmp_path: Path) -> None:
    """Without matplotlib a replay runs; a chart is refused before the replay starts, with a hint."""
    (tmp_path / "matplotlib.py").write_text("raise ImportError")
    (tmp_path / "t.csv").write_text(TRACE)
    program = "import sys; sys.path.insert(0, sys.argv.pop(1)); from aliquot.cli.main import aliquot; aliquot()"

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", program, str(tmp_path), "replay", str(tmp_path / "t.csv"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert run().returncode == 0
    refused = run("--chart", str(tmp_path / "x.png"))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == "error: charts need matplotlib\nhint: pip install 'aliquot[charts]'\n"
