"""Judging a snapshot without touching it, and the live end of an episode where that is needed.

What a verifier left undecided, and who is to blame for it, is settled by ``blame``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace

from sprout_env.disks.store import Base, Disk, DiskStore, FrozenDiskId
from sprout_env.errors import ConfigError, SandboxError, SandboxLost, VerdictInvalid
from sprout_env.grading.blame import Judged, settle, undecided
from sprout_env.grading.hooks import planted
from sprout_env.grading.live import keep_services, rewrites
from sprout_env.grading.protocol import (
    StaleReward,
    execute,
    make_executable,
    prepare,
    put_back,
    solve,
    upload,
)
from sprout_env.grading.separate import Cargo, collected, deliver, run_hooks
from sprout_env.grading.settings import (
    Setting,
    agent_config,
    needs_live,
    refuse_unsupported,
    setting_of,
    start_agents,
    start_verifiers,
    verifier_config,
)
from sprout_env.grading.verdict import Verdict
from sprout_env.sandbox import start
from sprout_env.sandbox.build import base_for, substitutions
from sprout_env.sandbox.sandbox import Sandbox
from sprout_env.tasks.task import Task
from sprout_env.tasks.templates import resolve_env

_HASTE = 3
"""How much faster the reference solution must be judged before an agent's is too slow."""


def grade(
    store: DiskStore,
    task: Task,
    frozen: FrozenDiskId,
    base: Base,
    *,
    retries: int = 0,
    environ: Mapping[str, str] | None = None,
) -> Verdict:
    """Judge a frozen disk in a fresh sandbox on a clone of it.

    Nothing of the trajectory is touched, so any snapshot may be graded at any time.

    Args:
        store: Where the disk is.
        task: What was to be done.
        frozen: The disk to judge.
        base: The base of the task's image.
        retries: How often an ``invalid`` verdict is tried again, each time on a fresh clone.
            Before the agent is blamed for one it is tried again once in any case.
        environ: The host's variables for ``${VAR}`` templates; None: this process's, read now.

    Raises:
        TaskUnsupported: The task needs what this package does not do.
        ConfigError: A variable that the verifier takes from the host is not set.
        StoreError, SandboxStartFailed, ImageError: The machinery failed; nothing was judged.
    """
    setting = _setting(task, base, environ)

    def judge() -> Judged:
        disk = store.clone(frozen)
        try:
            return _judge_disk(store, setting, base, disk)
        finally:
            store.drop(disk.id)

    verdict = _placed(store, task, base, _settle(store, setting, base, judge, retries))
    if verdict.passed and task.verifier.mode == "shared":
        said = planted(task.verifier, store.changes(None, frozen))
        told = "; ".join(filter(None, (verdict.reason, said)))
        return verdict.model_copy(update={"reason": told})
    return verdict


def grade_live(
    sandbox: Sandbox,
    store: DiskStore,
    task: Task,
    base: Base,
    *,
    environ: Mapping[str, str] | None = None,
) -> Verdict:
    """Judge the agent's own sandbox, its services still running, and throw it away.

    For after the last snapshot: processes that neither listen on a socket nor descend from one
    that does are killed, the verifier runs, everything is stopped, the host reads the reward. A
    process that rewrites reward files is looked for before and, where the verifier says "passed",
    after; found, it makes the verdict ``failed``. A task that judges in a separate environment
    has its artifacts collected from the live sandbox.

    Args:
        sandbox: The agent's sandbox; closed in any case.
        store: Its store.
        task: What was to be done.
        base: The base of the task's image.
        environ: The host's variables for ``${VAR}`` templates; None: this process's, read now.

    Raises:
        TaskUnsupported: The task needs what this package does not do.
        ConfigError: A variable that the verifier takes from the host is not set.
        StoreError, SandboxStartFailed, ImageError: The machinery failed; nothing was judged.
    """
    return _live(sandbox, store, task, base, environ)


