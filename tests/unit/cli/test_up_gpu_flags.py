"""The GPU flags of `aliquot up`."""

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
    """The choices are those of the platform, except MPS, which a job requests and a node cannot."""
    assert choices("gpu_overrun") == {policy.value for policy in OverrunPolicy}
    assert choices("gpu_compute") == {mode.value for mode in ComputeMode} - {ComputeMode.MPS.value}


def test_defaults() -> None:
    """The defaults of the flags are those of the settings."""
    defaults = [FLAGS[name].default for name in ("gpu_overrun", "gpu_reserve_mib", "gpu_compute")]
    settings = GpuSettings()

    assert defaults == [settings.overrun.value, settings.reserve_mib, settings.compute.value]
    assert not settings.mps  # a switch, which is off by default


@pytest.mark.parametrize(
    "arguments", ["--gpu-overrun shout", "--gpu-reserve-mib -1", "--gpu-reserve-mib 1G", "--gpu-compute mps"]
)
def test_invalid_values(arguments: str) -> None:
    """An invalid value is refused before the server starts; the error names the flag."""
    result = CliRunner().invoke(up, arguments.split())

    assert result.exit_code == 2
    assert f"Invalid value for '{arguments.split()[0]}'" in result.output
