"""A server that plays the log task as a model would: wrong by itself, right once it was shown."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.actors.chat_server import completion
from tests.integrations import tiny


def answer(body: dict[str, Any], number: int) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Answer as actor, analyst or reviewer, by what the messages say."""
    messages = body["messages"]
    if body.get("tools"):
        done = [m["tool_calls"][0]["function"]["arguments"] for m in messages if "tool_calls" in m]
        # Turn 1 is always right; later it repeats what it did last, and by itself that is wrong.
        command = json.loads(done[-1])["command"] if done else tiny.A
        return 200, completion(f"turn {len(done) + 1}", command=command), {}
    text = messages[-1]["content"]
    if "<branches>" not in text:
        return 200, completion("turn 2 wrote the wrong line"), {}
    failed = re.findall(r'<attempt id="([^"]+)"', text)
    plans = [
        {
            "attempt": id,
            "boundary": 1,
            "why": "turn 2 wrote the wrong line",
            "starting_turn": {"message": "b now", "command": tiny.B},
        }
        for id in failed
    ]
    return 200, completion(json.dumps({"plans": plans})), {}
