"""How a store lies on disk, and what it says about itself.

::

    store.json                  format, kind and sizes
    bases/<digest>/root         read-only roots, config.json beside each (images/)
    families/<id>/family.json   the base that its disks lie over
    families/<id>/disk.img      its file system (btrfs in images)
    families/<id>/fs/           or its folder (btrfs in a folder, directory)
    families/<id>/lock, lease   exclusive while attached or deleted; shared while used
    owners/<owner>.lock         held while a process that owns disks lives
    views/                      mounts that the host looks into (browse)
    mnt/                        where rooms mount, seen by none but the process itself
    trash/                      on its way out

Inside a family: ``live/<owner>-<uuid>`` and ``frozen/<name>``, each with ``upper``, ``work`` and
``meta``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import uuid
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from sprout_env.disks.store import Base, DiskId, Family, FamilyId, FrozenDiskId, ImageConfig
from sprout_env.errors import ConfigError, DiskNotFound, StoreError, StoreFull
from sprout_env.transcript import Frozen

FORMAT = 1
GIB = 1 << 30
FOLDERS = ("bases", "families", "owners", "views", "mnt", "trash")

FAMILY_NAME = re.compile(r"[0-9a-f]{12}")
FROZEN_NAME = re.compile(r"[0-9a-f]{16}")
_LIVE_NAME = re.compile(r"(\d+-\d+-[0-9a-f]{8}(?:x\d+)?)-[0-9a-f]{12}")


class StoreConfig(Frozen):
    """What ``store.json`` holds."""

    format: int = FORMAT
    kind: Literal["btrfs", "directory"]
    layout: Literal["image", "folder"] = "folder"
    """Whether each family is a file system in an image, or a folder of the store's own."""
    image_bytes: int = 8 * GIB
    """Nominal size of a family's image, or more for disks that may write much; it is sparse."""
    disk_share: float = 0.25
    """What one disk may write where its task does not say, as a share of ``image_bytes``."""
    reserve_bytes: int | None = None
    """Bytes of the host's file system to keep free; None for 1 GiB or 2 %, the larger."""
    ram: bool = False
    """Whether the store lies in memory that ``init_store`` mounted."""
    why: str = ""
    """Why this kind was chosen."""


class _BaseRecord(Frozen):
    digest: str
    layers: tuple[str, ...]
    """Relative to the store where they lie in it."""
    config: ImageConfig


class _FamilyRecord(Frozen):
    format: int = FORMAT
    task: str
    base: _BaseRecord
    storage_bytes: int | None = None
    """None also in families made before there was a limit."""


def read_config(store: Path) -> StoreConfig | None:
    """Return what a store says about itself; None where there is none yet.

    Raises:
        StoreError: It was made by a later version, or cannot be read.
    """
    file = store / "store.json"
    try:
        text = file.read_text()
    except FileNotFoundError:
        return None
    _refuse_later(file, text)
    try:
        return StoreConfig.model_validate_json(text)
    except ValidationError as error:
        raise StoreError(f"{file} cannot be read: {error}") from error


def _refuse_later(file: Path, text: str) -> None:
    try:
        said = json.loads(text)
        version = said["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{file} cannot be read: {error!r}") from error
    if not isinstance(version, int) or version > FORMAT:
        raise StoreError(
            f"{file} has format {version}, this version of sprout_env knows up to {FORMAT}: "
            "upgrade it, or use another store"
        )


