"""The life of the SQLite file: creation, recovery after a kill, and migration between formats."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from aliquot.errors import Invalid, Unavailable
from aliquot.store.drivers import sqlite_database
from aliquot.store.drivers.sqlite import SqliteDriver
from aliquot.store.drivers.sqlite_database import MIGRATIONS
from support.stores.namespace import DEPARTMENT, document

NEXT = (*MIGRATIONS, "ALTER TABLE objects ADD COLUMN colour TEXT NOT NULL DEFAULT 'blue';")


async def names(path: Path) -> list[str]:
    driver = SqliteDriver(path)
    try:
        return [item.name for item in (await driver.list(DEPARTMENT)).items]
    finally:
        await driver.close()


async def filled(path: Path) -> Path:
    driver = SqliteDriver(path)
    for name in ("a", "b", "c"):
        await driver.create(DEPARTMENT, document(DEPARTMENT, name))
    await driver.close()
    return path


def version_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        (version,) = db.execute("PRAGMA user_version").fetchone()
    return int(version)


async def test_new_file(tmp_path: Path) -> None:
    """A new file has the current format and our application id, and no other file is left when it is closed."""
    path = await filled(tmp_path / "store.db")
    assert version_of(path) == len(MIGRATIONS)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA application_id").fetchone() == (sqlite_database.APPLICATION_ID,)
    assert os.listdir(tmp_path) == ["store.db"]


async def test_draft_left_by_a_kill(tmp_path: Path) -> None:
    """A start that was killed while it created the file does not affect the next one."""
    (tmp_path / "store.db.new").write_bytes(b"half a database")
    (tmp_path / "store.db.new-journal").write_bytes(b"half a journal")
    await filled(tmp_path / "store.db")
    assert await names(tmp_path / "store.db") == ["a", "b", "c"]


async def test_no_folder(tmp_path: Path) -> None:
    """A store in a missing folder is refused with the reason."""
    with pytest.raises(Unavailable, match=r"store\.db cannot be read or written now"):
        SqliteDriver(tmp_path / "missing" / "store.db")


async def test_hot_log(tmp_path: Path) -> None:
    """Writes that were only in the write-ahead log at a kill are there after the next start."""
    alive = SqliteDriver(tmp_path / "alive.db")
    await alive.create(DEPARTMENT, document(DEPARTMENT, "a"))
    await alive.create(DEPARTMENT, document(DEPARTMENT, "b"))
    # Exactly what a kill at this moment leaves: the shared memory file is gone with a reboot.
    for suffix in ("", "-wal"):
        shutil.copy(tmp_path / f"alive.db{suffix}", tmp_path / f"killed.db{suffix}")
    await alive.close()
    assert (tmp_path / "killed.db-wal").stat().st_size > 0
    assert await names(tmp_path / "killed.db") == ["a", "b"]


async def test_torn_log(tmp_path: Path) -> None:
    """A log whose last write is torn loses that write only."""
    alive = SqliteDriver(tmp_path / "alive.db")
    await alive.create(DEPARTMENT, document(DEPARTMENT, "a"))
    whole = (tmp_path / "alive.db-wal").stat().st_size
    await alive.create(DEPARTMENT, document(DEPARTMENT, "b"))
    shutil.copy(tmp_path / "alive.db", tmp_path / "killed.db")
    log = (tmp_path / "alive.db-wal").read_bytes()
    (tmp_path / "killed.db-wal").write_bytes(log[: whole + 1000])
    await alive.close()
    assert await names(tmp_path / "killed.db") == ["a"]


async def test_next_format(tmp_path: Path) -> None:
    """A newer program migrates the file and keeps every object."""
    path = await filled(tmp_path / "store.db")
    sqlite_database.inspect(path, NEXT)
    with closing(sqlite_database.open_writer(path, migrations=NEXT)) as db:
        rows = db.execute("SELECT name, colour FROM objects ORDER BY name").fetchall()
        assert rows == [("a", "blue"), ("b", "blue"), ("c", "blue")]
        assert sqlite_database.revision(db) == 3
    assert version_of(path) == len(NEXT)


async def test_next_format_from_nothing(tmp_path: Path) -> None:
    """A new file is created through all migrations."""
    path = tmp_path / "store.db"
    with closing(sqlite_database.open_writer(path, migrations=NEXT)) as db:
        assert db.execute("SELECT colour FROM objects").fetchall() == []
    assert version_of(path) == len(NEXT)


async def test_back_to_the_older_program(tmp_path: Path) -> None:
    """The older program refuses the newer format."""
    path = await filled(tmp_path / "store.db")
    sqlite_database.open_writer(path, migrations=NEXT).close()
    with pytest.raises(Invalid, match="newer Aliquot"):
        SqliteDriver(path)


async def test_migration_that_fails(tmp_path: Path) -> None:
    """A failed migration changes nothing: the old program still reads the file."""
    path = await filled(tmp_path / "store.db")
    broken = (*MIGRATIONS, "CREATE TABLE more (name TEXT); INSERT INTO nowhere VALUES (1);")
    with pytest.raises(sqlite3.OperationalError, match="nowhere"):
        sqlite_database.open_writer(path, migrations=broken)
    assert version_of(path) == len(MIGRATIONS)
    with closing(sqlite3.connect(path)) as db:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert tables == {"objects", "log"}
    assert await names(path) == ["a", "b", "c"]
