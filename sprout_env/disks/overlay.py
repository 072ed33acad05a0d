"""Base and upper become a root mount: overlayfs on idmapped layers.

Two ways, chosen by kernel and both first class. From Linux 6.13 on the layers are handed over as
descriptors and the mount never has a path. Below, they are attached at short paths in the store's
private mount namespace, the overlay is mounted there by path, and a detached copy of it is given
out. ``SPROUT_OVERLAY=fd|path`` forces one; it is read when the first mount is made.
"""

from __future__ import annotations

import functools
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sprout_env.disks import kernel
from sprout_env.disks.rooms import MountRoom
from sprout_env.errors import ConfigError, StoreError

Mode = Literal["fd", "path"]

# index=on would make clones unmountable (ESTALE); the others change what a copied-up upper means.
_OPTIONS = {"index": "off", "metacopy": "off", "redirect_dir": "off"}

VIEW = (
    kernel.MOUNT_ATTR_RDONLY
    | kernel.MOUNT_ATTR_NOSUID
    | kernel.MOUNT_ATTR_NODEV
    | kernel.MOUNT_ATTR_NOEXEC
    | kernel.MOUNT_ATTR_NOSYMFOLLOW
)
"""Attributes of a mount that the host looks into."""


@dataclass(frozen=True)
class IdMap:
    """How ids inside a sandbox become ids of the host."""

    userns_fd: int
    root_id: int
    """The host's uid and gid of the sandbox's root."""


@functools.cache
def overlay_mode() -> Mode:
    """Return how layers reach the kernel in this process.

    Raises:
        ConfigError: ``SPROUT_OVERLAY`` asks for what is not known.
    """
    told = os.environ.get("SPROUT_OVERLAY", "")
    if told in ("fd", "path"):
        return "fd" if told == "fd" else "path"
    if told:
        raise ConfigError(f"SPROUT_OVERLAY is {told!r}; it can be fd or path")
    return "fd" if kernel.kernel_version() >= (6, 13) else "path"


def mount_overlay(
    room: MountRoom,
    lower: Sequence[str | Path],
    upper: str | Path | None = None,
    *,
    idmap: IdMap | None = None,
    attributes: int = 0,
    mode: Mode | None = None,
) -> int:
    """Return a detached overlay mount.

    Args:
        room: Where the paths below can be seen.
        lower: Read-only layers, uppermost first.
        upper: A folder that holds ``upper`` and ``work``; without it the mount is read-only and
            needs two lower layers.
        idmap: The mapping of ids; None for the host's own.
        attributes: ``MOUNT_ATTR_*`` of the mount.
        mode: Forced for one call; else ``overlay_mode()``.

    Raises:
        StoreError: The kernel refused, or gave a read-only mount in place of a writable one.
    """
    by_fd = (mode or overlay_mode()) == "fd"
    layers = _Layers([str(layer) for layer in lower], None if upper is None else str(upper), idmap)
    work = _by_descriptor if by_fd else _by_path

    def make() -> int:
        with ExitStack() as undo:
            fd = work(room, layers, attributes, undo)
        if layers.upper is not None and os.fstatvfs(fd).f_flag & os.ST_RDONLY:
            os.close(fd)
            raise StoreError(
                f"the kernel mounted {layers.upper} read-only: its work folder cannot be made "
                "(the kernel's log says why)"
            )
        return fd

    try:
        return room.call(make)
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(
            f"cannot mount an overlay ({'descriptor' if by_fd else 'path'} mode) over "
            f"{lower[-1]}: {error}"
        ) from error


