"""Where state lives: the contract of copy-on-write disks.

A disk is an overlay: a read-only base below, a private upper on top. Freezing keeps the upper as
it is at one instant, together with the records of the turn, under one name and in one atomic
step. Implementations: ``btrfs`` (subvolumes), ``directory`` (folders, reflinked or copied) and
``memory`` (a double without privileges).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NewType, Protocol, runtime_checkable

from pydantic import Field

from sprout_env.tasks.task import Healthcheck, ImageSource
from sprout_env.transcript import Frozen

FamilyId = NewType("FamilyId", str)
"""12 hexadecimal digits, derived from the task's digest and the base's."""
DiskId = NewType("DiskId", str)
"""``family-name`` of a writable disk."""
FrozenDiskId = NewType("FrozenDiskId", str)
"""``family-name`` of a frozen disk; it is also the snapshot's id."""


def family_of(disk: DiskId | FrozenDiskId | str) -> FamilyId:
    """Return the family that a disk's id carries."""
    return FamilyId(disk.partition("-")[0])


class ImageConfig(Frozen):
    """What an image says about how it is run; carried beside its root."""

    env: dict[str, str] = Field(default_factory=dict)
    workdir: str = "/"
    user: str = ""
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    shell: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    labels: dict[str, str] = Field(default_factory=dict)
    healthcheck: Healthcheck | None = None


@dataclass(frozen=True)
class Base:
    """An image's root, read-only and shared by all families that use it."""

    digest: str
    """What the root was made from, as ``sha256`` hexadecimal digits."""
    layers: tuple[Path, ...]
    """Folders to stack, uppermost first; one for most images."""
    config: ImageConfig = ImageConfig()


@dataclass(frozen=True)
class Family:
    """Where the disks of one task live."""

    id: FamilyId
    base: Base
    storage_bytes: int | None = None
    """What one disk may write above what it began with; None: as much as there is."""


@dataclass(frozen=True)
class Disk:
    """A writable disk."""

    id: DiskId
    base: Base
    recorded: int
    """How many transcript entries its ``meta`` holds already: those of the disk it came from."""


@dataclass(frozen=True)
class FrozenDisk:
    """A read-only disk together with its records."""

    id: FrozenDiskId
    base: Base


@dataclass(frozen=True)
class PathChange:
    """One path that differs between two disks."""

    path: str
    """Absolute inside the sandbox; undecodable bytes as surrogate escapes."""
    kind: Literal["added", "removed", "modified", "metadata"]
    file_type: Literal["file", "directory", "symlink", "other"]
    old_size: int | None = None
    new_size: int | None = None


@dataclass(frozen=True)
class StoreUsage:
    """What a store holds, in bytes. Deleted space comes back later: see ``pending_deletes``."""

    data: int
    metadata: int
    unallocated: int
    pending_deletes: int
    """Number of disks whose space is still to be returned."""
    host_free: int
    bases: int


