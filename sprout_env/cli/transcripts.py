"""An attempt's turns as text: what was said, run and seen, and the snapshot at each boundary."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from sprout_env.cli.tree import mark
from sprout_env.records.attempt import Attempt
from sprout_env.records.outline import ending
from sprout_env.transcript import Turn

MOST_LINES = 12


def _shorten(text: str, full: bool) -> str:
    lines = text.rstrip().splitlines()
    if full or len(lines) <= MOST_LINES:
        return "\n".join(lines)
    half = MOST_LINES // 2
    cut = f"[... {len(lines) - 2 * half} lines ...]"
    return "\n".join((*lines[:half], cut, *lines[-half:]))


def turns_of(attempt: Attempt, name: str, *, full: bool) -> RenderableType:
    """Return all turns of an attempt, its shared prefix included, then why tests failed.

    Args:
        attempt: The attempt.
        name: What it is called here.
        full: Cut no output.
    """
    sign, colour = mark(attempt)
    start = attempt.plan.boundary if attempt.plan is not None else 0
    snapshots = {b.turn: b.snapshot or f"none: {b.reason}" for b in attempt.boundaries}
    parts: list[RenderableType] = [
        Text.assemble((f"{attempt.task}  {name}  ", "bold"), (f"{sign} {ending(attempt)}", colour))
    ]
    number = 0
    for entry in attempt.entries:
        if not isinstance(entry, Turn):
            parts.append(Padding(Text(entry.text, "yellow"), (0, 0, 0, 2)))
            continue
        number += 1
        head = Text(f"turn {number}", "bold")
        if number <= start:
            head.append("  shared with its parent", "dim")
        elif entry.provenance == "policy_under_review":
            head.append("  starting turn, written by the review", "magenta")
        if number in snapshots:
            head.append(f"  {snapshots[number]}", "dim")
        parts.append(head)
        if entry.message:
            parts.append(Padding(Text(entry.message, "italic"), (0, 0, 0, 2)))
        parts.append(Padding(Text(f"$ {entry.command}", "cyan"), (0, 0, 0, 2)))
        if entry.result is not None:
            output = _shorten(entry.result.output, full)
            if output:
                parts.append(Padding(Text(output), (0, 0, 0, 2)))
            if entry.result.exit_code:
                parts.append(
                    Padding(Text(f"exit code {entry.result.exit_code}", "red"), (0, 0, 0, 2))
                )
    verdict = attempt.verdict
    for test in verdict.tests if verdict is not None else ():
        if test.status == "failed":
            parts.append(Text(f"✗ {test.name.rsplit('::', 1)[-1]}", "red"))
            if test.message:
                parts.append(Padding(Text(_shorten(test.message, full)), (0, 0, 0, 2)))
    return Group(*parts)
