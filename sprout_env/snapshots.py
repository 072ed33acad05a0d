"""A snapshot pairs the disk with the transcript: lineage, leases, release, sweep.

The agent's context travels *inside* the frozen disk: ``meta/turns/<n>.json`` holds entry ``n`` of
the transcript, ``meta/snapshot.json`` everything else. One freeze keeps both, so the pair is
atomic and durable, and a store can be carried away without its catalogue. The catalogue (SQLite)
is an index: where it and the disks differ, the disks win.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from sprout_env.catalogue import Catalogue, Row
from sprout_env.disks.store import Disk, DiskId, DiskStore, FamilyId, FrozenDiskId, family_of
from sprout_env.errors import (
    DiskNotFound,
    SnapshotError,
    SnapshotInUse,
    SnapshotNotFound,
    StoreError,
)
from sprout_env.sandbox.sandbox import Sandbox, ShellState
from sprout_env.transcript import Entry, Frozen, Notice, Transcript, Turn

FORMAT = 1
"""Version of the records inside a frozen disk; readers refuse a newer one."""

_ENTRY_NAME = "turns/{:06d}.json"
_ENTRY: TypeAdapter[Turn | Notice] = TypeAdapter(Entry)


class TaskRef(Frozen):
    """How a task is found again, in any process."""

    suite: str
    name: str
    digest: str
    tasks_path: str | None = None
    dataset: str | None = None


class ShellRecord(Frozen):
    """The shell's state at a boundary."""

    cwd: str
    env: dict[str, str] = Field(default_factory=dict)


class LayerState(Frozen):
    """The episode state of one wrapper, outermost first in a record."""

    name: str
    """The wrapper's class, ``module.Class``."""
    state: Any = None


class LiveProcess(Frozen):
    """A process that was alive at a boundary, and is lost by a restore."""

    pid: int
    command: str
    listening: tuple[str, ...] = ()

    def __str__(self) -> str:
        """One line for people and actors."""
        where = f" (listening on {', '.join(self.listening)})" if self.listening else ""
        return f"{self.command}{where}"


class Snapshot(Frozen):
    """One boundary: disk and context, at the same turn. This is ``meta/snapshot.json``."""

    format: int = FORMAT
    id: str
    task: TaskRef
    instruction: str
    turn: int
    entries: int
    """Entries of the transcript, notices included."""
    parent: str | None = None
    """The snapshot before it on the same path."""
    created: float
    """Seconds since 1970."""
    owner: str = ""
    """The process with which it goes unless somebody keeps it; empty: it stays."""
    shell: ShellRecord | None = None
    rng: dict[str, Any] | None = None
    """State of the env's NumPy bit generator, and its seed."""
    layers: tuple[LayerState, ...] | None = None
    """Wrappers' episode states; None when it was taken of the bare env."""
    processes: tuple[LiveProcess, ...] = ()
    members: dict[str, str] = Field(default_factory=dict)
    """The frozen disk of each of the sandbox's members by name: ``main`` is the snapshot's own."""
    env: dict[str, Any] = Field(default_factory=dict)
    """``id`` and ``kwargs`` of ``gymnasium.make`` from which the env can be made again."""

    @property
    def family(self) -> FamilyId:
        """Where its disk lives."""
        return family_of(self.id)


