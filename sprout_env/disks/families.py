"""The families of a store on this machine: made, leased, swept; and whose the disks in them are."""

from __future__ import annotations

import atexit
import errno
import logging
import os
import threading
import time
import uuid
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from sprout_env.disks import layout, leases
from sprout_env.disks.images.bases import sweep_bases
from sprout_env.disks.overlay import detach_view, views_of
from sprout_env.disks.places import Place, Places
from sprout_env.disks.reclaim import Reclaimer
from sprout_env.disks.rooms import MountRoom
from sprout_env.disks.store import Base, Family, FamilyId
from sprout_env.disks.trees import names, remove_tree
from sprout_env.errors import DiskNotFound, SproutError, StoreError, StoreFull

Kind = Literal["live", "frozen"]

_stores: weakref.WeakSet[FamilyKeeper] = weakref.WeakSet()
_log = logging.getLogger(__name__)


class FamilyKeeper(ABC):
    """The part of a store that knows families, owners and leases, but not how disks are made."""

    def __init__(self, path: Path, config: layout.StoreConfig) -> None:
        """Use the store at ``path``, which exists and is absolute."""
        self._path = path
        self.config = config
        self.why = config.why
        """Why the store is of this kind."""
        self.swept: tuple[str, ...] = ()
        """What opening it has cleared away, a line each."""
        self._sizes: dict[str, int] = {}
        self._begin()
        _stores.add(self)

    def _begin(self) -> None:
        self._room = MountRoom(self._path / "mnt")
        self._places = Places(self._path, self._open, self._shut)
        self._reclaimer = Reclaimer(lambda family: self._reclaim_family(FamilyId(family)))
        self._lock = threading.Lock()
        self._owner: leases.Owner | None = None
        self._closed = False

    @property
    def path(self) -> Path:
        """The folder of the store."""
        return self._path

    @property
    def owner(self) -> str:
        """This process's name among those who use the store; a lock is held while it lives."""
        return self._owned().name

    def owner_alive(self, owner: str) -> bool:
        """Whether the process of that name still lives."""
        file = self._path / "owners" / f"{owner}.lock"
        return "/" not in owner and file.exists() and leases.held(file)

    @abstractmethod
    def _make(self, folder: Path, storage_mb: int | None) -> int | None:
        """Fill the folder of a new family; return the bytes that a disk in it may write."""

    @abstractmethod
    def _open(self, family: Family, folder: Path) -> Place:
        """Attach a family."""

    @abstractmethod
    def _shut(self, place: Place) -> None:
        """Detach a family."""

    @abstractmethod
    def _remove(self, place: Place, kind: Kind, name: str) -> None:
        """Remove a disk from sight; FileNotFoundError where there is none."""

    @abstractmethod
    def _discard_drafts(self, place: Place, owner: str) -> None:
        """Remove what a dead owner had half made."""

    @abstractmethod
    def _destroy(self, folder: Path) -> None:
        """Delete a family's folder, detached and out of sight."""

    @abstractmethod
    def _reclaim(self, place: Place) -> None:
        """Give the space of removed disks back."""

    def family(self, task_digest: str, base: Base, storage_mb: int | None = None) -> Family:
        """Open the family of a task over ``base``, made on first use."""
        self._check_open()
        id = layout.family_id(task_digest, base)
        folder = self._path / "families" / id
        if not (folder / "family.json").exists():
            layout.guard_host(self._path, self.config.reserve_bytes)
            with self._errors(id):
                self._make_family(folder, task_digest, base, storage_mb)
        elif (known := layout.read_family(self._path, id)).base.layers != base.layers:
            # The base has moved.
            layout.write_family(self._path, folder, task_digest, base, known.storage_bytes)
            self._places.evict(id)
        with self._use(id) as place:
            return Family(id, base, place.family.storage_bytes)

    def _make_family(
        self, folder: Path, task_digest: str, base: Base, storage_mb: int | None
    ) -> None:
        draft = folder.with_name(f".{self._owned().name}-{uuid.uuid4().hex[:12]}")
        draft.mkdir(mode=0o700)
        try:
            storage_bytes = self._make(draft, storage_mb)
            layout.write_family(self._path, draft, task_digest, base, storage_bytes)
            draft.rename(folder)
        except OSError as error:
            remove_tree(draft)
            # Another process made the same family first: theirs is as good.
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            if not (folder / "family.json").exists():
                # A family is made whole: its record was lost, and its disks may be there.
                layout.write_family(self._path, folder, task_digest, base, storage_bytes)
        layout.sync_folder(folder.parent)

    def open_family(self, family: FamilyId) -> Family:
        """Open a family that exists."""
        with self._use(family) as place:
            return place.family

    def families(self) -> Sequence[FamilyId]:
        """Return all families of this store, attached or not."""
        found = names(self._path / "families")
        return [FamilyId(name) for name in found if layout.FAMILY_NAME.fullmatch(name)]

    def drop_family(self, family: FamilyId) -> None:
        """Delete a family with all its disks; refused while anybody uses it."""
        self._check_open()
        folder = self._path / "families" / family
        if not layout.FAMILY_NAME.fullmatch(family) or not folder.exists():
            return
        self._let_go(family)
        with leases.locked(folder / "lock") as there:
            if not there:
                return
            lease = leases.take(folder / "lease", wait=False)
            if lease is None:
                raise StoreError(f"family {family} is in use and cannot be deleted")
            try:
                doomed = self._path / "trash" / f"{family}-{uuid.uuid4().hex[:8]}"
                folder.rename(doomed)
            finally:
                os.close(lease)
        with self._errors(family):
            self._destroy(doomed)

    def _let_go(self, family: FamilyId) -> None:
        """Detach a family without disks of ours, after the reclaiming that may be under way."""
        deadline = time.monotonic() + 10
        while family in self._places.attached() and not self._places.has_disks(family):
            if self._places.evict(family) or time.monotonic() > deadline:
                return
            time.sleep(0.02)

    def sweep(self) -> Sequence[str]:
        """Drop what dead owners left, a line for each; detach what this process no longer uses."""
        self._check_open()
        said: list[str] = []
        for file in sorted((self._path / "owners").glob("*.lock")):
            if self._owner is None or file != self._owner.path:
                with leases.dead_owner(file) as left:
                    if left is not None:
                        said += self._sweep_owner(file.stem, left)
        for trash in sorted((self._path / "trash").iterdir()):
            family = trash.name.partition("-")[0]
            try:
                self._destroy(trash)
                said.append(f"deleted what was left of family {family}")
            except OSError as error:
                said.append(f"could not delete what is left of family {family}: {error}")
        said += [f"removed the unfinished base {name}" for name in sweep_bases(self._path)]
        # Attached here a moment ago, to look into them: that is no news to anybody.
        self._places.evict()
        return said

    def _sweep_owner(self, owner: str, left: list[str]) -> Iterator[str]:
        """Clean behind a dead owner, one thing at a time; what fails is said and stays ``left``."""
        for view in views_of(self._path / "views", owner):
            detach_view(view)
            yield f"unmounted {view}, a view of a process that has ended"
        for draft in (self._path / "families").glob(f".{owner}-*"):
            remove_tree(draft)
            yield f"removed the unfinished family {draft.name}"
        for family in list(left):
            try:
                with self._use(FamilyId(family)) as place:
                    for name in names(place.root / "live"):
                        if layout.owner_of(name) == owner:
                            self._discard(place, "live", name)
                            yield f"dropped disk {family}-{name} of a process that has ended"
                    self._discard_drafts(place, owner)
                    self._reclaimer.add(family)
            except DiskNotFound:
                pass  # deleted meanwhile
            except StoreError as error:
                yield f"could not clean family {family} behind {owner}: {error}"
                continue
            left.remove(family)

    def close(self) -> None:
        """Drop this process's writable disks and give up its leases. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._reclaimer.close()
        for family in self._places.attached():
            with self._places.use(family) as place:
                for name in list(place.disks):
                    try:
                        self._discard(place, "live", name)
                    except OSError as error:
                        _log.warning("disk %s-%s is left for a sweep: %s", family, name, error)
                place.disks.clear()
        self._places.close()
        self._room.close()
        if self._owner is not None:
            self._owner.close()
        _stores.discard(self)

    @contextmanager
    def _use(self, family: FamilyId) -> Iterator[Place]:
        self._check_open()
        with self._errors(family), self._places.use(family) as place:
            yield place

    @contextmanager
    def _errors(self, family: str) -> Iterator[None]:
        """Say in the package's words what the kernel said."""
        try:
            yield
        except SproutError:
            raise
        except OSError as error:
            place = self._path / "families" / family
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreFull(str(place), 0, "enough for this step") from error
            if error.errno in (errno.EROFS, errno.EIO):
                raise StoreError(
                    f"family {family} takes no more writes ({error}): its host disk was full or "
                    "failed; free space on it, end every process that uses the family, try again"
                ) from error
            raise StoreError(f"family {family}: {error}") from error

    def _discard(self, place: Place, kind: Kind, name: str) -> None:
        try:
            self._remove(place, kind, name)
        except FileNotFoundError:
            pass

    def _reclaim_family(self, family: FamilyId) -> None:
        if family in self._places.attached():
            with self._use(family) as place:
                self._reclaim(place)

    def _owned(self) -> leases.Owner:
        with self._lock:
            if self._owner is None:
                self._owner = leases.Owner(self._path / "owners")
            return self._owner

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"the store at {self._path} is closed")

    def _forked(self) -> None:
        """In a forked child: the parent's locks, mounts and disks are not ours."""
        self._places.forget()
        if self._owner is not None:
            self._owner.forget()
        self._begin()


def _after_fork() -> None:
    for store in list(_stores):
        store._forked()


def _at_exit() -> None:
    with suppress(KeyboardInterrupt):  # Ctrl-C once more: the next start sweeps what is left
        for store in list(_stores):
            store.close()


# At import, so before whoever uses a store can ask for its own end: exit runs the newest first, and
# envs give their disks back to a store that is open.
os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