def grade_end(
    store: DiskStore,
    task: Task,
    frozen: FrozenDiskId,
    base: Base,
    sandbox: Sandbox | None = None,
    *,
    had_processes: bool = True,
    retries: int = 0,
    environ: Mapping[str, str] | None = None,
) -> Verdict:
    """Judge the end of an episode: a clone of its last snapshot, and live where that may differ.

    The live sandbox is judged too if the agent left processes alive and the clone did not pass,
    or if the verifier needs them by the task's word, or because the image's entrypoint may have
    started what it looks at (then the live verdict counts). A pass obtained only live is marked
    ``live_only``.

    Args:
        store: Where the disk is.
        task: What was to be done.
        frozen: The last snapshot's disk.
        base: The base of the task's image.
        sandbox: The agent's sandbox; None: there is nothing live to judge. It is closed.
        had_processes: The agent left processes alive in it.
        retries: How often an ``invalid`` clone verdict is tried again.
        environ: The host's variables for ``${VAR}`` templates; None: this process's, read now.

    Raises:
        TaskUnsupported: The task needs what this package does not do.
        ConfigError: A variable that the verifier takes from the host is not set.
        StoreError, SandboxStartFailed, ImageError: The machinery failed; nothing was judged.
    """
    try:
        clone = grade(store, task, frozen, base, retries=retries, environ=environ)
        declared = needs_live(task, base)
        if sandbox is None or not (declared or (had_processes and not clone.passed)):
            return clone
        counts = declared or clone.outcome == "invalid"
        live = _live(sandbox, store, task, base, environ, only_passes=not counts)
    finally:
        if sandbox is not None:
            sandbox.close()
    if live.passed:
        return live.model_copy(update={"live_only": not clone.passed})
    if declared or (clone.outcome == "invalid" and live.outcome == "failed"):
        return live
    return clone


def _live(
    sandbox: Sandbox,
    store: DiskStore,
    task: Task,
    base: Base,
    environ: Mapping[str, str] | None,
    *,
    only_passes: bool = False,
) -> Verdict:
    """Judge a live sandbox; ``only_passes``: what else it may be matters to nobody."""

    def settled(judge: Callable[[], Judged]) -> Verdict:
        return judge().verdict if only_passes else _settle(store, setting, base, judge)

    try:
        setting = _setting(task, base, environ)
        if task.verifier.mode == "shared":
            verdict = settled(lambda: _judge_live(sandbox, setting, base))
        else:
            sandbox.resume()
            keep_services(sandbox)
            with _handed_over(sandbox, setting) as cargo:
                verdict = settled(lambda: _judge_cargo(store, setting, base, cargo))
        return _placed(store, task, base, verdict)
    except SandboxLost as error:
        return Verdict.invalid(f"the live sandbox was lost: {error}")
    finally:
        sandbox.close()


def _placed(store: DiskStore, task: Task, base: Base, verdict: Verdict) -> Verdict:
    """Mark a verdict whose environment is not the one that the task names."""
    own = task.verifier.image if task.verifier.mode == "separate" else None
    is_other = bool(substitutions(store, task.image, base))
    is_other = is_other or (own is not None and bool(substitutions(store, own, None)))
    return verdict.model_copy(update={"environment": "substituted"}) if is_other else verdict


def _setting(task: Task, base: Base, environ: Mapping[str, str] | None) -> Setting:
    refuse_unsupported(task)
    setting = setting_of(task, base, os.environ if environ is None else environ)
    # A variable that is missing is the user's to mend: say so before anything is started.
    resolve_env(task.verifier.env, setting.environ)
    return setting


def _judge_disk(
    store: DiskStore, setting: Setting, base: Base, disk: Disk, *, fresh: bool = False
) -> Judged:
    """Judge a disk that nobody else uses: a clone of the agent's, or a fresh one.

    Raises:
        SandboxStartFailed: No sandbox starts on a fresh disk, or on the verifier's own.
    """
    separate = setting.task.verifier.mode == "separate"
    config = agent_config(setting) if separate else verifier_config(setting)
    try:
        if fresh:
            sandbox = start_agents(store, disk, setting, config)
        else:
            sandbox = start(store, disk, config)
    except SandboxError as error:
        if fresh:
            raise
        return undecided(f"no sandbox could be started on the disk: {error}")
    try:
        if not separate:
            return _judge_sandbox(sandbox, setting, base)
        with _handed_over(sandbox, setting) as cargo:
            return _judge_cargo(store, setting, base, cargo)
    except SandboxLost as error:
        return undecided(f"the sandbox was lost before the verifier ran: {error}")
    finally:
        sandbox.close()


def _judge_sandbox(
    sandbox: Sandbox, setting: Setting, base: Base, cargo: Cargo | None = None
) -> Judged:
    """Judge what is in a sandbox in which only the verifier runs."""
    try:
        own_tests = False
        if cargo is not None:
            deliver(sandbox, cargo)
            own_tests = not (setting.task.verifier.tests or setting.task.verifier.files)
        _ready(sandbox, setting, base, own_tests=own_tests)
        return execute(sandbox, setting)
    except VerdictInvalid as error:
        return undecided(str(error.facts[0]))
    except SandboxError as error:
        return undecided(f"the verifier could not be run: {error}")


