"""verl's V1 trainer: an agent loop that brings whole groups, each attempt as a session of its own.

verl needs ``AgentLoopManager`` as its ``rollout.agent.agent_loop_manager_class``, and an
entry of ``rollout.agent.agent_loop_config_path`` whose ``_target_`` is ``agent_loop``.
``rollout.n`` is the size of a group; where the verifier judged fewer, the group is smaller, and
one in which nothing was judged is dropped by verl as failed.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from sprout_env.actors.load import load_actor
from sprout_env.errors import ActorError
from sprout_env.integrations import pins
from sprout_env.integrations.chatml import ChatML
from sprout_env.integrations.exports import verl_rows
from sprout_env.integrations.groups import TrainingGroup
from sprout_env.integrations.tokens import Sampled, TokenActor, publish, withdraw
from sprout_env.search.runs import RunConfig, run


class ServerSampler:
    """verl's client of its model servers as a sampler, one per attempt.

    Args:
        client: ``LLMServerClient``, or whatever has its ``generate``.
        loop: Where the client lives.
        params: verl's sampling parameters.
    """

    def __init__(
        self, client: Any, loop: asyncio.AbstractEventLoop, params: Mapping[str, Any]
    ) -> None:
        self._client, self._loop, self._params = client, loop, dict(params)
        # The same id for all turns: verl sends them to one server, whose prefix cache then hits.
        self._request = uuid.uuid4().hex

    def sample(self, prompt_ids: Sequence[int], *, seed: int, max_tokens: int) -> Sampled:
        """Continue ids; verl's servers draw by themselves, so ``seed`` has no effect.

        Raises:
            ActorError: The server gave no log-probabilities.
        """
        asked = self._client.generate(
            request_id=self._request,
            prompt_ids=list(prompt_ids),
            sampling_params={**self._params, "max_tokens": max_tokens},
        )
        told = asyncio.run_coroutine_threadsafe(asked, self._loop).result()
        if told.log_probs is None or len(told.log_probs) != len(told.token_ids):
            raise ActorError("no log-probabilities: set rollout.calculate_log_probs=true")
        version = told.extra_fields.get("global_steps")
        return Sampled(
            tuple(told.token_ids), tuple(told.log_probs), version or 0, told.stop_reason or "stop"
        )


@cache
def _loop_class() -> type[Any]:
    pins.check("verl")
    from verl.experimental.agent_loop import AgentLoopBase, AgentLoopOutput

    class SproutAgentLoop(AgentLoopBase):  # type: ignore[misc]
        """Collects one group per prompt."""

        def __init__(self, *args: Any, sprout: Mapping[str, Any], **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._sprout = dict(sprout)

        def _collect(
            self,
            name: str,
            loop: asyncio.AbstractEventLoop,
            params: Mapping[str, Any],
            row: Mapping[str, Any],
        ) -> Any:
            told = dict(self._sprout)
            size = int(row.get("sprout_size") or self.rollout_config.n)
            roots, branches = told.pop("roots", max(1, size // 2)), told.pop("branches", 2)
            if row.get("sprout_plain"):
                roots = size
            method = TrainingGroup(size=size, roots=roots, branches=branches)
            max_tokens = told.pop("max_tokens", 512)
            reviewer = told.pop("reviewer", None)
            workers = told.pop("workers", 2)
            dialect = ChatML(self.tokenizer)
            spec = publish(
                name,
                lambda seed: TokenActor(
                    name,
                    ServerSampler(self.server_manager, loop, params),
                    dialect,
                    seed=seed,
                    max_tokens=max_tokens,
                    reviewer=load_actor(reviewer) if reviewer else None,
                ),
            )
            try:
                config = RunConfig.make(
                    actor=spec, method=method.spec(), tasks=(str(row["task"]),), **told
                )
                return run(config, workers=workers).collections[0]
            finally:
                withdraw(name)

        async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[Any]:
            """Return the outputs of a group; the row's column ``task`` is a slug."""
            uid = str(row.get("uid") or uuid.uuid4().hex)
            loop = asyncio.get_running_loop()
            collection = await asyncio.to_thread(
                self._collect, f"verl-{uid}", loop, sampling_params, row
            )
            most = self.rollout_config.response_length
            return [
                AgentLoopOutput(**told)
                for _, told in verl_rows(collection, uid, response_length=most)
            ]

    return SproutAgentLoop


def agent_loop(**kwargs: Any) -> Any:
    """Return the agent loop; verl fills in all but ``sprout``.

    Args:
        **kwargs: Of ``AgentLoopBase``, and ``sprout``: ``suite``, ``tasks_path``, ``store``,
            ``limits`` and other fields of ``RunConfig``; ``roots``, ``branches``, ``max_tokens``
            (of one answer), ``workers`` (attempts at a time), ``reviewer`` (an actor's spec).

    Raises:
        TrainerUnsupported: verl is of a series that this was not written for.
    """
    return _loop_class()(**kwargs)


@cache
def _manager_class() -> type[Any]:
    pins.check("verl")
    import ray
    from verl.trainer.ppo.v1 import AgentLoopManagerTQ, AgentLoopWorkerTQ

    worker: type[Any] = AgentLoopWorkerTQ.__ray_metadata__.modified_class

    class SproutAgentLoopWorker(worker):  # type: ignore[misc]
        """Runs the loop once per prompt and hands each of its outputs over as a session."""

        async def _run_prompt(self, prompt: dict[str, Any], *args: Any, **kwargs: Any) -> None:
            plain = bool(kwargs["trajectory"]["validate"])
            config = self.config.actor_rollout_ref.rollout
            size = prompt.get("__rollout_n__") or (config.val_kwargs.n if plain else config.n)
            told = {**prompt, "__rollout_n__": 1, "sprout_size": size, "sprout_plain": plain}
            await super()._run_prompt(told, *args, **kwargs)

        async def _agent_loop_postprocess(
            self, output: list[Any], validate: bool, **kwargs: Any
        ) -> None:
            # verl gives all outputs of one session the reward of the last.
            for session, one in enumerate(output):
                told = {**kwargs, "session_id": session}
                await super()._agent_loop_postprocess([one], validate, **told)

    class SproutAgentLoopManager(AgentLoopManagerTQ):  # type: ignore[misc]
        """verl's manager over our workers."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.agent_loop_workers_class = ray.remote(SproutAgentLoopWorker)

    return SproutAgentLoopManager


def __getattr__(name: str) -> Any:
    if name == "AgentLoopManager":
        return _manager_class()
    raise AttributeError(name)
