"""Judging a snapshot without touching it, and the live end of an episode where that is needed.

The rule for what cannot be decided:

- A verifier that timed out, wrote no reward or no finite one, or reported its own crash, has not
  decided: ``invalid``. It never becomes reward 0. It costs the attempt all the same: it is never
  a pass, it stays in every denominator, and it is retried only as often as the caller pays for.
- Reward 0 with a sign in the log that no test ever ran (``command not found: python``) may be the
  environment's fault or the agent's doing. The untouched disk decides: where the same verifier
  shows the same sign on it, the verdict is ``invalid`` and names the sign; where it does not, the
  agent broke the machinery, and the verdict is ``failed``. So no agent can turn a failure into an
  ``invalid`` by removing python.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from sprout_env.disks.store import Base, Disk, DiskStore, FrozenDiskId
from sprout_env.errors import SandboxError, SandboxLost, VerdictInvalid
from sprout_env.grading.hooks import planted
from sprout_env.grading.live import keep_services, rewrites
from sprout_env.grading.protocol import (
    Judged,
    StaleReward,
    execute,
    make_executable,
    prepare,
    put_back,
    upload,
)
from sprout_env.grading.separate import collected, deliver, run_hooks
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
        environ: The host's variables for ``${VAR}`` templates; None: this process's, read now.

    Raises:
        TaskUnsupported: The task needs what this package does not do.
        ConfigError: A variable that the verifier takes from the host is not set.
        StoreError, SandboxStartFailed, ImageError: The machinery failed; nothing was judged.
    """
    setting = _setting(task, base, environ)
    for attempt in range(retries + 1):
        disk = store.clone(frozen)
        try:
            judged = _judge_disk(store, setting, base, disk)
        finally:
            store.drop(disk.id)
        verdict = _placed(store, task, base, _settle(store, setting, base, judged))
        if verdict.passed and task.verifier.mode == "shared":
            said = planted(task.verifier, store.changes(None, frozen))
            told = "; ".join(filter(None, (verdict.reason, said)))
            return verdict.model_copy(update={"reason": told})
        if verdict.outcome != "invalid" or attempt == retries:
            return verdict
    raise AssertionError("unreachable")


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
    """
    try:
        setting = _setting(task, base, environ)
        sandbox.resume()
        keep_services(sandbox)
        if task.verifier.mode == "separate":
            judged = _judge_cargo(store, setting, base, sandbox)
            return _placed(store, task, base, _settle(store, setting, base, judged))
        return _placed(store, task, base, _judge_live(sandbox, setting, base))
    except SandboxLost as error:
        return Verdict.invalid(f"the live sandbox was lost: {error}")
    finally:
        sandbox.close()


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
        live = grade_live(sandbox, store, task, base, environ=environ)
    finally:
        if sandbox is not None:
            sandbox.close()
    if live.passed:
        return live.model_copy(update={"live_only": not clone.passed})
    if declared or (clone.outcome == "invalid" and live.outcome == "failed"):
        return live
    return clone


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
    """Judge a disk of the agent's that nobody else uses."""
    separate = setting.task.verifier.mode == "separate"
    config = agent_config(setting) if separate else verifier_config(setting)
    if fresh:
        sandbox = start_agents(store, disk, setting, config)
    else:
        sandbox = start(store, disk, config)
    try:
        if separate:
            return _judge_cargo(store, setting, base, sandbox)
        return _judge_sandbox(sandbox, setting, base, own_tests=False)
    except SandboxLost as error:
        return Judged(Verdict.invalid(f"the sandbox was lost while the verifier ran: {error}"))
    finally:
        sandbox.close()


def _judge_sandbox(sandbox: Sandbox, setting: Setting, base: Base, *, own_tests: bool) -> Judged:
    """Judge what is in a sandbox in which only the verifier runs."""
    try:
        _ready(sandbox, setting, base, own_tests=own_tests)
    except VerdictInvalid as error:
        return Judged(Verdict.invalid(str(error.facts[0])), suspicion="cannot prepare")
    return execute(sandbox, setting)