@dataclass(frozen=True)
class _Layers:
    lower: list[str]
    upper: str | None
    idmap: IdMap | None

    def open(self, path: str, undo: ExitStack, *, writable: bool = False) -> int:
        """Return a detached, idmapped mount of one layer."""
        fd = kernel.open_tree(path)
        undo.callback(os.close, fd)
        attributes = 0 if writable else kernel.MOUNT_ATTR_RDONLY
        if self.idmap is None:
            if attributes:
                kernel.mount_setattr(fd, attributes)
            return fd
        attributes |= kernel.MOUNT_ATTR_IDMAP
        try:
            kernel.mount_setattr(fd, attributes, self.idmap.userns_fd)
        except OSError as error:
            raise StoreError(
                f"{path} cannot be mounted for a sandbox's users ({error}): its file system "
                f"({kernel.file_system_of(path)}) may lack idmapped mounts; keep the store on "
                "ext4, xfs or btrfs"
            ) from error
        return fd

    def as_root(self) -> AbstractContextManager[None]:
        """Act as the sandbox's root while overlayfs remembers who mounts."""
        return nullcontext() if self.idmap is None else kernel.acting_as(self.idmap.root_id)


def _by_descriptor(room: MountRoom, layers: _Layers, attributes: int, undo: ExitStack) -> int:
    # The credentials at fsopen are those that overlayfs works with for the life of the mount.
    with layers.as_root():
        context = kernel.fsopen("overlay")
    undo.callback(os.close, context)
    for path in layers.lower:
        kernel.fsconfig_fd(context, "lowerdir+", layers.open(path, undo))
    if layers.upper is not None:
        top = layers.open(layers.upper, undo, writable=True)
        for key, name in (("upperdir", "upper"), ("workdir", "work")):
            fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
            undo.callback(os.close, fd)
            kernel.fsconfig_fd(context, key, fd)
    for key, value in _OPTIONS.items():
        kernel.fsconfig_string(context, key, value)
    with layers.as_root():
        kernel.fsconfig_create(context)
        return kernel.fsmount(context, attributes)


def _by_path(room: MountRoom, layers: _Layers, attributes: int, undo: ExitStack) -> int:
    top = room.name()

    def attach(name: str, path: str, *, writable: bool = False) -> str:
        place = f"{top}/{name}"
        _folder(place, undo)
        with ExitStack() as detached:
            kernel.move_mount(layers.open(path, detached, writable=writable), place)
        undo.callback(kernel.unmount, place, lazily=True)
        return place

    _folder(top, undo)
    lower = ":".join(attach(str(n), path) for n, path in enumerate(layers.lower))
    options = [f"lowerdir={lower}", *(f"{key}={value}" for key, value in _OPTIONS.items())]
    if layers.upper is not None:
        place = attach("u", layers.upper, writable=True)
        options += [f"upperdir={place}/upper", f"workdir={place}/work"]
    merged = f"{top}/m"
    _folder(merged, undo)
    with layers.as_root():
        kernel.mount("overlay", merged, "overlay", 0, ",".join(options))
    undo.callback(kernel.unmount, merged, lazily=True)
    fd = kernel.open_tree(merged)
    if attributes:
        try:
            kernel.mount_setattr(fd, attributes)
        except OSError:
            os.close(fd)
            raise
    return fd


def _folder(name: str, undo: ExitStack) -> None:
    os.mkdir(name)  # noqa: PTH102
    undo.callback(os.rmdir, name)


def attach_view(folder: Path, owner: str, mount_fd: int) -> Path:
    """Attach a mount for the host to look into; its owner's name lets a sweep find it."""
    view = folder / f"{owner}-{uuid.uuid4().hex[:12]}"
    view.mkdir(mode=0o700)
    try:
        kernel.move_mount(mount_fd, view)
    except OSError:
        view.rmdir()
        raise
    return view


def detach_view(view: Path) -> None:
    """Unmount a view, also one that somebody still looks into. Idempotent."""
    if os.path.ismount(view):
        kernel.unmount(view, lazily=True)
    if view.is_dir():
        view.rmdir()


def views_of(folder: Path, owner: str) -> Iterator[Path]:
    """Yield the views of an owner."""
    yield from sorted(folder.glob(f"{owner}-*"))
