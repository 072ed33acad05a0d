"""A shell in a throw-away clone of a snapshot, line by line through ``Sandbox.run``.

It is no terminal session: the sandbox's init gives commands pipes, never a terminal, and what a
person does here should be what an agent could have done. Each line is one command of an agent:
same user, limits, network and shell state (directory and exported variables), other state is
not kept. A line that ends in a backslash goes on.
"""

from __future__ import annotations

import sys
import threading
from typing import TextIO

from sprout_env.branching import sandbox_on
from sprout_env.cli.console import err
from sprout_env.grading.plain import plain
from sprout_env.sandbox.sandbox import CommandResult, Sandbox, ShellState
from sprout_env.snapshots import Snapshot, SnapshotTree


def walk_in(
    tree: SnapshotTree, id: str, *, user: str | None, command: str | None, timeout_s: float
) -> int:
    """Open a clone of a snapshot and serve lines in it until the input ends.

    Returns:
        The exit code of the last command.

    Raises:
        SnapshotNotFound: The store has no such snapshot.
    """
    with sandbox_on(tree, id) as (sandbox, state):
        session = _Session(sandbox, state, user, timeout_s)
        if command is not None:
            return session.run(command)
        return session.serve(tree.get(id))


def show(stream: TextIO, data: bytes) -> None:
    """Write what a command said: text to a terminal, for it must not be driven; else the bytes."""
    if stream.isatty():
        stream.write(plain(data.decode(errors="replace")))
    else:
        stream.buffer.write(data)
    stream.flush()


def prompt(state: ShellState) -> str:
    """Return what stands before a line; the directory's name may be an agent's."""
    return f"{plain(state.cwd)} $ "


class _Session:
    """Shell state from line to line."""

    def __init__(
        self, sandbox: Sandbox, state: ShellState, user: str | None, timeout_s: float
    ) -> None:
        self._sandbox = sandbox
        self._state = state
        self._user = user
        self._timeout_s = timeout_s

    def serve(self, snapshot: Snapshot) -> int:
        """Read lines until the input ends."""
        interactive = sys.stdin.isatty()
        if interactive:
            import readline  # noqa: F401  (input() takes editing and history from it)

            err().print(
                f"{snapshot.task.name}, turn {snapshot.turn}: a throw-away clone; "
                "Ctrl-D leaves, editors and pagers do not work"
            )
            for process in snapshot.processes:
                err().print(f"not running here, but at the snapshot: {process}")
        code = 0
        while True:
            try:
                line = self._read(interactive)
            except EOFError:
                return code
            except KeyboardInterrupt:
                sys.stderr.write("\n")
                continue
            if line.strip() in ("exit", "logout"):
                return code
            if line.strip():
                code = self.run(line)
                if code and interactive:
                    err().print(f"exit code {code}", style="red")

    def _read(self, interactive: bool) -> str:
        line = input(prompt(self._state) if interactive else "")
        while line.endswith("\\"):
            line += "\n" + input("> " if interactive else "")
        return line

    def run(self, command: str) -> int:
        """Run one command; Ctrl-C kills it, and whatever else runs in the clone."""
        done: list[CommandResult | BaseException] = []

        def work() -> None:
            try:
                done.append(
                    self._sandbox.run(
                        command, timeout_s=self._timeout_s, state=self._state, user=self._user
                    )
                )
            except BaseException as error:
                done.append(error)

        # Not on this thread: Ctrl-C interrupts a Python thread's wait, never the sandbox's socket.
        thread = threading.Thread(target=work, name="sprout-shell", daemon=True)
        thread.start()
        while thread.is_alive():
            try:
                thread.join()
            except KeyboardInterrupt:
                self._sandbox.kill_all()
        result = done[0]
        if isinstance(result, BaseException):
            raise result
        for stream, data, dropped in (
            (sys.stdout, result.stdout, result.stdout_dropped),
            (sys.stderr, result.stderr, result.stderr_dropped),
        ):
            show(stream, data)
            if dropped:
                sys.stderr.write(f"[{dropped} bytes were cut out of the middle]\n")
        if result.state is not None:
            self._state = result.state
        return result.exit_code
