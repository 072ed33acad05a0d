"""TRL's ``AsyncGRPOTrainer``: groups of attempts in sandboxes become its rollout samples.

Groups may have any size; the trainer folds rows that share a prefix into a tree and forwards
each shared token once. Advantages are ours: TRL takes them as they are.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from sprout_env.errors import ConfigError
from sprout_env.integrations import pins
from sprout_env.integrations.torch_sampler import TorchSampler
from sprout_env.records.advantages import Estimator, advantages
from sprout_env.records.groups import (
    PrefixLoss,
    StartingTurnLoss,
    group_of,
    review_leaks,
    token_row,
)
from sprout_env.records.reviews import Attempts

Collect = Callable[[int], Attempts]
"""Brings the attempts of one group, by its number; called in the worker's thread."""


def rollout_samples(
    collection: Attempts,
    group_id: int,
    *,
    estimator: Estimator = "grpo",
    prefix_loss: PrefixLoss = "once",
    starting_turn: StartingTurnLoss = "mask",
    model_version: int = 0,
) -> list[Any]:
    """Return one group as TRL's ``RolloutSample`` rows, review text in none of them.

    Raises:
        TrainerUnsupported: TRL is of a series that this was not written for.
        GroupWithoutReward: Nothing of the group was judged.
        ConfigError: Text of a review is in a row.
        TokensDiverge: A row is not what the model saw.
    """
    pins.check("trl")
    import numpy as np
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

    group = group_of(collection.attempts, prefix_loss=prefix_loss, starting_turn=starting_turn)
    leaks = review_leaks(group.rows, collection.reviews)
    if leaks:
        raise ConfigError(f"text of a review is in a row of task {group.task}: {leaks[0]}")
    worth = advantages(group, estimator)
    made = []
    for row in (token_row(row) for row in group.rows):
        if not any(row.loss_mask):
            continue
        sampled = [version for version in row.versions if version >= 0]
        made.append(
            RolloutSample(
                prompt=[{"role": "user", "content": collection.attempts[0].instruction}],
                completion=[],
                input_ids=np.asarray(row.token_ids, dtype=np.int64),
                completion_mask=np.asarray(row.loss_mask, dtype=np.int64),
                old_log_probs=np.asarray(row.logprobs, dtype=np.float32),
                advantage=worth[row.attempt],
                model_version=min(sampled, default=model_version),
                group_id=group_id,
                metrics={"reward": row.reward},
                enqueued_at=time.time(),
            )
        )
    return made


class SproutRolloutWorker:
    """Implements TRL's ``RolloutWorkerProtocol``: a thread that collects groups without end.

    Args:
        collect: Brings one group.
        ahead: Rows that may wait in the buffer: more would only grow stale.
        on_group: Told of each group, in the worker's thread.
        **options: Those of ``rollout_samples``.

    Raises:
        TrainerUnsupported: TRL is of a series that this was not written for.
    """

    def __init__(
        self,
        collect: Collect,
        *,
        ahead: int = 12,
        on_group: Callable[[Attempts], None] | None = None,
        **options: Any,
    ) -> None:
        pins.check("trl")
        self.rollout_buffer: queue.Queue[Any] = queue.Queue()
        self.metrics_queue: queue.Queue[Any] = queue.Queue()
        self.groups = 0
        """Groups collected so far."""
        self._collect, self._ahead, self._on_group = collect, ahead, on_group
        self._options = options
        self._version = 0
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._beat = time.monotonic()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to collect."""
        self._beat = time.monotonic()
        self._thread = threading.Thread(target=self._work, name="sprout-rollouts", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                if self.rollout_buffer.qsize() >= self._ahead:
                    self._beat = time.monotonic()
                    self._stop.wait(0.02)
                    continue
                collection = self._collect(self.groups)
                self._beat = time.monotonic()
                if self._on_group is not None:
                    self._on_group(collection)
                self.groups += 1
                if not collection.scorable:
                    # Nobody could judge it: no reward of 0, and no row.
                    continue
                for sample in rollout_samples(
                    collection, self.groups, model_version=self._version, **self._options
                ):
                    self.rollout_buffer.put(sample)
        except BaseException as error:
            self._error = error

    def stop(self) -> None:
        """Finish the group that runs, and end. Idempotent."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def update_model_version(self, model_version: int) -> None:
        """Take note of the weights that are live now."""
        self._version = model_version

    def check_health(self, stale_after_s: float = 300.0) -> None:
        """Raise what ended the thread, or a time-out; TRL would wait for ever otherwise."""
        if self._error is not None:
            raise RuntimeError("the rollout worker has failed") from self._error
        if time.monotonic() - self._beat > stale_after_s:
            raise TimeoutError(f"no group for {stale_after_s:g} s")


class LocalWeightTransfer:
    """Implements TRL's ``WeightTransferProtocol`` for a sampler in this process.

    Args:
        sampler: Its model is another object than the one that is trained.
    """

    def __init__(self, sampler: TorchSampler) -> None:
        self._sampler = sampler
        self.syncs = 0
        """How often weights were sent."""

    def init_weight_transfer(self) -> None:
        """Nothing to set up."""

    def pause(self) -> None:
        """Wait for the answer that is being sampled."""
        self._sampler.lock.acquire()

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        """Copy the weights in place."""
        import torch

        own = dict(self._sampler.model.named_parameters())
        with torch.no_grad():
            for name, tensor in iterator:
                own[name].copy_(tensor)
        self.syncs += 1
        self._sampler.version += 1

    def resume(self) -> None:
        """Let sampling go on."""
        self._sampler.lock.release()

    def destroy(self) -> None:
        """Nothing to give back."""
