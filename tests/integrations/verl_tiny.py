"""A rollout named ``tiny`` for verl's trainer: one server, which its worker sends the weights to.

verl takes it by ``actor_rollout_ref.model.external_lib``.
"""

from __future__ import annotations

import importlib
from typing import Any

import ray
from verl.workers.rollout import base, replica

# By its short name: some package of verl's brings a ``tests`` of its own.
TinyServer: Any = importlib.import_module("tiny_server").TinyServer


class TinyReplica(replica.RolloutReplica):  # type: ignore[misc]
    """One server, as an actor of Ray."""

    async def launch_servers(self) -> None:
        name = f"tiny-{self.replica_rank}"
        handle = ray.remote(TinyServer).options(name=name).remote(self.model_config.path)
        self.servers, self._server_handle, self._server_address = [handle], handle, name


class TinyRollout(base.BaseRollout):  # type: ignore[misc]
    """What the trainer's worker asks of its rollout: to send the weights on."""

    async def resume(self, tags: list[str]) -> None: ...

    async def release(self) -> None: ...

    async def update_weights(self, weights: Any, **told: Any) -> None:
        state = {name: tensor.detach().clone() for name, tensor in weights}
        await ray.get_actor("tiny-0").load.remote(state, told["global_steps"])


replica.RolloutReplicaRegistry.register("tiny", lambda: TinyReplica)
base._ROLLOUT_REGISTRY["tiny", "async"] = f"{__name__}.TinyRollout"
