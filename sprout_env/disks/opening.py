"""Open the store of this machine, and make it on first use."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Literal

from sprout_env.disks import kernel, layout, probing
from sprout_env.disks.btrfs import BtrfsStore, binding
from sprout_env.disks.directory import DirectoryStore
from sprout_env.disks.layout import GIB, StoreConfig
from sprout_env.disks.local import LocalStore
from sprout_env.disks.store import DiskStore
from sprout_env.errors import ConfigError, StoreError, StoreUnavailable

StoreKind = Literal["auto", "btrfs", "directory", "memory"]

_OURS = (*layout.FOLDERS, "aliases.json", "sources.json", "logs", "lost+found")
"""What may lie in a folder before a store is made of it."""

_open: dict[tuple[int, str, str], DiskStore] = {}
_lock = threading.RLock()


def default_path() -> Path:
    """Return where the store lies unless told: ``$SPROUT_STORE``, else ``/var/lib/sprout``."""
    return Path(os.environ.get("SPROUT_STORE") or "/var/lib/sprout")


def open_store(path: Path | None = None, *, kind: StoreKind = "auto") -> DiskStore:
    """Return the store at ``path``, made on first use; one object per process and path.

    Args:
        path: Its folder; None for ``default_path()``.
        kind: ``auto`` takes the kind that the store has, and for a new one btrfs where possible,
            else directory (``store.why`` says why). ``memory`` is taken only when asked for.

    Raises:
        StoreUnavailable: No store can be had here; the message says what would help.
        StoreError: The store was made by a later version, or cannot be read.
        ConfigError: The store is of another kind.
    """
    place = Path(os.path.realpath(path if path is not None else default_path()))
    with _lock:
        key = (os.getpid(), str(place), "memory" if kind == "memory" else "disk")
        store = _open.get(key)
        if store is not None and not getattr(store, "_closed", False):
            if kind not in ("auto", store.kind):
                raise ConfigError(f"the store at {place} is of kind {store.kind}, not {kind}")
            return store
        store = _memory(place) if kind == "memory" else _on_disk(place, kind)
        _open[key] = store
        return store


def _memory(place: Path) -> DiskStore:
    from sprout_env.disks.memory import MemoryStore

    return MemoryStore(place)


def _on_disk(place: Path, kind: StoreKind) -> DiskStore:
    if os.geteuid() != 0:
        raise StoreUnavailable(
            "mounting needs root",
            'run as root (sudo), or ask for the double without privileges: store_kind="memory"',
        )
    if why_not := probing.why_not_writable(place):
        raise why_not
    config = layout.read_config(place)
    if config is None:
        config = init_store(place, kind=kind)
    elif kind not in ("auto", config.kind):
        raise ConfigError(f"the store at {place} is of kind {config.kind}, not {kind}")
    store: LocalStore
    store = BtrfsStore(place, config) if config.kind == "btrfs" else DirectoryStore(place, config)
    store.swept = tuple(store.sweep())
    return store


def init_store(
    path: Path | None = None,
    *,
    ram: bool = False,
    image_gib: float = 8,
    kind: StoreKind = "auto",
    reserve_bytes: int | None = None,
) -> StoreConfig:
    """Make a store and return what it is.

    Args:
        path: Its folder, made if need be; None for ``default_path()``.
        ram: Mount a tmpfs there first: fast, and gone with the machine's next start.
        image_gib: Nominal size in GiB of each task's image (btrfs).
        kind: As in ``open_store``; not ``memory``.
        reserve_bytes: Bytes to keep free on the host's file system; None for 1 GiB or 2 %.

    Raises:
        StoreUnavailable: No store can be had here; the message says what would help.
        StoreError: There is a store already.
        ConfigError: A setting that cannot be served.
    """
    if kind == "memory":
        raise ConfigError("a memory store has no folder to make")
    if image_gib < 0.25:
        raise ConfigError(f"an image of {image_gib} GiB is too small for btrfs; take 0.25 or more")
    if os.geteuid() != 0:
        raise StoreUnavailable("mounting needs root", "run as root (sudo)")
    place = Path(os.path.realpath(path if path is not None else default_path()))
    if why_not := probing.why_not_writable(place):
        raise why_not
    if layout.read_config(place) is not None:
        raise StoreError(f"there is a store at {place} already")
    try:
        place.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnavailable(
            f"{place} cannot be made ({error.strerror})", "choose another folder (SPROUT_STORE)"
        ) from error
    _refuse_strangers(place)
    if ram:
        kernel.mount("tmpfs", str(place), "tmpfs", 0, "mode=755")
    try:
        chosen = _choose(place, kind, int(image_gib * GIB), reserve_bytes, ram=ram)
        for name in layout.FOLDERS:
            (place / name).mkdir(mode=0o755 if name == "bases" else 0o700, exist_ok=True)
        layout.write_durably(place / "store.json", chosen.model_dump_json(indent=1))
    except BaseException:
        if ram:
            kernel.unmount(place)
        raise
    return chosen


def _refuse_strangers(place: Path) -> None:
    stranger = next((p.name for p in place.iterdir() if p.name not in _OURS), None)
    if stranger is not None and not stranger.startswith(".store.json"):
        raise StoreError(f"{place} holds other files ({stranger}); choose an empty folder")


def _choose(
    place: Path, kind: StoreKind, image_bytes: int, reserve: int | None, *, ram: bool
) -> StoreConfig:
    host = kernel.file_system_of(place)
    if host in kernel.NETWORK:
        raise StoreUnavailable(
            f"{place} lies on {host}, a file system shared by machines, where locks and snapshots "
            "cannot be trusted",
            "choose a local folder (`sprout store init --store FOLDER`, or SPROUT_STORE)",
        )
    lacking = probing.why_no_idmapped_mounts(place)
    if lacking is not None:
        raise StoreUnavailable(
            f"{place} lies on {host}, which has no idmapped mounts ({lacking})",
            f"keep the store on {probing.TAKEN} (in a container: on a volume)",
        )
    why_not = why_no_btrfs(place)
    if kind == "btrfs" and why_not is not None:
        raise why_not
    if kind == "directory" or why_not is not None:
        why = "asked for" if why_not is None or kind == "directory" else str(why_not.facts[0])
        return StoreConfig(kind="directory", reserve_bytes=reserve, ram=ram, why=why)
    on_btrfs = host == "btrfs"
    return StoreConfig(
        kind="btrfs",
        layout="folder" if on_btrfs else "image",
        image_bytes=image_bytes,
        reserve_bytes=reserve,
        ram=ram,
        why="the store lies on btrfs" if on_btrfs else f"btrfs in images on {host}",
    )


def why_no_btrfs(place: Path) -> StoreUnavailable | None:
    """Return what keeps this machine from btrfs disks, or None."""
    try:
        binding()
        probing.require_btrfs(on_btrfs=kernel.file_system_of(place) == "btrfs")
    except StoreUnavailable as error:
        return error
    return None


def remove_store(path: Path) -> None:
    """Delete a store with everything in it; unmounts one that lies in memory.

    Raises:
        StoreError: A family is in use.
    """
    store = open_store(path)
    for family in store.families():
        store.drop_family(family)
    ram = isinstance(store, LocalStore) and store.config.ram
    store.close()
    if ram:
        kernel.unmount(store.path)
    shutil.rmtree(store.path, ignore_errors=ram)
