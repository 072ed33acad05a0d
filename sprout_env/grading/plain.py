"""Text out of sandboxes made harmless to look at: no colours, no control characters, no end."""

from __future__ import annotations

import re

from sprout_env.transcript import whole

_ANSI = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|$)|[ -/]*[0-~])"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
# They turn the direction of what follows: a command would read as another one.
_TURNING = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def _visible(found: re.Match[str]) -> str:
    return f"\\x{ord(found[0]):02x}"


def plain(text: str) -> str:
    """Return text without terminal sequences, other control characters made visible."""
    text = _ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    text = _CONTROL.sub(_visible, text)
    text = _TURNING.sub(lambda found: f"<U+{ord(found[0]):04X}>", text)
    return whole(text)


def shorten(text: str, limit: int) -> str:
    """Return head and tail of text that is longer than ``limit`` characters, and say so."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"
