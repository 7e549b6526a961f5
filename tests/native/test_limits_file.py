"""The limits file takes precedence over the environment, and the agent changes a limit by rewriting it."""

from __future__ import annotations

from pathlib import Path

import pytest

from native.rig import CONTEXT, MIB, Rig, line

CARD0 = "GPU-01a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0a0"
CARD1 = "GPU-02a1a1a1-a1a1-a1a1-a1a1-a1a1a1a1a1a1"


def limits(card: str = CARD0, mib: int = 2048, tenant: str = "t1") -> str:
    gpu = f"gpu {card} limit={mib * MIB} weight=500 context={CONTEXT * MIB}"
    return f"gpushare 1\ntenant {tenant}\nmode timesharing\n{gpu}\nend\n"


@pytest.fixture
def container(rig: Rig) -> Rig:
    """A container as an agent prepares it: limits and a ledger of zeros."""
    rig.extra = {"GPUSHARE_FOLDER": str(rig.folder)}
    (rig.folder / "limits").write_text(limits())
    rig.ledger.write_bytes(bytes(131072))
    return rig


def write(path: Path, text: str) -> None:
    with path.open("r+") as f:
        f.write(text)
        f.truncate()


def test_environment_does_not_raise_the_limit(container: Rig) -> None:
    """Environment variables have no effect when there is a limits file."""
    assert container.python("print(Cuda().info()[1] // MIB)", limit=16000) == ["2048"]


def test_devices_are_matched_by_uuid(container: Rig) -> None:
    """A limit applies to the GPU with that UUID, whatever its index in CUDA or NVML."""
    write(container.folder / "limits", limits(CARD1, 1024))
    output = container.python(
        """
        cuda, nvml = Cuda(1), Nvml()
        print(cuda.info()[1] // MIB, nvml.memory(nvml.device(cuda.uuid())).total // MIB)
        """
    )
    assert output == ["1024", "1024"]


def test_other_gpus_are_refused(container: Rig) -> None:
    """A GPU that is not in the file cannot be used."""
    result = container.try_python("Cuda(1)")
    assert "cuDevicePrimaryCtxRetain answered 2" in result.err
    assert f"{CARD1} is not among this container's GPUs" in result.err


@pytest.mark.parametrize("mib,expected", [(1024, "2 0 1024"), (4096, "0 2560 4096")])
def test_limit_changes_while_a_program_runs(container: Rig, mib: int, expected: str) -> None:
    """A lowered limit frees nothing and refuses new memory; a raised limit takes effect at once."""
    program = """
    import time
    cuda = Cuda()
    cuda.alloc(1000 * MIB)
    print("there", flush=True)
    input()
    time.sleep(0.06)
    code = cuda.status("cuMemAlloc_v2", c.byref(u64()), size_t(18 * MIB))
    print(code, *(n // MIB for n in cuda.info()))
    """
    process = container.start(program)
    assert line(process) == "there"
    write(container.folder / "limits", limits(mib=mib))
    out, err = process.communicate("\n", timeout=30)
    assert out.strip() == expected, err


def test_half_written_file_changes_nothing(container: Rig) -> None:
    """While the agent writes the file, the last complete version applies."""
    process = container.start(
        """
        import time
        cuda = Cuda()
        print("there", flush=True)
        input()
        time.sleep(0.06)
        print(cuda.info()[1] // MIB)
        """
    )
    assert line(process) == "there"
    write(container.folder / "limits", limits(mib=9000)[:40])
    out, _ = process.communicate("\n", timeout=30)
    assert out.strip() == "2048"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gpushare 2\ntenant t\nend\n",
        limits().replace("end\n", ""),
        limits().replace("limit=", "limit=x"),
        limits() + "more\n",
        limits().replace("mode timesharing", "mode free"),
        limits().replace("tenant t1\n", ""),
        limits().replace(CARD0, "GPU-1"),
    ],
)
def test_bad_files_fail_closed(container: Rig, text: str) -> None:
    """With an invalid file all GPU memory is refused, whatever the environment contains."""
    write(container.folder / "limits", text)
    result = container.try_python("Cuda()", limit=16000)
    assert "cuDevicePrimaryCtxRetain answered 2" in result.err
    assert "GPU memory is refused" in result.err


def test_only_the_agent_creates_the_ledger(container: Rig) -> None:
    """With a limits file, a process does not create a missing ledger."""
    container.ledger.unlink()
    assert "cannot be opened" in container.try_python("Cuda()").err
    assert not container.ledger.exists()
