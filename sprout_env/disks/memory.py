"""A store in this process's memory: the double for tests and docs, which needs no privileges.

A disk is a map from path to file, copied when it is frozen or cloned. What an image holds is never
read: every base is the same small root (``ROOT``). Nothing outlives the process, nobody else sees
it, and nothing can be mounted; only ``sandbox.memory`` runs on it.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sprout_env.disks import layout
from sprout_env.disks.store import (
    Base,
    Disk,
    DiskId,
    Family,
    FamilyId,
    FrozenDisk,
    FrozenDiskId,
    PathChange,
    StoreUsage,
    family_of,
)
from sprout_env.errors import ConfigError, DiskNotFound, StoreError
from sprout_env.tasks.task import ImageSource


@dataclass(frozen=True)
class Node:
    """One file, folder or link."""

    kind: Literal["file", "directory", "symlink"]
    data: bytes = b""
    """A file's bytes, or where a link leads."""
    mode: int = 0o644


Tree = dict[str, Node]
"""Absolute normal paths to nodes; ``/`` is always there."""

_FOLDER = Node("directory", mode=0o755)
ROOT: Mapping[str, Node] = {
    **dict.fromkeys(("/", "/bin", "/etc", "/home", "/root", "/tmp", "/usr", "/var"), _FOLDER),
    "/etc/passwd": Node("file", b"root:x:0:0:root:/root:/bin/sh\n"),
}
"""What is on a disk that nobody has written to."""


@dataclass
class _Stored:
    base: Base
    tree: Tree
    records: dict[str, bytes] = field(default_factory=dict)


