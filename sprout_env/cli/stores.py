"""``sprout store`` and ``sprout sweep``: where disks live, what they take, what was left behind."""

from __future__ import annotations

from typing import Annotated, cast

import typer
from rich.table import Table

from sprout_env.cli.console import AsJson, StorePath, out, print_json, size
from sprout_env.disks import default_path, init_store, open_store
from sprout_env.disks.opening import StoreKind
from sprout_env.errors import ConfigError
from sprout_env.sandbox.native.cgroups import sweep_cgroups
from sprout_env.snapshots import SnapshotTree

app = typer.Typer(help="The store: where disks and bases live.", no_args_is_help=True)


@app.command()
def init(
    store: StorePath = None,
    ram: Annotated[
        bool, typer.Option("--ram", help="In memory (tmpfs): fast, gone at the next boot.")
    ] = False,
    kind: Annotated[str, typer.Option(help="auto, btrfs or directory.")] = "auto",
    image_gib: Annotated[
        float, typer.Option(help="Least nominal size of each task's image, in GiB; it is sparse.")
    ] = 8,
) -> None:
    """Make a store. One is made by itself on first use, too."""
    if kind not in ("auto", "btrfs", "directory"):
        raise ConfigError(f"a store's kind is auto, btrfs or directory, not {kind!r}")
    made = init_store(store, ram=ram, image_gib=image_gib, kind=cast(StoreKind, kind))
    out().print(f"{made.kind} store at {store or default_path()}: {made.why}", soft_wrap=True)


@app.command("path")
def where() -> None:
    """Print the path of the default store."""
    out().print(str(default_path()), soft_wrap=True)


@app.command()
def usage(store: StorePath = None, as_json: AsJson = False) -> None:
    """Say what the store holds and how much the host has left."""
    opened = open_store(store)
    held = opened.usage()
    if as_json:
        print_json({"kind": opened.kind, "path": opened.path, **vars(held)})
        return
    table = Table(box=None, show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_row("bases", size(held.bases))
    table.add_row("data of disks", size(held.data))
    table.add_row("metadata of disks", size(held.metadata))
    table.add_row("not allocated in images", size(held.unallocated))
    table.add_row("free on the host", size(held.host_free))
    table.add_row("deletes still pending", str(held.pending_deletes))
    out().print(f"{opened.kind} store at {opened.path}")
    out().print(table)


def sweep(store: StorePath = None, as_json: AsJson = False) -> None:
    """Clear away what killed owners left: disks, snapshots nobody kept, mounts, control groups."""
    opened = open_store(store)
    tree = SnapshotTree(opened)
    try:
        # Opening them sweeps already, as every start does.
        done = (*getattr(opened, "swept", ()), *tree.swept, *sweep_cgroups())
    finally:
        tree.close()
    if as_json:
        print_json(list(done))
        return
    for line in done:
        out().print(line, soft_wrap=True)
    out().print("nothing to sweep" if not done else f"{len(done)} things swept")
