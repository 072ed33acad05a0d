"""The native sandbox: one PID 1 of ours on one disk, driven over a socket.

Locks: ``run`` and whatever else asks the init for something hold ``_turn``; ``pause``, ``resume``,
``kill_all`` and ``close`` work beside a running command, from any other thread, because they go
through the cgroups.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

from sprout_env.disks.store import Disk, DiskStore, FrozenDisk
from sprout_env.errors import (
    PauseTimeout,
    SandboxError,
    SandboxLost,
    SandboxStartFailed,
    SproutError,
)
from sprout_env.sandbox.native.cgroups import sweep_cgroups
from sprout_env.sandbox.native.command import Command, Ended, Request
from sprout_env.sandbox.native.etc import write_bundle, write_etc
from sprout_env.sandbox.native.files import Getter, Putter, read_file
from sprout_env.sandbox.native.hierarchies import layout
from sprout_env.sandbox.native.processes import list_processes
from sprout_env.sandbox.native.proxy import AllowList, Outside, Proxy, proxy_variables
from sprout_env.sandbox.native.shell import parse_state, variables
from sprout_env.sandbox.native.spawn import PROXY_PORT, Init, readable
from sprout_env.sandbox.native.users import find_user
from sprout_env.sandbox.sandbox import (
    PATH,
    CommandResult,
    ProcessInfo,
    Sandbox,
    SandboxConfig,
    ShellState,
)

_HEAD = struct.Struct("=II")
_ANSWER_S = 10.0

_once = threading.Lock()
_swept = False


class NativeSandbox:
    """A sandbox of namespaces; see the contract ``Sandbox``.

    Args:
        store: Where the disk lives.
        disk: What it runs on; a frozen disk is read-only.
        config: How it is set up.
        fresh: The disk is new: write ``/etc/hosts``, ``hostname`` and ``resolv.conf`` into it and
            make the working directory.

    Raises:
        SandboxStartFailed: A step failed; nothing is left behind.
    """

    def __init__(
        self,
        store: DiskStore,
        disk: Disk | FrozenDisk,
        config: SandboxConfig,
        *,
        fresh: bool = False,
    ) -> None:
        _first_start()
        allowed: AllowList | Outside = AllowList(config.network.allowed_hosts)
        if config.network.mode == "public":
            allowed = Outside()
        self.config = config
        self._owner = os.getpid()
        self._turn = threading.Lock()
        self._closing = threading.Lock()
        self._number = 0
        self._closed = self._paused = False
        self._lost = ""
        self._proxy: Proxy | None = None
        self._init = Init(config)
        try:
            root_fd = store.mount(disk, self._init.userns_fd, self._init.root_id)
            try:
                self._init.attach(root_fd)
            finally:
                os.close(root_fd)
            if self._init.proxy_fd >= 0:
                self._proxy = Proxy(self._init.proxy_fd, allowed)
                self._init.proxy_fd = -1
            if fresh:
                with self._root() as (root, _):
                    write_etc(Putter(root, self._init.root_id), config)
            if config.ca_bundle is not None:
                with self._root() as (root, _):
                    write_bundle(Putter(root, self._init.root_id), config.ca_bundle)
        except BaseException:
            self._init.close()
            raise
        # For owners that forget; also at exit. It must not hold the sandbox itself.
        self._net = weakref.finalize(self, _end, self._owner, self._init, self._proxy)

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
            if state is None:
                state = ShellState(self.config.workdir, {"PATH": PATH, **self.config.env}, True)
            cwd, env = state.cwd, dict(state.env)
            if state.is_first and self._proxy is not None:
                env = {**proxy_variables(PROXY_PORT, self.config.hostname), **env}
            request = Request(
                script=command.encode("utf-8", "surrogateescape"),
                cwd=cwd,
                user=self.config.user if user is None else user,
                variables=variables(env, cwd),
                fill_home=state.is_first,
                set_home=user is not None and user != self.config.user,
                stdin=stdin,
                merge_stderr=merge_stderr,
            )
            return self._result(self._execute(request, timeout_s))

    def _execute(self, request: Request, timeout_s: float) -> Ended:
        cgroups, control = self._init.cgroups, self._init.control
        assert cgroups is not None
        assert control is not None
        before: frozenset[int] = frozenset() if cgroups.can_freeze else self._pids()

        def kill() -> bool:
            if cgroups.can_freeze:
                return cgroups.kill_command()
            # Where nothing tells whose child a process is, all that is younger belongs to it.
            # The answer is left to the command, which drops it: its own end comes before that.
            control.send(self._kill_request(before), socket.MSG_NOSIGNAL)
            return True

        command = Command(
            control,
            self._number,
            self.config.output_bytes,
            kill,
            self._init.cause_of_death,
        )
        try:
            joins = cgroups.begin_command()
        except OSError as error:
            raise SandboxLost("run", f"its cgroups are gone: {error}") from error
        try:
            return command.run(request, joins, timeout_s)
        except SandboxLost as error:
            self._lost = self._lost or str(error.facts[1])
            if self._closed:
                raise SandboxLost("run", "it was closed") from error
            raise

    def _result(self, ended: Ended) -> CommandResult:
        cgroups = self._init.cgroups
        if cgroups is None:
            raise SandboxLost("run", "it was closed")
        code = os.waitstatus_to_exitcode(ended.status)
        code = 124 if ended.timed_out else code if code >= 0 else 128 - code
        return CommandResult(
            stdout=ended.stdout[0],
            stderr=ended.stderr[0],
            exit_code=code,
            duration_s=ended.duration_s,
            timed_out=ended.timed_out,
            stdout_dropped=ended.stdout[1],
            stderr_dropped=ended.stderr[1],
            state=None if ended.timed_out else parse_state(ended.state),
            oom_killed=cgroups.new_oom_kills() > 0,
        )

    def put(self, source: Path, target: str, *, user: str | None = None) -> None:
        """See ``Sandbox.put``."""
        source.lstat()
        with self._asking("put"), self._root() as (root, _):
            uid, gid = find_user(root, user) if user else (0, 0)
            Putter(root, self._init.root_id, uid, gid).put(source, target)

    def get(self, source: str, target: Path, *, max_bytes: int = 1 << 30) -> None:
        """See ``Sandbox.get``."""
        with self._asking("get"), self._root() as (root, _):
            Getter(root, max_bytes).get(source, target)

    def read_file(self, path: str, *, max_bytes: int = 16 << 20) -> bytes:
        """See ``Sandbox.read_file``."""
        with self._asking("read_file"), self._root() as (root, _):
            return read_file(root, path, max_bytes)

    def processes(self) -> tuple[ProcessInfo, ...]:
        """See ``Sandbox.processes``."""
        with self._asking("processes"), self._root() as (_, proc):
            return list_processes(proc)

    def pause(self, deadline_s: float = 2.0) -> None:
        """See ``Sandbox.pause``."""
        cgroups = self._init.cgroups
        self._check("pause")
        assert cgroups is not None
        if not cgroups.can_freeze and self.processes():
            raise PauseTimeout(0)
        cgroups.pause(deadline_s)
        self._paused = True

    def resume(self) -> None:
        """See ``Sandbox.resume``."""
        cgroups = self._init.cgroups
        self._paused = False
        if cgroups is not None and self._owner == os.getpid():
            cgroups.resume()

    def kill_all(self, keep: tuple[int, ...] = ()) -> None:
        """See ``Sandbox.kill_all``."""
        self._check("kill_all")
        cgroups = self._init.cgroups
        assert cgroups is not None
        paused = self._paused
        if paused:
            self.resume()  # nothing dies while it is frozen
        if cgroups.can_freeze:
            done = cgroups.kill_all(frozenset(keep))
        else:
            with self._asking("kill_all"):
                done = self._ask_kill(frozenset(keep))
        if paused:
            self.pause()
        if not done:
            raise SandboxLost("kill_all", "its processes do not die")

    def close(self) -> None:
        """See ``Sandbox.close``."""
        if self._owner != os.getpid():
            return  # a fork of the owner: it is not ours to end
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self.resume()
            self._init.kill()  # a running command sees end-of-file and lets go of the lock
            with self._turn:
                self._net()

    def __enter__(self) -> NativeSandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        """Hold the init's socket for one request."""
        with self._turn:
            self._check(what)
            self._number += 1
            yield

    def _check(self, what: str) -> None:
        if self._owner != os.getpid():
            raise SandboxLost(what, f"it belongs to process {self._owner}, not to its fork")
        if self._closed:
            raise SandboxLost(what, "it was closed")
        if self._lost:
            raise SandboxLost(what, self._lost)

    @contextlib.contextmanager
    def _root(self) -> Iterator[tuple[int, int]]:
        """Have the sandbox's root and /proc open for one operation.

        Not longer: a descriptor that a fork of the owner inherits would hold the disk's mount.
        """
        control = self._init.control
        assert control is not None
        _, fds = self._answer(_HEAD.pack(ord("O"), self._number), "O")
        try:
            yield fds[0], fds[1]
        finally:
            for fd in fds:
                os.close(fd)

    def _ask_kill(self, keep: frozenset[int]) -> bool:
        self._answer(self._kill_request(keep), "K")
        return True

    def _kill_request(self, keep: frozenset[int]) -> bytes:
        pids = struct.pack(f"={len(keep)}I", *keep)
        return _HEAD.pack(ord("K"), self._number) + pids

    def _answer(self, message: bytes, op: str) -> tuple[bytes, list[int]]:
        """Send a request and return its answer; late answers to earlier ones are dropped."""
        control = self._init.control
        assert control is not None
        deadline = time.monotonic() + _ANSWER_S
        try:
            control.send(message, socket.MSG_NOSIGNAL)
            while readable(control.fileno(), max(0.0, deadline - time.monotonic())):
                data, fds, _, _ = socket.recv_fds(control, 65_536, 8, socket.MSG_CMSG_CLOEXEC)
                if not data:
                    break
                if _HEAD.unpack_from(data) == (ord(op), self._number):
                    return data, list(fds)
                for fd in fds:
                    os.close(fd)
        except OSError as error:
            self._lost = self._init.cause_of_death()
            raise SandboxLost("a request", self._lost) from error
        self._lost = self._init.cause_of_death()
        raise SandboxLost("a request", "it was closed" if self._closed else self._lost)

    def _pids(self) -> frozenset[int]:
        with self._root() as (_, proc):
            return frozenset(process.pid for process in list_processes(proc))


def start_native(
    store: DiskStore, disk: Disk | FrozenDisk, config: SandboxConfig, *, fresh: bool
) -> NativeSandbox:
    """Start a native sandbox.

    Raises:
        SandboxStartFailed: It cannot be started here; says why.
    """
    if os.geteuid() != 0:
        raise SandboxStartFailed("check privileges", "the native runtime needs root")
    try:
        return NativeSandbox(store, disk, config, fresh=fresh)
    except OSError as error:
        if isinstance(error, SproutError):
            raise
        raise SandboxStartFailed("start", error) from error


def _first_start() -> None:
    """Sweep what dead owners left, once per process, and say what this machine cannot limit."""
    global _swept
    with _once:
        if _swept:
            return
        _swept = True
    sweep_cgroups()
    missing = layout().missing
    if missing:
        import warnings

        warnings.warn(
            f"no usable cgroup controller for {', '.join(missing)}: sandboxes get process limits "
            "instead, and no limit of cpu",
            RuntimeWarning,
            stacklevel=4,
        )


def _end(owner: int, init: Init, proxy: Proxy | None) -> None:
    if owner != os.getpid():
        return  # a fork of the owner
    if proxy is not None:
        proxy.close()
    init.close()
