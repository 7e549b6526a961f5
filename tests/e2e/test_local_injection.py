"""Files that are put into a pod: they are where they should be, and stay there whatever the pod tries."""

from __future__ import annotations

from pathlib import Path

from aliquot.backends.local.runtime import Volume
from aliquot.gpu.injection import File, Injection, Mount
from support.pods.single import said
from support.pods.world import World, needs_root

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


async def test_files_appear_where_the_system_is_read_only(island: World) -> None:
    """A file can be put into /etc, below /usr and below /run, and all that was there still is."""
    script = (
        "cat /etc/ld.so.preload-like /usr/local/gpushare/word /run/gpushare/limits; ls -A /etc | sort | tr '\\n' ' '"
    )

    *words, names = (await said(island, script, Injection(files=PLACES))).splitlines()

    assert words == ["ours"] * 3
    assert set(names.split()) >= names_in("/etc") | {"ld.so.preload-like"}


async def test_a_pod_cannot_put_its_own_in_their_place(island: World) -> None:
    """Neither writing, removing, nor moving a folder away gives a pod another file at an injected place."""
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
    assert await said(island, script, Injection(files=PLACES)) == "ours\n" * 3


async def test_a_file_may_be_for_writing(island: World, tmp_path: Path) -> None:
    """A mount that is not read-only is made where it is missing, and what a pod writes to it is seen outside."""
    source = tmp_path / "kept" / "ledger"
    ledger = Mount("/run/gpushare/ledger", str(source), read_only=False, create_bytes=8)
    script = "printf hallo | dd of=/run/gpushare/ledger conv=notrunc 2>/dev/null"

    await said(island, script, Injection(mounts=(ledger,)))

    assert source.read_bytes() == b"hallo\0\0\0"


async def test_a_file_of_the_image_is_kept(island: World) -> None:
    """Text that is added to a file of the system comes after what is there."""
    added = File("/etc/host.conf", "# ours\n", append=True)

    told = await said(island, "cat /etc/host.conf", Injection(files=(added,)))

    assert told == own_text("/etc/host.conf") + "# ours\n"


async def test_a_volume_cannot_cover_an_injected_file(island: World) -> None:
    """A volume that a pod mounts over a folder of ours lies below it."""
    volume = Volume("memory", "/run/gpushare")

    assert await said(island, "cat /run/gpushare/limits", Injection(files=PLACES), volumes=(volume,)) == "ours\n"
