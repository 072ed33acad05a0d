"""OpenEnv: our env as a server of sessions, and a client for it.

OpenEnv has no word for snapshots, and needs none: each observation carries the snapshot of its
turn, and ``reset(snapshot_id=...)`` of any session continues there. Each request has an id that
its answer repeats, and each step names the turn that it follows on, so that an answer which came
too late is never taken for another one and a repeated step is never run twice.
"""

from __future__ import annotations

import uuid
from typing import Any

from sprout_env.env import SproutEnv
from sprout_env.errors import ConfigError, EpisodeError, SnapshotError, StoreError
from sprout_env.integrations import pins
from sprout_env.transcript import Turn


def _models() -> tuple[Any, Any, Any]:
    pins.check("openenv")
    from openenv.core.env_server.types import Action, Observation, State
    from pydantic import Field

    class SproutAction(Action):  # type: ignore[misc]
        """A command; ``submit`` ends the episode."""

        command: str
        message: str = ""
        turn: int | None = None
        """The turn that it follows on; None: whatever the server has."""
        request_id: str = ""
        release: list[str] = Field(default_factory=list)
        """Snapshots to release before the command runs."""

    class SproutObservation(Observation):  # type: ignore[misc]
        """What a command did, and the snapshot to come back to."""

        output: str = ""
        exit_code: int = 0
        turn: int = 0
        cwd: str = ""
        instruction: str = ""
        snapshot_id: str | None = None
        request_id: str = ""
        verdict: dict[str, Any] | None = None
        lost_processes: list[str] = Field(default_factory=list)
        error: str = ""
        """Why nothing was run: the session stands where it stood."""

    class SproutState(State):  # type: ignore[misc]
        """Where a session stands."""

        task: str = ""
        turn: int = 0

    return SproutAction, SproutObservation, SproutState


def environment(**kwargs: Any) -> type[Any]:
    """Return an ``Environment`` class for OpenEnv's ``create_app``; each session has its own.

    Args:
        **kwargs: Arguments of ``SproutEnv``. Snapshots outlive their session and are released by
            an action's ``release``.

    Raises:
        TrainerUnsupported: OpenEnv is of a series that this was not written for.
    """
    _, observation, state_model = _models()
    from openenv.core.env_server.interfaces import Environment

    class SproutEnvironment(Environment):  # type: ignore[misc]
        """One session."""

        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self._env = SproutEnv(**{"keep_boundaries": True, **kwargs})
            self._episode = ""

        def reset(
            self,
            seed: int | None = None,
            episode_id: str | None = None,
            *,
            task: str | None = None,
            snapshot_id: str | None = None,
            request_id: str = "",
            **_: Any,
        ) -> Any:
            """Begin a task, or continue at a snapshot of any session."""
            options = {"snapshot": snapshot_id} if snapshot_id else {"task": task} if task else {}
            try:
                obs, info = self._env.reset(seed=None if snapshot_id else seed, options=options)
            except (SnapshotError, ConfigError) as error:
                return observation(request_id=request_id, error=str(error), done=True)
            self._episode = episode_id or uuid.uuid4().hex
            if not snapshot_id:
                self._env.begin_snapshot()
            return observation(
                **obs,
                snapshot_id=snapshot_id or self._env.boundary().snapshot,
                request_id=request_id,
                lost_processes=list(info["lost_processes"]),
            )

        def step(self, action: Any, timeout_s: float | None = None, **more: Any) -> Any:
            """Run one command; a step that follows on another turn than this one runs nothing."""
            try:
                here = self._env.transcript.turn
                if action.turn is not None and action.turn != here:
                    told = f"the step follows on turn {action.turn}, the session is at turn {here}"
                    return observation(request_id=action.request_id, turn=here, error=told)
                for id in action.release:
                    self._env.tree.release(id)
                turn = Turn(message=action.message, command=action.command)
                obs, _, terminated, truncated, info = self._env.step(turn)
            except (EpisodeError, SnapshotError, StoreError) as error:
                return observation(request_id=action.request_id, error=str(error))
            done = terminated or truncated
            if not done:
                self._env.begin_snapshot()
            verdict = info.get("verdict")
            return observation(
                **obs,
                done=done,
                # None where the verifier could not decide: never 0.
                reward=verdict["reward"] if verdict else None,
                verdict=verdict,
                snapshot_id=self._env.boundary().snapshot,
                request_id=action.request_id,
            )

        @property
        def state(self) -> Any:
            """Where the session stands."""
            try:
                task, turn = self._env.task.name, self._env.transcript.turn
            except EpisodeError:
                task, turn = "", 0
            return state_model(episode_id=self._episode, step_count=turn, task=task, turn=turn)

        def close(self) -> None:
            """End the session's sandbox; its snapshots stay until they are released."""
            self._env.close()

    return SproutEnvironment


