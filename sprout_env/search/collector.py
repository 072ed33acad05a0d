"""One task's side of a method: it runs roots and branches, holds reviews, and remembers them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import closing, contextmanager
from typing import Any

from sprout_env.actors.actor import Actor
from sprout_env.actors.load import load_actor
from sprout_env.disks.store import DiskStore
from sprout_env.records.attempt import Attempt, BranchPlan, Usage
from sprout_env.records.reviews import Attempts, Part, ReviewRecord
from sprout_env.search.attempts import AttemptJob, Recipe
from sprout_env.search.batch import Batch, Running
from sprout_env.search.events import (
    AttemptWatched,
    ReviewCalled,
    ReviewFinished,
    RoundStarted,
)
from sprout_env.search.interrupt import Interruptible
from sprout_env.search.plan import snapshot_at
from sprout_env.search.review import ReviewSettings, review
from sprout_env.snapshots import SnapshotTree
from sprout_env.tasks.task import Task
from sprout_env.transcript import Transcript

Decide = Callable[[Attempt, int], Sequence[BranchPlan]]
"""From a root as it stood after a number of turns to the forks that begin now."""


def as_it_stood(root: Attempt, turn: int) -> Attempt:
    """Return a root as a supervisor saw it right after ``turn``, when it was not judged yet."""
    path = Transcript.of(root.instruction, root.entries).at(turn)
    return root.model_copy(
        update={
            "entries": path.entries,
            "boundaries": tuple(b for b in root.boundaries if b.turn < turn),
            "verdict": None,
            "status": "submitted",
            "error": "",
            "usage": Usage(),
            "seconds": 0.0,
        }
    )


def derive_seed(*facts: object) -> int:
    """Return a 31-bit seed that belongs to these facts, the same in every process."""
    digest = hashlib.sha256("\x1f".join(map(str, facts)).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


class Collector:
    """Runs one task for a method. Used by one thread.

    Attempts and reviews that an earlier run of the same folder finished are taken from it and cost
    nothing more; those that the machine lost or a budget cut short begin anew.

    Args:
        task: The task.
        recipe: What all jobs share.
        running: What all tasks of the run share.
        done: Finished attempts and reviews of an earlier run, by id.
    """

    def __init__(
        self,
        task: Task,
        recipe: Recipe,
        running: Running,
        done: dict[str, Attempt | ReviewRecord] | None = None,
    ) -> None:
        self.task = task
        self.recipe = recipe
        self.running = running
        self._done = dict(done or {})
        self._attempts: list[Attempt] = []
        self._reviews: list[ReviewRecord] = []
        self.selects = False
        """The method answers with one attempt, and with none as long as it has not chosen."""

    @property
    def max_turns(self) -> int | None:
        """Most turns of an attempt."""
        return self.recipe.limits.max_turns or self.task.limits.max_turns

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """All attempts so far."""
        return tuple(self._attempts)

    @property
    def reviews(self) -> tuple[ReviewRecord, ...]:
        """All that was asked about them so far."""
        return tuple(self._reviews)

    @property
    def failures(self) -> tuple[Attempt, ...]:
        """All attempts so far that the verifier failed, roots and branches."""
        return tuple(attempt for attempt in self._attempts if attempt.failed)

    @property
    def passed(self) -> bool:
        """Whether any attempt so far passed."""
        return any(attempt.passed for attempt in self._attempts)

    def result(
        self,
        method: str,
        *,
        chosen: str | None = None,
        cut_short: str = "",
        data: dict[str, str] | None = None,
    ) -> Attempts:
        """Return all that was done for this task."""
        if chosen is None and self.selects:
            chosen = ""
        return Attempts(
            task=self.task.name,
            suite=self.recipe.suite,
            method=method,
            attempts=tuple(self._attempts),
            reviews=tuple(self._reviews),
            chosen=chosen,
            cut_short=cut_short,
            data=data or {},
        )

    def seed_for(self, key: str) -> int:
        """Return the seed of one attempt: the same key has the same seed in every method."""
        base = self.recipe.actor.get("seed") or 0
        return derive_seed(self.recipe.seed, base, self.recipe.suite, self.task.name, key)

    def roots(
        self, count: int, *, stop_on_pass: bool = False, round: int = 0, notice: str = ""
    ) -> tuple[Attempt, ...]:
        """Run ``count`` attempts from the untouched start.

        Args:
            count: How many.
            stop_on_pass: End the others as soon as one passes.
            round: More than 0 for fresh attempts after the roots.
            notice: What the actor is told beside the instruction.

        Raises:
            BudgetExhausted: A budget is used up; what was finished is kept.
        """
        before = f"round-{round}-" if round else ""
        jobs = [
            self._job(f"{before}root-{number}", round=round, notice=notice)
            for number in range(1, count + 1)
        ]
        return self._run(jobs, stop_on_pass)

    def branches(
        self, plans: Sequence[BranchPlan], *, round: int, stop_on_pass: bool = True
    ) -> tuple[Attempt, ...]:
        """Run one branch per plan, at the same time.

        Args:
            plans: Where they start and how.
            round: The review round.
            stop_on_pass: End the others as soon as one passes.

        Raises:
            BudgetExhausted: A budget is used up; what was finished is kept.
        """
        self.running.on_event(RoundStarted(self.task.name, round, len(plans)))
        by_id = {attempt.id: attempt for attempt in self._attempts}
        jobs = [
            self._branch(f"round-{round}-branch-{number}", by_id[plan.attempt], plan, round)
            for number, plan in enumerate(plans, start=1)
        ]
        return self._run(jobs, stop_on_pass)

    def watched_roots(
        self, count: int, *, every: int, decide: Decide, stop_on_pass: bool = True
    ) -> tuple[Attempt, ...]:
        """Run roots that are looked at while they run, and forks of them beside them.

        What ``decide`` is shown depends on a root's turns alone, never on how fast it or anything
        else ran: the root as it stood after each ``every`` turns, one after the other.

        Args:
            count: How many roots.
            every: Turns between two looks.
            decide: Returns the forks to begin, given a root as it stood.
            stop_on_pass: End everything as soon as something passes.

        Raises:
            BudgetExhausted: A budget is used up; what was finished is kept.
        """
        looked: dict[str, int] = {}

        def look(root: Attempt, turn: int) -> None:
            if turn <= looked.get(root.id, 0) or batch.stop.reason:
                return
            looked[root.id] = turn
            number = root.id.rpartition("-")[2]
            plans = enumerate(decide(root, turn), start=1)
            batch.add(
                *(self._branch(f"fork-{number}-at-{turn}-{n}", root, plan, 1) for n, plan in plans)
            )

        def watched(event: AttemptWatched) -> None:
            root = jobs[event.attempt].record(
                instruction=event.instruction, entries=event.entries, boundaries=event.boundaries
            )
            look(root, sum(entry.kind == "turn" for entry in event.entries))

        batch = self._batch(stop_on_pass, watched)
        made = [self._job(f"root-{number}", watch=every) for number in range(1, count + 1)]
        jobs = {job.id: job for job in made}
        with self._ending(batch):
            batch.add(*made)
            batch.wait()
            # Looks that nobody took: the root is of an earlier run, or its executor tells none.
            for root in [batch.found[id] for id in jobs if id in batch.found]:
                if not root.passed:
                    for turn in range(every, root.own_turns, every):
                        look(as_it_stood(root, turn), turn)
            batch.wait()
        return batch.attempts

    def review(self, *, round: int, settings: ReviewSettings) -> ReviewRecord:
        """Hold one review round over all failures so far.

        Raises:
            BudgetExhausted: A budget is used up.
            ConfigError: Nothing has failed.
        """

        def make() -> ReviewRecord:
            with self.actor("review") as actor:
                return review(
                    actor,
                    self.task.instruction,
                    self.failures,
                    round=round,
                    settings=settings,
                    max_turns=self.max_turns,
                    earlier=self._reviews,
                    on_event=self.running.on_event,
                )

        return self.recorded(f"review-{round}", make)

    @contextmanager
    def actor(self, key: str, spec: dict[str, Any] | None = None) -> Iterator[Actor]:
        """Have an actor to ask, which a cancelled run does not wait for.

        Args:
            key: What it is asked for: the seed follows from it.
            spec: Another actor than the policy.
        """
        made = load_actor(spec or self.recipe.actor, self.seed_for(key))
        actor = Interruptible(made, self.running.stop)
        try:
            yield actor
        finally:
            actor.close()

    def recorded(self, key: str, make: Callable[[], ReviewRecord]) -> ReviewRecord:
        """Return what an earlier run has asked under this key, or ask now and record it.

        Raises:
            BudgetExhausted: A budget is used up.
        """
        old = self._done.get(f"{self.task.name}:{key}")
        if isinstance(old, ReviewRecord) and not old.lost:
            self._reviews.append(old)
            self.running.on_event(ReviewFinished(self.task.name, old, resumed=True))
            return old
        self.running.meter.check()
        record = make()
        self._reviews.append(record)
        self.running.on_event(ReviewFinished(self.task.name, record))
        return record

    def told(self, part: Part, attempt: str | None, usage: Usage, round: int = 0) -> None:
        """Bill one question that a method asked by itself."""
        self.running.on_event(ReviewCalled(self.task.name, round, part, attempt, usage))

    def release_snapshots(self, store: DiskStore) -> None:
        """Release the snapshots of all attempts but shared ones."""
        shared = self.running.shared.snapshots if self.running.shared is not None else frozenset()
        ids = {
            boundary.snapshot
            for attempt in self._attempts
            for boundary in attempt.boundaries
            if boundary.snapshot is not None and boundary.snapshot not in shared
        }
        with closing(SnapshotTree(store)) as tree:
            tree.release_all(ids)

    def _job(self, key: str, **more: Any) -> AttemptJob:
        id = f"{self.task.name}:{key}"
        old = self._done.get(id)
        spent = old.usage if isinstance(old, Attempt) else Usage()
        common = {name: getattr(self.recipe, name) for name in Recipe.model_fields}
        common |= {"id": id, "task": self.task.name, "seed": self.seed_for(key), "spent": spent}
        return AttemptJob(**common, **more)

    def _branch(self, key: str, parent: Attempt, plan: BranchPlan, round: int) -> AttemptJob:
        return self._job(
            key,
            kind="branch",
            round=round,
            plan=plan,
            snapshot=snapshot_at(parent, plan.boundary) if plan.boundary else None,
            boundaries=tuple(b for b in parent.boundaries if b.turn <= plan.boundary),
        )

    def _batch(
        self, stop_on_pass: bool, on_watched: Callable[[AttemptWatched], None] | None = None
    ) -> Batch:
        return Batch(self.running, self._done, stop_on_pass, on_watched)

    def _run(self, jobs: Iterable[AttemptJob], stop_on_pass: bool) -> tuple[Attempt, ...]:
        """Run jobs together; attempts are returned in the order of the jobs."""
        batch = self._batch(stop_on_pass)
        with self._ending(batch):
            batch.add(*jobs)
            batch.wait()
        return batch.attempts

    @contextmanager
    def _ending(self, batch: Batch) -> Iterator[None]:
        """Take over a batch's attempts, whatever ends it."""
        try:
            yield
        except BaseException:
            # Whoever unwinds here (Ctrl-C, a bug, bad input) must not leave siblings running.
            batch.unwind()
            raise
        finally:
            self._attempts.extend(batch.attempts)
        if self.running.stop.reason == "cancelled":
            raise CancelledError
        if not self.passed:
            self.running.meter.check()
