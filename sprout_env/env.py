"""SproutEnv: a task, a sandbox and its snapshots behind ``reset``, ``step`` and ``close``."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import gymnasium as gym

from sprout_env.disks.store import DiskStore, FrozenDiskId
from sprout_env.env_config import EnvConfig
from sprout_env.episode import Episode, cut, step_of
from sprout_env.episodes import Episodes
from sprout_env.errors import ConfigError, EpisodeOver, NotReset
from sprout_env.grading.grade import grade, grade_end
from sprout_env.grading.verdict import Verdict
from sprout_env.records.attempt import Boundary
from sprout_env.snapshots import LayerState, SnapshotTree
from sprout_env.spaces import Observation, action_space, observation_space
from sprout_env.tasks.task import Task
from sprout_env.transcript import Notice, Result, Transcript, Turn


class SproutEnv(gym.Env[Observation, "str | Turn"]):
    """One coding task as a Gymnasium environment.

    An action is a shell command, or a ``Turn`` that carries it with the actor's message and token
    trace. The command ``submit`` ends the episode; so do the task's limits. The end is graded, and
    ``info["verdict"]`` holds the ``Verdict`` as plain data; the reward of this bare env is always
    0.0 (``wrappers.VerifierReward`` makes it the verifier's).

    ``reset(options=...)`` takes ``task`` (a slug) or ``snapshot`` (an id): the latter continues at
    that boundary, in a fresh sandbox on a clone of its disk, and returns its observation.

    Args:
        **kwargs: The fields of ``EnvConfig``.

    Raises:
        ConfigError: An argument is unknown or malformed. Nothing is opened before ``reset``.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}

    def __init__(self, **kwargs: Any) -> None:
        self.config = EnvConfig.told("argument of the env: ", kwargs)
        self.render_mode = self.config.render_mode
        self.observation_space = observation_space(self.config.output_chars)
        self.action_space = action_space()
        self._episodes = Episodes(self.config)
        self._episode: Episode | None = None
        self._closing = threading.RLock()

    # -- Gymnasium ------------------------------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode, or continue at a snapshot.

        Args:
            seed: Seed of the env's generator, which draws the task when none is named.
            options: ``{"task": slug}`` or ``{"snapshot": id}``.

        Raises:
            TaskNotFound: The suite or the task is not on this machine.
            SnapshotNotFound: The store has no such snapshot.
            StoreUnavailable: No store can be had here (root, kernel, file system).
            SandboxStartFailed: The sandbox did not start.
        """
        options = dict(options or {})
        slug, snapshot = options.pop("task", None), options.pop("snapshot", None)
        if options:
            raise ConfigError(f"reset takes the options task and snapshot, not {sorted(options)}")
        if snapshot is not None and (seed is not None or slug is not None):
            raise ConfigError("a snapshot holds its own task and seed: give no other with it")
        super().reset(seed=seed)
        self._end_episode()
        lost: tuple[str, ...] = ()
        if snapshot is None:
            episode = self._episodes.begin(slug, lambda n: int(self.np_random.integers(n)))
        else:
            episode, kept = self._episodes.resume(snapshot)
            lost = tuple(str(process) for process in kept.processes)
            if kept.rng is not None:
                self.np_random.bit_generator.state = kept.rng["bit_generator"]
                self._np_random_seed = kept.rng["seed"]
        self._episode = episode
        info = self._info(episode)
        info["lost_processes"] = lost
        return self._observation(episode), info

    def step(self, action: str | Turn) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Run one command.

        Returns:
            Observation, 0.0, whether the agent submitted, whether a limit ended the episode, info.

        Raises:
            NotReset: There is no episode.
            EpisodeOver: It has ended.
            SandboxLost: The sandbox died; the episode cannot go on, its snapshots can.
        """
        episode = self._current("step()")
        episode.settle()
        turn = action if isinstance(action, Turn) else Turn(command=action)
        turn = turn.model_copy(update={"result": None})
        early: Verdict | None = None
        over = turn.submits
        if over and episode.step < len(episode.task.steps) - 1:
            early = episode.advance(turn, self.config.verdict_retries)
            over = early is not None
        elif over:
            done = turn.model_copy(update={"result": Result(output="", exit_code=0)})
            episode.transcript = episode.transcript.append(done)
        else:
            allowed_s = episode.allowed_s(self.config.command_timeout_s)
            episode.run(turn, allowed_s, self.config.output_chars)
        limit = "" if over else episode.limit_reached(self.config.max_turns)
        info = self._info(episode)
        if over or limit:
            if limit:
                info["limit"] = limit
            verdict = self.finish(limit) if early is None else self._close(episode, early)
            info["verdict"] = verdict.model_dump(mode="json")
        return self._observation(episode), 0.0, over, bool(limit), info

    def tell(self, text: str) -> None:
        """Say something to the actor: a notice in its transcript, kept with the next boundary.

        Raises:
            NotReset: There is no episode.
            EpisodeOver: It has ended.
        """
        episode = self._current("tell()")
        episode.settle()
        episode.transcript = episode.transcript.append(Notice(text=text))

    def render(self) -> str | None:
        """Return the last command and its output as text, with ``render_mode="ansi"``."""
        if self.render_mode != "ansi":
            return None
        turn = self._current("render()", ended=True).transcript.last_turn
        if turn is None or turn.result is None:
            return self.transcript.instruction
        return f"$ {turn.command}\n{turn.result.output}"

    def close(self) -> None:
        """End the episode and give everything back. Idempotent, also before reset."""
        # Whoever comes second waits: the store is closed after the episode has released its own.
        with self._closing:
            self._end_episode()
            self._episodes.close()

    # -- what an episode is made of -------------------------------------------------------

    @property
    def transcript(self) -> Transcript:
        """The agent's context so far. Raises NotReset before the first reset."""
        return self._current("transcript", ended=True).transcript

    @property
    def task(self) -> Task:
        """The current task. Raises NotReset before the first reset."""
        return self._current("task", ended=True).task

    @property
    def store(self) -> DiskStore:
        """The disk store, opened on first use. Raises StoreUnavailable."""
        return self._episodes.store

    @property
    def tree(self) -> SnapshotTree:
        """The catalogue of the store's snapshots."""
        return self._episodes.tree

    # -- snapshots ------------------------------------------------------------------------

    def begin_snapshot(self, layers: Sequence[LayerState] | None = None) -> None:
        """Start the snapshot of this boundary in the background; the next step waits for it.

        Args:
            layers: Episode states of the wrappers, outermost first; None for the bare env.
        """
        episode = self._current("begin_snapshot()", ended=True)
        episode.begin_snapshot(
            layers=layers,
            rng={
                "seed": self.np_random_seed,
                "bit_generator": dict(self.np_random.bit_generator.state),
            },
            keep=self.config.keep_boundaries,
            env=self._recipe(),
        )

    def snapshot(self, layers: Sequence[LayerState] | None = None) -> str:
        """Take a snapshot of this boundary now and return its id; it stays until released.

        Raises:
            SnapshotIncomplete: It could not be taken; the message says why.
        """
        episode = self._current("snapshot()")
        episode.settle()
        self.begin_snapshot(layers)
        id = episode.settled_snapshot()
        self.tree.keep([id])
        episode.keep(id)
        return id

    def boundary(self) -> Boundary:
        """Return the newest boundary, waiting for its snapshot."""
        episode = self._current("boundary()", ended=True)
        episode.settle()
        return episode.boundaries[-1]

    @property
    def boundaries(self) -> tuple[Boundary, ...]:
        """Boundaries of this episode from its reset on, the newest last."""
        episode = self._current("boundaries", ended=True)
        episode.settle()
        return tuple(episode.boundaries)

    def keep_boundaries(self) -> tuple[str, ...]:
        """Hand this episode's boundary snapshots to the caller, who releases them."""
        episode = self._current("keep_boundaries()", ended=True)
        ids = tuple(b.snapshot for b in self.boundaries if b.snapshot is not None)
        self.tree.keep(ids)
        for id in ids:
            episode.keep(id)
        return ids

    def grade(self, snapshot: str | None = None) -> Verdict:
        """Judge a snapshot, or this boundary, in a fresh sandbox on a clone of its disk.

        The episode is not touched. May be called at any turn (dense rewards, feedback).
        """
        id = self.snapshot() if snapshot is None else snapshot
        try:
            kept = self.tree.get(id)
            task, base = self._episodes.task_of(kept)
            stage = task.stage(step_of(task, self.tree.transcript(kept))) if task.steps else task
            return grade(self.store, stage, FrozenDiskId(id), base)
        finally:
            if snapshot is None:
                self.tree.release(id)

    def finish(self, limit: str = "") -> Verdict:
        """End the episode here: take the last snapshot, judge it, give the sandbox back.

        ``step`` calls it when the agent submits or a limit of the task is reached; wrappers that
        limit an episode call it themselves.

        Args:
            limit: Which limit ended it. Steps of the task that were never begun then count 0.

        Raises:
            NotReset: There is no episode.
            EpisodeOver: It has ended.
        """
        episode = self._current("finish()")
        self.begin_snapshot()
        id = episode.settled_snapshot()
        alive = self.tree.get(id).processes
        try:
            self.store.renew(episode.disk)
            verdict = grade_end(
                self.store,
                episode.stage,
                FrozenDiskId(id),
                episode.base,
                episode.sandbox,
                had_processes=bool(alive),
                retries=self.config.verdict_retries,
            )
            return episode.total(verdict, limit)
        finally:
            episode.close_sandbox()

    def _close(self, episode: Episode, verdict: Verdict) -> Verdict:
        self.begin_snapshot()
        episode.close_sandbox()
        return verdict

    # -- inside ---------------------------------------------------------------------------

    def _current(self, asked: str, *, ended: bool = False) -> Episode:
        if self._episode is None:
            raise NotReset(asked)
        if self._episode.over and not ended:
            raise EpisodeOver(asked)
        return self._episode

    def _recipe(self) -> dict[str, Any]:
        kwargs = self.config.model_dump(mode="json", exclude_defaults=True)
        recipe: dict[str, Any] = {
            "id": self.spec.id if self.spec is not None else None,
            "kwargs": kwargs,
        }
        if self._episode is not None and self._episode.task.steps:
            recipe["steps"] = [v.model_dump(mode="json") for v in self._episode.verdicts]
        return recipe

    def _end_episode(self) -> None:
        # Taken out first: an env may be closed by another thread while a command runs.
        episode, self._episode = self._episode, None
        if episode is not None:
            episode.close()

    def _observation(self, episode: Episode) -> Observation:
        turn = episode.transcript.last_turn
        result = turn.result if turn is not None else None
        return Observation(
            output=result.output if result else "",
            exit_code=result.exit_code if result else 0,
            turn=episode.transcript.turn,
            cwd=episode.cwd,
            instruction=cut(episode.transcript.instruction, 1 << 20)[0],
        )

    def _info(self, episode: Episode) -> dict[str, Any]:
        turn = episode.transcript.last_turn
        result = turn.result if turn is not None else None
        return {
            "task": episode.task.name,
            "suite": self.config.suite,
            "turn": episode.transcript.turn,
            "step": episode.step,
            "timed_out": bool(result and result.timed_out),
            "dropped_bytes": result.dropped_bytes if result else 0,
            "shell_state_lost": bool(result and result.shell_state_lost),
        }
