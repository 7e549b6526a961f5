"""The SQLite file: its schema, its migrations, and the checks before it is opened for writing.

All SQL of the store is in this module. A file that is damaged, belongs to another program or has a newer format is
refused before it is opened for writing, so that not one byte of it changes.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from aliquot.errors import Invalid, OutOfSpace, PlatformError, Unavailable
from aliquot.store.driver import ChangeType, Document
from aliquot.store.object_table import Entry, key_of
from aliquot.store.selectors import SelectableFields

APPLICATION_ID = 0x416C6971  # "Aliq": distinguishes our files from other programs' databases
MAGIC = b"SQLite format 3\0"

# Migration i upgrades the file from format i to i + 1. Released migrations never change; add another one.
MIGRATIONS = (
    """
    CREATE TABLE objects (
        kind TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, document BLOB NOT NULL,
        PRIMARY KEY (kind, namespace, name)
    );
    CREATE TABLE log (
        revision INTEGER PRIMARY KEY, kind TEXT NOT NULL, type TEXT NOT NULL, document BLOB NOT NULL, was TEXT
    );
    CREATE INDEX log_by_kind ON log (kind, revision);
    """,
)


def inspect(path: Path, migrations: Sequence[str] = MIGRATIONS) -> None:
    """Raises `Invalid` for a file that must not be opened for writing, without changing it."""
    try:
        if _is_new(path):
            return
        with path.open("rb") as file:
            header = file.read(100)
    except OSError as exc:
        raise _refused(path, f"cannot be read: {(exc.strerror or str(exc)).lower()}") from exc
    if len(header) < 100 or not header.startswith(MAGIC):
        raise _refused(path, "is not a database of ours, or its beginning is damaged")
    (application,) = struct.unpack(">I", header[68:72])
    if application != APPLICATION_ID:
        raise _refused(path, "belongs to another program")
    try:
        with _read_only(path) as db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as exc:
        raise _refused(path, f"is damaged ({exc})") from exc
    if version > len(migrations):
        raise Invalid(
            f"{path} was written by a newer Aliquot (format {version}; this one knows {len(migrations)})",
            hint="start the newer version, or choose another --data-dir; the file was not changed",
        )
    if verdict != "ok":
        raise _refused(path, f"is damaged ({verdict.splitlines()[-1]})")


@contextmanager
def _read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that leaves no files beside the database."""
    log, memory = Path(f"{path}-wal"), Path(f"{path}-shm")
    hot = log.exists() and log.stat().st_size > 0
    created_here = hot and not memory.exists()  # SQLite creates it to read the log; a reader does not remove it
    try:
        # Immutable mode takes no locks and creates no files, but does not read the log.
        mode = "mode=ro" if hot else "immutable=1"
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True)) as db:
            yield db
    finally:
        if created_here:
            memory.unlink(missing_ok=True)


def _refused(path: Path, why: str) -> Invalid:
    return Invalid(f"{path} {why}", hint="restore it from a backup or choose another --data-dir; it was not changed")


def _is_new(path: Path) -> bool:
    return not path.exists() or path.stat().st_size == 0


def open_writer(path: Path, synchronous: str = "FULL", migrations: Sequence[str] = MIGRATIONS) -> sqlite3.Connection:
    """The only connection that writes. With FULL, a commit is on the disk when it returns."""
    if _is_new(path):
        _create(path, migrations)
    db = _connect(path)
    try:
        db.execute(f"PRAGMA synchronous = {synchronous}")
        db.execute("PRAGMA journal_mode = WAL")
        _migrate(db, migrations)
        _empty_log(db)
    except BaseException:
        db.close()
        raise
    return db


def _empty_log(db: sqlite3.Connection) -> None:
    """Moves the write-ahead log into the database file.

    After a failed sync, pages of the log may exist in memory only, and no later sync writes them to the disk. So no
    commit may build on them: the checkpoint writes and syncs them again, and the log starts empty. On a full disk the
    checkpoint cannot run; there the write fails, not the sync, so the log can be trusted.
    """
    try:
        (busy, _, _) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.OperationalError as exc:
        if exc.sqlite_errorcode != sqlite3.SQLITE_FULL:
            raise
        return
    if busy:
        raise sqlite3.OperationalError("the write-ahead log is in use")


def _create(path: Path, migrations: Sequence[str]) -> None:
    """Creates the file under another name and renames it, so that a kill never leaves a file that we would refuse."""
    draft = path.with_name(f"{path.name}.new")
    try:
        _remove(draft)
        with closing(_connect(draft)) as db:
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute("PRAGMA journal_mode = WAL")
            _migrate(db, migrations)
        _remove(path)  # the log of a removed file would be applied to the new one
        draft.replace(path)
    except BaseException:
        _remove(draft)
        raise
    sync_folder(path.parent)


