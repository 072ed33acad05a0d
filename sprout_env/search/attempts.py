"""One attempt from its description to its record, and the threads that run many.

A job is plain data: whoever runs it, in this process or another, finds everything else in the
store. What the agent does is never an error here. What anything else does (the machine, a server, a
bug in the actor) is tried again, then recorded as ``infra_error`` without a reward: it ends this
attempt and no other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pydantic import Field

from sprout_env.actors.actor import Actor
from sprout_env.actors.load import load_actor
from sprout_env.env import SproutEnv
from sprout_env.errors import (
    ActorError,
    ActorUnavailable,
    ConfigError,
    ContextExceeded,
    ImageError,
    SproutError,
    StoreUnavailable,
    TaskError,
)
from sprout_env.grading.verdict import Verdict
from sprout_env.records.attempt import Attempt, AttemptStatus, Boundary, BranchPlan, Usage
from sprout_env.search.budget import Stop
from sprout_env.search.events import (
    AttemptRetried,
    AttemptStarted,
    AttemptWatched,
    OnEvent,
    SnapshotsKept,
    TurnFinished,
)
from sprout_env.search.events import ignore as ignore_events
from sprout_env.search.interrupt import Interruptible
from sprout_env.search.review import usage_of
from sprout_env.tasks.task import NetworkPolicy
from sprout_env.transcript import Frozen, Turn

ENDS_MORE = (ConfigError, TaskError, ImageError, StoreUnavailable, ImportError)
"""What one attempt meets and all the others would, too."""
_LOG = logging.getLogger(__name__)


class AttemptLimits(Frozen):
    """Limits of one attempt; None is the task's own, or no limit."""

    max_turns: int | None = Field(default=None, gt=0)
    max_tokens: int | None = Field(default=None, gt=0)
    """Tokens of its own calls, prompts counted per request."""
    max_seconds: float | None = Field(default=None, gt=0)
    """Wall time from its first turn to its last, in seconds."""
    command_timeout_s: float | None = Field(default=None, gt=0)
    output_chars: int = Field(default=16384, gt=0)
    retries: int = Field(default=1, ge=0)
    """How often an attempt that the infrastructure failed begins anew."""

    @classmethod
    def make(cls, **limits: Any) -> AttemptLimits:
        """Return the limits that a person typed.

        Raises:
            ConfigError: One is not above 0.
        """
        return cls.told("limit ", limits)


class Recipe(Frozen):
    """What all jobs of a run share."""

    suite: str
    tasks_path: str | None = None
    dataset: str | None = None
    store: str | None = None
    store_kind: Literal["auto", "btrfs", "directory", "memory"] = "auto"
    actor: dict[str, Any]
    seed: int = 0
    """All draws follow from it; a job's own is its actor's."""
    limits: AttemptLimits = AttemptLimits()
    network: NetworkPolicy | None = None
    """What agents may reach; None: each task's own word."""


class AttemptJob(Recipe):
    """All that is needed to run one attempt, anywhere the store is."""

    id: str
    task: str
    kind: Literal["root", "branch"] = "root"
    round: int = 0
    plan: BranchPlan | None = None
    snapshot: str | None = None
    """Where a branch starts; None is the task's untouched start."""
    boundaries: tuple[Boundary, ...] = ()
    """The parent's boundaries up to the branch point."""
    notice: str = ""
    """What the actor is told before its first turn, beside the instruction."""
    watch: int | None = Field(default=None, gt=0)
    """Every how many turns to tell how it stands (``AttemptWatched``); None: never."""
    spent: Usage = Usage()
    """What earlier, failed runs of this job cost; it is added to the record."""

    def record(self, **more: Any) -> Attempt:
        """Return the attempt that this job is, with what came of it."""
        names = ("id", "task", "suite", "kind", "plan", "round", "seed")
        mine = {name: getattr(self, name) for name in names}
        return Attempt(parent=self.plan.attempt if self.plan is not None else None, **mine, **more)

    def env_arguments(self) -> dict[str, Any]:
        """Return the arguments of the env that runs it."""
        names = ("suite", "task", "tasks_path", "dataset", "store", "store_kind", "network")
        limits = ("max_turns", "command_timeout_s", "output_chars")
        mine = {name: getattr(self, name) for name in names}
        return mine | {name: getattr(self.limits, name) for name in limits}


