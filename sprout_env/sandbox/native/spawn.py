"""Start a PID 1 in new namespaces, before its disk is known; give it a root later.

posix_spawn, never fork: the calling process may be a trainer with a hundred gigabytes mapped.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import struct
import time
from pathlib import Path

from sprout_env.errors import SandboxStartFailed
from sprout_env.sandbox.native.cgroups import SandboxCgroups
from sprout_env.sandbox.native.identity import RANGE, ranges
from sprout_env.sandbox.native.init_binary import init_binary
from sprout_env.sandbox.sandbox import SandboxConfig

PROXY_PORT = 3128
_CONTROL, _OWNER = 3, 4  # as in init.c
_OWN_NET, _NO_NEW_PRIVS, _SYNC_NOOP, _PTRACE, _PROXY = 1, 2, 4, 8, 16
_SETUP = struct.Struct("=7I64s")
_HEAD = struct.Struct("=II")
_OOM_SCORE = 500
"""Under memory pressure of the host a sandbox's processes die before their owner."""


class Init:
    """One PID 1: its control socket, its death, its user namespace.

    Args:
        config: How the sandbox is set up.

    Raises:
        SandboxStartFailed: A step failed; nothing is left behind.
    """

    def __init__(self, config: SandboxConfig) -> None:
        self.root_id = ranges.take()
        """Host id of the sandbox's root."""
        self.userns_fd = -1
        self.control: socket.socket | None = None
        self.proxy_fd = -1
        """A socket that listens on the sandbox's loopback, for the allow-list's proxy; or -1."""
        self._outer = self._pid = 0
        self._pidfd = -1
        self._config = config
        self._step = "spawn its init"
        self.cgroups: SandboxCgroups | None = None
        try:
            self._spawn()
            self.cgroups = SandboxCgroups(config.memory_mb, config.pids, config.cpus)
            self._identify()
        except BaseException as error:
            self._abandon(error)
            raise

    def _spawn(self) -> None:
        binary = str(init_binary())
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control = ours
        owner = os.pidfd_open(os.getpid())
        # Moved above the numbers that they get in the child, so that no dup2 hits the other.
        moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 16) for fd in (theirs.fileno(), owner)]
        try:
            self._outer = os.posix_spawn(
                binary,
                ["sprout-init"],
                {},
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDWR, 0),
                    (os.POSIX_SPAWN_DUP2, 0, 1),
                    (os.POSIX_SPAWN_DUP2, 0, 2),
                    (os.POSIX_SPAWN_DUP2, moved[0], _CONTROL),
                    (os.POSIX_SPAWN_DUP2, moved[1], _OWNER),
                ],
                setsigmask=[],
            )
        finally:
            theirs.close()
            for fd in (owner, *moved):
                os.close(fd)

    def _identify(self) -> None:
        """Give it its ids; from then on it builds its namespaces by itself."""
        config, cgroups = self._config, self.cgroups
        assert cgroups is not None
        self._expect("U")
        self._step = "map user ids"
        folder = Path(f"/proc/{self._outer}")
        for name in ("uid_map", "gid_map"):
            (folder / name).write_text(f"0 {self.root_id} {RANGE}")
        with contextlib.suppress(PermissionError):
            # Refused where the owner already has a higher score than this.
            (folder / "oom_score_adj").write_text(str(_OOM_SCORE))
        self.userns_fd = os.open(folder / "ns/user", os.O_RDONLY | os.O_CLOEXEC)
        flags = (
            (_OWN_NET if config.network.mode != "host" else 0)
            | (_NO_NEW_PRIVS if config.no_new_privileges else 0)
            | (_SYNC_NOOP if config.sync_is_noop else 0)
            | (_PTRACE if config.allow_ptrace else 0)
            | (_PROXY if config.network.mode in ("allowlist", "public") else 0)
        )
        missing = cgroups.missing
        self._send(
            _SETUP.pack(
                ord("G"),
                flags,
                config.shm_mb,
                config.open_files,
                PROXY_PORT,
                config.pids if "pids" in missing else 0,
                config.memory_mb if "memory" in missing else 0,
                config.hostname.encode()[:63],
            )
        )

    def attach(self, root_fd: int) -> None:
        """Give it its root, a detached mount, and wait until it serves commands.

        Raises:
            SandboxStartFailed: A step failed; nothing is left behind.
        """
        try:
            assert self.cgroups is not None
            self._step = "enter its root"
            thaw = self.cgroups.thaw_fd
            self._send(_HEAD.pack(ord("R"), 0), [root_fd, *([thaw] if thaw >= 0 else [])])
            ready = False
            while not (ready and self._pid):
                message, fds = self._receive()
                op, value = _HEAD.unpack_from(message)
                if op == ord("P"):
                    self._pid = value
                    self._pidfd = os.pidfd_open(value)
                    _wait(self._outer)
                    self._outer = 0
                else:
                    ready = True
                    self.proxy_fd = fds[0] if fds else -1
            os.close(self.userns_fd)
            self.userns_fd = -1
        except BaseException as error:
            self._abandon(error)
            raise

    @property
    def pid(self) -> int:
        """The host's pid of PID 1."""
        return self._pid

    def _send(self, data: bytes, fds: list[int] | None = None) -> None:
        assert self.control is not None
        try:
            socket.send_fds(self.control, [data], fds or [])
        except OSError as error:
            # What it said before it died tells more than EPIPE.
            with contextlib.suppress(BlockingIOError):
                self._receive(timeout_s=1.0)
            raise SandboxStartFailed(self._step, error) from error

    def _receive(self, timeout_s: float = 30.0) -> tuple[bytes, list[int]]:
        assert self.control is not None
        if not readable(self.control.fileno(), timeout_s):
            raise SandboxStartFailed(self._step, f"no answer within {timeout_s:g} s")
        message, fds, _, _ = socket.recv_fds(self.control, 65_536, 8, socket.MSG_CMSG_CLOEXEC)
        if not message:
            raise SandboxStartFailed(self._step, "its init died")
        if message[:1] == b"!":
            step, _, cause = message[1:].decode(errors="replace").partition(": ")
            raise SandboxStartFailed(step, cause)
        return message, list(fds)

    def _expect(self, op: str) -> None:
        message, _ = self._receive()
        if _HEAD.unpack_from(message)[0] != ord(op):
            raise SandboxStartFailed(self._step, f"unexpected answer {message[:1]!r}")

    def _abandon(self, error: BaseException) -> None:
        """Undo a start that failed half-way."""
        if self._outer:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._outer, signal.SIGKILL)
            _wait(self._outer)
            self._outer = 0
        if not self._pid and self.control is not None:
            # PID 1 may have been made and its pid be waiting in the socket.
            with contextlib.suppress(OSError, SandboxStartFailed):
                self.control.shutdown(socket.SHUT_WR)
                while not self._pid:
                    message, _ = self._receive(timeout_s=1.0)
                    op, value = _HEAD.unpack_from(message)
                    if op == ord("P"):
                        self._pid = value
        if self._pid and self._pidfd < 0:
            with contextlib.suppress(OSError):
                self._pidfd = os.pidfd_open(self._pid)
        self.close()

    def kill(self) -> None:
        """Kill it and with it, by the kernel, all in its pid namespace; does not wait."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        if self.control is not None:
            with contextlib.suppress(OSError):
                self.control.shutdown(socket.SHUT_RDWR)

    def cause_of_death(self, patience_s: float = 1.0) -> str:
        """Return why it ended, for people."""
        if self._pidfd < 0:
            return "it never started"
        if not readable(self._pidfd, patience_s):
            return "its control socket closed"
        try:
            info = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        except ChildProcessError:
            return "its init ended"
        if info is None:
            return "its init ended"
        if info.si_code == os.CLD_EXITED:
            return f"its init exited with {info.si_status}"
        return f"its init was killed by signal {info.si_status}"

    def close(self, deadline_s: float = 10.0) -> None:
        """Kill it, wait for its end and give everything back. Idempotent."""
        if self.cgroups is not None:
            with contextlib.suppress(OSError):
                self.cgroups.resume()  # nothing dies while it is frozen
        self.kill()
        if self._pidfd >= 0:
            deadline = time.monotonic() + deadline_s
            while not (dead := readable(self._pidfd, 0.2)) and time.monotonic() < deadline:
                if self.cgroups is not None:
                    with contextlib.suppress(OSError):
                        self.cgroups.resume()
            if dead:
                _wait(self._pid)
            os.close(self._pidfd)
            self._pidfd, self._pid = -1, 0
        for fd in (self.userns_fd, self.proxy_fd):
            if fd >= 0:
                os.close(fd)
        self.userns_fd = self.proxy_fd = -1
        if self.control is not None:
            self.control.close()
            self.control = None
        if self.cgroups is not None:
            self.cgroups.close()
            self.cgroups = None
        if self.root_id:
            ranges.give_back(self.root_id)
            self.root_id = 0


def readable(fd: int, timeout_s: float) -> bool:
    """Wait until ``fd`` can be read; by poll, because select knows no descriptor above 1,023."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))


def _wait(pid: int) -> None:
    # The owner's own code may wait for all its children, or ignore them.
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
