"""A folder as an image: what it holds, as a digest, and its copy."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from pathlib import Path

from sprout_env.errors import ImageError


def copy_root(source: Path, root: Path, lock_fd: int) -> None:
    """Copy a root with all that a file system keeps; reflinked where that is possible.

    Raises:
        ImageError: It could not be copied whole.
    """
    command = ["cp", "-a", "-x", "--reflink=auto", "--", f"{source}/.", str(root)]
    done = subprocess.run(command, capture_output=True, text=True, pass_fds=(lock_fd,), check=False)
    if done.returncode != 0:
        raise ImageError(source, f"cannot be copied: {done.stderr.strip()[-2000:]}")


def tree_digest(folder: Path) -> str:
    """Return the digest of a tree's metadata: names, types, modes, owners, sizes, times, xattrs.

    Contents are not read: a change that keeps size and time (in nanoseconds) is not seen.
    """
    digest = hashlib.sha256()
    waiting = [os.fsencode(folder)]
    top = len(waiting[0]) + 1
    first = os.lstat(folder)
    digest.update(_entry(b"", first, waiting[0]))
    while waiting:
        path = waiting.pop()
        with os.scandir(path) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        for entry in found:
            facts = entry.stat(follow_symlinks=False)
            if facts.st_dev != first.st_dev:
                continue
            digest.update(_entry(entry.path[top:], facts, entry.path))
            if stat.S_ISDIR(facts.st_mode):
                waiting.append(entry.path)
    return digest.hexdigest()


def _entry(name: bytes, facts: os.stat_result, path: bytes) -> bytes:
    kind = stat.S_IFMT(facts.st_mode)
    size = 0 if kind == stat.S_IFDIR else facts.st_size
    numbers = (facts.st_mode, facts.st_uid, facts.st_gid, size, facts.st_mtime_ns, facts.st_rdev)
    target = bytes(Path(os.fsdecode(path)).readlink()) if kind == stat.S_IFLNK else b""
    # nlink: whether names share a file is part of a root, which inode it is is not.
    links = facts.st_nlink if kind == stat.S_IFREG else 0
    attributes = b"".join(
        os.fsencode(key) + b"=" + os.getxattr(path, key, follow_symlinks=False)
        for key in sorted(os.listxattr(path, follow_symlinks=False))
    )
    parts = (name, repr((numbers, links)).encode(), target, attributes)
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)
