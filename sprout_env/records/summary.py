"""The metrics of a run: resolve and recovery with their denominators, and what each part cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from sprout_env.records.attempt import Usage
from sprout_env.records.reviews import Attempts
from sprout_env.transcript import Frozen

Part = Literal["root", "review", "branch"]
PARTS: tuple[Part, ...] = ("root", "review", "branch")


class Ratio(Frozen):
    """A share with its denominator, which is always shown."""

    count: int
    of: int

    @property
    def value(self) -> float | None:
        """The share; None when there is nothing to divide by."""
        return self.count / self.of if self.of else None

    def __str__(self) -> str:
        """Like ``5/8 (62.5 %)``."""
        share = "" if self.value is None else f" ({100 * self.value:.1f} %)"
        return f"{self.count}/{self.of}{share}"


class PartCost(Frozen):
    """What one part of a run cost."""

    attempts: int = 0
    """Attempts (root, branch) or review rounds."""
    turns: int = 0
    """Commands run in sandboxes, shared prefixes not counted again."""
    usage: Usage = Usage()
    """Calls, tokens and the seconds that they took."""
    seconds: float = 0.0
    """Wall seconds of all its attempts or reviews together."""


class Summary(Frozen):
    """The table of one run."""

    method: str
    tasks: int
    resolve: Ratio
    """Tasks passed, of the tasks that were decided."""
    recovery: Ratio
    """Tasks passed after all their roots failed, of the tasks whose roots failed."""
    root_pass: Ratio
    """Roots passed, of the roots that were judged."""
    branch_pass: Ratio
    """What followed on the roots and passed, of what was judged."""
    unscorable: int
    """Tasks that are not decided, in no rate above: nothing was judged, or nothing passed and the
    machine lost what might have."""
    parts: dict[Part, PartCost]
    status: dict[str, int] = Field(default_factory=dict)
    """Attempts by how they ended; invalid verdicts under ``invalid``."""
    plans: int = 0
    dropped: dict[str, int] = Field(default_factory=dict)
    """Plans that did not become branches, by reason."""
    cut_short: int = 0
    """Tasks that a budget ended early."""
    estimated: bool = False
    """Tokens are estimates (a simulated actor bills nothing)."""
    substituted: int = 0
    """Tasks whose images or sources were supplied by aliases: their scores are no benchmark's."""

    @property
    def total(self) -> PartCost:
        """All parts together."""
        costs = [self.parts[part] for part in PARTS]
        return PartCost(
            attempts=sum(cost.attempts for cost in costs),
            turns=sum(cost.turns for cost in costs),
            usage=Usage.sum(cost.usage for cost in costs),
            seconds=sum(cost.seconds for cost in costs),
        )


def _parts(collections: Sequence[Attempts]) -> dict[Part, PartCost]:
    found: dict[Part, PartCost] = {}
    for part in PARTS:
        usage = Usage.sum(collection.usage(part) for collection in collections)
        if part == "review":
            reviews = [review for item in collections for review in item.reviews]
            found[part] = PartCost(
                attempts=len(reviews), usage=usage, seconds=sum(r.seconds for r in reviews)
            )
            continue
        attempts = [a for item in collections for a in item.attempts if a.part == part]
        found[part] = PartCost(
            attempts=len(attempts),
            turns=sum(attempt.own_turns for attempt in attempts),
            usage=usage,
            seconds=sum(attempt.seconds for attempt in attempts),
        )
    return found


def summarise(collections: Sequence[Attempts], *, estimated: bool = False) -> Summary:
    """Return the metrics of all collections of one method."""
    judged = [item for item in collections if item.decided]
    failed_roots = [item for item in judged if item.roots_failed]
    attempts = [attempt for item in collections for attempt in item.attempts]
    roots = [a for a in attempts if a.part == "root" and a.scorable]
    branches = [a for a in attempts if a.part == "branch" and a.scorable]
    status = Counter(
        "invalid" if a.verdict is not None and not a.scorable else a.status for a in attempts
    )
    reviews = [review for item in collections for review in item.reviews]
    dropped = Counter(drop.reason for review in reviews for drop in review.dropped)
    return Summary(
        method=collections[0].method if collections else "",
        tasks=len(collections),
        resolve=Ratio(count=sum(item.passed for item in judged), of=len(judged)),
        recovery=Ratio(count=sum(item.passed for item in failed_roots), of=len(failed_roots)),
        root_pass=Ratio(count=sum(a.passed for a in roots), of=len(roots)),
        branch_pass=Ratio(count=sum(a.passed for a in branches), of=len(branches)),
        unscorable=len(collections) - len(judged),
        parts=_parts(collections),
        status=dict(sorted(status.items())),
        plans=sum(len(review.plans) for review in reviews),
        dropped={str(reason): count for reason, count in sorted(dropped.items())},
        cut_short=sum(bool(item.cut_short) for item in collections),
        estimated=estimated,
        substituted=sum(
            any(a.verdict is not None and a.verdict.environment != "original" for a in c.attempts)
            for c in collections
        ),
    )
