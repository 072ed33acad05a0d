"""Snapshot, restore, release, fork, verify, diff and tree: functions over any wrapped env.

They see the whole stack of wrappers, whatever lies outermost, and work from any process that
opens the same store.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import gymnasium as gym

from sprout_env.disks import open_store
from sprout_env.disks.store import FrozenDiskId, PathChange
from sprout_env.env import SproutEnv
from sprout_env.errors import ConfigError, SnapshotNotFound
from sprout_env.grading.settings import agent_config, refuse_unsupported, setting_of
from sprout_env.grading.verdict import Verdict
from sprout_env.records.lanes import Lane
from sprout_env.records.pictures import cell, svg
from sprout_env.sandbox import start
from sprout_env.sandbox.sandbox import Sandbox, ShellState
from sprout_env.snapshots import Snapshot, SnapshotTree
from sprout_env.spaces import Observation
from sprout_env.tasks.suites import find_suite
from sprout_env.wrappers.branchable import Branchable
from sprout_env.wrappers.layers import check_layers, layers_of, restore_layers, save_layers

AnyEnv = gym.Env[Any, Any]


def _core(env: AnyEnv) -> SproutEnv:
    core = env.unwrapped
    if not isinstance(core, SproutEnv):
        raise ConfigError(f"{core} is not a SproutEnv")
    return core


def snapshot(env: AnyEnv) -> str:
    """Keep disk, context and all layers at this boundary; the id stays until ``release``.

    Raises:
        NotReset: There is no episode.
        SnapshotIncomplete: It could not be taken; the message says why.
        UnknownLayer: A wrapper's state cannot be saved.
    """
    return _core(env).snapshot(save_layers(env))


def restore(env: AnyEnv, id: str) -> tuple[Observation, dict[str, Any]]:
    """Continue ``env`` at a snapshot, in a fresh sandbox, with all layers put back.

    Returns:
        The boundary's observation, and an info whose ``lost_processes`` names what ran there.

    Raises:
        SnapshotNotFound: The env's store has no such snapshot.
        StackMismatch: It was taken under other wrappers.
    """
    saved = _core(env).tree.get(id).layers
    check_layers(env, saved)
    options: dict[str, Any] = {"snapshot": id}
    if any(isinstance(layer, Branchable) for layer in layers_of(env)):
        options["whole_stack"] = True
    obs, info = env.reset(options=options)
    restore_layers(env, saved)
    return cast(Observation, obs), info


def release(id: str, *, store: str | Path | None = None) -> None:
    """Delete a snapshot of a store (None: the default one); its space returns later.

    Raises:
        SnapshotNotFound: The store never had it.
        SnapshotInUse: Another living process holds a lease on it.
    """
    with _tree(store) as snapshots:
        snapshots.release(id)


def fork(env_or_id: AnyEnv | str, n: int, *, store: str | Path | None = None) -> list[AnyEnv]:
    """Return ``n`` new envs, each at the same boundary, each on a clone of its own.

    Args:
        env_or_id: An env (a snapshot of its boundary is taken), or a snapshot's id.
        n: How many.
        store: The store of an id; None: the default one.

    Raises:
        SnapshotNotFound: There is no such snapshot.
        ConfigError: The snapshot was taken of an env that ``gymnasium.make`` did not make.
    """
    taken = None
    if isinstance(env_or_id, str):
        with _tree(store) as snapshots:
            recipe = snapshots.get(env_or_id).env
        id = env_or_id
    else:
        id = taken = snapshot(env_or_id)
        recipe = {}
    made: list[AnyEnv] = []
    try:
        for _ in range(n):
            if not isinstance(env_or_id, str) and env_or_id.spec is not None:
                made.append(gym.make(env_or_id.spec))
            else:
                made.append(_make(id, recipe or _core(cast(AnyEnv, env_or_id))._recipe()))
            restore(made[-1], id)
    except BaseException:
        for env in made:
            env.close()
        raise
    finally:
        # A clone does not need what it was cloned from.
        if taken is not None:
            _core(cast(AnyEnv, env_or_id)).tree.release(taken)
    return made


def _make(id: str, recipe: dict[str, Any]) -> AnyEnv:
    if not recipe.get("id"):
        return SproutEnv(**recipe.get("kwargs", {}))
    return gym.make(recipe["id"], **recipe["kwargs"])


def verify(id: str, *, store: str | Path | None = None) -> Verdict:
    """Judge a snapshot in a fresh sandbox on a clone; nothing of it changes.

    Raises:
        SnapshotNotFound: The store has no such snapshot.
    """
    with _tree(store) as snapshots:
        recipe = dict(snapshots.get(id).env.get("kwargs", {}))
    if store is not None:
        recipe["store"] = str(store)
    env = SproutEnv(**recipe)
    try:
        return env.grade(id)
    finally:
        env.close()


def diff(a: str | None, b: str, *, store: str | Path | None = None) -> tuple[PathChange, ...]:
    """Return the paths that differ from snapshot ``a`` (None: the image) to snapshot ``b``.

    Raises:
        SnapshotNotFound: The store has not both.
        StoreError: They are of different tasks.
    """
    with _tree(store) as snapshots:
        for id in (a, b):
            if id is not None:
                snapshots.get(id)
        first = FrozenDiskId(a) if a is not None else None
        return tuple(snapshots.store.changes(first, FrozenDiskId(b)))


@dataclass(frozen=True, repr=False)
class TreeNode:
    """A snapshot and those that follow it."""

    snapshot: Snapshot
    children: tuple[TreeNode, ...]

    def __str__(self) -> str:
        """The tree as text; it is indented only where it forks."""
        lines, stack = [], [(self, 0)]
        while stack:
            node, depth = stack.pop()
            lines.append(f"{'  ' * depth}turn {node.snapshot.turn:<4} {node.snapshot.id}")
            deeper = depth + (len(node.children) > 1)
            stack.extend((child, deeper) for child in reversed(node.children))
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Draw the tree in a notebook: one lane for each path, with the id at its end."""
        count, stack = 0, [self]
        while stack:
            count += 1
            stack.extend(stack.pop().children)
        return cell(self.snapshot.task.name, f"{count} snapshots", svg(_lanes(self)))


