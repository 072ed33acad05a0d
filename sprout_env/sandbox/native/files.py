"""Files in and out of a sandbox, with an agent's hands in the tree while we work on it.

All paths are resolved by the kernel as if the sandbox's root were ours (openat2 with
RESOLVE_IN_ROOT), on its disk only, and what we create or read never passes a link in its last
part. Only regular files are read, never more than asked for, and nothing can make us wait.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

from sprout_env.disks.kernel import acting_as, libc
from sprout_env.errors import SandboxError
from sprout_env.sandbox.native.identity import RANGE

_OPENAT2 = 437
_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _IN_ROOT = 0x01, 0x02, 0x04, 0x10
_PIECE = 1 << 20
_DEEPEST = 200
_MOST_ENTRIES = 200_000
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def open_in(root_fd: int, path: str, flags: int, *, links: bool) -> int:
    """Open a path of the sandbox; ``links`` says whether links in it may be followed, inside.

    Raises:
        OSError: As of openat2; ELOOP for a link, EXDEV for what is not on the disk.
    """
    resolve = _IN_ROOT | _NO_MAGICLINKS | _NO_XDEV | (0 if links else _NO_SYMLINKS)
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, 0, resolve)
    name = os.fsencode(path)
    while True:
        fd = libc().syscall(
            ctypes.c_long(_OPENAT2),
            ctypes.c_long(root_fd),
            ctypes.c_char_p(name),
            ctypes.c_char_p(how),
            ctypes.c_long(len(how)),
        )
        if fd >= 0:
            return int(fd)
        code = ctypes.get_errno()
        if code != errno.EAGAIN:  # a rename anywhere disturbed the walk
            raise OSError(code, os.strerror(code), path)


def read_file(root_fd: int, path: str, max_bytes: int) -> bytes:
    """Return a regular file's bytes; see ``Sandbox.read_file``."""
    try:
        fd = open_in(root_fd, path, _READ & ~os.O_NOFOLLOW, links=False)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(errno.ENOENT, "no such file in the sandbox", path) from error
    except OSError as error:
        raise SandboxError(f"{path} cannot be read: {_why(error)}") from error
    try:
        return b"".join(_pieces(fd, path, max_bytes))
    finally:
        os.close(fd)


def _pieces(fd: int, path: str, max_bytes: int) -> Iterator[bytes]:
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        raise SandboxError(f"{path} is not a regular file")
    if info.st_size > max_bytes:
        raise SandboxError(f"{path} has {info.st_size} bytes, more than {max_bytes}")
    left = max_bytes
    while piece := os.read(fd, min(_PIECE, left + 1)):
        left -= len(piece)
        if left < 0:
            raise SandboxError(f"{path} grew over {max_bytes} bytes")
        yield piece


def _why(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "a part of it is a link"
    if error.errno == errno.EXDEV:
        return "it is not on the disk"
    return error.strerror or str(error)


class Getter:
    """Copies out of a sandbox.

    Args:
        root_fd: The sandbox's root.
        max_bytes: Most bytes of all files together.
    """

    def __init__(self, root_fd: int, max_bytes: int) -> None:
        self._root_fd = root_fd
        self._left = max_bytes
        self._entries = 0

    def get(self, source: str, target: Path) -> None:
        """Copy ``source`` to ``target``; see ``Sandbox.get``."""
        try:
            fd = open_in(self._root_fd, source, os.O_PATH | os.O_NOFOLLOW, links=True)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise FileNotFoundError(errno.ENOENT, "no such file in the sandbox", source) from error
        except OSError as error:
            raise SandboxError(f"{source} cannot be copied: {_why(error)}") from error
        try:
            kind = os.fstat(fd).st_mode
            if stat.S_ISDIR(kind):
                target.mkdir(exist_ok=True)
                self._folder(os.open(".", _FOLDER, dir_fd=fd), source, target, 0)
            elif stat.S_ISLNK(kind):
                _link(os.readlink("", dir_fd=fd), target)
            elif stat.S_ISREG(kind):
                # A regular file cannot be changed into anything that waits while we hold it.
                self._file(os.open(f"/proc/self/fd/{fd}", _READ & ~os.O_NOFOLLOW), source, target)
            else:
                raise SandboxError(f"{source} is not a file or folder")
        finally:
            os.close(fd)

    def _file(self, fd: int, source: str, target: Path) -> None:
        try:
            mode = stat.S_IMODE(os.fstat(fd).st_mode) & 0o777
            with contextlib.suppress(FileNotFoundError):
                target.unlink()
            out = os.open(target, _CREATE, 0o600)
            try:
                for piece in _pieces(fd, source, self._left):
                    self._left -= len(piece)
                    _write(out, piece)
                os.fchmod(out, mode | 0o600)
            finally:
                os.close(out)
        finally:
            os.close(fd)

    def _folder(self, fd: int, source: str, target: Path, depth: int) -> None:
        try:
            if depth > _DEEPEST:
                raise SandboxError(f"{source} is nested deeper than {_DEEPEST} folders")
            for name in _names(fd):
                self._entries += 1
                if self._entries > _MOST_ENTRIES:
                    raise SandboxError(f"more than {_MOST_ENTRIES} files to copy")
                self._entry(fd, name, f"{source}/{name}", target / name, depth)
        finally:
            os.close(fd)

    def _entry(self, fd: int, name: str, source: str, target: Path, depth: int) -> None:
        # What vanishes, or changes its kind under us, is not there; specials carry no content.
        with contextlib.suppress(FileNotFoundError):
            kind = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
            try:
                if stat.S_ISLNK(kind):
                    _link(os.readlink(name, dir_fd=fd), target)
                elif stat.S_ISDIR(kind):
                    inner = os.open(name, _FOLDER, dir_fd=fd)
                    target.mkdir(exist_ok=True)
                    self._folder(inner, source, target, depth + 1)
                elif stat.S_ISREG(kind):
                    self._file(os.open(name, _READ, dir_fd=fd), source, target)
            except OSError as error:
                if error.errno == errno.ENAMETOOLONG:
                    raise SandboxError(f"{source[:200]}... is too long a path") from error
                if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EINVAL):
                    raise


