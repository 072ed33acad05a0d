"""``sprout init`` and ``sprout config``: begin a task, and see which settings hold."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from sprout_env.cli.console import AsJson, out, print_json
from sprout_env.cli.settings import in_force
from sprout_env.tasks.skeleton import write_skeleton


def init(
    folder: Annotated[Path, typer.Argument(help="The new task's folder; its name is the slug.")],
) -> None:
    """Write a small, complete task to begin with: it passes lint and gate as it stands."""
    for path in write_skeleton(folder):
        out().print(str(path.relative_to(folder.absolute())), soft_wrap=True)
    suite = folder.absolute().parent
    out().print("change it, then:")
    for line in (
        f"tasks lint {suite}",
        f"gate harbor --path {suite} --task {folder.name}",
        f"run harbor --path {suite} --task {folder.name} --actor simulated:skill=0.5",
    ):
        out().print(f"  sprout {line}", soft_wrap=True)


def config(context: typer.Context, as_json: AsJson = False) -> None:
    """Show the settings that hold, and where each comes from.

    Settings stand in one TOML file: $SPROUT_CONFIG, else ./sprout.toml, else
    ~/.config/sprout/sprout.toml. A key is a flag's name; at the top it holds for every command
    that has the flag, in a table of a command's name for that command. Flags win over the file.
    """
    found = in_force(context)
    if as_json:
        print_json(found)
        return
    file = found["file"]
    out().print(f"file: {file}" if file else "file: none (sprout config --help says where)")
    table = Table(box=None)
    for name in ("command", "flag", "value", "from"):
        table.add_column(name, overflow="fold")
    for each in found["settings"]:
        table.add_row(each["command"], each["flag"], str(each["value"]), each["from"])
    if found["settings"]:
        out().print(table)
