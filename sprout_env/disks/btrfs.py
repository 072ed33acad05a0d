"""Disks on btrfs: each a subvolume ``{upper, work, meta}``, frozen by one read-only snapshot.

A family is one small file system in an image, so that one task's flush does not stall another's
snapshot, or a folder of a btrfs that the store itself lies on.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import ModuleType

from sprout_env.disks import layout, libbtrfs, loopfs
from sprout_env.disks.families import Kind
from sprout_env.disks.local import LocalStore
from sprout_env.disks.places import Place
from sprout_env.disks.store import Disk, Family, FamilyId, StoreUsage, family_of
from sprout_env.disks.trees import remove_tree, tree_size
from sprout_env.errors import DiskNotFound, StoreError, StoreFull, StoreUnavailable

_RECLAIM_S = 5.0
"""How long one piece of reclaiming may wait for the kernel's cleaner."""
_DISKS, _LARGEST = 16, 8 << 40
"""An image has room for so many disks at their limit; its file stays below what ext4 can hold."""


def binding() -> ModuleType:
    """Return the module ``btrfsutil``.

    Raises:
        StoreUnavailable: It is not installed, or does not fit the library.
    """
    try:
        import btrfsutil
    except ImportError as error:
        what = f"btrfsutil cannot be imported ({error})"
        raise StoreUnavailable(what, libbtrfs.REMEDY) from error
    module: ModuleType = btrfsutil
    return module


