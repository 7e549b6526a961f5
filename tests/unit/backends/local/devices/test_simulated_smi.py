"""The output of `nvidia-smi` on simulated nodes, run as pods run it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from aliquot.backends.local.devices import simulated_smi

HALF = {"uuid": "GPU-sim-dgx1-1-3", "model": "Tesla V100-SXM2-32GB", "memoryMiB": 16255}
LONG = {"uuid": "GPU-sim-l-0", "model": "NVIDIA GeForce RTX 4090 Laptop GPU", "memoryMiB": 16376}


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A function that runs the program with these GPUs and arguments."""

    def run_smi(*arguments: str, gpus: tuple[dict[str, object], ...] = (HALF,)) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "gpus.json"
        file.write_text(json.dumps(gpus))
        command = [sys.executable, "-I", "-S", simulated_smi.__file__, str(file), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    return run_smi


def test_the_table_shows_the_fraction(run: Run) -> None:
    """One GPU with index 0, its model, the fraction as its whole memory, and a line that says simulated."""
    done = run()

    assert done.returncode == 0
    assert "|   0  Tesla V100-SXM2-32GB" in done.stdout
    assert "0MiB / 16255MiB" in done.stdout
    assert "simulated" in done.stdout
    assert "No running processes found" in done.stdout


@pytest.mark.parametrize("gpus", [(HALF,), (HALF, LONG), (LONG,)])
def test_the_table_is_aligned(run: Run, gpus: tuple[dict[str, object], ...]) -> None:
    """Every line of the table has the same width, whatever the models are called."""
    lines = run(gpus=gpus).stdout.splitlines()[1:]

    assert {len(line) for line in lines if line} == {91}


def test_the_list(run: Run) -> None:
    """-L has one line per GPU in the format of NVIDIA's tool; stderr says that they are simulated."""
    done = run("-L", gpus=(HALF, LONG))

    assert done.stdout.splitlines() == [
        "GPU 0: Tesla V100-SXM2-32GB (UUID: GPU-sim-dgx1-1-3)",
        "GPU 1: NVIDIA GeForce RTX 4090 Laptop GPU (UUID: GPU-sim-l-0)",
    ]
    assert "simulated" in done.stderr


def test_csv_with_header_and_units(run: Run) -> None:
    """Fields come in the requested order, with their units in header and cells."""
    done = run("--query-gpu=name,memory.total,memory.free,utilization.gpu", "--format=csv")

    assert done.stdout.splitlines() == [
        "name, memory.total [MiB], memory.free [MiB], utilization.gpu [%]",
        "Tesla V100-SXM2-32GB, 16255 MiB, 16255 MiB, 0 %",
    ]


def test_csv_for_scripts(run: Run) -> None:
    """Without header and units there are only numbers."""
    assert run("--query-gpu=memory.total", "--format=csv,noheader,nounits").stdout == "16255\n"


def test_processes_as_csv(run: Run) -> None:
    """There are none, so there is only the header."""
    done = run("--query-compute-apps=pid,used_memory", "--format=csv")

    assert (done.returncode, done.stdout) == (0, "pid, used_memory [MiB]\n")


def test_the_report_of_memory(run: Run) -> None:
    """-q -d MEMORY gives name and value, and says simulated."""
    lines = [line.split(":", 1) for line in run("-q", "-d", "MEMORY").stdout.splitlines() if " : " in line + " "]
    values = {name.strip(): value.strip() for name, value in lines}

    assert (values["Total"], values["Used"], values["Free"]) == ("16255 MiB", "0 MiB", "16255 MiB")
    assert values["Product Name"] == "Tesla V100-SXM2-32GB"
    assert "simulated" in values["Driver Version"]


def test_one_of_several(run: Run) -> None:
    """-i takes an index or a UUID."""
    for which in ("1", "GPU-sim-l-0"):
        done = run("-i", which, "--query-gpu=index,memory.total", "--format=csv,noheader,nounits", gpus=(HALF, LONG))
        assert done.stdout == "1, 16376\n"


def test_a_pod_without_gpus(run: Run) -> None:
    """The output says that there are no GPUs, with the exit status of NVIDIA's tool."""
    done = run(gpus=())

    assert (done.returncode, done.stdout) == (6, "No devices were found\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--query-gpu=color", "--format=csv"], 'Field "color" is not a valid field to query.'),
        (["--query-gpu=name", "--format=xml"], '"xml" is not a valid format'),
        (["--fly"], "--fly"),
        (["-i", "7"], "7"),
    ],
)
def test_unsupported_arguments(run: Run, arguments: list[str], message: str) -> None:
    """An unknown field, format, option or GPU is named, with exit status 2."""
    done = run(*arguments)

    assert done.returncode == 2
    assert message in done.stdout
