"""A model server that plays a script, with the ids of a byte-level ChatML that it really reads."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

_NUMBERS = itertools.count()

Said = tuple[str, list[str]]
"""An answer: its text, and the commands of its tool calls."""


def render(message: dict[str, Any]) -> str:
    calls = "".join(
        f"<tool_call>{call['function']['name']} {call['function']['arguments']}</tool_call>"
        for call in message.get("tool_calls") or ()
    )
    return f"{message.get('content') or ''}{calls}<|im_end|>"


def prompt_ids(messages: list[dict[str, Any]]) -> list[int]:
    text = "".join(f"<|im_start|>{m['role']}\n{render(m)}\n" for m in messages)
    return list(f"{text}<|im_start|>assistant\n".encode())


def player(play: Callable[[int], Said]) -> Any:
    """Return a script for ``chat_server.serve``: answer n of a conversation is ``play(n)``."""

    def answer(body: dict[str, Any], number: int) -> tuple[int, dict[str, Any], dict[str, str]]:
        messages = body["messages"]
        text, commands = play(sum(m["role"] == "assistant" for m in messages))
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if commands:
            message["tool_calls"] = [
                {
                    "id": f"call-{next(_NUMBERS)}",
                    "type": "function",
                    "function": {"name": "bash", "arguments": json.dumps({"command": command})},
                }
                for command in commands
            ]
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": "stop"}
        read, ids = prompt_ids(messages), list(render(message).encode())
        said = {
            "id": f"chat-{number}",
            "object": "chat.completion",
            "created": 1,
            "model": body["model"],
            "choices": [choice],
            "usage": {
                "prompt_tokens": len(read),
                "completion_tokens": len(ids),
                "total_tokens": len(read) + len(ids),
            },
        }
        if body.get("return_token_ids"):
            said["prompt_token_ids"], choice["token_ids"] = read, ids
        if body.get("logprobs"):
            told = [{"token": chr(id), "logprob": -id / 256, "top_logprobs": []} for id in ids]
            choice["logprobs"] = {"content": told}
        return 200, said, {}

    return answer