class BtrfsStore(LocalStore):
    """A store whose disks are subvolumes (``DiskStore``)."""

    kind = "btrfs"
    shares_inodes = True

    def __init__(self, path: Path, config: layout.StoreConfig) -> None:
        """Use the store at ``path``.

        Raises:
            StoreUnavailable: btrfsutil is missing.
        """
        self._btrfsutil = binding()
        libbtrfs.library()
        super().__init__(path, config)

    @property
    def _in_images(self) -> bool:
        return self.config.layout == "image"

    def _make(self, folder: Path, storage_mb: int | None) -> int | None:
        if not self._in_images:
            (folder / "fs").mkdir(mode=0o700)  # a user's own btrfs: its quotas are not ours
            return None
        share = int(self.config.image_bytes * self.config.disk_share)
        storage = share if storage_mb is None else storage_mb << 20
        size = max(self.config.image_bytes, min(_DISKS * storage, _LARGEST))
        loopfs.make_image(folder / "disk.img", size)
        return storage

    def _open(self, family: Family, folder: Path) -> Place:
        if self._in_images:
            image = folder / "disk.img"
            if not image.exists():
                told = f"{family.id} (its {image.name} is gone: delete {folder}, to begin anew)"
                raise DiskNotFound(told)
            fd, name = loopfs.mount_image(self._room, image)
            place = Place(family, folder, Path(f"/proc/self/fd/{fd}"), fd, name)
        else:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            place = Place(family, folder, folder / "fs", os.open(folder / "fs", flags))
        try:
            # Others wait for the family's lock until this is done.
            if not (place.root / "frozen").is_dir():
                if self._in_images:
                    libbtrfs.grow_metadata(place.fd)
                    if family.storage_bytes is not None:
                        libbtrfs.count_growth(place.fd)
                for kind in ("live", "frozen"):
                    (place.root / kind).mkdir(0o700, exist_ok=True)
        except BaseException:
            self._shut(place)
            raise
        return place

    def _shut(self, place: Place) -> None:
        place.forget()
        if place.mounted_as is not None:
            loopfs.unmount_image(self._room, place.mounted_as)

    def _guard(self, place: Place, *, growing: bool) -> None:
        layout.guard_host(self._path, self.config.reserve_bytes, coming=_unwritten(place))
        if growing and self._in_images:
            # The last of an image is kept for freezing and deleting what is there.
            inside = os.statvfs(place.root)
            reserve = min(layout.GIB, inside.f_blocks * inside.f_frsize // 8)
            free = inside.f_bavail * inside.f_frsize
            if free < reserve:
                raise StoreFull(str(place.folder / "disk.img"), free, reserve)

    def _new(self, place: Place, name: str) -> None:
        self._btrfsutil.create_subvolume(place.root / "live" / name)
        self._limit(place, name)

    def _copy(self, place: Place, frozen: str, name: str) -> None:
        self._snapshot(place, "frozen", frozen, "live", name)
        self._limit(place, name)

    def _keep(self, place: Place, name: str, frozen: str) -> None:
        self._snapshot(place, "live", name, "frozen", frozen)
        self._extend(place, name)

    def _id(self, place: Place, name: str) -> int:
        id: int = self._btrfsutil.subvolume_id(place.root / "live" / name)
        return id

    def _limit(self, place: Place, name: str) -> None:
        if place.family.storage_bytes is not None:
            libbtrfs.limit_growth(place.fd, self._id(place, name), place.family.storage_bytes)

    def _write_records(self, place: Place, name: str, records: Mapping[str, bytes]) -> None:
        try:
            super()._write_records(place, name, records)
        except OSError as error:
            if error.errno != errno.EDQUOT:
                raise
            # The agent has filled its own disk: no reason to lose the boundary.
            id = self._id(place, name)
            limit = libbtrfs.growth_limit(place.fd, id)
            libbtrfs.limit_growth(place.fd, id, None)
            try:
                super()._write_records(place, name, records)
            finally:
                libbtrfs.limit_growth(place.fd, id, limit)

    def _extend(self, place: Place, name: str) -> None:
        """Do not count against a disk for ever what only its snapshots still hold.

        What it deleted since the last boundary stays billed as long as that boundary has it. The
        limit rises by as much, while half of the image is free for the disk's siblings.
        """
        storage = place.family.storage_bytes
        if storage is None:
            return
        id = self._id(place, name)
        try:
            billed = libbtrfs.growth(place.fd, id)
            if billed < storage // 2:
                return
            limit = libbtrfs.growth_limit(place.fd, id)
        except OSError:
            return  # nothing is counted here
        if limit - billed > storage // 2:
            return
        held = tree_size(place.root / "live" / name / "upper")
        inside = os.statvfs(place.root)
        spare = (inside.f_bavail - inside.f_blocks // 2) * inside.f_frsize
        fair = billed + min(storage - held, spare)
        if fair > limit:
            libbtrfs.limit_growth(place.fd, id, fair)

    def renew(self, disk: Disk) -> None:
        """Let a disk write once more what it may."""
        name = layout.name_of(disk.id)
        with self._use(family_of(disk.id)) as place:
            self._require(place, "live", name, disk.id)
            if place.family.storage_bytes is not None:
                id = self._id(place, name)
                with suppress(OSError):  # nothing is counted here
                    more = libbtrfs.growth(place.fd, id) + place.family.storage_bytes
                    libbtrfs.limit_growth(place.fd, id, more)

    def _snapshot(self, place: Place, kind: Kind, name: str, to: Kind, new: str) -> None:
        with ExitStack() as undo:
            source = _open_folder(place.root / kind / name, undo)
            if kind == "live" and libbtrfs.has_children(source):
                # In a snapshot it would be an empty folder: data lost in silence.
                raise StoreError(
                    f"{place.family.id}-{name} has another subvolume inside, which a snapshot "
                    "cannot hold: nothing was kept; delete that subvolume"
                )
            folder = _open_folder(place.root / to, undo)
            libbtrfs.snapshot(source, folder, new, read_only=to == "frozen")

    def _remove(self, place: Place, kind: Kind, name: str) -> None:
        with ExitStack() as undo:
            folder = _open_folder(place.root / kind, undo)
            os.stat(name, dir_fd=folder, follow_symlinks=False)
            try:
                libbtrfs.delete(folder, name)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
                libbtrfs.delete(folder, name, recursive=True)

    def _discard_drafts(self, place: Place, owner: str) -> None:
        return  # a snapshot is there, or it is not

    def _destroy(self, folder: Path) -> None:
        if not self._in_images:
            for kind in ("live", "frozen"):
                parent = folder / "fs" / kind
                if parent.is_dir():
                    with ExitStack() as undo:
                        fd = _open_folder(parent, undo)
                        for disk in parent.iterdir():
                            libbtrfs.delete(fd, disk.name, recursive=True)
        remove_tree(folder)

    def _reclaim(self, place: Place) -> None:
        # The first commit wakes the cleaner, the second frees what it has cleaned.
        deadline = time.monotonic() + _RECLAIM_S
        libbtrfs.sync(place.fd)
        while True:
            time.sleep(0.1)
            libbtrfs.sync(place.fd)
            if not self._pending(place) or time.monotonic() > deadline:
                break
        if self._in_images:
            libbtrfs.trim(place.fd)

    def _pending(self, place: Place) -> int:
        return len(self._btrfsutil.deleted_subvolumes(place.root))

    def _measure(self, family: FamilyId) -> StoreUsage:
        folder = self._path / "families" / family
        if self._in_images and family not in self._places.attached():
            # Not attached for this alone: what its image takes is known from outside.
            image = (folder / "disk.img").stat()
            taken = image.st_blocks * 512
            return StoreUsage(taken, 0, image.st_size - taken, 0, 0, 0)
        with self._use(family) as place:
            if not self._in_images:
                return StoreUsage(tree_size(place.root), 0, 0, 0, 0, 0)
            space = libbtrfs.space(place.fd)
            free = (folder / "disk.img").stat().st_size - space.allocated
            return StoreUsage(space.data, space.metadata, free, self._pending(place), 0, 0)


def _open_folder(path: Path, undo: ExitStack) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    undo.callback(os.close, fd)
    return fd


def _unwritten(place: Place) -> int:
    """Return the bytes that the family's disks have in memory, still to be written to the host."""
    if place.mounted_as is None:
        return 0
    try:
        return libbtrfs.dirty_bytes(place.fd)
    except OSError:
        return 0
