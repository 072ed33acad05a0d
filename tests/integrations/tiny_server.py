"""verl's client of its model servers, answered by a tiny model in the worker's own process."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any


class TinyServer:
    """What verl's agent loops ask of ``LLMServerClient``; travels as a folder's name."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._sampler: Any = None
        self._numbers = itertools.count()

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        assert sampling_params["logprobs"]
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
        told = await asyncio.to_thread(
            self._sampler.sample,
            prompt_ids,
            seed=next(self._numbers),
            max_tokens=sampling_params["max_tokens"],
        )
        return TokenOutput(
            token_ids=list(told.token_ids),
            log_probs=list(told.logprobs),
            stop_reason=told.finish_reason,
            extra_fields={"global_steps": 5},
        )
