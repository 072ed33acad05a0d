"""What the stores on this machine's disks have in common: the contract, over a kind's own steps.

``btrfs.py`` and ``directory.py`` say how a family is made and opened, and how a disk is made,
copied, kept and removed.
"""

from __future__ import annotations

import os
import uuid
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from sprout_env.disks import changes, kernel, layout, overlay
from sprout_env.disks.families import FamilyKeeper, Kind
from sprout_env.disks.places import Place
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
from sprout_env.disks.trees import copy_layer, look_like, names, tree_size
from sprout_env.errors import ConfigError, DiskNotFound, StoreError
from sprout_env.tasks.task import ImageSource


class LocalStore(FamilyKeeper):
    """A store in a folder of this machine (``DiskStore``)."""

    kind: str
    shares_inodes: ClassVar[bool] = False
    """Whether a copy keeps inode numbers and change times, as a btrfs snapshot does."""

    @abstractmethod
    def _new(self, place: Place, name: str) -> None:
        """Make ``live/name``, a folder."""

    @abstractmethod
    def _copy(self, place: Place, frozen: str, name: str) -> None:
        """Make ``live/name`` a copy of ``frozen/frozen``."""

    @abstractmethod
    def _keep(self, place: Place, name: str, frozen: str) -> None:
        """Make ``frozen/frozen`` of ``live/name``: whole and durable, or not at all."""

    @abstractmethod
    def _measure(self, family: FamilyId) -> StoreUsage:
        """Return what a family holds (the host's part left at 0)."""

    def _write_records(self, place: Place, name: str, records: Mapping[str, bytes]) -> None:
        layout.write_records(place.root / "live" / name / "meta", records)

    def _guard(self, place: Place, *, growing: bool) -> None:
        """Raise StoreFull below the watermark; ``growing`` where a new disk is asked for."""
        layout.guard_host(self._path, self.config.reserve_bytes)

    def base(self, image: ImageSource) -> Base:
        """Return the image's root, made on first use and cached by content."""
        from sprout_env.disks import images

        made: Base = images.base(self._path, image)
        return made

    def create(self, family: Family) -> Disk:
        """Return a writable disk with nothing on it but the base."""
        with self._use(family.id) as place:
            with self._fresh(place) as name:
                self._new(place, name)
                disk = place.root / "live" / name
                for part in ("upper", "work", "meta", "meta/turns"):
                    (disk / part).mkdir(0o700)
                look_like(family.base.layers[0], disk / "upper")
            return Disk(DiskId(f"{family.id}-{name}"), family.base, 0)

    def clone(self, frozen: FrozenDiskId) -> Disk:
        """Return a writable copy of a frozen disk."""
        source = layout.frozen_name(frozen)
        with self._use(family_of(frozen)) as place:
            self._require(place, "frozen", source, frozen)
            with self._fresh(place) as name:
                self._copy(place, source, name)
            recorded = layout.count_turns(place.root / "live" / name / "meta")
            return Disk(DiskId(f"{place.family.id}-{name}"), place.family.base, recorded)

    @contextmanager
    def _fresh(self, place: Place) -> Iterator[str]:
        """Give the name of a disk in the making; what a failure leaves of it is removed."""
        self._guard(place, growing=True)
        owner = self._owned()
        owner.note(place.family.id)
        name = f"{owner.name}-{uuid.uuid4().hex[:12]}"
        place.disks.add(name)
        try:
            yield name
        except BaseException:
            self._discard(place, "live", name)
            place.disks.discard(name)
            raise

    def freeze(self, disk: Disk, name: str, records: Mapping[str, bytes]) -> FrozenDisk:
        """Keep ``disk`` as it is now, with its records, in one atomic and durable step."""
        if not layout.FROZEN_NAME.fullmatch(name):
            raise ConfigError(f"a frozen disk is named by 16 hexadecimal digits, not {name!r}")
        live = layout.name_of(disk.id)
        with self._use(family_of(disk.id)) as place:
            self._require(place, "live", live, disk.id)
            self._guard(place, growing=False)
            self._write_records(place, live, records)
            try:
                self._keep(place, live, name)
            except FileExistsError:
                raise StoreError(f"{place.family.id} already holds {name}") from None
            return FrozenDisk(FrozenDiskId(f"{place.family.id}-{name}"), disk.base)

    def renew(self, disk: Disk) -> None:
        """Let a disk write once more what it may; here nothing limits it."""

    def frozen(self, id: FrozenDiskId) -> FrozenDisk:
        """Return a frozen disk by id."""
        name = layout.frozen_name(id)
        with self._use(family_of(id)) as place:
            self._require(place, "frozen", name, id)
            return FrozenDisk(id, place.family.base)

    def read_records(self, id: FrozenDiskId, *names: str) -> list[bytes]:
        """Return records of a frozen disk, in the order of their names."""
        frozen = layout.frozen_name(id)
        with self._use(family_of(id)) as place:
            self._require(place, "frozen", frozen, id)
            try:
                return layout.read_records(place.root / "frozen" / frozen / "meta", names)
            except FileNotFoundError as error:
                raise DiskNotFound(f"{id} with a record {error.filename}") from None

    def list_frozen(self, family: FamilyId | None = None) -> Iterator[FrozenDiskId]:
        """Yield the frozen disks of one family, or of all families."""
        for each in self.families() if family is None else [family]:
            try:
                with self._use(each) as place:
                    found = names(place.root / "frozen")
            except DiskNotFound:
                if family is not None:
                    raise
                continue  # deleted while we walked
            for name in found:
                if layout.FROZEN_NAME.fullmatch(name):
                    yield FrozenDiskId(f"{each}-{name}")

    def drop(self, id: FrozenDiskId | DiskId) -> None:
        """Delete a disk. Idempotent; its space comes back later."""
        family, name = family_of(id), layout.name_of(id)
        kind: Kind = "frozen" if layout.FROZEN_NAME.fullmatch(name) else "live"
        if kind == "live" and layout.owner_of(name) is None:
            return
        try:
            with self._use(family) as place:
                try:
                    self._remove(place, kind, name)
                    self._reclaimer.add(family)
                except FileNotFoundError:
                    pass
                place.disks.discard(name)
        except DiskNotFound:
            return

    def mount(self, disk: Disk | FrozenDisk, userns_fd: int, root_id: int) -> int:
        """Return a detached mount of the disk's root, for a sandbox whose uid 0 is ``root_id``."""
        return self._mount(
            disk, overlay.IdMap(userns_fd, root_id), kernel.MOUNT_ATTR_NODEV, look=False
        )

    @contextmanager
    def browse(self, disk: Disk | FrozenDisk) -> Iterator[Path]:
        """Give the host a view of a disk's root, mounted nosuid, nodev, noexec, read-only.

        Links are not followed in it (``nosymfollow``). A writable disk may change meanwhile.
        """
        fd = self._mount(disk, None, overlay.VIEW, look=True)
        try:
            view = overlay.attach_view(self._path / "views", self._owned().name, fd)
        finally:
            os.close(fd)
        try:
            yield view
        finally:
            overlay.detach_view(view)

    def _mount(
        self,
        disk: Disk | FrozenDisk,
        idmap: overlay.IdMap | None,
        attributes: int,
        *,
        look: bool,
    ) -> int:
        live = isinstance(disk, Disk)
        kind: Kind = "live" if live else "frozen"
        name = layout.name_of(disk.id) if live else layout.frozen_name(disk.id)
        with self._use(family_of(disk.id)) as place:
            self._require(place, kind, name, disk.id)
            top = place.root / kind / name
            if live and not look:
                return overlay.mount_overlay(
                    self._room, disk.base.layers, top, idmap=idmap, attributes=attributes
                )
            lower = [top / "upper", *disk.base.layers]
            attributes |= kernel.MOUNT_ATTR_RDONLY
            return overlay.mount_overlay(self._room, lower, idmap=idmap, attributes=attributes)

    def export_upper(self, disk: Disk, target: Path) -> None:
        """Copy what a disk holds above its base into an empty folder."""
        name = layout.name_of(disk.id)
        with self._use(family_of(disk.id)) as place:
            self._require(place, "live", name, disk.id)
            copy_layer(place.root / "live" / name / "upper", target)

    def changes(self, a: FrozenDiskId | None, b: FrozenDiskId) -> Iterator[PathChange]:
        """Yield the paths that differ from ``a`` (None: the base) to ``b``, sorted by path."""
        if a is not None and family_of(a) != family_of(b):
            raise StoreError(f"{a} and {b} belong to different families")
        with self._use(family_of(b)) as place:
            frozen = place.root / "frozen"
            if a is not None:
                self._require(place, "frozen", layout.frozen_name(a), a)
            self._require(place, "frozen", layout.frozen_name(b), b)
            found = changes.compare(
                place.family.base.layers,
                None if a is None else frozen / layout.frozen_name(a) / "upper",
                frozen / layout.frozen_name(b) / "upper",
                shared_inodes=self.shares_inodes,
            )
        return iter(found)

    def usage(self) -> StoreUsage:
        """Return what the store holds."""
        self._check_open()
        host = os.statvfs(self._path)
        parts = []
        for family in self.families():
            try:
                parts.append(self._measure(family))
            except DiskNotFound:
                continue  # deleted while we walked
        return StoreUsage(
            data=sum(part.data for part in parts),
            metadata=sum(part.metadata for part in parts),
            unallocated=sum(part.unallocated for part in parts),
            pending_deletes=sum(part.pending_deletes for part in parts),
            host_free=host.f_bavail * host.f_frsize,
            bases=self._bases(),
        )

    def _bases(self) -> int:
        folder = self._path / "bases"
        for name in names(folder):
            if name not in self._sizes and (folder / name / "config.json").exists():
                self._sizes[name] = tree_size(folder / name)
        return sum(self._sizes.values())

    def _require(self, place: Place, kind: Kind, name: str, id: str) -> None:
        if not name or "/" in name or not (place.root / kind / name).is_dir():
            raise DiskNotFound(id)
