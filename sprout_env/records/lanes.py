"""Attempts as lanes over turns: the one layout behind every picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sprout_env.records.attempt import Attempt
from sprout_env.records.outline import ending, forest, ordered, rows

Look = Literal["passed", "failed", "invalid", "lost", "unjudged", "plain"]
"""How a lane is coloured; ``plain`` is a path that nobody judges."""

SIGNS: dict[Look, str] = {
    "passed": "✓",
    "failed": "✗",
    "invalid": "?",
    "lost": "!",
    "unjudged": "■",
    "plain": "",
}


@dataclass(frozen=True)
class Lane:
    """One line of a picture."""

    label: str
    look: Look
    ending: str
    start: int
    """The turn it begins after; 0 is the untouched start."""
    end: int
    """Its last turn, counted from the start of the path."""
    owner: int | None = None
    """Row of the lane whose boundary it begins at; None: it begins at the start."""
    why: str = ""
    """Why it begins there."""
    command: str = ""
    """Its first command, where a review wrote it."""
    attempt: Attempt | None = None
    learned: tuple[tuple[int, int], ...] | None = None
    """Spans of turns that carry loss, in a training group."""

    @property
    def sign(self) -> str:
        """The mark at its end: colour alone says nothing to some."""
        return SIGNS[self.look]


def look(attempt: Attempt) -> Look:
    """Return how an attempt is coloured."""
    if attempt.verdict is not None:
        return attempt.verdict.outcome
    return "lost" if attempt.status == "infra_error" else "unjudged"


def lanes(attempts: Sequence[Attempt]) -> tuple[Lane, ...]:
    """Return one lane for each attempt, branches below the attempt whose boundary they take."""
    tops = forest(ordered(attempts))
    nodes = list(rows(tops))
    at = {id(node): row for row, node in enumerate(nodes)}
    owners = {id(child): at[id(node)] for node in nodes for child in node.children}
    found = []
    for node in nodes:
        plan = node.attempt.plan
        starting = plan.starting_turn if plan is not None else None
        found.append(
            Lane(
                label=node.label,
                look=look(node.attempt),
                ending=ending(node.attempt),
                start=node.start,
                end=node.end,
                owner=owners.get(id(node)),
                why=plan.why if plan is not None else "",
                command=starting.command if starting is not None else "",
                attempt=node.attempt,
            )
        )
    return tuple(found)
