"""Disks as folders: the same overlay, its upper copied at each freeze and clone.

Works on any file system of Linux that takes idmapped mounts and trusted attributes, slower than
btrfs: time and space grow with what a disk has changed. Extents are shared (reflinks) where the
file system can.
"""

from __future__ import annotations

import errno
import os
import subprocess
import uuid
from pathlib import Path

from sprout_env.disks import kernel, layout
from sprout_env.disks.families import Kind
from sprout_env.disks.local import LocalStore
from sprout_env.disks.places import Place
from sprout_env.disks.store import Family, FamilyId, StoreUsage
from sprout_env.disks.trees import remove_tree, tree_size


class DirectoryStore(LocalStore):
    """A store whose disks are plain folders (``DiskStore``)."""

    kind = "directory"

    def _make(self, folder: Path, storage_mb: int | None) -> None:
        for kind in ("live", "frozen", "drafts", "trash"):
            (folder / "fs" / kind).mkdir(mode=0o700, parents=True)

    def _open(self, family: Family, folder: Path) -> Place:
        root = folder / "fs"
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        return Place(family, folder, root, os.open(root, flags))

    def _shut(self, place: Place) -> None:
        place.forget()

    def _new(self, place: Place, name: str) -> None:
        (place.root / "live" / name).mkdir(mode=0o700)

    def _copy(self, place: Place, frozen: str, name: str) -> None:
        # A copy in the making has a name that is listed nowhere.
        draft = place.root / "drafts" / name
        try:
            _copy_tree(place.root / "frozen" / frozen, draft)
            draft.rename(place.root / "live" / name)
        except BaseException:
            remove_tree(draft)
            raise

    def _keep(self, place: Place, name: str, frozen: str) -> None:
        final = place.root / "frozen" / frozen
        if final.exists():
            raise FileExistsError(errno.EEXIST, "already there", str(final))
        draft = place.root / "drafts" / f"{name}.{uuid.uuid4().hex[:8]}"
        try:
            _copy_tree(place.root / "live" / name, draft)
            # All of the copy must be on the disk before its name is.
            kernel.syncfs(place.fd)
            draft.rename(final)
        except BaseException:
            remove_tree(draft)
            raise
        layout.sync_folder(final.parent)

    def _remove(self, place: Place, kind: Kind, name: str) -> None:
        # Out of sight at once; the work is done behind.
        (place.root / kind / name).rename(place.root / "trash" / uuid.uuid4().hex)

    def _discard_drafts(self, place: Place, owner: str) -> None:
        for draft in (place.root / "drafts").glob(f"{owner}-*"):
            draft.rename(place.root / "trash" / uuid.uuid4().hex)

    def _destroy(self, folder: Path) -> None:
        remove_tree(folder)

    def _reclaim(self, place: Place) -> None:
        for trash in (place.root / "trash").iterdir():
            remove_tree(trash)

    def _measure(self, family: FamilyId) -> StoreUsage:
        with self._use(family) as place:
            pending = sum(1 for _ in (place.root / "trash").iterdir())
            return StoreUsage(tree_size(place.root), 0, 0, pending, 0, 0)


def _copy_tree(source: Path, target: Path) -> None:
    """Copy a disk with everything that overlayfs and a sandbox can see of it.

    GNU cp keeps owners, modes, times to the nanosecond, hard links within, holes, special files
    (also overlay's whiteouts) and, as root, attributes of all name spaces.
    """
    # It dies with its owner, or it would go on filling a draft that a sweep has cleared away. The
    # signal comes when the thread that started it ends, and this one waits for it.
    command = ["setpriv", "--pdeathsig", "KILL", "cp", "-a", "--reflink=auto", "--"]
    command += [os.fspath(source), os.fspath(target)]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        env={**os.environ, "LC_ALL": "C"},
    )
    if done.returncode:
        full = "No space left" in done.stderr or "Disk quota" in done.stderr
        code = errno.ENOSPC if full else errno.EIO
        raise OSError(code, done.stderr.strip()[-500:], os.fspath(target))
