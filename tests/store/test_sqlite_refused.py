"""Files that the store refuses: it gives the reason and leaves them unchanged, byte for byte."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from aliquot.errors import Invalid
from aliquot.store.drivers.sqlite import SqliteDriver
from aliquot.store.drivers.sqlite_database import MIGRATIONS
from support.stores.namespace import DEPARTMENT, document

PAGE = 4096


async def filled(path: Path, objects: int = 60) -> Path:
    """A closed database of ours with a few objects."""
    driver = SqliteDriver(path)
    for number in range(objects):
        await driver.create(DEPARTMENT, document(DEPARTMENT, f"d{number}", annotations={"note": "x" * 300}))
    await driver.close()
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


@contextmanager
def refused(path: Path, why: str) -> Iterator[None]:
    """Opening the file is refused for this reason, and nothing in its folder changes."""
    before = contents(path.parent)
    with pytest.raises(Invalid, match=why) as error:
        yield
    assert str(path) in error.value.message
    assert "\n" not in str(error.value)
    assert contents(path.parent) == before


async def test_text_file(tmp_path: Path) -> None:
    """A text file is refused."""
    path = tmp_path / "aliquot.db"
    path.write_text("These are my notes. " * 100)
    with refused(path, "is not a database of ours"):
        SqliteDriver(path)


async def test_short_file(tmp_path: Path) -> None:
    """A file of a few bytes is refused."""
    path = tmp_path / "aliquot.db"
    path.write_bytes(b"SQLite format 3\0")
    with refused(path, "is not a database of ours, or its beginning is damaged"):
        SqliteDriver(path)


@pytest.mark.parametrize("part", [0.3, 0.5, 0.9])
async def test_truncated(tmp_path: Path, part: float) -> None:
    """A truncated database is refused as damaged."""
    path = await filled(tmp_path / "aliquot.db")
    os.truncate(path, int(path.stat().st_size * part))
    with refused(path, "is damaged"):
        SqliteDriver(path)


async def test_truncated_by_one_page(tmp_path: Path) -> None:
    """A database without its last page is refused."""
    path = await filled(tmp_path / "aliquot.db")
    os.truncate(path, path.stat().st_size - PAGE)
    with refused(path, "is damaged"):
        SqliteDriver(path)


async def test_every_damaged_page(tmp_path: Path) -> None:
    """A damaged page anywhere is detected before anything is written."""
    path = await filled(tmp_path / "aliquot.db")
    sound = path.read_bytes()
    assert len(sound) > 8 * PAGE
    for start in range(PAGE, len(sound), PAGE):
        flipped = bytes(byte ^ 0xFF for byte in sound[start : start + PAGE])
        path.write_bytes(sound[:start] + flipped + sound[start + PAGE :])
        with refused(path, "is damaged"):
            SqliteDriver(path)


async def test_other_program(tmp_path: Path) -> None:
    """Another program's database is refused."""
    path = tmp_path / "aliquot.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE songs (title TEXT)")
        db.commit()
    with refused(path, "belongs to another program"):
        SqliteDriver(path)


async def test_other_program_in_use(tmp_path: Path) -> None:
    """It is also refused while that program has it open."""
    path = tmp_path / "aliquot.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE songs (title TEXT)")
        db.commit()
        with refused(path, "belongs to another program"):
            SqliteDriver(path)


async def test_newer_format(tmp_path: Path) -> None:
    """A database of a newer Aliquot is refused with both format numbers."""
    path = await filled(tmp_path / "aliquot.db")
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")
        db.commit()
    with refused(path, rf"written by a newer Aliquot \(format 99; this one knows {len(MIGRATIONS)}\)"):
        SqliteDriver(path)


async def test_newer_format_in_the_log(tmp_path: Path) -> None:
    """The same when the newer format is only in the write-ahead log, which stays unchanged too."""
    alive = await filled(tmp_path / "alive.db")
    path = tmp_path / "copy" / "aliquot.db"
    path.parent.mkdir()
    with closing(sqlite3.connect(alive)) as db:
        db.execute("PRAGMA user_version = 99")
        db.commit()
        for suffix in ("", "-wal"):
            shutil.copy(f"{alive}{suffix}", f"{path}{suffix}")
    with refused(path, "newer Aliquot"):
        SqliteDriver(path)


async def test_folder(tmp_path: Path) -> None:
    """A folder at the database's path is not removed."""
    path = tmp_path / "aliquot.db"
    path.mkdir()
    with refused(path, "cannot be read: is a directory"):
        SqliteDriver(path)
    assert path.is_dir()


# Python itself may be unreadable to the other user, so everything is loaded first.
_AS_SOMEBODY_ELSE = """
import asyncio, os, sys
from pathlib import Path
from aliquot.errors import Invalid
from aliquot.store.drivers.sqlite import SqliteDriver

async def main():
    try:
        SqliteDriver(Path(sys.argv[1]))
    except Invalid as exc:
        print(exc.message)

if os.geteuid() == 0:
    os.setuid(65534)
asyncio.run(main())
"""


async def test_unreadable() -> None:
    """An unreadable file is named with the reason."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        path = await filled(Path(name) / "aliquot.db", 1)
        path.chmod(0)
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", _AS_SOMEBODY_ELSE, str(path)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == f"{path} cannot be read: permission denied\n"


async def test_empty_file(tmp_path: Path) -> None:
    """An empty file is treated as a missing one."""
    path = tmp_path / "aliquot.db"
    path.touch()
    await filled(path, 1)
    assert path.stat().st_size > 0


async def test_left_over_log(tmp_path: Path) -> None:
    """The write-ahead log of a removed database is not applied to the new one."""
    alive = SqliteDriver(tmp_path / "old.db")
    await alive.create(DEPARTMENT, document(DEPARTMENT, "ghost"))
    shutil.copy(tmp_path / "old.db-wal", tmp_path / "aliquot.db-wal")
    await alive.close()
    driver = SqliteDriver(tmp_path / "aliquot.db")
    try:
        assert await driver.count(DEPARTMENT) == 0
        await driver.create(DEPARTMENT, document(DEPARTMENT, "first"))
    finally:
        await driver.close()