def _lanes(top: TreeNode) -> list[Lane]:
    """Return one lane for each path of the tree that no other lane holds already."""
    rows: list[Lane] = []
    stack: list[tuple[TreeNode, int, int | None]] = [(top, 0, None)]
    while stack:
        node, start, owner = stack.pop()
        forks: list[TreeNode] = []
        while node.children:
            forks.append(node)
            node = node.children[0]
        row = len(rows)
        count = len(rows) + 1
        alive = ", ".join(str(process) for process in node.snapshot.processes)
        rows.append(
            Lane(
                label=f"path {count}",
                look="plain",
                ending=node.snapshot.id,
                start=start,
                end=node.snapshot.turn,
                owner=owner,
                why=f"alive at its end: {alive}" if alive else "",
            )
        )
        # The latest fork comes out first, so that no line of an earlier one is crossed.
        for fork in forks:
            stack.extend((child, fork.snapshot.turn, row) for child in fork.children[1:])
    return rows


def tree(env_or_id: AnyEnv | str, *, store: str | Path | None = None) -> TreeNode:
    """Return the tree of snapshots that an env's boundary, or a snapshot, belongs to.

    Raises:
        SnapshotNotFound: It has no snapshot, or the store has not this one.
    """
    if isinstance(env_or_id, str):
        with _tree(store) as snapshots:
            return _grow(snapshots, snapshots.lineage(env_or_id)[0])
    core = _core(env_or_id)
    last = core.boundary().snapshot
    if last is None:
        raise SnapshotNotFound("of this boundary", core.store.path)
    return _grow(core.tree, core.tree.lineage(last)[0])


def _grow(snapshots: SnapshotTree, root: str) -> TreeNode:
    """Build bottom-up without recursion: a path may be a thousand turns deep."""
    order, stack = [], [root]
    children: dict[str, tuple[str, ...]] = {}
    while stack:
        id = stack.pop()
        order.append(id)
        children[id] = snapshots.children(id)
        stack.extend(children[id])
    nodes: dict[str, TreeNode] = {}
    for id in reversed(order):
        nodes[id] = TreeNode(snapshots.get(id), tuple(nodes[child] for child in children[id]))
    return nodes[root]


@contextmanager
def _tree(store: str | Path | None) -> Iterator[SnapshotTree]:
    snapshots = SnapshotTree(open_store(Path(store) if store is not None else None))
    try:
        yield snapshots
    finally:
        snapshots.close()


@contextmanager
def sandbox_on(tree: SnapshotTree, id: str) -> Iterator[tuple[Sandbox, ShellState]]:
    """Have a sandbox on a throw-away clone of a snapshot, and the shell state of its turn.

    Raises:
        SnapshotNotFound: The store has no such snapshot.
        SandboxStartFailed: The sandbox did not start.
    """
    with tree.leased([id]):
        snapshot = tree.get(id)
        ref = snapshot.task
        suite = find_suite(ref.suite, ref.tasks_path, ref.dataset)
        task = suite.task(ref.name)
        refuse_unsupported(task)
        base = tree.store.open_family(snapshot.family).base
        config = agent_config(setting_of(task, base, os.environ))
        disk = tree.store.clone(FrozenDiskId(id))
        try:
            sandbox = start(tree.store, disk, config)
            try:
                state = ShellState(config.workdir)
                if snapshot.shell is not None:
                    state = ShellState(snapshot.shell.cwd, dict(snapshot.shell.env))
                yield sandbox, state
            finally:
                sandbox.close()
        finally:
            tree.store.drop(disk.id)
