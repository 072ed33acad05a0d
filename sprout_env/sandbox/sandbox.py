"""How commands run on a disk: the contract of sandboxes.

What a command does is a ``CommandResult``, whatever its exit code; an exception always means that
the sandbox itself failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from pydantic import Field

from sprout_env.tasks.task import NetworkPolicy
from sprout_env.transcript import Frozen

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Docker's PATH for images that say nothing."""


class SandboxConfig(Frozen):
    """How a sandbox is set up. The defaults are those of an agent's sandbox."""

    hostname: str = "sandbox"
    user: str = ""
    """Name or number of the user that commands run as, from the disk's own passwd; empty: root."""
    workdir: str = "/"
    env: dict[str, str] = Field(default_factory=dict)
    """The first command's environment; nothing of the host's is added."""
    memory_mb: int = 2048
    pids: int = 512
    cpus: float | None = None
    """None: no limit of our own."""
    shm_mb: int = 64
    open_files: int = 4096
    output_bytes: int = 1 << 20
    """Most bytes of each stream that a result keeps: half from the head, half from the tail."""
    network: NetworkPolicy = NetworkPolicy()
    ca_bundle: Path | None = None
    """Certificates of this site, a file of the host's: written into the disk; see
    ``sandbox.network``."""
    no_new_privileges: bool = False
    """Off, so that sudo works inside; there is a user namespace around it."""
    sync_is_noop: bool = True
    """fsync and its family succeed without doing anything: the snapshot is the commit."""
    allow_ptrace: bool = False


@dataclass(frozen=True)
class ShellState:
    """What one command leaves to the next: its working directory and exported variables."""

    cwd: str
    env: Mapping[str, str] = field(default_factory=dict)
    is_first: bool = False
    """No shell left it: HOME is given where it is missing."""


@dataclass(frozen=True)
class CommandResult:
    """What one command did."""

    stdout: bytes
    stderr: bytes
    exit_code: int
    """Exit status; 128 + n when signal n ended it; 124 when the time-out did."""
    duration_s: float
    timed_out: bool = False
    stdout_dropped: int = 0
    """Bytes cut out of the middle of ``stdout``."""
    stderr_dropped: int = 0
    state: ShellState | None = None
    """The shell's state at its end; None if it never arrived (exec, kill, time-out)."""
    oom_killed: bool = False
    """The memory limit killed a process while the command ran."""


@dataclass(frozen=True)
class ProcessInfo:
    """One process that lives in a sandbox, other than its init."""

    pid: int
    """As seen inside."""
    argv: tuple[str, ...]
    cwd: str = ""
    listening: tuple[str, ...] = ()
    """``tcp/8000``, ``udp/53``, ``unix/run/x.sock`` for each socket it listens on."""
    parent: int = 0
    """Its parent's pid, as seen inside; 1 is the sandbox's init, 0 is not known."""


@runtime_checkable
class Sandbox(Protocol):
    """Runs commands on one disk. One command at a time; methods may be called from any thread.

    A task of several services is a sandbox of several members, one cut in time: ``processes``,
    ``pause``, ``resume``, ``kill_all`` and ``close`` are about all of them, everything else about
    ``main``. Both kinds that there are have ``main`` only.
    """

    @property
    def members(self) -> Mapping[str, Sandbox]:
        """The sandbox of each service by name; ``main`` is this one."""

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
        """Run ``bash -c command`` (``sh`` where there is no bash) and wait for its end.

        The command's whole process tree is killed at ``timeout_s``; children that it leaves
        behind on purpose live on and never delay the answer.

        Args:
            command: The script.
            timeout_s: Wall-clock limit in seconds.
            state: Directory and variables to start from; None: those of the configuration.
            user: Another user than the configuration's.
            stdin: Bytes for standard input; None: ``/dev/null``.
            merge_stderr: Standard error goes into ``stdout``, in the order in which it was written.

        Raises:
            SandboxLost: The sandbox died or was closed.
        """

    def put(self, source: Path, target: str, *, user: str | None = None) -> None:
        """Copy a host file or folder to ``target``; links in the sandbox are never followed out."""

    def get(self, source: str, target: Path, *, max_bytes: int = 1 << 30) -> None:
        """Copy a regular file or folder out; links are copied as links, specials are refused."""

    def read_file(self, path: str, *, max_bytes: int = 16 << 20) -> bytes:
        """Return the bytes of a regular file, followed by no link in any part of its path.

        Raises:
            FileNotFoundError: There is no such regular file.
            SandboxError: It is a link, a special file or larger than ``max_bytes``.
        """

    def processes(self) -> tuple[ProcessInfo, ...]:
        """Return what lives in it now, other than its init."""

    def pause(self, deadline_s: float = 2.0) -> None:
        """Stop all its processes.

        Raises:
            PauseTimeout: They did not all stop in time; none is left stopped.
        """

    def resume(self) -> None:
        """Let its processes go on; idempotent."""

    def kill_all(self, keep: tuple[int, ...] = ()) -> None:
        """Kill every process in it but its init and those whose inside pid is in ``keep``."""

    def close(self) -> None:
        """Kill it and give everything back. Idempotent, synchronous."""
