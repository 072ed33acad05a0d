"""Attempts that run together: begun one by one, waited for together, ended together."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

from sprout_env.records.attempt import Attempt
from sprout_env.records.reviews import ReviewRecord
from sprout_env.search.attempts import AttemptJob, Executor
from sprout_env.search.budget import Meter, Stop
from sprout_env.search.events import AttemptFinished, AttemptWatched, Event, OnEvent
from sprout_env.search.shared import SharedRoots

UNFINISHED = ("infra_error", "out_of_budget")
"""What a resumed run begins anew; what it cost before is added to the new record."""


@dataclass
class Running:
    """What all tasks of a run share."""

    executor: Executor
    """Where attempts run."""
    meter: Meter
    """Counts costs, and refuses new work when a budget is used up."""
    stop: Stop
    """The run's signal."""
    on_event: OnEvent
    """Told of everything; also how finished work is recorded."""
    shared: SharedRoots | None = None
    """Roots of a comparison that other methods may have paid already."""


@dataclass(eq=False)
class Batch:
    """Runs jobs for one collector, in whose thread all its methods are called."""

    running: Running
    done: dict[str, Attempt | ReviewRecord]
    """Finished attempts of an earlier run, by id."""
    stop_on_pass: bool
    """The first pass ends the others."""
    on_watched: Callable[[AttemptWatched], None] | None = None
    """Told, in the collector's thread, how watched attempts stand."""

    def __post_init__(self) -> None:
        self._order: list[str] = []
        self._futures: dict[Future[Attempt], AttemptJob] = {}
        self._stale: dict[str, Attempt] = {}
        self._queue: SimpleQueue[Future[Attempt] | AttemptWatched] = SimpleQueue()
        self._waiting = 0
        self.stop = Stop(self.running.stop)
        self.found: dict[str, Attempt] = {}

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """What there is so far, in the order of the jobs; for the unfinished, what they cost."""
        known = self._stale | self.found
        return tuple(known[id] for id in self._order if id in known)

    def add(self, *jobs: AttemptJob) -> None:
        """Begin jobs, but those that were done before; none once a stop is set.

        Raises:
            BudgetExhausted: A budget is used up.
        """
        shared = self.running.shared
        waiting: list[AttemptJob] = []
        for job in jobs:
            self._order.append(job.id)
            old = self.done.get(job.id)
            if isinstance(old, Attempt) and old.status not in UNFINISHED:
                self._know(old, resumed=True)
            elif shared is not None and (paid := shared.get(job)) is not None:
                self._know(paid, resumed=False)
            else:
                waiting.append(job)
                if isinstance(old, Attempt):
                    self._stale[job.id] = old
                    self.running.meter.add(old.usage)
        if waiting and not self.stop.reason:
            self.running.meter.check()
            for job in waiting:
                self._submit(job)

    def _know(self, attempt: Attempt, *, resumed: bool) -> None:
        self.found[attempt.id] = attempt
        event = AttemptFinished(attempt.task, attempt, resumed=resumed, shared=not resumed)
        self.running.on_event(event)
        if attempt.passed and self.stop_on_pass:
            self.stop.set("passed")

    def _submit(self, job: AttemptJob) -> None:
        on_event = self.running.on_event if job.watch is None else self._watching
        future = self.running.executor.submit(job, on_event=on_event, stop=self.stop)
        self._futures[future] = job
        self._waiting += 1
        if self.stop_on_pass:
            # In the thread that passed, before it takes up the next job.
            future.add_done_callback(partial(_stop_if_passed, self.stop))
        future.add_done_callback(self._queue.put)

    def _watching(self, event: Event) -> None:
        if isinstance(event, AttemptWatched):
            self._queue.put(event)
        self.running.on_event(event)

    def wait(self) -> None:
        """Wait for all; ``on_watched`` may add more meanwhile."""
        while self._waiting:
            item = self._queue.get()
            if isinstance(item, AttemptWatched):
                if self.on_watched is not None:
                    self.on_watched(item)
                continue
            self._waiting -= 1
            self._take(item)

    def unwind(self) -> None:
        """End what runs, because something else was raised, and keep what had finished."""
        running = [future for future in self._futures if not future.cancel()]
        self.stop.cancel()
        wait(running)
        for future, job in self._futures.items():
            if job.id not in self.found and not future.cancelled() and not future.exception():
                self._take(future)

    def _take(self, future: Future[Attempt]) -> None:
        try:
            attempt = future.result()
        except CancelledError:
            return
        job = self._futures[future]
        self.found[job.id] = attempt
        self.running.on_event(AttemptFinished(job.task, attempt))
        if self.running.shared is not None:
            self.running.shared.add(job, attempt)


def _stop_if_passed(stop: Stop, future: Future[Attempt]) -> None:
    if not future.cancelled() and future.exception() is None and future.result().passed:
        stop.set("passed")