def _remove(path: Path) -> None:
    for suffix in ("", "-journal", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def sync_folder(path: Path) -> None:
    """Makes a rename in this folder durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _migrate(db: sqlite3.Connection, migrations: Sequence[str]) -> None:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    for number in range(version, len(migrations)):
        db.executescript(f"BEGIN IMMEDIATE; {migrations[number]} PRAGMA user_version = {number + 1}; COMMIT;")


def open_reader(path: Path) -> sqlite3.Connection:
    db = _connect(path)
    db.execute("PRAGMA query_only = 1")
    return db


@contextmanager
def reading(db: sqlite3.Connection) -> Iterator[None]:
    """A read transaction: all reads inside see the same snapshot."""
    db.execute("BEGIN")
    try:
        yield
    finally:
        if db.in_transaction:
            db.execute("COMMIT")


def _connect(path: Path) -> sqlite3.Connection:
    # We begin and end transactions ourselves. Each connection is used by one thread at a time.
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)


class Tables:
    """The ObjectTable of one connection. The caller begins and ends the transaction."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self.revision = revision(db)
        self.entries: list[Entry] = []

    def find(self, kind: str, namespace: str, name: str) -> Document | None:
        return find(self.db, kind, namespace, name)

    def next_revision(self) -> int:
        return self.revision + 1

    def apply(self, entry: Entry) -> None:
        self.revision = entry.revision
        key = key_of(entry)
        if entry.type == "DELETED":
            self.db.execute("DELETE FROM objects WHERE kind = ? AND namespace = ? AND name = ?", key)
        else:
            self.db.execute(
                "INSERT INTO objects VALUES (?, ?, ?, ?)"
                " ON CONFLICT (kind, namespace, name) DO UPDATE SET document = excluded.document",
                (*key, entry.document.raw),
            )
        was = None if entry.was is None else json.dumps([entry.was.labels, entry.was.fields])
        self.db.execute(
            "INSERT INTO log VALUES (?, ?, ?, ?, ?)",
            (entry.revision, entry.kind, entry.type, entry.document.raw, was),
        )
        self.entries.append(entry)

    def trim(self, length: int) -> None:
        self.db.execute("DELETE FROM log WHERE revision <= ?", (self.revision - length,))


def revision(db: sqlite3.Connection) -> int:
    """The revision of the newest change. The log always contains it."""
    (newest,) = db.execute("SELECT max(revision) FROM log").fetchone()
    return newest or 0


def oldest(db: sqlite3.Connection) -> int:
    """The oldest revision from which a watch may start."""
    (first,) = db.execute("SELECT min(revision) FROM log").fetchone()
    return first - 1 if first else 0


def find(db: sqlite3.Connection, kind: str, namespace: str, name: str) -> Document | None:
    row = db.execute(
        "SELECT document FROM objects WHERE kind = ? AND namespace = ? AND name = ?", (kind, namespace, name)
    ).fetchone()
    return Document(raw=row[0]) if row else None


def listed(db: sqlite3.Connection, kind: str, namespace: str | None, hints: Sequence[bytes] = ()) -> Iterator[Document]:
    """Documents ordered by namespace and name, only those that contain every hint."""
    conditions, values = ["kind = ?"], [kind, *hints]
    if namespace is not None:
        conditions.append("namespace = ?")
        values.insert(1, namespace)
    conditions += ["instr(document, ?)"] * len(hints)
    # Built from constants only; every value is a parameter.
    query = f"SELECT document FROM objects WHERE {' AND '.join(conditions)} ORDER BY namespace, name"  # noqa: S608
    rows = db.execute(query, values)
    return (Document(raw=raw) for (raw,) in rows)


def count(db: sqlite3.Connection, kind: str) -> int:
    (number,) = db.execute("SELECT count(*) FROM objects WHERE kind = ?", (kind,)).fetchone()
    return int(number)


def logged(db: sqlite3.Connection, kind: str, after: int, upto: int) -> list[Entry]:
    rows = db.execute(
        "SELECT revision, type, document, was FROM log WHERE kind = ? AND revision > ? AND revision <= ?"
        " ORDER BY revision",
        (kind, after, upto),
    )
    return [_entry(kind, *row) for row in rows]


def newest(db: sqlite3.Connection, after: int) -> list[Entry]:
    """All changes after a revision, of every kind, in order."""
    rows = db.execute(
        "SELECT kind, revision, type, document, was FROM log WHERE revision > ? ORDER BY revision", (after,)
    )
    return [_entry(*row) for row in rows]


def _entry(kind: str, number: int, type_: ChangeType, raw: bytes, was: str | None) -> Entry:
    return Entry(number, kind, type_, Document(raw=raw), SelectableFields(*json.loads(was)) if was else None)


def translated(exc: sqlite3.Error | OSError, path: Path) -> PlatformError:
    """The platform error for an error of SQLite or of the files beside the database."""
    code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL or (isinstance(exc, OSError) and exc.errno in (errno.ENOSPC, errno.EDQUOT)):
        return OutOfSpace(f"the disk of {path.parent} is full; nothing was changed", hint="free some space and repeat")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return Unavailable(f"{path} is damaged ({exc})", hint="stop the server and restore the file from a backup")
    if code == sqlite3.SQLITE_READONLY:
        return Unavailable(f"{path} cannot be written ({exc})", hint="check the owner and mode of the data folder")
    return Unavailable(f"{path} cannot be read or written now ({exc})", hint="check the disk, then repeat")
