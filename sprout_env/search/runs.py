"""A run: one method over a suite's tasks, recorded in a folder so that nothing is paid twice."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, as_completed
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from sprout_env.actors.agent import AgentActor
from sprout_env.actors.chat import ChatActor
from sprout_env.actors.load import load_actor
from sprout_env.disks import open_store
from sprout_env.disks.store import DiskStore
from sprout_env.errors import BudgetExhausted, ConfigError, ImageError, TaskError
from sprout_env.records.attempt import Attempt
from sprout_env.records.pictures import cell
from sprout_env.records.reviews import Attempts, ReviewRecord
from sprout_env.records.summary import Summary, summarise
from sprout_env.search.attempts import Executor, Recipe, ThreadExecutor
from sprout_env.search.batch import Running
from sprout_env.search.budget import Budget, Meter, Stop
from sprout_env.search.collector import Collector
from sprout_env.search.events import (
    AttemptFinished,
    Event,
    OnEvent,
    ReviewFinished,
    TaskFinished,
    TaskStarted,
)
from sprout_env.search.events import ignore as ignore_events
from sprout_env.search.journal import Journal, load_folder
from sprout_env.search.log import RunLog
from sprout_env.search.methods import Method, load_method
from sprout_env.search.shared import SharedRoots
from sprout_env.snapshots import SnapshotTree
from sprout_env.tasks.suites import Suite, find_suite
from sprout_env.transcript import Frozen


class RunConfig(Recipe):
    """What a run is; a folder that holds another run's records is refused."""

    method: dict[str, Any]
    tasks: tuple[str, ...] = Field(default=(), description="Slugs; empty is the whole suite.")
    keep_snapshots: bool = False
    """Leave the attempts' snapshots in the store when the run is over."""

    @classmethod
    def make(cls, suite: str, *, actor: Any, method: Any = "sprout", **more: Any) -> RunConfig:
        """Return the configuration with short forms of actor and method written out.

        Raises:
            ConfigError: Something in it cannot be served.
        """
        acting, specs = load_actor(actor).spec(), load_method(method).spec()
        return cls.told("run: ", {"suite": suite, "actor": acting, "method": specs, **more})


class RunResult(Frozen):
    """All that a run brought."""

    config: RunConfig
    collections: tuple[Attempts, ...]
    summary: Summary
    money: float = 0.0
    cut_short: str = ""
    """The budget that ended it; empty when it is whole."""

    def _said(self) -> str:
        told = self.summary
        simulated = "simulated actor: no model was asked; " if told.estimated else ""
        return f"{simulated}resolved {told.resolve}, recovered {told.recovery}"

    def __repr__(self) -> str:
        """The run in one line, without its thousands of turns."""
        return f"<RunResult {self.config.suite}, {self.summary.method}: {self._said()}>"

    def _repr_html_(self) -> str:
        """Draw metrics and attempts in a notebook."""
        told, said = self.summary, self._said()
        return cell(
            f"{self.config.suite}, {told.method}",
            "; ".join(filter(None, (said, self.cut_short))),
            *(item._repr_html_() for item in self.collections),
        )