def _ready(sandbox: Sandbox, setting: Setting, base: Base, *, own_tests: bool = False) -> None:
    """Clean up and copy the tests in.

    Raises:
        SandboxError, VerdictInvalid: What the agent left there does not let us.
    """
    prepare(sandbox, setting, own_tests=own_tests)
    if own_tests:
        make_executable(sandbox, setting.script)
    verifier = setting.task.verifier
    folders = [f for f in (verifier.tests, verifier.tests_over) if f is not None]
    if (folders or verifier.files) and not own_tests:
        root = setting.task.folder
        upload(sandbox, root, folders, verifier.script, "/tests", verifier.files)
    put_back(sandbox, base, verifier.held_back)


@contextmanager
def _handed_over(agents: Sandbox, setting: Setting) -> Iterator[Cargo]:
    """Collect what the agent's sandbox hands over, and close it."""
    remarks = run_hooks(agents, setting)
    with collected(agents, setting) as cargo:
        agents.close()
        yield replace(cargo, remarks=(*remarks, *cargo.remarks))


def _judge_cargo(store: DiskStore, setting: Setting, base: Base, cargo: Cargo) -> Judged:
    """Judge what was handed over, in a sandbox of the verifier's own."""
    task = setting.task
    own = base if task.verifier.image is None else base_for(store, task.verifier.image)
    place = setting.over(own)
    disk = store.create(store.family(task.family_digest, own, task.limits.storage_mb))
    try:
        sandbox = start_verifiers(store, disk, place)
        try:
            judged = _judge_sandbox(sandbox, place, own, cargo)
        finally:
            sandbox.close()
    finally:
        store.drop(disk.id)
    told = "; ".join(filter(None, (judged.verdict.reason, *cargo.remarks)))
    verdict = judged.verdict.model_copy(update={"reason": setting.redact(told)})
    return replace(judged, verdict=verdict)


def _judge_live(sandbox: Sandbox, setting: Setting, base: Base) -> Judged:
    tampered = Verdict(
        outcome="failed",
        reward=0.0,
        reason="a process that the agent left running rewrites the reward file",
    )
    sandbox.resume()
    keep_services(sandbox)
    try:
        prepare(sandbox, setting, own_tests=False)
        if rewrites(sandbox, setting):
            return Judged(tampered)
        _ready(sandbox, setting, base)
        judged = execute(sandbox, setting)
        verdict = judged.verdict
        if not verdict.passed:
            return judged
        # Where the reward says one thing and the reports another, somebody wrote one of them.
        forged = bool(verdict.failing) or any(rewrites(sandbox, setting) for _ in range(2))
    except StaleReward:
        return Judged(tampered)
    except VerdictInvalid as error:
        return undecided(str(error.facts[0]))
    except SandboxLost:
        raise
    except SandboxError as error:
        return undecided(f"the live sandbox could not be prepared: {error}")
    if not forged:
        return judged
    told = {"tests": verdict.tests, "log_tail": verdict.log_tail}
    return Judged(tampered.model_copy(update=told))


def _settle(
    store: DiskStore,
    setting: Setting,
    base: Base,
    judge: Callable[[], Judged],
    retries: int = 0,
) -> Verdict:
    task = setting.task
    family = store.family(task.family_digest, base, task.limits.storage_mb)

    def guarded() -> Judged:
        judged = judge()
        if judged.again:
            store.drop(store.create(family).id)  # refused where the store is full
        return judged

    def control(hung: bool) -> Judged:
        if hung and task.solution is None:
            return undecided("the task has no reference solution")
        disk = store.create(family)
        try:
            if not hung:
                return _judge_disk(store, setting, base, disk, fresh=True)
            with closing(start_agents(store, disk, setting, agent_config(setting))) as sandbox:
                solve(sandbox, setting)
            judged = _judge_disk(store, setting, base, disk)
        except (ConfigError, SandboxLost) as error:
            return undecided(str(error))
        finally:
            store.drop(disk.id)
        quick = judged.verdict.duration_s * _HASTE <= task.verifier.timeout_s
        return judged if judged.verdict.passed and quick else undecided("no pass in time")

    # Steps share their task's digest, and variables of the host are part of no task.
    told = f"{store.path} {base.digest} {setting.state.env} {task.model_dump_json()}"
    return settle(guarded, control, hashlib.sha256(told.encode()).hexdigest(), retries)
