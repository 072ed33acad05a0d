"""Backtracking: SPROUT behind ``reset``, for loops that know only reset and step."""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
from gymnasium.utils import RecordConstructorArgs
from pydantic import ValidationError

from sprout_env.actors import load_actor
from sprout_env.errors import ConfigError, SandboxError, SnapshotNotFound, VerdictInvalid
from sprout_env.records.attempt import Attempt, BranchPlan
from sprout_env.records.reviews import Attempts, ReviewRecord
from sprout_env.search.review import ReviewSettings, review
from sprout_env.spaces import Observation
from sprout_env.transcript import Frozen, Turn
from sprout_env.wrappers.branchable import Env, sprout_of
from sprout_env.wrappers.recording import attempt_of

RETRIES = 2
"""How often an attempt that the infrastructure lost is begun again."""


class _Job(Frozen):
    """The attempt that the next reset begins."""

    kind: Literal["root", "branch"] = "root"
    plan: BranchPlan | None = None
    round: int = 0
    losses: int = 0


class _Group(Frozen):
    """All attempts of one task and what is still to be done: what a kill leaves behind."""

    id: str
    task: str | None = None
    attempts: tuple[Attempt, ...] = ()
    reviews: tuple[ReviewRecord, ...] = ()
    pending: tuple[_Job, ...]
    complete: bool = False


