"""What a comparison says: rows of methods, paired by task and seed, with bootstrap intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from sprout_env.records.attempt import Attempt, Usage
from sprout_env.records.reviews import Attempts
from sprout_env.records.summary import Ratio
from sprout_env.search.budget import Prices
from sprout_env.transcript import Frozen

Unit = tuple[str, int]
"""A task and a run seed: what methods are paired by."""
Units = Mapping[Unit, Attempts]

DRAWS = 2000
"""Bootstrap resamples of the tasks."""
LEVEL = 0.95


class Estimate(Frozen):
    """A number with its bootstrap interval over tasks."""

    value: float | None
    low: float | None = None
    high: float | None = None


class Rate(Frozen):
    """A share with its denominator and interval."""

    ratio: Ratio
    share: Estimate


class Cost(Frozen):
    """What is billed to a method, shared roots included."""

    attempts: int
    branches: int
    """Attempts that followed on the roots."""
    steps: int
    """Commands run, shared prefixes not counted again."""
    branch_steps: int
    usage: Usage
    review: Usage
    """The part of ``usage`` that reviews, summaries, votes and supervisors took."""
    branch: Usage
    seconds: float
    """Wall seconds of all attempts and reviews, one after the other."""
    money: float | None


class Trouble(Frozen):
    """What is no failure of the model, and in no rate above."""

    unjudged: int
    """Units that are not decided: nothing was judged, or nothing passed and something was lost."""
    lost: int
    """Attempts that the infrastructure lost, retries included."""
    unanswered: int = 0
    """Questions of reviews, summaries and votes that the actor or its server failed to answer."""
    invalid: int
    """Attempts that the verifier could not judge."""
    cut_short: int
    """Units that a budget or the task's own trouble ended early."""
    dropped: int
    """Plans that became no branch."""


class MethodRow(Frozen):
    """One method of the table."""

    label: str
    spec: dict[str, object]
    resolve: Rate
    recovery: Rate
    """Of the units whose first root failed, those that the method solves."""
    gain: Estimate
    """Resolve rate minus the first method's, over the units that both have judged."""
    paired: int
    """How many those are."""
    cost: Cost
    trouble: Trouble


class Comparison(Frozen):
    """The whole table."""

    suite: str
    actor: str
    simulated: bool
    substituted: bool = False
    tasks: int
    seeds: tuple[int, ...]
    rows: tuple[MethodRow, ...]
    shared_roots: int
    """Roots that more than one method began with: paid once, billed to each."""
    shared_uses: int
    """How often such a root was taken instead of being run."""
    billed: Usage
    """What all rows add up to."""
    paid: Usage
    """What was really asked for."""


def passed(item: Attempts | None) -> bool | None:
    """Return a unit's outcome; None where it is not decided."""
    return item.passed if item is not None and item.decided else None


def first_root_failed(item: Attempts) -> bool:
    """Whether the first root was judged and failed: what recovery counts."""
    first = next((a for a in item.attempts if a.id.rpartition(":")[2] == "root-1"), None)
    return first is not None and first.failed


def compare_rows(
    units: Mapping[str, Units], specs: Mapping[str, dict[str, object]], prices: Prices | None
) -> tuple[MethodRow, ...]:
    """Return a row per method, in the order given; gains are over the first."""
    labels = list(units)
    base = units[labels[0]] if labels else {}
    return tuple(_row(label, specs[label], units[label], base, prices) for label in labels)


