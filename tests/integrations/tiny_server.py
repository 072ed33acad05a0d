"""verl's model server, answered by a tiny model: in the worker's own process, or as an actor."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any


class TinyServer:
    """What verl's agent loops ask of ``LLMServerClient``; travels as a folder's name."""

    def __init__(self, folder: str, version: int = 5) -> None:
        self._folder, self._version = folder, version
        self._sampler: Any = None
        self._asked: Counter[tuple[int, ...]] = Counter()

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        assert sampling_params["logprobs"]
        # The n-th answer to a prompt is the same in each run, whoever asks at the same time.
        self._asked[tuple(prompt_ids)] += 1
        told = await asyncio.to_thread(
            self._model().sample,
            prompt_ids,
            seed=self._asked[tuple(prompt_ids)],
            max_tokens=sampling_params["max_tokens"],
        )
        return TokenOutput(
            token_ids=list(told.token_ids),
            log_probs=list(told.logprobs),
            stop_reason=told.finish_reason,
            extra_fields={"global_steps": self._version},
        )

    def _model(self) -> Any:
        if self._sampler is None:
            import torch
            from transformers import AutoModelForCausalLM, AutoTokenizer

            from sprout_env.integrations.torch_sampler import TorchSampler

            torch.set_num_threads(1)
            tokenizer = AutoTokenizer.from_pretrained(self._folder)
            self._sampler = TorchSampler(
                AutoModelForCausalLM.from_pretrained(self._folder),
                end=tokenizer.eos_token_id,
                pad=tokenizer.pad_token_id,
            )
        return self._sampler

    async def load(self, weights: dict[str, Any], version: int) -> None:
        """Take the trainer's weights."""
        sampler = self._model()
        with sampler.lock:
            missing, unknown = sampler.model.load_state_dict(weights, strict=False)
        assert not unknown
        assert set(missing) <= {"lm_head.weight"}
        self._version = version

    async def sleep(self) -> None: ...

    async def wake_up(self) -> None: ...
