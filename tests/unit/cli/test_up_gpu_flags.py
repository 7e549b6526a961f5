"""`aliquot up`: what an administrator says about GPUs."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from aliquot.backends.local.devices.memory_audit import OverrunPolicy
from aliquot.backends.local.gpu_settings import GpuSettings
from aliquot.cli.server import up
from aliquot.gpu.fractions import ComputeMode

FLAGS = {option.name: option for option in up.params}


def choices(name: str) -> set[str]:
    kind = FLAGS[name].type
    assert isinstance(kind, click.Choice)
    return set(kind.choices)


def test_every_policy_can_be_chosen() -> None:
    """The flags offer what the platform knows; MPS is asked for by a job, never the way of a node."""
    assert choices("gpu_overrun") == {policy.value for policy in OverrunPolicy}
    assert choices("gpu_compute") == {mode.value for mode in ComputeMode} - {ComputeMode.MPS.value}


def test_the_defaults_are_those_of_the_platform() -> None:
    """Who gives no flag gets what the settings say by themselves."""
    defaults = [FLAGS[name].default for name in ("gpu_overrun", "gpu_reserve_mib", "gpu_compute")]
    wanted = GpuSettings()

    assert defaults == [wanted.overrun.value, wanted.reserve_mib, wanted.compute.value]
    assert not wanted.mps  # a switch: off unless it is given


@pytest.mark.parametrize(
    "arguments", ["--gpu-overrun shout", "--gpu-reserve-mib -1", "--gpu-reserve-mib 1G", "--gpu-compute mps"]
)
def test_what_cannot_be_is_refused(arguments: str) -> None:
    """Before anything is started, with the flag."""
    done = CliRunner().invoke(up, arguments.split())

    assert done.exit_code == 2
    assert f"Invalid value for '{arguments.split()[0]}'" in done.output
