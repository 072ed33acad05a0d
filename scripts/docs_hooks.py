"""Hooks of mkdocs: the command line's reference is written from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

MARK = "<!-- every command -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the reference where a page asks for it."""
    return markdown.replace(MARK, "\n".join(reference())) if MARK in markdown else markdown


def reference() -> Iterator[str]:
    """Yield the lines of the reference of every command."""
    import typer

    from sprout_env.cli.app import app

    yield from _command(typer.main.get_command(app), ("sprout",))


def _command(command: Any, path: tuple[str, ...]) -> Iterator[str]:
    children = getattr(command, "commands", None)
    if children is None:
        yield f"## {' '.join(path)}"
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        usage = [_usage(argument) for argument in arguments]
        yield from ("", "```text", " ".join((*path, "[OPTIONS]", *usage)), "```", "")
        yield from (_text(command.help or ""), "")
        rows = [row for p in command.params if not getattr(p, "hidden", False) for row in _row(p)]
        if rows:
            yield from ("| option | what it does |", "|---|---|", *rows, "")
        return
    for name, child in children.items():
        yield from _command(child, (*path, name))


def _usage(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return name if argument.required else f"[{name}]"


def _row(parameter: Any) -> Iterator[str]:
    said = _text(getattr(parameter, "help", "") or "")
    if parameter.param_type_name == "argument":
        if said:
            yield f"| `{parameter.metavar or parameter.name.upper()}` | {said} |"
        return
    default = parameter.default
    if default not in (None, False, (), []) and not callable(default) and "default" not in said:
        said += f" Default: `{default}`."
    yield f"| `{', '.join(parameter.opts)}` | {said} |"


def _text(text: str) -> str:
    # Words in brackets are markup of the terminal, and pipes would end a cell.
    lines = [line.strip() for line in text.replace("\\[", "[").replace("|", "\\|").split("\n")]
    return "\n".join(lines).replace("[", "\\[").strip()
