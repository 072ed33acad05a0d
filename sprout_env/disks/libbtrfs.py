"""The btrfs calls that must not stall other Python threads: libbtrfsutil through ctypes.

The binding ``btrfsutil`` holds the interpreter lock for as long as a call takes, which is up to
a second where much is dirty; ``btrfs.py`` uses it for what never waits.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
from dataclasses import dataclass

from sprout_env.disks import kernel
from sprout_env.errors import StoreUnavailable

# enum flags of <btrfsutil.h>
_SNAPSHOT_READ_ONLY = 1 << 1
_DELETE_RECURSIVE = 1 << 0

# ioctls of <linux/btrfs.h> and <linux/fs.h> that the library does not wrap
_GET_SUBVOL_ROOTREF = 0xD000943D
_SPACE_INFO = 0xC0109414
_BALANCE_V2 = 0xC4009420
_BALANCE_METADATA = (1 << 2) | (1 << 1)
_FITRIM = 0xC0185879
_FS_INFO = 0x8400941F

REMEDY = (
    "`apt-get install -y libbtrfsutil-dev gcc libc6-dev python3-dev`, then "
    '`pip install "btrfsutil<6.14"`'
)


@functools.cache
def library() -> ctypes.CDLL:
    """Return libbtrfsutil.

    Raises:
        StoreUnavailable: It is not installed.
    """
    try:
        return ctypes.CDLL("libbtrfsutil.so.1", use_errno=True)
    except OSError as error:
        raise StoreUnavailable(f"libbtrfsutil cannot be loaded ({error})", REMEDY) from error


def _done(code: int, what: str) -> None:
    if code:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno), what)


def snapshot(source_fd: int, folder_fd: int, name: str, *, read_only: bool) -> None:
    """Snapshot a subvolume as ``name`` in a folder: atomic, and durable on return.

    The kernel writes the source's dirty data, then commits the transaction that holds the new
    snapshot; a failure leaves nothing behind.
    """
    flags = _SNAPSHOT_READ_ONLY if read_only else 0
    call = library().btrfs_util_create_snapshot_fd2
    _done(call(source_fd, folder_fd, os.fsencode(name), flags, None, None), f"snapshot {name}")


def delete(folder_fd: int, name: str, *, recursive: bool = False) -> None:
    """Delete a subvolume; its space returns after later commits."""
    flags = _DELETE_RECURSIVE if recursive else 0
    code = library().btrfs_util_delete_subvolume_fd(folder_fd, os.fsencode(name), flags)
    _done(code, f"delete subvolume {name}")


def sync(fd: int) -> None:
    """Commit the file system and wake its cleaner."""
    _done(library().btrfs_util_sync_fd(fd), "sync")


def has_children(fd: int) -> bool:
    """Return whether another subvolume lies inside this one: a snapshot would not hold it."""
    buffer = bytearray(4096)
    kernel.ioctl(fd, _GET_SUBVOL_ROOTREF, buffer)
    return buffer[4088] > 0


def grow_metadata(fd: int) -> None:
    """Make room for metadata before data can take all of it.

    A fresh file system has 8 MiB of it. Filled with data before it grew, it is wedged: not even
    a snapshot or a delete works. Moving its few nodes makes the kernel allocate a full chunk.
    """
    argument = bytearray(1024)
    struct.pack_into("<Q", argument, 0, _BALANCE_METADATA)
    kernel.ioctl(fd, _BALANCE_V2, argument)


def trim(fd: int, smallest: int = 1 << 20) -> None:
    """Give free space back to the host, in pieces of at least ``smallest`` bytes."""
    kernel.ioctl(fd, _FITRIM, bytearray(struct.pack("<QQQ", 0, (1 << 64) - 1, smallest)))


@dataclass(frozen=True)
class Space:
    """What a file system holds, in bytes."""

    data: int
    metadata: int
    allocated: int


def space(fd: int) -> Space:
    """Return used data and metadata, and what chunks have been allocated for them."""
    head = bytearray(16)
    kernel.ioctl(fd, _SPACE_INFO, head)
    slots = struct.unpack_from("<QQ", head)[1]
    buffer = bytearray(16 + 24 * slots)
    struct.pack_into("<Q", buffer, 0, slots)
    kernel.ioctl(fd, _SPACE_INFO, buffer)
    data = metadata = allocated = 0
    for slot in range(slots):
        flags, total, used = struct.unpack_from("<QQQ", buffer, 16 + 24 * slot)
        if flags & 1 << 49:
            continue  # the global reserve is part of the metadata
        allocated += total
        if flags & 1:
            data += used
        else:
            metadata += used
    return Space(data, metadata, allocated)


def dirty_bytes(fd: int) -> int:
    """Return the bytes of data that are in memory only."""
    info = bytearray(1024)
    kernel.ioctl(fd, _FS_INFO, info)
    digits = info[16:32].hex()
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    with open(f"/sys/fs/btrfs/{'-'.join(parts)}/allocation/data/bytes_may_use", "rb") as file:
        return int(file.read())
