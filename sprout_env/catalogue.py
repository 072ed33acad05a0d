"""The index of a store's snapshots: SQLite in WAL mode, rebuilt from the disks when in doubt.

It answers what would need a walk over all disks (children, lists), and holds what belongs to no
disk: leases, owners, and the tombstones of deletions. One file per store, shared by processes;
a store is refused on network file systems, where SQLite's locks do not hold.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from sprout_env.errors import StoreError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS snapshots (
    id TEXT PRIMARY KEY, parent TEXT, task TEXT NOT NULL, turn INTEGER NOT NULL,
    created REAL NOT NULL, owner TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS snapshots_parent ON snapshots (parent);
CREATE TABLE IF NOT EXISTS tombstones (id TEXT PRIMARY KEY, at REAL NOT NULL, parent TEXT);
CREATE TABLE IF NOT EXISTS leases (snapshot TEXT NOT NULL, owner TEXT NOT NULL);
"""


_PATIENCE_S = 30.0


class Row(NamedTuple):
    """One snapshot in the index; ``owner`` is empty for one that outlives its process."""

    id: str
    parent: str | None
    task: str
    turn: int
    created: float
    owner: str


class Catalogue:
    """The index. Methods may be called from any thread."""

    def __init__(self, path: Path | None) -> None:
        self._lock = threading.RLock()
        self._path = path
        place = str(path) if path is not None else ":memory:"
        try:
            self._db = sqlite3.connect(place, timeout=_PATIENCE_S, check_same_thread=False)
        except sqlite3.Error as error:
            raise self._unusable(error) from error
        try:
            self._prepare()
            known = self._read("SELECT 1 FROM snapshots UNION SELECT 1 FROM tombstones")
        except BaseException:
            self._db.close()
            raise
        self.fresh = not known
        """Whether it knows nothing of the disks that exist: it is new, or lost what it held."""

    def _prepare(self) -> None:
        """Set the file up, whoever else is just doing the same.

        Raises:
            StoreError: Others have kept it locked for half a minute, or it cannot be read.
        """
        # SQLite's own patience does not cover the change to WAL: it fails at once while another
        # connection has the file open in its old mode.
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                # An index that a crash sets back is repaired from the disks: no need to wait for
                # devices.
                self._db.execute("PRAGMA synchronous = NORMAL")
                with self._db:
                    self._db.executescript(_SCHEMA)
                return
            except sqlite3.DatabaseError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise self._unusable(error) from error
            time.sleep(0.01)

    def _write(self, sql: str, rows: Iterable[tuple[object, ...]]) -> None:
        with self._trouble(), self._lock, self._db:
            self._db.executemany(sql, rows)

    def _read(self, sql: str, *facts: object) -> list[tuple[str, ...]]:
        with self._trouble(), self._lock:
            return self._db.execute(sql, facts).fetchall()

    @contextmanager
    def _trouble(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.ProgrammingError as error:
            raise StoreError("the catalogue of snapshots is closed: make its env again") from error
        except sqlite3.Error as error:
            raise self._unusable(error) from error

    def _unusable(self, error: sqlite3.Error) -> StoreError:
        said = f"the catalogue of snapshots {self._path}: {error}"
        if not isinstance(error, sqlite3.OperationalError):
            said += f"; move {self._path}* away while nothing uses the store: it is made anew from "
            said += "the disks"
        return StoreError(said)

    def insert(self, row: Row) -> None:
        """Add a snapshot, or replace what is known of it."""
        self._write("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?, ?, ?)", [row])

    def remove(self, id: str) -> None:
        """Forget a snapshot; those that follow it follow its parent instead."""
        with self._trouble(), self._lock, self._db:
            self._db.execute(
                "UPDATE snapshots SET parent = (SELECT parent FROM snapshots WHERE id = ?1) "
                "WHERE parent = ?1",
                (id,),
            )
            self._db.execute("DELETE FROM snapshots WHERE id = ?", (id,))

    def correct(self, gone: Iterable[str], rows: Iterable[Row]) -> None:
        """Forget some snapshots and write down others, in one transaction.

        What other processes have added or kept in the meantime stays.
        """
        with self._trouble(), self._lock, self._db:
            self._db.executemany("DELETE FROM snapshots WHERE id = ?", [(id,) for id in gone])
            self._db.executemany(
                "INSERT INTO snapshots VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
                "parent = excluded.parent, task = excluded.task, turn = excluded.turn, "
                "created = excluded.created",
                rows,
            )

    def ids(self, task: str | None = None) -> tuple[str, ...]:
        """Return all ids, or those of one task, oldest first."""
        if task is None:
            rows = self._read("SELECT id FROM snapshots ORDER BY created")
        else:
            rows = self._read("SELECT id FROM snapshots WHERE task = ? ORDER BY created", task)
        return tuple(row[0] for row in rows)

    def parent(self, id: str) -> str | None:
        """Return the nearest snapshot before ``id`` on its path that still exists."""
        rows = self._read("SELECT parent FROM snapshots WHERE id = ?", id)
        return rows[0][0] if rows else None

    def living(self, id: str | None) -> str | None:
        """Return ``id``, or the nearest before it that is not deleted."""
        while id is not None and (
            rows := self._read("SELECT parent FROM tombstones WHERE id = ?", id)
        ):
            id = rows[0][0]
        return id

    def children(self, id: str) -> tuple[str, ...]:
        """Return the ids whose parent is ``id``, oldest first."""
        rows = self._read("SELECT id FROM snapshots WHERE parent = ? ORDER BY created", id)
        return tuple(row[0] for row in rows)

    def owners(self) -> Mapping[str, str]:
        """Return id to owner, for all snapshots."""
        return dict(self._read("SELECT id, owner FROM snapshots"))  # type: ignore[arg-type]

    def keep(self, ids: Iterable[str]) -> None:
        """Let snapshots outlive their owner."""
        self._write("UPDATE snapshots SET owner = '' WHERE id = ?", [(id,) for id in ids])

    def bury(self, id: str) -> None:
        """Note that a snapshot is deleted, before it is."""
        row = (id, time.time(), self.parent(id))
        self._write("INSERT OR REPLACE INTO tombstones VALUES (?, ?, ?)", [row])

    def buried(self, id: str) -> bool:
        """Whether it was deleted, even if its disk came back after a crash."""
        return bool(self._read("SELECT 1 FROM tombstones WHERE id = ?", id))

    def lease(self, ids: Iterable[str], owner: str) -> None:
        """Hold snapshots against release by other processes."""
        self._write("INSERT INTO leases VALUES (?, ?)", [(id, owner) for id in ids])

    def unlease(self, ids: Iterable[str], owner: str) -> None:
        """Give up one lease on each."""
        self._write(
            "DELETE FROM leases WHERE rowid IN "
            "(SELECT rowid FROM leases WHERE snapshot = ? AND owner = ? LIMIT 1)",
            [(id, owner) for id in ids],
        )

    def lessees(self, id: str) -> frozenset[str]:
        """Return who holds a lease on a snapshot."""
        rows = self._read("SELECT owner FROM leases WHERE snapshot = ?", id)
        return frozenset(row[0] for row in rows)

    def known_owners(self) -> frozenset[str]:
        """Return every owner of an unkept snapshot or a lease."""
        rows = self._read(
            "SELECT owner FROM snapshots WHERE owner != '' UNION SELECT owner FROM leases"
        )
        return frozenset(row[0] for row in rows)

    def owned_by(self, owner: str) -> tuple[str, ...]:
        """Return the snapshots that go with an owner."""
        return tuple(r[0] for r in self._read("SELECT id FROM snapshots WHERE owner = ?", owner))

    def forget_owner(self, owner: str) -> None:
        """Drop all leases of an owner."""
        self._write("DELETE FROM leases WHERE owner = ?", [(owner,)])

    def close(self) -> None:
        """Close the file. Idempotent."""
        with self._lock:
            self._db.close()
