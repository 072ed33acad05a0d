"""Long programs of others, run with their output in a log, line by line to whoever watches."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import IO

Progress = Callable[[str], None]
"""Gets lines of what takes long."""
_TAIL_LINES = 30


def run_logged(
    command: Sequence[str],
    log: IO[str],
    environment: Mapping[str, str],
    *,
    progress: Progress | None = None,
    pass_fds: Sequence[int] = (),
) -> str | None:
    """Run a program to its end.

    Args:
        command: The program and its arguments.
        log: Gets its output.
        environment: All of its environment.
        progress: Gets each line of its output.
        pass_fds: Descriptors that it inherits.

    Returns:
        None, or how it failed: its exit code and the last lines of its output.
    """
    tail: list[str] = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        pass_fds=pass_fds,
    ) as process:
        assert process.stdout is not None
        try:
            for raw in process.stdout:
                line = raw.decode("utf-8", "replace").rstrip()
                log.write(f"{line}\n")
                tail = [*tail[1 - _TAIL_LINES :], line]
                if progress:
                    progress(line)
        except BaseException:
            process.kill()
            raise
    if process.returncode == 0:
        return None
    return f"exit code {process.returncode}\n" + "\n".join(tail)