@dataclass
class _Try:
    """What one run of a job has come to."""

    usage: Usage = Usage()
    entries: tuple[Any, ...] = ()
    instruction: str = ""
    boundaries: tuple[Boundary, ...] = ()
    lost: tuple[str, ...] = ()
    status: AttemptStatus = "submitted"
    verdict: Verdict | None = None
    error: str = ""
    seconds: float = 0.0
    begun: float = field(default_factory=time.monotonic)


def run_attempt(
    job: AttemptJob,
    *,
    on_event: OnEvent = ignore_events,
    stop: Stop | None = None,
    env: SproutEnv | None = None,
) -> Attempt:
    """Run one attempt to its end and return its record.

    Its boundary snapshots outlive it when it was judged: whoever asked for it releases them.

    Args:
        job: What to run.
        on_event: Told of every turn.
        stop: Whoever may end it.
        env: Where to run it, made with ``job.env_arguments()`` and closed by whoever lent it;
            None: in one of its own.

    Raises:
        CancelledError: ``stop`` was cancelled, or told to end before this began; nothing is left
            behind.
        ConfigError: The job asks for what cannot be served.
        TaskError: Its task cannot be used.
        StoreUnavailable: There is no store here.
    """
    stop = stop or Stop()
    if stop.reason:
        raise CancelledError
    usage, seconds = job.spent, 0.0
    for left in range(job.limits.retries, -1, -1):
        tried = _Try()
        _run_once(job, tried, on_event, stop, env)
        usage = usage + tried.usage
        seconds += tried.seconds
        if tried.status != "infra_error" or not left or stop.reason:
            break
        on_event(AttemptRetried(job.task, job.id, tried.error))
    return job.record(
        instruction=tried.instruction,
        entries=tried.entries,
        boundaries=tried.boundaries,
        status=tried.status,
        error=tried.error,
        verdict=tried.verdict,
        usage=usage,
        seconds=seconds,
        lost_processes=tried.lost,
    )


def _run_once(
    job: AttemptJob, tried: _Try, on_event: OnEvent, stop: Stop, lent: SproutEnv | None
) -> None:
    actor = Interruptible(load_actor(job.actor, job.seed), stop)
    env = lent or SproutEnv(**job.env_arguments())
    with _put_away(job, actor), nullcontext() if lent else _put_away(job, env), stop.closing(env):
        try:
            _drive(job, env, actor, tried, on_event, stop)
            _keep(job, env, tried, on_event)
        except Exception as error:
            if stop.reason == "cancelled":
                raise CancelledError from error
            if isinstance(error, ENDS_MORE) or _cannot_act(error, job, tried):
                raise
            if not isinstance(error, SproutError):
                _LOG.exception("attempt %s", job.id)
            tried.status, tried.error = "infra_error", f"{type(error).__name__}: {error}"
            tried.verdict, tried.boundaries = None, job.boundaries
        finally:
            tried.seconds = time.monotonic() - tried.begun


def _cannot_act(error: Exception, job: AttemptJob, tried: _Try) -> bool:
    """Whether an actor refuses the task itself: before its first turn, and no server's fault."""
    begun = job.kind == "branch" or any(isinstance(entry, Turn) for entry in tried.entries)
    return isinstance(error, ActorError) and not isinstance(error, ActorUnavailable) and not begun


@contextmanager
def _put_away(job: AttemptJob, thing: Interruptible | SproutEnv) -> Iterator[None]:
    """Close what an attempt used; what stays behind because that fails is swept later."""
    try:
        yield
    finally:
        try:
            thing.close()
        except Exception:
            _LOG.warning("attempt %s is not cleared away", job.id, exc_info=True)


def _keep(job: AttemptJob, env: SproutEnv, tried: _Try, on_event: OnEvent) -> None:
    """Hand the boundaries of a judged attempt over; those of any other go with its env."""
    merged = {boundary.turn: boundary for boundary in job.boundaries}
    if tried.verdict is not None:
        merged |= {boundary.turn: boundary for boundary in env.boundaries}
        # Told first: after a kill between here and its record, nobody else knows of them.
        ids = tuple(b.snapshot for b in env.boundaries if b.snapshot is not None)
        on_event(SnapshotsKept(job.task, job.id, ids))
        env.keep_boundaries()
    tried.boundaries = tuple(merged[turn] for turn in sorted(merged))


