"""Cgroups of sandboxes: limits, the freezer, and the kill of one command's whole tree.

They hold what commands start, never the init: its own memory cannot be taken by the out-of-memory
killer, and it answers while the sandbox is paused. The first process of a command joins by writing
"0" to descriptors of ``cgroup.procs`` that the driver opened; all that it starts inherits that,
also what calls setsid or daemonises.

Works on v1, v2 and hybrid machines: for each resource the v2 controller where it can be had, else
the v1 hierarchy, else nothing (see ``Layout.missing``). Freezer: v1 where mounted, else v2, which
needs no controller.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from sprout_env.errors import PauseTimeout, SandboxStartFailed
from sprout_env.sandbox.native.hierarchies import (
    Hierarchy,
    Layout,
    layout,
    open_file,
    read_text,
    write_text,
)

_FOLDER = "sprout"
_NAME = re.compile(r"(?P<pid_ns>\d+)-(?P<pid>\d+)-(?P<start>\d+)-\d+")
_CPU_PERIOD_US = 100_000
_number = itertools.count(1)


class SandboxCgroups:
    """The cgroups of one sandbox.

    Args:
        memory_mb: Memory limit, in MiB.
        pids: Most processes and threads.
        cpus: CPUs, or None for no limit.
        used: Another layout than this machine's, for tests.

    Raises:
        SandboxStartFailed: A cgroup that should exist could not be made.
    """

    def __init__(
        self, memory_mb: int, pids: int, cpus: float | None, used: Layout | None = None
    ) -> None:
        self._layout = used or layout()
        self.name = f"{_pid_namespace()}-{os.getpid()}-{start_time(os.getpid())}-{next(_number)}"
        self._folders: dict[Path, Path] = {}
        self._joins: list[int] = []
        self._old: list[Path] = []
        self._count = 0
        self._command: Path | None = None
        self._command_fd = -1
        self._oom_fd = -1
        self._ooms = 0
        self.thaw_fd = -1
        """Writing THAWED to it thaws the sandbox: for the init, should the owner die; or -1."""
        try:
            self._make(memory_mb, pids, cpus)
        except OSError as error:
            self.close()
            raise SandboxStartFailed("make its cgroups", error) from error

    def _make(self, memory_mb: int, pids: int, cpus: float | None) -> None:
        for hierarchy in self._layout.hierarchies:
            enabled = [n for n, h in self._layout.resources.items() if h == hierarchy]
            self._folders[hierarchy.mount] = _make_folder(hierarchy, self.name, enabled)
        for name, hierarchy in self._layout.resources.items():
            folder = self._folders[hierarchy.mount]
            for file, value in _limits(name, hierarchy.version, memory_mb, pids, cpus):
                write_text(folder / file, value)
        freezer = self._layout.freezer
        for folder in self._folders.values():
            if freezer is None or folder != self._folders[freezer.mount]:
                self._joins.append(open_file(folder / "cgroup.procs", os.O_WRONLY))
        memory = self._layout.resources.get("memory")
        if memory is not None:
            file = "memory.events" if memory.version == 2 else "memory.oom_control"
            self._oom_fd = open_file(self._folders[memory.mount] / file, os.O_RDONLY)
            self._ooms = self._count_ooms()
        if freezer is not None and freezer.version == 1:
            self.thaw_fd = open_file(self._folders[freezer.mount] / "freezer.state", os.O_WRONLY)

    @property
    def missing(self) -> tuple[str, ...]:
        """The resources that nothing here limits."""
        return self._layout.missing

    @property
    def can_freeze(self) -> bool:
        """Whether this machine has a freezer, and so a kill of one command's tree."""
        return self._layout.freezer is not None

    @property
    def _root(self) -> Path | None:
        freezer = self._layout.freezer
        return self._folders.get(freezer.mount) if freezer is not None else None

    def begin_command(self) -> list[int]:
        """Return the descriptors that the next command's first process has to join."""
        if self._root is None:
            return list(self._joins)
        if self._command is not None and os.pread(self._command_fd, 16, 0):
            # Something that an earlier command left behind lives on in it.
            os.close(self._command_fd)
            self._old.append(self._command)
            self._command = None
            self._old = [folder for folder in self._old if not _remove(folder)]
        if self._command is None:
            self._count += 1
            self._command = self._root / f"c{self._count}"
            self._command.mkdir()
            self._command_fd = open_file(self._command / "cgroup.procs", os.O_RDWR)
        return [*self._joins, self._command_fd]

    def kill_command(self, deadline_s: float = 5.0) -> bool:
        """Kill all that the latest command started; return whether nothing of it is left."""
        if self._command is None:
            return False
        return self._kill(self._command, deadline_s=deadline_s)

    def kill_all(self, keep: frozenset[int] = frozenset(), deadline_s: float = 5.0) -> bool:
        """Kill all but the processes whose pid inside is in ``keep``; return whether it is done."""
        return self._root is not None and self._kill(self._root, keep, deadline_s)

    def _kill(
        self, folder: Path, keep: frozenset[int] = frozenset(), deadline_s: float = 5.0
    ) -> bool:
        deadline = time.monotonic() + deadline_s
        while any(not keep or _inside(pid) not in keep for pid in _members(folder)):
            # Frozen first: nothing forks away from under us, and no pid is used again.
            with contextlib.suppress(PauseTimeout):
                self._freeze(folder, min(1.0, deadline_s))
            try:
                for pid in _members(folder):
                    if not keep or _inside(pid) not in keep:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
            finally:
                self._thaw(folder)
            if time.monotonic() > deadline:
                return False
            time.sleep(0.0005)
        return True

    def pause(self, deadline_s: float) -> None:
        """Freeze all of it.

        Raises:
            PauseTimeout: Not frozen in time; nothing is left frozen.
        """
        if self._root is not None:
            self._freeze(self._root, deadline_s)

    def resume(self) -> None:
        """Thaw all of it."""
        if self._root is not None:
            self._thaw(self._root)

    def _freeze(self, folder: Path, deadline_s: float) -> None:
        assert self._layout.freezer is not None
        one = self._layout.freezer.version == 1
        order, answer = (
            ("freezer.state", "freezer.state") if one else ("cgroup.freeze", "cgroup.events")
        )
        done = "FROZEN" if one else "frozen 1"
        deadline = time.monotonic() + deadline_s
        try:
            write_text(folder / order, "FROZEN" if one else "1")
            # v1 says FREEZING until the last process stands still.
            while done not in read_text(folder / answer).splitlines():
                if time.monotonic() > deadline:
                    raise PauseTimeout(deadline_s)
                time.sleep(0.0002)
        except BaseException:
            self._thaw(folder)
            raise

    def _thaw(self, folder: Path) -> None:
        assert self._layout.freezer is not None
        with contextlib.suppress(FileNotFoundError):
            if self._layout.freezer.version == 1:
                write_text(folder / "freezer.state", "THAWED")
            else:
                write_text(folder / "cgroup.freeze", "0")

    def _count_ooms(self) -> int:
        if self._oom_fd < 0:
            return 0
        found = re.search(rb"^oom_kill (\d+)", os.pread(self._oom_fd, 4096, 0), re.MULTILINE)
        return int(found[1]) if found else 0

    def new_oom_kills(self) -> int:
        """Return how many processes the memory limit killed since the last call."""
        before, self._ooms = self._ooms, self._count_ooms()
        return self._ooms - before

    def close(self) -> None:
        """Remove the cgroups; what still lives in them is killed. Idempotent."""
        if self._root is not None:
            with contextlib.suppress(OSError):
                self.kill_all()
        for fd in (*self._joins, self._command_fd, self._oom_fd, self.thaw_fd):
            if fd >= 0:
                with contextlib.suppress(OSError):
                    os.close(fd)
        self._joins, self._command, self._old = [], None, []
        self._command_fd = self._oom_fd = self.thaw_fd = -1
        for folder in self._folders.values():
            _remove_tree(folder)
            _remove(folder.parent)
        self._folders = {}


