"""Baselines that go back without being asked where: random, the last ones, most uncertain ones.

They branch from boundaries of failed attempts as SPROUT does, but no review chooses them and no
starting turn is given: the actor goes on as it would have.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Literal

from pydantic import Field

from sprout_env.actors.actor import Actor, TokenFact, gives
from sprout_env.errors import ConfigError
from sprout_env.records.attempt import Attempt, BranchPlan
from sprout_env.records.reviews import Attempts
from sprout_env.search.collector import Collector, derive_seed
from sprout_env.search.methods import Method, register_method
from sprout_env.search.plan import eligible
from sprout_env.transcript import TokenTrace, Turn


class Rollback(Method):
    """Roots, then rounds of branches from boundaries that a rule chooses."""

    roots: int = Field(default=1, gt=0)
    rounds: int = Field(default=1, ge=0)
    branches: int = Field(default=3, gt=0)
    """Most branches of one round; one root and three branches are the attempts of pass@4."""
    stop_on_pass: bool = True

    @abstractmethod
    def choose(
        self, collector: Collector, free: Sequence[tuple[Attempt, int]], draw: random.Random
    ) -> Sequence[tuple[Attempt, int]]:
        """Return where to branch.

        Args:
            collector: The task's.
            free: Eligible boundaries of failed attempts that no earlier round took, each state
                once.
            draw: The run's draws for this round.
        """

    def why(self, attempt: Attempt, boundary: int) -> str:
        """Return what the plan says of its choice."""
        return f"{self.name}: chosen by its rule, without a review."

    def collect(self, collector: Collector) -> Attempts:
        """Run roots; while nothing has passed, branch from the chosen boundaries."""
        collector.roots(self.roots, stop_on_pass=self.stop_on_pass)
        used: set[str] = set()
        for round in range(1, self.rounds + 1):
            if collector.passed or not collector.failures:
                break
            free = [item for item in _states(collector) if _state(*item) not in used]
            draw = random.Random(derive_seed(collector.seed_for(f"boundaries-{round}")))
            chosen = list(self.choose(collector, free, draw))[: self.branches]
            if not chosen:
                return collector.result(self.name, data={f"round {round}": self.nothing})
            used.update(_state(*item) for item in chosen)
            plans = [
                BranchPlan(attempt=a.id, boundary=b, why=self.why(a, b), starting_turn=None)
                for a, b in chosen
            ]
            collector.branches(plans, round=round, stop_on_pass=self.stop_on_pass)
        return collector.result(self.name)

    @property
    def nothing(self) -> str:
        """What is said where no boundary can be chosen."""
        return "no boundary is left to branch from"


def _state(attempt: Attempt, boundary: int) -> str:
    """Return what names a state: the last turn before it, whichever attempt it is seen in."""
    turns = [entry.id for entry in attempt.entries if isinstance(entry, Turn)]
    return turns[boundary - 1] if boundary else "start"


def _states(collector: Collector) -> Iterator[tuple[Attempt, int]]:
    seen: set[str] = set()
    for attempt in collector.failures:
        for boundary in eligible(attempt, collector.max_turns):
            if (state := _state(attempt, boundary)) not in seen:
                seen.add(state)
                yield attempt, boundary


class RandomBoundary(Rollback):
    """Branches from boundaries drawn evenly."""

    kind: Literal["random_boundary"] = "random_boundary"

    def choose(
        self, collector: Collector, free: Sequence[tuple[Attempt, int]], draw: random.Random
    ) -> Sequence[tuple[Attempt, int]]:
        """Draw without putting back."""
        return draw.sample(list(free), min(self.branches, len(free)))


class LastK(Rollback):
    """Branches from the last ``k`` boundaries before the end, the latest first."""

    kind: Literal["last_k"] = "last_k"
    branches: int = Field(default=3, gt=0)
    """The k."""

    @property
    def name(self) -> str:
        """How it is called in tables."""
        return f"last_{self.branches}"

    def choose(
        self, collector: Collector, free: Sequence[tuple[Attempt, int]], draw: random.Random
    ) -> Sequence[tuple[Attempt, int]]:
        """Take those with the fewest turns after them."""

        def left(item: tuple[Attempt, int]) -> int:
            return sum(isinstance(entry, Turn) for entry in item[0].entries) - item[1]

        return sorted(free, key=left)


class Entropy(Rollback):
    """Branches right before the turns whose tokens the policy was least sure of.

    Entropies come from top log-probabilities. For the mean over a turn, where only the sampled
    tokens' log-probabilities are known, their negative mean stands in: its expectation under the
    policy is the entropy.
    """

    kind: Literal["entropy"] = "entropy"
    tokens: Literal["first", "mean"] = "mean"
    """The entropy at a turn's first token, or the mean over all of them."""
    spacing: int = Field(default=1, gt=0)
    """Fewest turns between two branches of one attempt."""

    @property
    def needs(self) -> frozenset[TokenFact]:
        """Log-probabilities, of the alternatives too for a single token."""
        return frozenset({"logprobs"} if self.tokens == "mean" else {"entropies"})

    def check(self, actor: Actor) -> None:
        """Refuse an actor that tells no log-probabilities."""
        told = gives(actor)
        if "entropies" in told or self.needs <= told:
            return
        needs = "top log-probabilities (an actor with top_logprobs=5)"
        if self.tokens == "mean":
            needs = "log-probabilities (an actor with logprobs=true)"
        raise ConfigError(f"method {self.name} needs {needs}, and {actor.name} gives none")

    def choose(
        self, collector: Collector, free: Sequence[tuple[Attempt, int]], draw: random.Random
    ) -> Sequence[tuple[Attempt, int]]:
        """Take the most uncertain turns; draws decide between equals."""
        scored: list[tuple[float, float, Attempt, int]] = []
        for attempt, boundary in free:
            turns = [entry for entry in attempt.entries if isinstance(entry, Turn)]
            if boundary >= len(turns):
                continue
            score = uncertainty(turns[boundary].trace, self.tokens)
            if score is not None:
                scored.append((-score, draw.random(), attempt, boundary))
        chosen: list[tuple[Attempt, int]] = []
        for _, _, attempt, boundary in sorted(scored, key=lambda item: item[:2]):
            near = (b for a, b in chosen if a.id == attempt.id)
            if len(chosen) < self.branches and all(abs(b - boundary) >= self.spacing for b in near):
                chosen.append((attempt, boundary))
        return chosen

    @property
    def nothing(self) -> str:
        """What is said where no boundary can be chosen."""
        return "no turn of a failed attempt carries entropies (answers asked for twice carry none)"


def uncertainty(trace: TokenTrace | None, tokens: Literal["first", "mean"]) -> float | None:
    """Return how unsure the policy was of a turn, in nats; None where nothing tells."""
    if trace is None:
        return None
    if trace.entropies:
        if tokens == "first":
            return trace.entropies[0]
        return sum(trace.entropies) / len(trace.entropies)
    if tokens == "mean" and trace.logprobs:
        return -sum(trace.logprobs) / len(trace.logprobs)
    return None


register_method("random_boundary", RandomBoundary, at="branches")
register_method("last_k", LastK, at="branches")
register_method("entropy", Entropy, at="branches")
