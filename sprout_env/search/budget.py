"""Budgets of a run, the meter that reads them, and the signal that ends work early."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, Protocol

from pydantic import Field

from sprout_env.errors import BudgetExhausted, SproutError
from sprout_env.records.attempt import Usage
from sprout_env.search.events import (
    AttemptFinished,
    Event,
    ReviewCalled,
    ReviewFinished,
    TurnFinished,
)
from sprout_env.transcript import Frozen


class Prices(Frozen):
    """What a million tokens cost, in any one currency."""

    prompt: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    cached: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Prompt tokens from the server's cache; None: as any other."""
    completion: float = Field(default=0.0, ge=0, allow_inf_nan=False)

    def cost(self, usage: Usage) -> float:
        """Return what calls cost."""
        cached = self.prompt if self.cached is None else self.cached
        fresh = usage.prompt_tokens - usage.cached_tokens
        total = fresh * self.prompt + usage.cached_tokens * cached
        return (total + usage.completion_tokens * self.completion) / 1e6


class Budget(Frozen):
    """Limits of a whole run; None is no limit. Attempts of an earlier, resumed part count too."""

    calls: int | None = Field(default=None, gt=0)
    tokens: int | None = Field(default=None, gt=0)
    """Prompt and completion tokens together, prompts counted per request."""
    seconds: float | None = Field(default=None, gt=0)
    """Wall time of this process's part of the run."""
    money: float | None = Field(default=None, gt=0)
    """In the currency of ``prices``."""
    prices: Prices = Prices()

    @classmethod
    def make(cls, **limits: Any) -> Budget:
        """Return a budget of what a person typed.

        Raises:
            ConfigError: A limit is not above 0.
        """
        return cls.told("budget of ", limits)


StopReason = Literal["", "passed", "budget", "cancelled"]
_RANK: dict[StopReason, int] = {"": 0, "passed": 1, "budget": 2, "cancelled": 3}


class _Closable(Protocol):
    def close(self) -> None: ...


class Stop:
    """Tells running attempts to end; the signal of a round is a child of the run's."""

    def __init__(self, parent: Stop | None = None) -> None:
        self._parent = parent
        self._reason: StopReason = ""
        self._lock = threading.Lock()
        self._open: dict[int, _Closable] = {}

    @property
    def reason(self) -> StopReason:
        """Why to end; empty: go on."""
        above: StopReason = self._parent.reason if self._parent is not None else ""
        return max(self._reason, above, key=_RANK.__getitem__)

    def set(self, reason: StopReason) -> None:
        """Ask all attempts under this signal to end; a stronger reason stays."""
        with self._lock:
            self._reason = max(self._reason, reason, key=_RANK.__getitem__)

    @contextmanager
    def closing(self, thing: _Closable) -> Iterator[None]:
        """Have ``cancel``, here or above, close this too while the block runs."""
        chain = [self]
        while (above := chain[-1]._parent) is not None:
            chain.append(above)
        for signal in chain:
            with signal._lock:
                signal._open[id(thing)] = thing
        try:
            yield
        finally:
            for signal in chain:
                with signal._lock:
                    signal._open.pop(id(thing), None)

    def cancel(self) -> None:
        """End everything under it now: sandboxes and connections are closed under their users."""
        self.set("cancelled")
        with self._lock:
            things = list(self._open.values())
        for thing in things:
            try:
                thing.close()
            except SproutError:
                # Its own thread closes it as well, and reports what is worth reporting.
                continue


class Meter:
    """Adds up what a run costs, from its events, and pulls the signal when a budget is used up."""

    def __init__(self, budget: Budget, stop: Stop) -> None:
        self.budget = budget
        self._stop = stop
        self._lock = threading.Lock()
        self._begun = time.monotonic()
        self._spent = Usage()

    @property
    def spent(self) -> Usage:
        """All calls so far."""
        return self._spent

    @property
    def money(self) -> float:
        """What they cost."""
        return self.budget.prices.cost(self._spent)

    def on_event(self, event: Event) -> None:
        """Count an event's calls."""
        usage = Usage()
        if isinstance(event, TurnFinished | ReviewCalled):
            usage = event.usage
        elif isinstance(event, AttemptFinished) and (event.resumed or event.shared):
            usage = event.attempt.usage
        elif isinstance(event, ReviewFinished) and event.resumed:
            usage = event.review.usage
        self.add(usage)

    def add(self, usage: Usage) -> None:
        """Count calls."""
        with self._lock:
            self._spent = self._spent + usage
        if self.exceeded() is not None:
            self._stop.set("budget")

    def exceeded(self) -> tuple[str, float] | None:
        """Return which budget is used up, and its limit."""
        spent, budget = self._spent, self.budget
        pairs: tuple[tuple[str, float, float | None], ...] = (
            ("calls", spent.calls, budget.calls),
            ("tokens", spent.tokens, budget.tokens),
            ("seconds", time.monotonic() - self._begun, budget.seconds),
            ("money", self.money, budget.money),
        )
        for name, used, limit in pairs:
            if limit is not None and used >= limit:
                return name, limit
        return None

    def check(self) -> None:
        """Refuse new work when a budget is used up.

        Raises:
            BudgetExhausted: Which one, and its limit.
        """
        found = self.exceeded()
        if found is not None:
            raise BudgetExhausted(*found)