def _drive(
    job: AttemptJob, env: SproutEnv, actor: Actor, tried: _Try, on_event: OnEvent, stop: Stop
) -> None:
    """Take turns until the end, keeping the record in ``tried`` complete at every moment."""
    options = {"task": job.task} if job.snapshot is None else {"snapshot": job.snapshot}
    _, info = env.reset(options=options)
    tried.instruction, tried.entries = env.transcript.instruction, env.transcript.entries
    tried.lost = tuple(str(process) for process in info.get("lost_processes", ()))
    if job.snapshot is None:
        if job.notice:
            env.tell(job.notice)
            tried.entries = env.transcript.entries
        env.begin_snapshot()
    plan = job.plan
    on_event(
        AttemptStarted(
            job.task,
            job.id,
            job.kind,
            job.round,
            plan.attempt if plan is not None else None,
            plan.boundary if plan is not None else None,
        )
    )
    starting = plan.starting_turn if plan is not None else None
    while True:
        over = ending(job, tried.usage, tried.begun, stop)
        if over is not None:
            _end_early(env, tried, over)
            return
        usage = Usage()
        if starting is not None:
            turn, starting = starting.turn(), None
        else:
            asked = time.monotonic()
            try:
                turn = actor.act(env.transcript)
            except ContextExceeded as error:
                tried.error = str(error)
                _end_early(env, tried, "out_of_tokens")
                return
            usage = usage_of(turn.trace, time.monotonic() - asked)
        tried.usage = tried.usage + usage
        _, _, terminated, truncated, info = env.step(turn)
        tried.entries = env.transcript.entries
        done = env.transcript.last_turn
        code = done.result.exit_code if done is not None and done.result is not None else 0
        on_event(
            TurnFinished(job.task, job.id, job.kind, env.transcript.turn, turn.command, code, usage)
        )
        if terminated or truncated:
            in_time = terminated or str(info.get("limit", "")).startswith("max_turns")
            limit: AttemptStatus = "out_of_turns" if in_time else "out_of_time"
            tried.status = "submitted" if terminated else limit
            tried.verdict = Verdict.model_validate(info["verdict"])
            return
        if job.watch is not None and env.transcript.turn % job.watch == 0:
            # The last step waited for the boundary before it, so all of these are durable.
            on_event(
                AttemptWatched(job.task, job.id, tried.instruction, tried.entries, env.boundaries)
            )
        env.begin_snapshot()


def ending(job: AttemptJob, usage: Usage, begun: float, stop: Stop) -> AttemptStatus | None:
    """Return how an attempt ends now, if it does, by its limits or by its run's signal.

    Args:
        job: The attempt.
        usage: What its calls have cost.
        begun: When, by the monotonic clock.
        stop: The signal.

    Raises:
        CancelledError: The run was cancelled.
    """
    reason, limits = stop.reason, job.limits
    if reason == "cancelled":
        raise CancelledError
    if reason:
        return "stopped" if reason == "passed" else "out_of_budget"
    if limits.max_tokens is not None and usage.tokens >= limits.max_tokens:
        return "out_of_tokens"
    if limits.max_seconds is not None and time.monotonic() - begun >= limits.max_seconds:
        return "out_of_time"
    return None


def _end_early(env: SproutEnv, tried: _Try, status: AttemptStatus) -> None:
    """End at this turn: judged as it stands, but for a branch whose sibling has passed."""
    tried.status = status
    if status != "stopped":
        tried.verdict = env.finish()
        tried.entries = env.transcript.entries


class Executor(Protocol):
    """Runs jobs somewhere. Jobs go over as data, events come back."""

    def submit(self, job: AttemptJob, *, on_event: OnEvent, stop: Stop) -> Future[Attempt]:
        """Begin a job as soon as there is room."""

    def close(self) -> None:
        """Wait for what runs and give everything back. Idempotent."""


class ThreadExecutor:
    """Runs jobs in threads of this process: the work is in sandboxes and on servers."""

    def __init__(self, workers: int, run: Callable[..., Attempt] = run_attempt) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="sprout-attempt")
        self._run = run

    def submit(self, job: AttemptJob, *, on_event: OnEvent, stop: Stop) -> Future[Attempt]:
        """Begin a job as soon as a thread is free."""
        return self._pool.submit(self._run, job, on_event=on_event, stop=stop)

    def close(self) -> None:
        """Wait for what runs; what has not begun never does."""
        self._pool.shutdown(wait=True, cancel_futures=True)
