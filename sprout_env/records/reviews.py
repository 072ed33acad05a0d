"""What a review said and cost, and all that one task's collection brought.

Review records stand beside the attempts and never in them: nothing here is ever shown to a learner.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sprout_env.records.attempt import Attempt, BranchPlan, Usage
from sprout_env.transcript import Frozen, TokenTrace

DropReason = Literal[
    "unparsable",
    "unknown_attempt",
    "ineligible_boundary",
    "no_command",
    "duplicate",
    "over_limit",
    "actor_failed",
]
"""Why a plan did not become a branch."""


class DroppedPlan(Frozen):
    """One plan that did not become a branch."""

    reason: DropReason
    detail: str


class ReviewMessage(Frozen):
    """One message of a review's prompt."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str


Part = Literal["analyst", "reviewer", "summary", "vote", "supervisor"]
"""What a question is for."""


class Exchange(Frozen):
    """One question of a review and its answer."""

    part: Part
    attempt: str | None = None
    """The attempt that was read; None where it was several."""
    messages: tuple[ReviewMessage, ...]
    answer: str
    trace: TokenTrace = TokenTrace()
    error: str = ""
    """Why there is no answer."""
    lost: bool = False
    """The actor or its server failed, after all retries; no matter of the prompt's size."""
    seed: int | None = None
    """Seed of the actor that was asked: votes on the same two texts differ by it."""


class Duel(Frozen):
    """Two attempts compared by votes over their summaries."""

    first: str
    second: str
    for_first: int
    for_second: int
    discarded: int = 0
    """Votes that could not be read, asked again included: they count for nobody."""
    winner: str
    tie: bool = False
    """Decided by the run's seed."""


class ReviewRecord(Frozen):
    """What was asked about attempts, answered, planned and dropped.

    A ``review`` is one round of analysts and reviewer; the other kinds belong to other methods.
    """

    id: str
    kind: Literal["review", "summaries", "tournament", "supervision"] = "review"
    task: str
    round: int
    failures: tuple[str, ...]
    """Ids of the failed attempts that it read (of all that it read, where no verifier is asked)."""
    exchanges: tuple[Exchange, ...] = ()
    plans: tuple[BranchPlan, ...] = ()
    dropped: tuple[DroppedPlan, ...] = ()
    duels: tuple[Duel, ...] = ()
    chosen: tuple[str, ...] = ()
    """What a tournament kept, in the order of the draw."""
    reasked: bool = False
    """The reviewer was asked a second time, with what was wrong with its first answer."""
    usage: Usage = Usage()
    seconds: float = 0.0

    @property
    def lost(self) -> bool:
        """Whether no plan came of it because the actor or its server failed."""
        planning = self.kind in ("review", "supervision")
        return planning and not self.plans and any(e.lost for e in self.exchanges)

    def analysis_of(self, attempt: str) -> str | None:
        """Return what the analyst wrote of an attempt, if this review asked for it."""
        for exchange in self.exchanges:
            if exchange.part == "analyst" and exchange.attempt == attempt and not exchange.error:
                return exchange.answer
        return None


class Attempts(Frozen):
    """All that one method did for one task."""

    task: str
    suite: str = ""
    method: str = ""
    attempts: tuple[Attempt, ...] = ()
    reviews: tuple[ReviewRecord, ...] = ()
    chosen: str | None = None
    """Id of the attempt that the method answers with; None: any that passed counts; empty: it was
    to choose one and did not get there, which counts as not passed."""
    cut_short: str = ""
    """Why the collection ended before the method was through (a budget); empty otherwise."""
    data: dict[str, str] = Field(default_factory=dict)
    """What a method wants to keep beside its attempts."""

    def _repr_html_(self) -> str:
        """Draw the attempts in a notebook."""
        from sprout_env.records.pictures import attempts_html

        return attempts_html(self.attempts, self.task, self.cut_short)

    @property
    def roots(self) -> tuple[Attempt, ...]:
        """Attempts from the untouched start."""
        return tuple(attempt for attempt in self.attempts if attempt.kind == "root")

    @property
    def branches(self) -> tuple[Attempt, ...]:
        """Attempts that reviews planned."""
        return tuple(attempt for attempt in self.attempts if attempt.kind == "branch")

    @property
    def failures(self) -> tuple[Attempt, ...]:
        """Attempts that the verifier judged and failed."""
        return tuple(a for a in self.attempts if a.scorable and not a.passed)

    @property
    def passed(self) -> bool:
        """Whether the method's answer (or, without a choice, any attempt) passed."""
        if self.chosen is not None:
            return any(a.passed for a in self.attempts if a.id == self.chosen)
        return any(attempt.passed for attempt in self.attempts)

    @property
    def roots_failed(self) -> bool:
        """Whether there was something to rescue: roots were judged, and none passed."""
        judged = [a for a in self.attempts if a.part == "root" and a.scorable]
        return bool(judged) and not any(attempt.passed for attempt in judged)

    @property
    def scorable(self) -> bool:
        """Whether the method's answer (or, without one, any attempt) was judged at all."""
        if self.chosen:
            return any(a.scorable for a in self.attempts if a.id == self.chosen)
        return any(attempt.scorable for attempt in self.attempts)

    @property
    def lost(self) -> bool:
        """Whether the machine lost an attempt or a review of it: a rerun tries those again."""
        return any(a.status == "infra_error" for a in self.attempts) or any(
            review.lost for review in self.reviews
        )

    @property
    def decided(self) -> bool:
        """Whether the outcome is the method's own.

        It is not where nothing was judged, and not where nothing passed and the machine lost an
        attempt or a review that might have brought a pass.
        """
        return self.scorable and (self.passed or not self.lost)

    def usage(self, part: Literal["root", "review", "branch", "all"] = "all") -> Usage:
        """Return what one part of the collection cost, in model calls."""
        usages = [a.usage for a in self.attempts if part in ("all", a.part)]
        if part in ("all", "review"):
            usages += [review.usage for review in self.reviews]
        return Usage.sum(usages)
