"""One attempt of a task, root to leaf, what it cost, and the plan of a review behind a branch."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from sprout_env.grading.verdict import Verdict
from sprout_env.transcript import Entry, Frozen, Turn

AttemptStatus = Literal[
    "submitted",
    "out_of_turns",
    "out_of_tokens",
    "out_of_time",
    "out_of_budget",
    "stopped",
    "infra_error",
]
"""How it ended. ``out_of_budget``: the run's budget, not the attempt's own limit, ended it, and it
was graded as it stood; ``stopped``: a sibling passed first, so it was never graded."""


class Usage(Frozen):
    """What calls to a model cost. Prompt tokens are counted per request, cached ones included."""

    calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        """Sum of two."""
        return Usage(
            calls=self.calls + other.calls,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            seconds=self.seconds + other.seconds,
        )

    @classmethod
    def sum(cls, parts: Iterable[Usage]) -> Usage:
        """Sum of any number."""
        return functools.reduce(operator.add, parts, cls())

    @property
    def tokens(self) -> int:
        """Prompt and completion tokens together."""
        return self.prompt_tokens + self.completion_tokens


class StartingTurn(Frozen):
    """The turn that the reviewer writes for a branch; executed as an ordinary turn."""

    message: str = ""
    command: str

    def turn(self) -> Turn:
        """Return it as the ordinary turn that a branch begins with."""
        return Turn(message=self.message, command=self.command, provenance="policy_under_review")


class BranchPlan(Frozen):
    """Where a branch starts and how."""

    attempt: str
    """Id of the failed attempt whose boundary is taken."""
    boundary: int = Field(ge=0)
    """Turns kept: the branch resumes right after this turn; 0 is the untouched start."""
    why: str
    starting_turn: StartingTurn | None
    """None only for methods that roll back without a hint."""


class Boundary(Frozen):
    """A point after a turn that can be returned to, if ``snapshot`` is not None."""

    turn: int
    snapshot: str | None
    reason: str = ""
    """Why there is no snapshot."""


class Attempt(Frozen):
    """One root or branch, from the task's start to its end."""

    id: str
    task: str
    suite: str = ""
    kind: Literal["root", "branch"] = "root"
    parent: str | None = None
    """The attempt that this one branches from."""
    plan: BranchPlan | None = None
    round: int = 0
    """0 for roots; more than 0 for what followed, fresh attempts told of earlier ones included."""
    seed: int = 0
    instruction: str = ""
    entries: tuple[Entry, ...] = ()
    """The whole transcript, shared prefix included (its nodes carry the parent's ids)."""
    boundaries: tuple[Boundary, ...] = ()
    status: AttemptStatus = "submitted"
    error: str = ""
    verdict: Verdict | None = None
    usage: Usage = Usage()
    """Calls of this attempt alone, from its branch point on."""
    seconds: float = 0.0
    """Wall time of this attempt alone."""
    lost_processes: tuple[str, ...] = ()

    @property
    def part(self) -> Literal["root", "branch"]:
        """Where it is accounted: with the roots, or with what followed on them.

        A fresh attempt of a later round (it was told of earlier ones) is none of the roots.
        """
        return "root" if self.kind == "root" and not self.round else "branch"

    @property
    def passed(self) -> bool:
        """Whether the verdict says so."""
        return self.verdict is not None and self.verdict.passed

    @property
    def scorable(self) -> bool:
        """Whether it has a reward at all."""
        return self.verdict is not None and self.verdict.outcome != "invalid"

    @property
    def own_turns(self) -> int:
        """Turns of this attempt alone: a branch's shared prefix is not counted."""
        turns = sum(entry.kind == "turn" for entry in self.entries)
        return turns - (self.plan.boundary if self.plan is not None else 0)

    @property
    def failed(self) -> bool:
        """Whether the verifier judged it and said no; an invalid verdict is not a failure."""
        return self.scorable and not self.passed

    @property
    def reward(self) -> float | None:
        """Its reward; None when nobody could judge it, which is never the same as 0."""
        return self.verdict.reward if self.verdict is not None and self.scorable else None
