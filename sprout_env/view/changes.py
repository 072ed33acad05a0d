"""Which files each turn changed, read from the snapshots of a run that still exist."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sprout_env.disks import open_store
from sprout_env.disks.contents import read_regular, text_diff
from sprout_env.disks.store import FrozenDisk, FrozenDiskId, PathChange
from sprout_env.errors import SproutError, StoreError
from sprout_env.grading.plain import plain, shorten
from sprout_env.records.tree import TreeNode, tree_of
from sprout_env.search.runs import RunResult
from sprout_env.snapshots import SnapshotTree
from sprout_env.transcript import Turn

Changes = dict[str, list[list[Any]]]
"""Snapshot to ``[kind, path, type, old size, new size, unified diff]`` of what its turn changed."""

MOST_PATHS = 200
"""Most paths of one turn."""
MOST_DIFFS = 20
"""Most of them with content."""
DIFF_CHARS = 6000
FILE_BYTES = 256 << 10


def changes_of(result: RunResult, store: Path | None = None) -> Changes:
    """Return the changed files of every turn whose snapshot, and the one before, still exist.

    Args:
        result: The run.
        store: Where its snapshots are; None: where the run's configuration says.

    Raises:
        StoreUnavailable: There is no store here.
    """
    where = store or (Path(result.config.store) if result.config.store else None)
    tree = SnapshotTree(open_store(where, kind=result.config.store_kind))
    found: Changes = {}
    try:
        for item in result.collections:
            for instruction in dict.fromkeys(a.instruction for a in item.attempts):
                same = [a for a in item.attempts if a.instruction == instruction]
                for before, node in _steps(tree_of(same).nodes):
                    try:
                        found[node] = _changed(tree, before, node)
                    except SproutError:
                        continue
    finally:
        tree.close()
    return found


def _steps(nodes: tuple[TreeNode, ...]) -> Iterator[tuple[str | None, str]]:
    """Yield each snapshot with the one before it on its path; None is the image."""
    last: dict[str | None, str | None] = {None: None}
    for node in nodes:
        before = last.get(node.parent)
        last[node.id] = before
        if isinstance(node.entry, Turn) and node.snapshot is not None:
            yield before, node.snapshot
            last[node.id] = node.snapshot


def _changed(tree: SnapshotTree, before: str | None, after: str) -> list[list[Any]]:
    store = tree.store
    for id in filter(None, (before, after)):
        tree.get(id)
    old = FrozenDiskId(before) if before is not None else None
    new = FrozenDiskId(after)
    changes: list[PathChange] = []
    for change in store.changes(old, new):
        changes.append(change)
        if len(changes) > MOST_PATHS:
            break
    files = [c for c in changes[:MOST_PATHS] if _has_content(c)][:MOST_DIFFS]
    with ExitStack() as views:
        below: list[Path] = []
        above: list[Path] = []
        if files and store.kind != "memory":
            frozen: FrozenDisk = store.frozen(new)
            below = list(frozen.base.layers)
            try:
                if old is not None:
                    below = [views.enter_context(store.browse(store.frozen(old)))]
                above = [views.enter_context(store.browse(frozen))]
            except StoreError:
                files = []
        told: list[list[Any]] = []
        for change in changes[:MOST_PATHS]:
            diff = _diff(change, below, above) if change in files else ""
            told.append(
                [
                    change.kind,
                    plain(change.path.encode(errors="replace").decode()),
                    change.file_type,
                    change.old_size,
                    change.new_size,
                    diff,
                ]
            )
    if len(changes) > MOST_PATHS:
        told.append(["more", "", "", None, None, ""])
    return told


def _has_content(change: PathChange) -> bool:
    return (
        change.file_type == "file"
        and change.kind != "metadata"
        and max(change.old_size or 0, change.new_size or 0) <= FILE_BYTES
    )


def _diff(change: PathChange, below: list[Path], above: list[Path]) -> str:
    if not above:
        return ""
    old = b"" if change.kind == "added" else read_regular(below, change.path, FILE_BYTES)
    new = b"" if change.kind == "removed" else read_regular(above, change.path, FILE_BYTES)
    if old is None or new is None:
        return ""
    return shorten(plain("\n".join(text_diff(old, new))), DIFF_CHARS)