def load_run(folder: str | Path) -> RunResult:
    """Return a recorded run, also one that is not finished.

    Raises:
        ConfigError: There is none, or it cannot be read.
    """
    folder = Path(folder)
    if not (folder / "run.json").exists():
        inside = [*folder.glob("*/run.json"), *folder.glob("*/*/run.json")]
        below = ", ".join(sorted(str(path.parent) for path in inside))
        hint = f"below it are {below}" if below else "`sprout runs list FOLDER` names what there is"
        raise ConfigError(f"no run in {folder}; {hint}")
    try:
        config = RunConfig.model_validate_json((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the run in {folder} cannot be read: {error}") from error
    records = load_folder(folder)
    found = {record.task: record for record in records if isinstance(record, Attempts)}
    method = load_method(config.method).name
    for record in records:
        if record.task in found:
            continue
        found[record.task] = Attempts(
            task=record.task,
            suite=config.suite,
            method=method,
            attempts=tuple(r for r in records if isinstance(r, Attempt) and r.task == record.task),
            reviews=tuple(
                r for r in records if isinstance(r, ReviewRecord) and r.task == record.task
            ),
            cut_short="not finished",
        )
    return _result(config, tuple(found.values()), Meter(Budget(), Stop()))


def _result(config: RunConfig, collections: Sequence[Attempts], meter: Meter) -> RunResult:
    exceeded = meter.exceeded()
    cut = any(item.cut_short for item in collections)
    summary = summarise(collections, estimated=config.actor.get("kind") == "simulated")
    if not collections:
        summary = summary.model_copy(update={"method": load_method(config.method).name})
    return RunResult(
        config=config,
        collections=tuple(collections),
        summary=summary,
        money=meter.money,
        cut_short=str(BudgetExhausted(*exceeded)) if exceeded and cut else "",
    )


def run(
    config: RunConfig,
    *,
    folder: Path | None = None,
    workers: int = 2,
    budget: Budget | None = None,
    on_event: OnEvent = ignore_events,
    executor: Executor | None = None,
    shared: SharedRoots | None = None,
) -> RunResult:
    """Run a method over tasks, several attempts at a time.

    With a folder the run is resumed where an earlier one of the same configuration stopped. A task
    that cannot be used is reported in its collection's ``cut_short``; the others go on. Ctrl-C
    closes every sandbox before it is raised further; finished attempts stay recorded.

    Args:
        config: What is run.
        folder: Where it is recorded; None: nowhere.
        workers: Attempts at the same time.
        budget: Limits of the whole run.
        on_event: Told of everything, one event at a time.
        executor: Where attempts run; None: threads of this process.
        shared: Roots of a comparison; their snapshots are its own to release.

    Raises:
        ConfigError: The configuration cannot be served, or the folder is another run's.
        TaskNotFound: The suite or a task is not on this machine.
        StoreUnavailable: There is no store here.
        ActorUnavailable: The model's server does not answer; nothing was begun.
        ActorError: The actor cannot act on these tasks at all.
    """
    suite = find_suite(config.suite, config.tasks_path, config.dataset)
    slugs = config.tasks or suite.slugs()
    known = set(suite.slugs())
    for slug in slugs:
        if slug not in known:
            suite.task(slug)
    method = load_method(config.method)
    method.check(load_actor(config.actor))
    if workers < 1:
        raise ConfigError(f"a run needs at least one worker, not {workers}")
    store = open_store(Path(config.store) if config.store else None, kind=config.store_kind)
    journal = Journal(folder, config.model_dump(mode="json")) if folder is not None else None
    if journal is not None and journal.orphans:
        with closing(SnapshotTree(store)) as tree:
            tree.release_all(journal.orphans - (shared.snapshots if shared is not None else set()))
    log = RunLog(folder) if folder is not None else None
    stop = Stop()
    meter = Meter(budget or Budget(), stop)
    lock = threading.Lock()

    def tell(event: Event) -> None:
        with lock:
            meter.on_event(event)
            if journal is not None:
                journal.on_event(event)
            if log is not None:
                log.on_event(event)
            on_event(event)

    owned = executor is None
    executor = executor or ThreadExecutor(workers)
    running = Running(executor, meter, stop, tell, shared)
    desk = _Desk(config, suite, method, store, journal, running)
    try:
        with log or nullcontext():
            if not all(desk.finished(slug) for slug in slugs):
                probe(config.actor, method)
            return _result(config, desk.run(slugs, workers), meter)
    finally:
        if owned:
            executor.close()
        if journal is not None:
            journal.close()


def probe(actor: dict[str, Any], method: Method) -> None:
    """Ask the servers behind a run whether they answer, and tell what its method needs.

    Raises:
        ActorUnavailable: One does not answer.
        ConfigError: It does not tell what is needed.
    """
    needs = method.needs
    for spec in (actor, *method.helpers):
        one = load_actor(spec)
        if isinstance(one, AgentActor):
            one.probe()
        elif isinstance(one, ChatActor):
            try:
                one.probe(needs)
            finally:
                one.close()
        needs = frozenset()


@dataclass
class _Desk:
    """Where a run's tasks are handed out."""

    config: RunConfig
    suite: Suite
    method: Method
    store: DiskStore
    journal: Journal | None
    running: Running

    def finished(self, slug: str) -> bool:
        """Whether an earlier part of the run is through with a task."""
        return self.journal is not None and f"task:{slug}" in self.journal.done

    def run(self, slugs: Sequence[str], workers: int) -> list[Attempts]:
        """Collect all tasks; the attempts of all share the executor's room."""
        found: dict[str, Attempts] = {}
        # Twice as many tasks as attempts at a time: while one is reviewed or nears its end alone,
        # there is something else to run.
        pool = ThreadPoolExecutor(2 * workers, thread_name_prefix="sprout-task")
        futures: dict[Future[Attempts], str] = {}
        try:
            futures = {pool.submit(self._collect, slug): slug for slug in slugs}
            for future in as_completed(futures):
                found[futures[future]] = future.result()
        except BaseException:
            self.running.stop.cancel()
            raise
        finally:
            # Whatever ended the loop, every attempt has closed its sandbox before this returns.
            pool.shutdown(wait=True, cancel_futures=True)
        return [found[slug] for slug in slugs]

    def _collect(self, slug: str) -> Attempts:
        done = self.journal.done if self.journal is not None else {}
        old = done.get(f"task:{slug}")
        if isinstance(old, Attempts):
            return self._resume(old)
        if self.running.stop.reason:
            return self._nothing(slug, "not begun")
        try:
            task = self.suite.task(slug)
        except TaskError as error:
            return self._nothing(slug, str(error))
        mine: dict[str, Attempt | ReviewRecord] = {
            id: record
            for id, record in done.items()
            if not isinstance(record, Attempts) and record.task == slug
        }
        self.running.on_event(TaskStarted(slug, self.method.name, len(mine)))
        collector = Collector(task, self.config, self.running, mine)
        whole = False
        try:
            result = self._method(collector)
            whole = not result.cut_short and not result.lost
        finally:
            # A recorded run that is not whole goes on from these snapshots when it is resumed.
            if not self.config.keep_snapshots and (whole or self.journal is None):
                collector.release_snapshots(self.store)
        self.running.on_event(TaskFinished(slug, result, whole=whole))
        return result

    def _method(self, collector: Collector) -> Attempts:
        try:
            return self.method.collect(collector)
        except BudgetExhausted as error:
            return collector.result(self.method.name, cut_short=str(error))
        except (TaskError, ImageError) as error:
            return collector.result(self.method.name, cut_short=str(error))
        except CancelledError:
            if self.running.stop.reason == "cancelled":
                raise
            return collector.result(self.method.name, cut_short="cut short by the budget")

    def _nothing(self, slug: str, why: str) -> Attempts:
        return Attempts(task=slug, suite=self.config.suite, method=self.method.name, cut_short=why)

    def _resume(self, old: Attempts) -> Attempts:
        self.running.on_event(TaskStarted(old.task, old.method, len(old.attempts)))
        for attempt in old.attempts:
            self.running.on_event(AttemptFinished(old.task, attempt, resumed=True))
        for review in old.reviews:
            self.running.on_event(ReviewFinished(old.task, review, resumed=True))
        self.running.on_event(TaskFinished(old.task, old, resumed=True))
        return old
