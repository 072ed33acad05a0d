"""Two actors that need no model: one that does nothing, one that runs the reference solution."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath

from sprout_env.disks.store import Base, Disk, DiskStore
from sprout_env.errors import DiskNotFound, TaskBroken
from sprout_env.grading.grade import grade, grade_end
from sprout_env.grading.protocol import solve
from sprout_env.grading.settings import (
    Setting,
    agent_config,
    refuse_unsupported,
    setting_of,
    start_agents,
)
from sprout_env.grading.steps import begin_step, combine, stops
from sprout_env.grading.verdict import Verdict
from sprout_env.sandbox.sandbox import Sandbox
from sprout_env.tasks.task import Task

_RECORD = "trial"
"""Names, inside a trial's frozen disk, who is to drop it."""

Act = Callable[[Sandbox, Setting], str]
"""What is done in the agent's sandbox; returns a remark."""


def nop(
    store: DiskStore, task: Task, base: Base, *, environ: Mapping[str, str] | None = None
) -> Verdict:
    """Judge an episode in which the agent did nothing.

    Raises:
        TaskUnsupported, ConfigError: The task cannot be run here.
        StoreError, SandboxStartFailed, ImageError: The machinery failed.
    """
    return _trial(store, task, base, lambda sandbox, setting: "", environ)


def oracle(
    store: DiskStore, task: Task, base: Base, *, environ: Mapping[str, str] | None = None
) -> Verdict:
    """Judge an episode in which the agent ran the reference solution.

    The solution is copied to ``/solution`` of a disk of its own, which is dropped afterwards. As
    an agent's, its exit code and a time-out do not keep it from being judged; they are remarks.

    Raises:
        TaskBroken: The task has no solution.
        TaskUnsupported, ConfigError: The task cannot be run here.
        StoreError, SandboxStartFailed, ImageError: The machinery failed.
    """
    stages = [task.stage(index) for index in range(max(1, len(task.steps)))]
    if any(stage.solution is None for stage in stages):
        raise TaskBroken((task.folder or PurePosixPath(task.name)) / "solution/solve.sh", "missing")
    return _trial(store, task, base, solve, environ)


def sweep_trials(store: DiskStore, task: Task, base: Base) -> int:
    """Drop what trials of a task left behind when their process was killed; return how many."""
    dropped = 0
    for frozen in tuple(
        store.list_frozen(store.family(task.family_digest, base, task.limits.storage_mb).id)
    ):
        try:
            owner = store.read_records(frozen, _RECORD)[0].decode()
        except DiskNotFound:
            continue
        if not store.owner_alive(owner):
            store.drop(frozen)
            dropped += 1
    return dropped


def _trial(
    store: DiskStore, task: Task, base: Base, act: Act, environ: Mapping[str, str] | None
) -> Verdict:
    refuse_unsupported(task)
    host = os.environ if environ is None else environ
    setting = setting_of(task, base, host)
    disk = store.create(store.family(task.family_digest, base, task.limits.storage_mb))
    try:
        sandbox = start_agents(store, disk, setting, agent_config(setting))
        try:
            if not task.steps:
                return _turn(store, setting, disk, sandbox, act, is_last=True)
            verdicts: list[Verdict] = []
            why = ""
            for index, step in enumerate(task.steps):
                setting = setting_of(task.stage(index), base, host)
                begin_step(sandbox, setting, step)
                is_last = index == len(task.steps) - 1
                verdicts.append(_turn(store, setting, disk, sandbox, act, is_last=is_last))
                why = stops(step, verdicts[-1])
                if why:
                    break
            return combine(task, verdicts, why)
        finally:
            sandbox.close()
    finally:
        store.drop(disk.id)


def _turn(
    store: DiskStore, setting: Setting, disk: Disk, sandbox: Sandbox, act: Act, *, is_last: bool
) -> Verdict:
    """Let the actor act, keep the disk, judge it; the last time the sandbox may be used up."""
    task, environ = setting.task, setting.environ
    remark = act(sandbox, setting)
    alive = bool(sandbox.processes())
    sandbox.pause()
    try:
        record = {_RECORD: store.owner.encode()}
        frozen = store.freeze(disk, uuid.uuid4().hex[:16], record).id
    finally:
        sandbox.resume()
    try:
        if is_last:
            store.renew(disk)
            verdict = grade_end(
                store, task, frozen, disk.base, sandbox, had_processes=alive, environ=environ
            )
        else:
            verdict = grade(store, task, frozen, disk.base, environ=environ)
    finally:
        store.drop(frozen)
    told = "; ".join(filter(None, (remark if not verdict.passed else "", verdict.reason)))
    return verdict.model_copy(update={"reason": told})