@runtime_checkable
class DiskStore(Protocol):
    """A place for disks, shared by processes.

    Every method may be called from any thread. Failures of the machine raise ``StoreError``.
    """

    kind: str
    """Short name of the implementation: btrfs, directory or memory."""

    @property
    def path(self) -> Path:
        """The folder of the store."""

    @property
    def owner(self) -> str:
        """This process's name among those who use the store; a lock is held while it lives."""

    def owner_alive(self, owner: str) -> bool:
        """Whether the process of that name still lives."""

    def base(self, image: ImageSource) -> Base:
        """Return the image's root, made on first use and cached by content.

        Raises:
            ImageError: It cannot be found, built or unpacked.
        """

    def family(self, task_digest: str, base: Base, storage_mb: int | None = None) -> Family:
        """Open the family of a task over ``base``, made on first use; leased until ``close``.

        Args:
            task_digest: What names the task.
            base: What its disks lie over.
            storage_mb: What one disk may write, in MiB, set when the family is made; None for the
                store's default. Only stores in btrfs images on Linux 6.7 or newer hold a disk to
                it: what would go beyond fails inside with EDQUOT, as any failing command does.
        """

    def open_family(self, family: FamilyId) -> Family:
        """Open a family that exists.

        Raises:
            DiskNotFound: There is none of this id.
        """

    def create(self, family: Family) -> Disk:
        """Return a writable disk with nothing on it but the base.

        Raises:
            StoreFull: The store is below its watermark.
        """

    def clone(self, frozen: FrozenDiskId) -> Disk:
        """Return a writable copy of a frozen disk, in constant time.

        Raises:
            DiskNotFound: There is no such frozen disk.
            StoreFull: The store is below its watermark.
        """

    def freeze(self, disk: Disk, name: str, records: Mapping[str, bytes]) -> FrozenDisk:
        """Keep ``disk`` as it is now, with ``records``, as ``family-name``, in one atomic step.

        Records are written into the disk's private ``meta`` folder (never visible inside a
        sandbox) before it is frozen, replacing those of the same name; the frozen disk is made
        under its final name and is durable when the call returns. The caller pauses the sandbox.
        The calling thread waits; other Python threads go on.

        Args:
            disk: The writable disk.
            name: Unique in the family; 16 hexadecimal digits.
            records: File name inside ``meta`` (``snapshot.json``, ``turns/000003.json``) to bytes.

        Raises:
            StoreFull: Nothing was kept.
        """

    def renew(self, disk: Disk) -> None:
        """Let a disk write once more what it may, for the verifier's sake: its agent is done."""

    def frozen(self, id: FrozenDiskId) -> FrozenDisk:
        """Return a frozen disk by id.

        Raises:
            DiskNotFound: There is none.
        """

    def read_records(self, id: FrozenDiskId, *names: str) -> list[bytes]:
        """Return records of a frozen disk, in the order of their names.

        Raises:
            DiskNotFound: There is no such disk, or not all of these records.
        """

    def list_frozen(self, family: FamilyId | None = None) -> Iterator[FrozenDiskId]:
        """Yield the frozen disks of one family, or of all families (attaching each in turn)."""

    def families(self) -> Sequence[FamilyId]:
        """Return all families of this store, attached or not."""

    def drop(self, id: FrozenDiskId | DiskId) -> None:
        """Delete a disk. Idempotent; its space comes back later, and ``usage`` says so."""

    def drop_family(self, family: FamilyId) -> None:
        """Delete a family with all its disks; refused with StoreError while anybody leases it."""

    def mount(self, disk: Disk | FrozenDisk, userns_fd: int, root_id: int) -> int:
        """Return a detached mount of the disk's root, for a sandbox whose uid 0 is ``root_id``.

        Args:
            disk: A writable disk; a frozen one is mounted read-only.
            userns_fd: The user namespace whose mapping the layers get (idmapped mounts).
            root_id: The host's uid and gid of the sandbox's root.

        Returns:
            A file descriptor from ``fsmount`` or ``open_tree``; the caller closes it.
        """

    def browse(self, disk: Disk | FrozenDisk) -> AbstractContextManager[Path]:
        """Give the host a view of a disk's root, mounted nosuid, nodev, noexec, read-only."""

    def export_upper(self, disk: Disk, target: Path) -> None:
        """Copy what a disk holds above its base into an empty folder, as a layer for a new base.

        Whiteouts and opaque folders are kept as overlayfs has them. Nobody may write meanwhile.

        Raises:
            DiskNotFound: There is no such disk.
            StoreError: It cannot be copied, or the store has no layers (memory).
        """

    def changes(self, a: FrozenDiskId | None, b: FrozenDiskId) -> Iterator[PathChange]:
        """Yield the paths that differ from ``a`` (None: the base) to ``b``, sorted by path.

        Raises:
            DiskNotFound: One of them is not there.
            StoreError: They belong to different families.
        """

    def usage(self) -> StoreUsage:
        """Return what the store holds."""

    def sweep(self) -> Sequence[str]:
        """Drop what dead owners left and unmount what nobody leases; return a line for each."""

    def close(self) -> None:
        """Give up this process's leases. Idempotent; the last user of a family unmounts it."""
