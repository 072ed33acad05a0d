"""Lay tar layers over a root: whiteouts first, every path checked for links, GNU tar extracts.

Python's ``tarfile`` only reads headers here: it loses xattrs, hence file capabilities, and folder
times when it extracts. What it and GNU tar might read differently cannot do harm, because tar
runs where nothing but the root is writable (``confine``).
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from sprout_env.disks.images import confine
from sprout_env.errors import ImageError

_MAGIC = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"BZh", "bzip2"),
)
_TAR = (
    "tar --extract --file=- --numeric-owner --same-owner --preserve-permissions --acls --xattrs "
    "--xattrs-include=* --delay-directory-restore --warning=no-timestamp "
    "--warning=no-unknown-keyword"
).split()


def compression(path: Path) -> str | None:
    """Return the program that decompresses this file, or None for a plain one."""
    with path.open("rb") as file:
        head = file.read(8)
    return next((program for magic, program in _MAGIC if head.startswith(magic)), None)


@contextmanager
def plain_stream(path: Path) -> Iterator[IO[bytes]]:
    """Open a tar for reading, decompressed on the way.

    Raises:
        ImageError: The program that decompresses it is missing.
    """
    program = compression(path)
    if program is None:
        with path.open("rb") as file:
            yield file
        return
    if shutil.which(program) is None:
        raise ImageError(path, f"is compressed with {program}, which is not installed")
    command = [program, "-dc", "--", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            # Readers may stop early; a full pipe would keep the program waiting for ever.
            process.stdout.close()
            process.kill()


@contextmanager
def tar_headers(path: Path) -> Iterator[Iterator[tarfile.TarInfo]]:
    """Iterate over the headers of a tar.

    Raises:
        ImageError: It is not a tar.
    """
    with plain_stream(path) as stream:
        try:
            with tarfile.open(fileobj=stream, mode="r|", encoding="utf-8") as tar:
                yield _headers(tar, path)
        except (tarfile.TarError, EOFError, ValueError) as error:
            raise ImageError(path, f"is not a readable tar: {error}") from error


def _headers(tar: tarfile.TarFile, path: Path) -> Iterator[tarfile.TarInfo]:
    while (member := tar.next()) is not None:
        yield member
        tar.members = []  # type: ignore[attr-defined]  # a million headers would stay in memory


class Unpacker:
    """Lays layers over one root, in order, and sets the folders' times right at the end."""

    def __init__(self, root: Path, lock_fd: int, label: object) -> None:
        """Begin with an empty root.

        Args:
            root: The root.
            lock_fd: A lock that tar holds as long as it lives.
            label: What errors call the image.
        """
        self.root = os.fsencode(root)
        self._label = label
        self._lock_fd = lock_fd
        self._folder_times: dict[bytes, int] = {}

    def layer(self, archive: Path, *, whiteouts: bool) -> None:
        """Lay one tar over the root.

        Args:
            archive: A tar, perhaps compressed.
            whiteouts: Whether ``.wh.`` names delete (image layers) or are names like any other.

        Raises:
            ImageError: It is broken, or an entry would leave the root or go through a link.
        """
        scan = _Scan(self.root, self._label, self._folder_times, whiteouts)
        with tar_headers(archive) as headers:
            for member in headers:
                scan.read(member)
        scan.apply()
        extra = ["--exclude=.wh.*"] if whiteouts else []
        with ExitStack() as stack:
            stream = stack.enter_context(plain_stream(archive))
            done = subprocess.run(
                confined(self.root, [*_TAR, *extra]),
                stdin=stream,
                capture_output=True,
                pass_fds=(self._lock_fd,),
                env={"PATH": os.defpath + ":/usr/sbin:/sbin", "LC_ALL": "C.UTF-8"},
                check=False,
            )
        if done.returncode != 0:
            said = done.stderr.decode("utf-8", "replace").strip()[-2000:]
            raise ImageError(self._label, f"tar ended with {done.returncode}: {said}")

    def finish(self) -> None:
        """Give every folder the time that its uppermost entry has."""
        for path, mtime_ns in sorted(self._folder_times.items(), reverse=True):
            full = self.root + b"/" + path
            if stat.S_ISDIR(os.lstat(full).st_mode):
                os.utime(full, ns=(mtime_ns, mtime_ns), follow_symlinks=False)


def confined(root: bytes | Path, command: list[str]) -> list[str]:
    """Return the command line that runs ``command`` where only ``root`` is writable."""
    return [sys.executable, "-I", "-S", confine.__file__, os.fsdecode(root), *command]


