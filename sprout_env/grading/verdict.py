"""How the end was judged: passed, failed or invalid; what was seen, test by test."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sprout_env.transcript import Frozen

Outcome = Literal["passed", "failed", "invalid"]


class TestReport(Frozen):
    """One test of the verifier."""

    __test__ = False  # not a test class, whatever its name tells pytest

    name: str
    status: Literal["passed", "failed", "skipped"]
    message: str = ""
    """Why it failed, cut to a few lines."""


class Verdict(Frozen):
    """What the verifier said of one snapshot. ``reward`` is None exactly when it is invalid."""

    outcome: Outcome
    reward: float | None = None
    rewards: dict[str, float] = Field(default_factory=dict)
    """Every key of the reward file."""
    tests: tuple[TestReport, ...] = ()
    reason: str = ""
    """Why it is invalid, or a remark."""
    log_tail: str = ""
    """The end of the verifier's output."""
    duration_s: float = 0.0
    environment: Literal["original", "substituted"] = "original"
    """``substituted``: an alias supplied an image or a repository that the task names. Such a
    score is no benchmark's number."""
    live_only: bool = False
    """Passed only in the live sandbox, with the agent's processes; not in a clone."""

    def __str__(self) -> str:
        """The verdict in one line."""
        failing = f"{len(self.failing)} of {len(self.tests)} tests fail" if self.failing else ""
        return ": ".join(filter(None, (self.outcome, failing or self.reason)))

    @property
    def passed(self) -> bool:
        """Whether the task is solved."""
        return self.outcome == "passed"

    @property
    def failing(self) -> tuple[str, ...]:
        """Names of the tests that failed."""
        return tuple(test.name for test in self.tests if test.status == "failed")

    @classmethod
    def invalid(cls, reason: str, *, log_tail: str = "", duration_s: float = 0.0) -> Verdict:
        """Return the verdict that nobody may turn into a reward."""
        return cls(outcome="invalid", reason=reason, log_tail=log_tail, duration_s=duration_s)
