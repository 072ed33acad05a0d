"""Roots that several methods of a comparison begin with: run and paid once, billed to each."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from sprout_env.records.attempt import Attempt
from sprout_env.records.export import RecordWriter, read_attempts
from sprout_env.search.attempts import AttemptJob


class SharedRoots:
    """Judged roots of one run seed, by id, in a file that a later process goes on with.

    A root may be shared by all whose job is the same: its seed, task, actor and limits follow from
    the comparison, so that a method would have run the very same attempt itself. A root that a
    supervisor watches is not shared, since its forks begin while it runs; neither is one that the
    infrastructure lost or that a budget or a sibling's pass cut short.

    Args:
        path: The file; None: in memory alone.
        alive: Whether a snapshot is still in the store: a root of an earlier process whose
            snapshots are gone is not taken, since nothing can branch from it.

    Raises:
        ConfigError: The file cannot be read.
    """

    def __init__(
        self, path: Path | None = None, alive: Callable[[str], bool] = lambda id: True
    ) -> None:
        self._lock = threading.Lock()
        self._attempts: dict[str, Attempt] = {}
        self._writer: RecordWriter | None = None
        self.uses: dict[str, int] = {}
        """How often each root was taken instead of being run, in this process."""
        if path is not None:
            if path.exists():
                known = {attempt.id: attempt for attempt in read_attempts(path)}
                self._attempts = {id: a for id, a in known.items() if _alive(a, alive)}
            self._writer = RecordWriter(path)

    @staticmethod
    def _may_share(job: AttemptJob) -> bool:
        return job.kind == "root" and not job.round and not job.notice and job.watch is None

    def get(self, job: AttemptJob) -> Attempt | None:
        """Return the root that is this job's, if one was judged already."""
        if not self._may_share(job):
            return None
        with self._lock:
            found = self._attempts.get(job.id)
            if found is None or found.seed != job.seed:
                return None
            self.uses[job.id] = self.uses.get(job.id, 0) + 1
            return found

    def add(self, job: AttemptJob, attempt: Attempt) -> None:
        """Keep a root for the methods that come after."""
        if not self._may_share(job) or attempt.verdict is None:
            return
        if attempt.status in ("infra_error", "out_of_budget", "stopped"):
            return
        with self._lock:
            if attempt.id not in self._attempts:
                self._attempts[attempt.id] = attempt
                if self._writer is not None:
                    self._writer.append(attempt)

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """All of them."""
        return tuple(self._attempts.values())

    @property
    def snapshots(self) -> frozenset[str]:
        """Snapshots that methods still to come may branch from."""
        return frozenset(
            boundary.snapshot
            for attempt in self._attempts.values()
            for boundary in attempt.boundaries
            if boundary.snapshot is not None
        )

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._writer is not None:
            self._writer.close()


def _alive(attempt: Attempt, alive: Callable[[str], bool]) -> bool:
    """Look at one snapshot: those of an attempt are released together."""
    ids = (b.snapshot for b in attempt.boundaries if b.turn and b.snapshot is not None)
    first = next(ids, None)
    return first is None or alive(first)
