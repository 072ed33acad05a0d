"""Which files of a build context count: ``.dockerignore`` and Go's patterns."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from sprout_env.errors import ImageError


def context_files(context: Path, dockerfile: str = "Dockerfile") -> tuple[str, ...]:
    """Return the paths of a context, relative and sorted, without what .dockerignore excludes.

    Folders are listed too. Links are listed and never followed.

    Raises:
        ImageError: The context is not a folder.
    """
    if not context.is_dir():
        raise ImageError(context, "the build context is not a folder")
    rules = _rules(context, dockerfile)
    keeps = any(keep for keep, _ in rules)
    found: list[str] = []
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        with os.scandir(context / folder) as entries:
            for entry in entries:
                name = f"{folder}/{entry.name}" if folder else entry.name
                ignored = is_ignored(name, rules)
                if not ignored:
                    found.append(name)
                if entry.is_dir(follow_symlinks=False) and (not ignored or keeps):
                    waiting.append(name)
    return tuple(sorted(found))


def is_ignored(name: str, rules: Sequence[tuple[bool, re.Pattern[str]]]) -> bool:
    """Whether the last rule that fits ``name`` or a folder above it excludes it."""
    ignored = False
    for keep, pattern in rules:
        if ignored == keep and pattern.fullmatch(name):
            ignored = not keep
    return ignored


def read_rules(text: str) -> list[tuple[bool, re.Pattern[str]]]:
    """Parse a .dockerignore into (keep, pattern) in order."""
    rules = []
    for raw in text.removeprefix("\ufeff").splitlines():
        line = raw.strip()
        if not line or raw.startswith("#"):
            continue
        keep = line.startswith("!")
        line = line.removeprefix("!").strip()
        cleaned = os.path.normpath(line).lstrip("/") if line else ""
        if cleaned in ("", "."):
            continue
        rules.append((keep, re.compile(f"{go_pattern(cleaned, stars=True)}(/.*)?", re.DOTALL)))
    return rules


def go_pattern(pattern: str, *, stars: bool = False) -> str:
    """Translate Go's ``filepath.Match`` syntax to a regular expression.

    Args:
        pattern: The pattern.
        stars: Whether ``**`` crosses folders, as in .dockerignore.
    """
    out, n = "", 0
    while n < len(pattern):
        char = pattern[n]
        n += 1
        if char == "*" and stars and pattern[n : n + 1] == "*":
            n += 1
            if pattern[n : n + 1] == "/":
                n += 1
                out += "(?:.*/)?"
            else:
                out += ".*"
        elif char == "*":
            out += "[^/]*"
        elif char == "?":
            out += "[^/]"
        elif char == "[" and (end := pattern.find("]", n + 1)) > 0:
            body = pattern[n:end].replace("\\", "\\\\")
            out += f"[{body}]"
            n = end + 1
        elif char == "\\" and n < len(pattern):
            out += re.escape(pattern[n])
            n += 1
        else:
            out += re.escape(char)
    return out


def _rules(context: Path, dockerfile: str) -> list[tuple[bool, re.Pattern[str]]]:
    for name in (f"{dockerfile}.dockerignore", ".dockerignore"):
        path = context / name
        if path.is_file():
            return read_rules(path.read_text(encoding="utf-8", errors="surrogateescape"))
    return []
