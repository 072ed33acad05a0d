"""Dockerfiles as data: instructions, flags, heredocs, stages; variables are substituted later.

What we would not do as Docker does it is refused by name, never skipped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from sprout_env.errors import ImageError

KNOWN = frozenset(
    "FROM RUN COPY ADD ARG ENV WORKDIR USER SHELL ENTRYPOINT CMD LABEL EXPOSE VOLUME HEALTHCHECK "
    "STOPSIGNAL MAINTAINER".split()
)
_DIRECTIVE = re.compile(r"#\s*(syntax|escape|check)\s*=\s*(\S+)\s*", re.IGNORECASE)
_HEREDOC = re.compile(r"<<(-?)\s*(?:'([^'\s]+)'|\"([^\"\s]+)\"|([A-Za-z0-9_.]+))")
_FLAG = re.compile(r"--([a-z]+(?:-[a-z]+)*)(?:=((?:\"[^\"]*\"|\S)*))?(?:\s+|$)")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]")


@dataclass(frozen=True)
class Heredoc:
    """One ``<<NAME`` with its body."""

    name: str
    body: str
    expand: bool
    """Whether variables in the body are substituted (in COPY and ADD): its name is unquoted."""


@dataclass(frozen=True)
class Instruction:
    """One instruction as written, continuation lines joined."""

    name: str
    rest: str
    """What follows the flags."""
    line: int
    flags: Mapping[str, str] = field(default_factory=dict)
    heredocs: tuple[Heredoc, ...] = ()
    script: str = ""
    """``rest`` with its heredocs, as a shell takes it."""

    @property
    def text(self) -> str:
        """The instruction as a person reads it."""
        flags = "".join(f"--{key}={value} " for key, value in self.flags.items())
        return f"{self.name} {flags}{self.rest}"


@dataclass(frozen=True)
class Stage:
    """One FROM with what follows it."""

    image: str
    """As written: variables of earlier ARGs not yet substituted."""
    name: str
    line: int
    platform: str
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True)
class Dockerfile:
    """A parsed Dockerfile."""

    arguments: tuple[Instruction, ...]
    """ARGs before the first FROM, known only to FROMs."""
    stages: tuple[Stage, ...]
    escape: str = "\\"

    @property
    def has_heredocs(self) -> bool:
        """Whether a builder must know heredocs."""
        return any(one.heredocs for stage in self.stages for one in stage.instructions)


def parse(text: str, label: object) -> Dockerfile:
    """Parse a Dockerfile.

    Args:
        text: Its text.
        label: What errors call it.

    Raises:
        ImageError: A line cannot be read, or an instruction is unknown or refused.
    """
    escape, instructions = _instructions(text.removeprefix("\ufeff"), label)
    arguments: list[Instruction] = []
    stages: list[tuple[Instruction, list[Instruction]]] = []
    for one in instructions:
        if one.name == "FROM":
            stages.append((one, []))
        elif stages:
            stages[-1][1].append(one)
        elif one.name == "ARG":
            arguments.append(one)
        else:
            raise ImageError(label, f"line {one.line}: {one.name} stands before the first FROM")
    if not stages:
        raise ImageError(label, "has no FROM")
    return Dockerfile(
        tuple(arguments), tuple(_stage(one, body, label) for one, body in stages), escape
    )


def _stage(one: Instruction, body: list[Instruction], label: object) -> Stage:
    words = one.rest.split()
    if len(words) == 3 and words[1].upper() == "AS":
        return Stage(words[0], words[2].lower(), one.line, one.flags.get("platform", ""), (*body,))
    if len(words) == 1:
        return Stage(words[0], "", one.line, one.flags.get("platform", ""), tuple(body))
    raise ImageError(label, f"line {one.line}: cannot read {one.text!r}")


def _instructions(text: str, label: object) -> tuple[str, list[Instruction]]:
    lines = text.splitlines()
    escape, start = _directives(lines)
    found: list[Instruction] = []
    number = start
    while number < len(lines):
        if not lines[number].strip() or lines[number].lstrip().startswith("#"):
            number += 1
            continue
        first = number + 1
        joined, number = _joined(lines, number, escape)
        one, number = _instruction(joined.strip(), first, lines, number, label)
        found.append(one)
    return escape, found


def _joined(lines: list[str], number: int, escape: str) -> tuple[str, int]:
    """Join a line with those that continue it; comments and empty lines between are left out."""
    joined = ""
    first = number
    while number < len(lines):
        line = lines[number]
        number += 1
        if number - 1 > first and (not line.strip() or line.lstrip().startswith("#")):
            continue
        kept = line.rstrip()
        if not kept.endswith(escape) or kept.endswith(escape * 2):
            return joined + line, number
        joined += kept[:-1]
    return joined, number


def _directives(lines: list[str]) -> tuple[str, int]:
    escape, number = "\\", 0
    for line in lines:
        match = _DIRECTIVE.fullmatch(line.strip())
        if match is None:
            break
        if match[1].lower() == "escape":
            escape = match[2]
        number += 1
    return escape, number


def _instruction(
    text: str, line: int, lines: list[str], number: int, label: object
) -> tuple[Instruction, int]:
    word, _, rest = text.partition(" ") if " " in text else text.partition("\t")
    name, rest = word.upper(), rest.strip()
    if name == "ONBUILD":
        raise ImageError(label, f"line {line}: ONBUILD is not supported")
    if name not in KNOWN:
        raise ImageError(label, f"line {line}: unknown instruction {word}")
    flags: dict[str, str] = {}
    while name in ("FROM", "RUN", "COPY", "ADD", "HEALTHCHECK") and rest.startswith("--"):
        match = _FLAG.match(rest)
        if match is None:
            raise ImageError(label, f"line {line}: cannot read the flags of {text!r}")
        if match[1] in flags:
            raise ImageError(label, f"line {line}: --{match[1]} given twice is not supported")
        flags[match[1]] = (match[2] or "").strip('"')
        rest = rest[match.end() :]
    if not rest:
        raise ImageError(label, f"line {line}: {name} without arguments")
    heredocs: list[Heredoc] = []
    script = rest
    if name in ("RUN", "COPY", "ADD") and not rest.startswith("["):
        for match in _HEREDOC.finditer(rest):
            if match.start() and rest[match.start() - 1] == "<":
                continue  # <<<word is a shell's here-string
            quoted = match[2] or match[3]
            end, body = quoted or match[4], ""
            while True:
                if number >= len(lines):
                    raise ImageError(label, f"line {line}: heredoc {end} has no end")
                raw = lines[number]
                number += 1
                plain = raw.lstrip("\t") if match[1] else raw
                if plain == end:
                    break
                body += plain + "\n"
            heredocs.append(Heredoc(end, body, quoted is None))
            script += f"\n{body}{end}"
    return Instruction(name, rest, line, flags, tuple(heredocs), script), number


def json_form(rest: str) -> tuple[str, ...] | None:
    """Return the words of an exec form, or None if it is a shell form."""
    if not rest.startswith("["):
        return None
    try:
        words = json.loads(rest)
    except ValueError:
        return None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return None
    return tuple(words)


def words(rest: str, escape: str = "\\") -> list[str]:
    """Split at blanks outside quotes; quotes and escapes stay for ``substitute``."""
    found: list[str] = []
    current, quote, n = "", "", 0
    while n < len(rest):
        char = rest[n]
        if char == escape and quote != "'" and n + 1 < len(rest):
            current += rest[n : n + 2]
            n += 2
            continue
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char.isspace():
            if current:
                found.append(current)
            current = ""
            n += 1
            continue
        current += char
        n += 1
    return [*found, current] if current else found


def pairs(one: Instruction, label: object, escape: str = "\\") -> list[tuple[str, str]]:
    """Return the raw keys and values of ENV and LABEL, also of the old form ``ENV key value``.

    Raises:
        ImageError: It has neither form.
    """
    split = words(one.rest, escape)
    if "=" not in split[0]:
        key, _, value = one.rest.partition(" ")
        if not value.strip():
            raise ImageError(label, f"line {one.line}: {one.name} {key} has no value")
        return [(key, value.strip())]
    found = []
    for word in split:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise ImageError(label, f"line {one.line}: cannot read {word!r} as key=value")
        found.append((key, value))
    return found


def substitute(
    text: str, variables: Mapping[str, str], escape: str = "\\", *, quotes: bool = True
) -> str:
    """Replace variables as Docker does, and take quotes and escapes away.

    Args:
        text: One word.
        variables: What is known; anything else is empty.
        escape: The escape character.
        quotes: Whether quotes mean something; not so in the body of a heredoc.

    Raises:
        ImageError: A form that is not supported, or ``${x:?}`` without x.
    """
    out, quote, n = "", "", 0
    while n < len(text):
        char = text[n]
        n += 1
        if char == "'" and quotes and quote != '"':
            quote = "" if quote else "'"
        elif char == '"' and quotes and quote != "'":
            quote = "" if quote else '"'
        elif char == escape and quote != "'" and n < len(text):
            following = text[n]
            n += 1
            # Where quotes hold, or mean nothing, only some characters can be escaped.
            special = f'"${escape}' if quote else f"${escape}"
            plain = following in special if quote or not quotes else True
            out += following if plain else char + following
        elif char == "$" and quote != "'":
            value, n = _variable(text, n, variables, escape)
            out += value
        else:
            out += char
    return out


def _variable(text: str, n: int, variables: Mapping[str, str], escape: str) -> tuple[str, int]:
    if text[n : n + 1] != "{":
        match = _VARIABLE.match(text, n)
        return ("$", n) if match is None else (variables.get(match[0], ""), match.end())
    depth, end = 1, n + 1
    while end < len(text) and depth:
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
    inner = text[n + 1 : end - 1]
    match = _VARIABLE.match(inner)
    operation = re.match(r":?[-+?]", inner[match.end() :]) if match else None
    if match is None or depth or (match.end() < len(inner) and operation is None):
        raise ImageError("Dockerfile", f"substitution ${{{inner}}} is not supported")
    value = variables.get(match[0])
    if operation is None:
        return value or "", end
    known = bool(value) if operation[0].startswith(":") else value is not None
    other = inner[match.end() + operation.end() :]
    if operation[0].endswith("?") and not known:
        raise ImageError("Dockerfile", f"{match[0]}: {other or 'is not set'}")
    if known is operation[0].endswith("+"):
        return substitute(other, variables, escape), end
    return (value or "") if known else "", end
