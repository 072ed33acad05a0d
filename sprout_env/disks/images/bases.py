"""Where bases lie in a store: one folder per digest, made once, whole or not at all.

::

    <store>/bases/                      0700: no other user of the host reaches setuid files
        <digest>/root/                  the root, or one layer of it
        <digest>/config.json            how it is run, what it was made from, its layers
        .making-<digest>-<random>/      being made by whoever holds .locks/<digest>
        .locks/  .seen/                 locks; what was found for a source before
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sprout_env.disks.layout import sync_folder, write_durably
from sprout_env.disks.store import Base, ImageConfig
from sprout_env.disks.trees import remove_tree
from sprout_env.errors import ConfigError, ImageError, StoreError

FORMAT = 1
"""Version of ``config.json`` and of the recipes; part of every digest."""

Fill = Callable[[Path, int], ImageConfig]
"""Fills an empty root; gets the root and the lock's descriptor, which its children inherit."""


@dataclass(frozen=True)
class BaseInfo:
    """One base of a store."""

    digest: str
    source: str
    """What it was made from, for people."""
    parents: tuple[str, ...]
    """Digests of the layers beneath its own, uppermost first."""
    made: float
    """Seconds since 1970."""


def bases_folder(store_path: Path) -> Path:
    """Return the folder of the bases, made on first use."""
    folder = store_path / "bases"
    if not folder.is_dir():
        store_path.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    for name in (".locks", ".seen"):
        (folder / name).mkdir(mode=0o700, exist_ok=True)
    return folder


def digest_of(*facts: object) -> str:
    """Return the digest of what a base is made from."""
    text = json.dumps([FORMAT, *facts], sort_keys=True, default=str, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def find_base(store_path: Path, digest: str) -> Base | None:
    """Return the base of this digest if the store holds it: one file is read."""
    folder = store_path / "bases"
    try:
        facts = json.loads((folder / digest / "config.json").read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    layers = tuple(folder / layer / "root" for layer in (digest, *facts["parents"]))
    return Base(digest, layers, ImageConfig.model_validate(facts["config"]))


@contextmanager
def locked(store_path: Path, name: str, *, wait: bool = True) -> Iterator[int]:
    """Hold the lock of this name; threads and processes exclude each other.

    Raises:
        BlockingIOError: Somebody else holds it and ``wait`` is false.
    """
    path = bases_folder(store_path) / ".locks" / name
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield fd
        # A forked copy of this process still has the descriptor: closing alone would not unlock.
        fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


def keep_base(
    store_path: Path, digest: str, fill: Fill, *, source: str, parents: Sequence[str] = ()
) -> Base:
    """Return the base of this digest, filled by ``fill`` if it is not there yet.

    Whoever comes second waits for the first. A kill at any point leaves nothing but a folder
    that the next maker or ``sweep_bases`` removes.

    Args:
        store_path: The store.
        digest: What it is made from.
        fill: Fills the empty root and tells how the image is run.
        source: What it is made from, for people.
        parents: Digests of the layers beneath, uppermost first.

    Raises:
        ImageError: It could not be made.
    """
    if found := find_base(store_path, digest):
        return found
    if os.geteuid() != 0:
        raise ImageError(source, "owners and modes can be kept only by root; run as root")
    folder = bases_folder(store_path)
    with locked(store_path, digest) as lock:
        if found := find_base(store_path, digest):
            return found
        _remove_leftovers(folder, digest)
        making = folder / f".making-{digest}-{uuid.uuid4().hex[:8]}"
        making.mkdir(mode=0o700)
        try:
            root = making / "root"
            root.mkdir(mode=0o755)
            config = fill(root, lock)
            facts = {
                "format": FORMAT,
                "source": source,
                "parents": list(parents),
                "config": config.model_dump(mode="json"),
            }
            (making / "config.json").write_text(json.dumps(facts, indent=1))
            # The whole tree must be on disk before the name that says that it is complete.
            subprocess.run(["sync", "-f", str(making)], check=True)
            with locked(store_path, "catalogue"):
                for parent in parents:
                    if find_base(store_path, parent) is None:
                        raise ImageError(source, f"its parent {parent} was dropped meanwhile")
                making.rename(folder / digest)
            sync_folder(folder)
        except BaseException:
            _clear(making)
            raise
    made = find_base(store_path, digest)
    if made is None:
        raise ImageError(source, "it was dropped as soon as it was made; try again")
    return made


def list_bases(store_path: Path) -> tuple[BaseInfo, ...]:
    """Return the bases of a store, oldest first."""
    found = []
    for path in (store_path / "bases").glob("*/config.json"):
        if path.parent.name.startswith("."):
            continue
        try:
            facts: dict[str, Any] = json.loads(path.read_bytes())
            made = path.stat().st_mtime
        except FileNotFoundError:
            continue
        parents = tuple(facts["parents"])
        found.append(BaseInfo(path.parent.name, facts["source"], parents, made))
    return tuple(sorted(found, key=lambda info: (info.made, info.digest)))


def drop_base(store_path: Path, digest: str) -> None:
    """Delete a base. Idempotent. Whether disks still stand on it is the caller's to know.

    Raises:
        ImageError: Another base is made of layers on top of it.
    """
    folder = bases_folder(store_path)
    with locked(store_path, digest), locked(store_path, "catalogue"):
        if find_base(store_path, digest) is None:
            return
        above = [info.digest for info in list_bases(store_path) if digest in info.parents]
        if above:
            raise ImageError(digest, f"is a layer of {', '.join(above)}; drop those first")
        dropped = folder / f".making-{digest}-{uuid.uuid4().hex[:8]}"
        (folder / digest).rename(dropped)
        sync_folder(folder)
        _clear(dropped)


def sweep_bases(store_path: Path) -> tuple[str, ...]:
    """Remove what killed makers left; return the names of the folders that went."""
    folder = bases_folder(store_path)
    digests = {path.name.split("-")[1] for path in folder.glob(".making-*-*")}
    swept: list[str] = []
    for digest in sorted(digests):
        try:
            with locked(store_path, digest, wait=False):
                swept += _remove_leftovers(folder, digest)
        except BlockingIOError:
            continue
    return tuple(swept)


def seen(store_path: Path, key: str) -> str | None:
    """Return the digest that was noted for ``key``."""
    try:
        return (store_path / "bases" / ".seen" / digest_of(key)).read_text().strip() or None
    except FileNotFoundError:
        return None


def note_seen(store_path: Path, key: str, digest: str) -> None:
    """Note the digest of ``key`` for the next time."""
    path = bases_folder(store_path) / ".seen" / digest_of(key)
    fresh = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}")
    fresh.write_text(digest)
    fresh.replace(path)


def read_names(store_path: Path, file: str) -> dict[str, object]:
    """Return what a file of the store says that names stand for; nothing where there is none.

    Raises:
        ConfigError: It cannot be read.
    """
    path = store_path / file
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path} does not hold an object")
    return found


def change_name(store_path: Path, file: str, name: str, value: object | None) -> None:
    """Let a name stand for something else, or (None) for nothing."""
    with locked(store_path, Path(file).stem):
        known = read_names(store_path, file)
        known.pop(name, None)
        if value is not None:
            known[name] = value
        write_durably(store_path / file, json.dumps(known, indent=1, sort_keys=True))


def _clear(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        with suppress(StoreError):
            remove_tree(path)


def _remove_leftovers(folder: Path, digest: str) -> list[str]:
    left = list(folder.glob(f".making-{digest}-*"))
    for path in left:
        _clear(path)
    return [path.name for path in left]
