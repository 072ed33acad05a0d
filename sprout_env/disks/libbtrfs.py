"""The btrfs calls that must not stall other Python threads: libbtrfsutil through ctypes.

The binding ``btrfsutil`` holds the interpreter lock for as long as a call takes, which is up to
a second where much is dirty; ``btrfs.py`` uses it for what never waits.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import struct
import uuid
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
_QUOTA_CTL, _SIMPLE_QUOTAS = 0xC0109428, 4
_QGROUP_LIMIT, _MAX_RFER = 0x8030942B, 1
_UNLIMITED = (1 << 64) - 1

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
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


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
    return _told(fd, "allocation/data/bytes_may_use")


def _told(fd: int, name: str) -> int:
    """Return a number that the kernel tells about a mounted file system in ``/sys``."""
    info = bytearray(1024)
    kernel.ioctl(fd, _FS_INFO, info)
    with open(f"/sys/fs/btrfs/{uuid.UUID(bytes=bytes(info[16:32]))}/{name}", "rb") as file:
        return int(file.read())


def count_growth(fd: int) -> bool:
    """Let a file system count what each subvolume writes; False where the kernel cannot.

    Simple quotas (Linux 6.7) bill an extent to the subvolume that wrote it until the extent is
    freed, also where only a snapshot still holds it; a new snapshot starts at nothing. They cost
    a snapshot 0.1 to 0.3 ms; full quota groups make it ten times slower. Older kernels cannot
    mount the file system any more.
    """
    try:
        kernel.ioctl(fd, _QUOTA_CTL, bytearray(struct.pack("<QQ", _SIMPLE_QUOTAS, 0)))
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTTY):
            raise
        return False
    return True


def limit_growth(fd: int, subvolume: int, limit: int | None) -> None:
    """Refuse a subvolume more than ``limit`` written bytes (EDQUOT); None lifts it.

    No commit: 0.1 ms. Without effect where nothing is counted.

    Args:
        fd: Of the file system's top: asked through a full subvolume, the kernel answers EDQUOT.
        subvolume: Its id.
        limit: In bytes.
    """
    value = _UNLIMITED if limit is None else limit
    argument = bytearray(struct.pack("<6Q", subvolume, _MAX_RFER, value, 0, 0, 0))
    try:
        kernel.ioctl(fd, _QGROUP_LIMIT, argument)
    except OSError as error:
        if error.errno != errno.ENOTCONN:
            raise


def growth(fd: int, subvolume: int) -> int:
    """Return the bytes that a subvolume is billed for, counted as soon as they are written.

    Raises:
        OSError: Nothing is counted here, or ``/sys`` is not to be seen.
    """
    return _told(fd, f"qgroups/0_{subvolume}/referenced")


def growth_limit(fd: int, subvolume: int) -> int:
    """Return what ``limit_growth`` set; raises as ``growth``."""
    return _told(fd, f"qgroups/0_{subvolume}/max_referenced")