def sweep_cgroups(used: Layout | None = None) -> list[str]:
    """Remove the cgroups whose owner is dead, and kill what lives in them; name each."""
    swept = []
    for hierarchy in (used or layout()).hierarchies:
        parent = hierarchy.own / _FOLDER
        for folder in sorted(parent.iterdir()) if parent.is_dir() else ():
            match = _NAME.fullmatch(folder.name)
            # Owners of another pid namespace cannot be judged from here.
            if match is None or int(match["pid_ns"]) != _pid_namespace():
                continue
            if start_time(int(match["pid"])) == int(match["start"]):
                continue
            for file, value in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
                if (folder / file).exists():
                    with contextlib.suppress(OSError):
                        write_text(folder / file, value)
            for pid in _members(folder):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if _remove_tree(folder):
                swept.append(f"cgroup {folder}")
        if swept:
            _remove(parent)
    return swept


def start_time(pid: int) -> int:
    """Return when a process started, in clock ticks since boot; 0 if it is dead."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    fields = stat.rpartition(")")[2].split()
    return 0 if fields[0] in "ZX" else int(fields[19])


@functools.cache
def _pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


def _limits(
    resource: str, version: int, memory_mb: int, pids: int, cpus: float | None
) -> Iterator[tuple[str, str]]:
    if resource == "pids":
        yield "pids.max", str(pids)
    elif resource == "memory":
        size = str(memory_mb << 20)
        if version == 2:
            yield "memory.max", size
            yield "memory.swap.max?", "0"
        else:
            yield "memory.limit_in_bytes", size
            yield "memory.memsw.limit_in_bytes?", size
    elif cpus is not None:
        quota = str(max(1000, int(cpus * _CPU_PERIOD_US)))
        if version == 2:
            yield "cpu.max", f"{quota} {_CPU_PERIOD_US}"
        else:
            yield "cpu.cfs_period_us", str(_CPU_PERIOD_US)
            yield "cpu.cfs_quota_us", quota


def _make_folder(hierarchy: Hierarchy, name: str, enabled: list[str]) -> Path:
    parent = hierarchy.own / _FOLDER
    while True:
        with contextlib.suppress(FileExistsError):
            # Not exist_ok: that looks again, and fails if it was removed in between.
            parent.mkdir()
        try:
            if hierarchy.version == 2 and enabled:
                write_text(parent / "cgroup.subtree_control", " ".join(f"+{n}" for n in enabled))
            (parent / name).mkdir()
            return parent / name
        except FileNotFoundError:
            continue  # another process removed the empty parent in between


def _members(folder: Path) -> set[int]:
    """Return the pids in a cgroup and below it."""
    found: set[int] = set()
    for where, _, _ in os.walk(folder):
        with contextlib.suppress(OSError):
            found.update(int(pid) for pid in (Path(where) / "cgroup.procs").read_text().split())
    return found


def _inside(pid: int) -> int:
    """Return the pid that a process has in its innermost pid namespace."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return 0


def _remove(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _remove_tree(folder: Path, deadline_s: float = 2.0) -> bool:
    """Remove a cgroup and those below it; a process that just died may hold it for a moment."""
    deadline = time.monotonic() + deadline_s
    while True:
        for where, _, _ in os.walk(folder, topdown=False):
            with contextlib.suppress(OSError):
                Path(where).rmdir()
        if not folder.exists():
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