class Backtracking(
    gym.Wrapper[Observation, "str | Turn", Observation, "str | Turn"], RecordConstructorArgs
):
    """Makes successive episodes one SPROUT group: first roots, then branches of failed attempts.

    The first ``roots`` resets begin the task anew. When all have failed, the actor reviews them
    with the verifier's feedback, and the next resets start at the boundaries that it chose, with
    its starting turn executed. ``info["group"]`` tells which attempt runs, what it branches from,
    and whether the group is ``complete``; ``group`` then holds all of it. The reset after that
    begins the next group.

    Args:
        env: A stack over ``SproutEnv`` with ``Branchable`` in it (as the registered ids have).
        actor: JSON or short form of ``actors.load_actor``: who reviews. It should be the policy.
        roots: Attempts from the untouched start.
        rounds: Most review rounds.
        branches: Most branches of one round.
        stop_on_pass: End the group with its first pass (inference); else run what was planned.
        state: A folder in which the group is kept, so that a killed run goes on where it was.
            Several envs may share it: each takes a slot of its own.

    Raises:
        ConfigError: A number is not positive, or the actor's form is unknown.
    """

    def __init__(
        self,
        env: Env,
        *,
        actor: dict[str, Any] | str,
        roots: int = 1,
        rounds: int = 2,
        branches: int = 4,
        stop_on_pass: bool = True,
        state: str | None = None,
    ) -> None:
        RecordConstructorArgs.__init__(
            self,
            actor=actor,
            roots=roots,
            rounds=rounds,
            branches=branches,
            stop_on_pass=stop_on_pass,
            state=state,
        )
        super().__init__(env)
        sprout_of(env)
        if roots < 1 or rounds < 0 or branches < 1:
            raise ConfigError(f"cannot backtrack with {roots=}, {rounds=}, {branches=}")
        self._actor = load_actor(actor)
        self._roots = roots
        self._rounds = rounds
        self._settings = ReviewSettings(branches=branches)
        self._stop_on_pass = stop_on_pass
        self._slot = _Slot(Path(state)) if state is not None else None
        self._group: _Group | None = None
        self._running: str | None = None

    @property
    def group(self) -> Attempts | None:
        """All attempts and reviews of the current group; None before the first reset."""
        if self._group is None:
            return None
        return Attempts(
            task=self._group.task or "",
            suite=sprout_of(self).config.suite,
            method="backtracking",
            attempts=self._group.attempts,
            reviews=self._group.reviews,
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin the group's next attempt; with a ``snapshot`` option, an episode beside the group.

        Args:
            seed: For roots; a branch goes on with the random state of its boundary.
            options: ``{"task": slug}`` counts at the start of a group.
        """
        if options and "snapshot" in options:
            self._running = None
            return self.env.reset(seed=seed, options=options)
        while True:
            if self._group is None and self._slot is not None:
                self._group = self._slot.read()
            if self._group is None or self._group.complete:
                jobs = tuple(_Job() for _ in range(self._roots))
                self._group = _Group(id=uuid.uuid4().hex[:8], pending=jobs)
            obs, info, over = self._begin(self._group, seed, options)
            if not over:
                return obs, info

    def _begin(
        self, group: _Group, seed: int | None, options: dict[str, Any] | None
    ) -> tuple[Observation, dict[str, Any], bool]:
        job = group.pending[0]
        self._running = f"{group.id}-{job.kind[0]}{len(group.attempts)}"
        if job.plan is None:
            task = {"task": group.task} if group.task is not None else (options or {})
            obs, info = self.env.reset(seed=seed, options=task)
            self._keep(group.model_copy(update={"task": info["task"]}))
            info["group"] = self._lineage()
            return obs, info, False
        parent = next(a for a in group.attempts if a.id == job.plan.attempt)
        kept = next(b for b in parent.boundaries if b.turn == job.plan.boundary)
        obs, info = self.env.reset(options={"snapshot": kept.snapshot})
        info["group"] = self._lineage()
        start = job.plan.starting_turn
        if start is None:
            return obs, info, False
        obs, _, terminated, truncated, stepped = self.step(start.turn())
        # A boundary with one turn left ends with its starting turn: then that was the attempt.
        return obs, {**info, **stepped}, terminated or truncated

    def step(self, action: str | Turn) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        """Run one command; when it was the attempt's last, decide what the group still needs.

        The review happens in here, after the last attempt of a round.
        """
        try:
            obs, reward, terminated, truncated, info = self.env.step(action)
        except (VerdictInvalid, SandboxError):
            self._lose()
            raise
        if self._running is None or self._group is None:
            return obs, reward, terminated, truncated, info
        lineage = self._lineage()
        if terminated or truncated:
            self._end(self._group, info)
            lineage["complete"] = self._group.complete
        info["group"] = lineage
        return obs, reward, terminated, truncated, info

    def _end(self, group: _Group, info: Mapping[str, Any]) -> None:
        job, *rest = group.pending
        attempt = attempt_of(
            self.env,
            dict(info),
            id=self._running or "",
            kind=job.kind,
            parent=job.plan.attempt if job.plan else None,
            plan=job.plan,
            round=job.round,
        )
        sprout_of(self).keep_boundaries()
        self._running = None
        self._proceed(
            group.model_copy(
                update={"attempts": (*group.attempts, attempt), "pending": tuple(rest)}
            )
        )

    def _lose(self) -> None:
        """Begin the attempt again, or give it up as lost: it is never a failure of the policy."""
        if self._running is None or self._group is None:
            return
        job, *rest = self._group.pending
        self._running = None
        if job.losses < RETRIES:
            again = job.model_copy(update={"losses": job.losses + 1})
            self._keep(self._group.model_copy(update={"pending": (again, *rest)}))
            return
        lost = Attempt(
            id=f"{self._group.id}-lost{len(self._group.attempts)}",
            task=self._group.task or "",
            kind=job.kind,
            parent=job.plan.attempt if job.plan else None,
            plan=job.plan,
            round=job.round,
            status="infra_error",
        )
        self._proceed(
            self._group.model_copy(
                update={"attempts": (*self._group.attempts, lost), "pending": tuple(rest)}
            )
        )

    def _proceed(self, group: _Group) -> None:
        passed = any(attempt.passed for attempt in group.attempts)
        failures = [a for a in group.attempts if a.scorable and not a.passed]
        done = len(group.reviews)
        if passed and self._stop_on_pass:
            group = group.model_copy(update={"pending": ()})
        elif not group.pending and not passed and failures and done < self._rounds:
            core = sprout_of(self)
            record = review(
                self._actor,
                failures[0].instruction,
                failures,
                round=done + 1,
                settings=self._settings,
                max_turns=core.config.max_turns or core.task.limits.max_turns,
                earlier=group.reviews,
            )
            jobs = tuple(
                _Job(kind="branch", plan=plan, round=record.round) for plan in record.plans
            )
            group = group.model_copy(update={"reviews": (*group.reviews, record), "pending": jobs})
        self._keep(group.model_copy(update={"complete": not group.pending}))
        if not group.pending:
            self._release(group)

    def _keep(self, group: _Group) -> None:
        self._group = group
        if self._slot is not None:
            self._slot.write(group)

    def _release(self, group: _Group) -> None:
        tree = sprout_of(self).tree
        for boundary in {b for attempt in group.attempts for b in attempt.boundaries}:
            if boundary.snapshot is not None:
                try:
                    tree.release(boundary.snapshot)
                except SnapshotNotFound:
                    continue

    def _lineage(self) -> dict[str, Any]:
        assert self._group is not None
        job = self._group.pending[0]
        return {
            "id": self._group.id,
            "attempt": self._running,
            "kind": job.kind,
            "parent": job.plan.attempt if job.plan else None,
            "boundary": job.plan.boundary if job.plan else None,
            "round": job.round,
            "complete": False,
        }

    def close(self) -> None:
        """Close the env and give up the slot; an unfinished group stays in it."""
        super().close()
        if self._slot is not None:
            self._slot.close()

    def episode_state(self) -> None:
        """Nothing of an episode: the group spans several."""
        return None

    def restore_episode_state(self, state: Any) -> None:
        """Nothing to take up."""


class _Slot:
    """One file of a shared folder, held by a lock that ends with its process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock: int | None = None
        self._path: Path | None = None

    def _claim(self) -> Path:
        if self._path is not None:
            return self._path
        self._folder.mkdir(parents=True, exist_ok=True)
        number = 0
        while True:
            lock = os.open(
                self._folder / f"group-{number}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                number += 1
                continue
            self._lock = lock
            self._path = self._folder / f"group-{number}.json"
            return self._path

    def read(self) -> _Group | None:
        """Return the group that was left behind, if any.

        Raises:
            ConfigError: The file is not ours.
        """
        path = self._claim()
        try:
            return _Group.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise ConfigError(f"{path} is not a group that can be resumed: {error}") from error

    def write(self, group: _Group) -> None:
        """Replace the file; a kill leaves the old or the new one."""
        path = self._claim()
        draft = path.with_suffix(".new")
        with open(draft, "w") as file:
            file.write(group.model_dump_json())
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)

    def close(self) -> None:
        """Let another env take the slot. Idempotent."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = self._path = None
