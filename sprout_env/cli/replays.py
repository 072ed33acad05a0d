"""``sprout runs replay``: a recorded run once more, without its model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sprout_env.cli.console import out
from sprout_env.records.outline import counted
from sprout_env.search.replays import differences, replay_run
from sprout_env.search.runs import load_run


def replay(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    sandboxes: Annotated[
        bool, typer.Option("--sandboxes", help="Run the recorded commands again, on fresh disks.")
    ] = False,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Attempts at a time.")] = 4,
) -> None:
    """Run a recorded run again from its records, and say where the two differ (exit code 1)."""
    first = load_run(folder)
    again = replay_run(folder, sandboxes=sandboxes, workers=jobs)
    found = differences(first, again, sandboxes=sandboxes)
    attempts = sum(len(item.attempts) for item in again.collections)
    for line in found:
        out().print(line, soft_wrap=True)
    played = f"{counted(len(again.collections), 'task')}, {counted(attempts, 'attempt')}"
    how = "commands run again" if sandboxes else "from the records alone"
    said = counted(len(found), "difference") if found else "the same, but for what clocks told"
    out().print(f"{played}, {how}: {said}")
    if found:
        raise typer.Exit(1)