class _Scan:
    """What one layer's headers say, and the check of every path against links."""

    def __init__(
        self, root: bytes, label: object, times: dict[bytes, int], whiteouts: bool
    ) -> None:
        self.root, self.label, self.times, self.whiteouts = root, label, times, whiteouts
        self._entries: list[tuple[bytes, bool, int]] = []
        self._types: dict[bytes, bytes] = {}
        self._links: list[bytes] = []
        self._removed: list[bytes] = []
        self._opaque: list[bytes] = []
        self._is_folder: dict[bytes, bool] = {b"": True}

    def read(self, member: tarfile.TarInfo) -> None:
        path = self._clean(member.name)
        name = path.rpartition(b"/")[2]
        if self.whiteouts and name.startswith(b".wh."):
            folder = path[: -len(name)].rstrip(b"/")
            if name == b".wh..wh..opq":
                self._opaque.append(folder)
            elif not name.startswith(b".wh..wh."):
                hidden = name[len(b".wh.") :]
                if hidden in (b"", b".", b".."):
                    raise ImageError(self.label, f"impossible whiteout {member.name!r}")
                self._removed.append(folder + b"/" + hidden if folder else hidden)
            return
        kind = tarfile.REGTYPE if member.isreg() else member.type
        # tar makes links that lead outside only at its end, over whatever came in between.
        if self._types.setdefault(path, kind) != kind:
            raise ImageError(self.label, f"refused: {member.name!r} is there as two things")
        if member.islnk():
            self._links.append(self._clean(member.linkname))
        self._entries.append((path, member.isdir(), _mtime_ns(member)))

    def apply(self) -> None:
        """Remove what the layer hides or replaces; refuse what goes through a link."""
        for path in self._opaque:
            if self._real_folder(path):
                with os.scandir(self.root + b"/" + path) as entries:
                    names = [entry.name for entry in entries]
                for name in names:
                    self._remove(path + b"/" + name if path else name)
        for path in self._removed:
            if self._real_folder(path.rpartition(b"/")[0]):
                self._remove(path)
        for path, is_folder, mtime_ns in self._entries:
            self._check_above(path)
            before = self._kind(path)
            if before is not None and before != is_folder:
                self._remove(path)
            self._is_folder[path] = is_folder
            if is_folder:
                self.times[path] = mtime_ns
        for path in self._links:
            self._check_above(path)

    def _clean(self, name: str) -> bytes:
        parts = [part for part in os.fsencode(name).split(b"/") if part not in (b"", b".")]
        if b".." in parts:
            raise ImageError(self.label, f"refused: entry {name!r} climbs with '..'")
        return b"/".join(parts)

    def _kind(self, path: bytes) -> bool | None:
        """Whether ``path`` is a folder; None where there is nothing. Its parents are checked."""
        known = self._is_folder.get(path)
        if known is None:
            try:
                mode = os.lstat(self.root + b"/" + path).st_mode
            except FileNotFoundError:
                return None
            known = self._is_folder[path] = stat.S_ISDIR(mode)
        return known

    def _real_folder(self, path: bytes) -> bool:
        parts = path.split(b"/") if path else []
        return all(self._kind(b"/".join(parts[: n + 1])) for n in range(len(parts)))

    def _check_above(self, path: bytes) -> None:
        above = path.rpartition(b"/")[0]
        if not above or self._is_folder.get(above):
            return
        self._check_above(above)
        kind = self._kind(above)
        if kind is None:
            self._is_folder[above] = True
        elif not kind:
            through = os.fsdecode(above)
            entry = os.fsdecode(path)
            raise ImageError(self.label, f"refused: entry {entry!r} goes through {through!r}")

    def _remove(self, path: bytes) -> None:
        full = self.root + b"/" + path
        try:
            is_folder = stat.S_ISDIR(os.lstat(full).st_mode)
        except FileNotFoundError:
            return
        if not is_folder:
            os.unlink(full)  # noqa: PTH108  bytes: names need not be UTF-8
            self._is_folder.pop(path, None)
            return
        shutil.rmtree(full)
        below = path + b"/"
        for table in (self.times, self._is_folder):
            for known in [key for key in table if key == path or key.startswith(below)]:
                del table[known]


def _mtime_ns(member: tarfile.TarInfo) -> int:
    text = member.pax_headers.get("mtime")
    if text is None:
        return int(member.mtime) * 10**9
    whole, _, fraction = text.partition(".")
    nanoseconds = int(fraction[:9].ljust(9, "0")) if fraction else 0
    return int(whole) * 10**9 + (-nanoseconds if whole.startswith("-") else nanoseconds)