def _ready(sandbox: Sandbox, setting: Setting, base: Base, *, own_tests: bool = False) -> None:
    """Clean up and copy the tests in.

    Raises:
        VerdictInvalid: What the agent left there does not let us.
    """
    prepare(sandbox, setting, own_tests=own_tests)
    if own_tests:
        make_executable(sandbox, setting.script)
    verifier = setting.task.verifier
    folders = [f for f in (verifier.tests, verifier.tests_over) if f is not None]
    try:
        if (folders or verifier.files) and not own_tests:
            root = setting.task.folder
            upload(sandbox, root, folders, verifier.script, "/tests", verifier.files)
        put_back(sandbox, base, verifier.held_back)
    except SandboxLost:
        raise
    except SandboxError as error:
        raise VerdictInvalid(f"cannot copy the tests in: {error}") from error


def _judge_cargo(store: DiskStore, setting: Setting, base: Base, agents: Sandbox) -> Judged:
    """Judge what the agent's sandbox hands over, in a sandbox of the verifier's own."""
    task = setting.task
    remarks = list(run_hooks(agents, setting))
    own = base if task.verifier.image is None else base_for(store, task.verifier.image)
    place = setting.over(own)
    with collected(agents, setting) as cargo:
        agents.close()
        remarks += cargo.remarks
        disk = store.create(store.family(task.family_digest, own, task.limits.storage_mb))
        try:
            sandbox = start_verifiers(store, disk, place)
            try:
                deliver(sandbox, cargo)
                own_tests = not (task.verifier.tests or task.verifier.files)
                judged = _judge_sandbox(sandbox, place, own, own_tests=own_tests)
            finally:
                sandbox.close()
        finally:
            store.drop(disk.id)
    told = "; ".join(filter(None, (judged.verdict.reason, *remarks)))
    verdict = judged.verdict.model_copy(update={"reason": setting.redact(told)})
    return Judged(verdict, judged.suspicion)


def _judge_live(sandbox: Sandbox, setting: Setting, base: Base) -> Verdict:
    tampered = Verdict(
        outcome="failed",
        reward=0.0,
        reason="a process that the agent left running rewrites the reward file",
    )
    try:
        prepare(sandbox, setting, own_tests=False)
        if rewrites(sandbox, setting):
            return tampered
        _ready(sandbox, setting, base)
        verdict = execute(sandbox, setting).verdict
        if not verdict.passed:
            return verdict
        # Where the reward says one thing and the reports another, somebody wrote one of them.
        forged = bool(verdict.failing) or any(rewrites(sandbox, setting) for _ in range(2))
    except StaleReward:
        return tampered
    except VerdictInvalid as error:
        return Verdict.invalid(str(error.facts[0]))
    except SandboxLost:
        raise
    except SandboxError as error:
        return Verdict.invalid(f"the live sandbox could not be prepared: {error}")
    if not forged:
        return verdict
    return tampered.model_copy(update={"tests": verdict.tests, "log_tail": verdict.log_tail})


def _settle(store: DiskStore, setting: Setting, base: Base, judged: Judged) -> Verdict:
    """Turn a suspicion into ``invalid`` or ``failed``: the untouched disk decides."""
    if not judged.suspicion:
        return judged.verdict
    verdict = judged.verdict
    if _suspicion_untouched(store, setting, base) == judged.suspicion:
        reason = verdict.reason if verdict.outcome == "invalid" else judged.suspicion
        return Verdict.invalid(
            reason, log_tail=verdict.log_tail, duration_s=verdict.duration_s
        ).model_copy(update={"tests": verdict.tests})
    told = f"{judged.suspicion}: not so on the untouched disk, so the agent's changes are the cause"
    return verdict.model_copy(
        update={
            "outcome": "failed",
            "reward": 0.0 if verdict.reward is None else verdict.reward,
            "reason": "; ".join(filter(None, (told, verdict.reason))),
        }
    )


_UNTOUCHED: dict[tuple[str, str, str], str] = {}
"""What the verifier's machinery shows on untouched disks, by store, task and base."""


def _suspicion_untouched(store: DiskStore, setting: Setting, base: Base) -> str:
    task = setting.task
    key = (str(store.path), task.digest, base.digest)
    if key not in _UNTOUCHED:
        disk = store.create(store.family(task.family_digest, base, task.limits.storage_mb))
        try:
            _UNTOUCHED[key] = _judge_disk(store, setting, base, disk, fresh=True).suspicion
        finally:
            store.drop(disk.id)
    return _UNTOUCHED[key]
