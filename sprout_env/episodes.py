"""How an env comes to its episodes: tasks are found by name, boundaries by snapshot."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from sprout_env.disks import open_store
from sprout_env.disks.store import Base, DiskStore, FrozenDiskId
from sprout_env.env_config import EnvConfig
from sprout_env.episode import Episode
from sprout_env.errors import SnapshotError
from sprout_env.grading.settings import agent_config, refuse_unsupported, setting_of
from sprout_env.sandbox.build import base_for
from sprout_env.sandbox.sandbox import SandboxConfig
from sprout_env.snapshots import Snapshot, SnapshotTree, TaskRef
from sprout_env.tasks.suites import Suite, find_suite
from sprout_env.tasks.task import Task
from sprout_env.transcript import Notice, Transcript


class Episodes:
    """Opens the episodes of one env. Nothing is opened or read before it is needed."""

    def __init__(self, config: EnvConfig) -> None:
        self.config = config
        self._store: DiskStore | None = None
        self._tree: SnapshotTree | None = None
        self._suite: Suite | None = None
        self._closed = False

    @property
    def store(self) -> DiskStore:
        """The disk store. Raises StoreUnavailable."""
        if self._store is None:
            path = Path(self.config.store) if self.config.store else None
            self._store = open_store(path, kind=self.config.store_kind)
        return self._store

    @property
    def tree(self) -> SnapshotTree:
        """The catalogue of the store's snapshots."""
        if self._tree is None:
            self._tree = SnapshotTree(self.store)
        return self._tree

    def begin(self, slug: str | None, draw: Callable[[int], int]) -> Episode:
        """Open an episode at the start of a task.

        Args:
            slug: The task; None: the configuration's, and if that names none, a drawn one.
            draw: Returns a random number below its argument.

        Raises:
            TaskNotFound, TaskUnsupported: The task cannot be had, or not be run here.
            ImageError, StoreError, SandboxStartFailed: Its machine cannot be made.
        """
        self._open_again()
        suite = self._find_suite()
        slug = slug or self.config.task
        if slug is None:
            slugs = suite.slugs()
            slug = slugs[draw(len(slugs))]
        task = suite.task(slug).with_network(self.config.network)
        refuse_unsupported(task)
        base = base_for(self.store, task.image)
        config = self._sandbox_config(task, base)
        disk = self.store.create(
            self.store.family(task.family_digest, base, task.limits.storage_mb)
        )
        start = Transcript.start(task.instruction)
        return Episode.open(self.tree, task, self._ref(task), base, disk, config, start)

    def resume(self, id: str) -> tuple[Episode, Snapshot]:
        """Open an episode at a boundary, in a fresh sandbox on a clone of its disk.

        Raises:
            SnapshotNotFound: The store has no such snapshot.
            SnapshotError: Its task has changed since.
            StoreError, SandboxStartFailed: Its machine cannot be made.
        """
        self._open_again()
        with self.tree.leased([id]):
            snapshot = self.tree.get(id)
            task, base = self.task_of(snapshot)
            transcript = self.tree.transcript(snapshot)
            config = self._sandbox_config(task, base)
            disk = self.store.clone(FrozenDiskId(id))
        episode = Episode.open(
            self.tree, task, snapshot.task, base, disk, config, transcript, restored=snapshot
        )
        if snapshot.processes and self.config.notices:
            episode.transcript = transcript.append(Notice(text=episode.lost_notice(snapshot)))
        return episode, snapshot

    def task_of(self, snapshot: Snapshot) -> tuple[Task, Base]:
        """Return a snapshot's task, found again, and the base under its disk.

        Raises:
            TaskNotFound: It is not on this machine any more.
            SnapshotError: Its folder has changed since.
        """
        ref = snapshot.task
        if (ref.suite, ref.dataset) == (self.config.suite, self.config.dataset):
            suite = self._find_suite()
        else:
            suite = find_suite(ref.suite, ref.tasks_path, ref.dataset)
        task = suite.task(ref.name)
        if task.digest != ref.digest:
            raise SnapshotError(
                f"snapshot {snapshot.id} was taken of another version of task {ref.name}: "
                "its folder has changed since"
            )
        task = task.with_network(self.config.network)
        return task, self.store.open_family(snapshot.family).base

    def close(self) -> None:
        """Close the catalogue, also under another thread that uses it. Idempotent."""
        self._closed = True
        if self._tree is not None:
            self._tree.close()

    def _open_again(self) -> None:
        if self._closed:
            self._closed, self._tree, self._store = False, None, None

    def _find_suite(self) -> Suite:
        if self._suite is None:
            config = self.config
            self._suite = find_suite(config.suite, config.tasks_path, config.dataset)
        return self._suite

    def _ref(self, task: Task) -> TaskRef:
        return TaskRef(
            suite=self.config.suite,
            name=task.name,
            digest=task.digest,
            tasks_path=self.config.tasks_path,
            dataset=self.config.dataset,
        )

    def _sandbox_config(self, task: Task, base: Base) -> SandboxConfig:
        # The verifier's variables are resolved too: a missing one is said before work begins.
        return agent_config(setting_of(task, base, os.environ))