class Putter:
    """Copies into a sandbox.

    Args:
        root_fd: The sandbox's root.
        root_id: Host id of the sandbox's root.
        uid: Owner of what is made, as seen inside.
        gid: Its group, as seen inside.
    """

    def __init__(self, root_fd: int, root_id: int, uid: int = 0, gid: int = 0) -> None:
        self._root_fd = root_fd
        self._root_id = root_id
        self._owner = (root_id + min(uid, RANGE - 1), root_id + min(gid, RANGE - 1))

    def put(self, source: Path, target: str) -> None:
        """Copy ``source`` to ``target``; see ``Sandbox.put``."""
        with self._parent(target) as (folder, name):
            self._copy(source, folder, name)

    def write(self, target: str, data: bytes, mode: int = 0o644) -> None:
        """Make ``target`` a regular file that holds ``data``."""
        with self._parent(target) as (folder, name):
            self._clear(folder, name, keep_folder=False)
            fd = os.open(name, _CREATE, 0o600, dir_fd=folder)
            try:
                _write(fd, data)
                self._own(fd, mode)
            finally:
                os.close(fd)

    def make_folder(self, target: str) -> None:
        """Make a folder and those above it; what exists stays as it is."""
        with self._parent(target.rstrip("/") + "/."):
            pass

    @contextlib.contextmanager
    def _parent(self, target: str) -> Iterator[tuple[int, str]]:
        """Open the folder that ``target`` lies in, made where missing."""
        parts = [part for part in target.split("/") if part]
        if not parts or ".." in parts or not target.startswith("/"):
            raise SandboxError(f"not an absolute path below /: {target!r}")
        # What is created is created by the sandbox's root: no other id fits through its mapping.
        with acting_as(self._root_id):
            folder = self._open_folder("/")
            try:
                for depth, part in enumerate(parts[:-1], 1):
                    path = "/" + "/".join(parts[:depth])
                    try:
                        inner = self._open_folder(path)
                    except FileNotFoundError:
                        # A dangling link is in the way as much as a file would be.
                        self._clear(folder, part, keep_folder=True)
                        os.mkdir(part, 0o755, dir_fd=folder)
                        inner = os.open(part, _FOLDER, dir_fd=folder)
                        self._own(inner, 0o755)
                    os.close(folder)
                    folder = inner
                yield folder, parts[-1]
            except OSError as error:
                raise SandboxError(f"cannot write {target}: {_why(error)}") from error
            finally:
                os.close(folder)

    def _open_folder(self, path: str) -> int:
        return open_in(self._root_fd, path, os.O_RDONLY | os.O_DIRECTORY, links=True)

    def _copy(self, source: Path, folder: int, name: str) -> None:
        info = source.lstat()
        if stat.S_ISLNK(info.st_mode):
            self._clear(folder, name, keep_folder=False)
            os.symlink(source.readlink(), name, dir_fd=folder)
            os.chown(name, *self._owner, dir_fd=folder, follow_symlinks=False)
        elif stat.S_ISDIR(info.st_mode):
            self._clear(folder, name, keep_folder=True)
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=folder)
            inner = os.open(name, _FOLDER, dir_fd=folder)
            try:
                for entry in sorted(source.iterdir()):
                    self._copy(entry, inner, entry.name)
                self._own(inner, stat.S_IMODE(info.st_mode), info)
            finally:
                os.close(inner)
        elif stat.S_ISREG(info.st_mode):
            self._clear(folder, name, keep_folder=False)
            fd = os.open(name, _CREATE, 0o600, dir_fd=folder)
            try:
                with source.open("rb") as data:
                    while piece := data.read(_PIECE):
                        _write(fd, piece)
                self._own(fd, stat.S_IMODE(info.st_mode), info)
            finally:
                os.close(fd)
        else:
            raise SandboxError(f"{source} is not a file, folder or link")

    def _own(self, fd: int, mode: int, times: os.stat_result | None = None) -> None:
        os.fchown(fd, *self._owner)
        os.fchmod(fd, mode)  # after the owner: a change of owner clears setuid
        if times is not None:
            os.utime(fd, ns=(times.st_mtime_ns, times.st_mtime_ns))

    def _clear(self, folder: int, name: str, *, keep_folder: bool, depth: int = 0) -> None:
        """Remove what stands at ``name``, link or not, without following it."""
        try:
            kind = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(kind):
            os.unlink(name, dir_fd=folder)
        elif not keep_folder:
            if depth > _DEEPEST:
                raise SandboxError(f"what stands at {name} is nested too deep to be replaced")
            inner = os.open(name, _FOLDER, dir_fd=folder)
            try:
                for entry in _names(inner):
                    self._clear(inner, entry, keep_folder=False, depth=depth + 1)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=folder)


def _names(folder: int) -> list[str]:
    return os.listdir(folder)


def _link(text: str, target: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        target.unlink()
    target.symlink_to(text)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
