"""The language of the memory double: a small, documented part of the shell.

Words with ``'...'``, ``"..."`` and backslash; ``$NAME``, ``${NAME}``, ``$?``; comments; ``;``,
newline, ``&&``, ``||``, ``&``; ``>``, ``>>``, ``2>``, ``2>>``, ``2>&1``, ``<`` (words beside them
may be attached). Nothing else: pipes, globs, substitutions, loops and functions are refused with
exit code 2, as a shell does with a syntax error. What the commands do is in ``run.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


class ShellSyntaxError(Exception):
    """Raised for what this language does not have."""


@dataclass(frozen=True)
class Redirection:
    """Where one stream goes or comes from."""

    operator: Literal[">", ">>", "2>", "2>>", "<", "2>&1"]
    target: str = ""
    """The raw word."""


@dataclass
class Simple:
    """One command: raw words, not yet expanded."""

    words: list[str] = field(default_factory=list)
    redirections: list[Redirection] = field(default_factory=list)
    joined: str = ";"
    """What stands before it: ``;``, ``&&`` or ``||``."""
    background: bool = False


_TOKEN = re.compile(
    r"(?P<space>[ \t]+|\\\n)|(?P<comment>#[^\n]*)"
    r"|(?P<redirect>2>&1|2>>|2>|>>|>|<(?!<))|(?P<operator>&&|\|\||;|\n|&)"
    r"|(?P<word>(?:'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.|\$\{\w+\}|[^\s'\"\\;&|<>()`*{}])+)",
    re.DOTALL,
)
_PIECE = re.compile(
    r"'(?P<single>[^']*)'|\"(?P<double>(?:\\.|[^\"\\])*)\"|\\(?P<escaped>.)"
    r"|(?P<variable>\$(?:\w+|\{\w+\}|\?))|(?P<plain>[^'\"\\$]+|\$)",
    re.DOTALL,
)
_VARIABLE = re.compile(r"\\([$`\"\\])|\$(?:(\w+)|\{(\w+)\}|(\?))")


def parse(script: str) -> list[Simple]:
    """Split a script into its commands.

    Raises:
        ShellSyntaxError: It uses what this language does not have.
    """
    commands: list[Simple] = []
    current = Simple()
    waiting: str | None = None
    position = 0
    while position < len(script):
        match = _TOKEN.match(script, position)
        if match is None:
            raise ShellSyntaxError(f"not understood here: {script[position : position + 20]!r}")
        position = match.end()
        if match["redirect"]:
            if match["redirect"] == "2>&1":
                current.redirections.append(Redirection("2>&1"))
            else:
                waiting = match["redirect"]
        elif match["word"]:
            _refuse_substitution(match["word"])
            if waiting is not None:
                current.redirections.append(Redirection(waiting, match["word"]))  # type: ignore[arg-type]
                waiting = None
            else:
                current.words.append(match["word"])
        elif operator := match["operator"]:
            if waiting is not None or (not current.words and operator not in ";\n"):
                raise ShellSyntaxError(f"nothing stands before {operator!r}")
            current.background = operator == "&"
            if current.words or current.redirections:
                commands.append(current)
                current = Simple(joined=operator if operator in ("&&", "||") else ";")
    if waiting is not None:
        raise ShellSyntaxError(f"nothing stands behind {waiting!r}")
    if current.words or current.redirections:
        commands.append(current)
    elif current.joined != ";":
        raise ShellSyntaxError(f"nothing stands behind {current.joined!r}")
    return commands


def expand(word: str, variables: Mapping[str, str]) -> str:
    """Return a word with its quotes removed and its variables replaced."""

    def piece(match: re.Match[str]) -> str:
        if match["single"] is not None:
            return match["single"]
        if match["double"] is not None:
            return _VARIABLE.sub(variable, match["double"])
        if match["escaped"]:
            return match["escaped"]
        return _VARIABLE.sub(variable, match["variable"] or match["plain"])

    def variable(match: re.Match[str]) -> str:
        name = match[2] or match[3] or match[4]
        return match[1] if name is None else variables.get(name, "")

    return _PIECE.sub(piece, word)


def _refuse_substitution(word: str) -> None:
    bare = re.sub(r"'[^']*'|\\.", "", word, flags=re.DOTALL)
    if "$(" in bare or "`" in bare:
        raise ShellSyntaxError("command substitution")