def _row(
    label: str, spec: dict[str, object], mine: Units, base: Units, prices: Prices | None
) -> MethodRow:
    outcomes = {unit: passed(item) for unit, item in mine.items()}
    judged = {unit: ok for unit, ok in outcomes.items() if ok is not None}
    failed = {unit: ok for unit, ok in judged.items() if first_root_failed(mine[unit])}
    gains = {
        unit: float(ok) - float(other)
        for unit, ok in judged.items()
        if (other := passed(base.get(unit))) is not None
    }
    attempts = [attempt for item in mine.values() for attempt in item.attempts]
    return MethodRow(
        label=label,
        spec=spec,
        resolve=_rate(judged),
        recovery=_rate(failed),
        gain=estimate(gains),
        paired=len(gains),
        cost=_cost(mine, attempts, prices),
        trouble=Trouble(
            unjudged=len(mine) - len(judged),
            lost=sum(attempt.status == "infra_error" for attempt in attempts),
            unanswered=sum(
                e.lost for item in mine.values() for r in item.reviews for e in r.exchanges
            ),
            invalid=sum(a.verdict is not None and not a.scorable for a in attempts),
            cut_short=sum(bool(item.cut_short) for item in mine.values()),
            dropped=sum(len(r.dropped) for item in mine.values() for r in item.reviews),
        ),
    )


def _rate(outcomes: Mapping[Unit, bool]) -> Rate:
    ratio = Ratio(count=sum(outcomes.values()), of=len(outcomes))
    return Rate(ratio=ratio, share=estimate({unit: float(ok) for unit, ok in outcomes.items()}))


def estimate(values: Mapping[Unit, float]) -> Estimate:
    """Return the mean over units with its interval: tasks are drawn anew, with all their seeds.

    Seeds of one task are not independent of each other, so that the task is what is drawn; where
    there is only one, its seeds are.
    """
    if not values:
        return Estimate(value=None)
    tasks = Counter(task for task, _ in values)
    key: Callable[[Unit], object] = (lambda u: u[0]) if len(tasks) > 1 else (lambda u: u)
    groups: dict[object, list[float]] = {}
    for unit, value in values.items():
        groups.setdefault(key(unit), []).append(value)
    sums = np.array([sum(group) for group in groups.values()])
    sizes = np.array([len(group) for group in groups.values()], dtype=float)
    mean = float(sums.sum() / sizes.sum())
    if len(groups) == 1:
        return Estimate(value=mean)
    drawn = np.random.default_rng(0).integers(len(groups), size=(DRAWS, len(groups)))
    means = sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(value=mean, low=float(low), high=float(high))


def _cost(mine: Units, attempts: Sequence[Attempt], prices: Prices | None) -> Cost:
    usage = Usage.sum(item.usage() for item in mine.values())
    later = [attempt for attempt in attempts if attempt.part == "branch"]
    reviews = [review for item in mine.values() for review in item.reviews]
    return Cost(
        attempts=len(attempts),
        branches=len(later),
        steps=sum(attempt.own_turns for attempt in attempts),
        branch_steps=sum(attempt.own_turns for attempt in later),
        usage=usage,
        review=Usage.sum(item.usage("review") for item in mine.values()),
        branch=Usage.sum(item.usage("branch") for item in mine.values()),
        seconds=sum(a.seconds for a in attempts) + sum(review.seconds for review in reviews),
        money=prices.cost(usage) if prices is not None else None,
    )


def what_was_shared(units: Mapping[str, Units]) -> tuple[int, int, Usage, Usage]:
    """Return roots that several methods hold, uses beyond the first, usage billed and paid."""
    holders: Counter[tuple[int, str, str]] = Counter()
    usages: dict[tuple[int, str, str], Usage] = {}
    billed = Usage.sum(item.usage() for mine in units.values() for item in mine.values())
    for mine in units.values():
        for (_, seed), item in mine.items():
            for attempt in item.roots:
                # The very same attempt: ids of its turns are drawn once.
                mark = attempt.entries[-1].id if attempt.entries else ""
                holders[seed, attempt.id, mark] += 1
                usages[seed, attempt.id, mark] = attempt.usage
    several = {key: count for key, count in holders.items() if count > 1 and key[2]}
    saved = Usage.sum(usages[key] for key, count in several.items() for _ in range(count - 1))
    paid = Usage(**{name: value - getattr(saved, name) for name, value in billed})
    return len(several), sum(several.values()) - len(several), billed, paid
