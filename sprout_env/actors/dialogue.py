"""A transcript as chat messages, and an answer as a turn.

Each entry's messages follow from the entry alone, so the messages of turn n are a prefix of those
of turn n + 1, also after a restore and under another actor: a server's prefix cache keeps hitting.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, NamedTuple

from sprout_env.transcript import Notice, Result, Transcript

BASH_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run one shell command in the sandbox; `submit` alone ends the task.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "The command."}},
            "required": ["command"],
        },
    },
}
"""The one tool."""

NO_COMMAND = "echo 'no command was found in your answer; give exactly one' >&2; false"
"""What is run in place of an answer without a command, so that the model is told by its result."""

_BLOCK = re.compile(r"```(?:bash|sh|shell)[ \t]*\n(.*?)\n?[ \t]*```", re.DOTALL)


class Answer(NamedTuple):
    """What one answer of a model says."""

    message: str
    command: str | None
    problem: str
    """Why there is no command; empty otherwise."""


def system_prompt() -> str:
    """Return the text that every episode begins with."""
    return files("sprout_env.actors").joinpath("prompts/system.md").read_text(encoding="utf-8")


def last_block(text: str) -> str | None:
    """Return the command of the last fenced bash block of a text."""
    blocks = _BLOCK.findall(text)
    return blocks[-1].strip() if blocks else None


def show_result(result: Result | None) -> str:
    """Return a command's result as the model sees it."""
    if result is None:
        return "[no result]"
    notes = [f"exit code {result.exit_code}"]
    if result.timed_out:
        notes.append("timed out, killed")
    if result.shell_state_lost:
        notes.append("directory and variables are as before")
    output = (
        result.output if result.output.endswith("\n") or not result.output else f"{result.output}\n"
    )
    return f"{output}[{'; '.join(notes)}]"


def chat_messages(transcript: Transcript, *, tools: bool) -> list[dict[str, Any]]:
    """Return the messages of a transcript, in the form that OpenAI-compatible servers take.

    Args:
        transcript: The context.
        tools: Show commands as calls of the bash tool; a turn whose message holds its command in
            a fenced block was given in text and is shown as text all the same.
    """
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": system_prompt()},
        {"role": "user", "content": transcript.instruction},
    ]
    for entry in transcript.entries:
        if isinstance(entry, Notice):
            messages.append({"role": "user", "content": entry.text})
            continue
        shown = show_result(entry.result)
        in_text = last_block(entry.message) == entry.command.strip()
        if tools and not in_text:
            call = {
                "id": (entry.trace.call_id if entry.trace else "") or f"call_{entry.id}",
                "type": "function",
                "function": {
                    "name": "bash",
                    "arguments": json.dumps({"command": entry.command}, ensure_ascii=False),
                },
            }
            messages.append({"role": "assistant", "content": entry.message, "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": shown})
        else:
            text = entry.message
            if not in_text:
                text = f"{text}\n\n```bash\n{entry.command}\n```".lstrip()
            messages.append({"role": "assistant", "content": text})
            messages.append({"role": "user", "content": shown})
    return messages


def read_answer(text: str, calls: list[Mapping[str, Any]]) -> Answer:
    """Return what an answer says: the first tool call, else the last fenced block.

    Args:
        text: The answer's content.
        calls: The ``function`` part of each tool call.
    """
    if calls:
        name, arguments = calls[0].get("name"), calls[0].get("arguments") or ""
        if name != "bash":
            return Answer(text, None, f"there is no tool {name!r}, only `bash`")
        try:
            parsed = json.loads(arguments)
            command = parsed["command"]
        except (ValueError, KeyError, TypeError):
            return Answer(text, None, "the arguments of `bash` are no JSON object with `command`")
        if not isinstance(command, str) or not command.strip():
            return Answer(text, None, "the command is empty")
        return Answer(text, command, "")
    block = last_block(text)
    if block:
        return Answer(text, block, "")
    return Answer(text, None, "it holds neither a call of `bash` nor a fenced ```bash block")
