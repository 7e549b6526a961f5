"""Files that are injected into a pod: the pod sees them and can neither change nor replace them."""

from __future__ import annotations

from pathlib import Path

from aliquot.backends.local.runtime import Volume
from aliquot.gpu.injection import File, Injection, Mount
from support.pods.agent_harness import AgentHarness, needs_root
from support.pods.single_pod import pod_output

pytestmark = needs_root
PLACES = (
    File("/etc/ld.so.preload-like", "ours\n"),
    File("/usr/local/gpushare/word", "ours\n"),
    File("/run/gpushare/limits", "ours\n"),
)


def own_text(path: str) -> str:
    return Path(path).read_text()


def names_in(folder: str) -> set[str]:
    return {path.name for path in Path(folder).iterdir()}


async def test_files_appear_where_the_system_is_read_only(isolated_harness: AgentHarness) -> None:
    """A file can be injected into /etc, below /usr and below /run, next to what was there before."""
    script = (
        "cat /etc/ld.so.preload-like /usr/local/gpushare/word /run/gpushare/limits; ls -A /etc | sort | tr '\\n' ' '"
    )

    *words, names = (await pod_output(isolated_harness, script, Injection(files=PLACES))).splitlines()

    assert words == ["ours"] * 3
    assert set(names.split()) >= names_in("/etc") | {"ld.so.preload-like"}


async def test_a_pod_cannot_replace_them(isolated_harness: AgentHarness) -> None:
    """Neither writing, removing, nor moving a folder gives a pod another file at an injected path."""
    script = """
        exec 2>/dev/null
        for file in /etc/ld.so.preload-like /usr/local/gpushare/word /run/gpushare/limits; do
            echo mine > $file; rm -f $file; mv $file $file.old
            folder=${file%/*}
            mv $folder $folder.old; rm -rf $folder
            mkdir -p $folder; echo mine > $file
        done
        mv /run /run.old; mv /usr /usr.old; mv /etc /etc.old; mkdir -p /run/gpushare; echo mine > /run/gpushare/limits
        mount -t tmpfs none /run/gpushare; umount /run/gpushare; umount -l /run/gpushare/limits
        cat /etc/ld.so.preload-like /usr/local/gpushare/word /run/gpushare/limits
    """
    assert await pod_output(isolated_harness, script, Injection(files=PLACES)) == "ours\n" * 3


async def test_a_writable_mount(isolated_harness: AgentHarness, tmp_path: Path) -> None:
    """A writable mount is created where it is missing, and what a pod writes to it is visible outside."""
    source = tmp_path / "kept" / "ledger"
    ledger = Mount("/run/gpushare/ledger", str(source), read_only=False, create_bytes=8)
    script = "printf hallo | dd of=/run/gpushare/ledger conv=notrunc 2>/dev/null"

    await pod_output(isolated_harness, script, Injection(mounts=(ledger,)))

    assert source.read_bytes() == b"hallo\0\0\0"


async def test_a_file_of_the_image_is_kept(isolated_harness: AgentHarness) -> None:
    """Text that is appended to a file of the system comes after its own text."""
    added = File("/etc/host.conf", "# ours\n", append=True)

    output = await pod_output(isolated_harness, "cat /etc/host.conf", Injection(files=(added,)))

    assert output == own_text("/etc/host.conf") + "# ours\n"


async def test_a_volume_cannot_cover_an_injected_file(isolated_harness: AgentHarness) -> None:
    """An injected file stays visible above a volume that a pod mounts over its folder."""
    volume = Volume("memory", "/run/gpushare")

    assert (
        await pod_output(isolated_harness, "cat /run/gpushare/limits", Injection(files=PLACES), volumes=(volume,))
        == "ours\n"
    )
