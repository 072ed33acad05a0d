"""A sandbox without processes: the double for tests and docs, on a disk in memory.

It interprets the language of ``minishell.py`` with these commands: ``cd pwd export unset env echo
printf cat ls rm mkdir touch mv cp ln test [ true false : exit exec sleep kill ps``. Any other
command is 127. ``NAME ARGUMENT... &`` begins a pretended background process, whatever the name:
it does nothing but live, and each argument of digits is a TCP port that it listens on. There are
no users: ``user`` only sets ``HOME`` and ``USER``, and nothing is ever denied.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sprout_env.disks.memory import MemoryStore, Node
from sprout_env.disks.store import Disk, FrozenDisk
from sprout_env.errors import SandboxError, SandboxLost
from sprout_env.sandbox.memory.files import Files, Trouble
from sprout_env.sandbox.memory.run import Run
from sprout_env.sandbox.native.output import Capture
from sprout_env.sandbox.sandbox import (
    PATH,
    CommandResult,
    ProcessInfo,
    Sandbox,
    SandboxConfig,
    ShellState,
)


class MemorySandbox:
    """Runs a small shell on a disk in memory; see the contract ``Sandbox``.

    Args:
        store: A memory store.
        disk: One of its disks; a frozen one cannot be written to.
        config: How it is set up; limits other than ``output_bytes`` have no meaning here.
        fresh: Write ``/etc/hosts``, ``hostname`` and ``resolv.conf`` and make the working
            directory.
    """

    def __init__(
        self,
        store: MemoryStore,
        disk: Disk | FrozenDisk,
        config: SandboxConfig,
        *,
        fresh: bool = False,
    ) -> None:
        self.config = config
        self._files = Files(store.tree(disk), read_only=isinstance(disk, FrozenDisk))
        self._turn = threading.Lock()
        self._stop = threading.Event()
        self._processes: dict[int, ProcessInfo] = {}
        self._next_pid = 2
        self._paused = False
        if fresh:
            name = config.hostname.encode()
            self._files.write("/etc/hosts", b"127.0.0.1\tlocalhost\n127.0.1.1\t" + name + b"\n")
            self._files.write("/etc/hostname", name + b"\n")
            self._files.write("/etc/resolv.conf", b"")
            self._files.make_folders(config.workdir)

    @property
    def members(self) -> dict[str, Sandbox]:
        """See ``Sandbox.members``."""
        return {"main": self}

    def run(
        self,
        command: str,
        *,
        timeout_s: float,
        state: ShellState | None = None,
        user: str | None = None,
        stdin: bytes | None = None,
        merge_stderr: bool = False,
    ) -> CommandResult:
        """See ``Sandbox.run``."""
        with self._asking("run"):
            if self._paused:
                raise SandboxError("the sandbox is paused: resume() it before run()")
            started = time.monotonic()
            if state is None:
                name = (self.config.user if user is None else user) or "root"
                home = "/root" if name == "root" else f"/home/{name}"
                env = {"PATH": PATH, "HOME": home, **self.config.env}
                state = ShellState(self.config.workdir, env)
            elif state.is_first:
                home = f"/home/{self.config.user}" if self.config.user else "/root"
                state = ShellState(state.cwd, {"HOME": home, **state.env})
            if user is not None and user != self.config.user:
                home = "/root" if user == "root" else f"/home/{user}"
                state = ShellState(state.cwd, {**state.env, "HOME": home, "USER": user})
            run = Run(self, self._files, state, stdin or b"", started + timeout_s)
            if merge_stderr:
                run.err = run.out
            code = run.script(command)
            self._check("run")
            out, err = Capture(self.config.output_bytes), Capture(self.config.output_bytes)
            out.feed(bytes(run.out))
            if not merge_stderr:
                err.feed(bytes(run.err))
            (stdout, dropped), (stderr, err_dropped) = out.result(), err.result()
            return CommandResult(
                stdout=stdout,
                stderr=stderr,
                exit_code=code,
                duration_s=time.monotonic() - started,
                timed_out=run.timed_out,
                stdout_dropped=dropped,
                stderr_dropped=err_dropped,
                state=run.state(),
            )

    def spawn(self, argv: tuple[str, ...], cwd: str) -> int:
        """Begin a pretended background process and return its pid."""
        pid, self._next_pid = self._next_pid, self._next_pid + 1
        ports = tuple(f"tcp/{word}" for word in argv[1:] if word.isdecimal())
        self._processes[pid] = ProcessInfo(pid, argv, cwd, ports, parent=1)
        return pid

    def end(self, pid: int) -> bool:
        """End a pretended process; return whether there was one."""
        return self._processes.pop(pid, None) is not None

    def wait(self, seconds: float) -> None:
        """Wait, but not beyond the end of the sandbox."""
        self._stop.wait(seconds)

    @property
    def stopped(self) -> bool:
        """Whether it was closed."""
        return self._stop.is_set()

    def put(self, source: Path, target: str, *, user: str | None = None) -> None:
        """See ``Sandbox.put``."""
        with self._asking("put"), _as_sandbox_error(f"cannot write {target}"):
            if not target.startswith("/") or ".." in target.split("/") or not target.strip("/"):
                raise SandboxError(f"not an absolute path below /: {target!r}")
            self._put(source, target.rstrip("/"))

    def _put(self, source: Path, target: str) -> None:
        info = source.lstat()
        self._files.make_folders(posixpath.dirname(target))
        if stat.S_ISLNK(info.st_mode):
            self._files.replace(target, Node("symlink", os.fsencode(source.readlink())))
        elif stat.S_ISDIR(info.st_mode):
            self._files.keep_folder(target, stat.S_IMODE(info.st_mode))
            for entry in sorted(source.iterdir()):
                self._put(entry, f"{target}/{entry.name}")
        elif stat.S_ISREG(info.st_mode):
            self._files.replace(
                target, Node("file", source.read_bytes(), stat.S_IMODE(info.st_mode))
            )
        else:
            raise SandboxError(f"{source} is not a file, folder or link")

    def get(self, source: str, target: Path, *, max_bytes: int = 1 << 30) -> None:
        """See ``Sandbox.get``."""
        with self._asking("get"):
            found = self._files.below(self._files.real(source, follow_last=False))
            if not found:
                raise FileNotFoundError(errno.ENOENT, "no such file in the sandbox", source)
            if sum(len(node.data) for _, node in found) > max_bytes:
                raise SandboxError(f"{source} has more than {max_bytes} bytes")
            for path, node in found:
                place = target / path if path else target
                if node.kind != "directory":
                    place.unlink(missing_ok=True)
                if node.kind == "directory":
                    place.mkdir(exist_ok=True)
                elif node.kind == "symlink":
                    place.symlink_to(os.fsdecode(node.data))
                else:
                    place.write_bytes(node.data)
                    place.chmod(node.mode & 0o777 | 0o600)

    def read_file(self, path: str, *, max_bytes: int = 16 << 20) -> bytes:
        """See ``Sandbox.read_file``."""
        with self._asking("read_file"):
            wanted = posixpath.normpath(path)
            parts = wanted.strip("/").split("/")
            for depth in range(1, len(parts) + 1):
                node = self._files.tree.get("/" + "/".join(parts[:depth]))
                if node is not None and node.kind == "symlink":
                    raise SandboxError(f"{path} cannot be read: a part of it is a link")
            node = self._files.tree.get(wanted)
            if node is None:
                raise FileNotFoundError(errno.ENOENT, "no such file in the sandbox", path)
            if node.kind != "file":
                raise SandboxError(f"{path} is not a regular file")
            if len(node.data) > max_bytes:
                raise SandboxError(f"{path} has {len(node.data)} bytes, more than {max_bytes}")
            return node.data

    def processes(self) -> tuple[ProcessInfo, ...]:
        """See ``Sandbox.processes``."""
        with self._asking("processes"):
            return tuple(self._processes.values())

    def pause(self, deadline_s: float = 2.0) -> None:
        """See ``Sandbox.pause``."""
        self._check("pause")
        self._paused = True

    def resume(self) -> None:
        """See ``Sandbox.resume``."""
        self._paused = False

    def kill_all(self, keep: tuple[int, ...] = ()) -> None:
        """See ``Sandbox.kill_all``."""
        self._check("kill_all")
        for pid in [pid for pid in self._processes if pid not in keep]:
            self.end(pid)

    def close(self) -> None:
        """See ``Sandbox.close``."""
        self._stop.set()
        self._processes.clear()

    def __enter__(self) -> MemorySandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        with self._turn:
            self._check(what)
            yield

    def _check(self, what: str) -> None:
        if self.stopped:
            raise SandboxLost(what, "it was closed")


@contextmanager
def _as_sandbox_error(what: str) -> Iterator[None]:
    try:
        yield
    except Trouble as trouble:
        raise SandboxError(f"{what}: {trouble}") from trouble
