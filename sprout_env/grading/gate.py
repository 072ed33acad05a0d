"""The gate: before a task is used, doing nothing must score 0 and the solution must pass, always.

Each trial runs on a disk of its own. Results are kept in the store under the digests of task and
base, so that an interrupted gate goes on where it stopped and a passed one costs nothing.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import ValidationError

from sprout_env.disks.store import Base, DiskStore
from sprout_env.errors import ConfigError, ImageError, SandboxError, TaskError, TaskUnsupported
from sprout_env.grading.history import fixed_copies, later_commits
from sprout_env.grading.leaks import find_leaks
from sprout_env.grading.settings import needs_live
from sprout_env.grading.trials import nop, oracle, sweep_trials
from sprout_env.grading.verdict import Verdict
from sprout_env.sandbox.build import base_for
from sprout_env.tasks.lint import lint
from sprout_env.tasks.task import NetworkPolicy, Task
from sprout_env.transcript import Frozen

Status = Literal["passed", "invalid task", "cannot run here", "flaky", "leak"]
Kind = Literal["nop", "oracle"]
_RULES = 2
"""Raise it when more leaks are found: tasks are looked at anew."""


class TaskGate(Frozen):
    """What the gate found out about one task in one environment."""

    task: str
    suite: str = ""
    digest: str = ""
    base: str = ""
    status: Status
    reasons: tuple[str, ...] = ()
    """Why it did not pass; empty if it did."""
    nops: tuple[Verdict, ...] = ()
    oracles: tuple[Verdict, ...] = ()
    seconds: float = 0.0
    """Time spent in its trials, in seconds, added up."""

    @property
    def passed(self) -> bool:
        """Whether the task may be used."""
        return self.status == "passed"


class GateReport(Frozen):
    """The gate's findings, in the order of the tasks."""

    tasks: tuple[TaskGate, ...]

    @property
    def passed(self) -> bool:
        """Whether every task may be used."""
        return all(task.passed for task in self.tasks)


class GateStep(NamedTuple):
    """One trial that is done."""

    task: str
    kind: Kind
    number: int
    verdict: Verdict


class _Kept(Frozen):
    """What the store keeps of one task in one environment."""

    nops: tuple[Verdict, ...] = ()
    oracles: tuple[Verdict, ...] = ()
    leaks: tuple[str, ...] | None = None
    rules: int = 0
    """Which ``_RULES`` the leaks were looked for by."""
    seconds: float = 0.0


class _Ledger:
    """The store's file of one task in one environment; every trial is written as it ends."""

    def __init__(self, path: Path, *, fresh: bool) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.kept = _Kept(rules=_RULES)
        kept = None if fresh else _read(path)
        if kept is not None:
            # What could not be decided is tried again: a network may have come back.
            self.kept = kept.model_copy(
                update={
                    "leaks": kept.leaks if kept.rules == _RULES else None,
                    "rules": _RULES,
                    "nops": tuple(v for v in kept.nops if v.outcome != "invalid"),
                    "oracles": tuple(v for v in kept.oracles if v.outcome != "invalid"),
                }
            )

    def update(self, **changes: object) -> None:
        with self._lock:
            self.kept = self.kept.model_copy(update=changes)
            self._write()

    def add(self, kind: Kind, verdict: Verdict, seconds: float) -> None:
        with self._lock:
            field = "nops" if kind == "nop" else "oracles"
            found = (*getattr(self.kept, field), verdict)
            self.kept = self.kept.model_copy(
                update={field: found, "seconds": self.kept.seconds + seconds}
            )
            self._write()

    def _write(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = self._path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        temporary.write_text(self.kept.model_dump_json())
        temporary.replace(self._path)


def _read(path: Path) -> _Kept | None:
    try:
        return _Kept.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def gate_path(
    store: DiskStore, task: Task, base: Base, network: NetworkPolicy | None = None
) -> Path:
    """Return where a store keeps the gate's results of a task in an environment."""
    told = f"-{hashlib.sha256(str(network).encode()).hexdigest()[:8]}" if network else ""
    return store.path / "gate" / f"{task.digest[:24]}-{base.digest[:24]}{told}.json"


def gate(
    store: DiskStore,
    tasks: Iterable[Task],
    nops: int = 2,
    oracles: int = 4,
    jobs: int = 2,
    *,
    progress: Callable[[GateStep], None] | None = None,
    fresh: bool = False,
    network: NetworkPolicy | None = None,
    environ: Mapping[str, str] | None = None,
) -> GateReport:
    """Try each task: doing nothing must score 0, the reference solution must pass.

    Args:
        store: Where disks and results are kept.
        tasks: The tasks to try.
        nops: How often nothing is done.
        oracles: How often the solution is run.
        jobs: Trials that run at the same time, of all tasks together.
        progress: Called after each trial, from its thread.
        fresh: Forget earlier results instead of going on from them.
        network: What solutions may reach; None: what each task gives its agent.
        environ: The host's variables for ``${VAR}`` templates; None: this process's, read now.

    Raises:
        StoreError: The store failed; trials that ended are kept.
    """
    tasks = tuple(task.with_network(network) for task in tasks)
    with ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="sprout-gate") as pool:
        prepared = [pool.submit(_prepare, store, task, fresh, network) for task in tasks]
        opened = [one.result() for one in prepared]
        waiting = [
            pool.submit(_run, store, task, base, ledger, kind, number, progress, environ)
            for task, (base, ledger, _) in zip(tasks, opened, strict=True)
            if base is not None and ledger is not None
            for kind, number in _missing(ledger.kept, task, nops, oracles)
        ]
        try:
            for future in as_completed(waiting):
                future.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    found = []
    for task, (base, ledger, trouble) in zip(tasks, opened, strict=True):
        kept = ledger.kept if ledger is not None else _Kept()
        status, reasons = trouble or _judge(
            task, kept, nops, oracles, base is not None and needs_live(task, base)
        )
        found.append(
            TaskGate(
                task=task.name,
                suite=task.suite,
                digest=task.digest,
                base=base.digest if base is not None else "",
                status=status,
                reasons=reasons,
                nops=kept.nops[:nops],
                oracles=kept.oracles[:oracles],
                seconds=kept.seconds,
            )
        )
    return GateReport(tasks=tuple(found))