class SnapshotTree:
    """All snapshots of one store. Methods may be called from any thread and several processes.

    Opening it sweeps what killed processes left, and rebuilds an index that is missing.

    Args:
        store: Where the disks are.
        index: Where the catalogue lies; None: in the store's folder (a memory store: in memory).
    """

    def __init__(self, store: DiskStore, index: Path | None = None) -> None:
        self.store = store
        self._lock = threading.RLock()
        self._recorded: dict[DiskId, int] = {}
        if index is None and store.kind != "memory":
            index = store.path / "catalogue.sqlite"
        self._catalogue = Catalogue(index)
        if self._catalogue.fresh:
            self.rebuild()
        self.swept = self.sweep()
        """What opening it has cleared away, a line each."""

    # -- taking and reading ---------------------------------------------------------------

    def take(
        self,
        disk: Disk,
        sandbox: Sandbox,
        *,
        task: TaskRef,
        transcript: Transcript,
        shell: ShellState | None = None,
        rng: dict[str, Any] | None = None,
        layers: Sequence[LayerState] | None = None,
        parent: str | None = None,
        env: dict[str, Any] | None = None,
        keep: bool = True,
        pause_s: float = 2.0,
    ) -> Snapshot:
        """Keep disk and context as they are now; the sandbox is paused while a process lives.

        Args:
            disk: The live disk under ``sandbox``.
            sandbox: What runs on it.
            task: How the task is found again.
            transcript: The context at this boundary.
            shell: Where the next command starts.
            rng: State of the env's random generator.
            layers: Episode states of the wrappers, outermost first; None for the bare env.
            parent: The snapshot before it on the same path.
            env: How the env is made again.
            keep: False: it goes when its owner does (see ``sweep``).
            pause_s: How long to wait for the processes to stop.

        Raises:
            PauseTimeout: A process did not stop; nothing was kept, and all run on.
            StoreError: Nothing was kept.
        """
        entries = transcript.entries
        with self._lock:
            written = self._recorded.get(disk.id, disk.recorded)
        name = uuid.uuid4().hex[:16]
        # A process may start between two looks: the list that counts is taken while all stand.
        paused = bool(sandbox.processes())
        if paused:
            sandbox.pause(pause_s)
        try:
            alive = sandbox.processes() if paused else ()
            id = f"{family_of(disk.id)}-{name}"
            snapshot = Snapshot(
                id=id,
                task=task,
                instruction=transcript.instruction,
                turn=transcript.turn,
                entries=len(entries),
                parent=parent,
                created=time.time(),
                owner="" if keep else self.store.owner,
                shell=ShellRecord(cwd=shell.cwd, env=dict(shell.env)) if shell else None,
                rng=rng,
                layers=tuple(layers) if layers is not None else None,
                processes=tuple(
                    LiveProcess(pid=p.pid, command=" ".join(p.argv), listening=p.listening)
                    for p in alive
                ),
                members={"main": id},
                env=env or {},
            )
            records = {
                _ENTRY_NAME.format(number): _json(entry)
                for number, entry in enumerate(entries[written:], written)
            }
            records["snapshot.json"] = _json(snapshot)
            self.store.freeze(disk, name, records)
        finally:
            if paused:
                sandbox.resume()
        with self._lock:
            self._recorded[disk.id] = len(entries)
        # The snapshot before it may have been released in the meantime.
        before = self._catalogue.living(parent)
        self._catalogue.insert(_row(snapshot, snapshot.owner, before))
        return snapshot

    def forget(self, disk: Disk) -> None:
        """Drop the notes about a live disk that is gone."""
        with self._lock:
            self._recorded.pop(disk.id, None)

    def get(self, id: str) -> Snapshot:
        """Return a snapshot by id.

        Raises:
            SnapshotNotFound: This store has none of this id.
            SnapshotError: It was written by a newer version.
        """
        if self._catalogue.buried(id):
            raise SnapshotNotFound(id, self.store.path)
        try:
            return _parse(id, *self.store.read_records(FrozenDiskId(id), "snapshot.json"))
        except DiskNotFound as error:
            raise SnapshotNotFound(id, self.store.path) from error

    def transcript(self, snapshot: Snapshot) -> Transcript:
        """Return the transcript at a snapshot, read from its disk.

        Raises:
            SnapshotNotFound: This store has it no more.
            SnapshotError: An entry of it cannot be read.
        """
        frozen = FrozenDiskId(snapshot.id)
        try:
            records = self.store.read_records(
                frozen, *(_ENTRY_NAME.format(number) for number in range(snapshot.entries))
            )
        except DiskNotFound as error:
            raise SnapshotNotFound(snapshot.id, self.store.path) from error
        try:
            return Transcript.of(snapshot.instruction, map(_entry, records))
        except ValueError as error:
            raise _unreadable(snapshot.id, error) from error

    # -- lineage --------------------------------------------------------------------------

    def lineage(self, id: str) -> tuple[str, ...]:
        """Return the ids of the path down to ``id``, the first snapshot first."""
        self.get(id)
        path = [id]
        while (parent := self._catalogue.parent(path[-1])) is not None:
            path.append(parent)
        return tuple(reversed(path))

    def list(self, *, task: str | None = None) -> tuple[Snapshot, ...]:
        """Return the catalogue's snapshots, oldest first."""
        found = []
        for id in self._catalogue.ids(task):
            try:
                found.append(self.get(id))
            except SnapshotNotFound:
                self._catalogue.remove(id)
        return tuple(found)

    def children(self, id: str) -> tuple[str, ...]:
        """Return the snapshots whose parent is ``id``."""
        return self._catalogue.children(id)

    # -- leases and release ---------------------------------------------------------------

    @contextmanager
    def leased(self, ids: Iterable[str]) -> Iterator[None]:
        """Hold snapshots against release by other processes."""
        owner, held = self.store.owner, list(ids)
        self._catalogue.lease(held, owner)
        try:
            yield
        finally:
            self._catalogue.unlease(held, owner)

    def keep(self, ids: Iterable[str]) -> None:
        """Let snapshots outlive the process that took them."""
        self._catalogue.keep(ids)

    def release(self, id: str) -> None:
        """Delete a snapshot; idempotent for one that was released before. Its space returns later.

        Raises:
            SnapshotNotFound: The id was never one of this store's.
            SnapshotInUse: Another living process holds a lease on it.
        """
        if self._catalogue.buried(id):
            return
        self.get(id)
        others = self._catalogue.lessees(id) - {self.store.owner}
        living = sorted(token for token in others if self.store.owner_alive(token))
        if living:
            raise SnapshotInUse(id, ", ".join(living))
        self._drop(id)

    def release_all(self, ids: Iterable[str]) -> None:
        """Release snapshots; one that cannot be stays, and the others go all the same."""
        for id in sorted(ids):
            with suppress(SnapshotError, StoreError):
                self.release(id)

    def _drop(self, id: str) -> None:
        # The tombstone comes first: a deletion that a crash undoes is done again by rebuild().
        self._catalogue.bury(id)
        self.store.drop(FrozenDiskId(id))
        self._catalogue.remove(id)

    # -- repair ---------------------------------------------------------------------------

    def rebuild(self) -> int:
        """Make the catalogue anew from the disks; return the number of snapshots found."""
        # One that the index does not know was cut off from it by a crash, and goes with its owner.
        # Where there was no index at all nobody can tell any more which were kept: all stay.
        owners, fresh = self._catalogue.owners(), self._catalogue.fresh
        rows: list[Row] = []
        for frozen in self.store.list_frozen():
            if self._catalogue.buried(frozen):
                self.store.drop(frozen)
                continue
            try:
                snapshot = _parse(frozen, *self.store.read_records(frozen, "snapshot.json"))
            except (DiskNotFound, SnapshotError):
                continue
            before = self._catalogue.living(snapshot.parent)
            owner = owners.get(frozen, "" if fresh else snapshot.owner)
            rows.append(_row(snapshot, owner, before))
        self._catalogue.correct(set(owners) - {row.id for row in rows}, rows)
        return len(rows)

    def sweep(self) -> tuple[str, ...]:
        """Drop what dead owners left: leases, boundary snapshots nobody kept, disks, mounts."""
        done: list[str] = []
        for token in sorted(self._catalogue.known_owners()):
            if self.store.owner_alive(token):
                continue
            self._catalogue.forget_owner(token)
            for id in self._catalogue.owned_by(token):
                self._drop(id)
                done.append(f"dropped snapshot {id} of dead owner {token}")
        return (*done, *self.store.sweep())

    def close(self) -> None:
        """Close the catalogue. Idempotent; the store stays open."""
        self._catalogue.close()


def _json(record: BaseModel) -> bytes:
    # A directory, a variable or a model's message may hold what is no character: pydantic's own
    # JSON refuses it.
    text = json.dumps(record.model_dump(mode="json"), ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")


def _read(record: bytes) -> Any:
    return json.loads(record.decode("utf-8", "surrogatepass"))


def _entry(record: bytes) -> Turn | Notice:
    return _ENTRY.validate_python(_read(record))


def _row(snapshot: Snapshot, owner: str, parent: str | None) -> Row:
    return Row(
        snapshot.id,
        parent,
        snapshot.task.name,
        snapshot.turn,
        snapshot.created,
        owner,
    )


def _unreadable(id: str, error: ValueError) -> SnapshotError:
    said = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
    return SnapshotError(f"snapshot {id} cannot be read: {said}")


class _Format(BaseModel):
    format: int


def _parse(id: str, record: bytes) -> Snapshot:
    try:
        told = _read(record)
        version = _Format.model_validate(told).format
        if version <= FORMAT:
            return Snapshot.model_validate(told)
    except ValueError as error:
        raise _unreadable(id, error) from error
    raise SnapshotError(
        f"snapshot {id} has format {version}, this version of sprout_env knows up to {FORMAT}: "
        "upgrade it"
    )
