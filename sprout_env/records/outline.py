"""How attempts are told to people: names, order, who hangs under whom, how each ended.

Every picture of a run (terminal, notebook, page) is drawn from this.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sprout_env.records.attempt import Attempt
from sprout_env.transcript import Turn


@dataclass
class Node:
    """An attempt in the picture."""

    attempt: Attempt
    label: str
    children: list[Node] = field(default_factory=list)

    @property
    def start(self) -> int:
        """The turn it starts after."""
        return self.attempt.plan.boundary if self.attempt.plan is not None else 0

    @property
    def end(self) -> int:
        """How many turns its whole transcript has."""
        return count_turns(self.attempt)


def count_turns(attempt: Attempt) -> int:
    """Return the number of turns of the whole transcript, shared prefix included."""
    return sum(isinstance(entry, Turn) for entry in attempt.entries)


def own_turns(attempt: Attempt) -> int:
    """Return the number of turns that the attempt itself made."""
    return count_turns(attempt) - (attempt.plan.boundary if attempt.plan is not None else 0)


_OUR_ID = re.compile(r".*:(?:root-(?P<root>\d+)|round-(?P<round>\d+)-branch-(?P<branch>\d+))")


def label(attempt: Attempt) -> str | None:
    """Return the name that an attempt's id tells, or None."""
    told = _OUR_ID.fullmatch(attempt.id)
    if told is None:
        return None
    return f"root {told['root']}" if told["root"] else f"branch {told['round']}.{told['branch']}"


def labels(attempts: Sequence[Attempt]) -> dict[str, str]:
    """Name attempts as people do: ``root 2``, ``branch 1.3`` (round and number in the round)."""
    found: dict[str, str] = {}
    counts: dict[int, int] = {}
    for attempt in attempts:
        number = counts[attempt.round] = counts.get(attempt.round, 0) + 1
        usual = f"root {number}" if attempt.kind == "root" else f"branch {attempt.round}.{number}"
        found[attempt.id] = label(attempt) or usual
    if len(set(found.values())) < len(found):
        return {id: str(number) for number, id in enumerate(found, 1)}
    return found


def ordered(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Return attempts by round and number, in whatever order they ended."""

    def key(attempt: Attempt) -> tuple[int, int]:
        told = re.search(r"(\d+)$", label(attempt) or "")
        return attempt.round, int(told[1]) if told else 0

    return sorted(attempts, key=key)


def forest(attempts: Sequence[Attempt]) -> list[Node]:
    """Return the roots, each with its branches below the attempt that owns their boundary."""
    names = labels(attempts)
    nodes = {a.id: Node(a, names[a.id]) for a in attempts}
    tops: list[Node] = []
    for attempt in attempts:
        node = nodes[attempt.id]
        owner = nodes.get(attempt.parent) if attempt.parent is not None else None
        # A boundary inside the prefix that the parent itself inherited belongs further up.
        while owner is not None and owner.attempt.parent in nodes and node.start <= owner.start:
            owner = nodes[owner.attempt.parent]
        (tops if owner is None else owner.children).append(node)
    for node in nodes.values():
        # Latest boundary first: then no line of an earlier one is crossed.
        node.children.sort(key=lambda child: -child.start)
    return tops


def rows(nodes: Sequence[Node]) -> Iterator[Node]:
    """Yield nodes as they stand below each other in a picture."""
    for node in nodes:
        yield node
        yield from rows(node.children)


def ending(attempt: Attempt) -> str:
    """Say in a few words how an attempt ended."""
    verdict = attempt.verdict
    if verdict is None:
        return f"not judged: {attempt.error or attempt.status.replace('_', ' ')}"
    if verdict.outcome == "passed":
        return "passed, live only" if verdict.live_only else "passed"
    if verdict.outcome == "invalid":
        return f"invalid: {verdict.reason}"
    judged = [test for test in verdict.tests if test.status != "skipped"]
    said = f"{len(verdict.failing)} of {len(judged)} tests fail" if judged else "failed"
    return said if attempt.status == "submitted" else f"{said}, {attempt.status.replace('_', ' ')}"


def _roots(count: int) -> str:
    return "the root" if count == 1 else f"all {count} roots"


def counted(number: int, what: str) -> str:
    """Return ``1 task``, ``2 tasks``, ``0 branches``."""
    plural = "es" if what.endswith("ch") else "s"
    return f"{number} {what}{'' if number == 1 else plural}"


def headline(attempts: Sequence[Attempt]) -> str:
    """Say how a task went: solved by a root, rescued by a branch, or not solved."""
    roots = [a for a in attempts if a.kind == "root"]
    branches = [a for a in attempts if a.kind == "branch"]
    passed = sum(a.passed for a in roots)
    if passed:
        return f"solved by {passed} of {counted(len(roots), 'root')}"
    first = next((a for a in branches if a.passed), None)
    if first is not None:
        return f"rescued in review round {first.round}: {_roots(len(roots))} had failed"
    counts = [(len(roots), "root"), (len(branches), "branch")]
    return f"not solved: {' and '.join(counted(*each) for each in counts if each[0])} failed"