class MemoryStore:
    """Disks as maps; see the contract ``DiskStore``.

    Args:
        path: A name for the store; nothing is read or written there.
    """

    kind = "memory"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.RLock()
        self._families: dict[FamilyId, Family] = {}
        self._live: dict[str, _Stored] = {}
        self._frozen: dict[str, _Stored] = {}
        self._closed = False
        self._owner = f"{os.getpid()}-0-{uuid.uuid4().hex[:8]}"

    @property
    def path(self) -> Path:
        """Its name."""
        return self._path

    @property
    def owner(self) -> str:
        """This process's name."""
        return self._owner

    def owner_alive(self, owner: str) -> bool:
        """Whether ``owner`` is this process: nobody else can use the store."""
        return owner == self._owner and not self._closed

    def base(self, image: ImageSource) -> Base:
        """Return the one root there is, under a digest of how the image is named."""
        self._check_open()
        return Base(hashlib.sha256(image.model_dump_json().encode()).hexdigest(), ())

    def family(self, task_digest: str, base: Base, storage_mb: int | None = None) -> Family:
        """Open the family of a task over ``base``."""
        self._check_open()
        id = layout.family_id(task_digest, base)
        with self._lock:
            return self._families.setdefault(id, Family(id, base))

    def open_family(self, family: FamilyId) -> Family:
        """Open a family that exists."""
        self._check_open()
        try:
            return self._families[family]
        except KeyError:
            raise DiskNotFound(family) from None

    def create(self, family: Family) -> Disk:
        """Return a writable disk with the small root on it."""
        self.open_family(family.id)
        return self._new(family.id, _Stored(family.base, dict(ROOT)))

    def clone(self, frozen: FrozenDiskId) -> Disk:
        """Return a writable copy of a frozen disk."""
        source = self._get(self._frozen, frozen)
        copy = _Stored(source.base, dict(source.tree), dict(source.records))
        return self._new(family_of(frozen), copy)

    def _new(self, family: FamilyId, stored: _Stored) -> Disk:
        id = DiskId(f"{family}-{self._owner}-{uuid.uuid4().hex[:12]}")
        with self._lock:
            self._live[id] = stored
        recorded = sum(name.startswith("turns/") for name in stored.records)
        return Disk(id, stored.base, recorded)

    def freeze(self, disk: Disk, name: str, records: Mapping[str, bytes]) -> FrozenDisk:
        """Keep ``disk`` as it is now, with its records."""
        if not layout.FROZEN_NAME.fullmatch(name):
            raise ConfigError(f"a frozen disk is named by 16 hexadecimal digits, not {name!r}")
        for record in records:
            layout.record_path(record)
        id = FrozenDiskId(f"{family_of(disk.id)}-{name}")
        with self._lock:
            live = self._get(self._live, disk.id)
            if id in self._frozen:
                raise StoreError(f"{family_of(disk.id)} already holds {name}")
            live.records.update(records)
            self._frozen[id] = _Stored(live.base, dict(live.tree), dict(live.records))
        return FrozenDisk(id, disk.base)

    def renew(self, disk: Disk) -> None:
        """Nothing limits a disk here."""

    def frozen(self, id: FrozenDiskId) -> FrozenDisk:
        """Return a frozen disk by id."""
        return FrozenDisk(id, self._get(self._frozen, id).base)

    def read_records(self, id: FrozenDiskId, *names: str) -> list[bytes]:
        """Return records of a frozen disk, in the order of their names."""
        records = self._get(self._frozen, id).records
        try:
            return [records[name] for name in names]
        except KeyError as error:
            raise DiskNotFound(f"{id} with a record {error.args[0]}") from None

    def list_frozen(self, family: FamilyId | None = None) -> Iterator[FrozenDiskId]:
        """Yield the frozen disks of one family, or of all."""
        if family is not None:
            self.open_family(family)
        with self._lock:
            found = [FrozenDiskId(id) for id in self._frozen]
        yield from (id for id in found if family is None or family_of(id) == family)

    def families(self) -> Sequence[FamilyId]:
        """Return all families."""
        self._check_open()
        return tuple(self._families)

    def drop(self, id: FrozenDiskId | DiskId) -> None:
        """Delete a disk. Idempotent."""
        self._check_open()
        with self._lock:
            self._frozen.pop(id, None)
            self._live.pop(id, None)

    def drop_family(self, family: FamilyId) -> None:
        """Delete a family with its frozen disks; refused while it has writable ones."""
        self._check_open()
        with self._lock:
            if any(family_of(id) == family for id in self._live):
                raise StoreError(f"family {family} is in use by {self._owner}")
            self._families.pop(family, None)
            for id in [id for id in self._frozen if family_of(id) == family]:
                del self._frozen[id]

    def tree(self, disk: Disk | FrozenDisk) -> Tree:
        """Return a disk's files: of a writable disk the map itself, of a frozen one a copy."""
        if isinstance(disk, Disk):
            return self._get(self._live, disk.id).tree
        return dict(self._get(self._frozen, disk.id).tree)

    def mount(self, disk: Disk | FrozenDisk, userns_fd: int, root_id: int) -> int:
        """Refuse: there is nothing that could be mounted.

        Raises:
            StoreError: Always.
        """
        raise StoreError("a disk in memory cannot be mounted; use a btrfs or directory store")

    @contextmanager
    def browse(self, disk: Disk | FrozenDisk) -> Iterator[Path]:
        """Give a temporary folder with a copy of a disk's files."""
        tree = self.tree(disk)
        with tempfile.TemporaryDirectory(prefix="sprout-memory-") as folder:
            for path in sorted(tree):
                node, place = tree[path], Path(folder) / path.lstrip("/")
                if node.kind == "directory":
                    place.mkdir(exist_ok=True)
                elif node.kind == "symlink":
                    place.symlink_to(os.fsdecode(node.data))
                else:
                    place.write_bytes(node.data)
                    place.chmod(node.mode)
            yield Path(folder)

    def export_upper(self, disk: Disk, target: Path) -> None:
        """Refuse: an overlay's upper folder is what a disk in memory does not have.

        Raises:
            StoreError: Always.
        """
        raise StoreError("a disk in memory has no upper folder; use a btrfs or directory store")

    def changes(self, a: FrozenDiskId | None, b: FrozenDiskId) -> Iterator[PathChange]:
        """Yield the paths that differ from ``a`` (None: the base) to ``b``, sorted by path."""
        if a is not None and family_of(a) != family_of(b):
            raise StoreError(f"{a} and {b} belong to different families")
        old = dict(ROOT) if a is None else self._get(self._frozen, a).tree
        new = self._get(self._frozen, b).tree
        differ = (p for p in sorted(old.keys() | new.keys()) if old.get(p) != new.get(p))
        return (_change(path, old.get(path), new.get(path)) for path in differ)

    def usage(self) -> StoreUsage:
        """Return what the store holds; free is the machine's free memory."""
        self._check_open()
        with self._lock:
            disks = [*self._live.values(), *self._frozen.values()]
            data = sum(len(node.data) for disk in disks for node in disk.tree.values())
            records = sum(len(record) for disk in disks for record in disk.records.values())
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return StoreUsage(data, records, free, 0, free, 0)

    def sweep(self) -> Sequence[str]:
        """Find nothing: a dead owner took its store along."""
        self._check_open()
        return ()

    def close(self) -> None:
        """Forget everything. Idempotent."""
        with self._lock:
            self._closed = True
            self._families, self._live, self._frozen = {}, {}, {}

    def _get(self, disks: Mapping[str, _Stored], id: str) -> _Stored:
        self._check_open()
        try:
            return disks[id]
        except KeyError:
            raise DiskNotFound(id) from None

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"the store at {self._path} is closed")


def _change(path: str, old: Node | None, new: Node | None) -> PathChange:
    node = new or old
    assert node is not None
    kind: Literal["added", "removed", "modified", "metadata"]
    if old is None:
        kind = "added"
    elif new is None:
        kind = "removed"
    else:
        same = (old.kind, old.data) == (new.kind, new.data)
        kind = "metadata" if same else "modified"
    return PathChange(path, kind, node.kind, _size(old), _size(new))


def _size(node: Node | None) -> int | None:
    return None if node is None or node.kind == "directory" else len(node.data)
