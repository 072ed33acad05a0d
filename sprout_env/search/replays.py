"""A recorded run once more: offline from its records alone, or with its commands in sandboxes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

from sprout_env.errors import ActorError
from sprout_env.records.attempt import Attempt
from sprout_env.records.export import read_attempts
from sprout_env.search.attempts import AttemptJob, Executor, ThreadExecutor
from sprout_env.search.budget import Stop, StopReason
from sprout_env.search.events import OnEvent
from sprout_env.search.events import ignore as ignore_events
from sprout_env.search.runs import RunConfig, RunResult, load_run, run

_MEASURED = ("seconds", "duration_s")
"""What a clock told: it is never told twice."""
_OF_THE_MACHINE = ("id", "snapshot", "reason", "log_tail")
"""What is made anew where commands run again: ids of nodes and snapshots, a verifier's log."""


_NOT_ITS_OWN_END = ("stopped", "infra_error", "out_of_budget", "out_of_time")
"""Ends that came from outside an attempt, at a moment that does not come again."""


class _Unhurried(Stop):
    """A signal that a sibling's pass does not reach: the recorded attempt had not heard of it."""

    def __init__(self, above: Stop) -> None:
        super().__init__(above)
        self._above = above

    @property
    def reason(self) -> StopReason:
        """Why to end, but for a pass."""
        reason = self._above.reason
        return "" if reason == "passed" else reason


class RecordedAttempts:
    """An executor that answers with a run's recorded attempts, after checking the jobs.

    Everything around them (the method, reviews, plans, budgets, accounting) runs for real, so that
    a change there shows as another job or another question.

    Args:
        folder: The run.
        running: Where the attempts are run again; None: they are the recorded ones. Those that
            something else ended are the recorded ones in any case.
    """

    def __init__(self, folder: Path, running: Executor | None = None) -> None:
        self._attempts = {a.id: a for a in read_attempts(folder / "attempts.jsonl")}
        self._running = running

    def submit(self, job: AttemptJob, *, on_event: OnEvent, stop: Stop) -> Future[Attempt]:
        """Return the attempt of this job."""
        future: Future[Attempt] = Future()
        old = self._attempts.get(job.id)
        if old is None:
            rounds = (a for a in self._attempts.values() if (a.task, a.round) == _round(job))
            # A sibling passed before this one had begun.
            beaten = any(a.passed for a in rounds)
            error = ActorError(f"the recorded run has no attempt {job.id}")
            future.set_exception(CancelledError() if beaten else error)
        elif (old.seed, old.kind, old.round, old.plan) != (job.seed, job.kind, job.round, job.plan):
            future.set_exception(ActorError(f"attempt {job.id} was recorded of another job"))
        elif self._running is None or old.status in _NOT_ITS_OWN_END:
            future.set_result(old)
        else:
            return self._running.submit(job, on_event=on_event, stop=_Unhurried(stop))
        return future

    def close(self) -> None:
        """Close what runs."""
        if self._running is not None:
            self._running.close()


def _round(job: AttemptJob) -> tuple[str, int]:
    return job.task, job.round


def replay_config(folder: Path) -> RunConfig:
    """Return a recorded run's configuration with its records in place of the models.

    Raises:
        ConfigError: There is no run, or it cannot be read.
    """
    config = load_run(folder).config
    where = str(folder.resolve())

    def recorded(spec: dict[str, Any]) -> dict[str, Any]:
        # All seeds of a run follow from its actor's.
        return {"kind": "replay", "run": where, "seed": spec.get("seed")}

    method = dict(config.method)
    if method.get("supervisor"):
        method["supervisor"] = recorded(method["supervisor"])
    return config.model_copy(update={"actor": recorded(config.actor), "method": method})


def replay_run(
    folder: Path, *, sandboxes: bool = False, workers: int = 2, on_event: OnEvent = ignore_events
) -> RunResult:
    """Run a recorded run again without any model; nothing is written to its folder.

    Args:
        folder: The run.
        sandboxes: Run the recorded turns' commands again, on fresh disks, and judge them; else the
            attempts are the recorded ones and neither root nor a store is needed.
        workers: Attempts at the same time.
        on_event: Told of everything.

    Raises:
        ConfigError: There is no run, or it cannot be read.
        ActorError: The search asks what the recorded run did not: it has changed since, or (with
            ``sandboxes``) the task's commands say something else each time.
    """
    config = replay_config(folder)
    if sandboxes:
        executor = RecordedAttempts(folder, ThreadExecutor(workers))
        try:
            return run(config, workers=workers, on_event=on_event, executor=executor)
        finally:
            executor.close()
    config = config.model_copy(update={"store": None, "store_kind": "memory"})
    recorded = RecordedAttempts(folder)
    return run(config, workers=1, on_event=on_event, executor=recorded)


def differences(recorded: RunResult, again: RunResult, *, sandboxes: bool = False) -> list[str]:
    """Return where two runs differ; empty where they are the same but for what clocks told.

    Args:
        recorded: The first.
        again: The second.
        sandboxes: Their commands ran on different machines: ids of nodes and snapshots are not
            compared.
    """
    drop = _MEASURED + (_OF_THE_MACHINE if sandboxes else ())
    found: list[str] = []
    mine = {item.task: item for item in recorded.collections}
    theirs = {item.task: item for item in again.collections}
    for task in sorted(mine.keys() | theirs.keys()):
        first, second = mine.get(task), theirs.get(task)
        if first is None or second is None:
            found.append(f"{task}: only in one of the runs")
            continue
        a, b = (
            _plain(item.model_dump(mode="json", exclude={"attempts", "reviews"}), drop)
            for item in (first, second)
        )
        found += [f"{task}{where}" for where in _unlike(a, b, "")]
        for part in ("attempts", "reviews"):
            # Attempts that run together are recorded in the order in which they end.
            pair = [
                {record.id: record.model_dump(mode="json") for record in getattr(item, part)}
                for item in (first, second)
            ]
            for id in sorted(pair[0].keys() | pair[1].keys()):
                one, two = (_plain(side.get(id), drop) for side in pair)
                found += [f"{id}{where}" for where in _unlike(one, two, "")]
    return found


def _plain(value: Any, drop: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v, drop) for k, v in value.items() if k not in drop}
    if isinstance(value, list):
        return [_plain(item, drop) for item in value]
    return value


def _unlike(a: Any, b: Any, where: str) -> Iterator[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(a.keys() | b.keys()):
            yield from _unlike(a.get(key), b.get(key), f"{where}.{key}")
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for number, (one, two) in enumerate(zip(a, b, strict=True)):
            yield from _unlike(one, two, f"{where}[{number}]")
    elif a != b:
        yield f"{where}: {json.dumps(a)[:80]} is now {json.dumps(b)[:80]}"
