"""``sprout snapshots``, ``diff`` and ``shell``: look at snapshots, compare them, walk in one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from sprout_env.cli.console import AsJson, StorePath, out, print_json, size
from sprout_env.disks import open_store
from sprout_env.disks.contents import read_regular, text_diff
from sprout_env.disks.store import FrozenDiskId, PathChange
from sprout_env.records.outline import counted
from sprout_env.snapshots import SnapshotTree

app = typer.Typer(help="The snapshots of a store.", no_args_is_help=True)

SnapshotId = Annotated[str, typer.Argument(metavar="SNAPSHOT", help="A snapshot's id.")]
SIGNS = {
    "added": ("+", "green"),
    "removed": ("-", "red"),
    "modified": ("~", "yellow"),
    "metadata": ("m", "cyan"),
}


@contextmanager
def opened(store: Path | None) -> Iterator[SnapshotTree]:
    """Open the catalogue of a store."""
    tree = SnapshotTree(open_store(store))
    try:
        yield tree
    finally:
        tree.close()


@app.command("list")
def list_snapshots(
    task: Annotated[str | None, typer.Option(help="Only of this task.")] = None,
    store: StorePath = None,
    as_json: AsJson = False,
) -> None:
    """List snapshots, oldest first."""
    with opened(store) as tree:
        found = tree.list(task=task)
    if as_json:
        print_json([s.model_dump(mode="json", exclude={"rng", "layers", "env"}) for s in found])
        return
    table = Table(box=None)
    table.add_column("snapshot", no_wrap=True, min_width=29)
    table.add_column("turn", justify="right", no_wrap=True, min_width=4)
    table.add_column("taken", no_wrap=True, min_width=14)
    table.add_column("task", overflow="ellipsis", no_wrap=True)
    for snapshot in found:
        taken = time.strftime("%m-%d %H:%M:%S", time.localtime(snapshot.created))
        table.add_row(snapshot.id, str(snapshot.turn), taken, snapshot.task.name)
    out().print(table if found else "no snapshots")


@app.command()
def release(
    ids: Annotated[list[str], typer.Argument(metavar="SNAPSHOT...")], store: StorePath = None
) -> None:
    """Delete snapshots; their space returns later."""
    with opened(store) as tree:
        for id in ids:
            tree.release(id)


@app.command()
def rebuild(store: StorePath = None) -> None:
    """Make the catalogue anew from the disks."""
    with opened(store) as tree:
        out().print(f"{counted(tree.rebuild(), 'snapshot')} found")


def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="A snapshot's id.")],
    b: Annotated[
        str | None,
        typer.Argument(metavar="B", help="The later one. \\[default: A, from its image]"),
    ] = None,
    names_only: Annotated[
        bool, typer.Option("--names-only", help="Paths without content.")
    ] = False,
    limit_kb: Annotated[int, typer.Option(help="Show content of files up to this size.")] = 256,
    store: StorePath = None,
    as_json: AsJson = False,
) -> None:
    """List the paths that differ from snapshot A to snapshot B, with what changed in text files."""
    old, new = (None, a) if b is None else (a, b)
    with opened(store) as tree:
        for id in filter(None, (old, new)):
            tree.get(id)
        first = FrozenDiskId(old) if old is not None else None
        changes = tuple(tree.store.changes(first, FrozenDiskId(new)))
        if as_json:
            print_json([vars(change) for change in changes])
            return
        with ExitStack() as views:
            roots: tuple[list[Path], Path] | None = None
            if not names_only and any(c.file_type == "file" for c in changes):
                frozen = tree.store.frozen(FrozenDiskId(new))
                below = list(frozen.base.layers)
                if first is not None:
                    below = [views.enter_context(tree.store.browse(tree.store.frozen(first)))]
                roots = below, views.enter_context(tree.store.browse(frozen))
            for change in changes:
                _print_change(change)
                if roots is not None:
                    _print_content(change, *roots, limit_kb << 10)
    if not changes:
        out().print("no differences")


def _print_change(change: PathChange) -> None:
    sign, colour = SIGNS[change.kind]
    line = Text.assemble((f"{sign} ", colour), change.path.encode(errors="replace").decode())
    if change.file_type != "file":
        line.append(f"  ({change.file_type})", "dim")
    elif change.kind == "modified" and change.old_size != change.new_size:
        line.append(f"  {size(change.old_size or 0)} → {size(change.new_size or 0)}", "dim")
    elif change.kind == "added":
        line.append(f"  {size(change.new_size or 0)}", "dim")
    elif change.kind == "metadata":
        line.append("  (owner, mode or attributes)", "dim")
    out().print(line, soft_wrap=True)


def _print_content(change: PathChange, below: list[Path], above: Path, limit: int) -> None:
    if change.file_type != "file" or change.kind == "metadata":
        return
    if max(change.old_size or 0, change.new_size or 0) > limit:
        return
    old = b"" if change.kind == "added" else read_regular(below, change.path, limit)
    new = b"" if change.kind == "removed" else read_regular([above], change.path, limit)
    if old is None or new is None:
        return
    for line in text_diff(old, new):
        colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
        out().print(Text("    " + line, colour), soft_wrap=True)


def shell(
    snapshot: SnapshotId,
    user: Annotated[str | None, typer.Option(help="Another user than the agent's.")] = None,
    command: Annotated[
        str | None, typer.Option("--command", "-c", help="Run this one command and leave.")
    ] = None,
    timeout_s: Annotated[float, typer.Option(help="Limit of one command, in seconds.")] = 3600,
    store: StorePath = None,
) -> None:
    """Walk in a snapshot: a shell in a throw-away clone of its disk.

    Each line runs as an agent's command does, with directory and variables carried over. There is
    no terminal inside, so that editors and pagers do not work. Ctrl-C stops the command, Ctrl-D
    leaves; the clone is then thrown away and the snapshot is as it was.
    """
    from sprout_env.cli.shell import walk_in

    with opened(store) as tree:
        code = walk_in(tree, snapshot, user=user, command=command, timeout_s=timeout_s)
    if code:
        raise typer.Exit(code)
