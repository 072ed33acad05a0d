"""What all commands share: the two consoles, JSON output, sizes and times for people."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from pydantic import BaseModel
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from sprout_env.errors import ConfigError
from sprout_env.grading.plain import plain
from sprout_env.tasks.repositories import local_copy, parse_address
from sprout_env.tasks.task import NetworkPolicy

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
StorePath = Annotated[
    Path | None,
    typer.Option(
        "--store", help="The store's folder. \\[default: $SPROUT_STORE or /var/lib/sprout]"
    ),
]
Network = Annotated[
    str, typer.Option(help="What agents may reach: none, public, host, or task: its own word.")
]
SuiteName = Annotated[str, typer.Argument(help="A suite, such as seedbed.")]
TasksPath = Annotated[
    str | None,
    typer.Option(
        "--path", help="The tasks, if not the usual ones: a folder, or URL[@REF][#FOLDER] for git."
    ),
]


def network_policy(told: str) -> NetworkPolicy | None:
    """Return what ``--network`` says; None is each task's own word.

    Raises:
        ConfigError: It is none of the known ones.
    """
    if told == "task":
        return None
    if told not in ("none", "public", "host"):
        raise ConfigError(f"--network takes none, public, host or task, not {told!r}")
    return NetworkPolicy.model_validate(told)


def tasks_place(path: str | None) -> str | None:
    """Return what ``--path`` says as it is recorded: a whole path, or an address with its commit.

    Raises:
        TaskNotFound: A git repository cannot be had.
    """
    address = parse_address(path) if path is not None else None
    if address is not None:
        return str(local_copy(address)[1])
    return str(Path(path).resolve()) if path is not None else None


class TextConsole(Console):
    """A console on which text is only ever text: no markup in it, nothing that drives a terminal.

    Much of what is printed was written by agents: commands, outputs, names of files.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **settings)

    def on_broken_pipe(self) -> None:
        """End well: the reader has had enough."""
        _end_of_pipe()

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render, with control characters made visible."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=plain(segment.text))


@cache
def out() -> Console:
    """Return the console of standard output."""
    return TextConsole()


@cache
def err() -> Console:
    """Return the console of standard error."""
    return TextConsole(stderr=True)


def _plain(value: object) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"no JSON for {type(value).__name__}")


def print_json(value: object) -> None:
    """Print a value as JSON; models, dataclasses and paths are known."""
    try:
        # print(), for there is no sys.stdout where it was closed.
        print(json.dumps(value, default=_plain, indent=2), flush=True)  # noqa: T201
    except BrokenPipeError:
        _end_of_pipe()


def _end_of_pipe() -> NoReturn:
    """Exit with 0 when a pipe's reader went away, as ``| head`` does; typer would say 1."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the flush at exit fails, too
    raise SystemExit(0)


def size(count: float) -> str:
    """Say a number of bytes."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


def seconds(value: float) -> str:
    """Say a time."""
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


def number(value: int) -> str:
    """Say a count in few columns."""
    if value < 10_000:
        return str(value)
    return f"{value / 1e3:.1f}k" if value < 1_000_000 else f"{value / 1e6:.2f}M"
