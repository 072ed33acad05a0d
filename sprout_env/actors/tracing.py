"""What an answer tells of its tokens: bills always, ids and log-probabilities where given."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sprout_env.transcript import TokenTrace


def text_and_calls(response: Any) -> tuple[str, list[Mapping[str, Any]]]:
    """Return the content of the first choice and the function part of its tool calls."""
    if not response.choices:
        return "", []
    message = response.choices[0].message
    calls: list[Mapping[str, Any]] = []
    for call in message.tool_calls or ():
        function = getattr(call, "function", None)
        if function is not None:
            calls.append({"name": function.name, "arguments": function.arguments})
    return message.content or "", calls


def _extra(model: Any, name: str) -> Any:
    """Return a field that the protocol does not name and some servers send."""
    return (getattr(model, "model_extra", None) or {}).get(name)


def _ids(value: Any) -> tuple[int, ...]:
    if isinstance(value, list) and all(isinstance(item, int) for item in value):
        return tuple(value)
    return ()


def _entropy(alternatives: Any) -> float | None:
    """Estimate the entropy in nats at one position; the mass not listed counts as one more."""
    chances = [math.exp(item.logprob) for item in alternatives or ()]
    if not chances:
        return None
    rest = max(0.0, 1.0 - sum(chances))
    return -sum(p * math.log(p) for p in (*chances, rest) if p > 0)


def trace_of(response: Any) -> TokenTrace:
    """Return what a chat completion tells of its tokens.

    Ids come from vLLM's ``token_ids`` and ``prompt_token_ids``, or from the ``id`` that llama.cpp
    puts beside each log-probability.
    """
    choice = response.choices[0] if response.choices else None
    tool_calls = (choice.message.tool_calls if choice is not None else None) or ()
    usage = response.usage
    details = getattr(usage, "prompt_tokens_details", None)
    token_ids = _ids(_extra(choice, "token_ids"))
    listed = choice.logprobs.content if choice is not None and choice.logprobs else None
    logprobs: tuple[float, ...] = ()
    entropies: tuple[float, ...] = ()
    if listed:
        logprobs = tuple(float(item.logprob) for item in listed)
        estimates = [_entropy(item.top_logprobs) for item in listed]
        if all(value is not None for value in estimates):
            entropies = tuple(value for value in estimates if value is not None)
        # Those that end in the middle of a character, or in a stop word, are not listed: not all
        # that was sampled is as good as nothing.
        if not token_ids and (usage is None or usage.completion_tokens == len(listed)):
            token_ids = _ids([_extra(item, "id") for item in listed])
    if token_ids and logprobs and len(token_ids) != len(logprobs):
        logprobs = ()
    return TokenTrace(
        prompt_ids=_ids(_extra(response, "prompt_token_ids"))
        or _ids(_extra(choice, "prompt_token_ids")),
        token_ids=token_ids,
        logprobs=logprobs,
        entropies=entropies,
        model=response.model or "",
        prompt_tokens=(usage.prompt_tokens or 0) if usage else 0,
        cached_tokens=(getattr(details, "cached_tokens", None) or 0) if details else 0,
        completion_tokens=(usage.completion_tokens or 0) if usage else 0,
        finish_reason=(choice.finish_reason or "") if choice is not None else "",
        call_id=(tool_calls[0].id or "") if tool_calls else "",
    )


def merge_traces(first: TokenTrace, second: TokenTrace) -> TokenTrace:
    """Return the bill of both; no ids, since the second was not sampled under the transcript."""
    return TokenTrace(
        model=second.model,
        prompt_tokens=first.prompt_tokens + second.prompt_tokens,
        cached_tokens=first.cached_tokens + second.cached_tokens,
        completion_tokens=first.completion_tokens + second.completion_tokens,
        finish_reason=second.finish_reason,
        call_id=second.call_id,
        requests=first.requests + second.requests,
    )
