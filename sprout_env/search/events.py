"""What happens in a collection, for a live display: small facts, in the order they happen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from sprout_env.records.attempt import Attempt, Boundary, BranchPlan, Usage
from sprout_env.records.reviews import Attempts, DroppedPlan, Part, ReviewRecord
from sprout_env.transcript import Entry


@dataclass(frozen=True)
class Event:
    """Base of all events."""

    task: str


@dataclass(frozen=True)
class TaskStarted(Event):
    """A method begins on a task; ``resumed`` attempts were already paid for."""

    method: str
    resumed: int = 0


@dataclass(frozen=True)
class AttemptStarted(Event):
    """An attempt has its sandbox."""

    attempt: str
    kind: Literal["root", "branch"]
    round: int
    parent: str | None
    boundary: int | None
    """Turns kept of the parent; None for roots."""


@dataclass(frozen=True)
class TurnFinished(Event):
    """A turn was executed."""

    attempt: str
    kind: Literal["root", "branch"]
    turn: int
    command: str
    exit_code: int
    usage: Usage
    """What this one turn's calls cost."""


@dataclass(frozen=True)
class AttemptWatched(Event):
    """How an attempt stands while it runs, for who supervises it; only where a job asks for it."""

    attempt: str
    instruction: str
    entries: tuple[Entry, ...]
    boundaries: tuple[Boundary, ...]
    """Those that are durable by now: the newest turn's is not."""


@dataclass(frozen=True)
class AttemptRetried(Event):
    """The infrastructure failed an attempt, which begins anew."""

    attempt: str
    error: str


@dataclass(frozen=True)
class SnapshotsKept(Event):
    """An attempt's own boundaries are about to outlive their process: what a kill may leave."""

    attempt: str
    snapshots: tuple[str, ...]


@dataclass(frozen=True)
class AttemptFinished(Event):
    """An attempt is over; ``resumed`` when it was read from an earlier run.

    ``shared``: another method of the comparison ran and paid it; it is billed here all the same.
    """

    attempt: Attempt
    resumed: bool = False
    shared: bool = False


@dataclass(frozen=True)
class ReviewStarted(Event):
    """A review of these failures begins."""

    round: int
    failures: tuple[str, ...]


@dataclass(frozen=True)
class ReviewCalled(Event):
    """One question of a review was answered."""

    round: int
    part: Part
    attempt: str | None
    usage: Usage


@dataclass(frozen=True)
class PlanMade(Event):
    """A plan was accepted."""

    round: int
    plan: BranchPlan


@dataclass(frozen=True)
class PlanDropped(Event):
    """A plan did not become a branch."""

    round: int
    dropped: DroppedPlan


@dataclass(frozen=True)
class ReviewFinished(Event):
    """A review is over."""

    review: ReviewRecord
    resumed: bool = False


@dataclass(frozen=True)
class RoundStarted(Event):
    """The branches of a round begin."""

    round: int
    branches: int


@dataclass(frozen=True)
class TaskFinished(Event):
    """The collection of a task is over.

    Not ``whole``: a budget or the infrastructure cut it short, and a rerun goes on with it.
    """

    attempts: Attempts
    whole: bool = True
    resumed: bool = False


OnEvent = Callable[[Event], None]
"""Called from the threads that do the work, one call at a time."""


def ignore(event: Event) -> None:
    """Take no notice."""
