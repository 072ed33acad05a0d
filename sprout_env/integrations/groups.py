"""Training groups of one size: SPROUT's (roots, then guided branches) and plain ones."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sprout_env.records.reviews import Attempts
from sprout_env.search.collector import Collector
from sprout_env.search.methods import Method, register_method
from sprout_env.search.review import ReviewSettings


class TrainingGroup(Method):
    """``size`` attempts of one task: branches while nothing has passed, else more roots.

    ``roots == size`` is plain GRPO. Nothing is stopped early: each attempt is wanted whole.
    """

    kind: Literal["group"] = "group"
    size: int = Field(default=8, gt=0)
    roots: int = Field(default=4, gt=0)
    branches: int = Field(default=2, gt=0)
    """Most branches of one review round."""

    @property
    def name(self) -> str:
        """How it is called in tables."""
        return "plain group" if self.roots >= self.size else "sprout group"

    def collect(self, collector: Collector) -> Attempts:
        """Run roots; then rounds of review and branches, or more roots once something passed."""
        made = len(collector.roots(min(self.roots, self.size), stop_on_pass=False))
        round = 0
        while made < self.size:
            round += 1
            left = self.size - made
            if not collector.passed and collector.failures:
                settings = ReviewSettings(branches=min(self.branches, left))
                plans = collector.review(round=round, settings=settings).plans
                if plans:
                    made += len(collector.branches(plans, round=round, stop_on_pass=False))
                    continue
            collector.roots(left, round=round, stop_on_pass=False)
            break
        return collector.result(self.name)


register_method("group", TrainingGroup, "size")