_Trouble = tuple[Status, tuple[str, ...]] | None


def _prepare(
    store: DiskStore, task: Task, fresh: bool, network: NetworkPolicy | None
) -> tuple[Base | None, _Ledger | None, _Trouble]:
    if task.unsupported:
        error = TaskUnsupported(task.name, ", ".join(task.unsupported))
        return None, None, ("cannot run here", (str(error),))
    try:
        base = base_for(store, task.image)
    except (ImageError, ConfigError) as error:
        return None, None, ("cannot run here", (str(error),))
    sweep_trials(store, task, base)
    ledger = _Ledger(gate_path(store, task, base, network), fresh=fresh)
    if ledger.kept.leaks is None:
        found = (*find_leaks(task, base), *fixed_copies(task, base))
        ledger.update(leaks=(*found, *later_commits(store, task, base)))
    return base, ledger, None


def _missing(kept: _Kept, task: Task, nops: int, oracles: int) -> Iterator[tuple[Kind, int]]:
    for number in range(len(kept.nops), nops):
        yield "nop", number
    for number in range(len(kept.oracles), oracles if task.solution is not None else 0):
        yield "oracle", number


def _run(
    store: DiskStore,
    task: Task,
    base: Base,
    ledger: _Ledger,
    kind: Kind,
    number: int,
    progress: Callable[[GateStep], None] | None,
    environ: Mapping[str, str] | None,
) -> None:
    began = time.monotonic()
    try:
        verdict = (nop if kind == "nop" else oracle)(store, task, base, environ=environ)
    except (ConfigError, ImageError, SandboxError, TaskError) as error:
        verdict = Verdict.invalid(str(error))
    ledger.add(kind, verdict, time.monotonic() - began)
    if progress is not None:
        progress(GateStep(task.name, kind, number, verdict))


def _judge(
    task: Task, kept: _Kept, nops: int, oracles: int, declared: bool = False
) -> tuple[Status, tuple[str, ...]]:
    """Say what the trials of one task mean, the worst first."""
    idle, solved = kept.nops[:nops], kept.oracles[:oracles]
    undecided = sorted({v.reason for v in (*idle, *solved) if v.outcome == "invalid"})
    if undecided:
        return "cannot run here", tuple(undecided)
    if kept.leaks:
        return "leak", kept.leaks
    faults = lint(task).errors
    scores = [v.reward for v in idle]
    scoring = [v for v in idle if v.passed or v.reward != 0]
    if scoring:
        if len(scoring) < len(idle):
            return "flaky", (f"doing nothing scores {scores}",)
        return "invalid task", (f"doing nothing scores {scores}, not 0", *faults)
    if task.solution is None:
        return "invalid task", ("there is no solution to check it with",)
    passes = sum(v.passed for v in solved)
    if passes == len(solved):
        live = sum(v.live_only for v in solved)
        if live and not declared:
            return "invalid task", (
                f"the solution passes only live ({live} of {len(solved)}): declare live = true in "
                "[metadata.sprout]",
            )
        return "passed", ()
    failing = sorted({name for v in solved for name in v.failing})[:10]
    said = sorted({v.reason for v in solved if not v.passed and v.reason})
    told = f"the solution passes {passes} of {len(solved)} times"
    reasons = (told + (f"; failing: {', '.join(failing)}" if failing else ""), *said)
    return ("flaky", reasons) if passes else ("invalid task", (*reasons, *faults))


def gate_status(store: DiskStore, task: Task) -> Status | None:
    """Return the best that a gate said of a task here, in whatever environment; None: nothing."""
    found: list[Status] = []
    for path in (store.path / "gate").glob(f"{task.digest[:24]}-*.json"):
        kept = _read(path)
        if kept is not None and kept.nops and (kept.oracles or task.solution is None):
            found.append(_judge(task, kept, len(kept.nops), len(kept.oracles), declared=True)[0])
    return min(found, key=lambda status: status != "passed", default=None)


def read_gate(store: DiskStore, task: Task, base: Base) -> TaskGate | None:
    """Return what an earlier gate found out about a task here, or None if it never ran."""
    kept = _read(gate_path(store, task, base))
    if kept is None or not kept.nops or (task.solution is not None and not kept.oracles):
        return None
    status, reasons = _judge(task, kept, len(kept.nops), len(kept.oracles), needs_live(task, base))
    return TaskGate(
        task=task.name,
        suite=task.suite,
        digest=task.digest,
        base=base.digest,
        status=status,
        reasons=reasons,
        nops=kept.nops,
        oracles=kept.oracles,
        seconds=kept.seconds,
    )