def app(*, max_sessions: int = 8, ttl_s: float | None = 3600.0, **kwargs: Any) -> Any:
    """Return a FastAPI application that serves sessions, for uvicorn.

    A session ends with its client's connection, once its command has ended or timed out; its
    snapshots do not.

    Args:
        max_sessions: Most sessions at a time.
        ttl_s: Seconds after which a session that nobody used is ended, looked for each quarter of
            it and at most every 5 s; more than the longest command. None: never.
        **kwargs: Arguments of ``SproutEnv``.
    """
    action, observation, state = _models()
    from openenv.core.env_server.http_server import create_fastapi_app
    from openenv.core.env_server.types import ConcurrencyConfig

    return create_fastapi_app(
        environment(**kwargs),
        action,
        observation,
        concurrency_config=ConcurrencyConfig(
            max_concurrent_envs=max_sessions, session_timeout=ttl_s
        ),
        state_cls=state,
    )


def client(base_url: str, **options: Any) -> Any:
    """Return OpenEnv's client with our verbs: ``await env.begin(task=...)``, ``env.act(...)``.

    They fill in turn and request id; an answer with another id than the last
    request's raises ConfigError, and the session is to be closed.

    Args:
        base_url: Of the server.
        **options: Of OpenEnv's ``EnvClient``.
    """
    action, observation, state = _models()
    from openenv.core.client_types import StepResult
    from openenv.core.env_client import EnvClient

    class SproutClient(EnvClient):  # type: ignore[misc]
        """Talks to one session."""

        async def begin(self, **kwargs: Any) -> Any:
            """Reset the session: ``task=`` or ``snapshot_id=``."""
            request = uuid.uuid4().hex
            result = await self.reset(request_id=request, **kwargs)
            return self._answered(result, request)

        async def act(self, command: str, message: str = "", release: Any = ()) -> Any:
            """Run one command after the last turn that was seen."""
            request = uuid.uuid4().hex
            told = action(
                command=command,
                message=message,
                turn=self.__dict__["turn"],
                request_id=request,
                release=list(release),
            )
            return self._answered(await self.step(told), request)

        def _answered(self, result: Any, request: str) -> Any:
            if result.observation.request_id != request:
                raise ConfigError("the answer is of another request: it came too late")
            if result.observation.error:
                raise ConfigError(result.observation.error)
            self.__dict__["turn"] = result.observation.turn
            return result

        def _step_payload(self, told: Any) -> dict[str, Any]:
            payload: dict[str, Any] = told.model_dump()
            return payload

        def _parse_result(self, payload: dict[str, Any]) -> Any:
            told = {**payload["observation"]}
            seen = observation(
                **{**told, "done": payload.get("done", False), "reward": payload.get("reward")}
            )
            return StepResult(observation=seen, reward=seen.reward, done=seen.done)

        def _parse_state(self, payload: dict[str, Any]) -> Any:
            return state(**payload)

    return SproutClient(base_url=base_url, **options)