def write_durably(file: Path, text: str) -> None:
    """Write a small file so that it is whole or not there, also after a crash."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    with open(draft, "w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    draft.rename(file)
    sync_folder(file.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def family_id(task_digest: str, base: Base) -> FamilyId:
    """Return the family of a task over a base."""
    return FamilyId(hashlib.sha256((task_digest + base.digest).encode()).hexdigest()[:12])


def write_family(
    store: Path, folder: Path, task_digest: str, base: Base, storage_bytes: int | None
) -> None:
    """Write ``family.json``."""
    layers = tuple(
        str(layer.relative_to(store)) if layer.is_relative_to(store) else str(layer)
        for layer in base.layers
    )
    record = _FamilyRecord(
        task=task_digest,
        base=_BaseRecord(digest=base.digest, layers=layers, config=base.config),
        storage_bytes=storage_bytes,
    )
    write_durably(folder / "family.json", record.model_dump_json(indent=1))


def read_family(store: Path, family: FamilyId) -> Family:
    """Return a family as its record tells it.

    Raises:
        DiskNotFound: There is none.
        StoreError: Its record cannot be read.
    """
    if not FAMILY_NAME.fullmatch(family):
        raise DiskNotFound(family)
    file = store / "families" / family / "family.json"
    try:
        text = file.read_text()
    except FileNotFoundError:
        raise DiskNotFound(family) from None
    _refuse_later(file, text)
    try:
        record = _FamilyRecord.model_validate_json(text)
    except ValidationError as error:
        raise StoreError(f"{file} cannot be read: {error}") from error
    said = record.base
    layers = tuple(store / layer for layer in said.layers)
    return Family(family, Base(said.digest, layers, said.config), record.storage_bytes)


def name_of(id: DiskId | FrozenDiskId | str) -> str:
    """Return the part of an id behind its family."""
    return id.partition("-")[2]


def frozen_name(id: FrozenDiskId | str) -> str:
    """Return the name of a frozen disk.

    Raises:
        DiskNotFound: No frozen disk can have this id.
    """
    family, _, name = id.partition("-")
    if not (FAMILY_NAME.fullmatch(family) and FROZEN_NAME.fullmatch(name)):
        raise DiskNotFound(id)
    return name


def owner_of(live_name: str) -> str | None:
    """Return the owner that a writable disk's name carries; None for a foreign name."""
    match = _LIVE_NAME.fullmatch(live_name)
    return match[1] if match else None


def record_path(name: str) -> tuple[str, ...]:
    """Return the parts of a record's name.

    Raises:
        ConfigError: It would lead out of ``meta``.
    """
    parts = tuple(name.split("/"))
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise ConfigError(f"{name!r} is no name for a record")
    return parts


def write_records(meta: Path, records: Mapping[str, bytes]) -> None:
    """Write records: plain files in a disk's ``meta``, each replaced as a whole.

    None of them needs an fsync: the freeze that follows makes them durable, or nothing.
    """
    for name, data in records.items():
        *folders, last = record_path(name)
        place = meta.joinpath(*folders)
        place.mkdir(0o700, parents=True, exist_ok=True)
        draft = place / f".{uuid.uuid4().hex}"
        try:
            with open(draft, "xb", buffering=0) as out:
                view = memoryview(data)
                while view:
                    view = view[out.write(view) :]
            draft.rename(place / last)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise


def read_records(meta: Path, names: Iterable[str]) -> list[bytes]:
    """Return records; a thousand of them take little more than their thousand reads.

    Raises:
        FileNotFoundError: There is none of one name; ``filename`` says of which.
    """
    records = []
    folder = os.open(meta, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in names:
            path = "/".join(record_path(name))
            with open(path, "rb", buffering=0, opener=partial(os.open, dir_fd=folder)) as file:
                records.append(file.read())
    finally:
        os.close(folder)
    return records


def count_turns(meta: Path) -> int:
    """Return how many turns a disk's records hold."""
    try:
        return sum(not each.name.startswith(".") for each in (meta / "turns").iterdir())
    except FileNotFoundError:
        return 0


def host_space(folder: Path) -> tuple[int, int]:
    """Return the free bytes of the host's file system, and how many of them are kept free."""
    host = os.statvfs(folder)
    return host.f_bavail * host.f_frsize, max(GIB, host.f_blocks * host.f_frsize // 50)


def guard_host(store: Path, reserve_bytes: int | None, *, coming: int = 0) -> None:
    """Refuse new work while an image could still grow into a host that has room for it.

    An image that meets a full disk loses what is not yet written and turns read-only, so that not
    even deleting works.

    Args:
        store: The store's folder.
        reserve_bytes: To keep free; None for the default.
        coming: Bytes known to be on their way.

    Raises:
        StoreFull: Too little is free.
    """
    free, usual = host_space(store)
    reserve = usual if reserve_bytes is None else reserve_bytes
    if free - coming < reserve:
        raise StoreFull(str(store), free, reserve + coming)
