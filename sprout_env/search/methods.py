"""Methods: each one object with one ``collect``, all on the same collector, chosen by name."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from sprout_env.actors.actor import Actor, TokenFact
from sprout_env.errors import ConfigError
from sprout_env.records.reviews import Attempts
from sprout_env.search.collector import Collector
from sprout_env.search.render import Feedback
from sprout_env.search.review import ReviewSettings
from sprout_env.transcript import Frozen


class Method(Frozen):
    """How a task's attempts are chosen: a frozen model whose fields are its settings."""

    @property
    def name(self) -> str:
        """How it is called in tables."""
        return str(self.spec()["kind"])

    def spec(self) -> dict[str, Any]:
        """Return the JSON from which ``load_method`` makes it again."""
        return self.model_dump(mode="json")

    @property
    def helpers(self) -> tuple[dict[str, Any], ...]:
        """Specs of actors that it asks beside the policy."""
        return ()

    @property
    def needs(self) -> frozenset[TokenFact]:
        """What it must be told of the policy's tokens."""
        return frozenset()

    def check(self, actor: Actor) -> None:
        """Refuse an actor that cannot serve it, before anything is spent.

        Raises:
            ConfigError: What the actor lacks.
        """

    @abstractmethod
    def collect(self, collector: Collector) -> Attempts:
        """Do all that it does for the collector's task.

        Raises:
            BudgetExhausted: A budget is used up; the collector holds what was finished.
        """


class Sprout(Method):
    """Roots, then rounds of review and branches while nothing has passed.

    Example:
        >>> Sprout(rounds=2, branches=4).name
        'sprout'
    """

    kind: Literal["sprout"] = "sprout"
    roots: int = Field(default=1, gt=0)
    rounds: int = Field(default=2, ge=0)
    branches: int = Field(default=4, gt=0)
    """Most branches of one round."""
    stop_on_pass: bool = True
    """The first pass ends its siblings; off for training, where each attempt is wanted whole."""
    review_tokens: int = Field(default=24_000, gt=0)
    """About how many tokens of transcripts one review prompt shows."""
    feedback: Feedback = "tests"
    hint: bool = True
    """Branches begin with the reviewer's starting turn."""

    def collect(self, collector: Collector) -> Attempts:
        """Run roots; while nothing has passed, review all failures and branch."""
        collector.roots(self.roots, stop_on_pass=self.stop_on_pass)
        settings = ReviewSettings(
            branches=self.branches,
            budget_tokens=self.review_tokens,
            feedback=self.feedback,
            hint=self.hint,
        )
        for round in range(1, self.rounds + 1):
            if collector.passed or not collector.failures:
                break
            plans = collector.review(round=round, settings=settings).plans
            if plans:
                collector.branches(plans, round=round, stop_on_pass=self.stop_on_pass)
        return collector.result(self.name)


class RollbackNoHint(Sprout):
    """SPROUT whose branches begin without the reviewer's turn: a plan is a boundary alone."""

    kind: Literal["rollback_no_hint"] = "rollback_no_hint"  # type: ignore[assignment]
    hint: Literal[False] = False


class RewardOnlyReview(Sprout):
    """SPROUT whose reviews learn the reward, and of no test."""

    kind: Literal["reward_only_review"] = "reward_only_review"  # type: ignore[assignment]
    feedback: Literal["reward"] = "reward"


class PassAtK(Method):
    """``k`` independent roots."""

    kind: Literal["pass"] = "pass"
    k: int = Field(default=1, gt=0)
    stop_on_pass: bool = False

    @property
    def name(self) -> str:
        """How it is called in tables."""
        return f"pass@{self.k}"

    def collect(self, collector: Collector) -> Attempts:
        """Run the roots."""
        collector.roots(self.k, stop_on_pass=self.stop_on_pass)
        return collector.result(self.name)


_KINDS: dict[str, tuple[type[Method], str | None]] = {}
"""Methods by the ``kind`` of their spec, and the setting behind ``@``."""


def register_method(kind: str, method: type[Method], at: str | None = None) -> None:
    """Make a method known by name.

    Args:
        kind: Its name, and the ``kind`` of its spec.
        method: Its class.
        at: The setting that ``kind@value`` stands for.
    """
    _KINDS[kind] = (method, at)


def method_names() -> tuple[str, ...]:
    """Return the names of all methods."""
    named = (f"{kind}@{at.upper()}" if at else kind for kind, (_, at) in _KINDS.items())
    return tuple(sorted(named))


def load_method(spec: Mapping[str, Any] | str) -> Method:
    """Return the method that a spec describes.

    Args:
        spec: JSON with a ``kind``, or its short form: ``sprout``, ``pass@4``,
            ``sprout:rounds=2,branches=4``.

    Raises:
        ConfigError: The method or a setting is unknown or out of range.

    Example:
        >>> load_method("pass@4").name
        'pass@4'
    """
    if isinstance(spec, str):
        head, _, tail = spec.partition(":")
        kind, _, value = head.partition("@")
        settings: dict[str, Any] = {"kind": kind}
        if value:
            at = _KINDS[kind][1] if kind in _KINDS else None
            settings[at or "@"] = value
        for item in filter(None, tail.split(",")):
            name, equals, setting = item.partition("=")
            if not equals:
                raise ConfigError(f"cannot read method {spec!r}: {item!r} is not name=value")
            settings[name.strip()] = setting.strip()
    else:
        settings = dict(spec)
    known = _KINDS.get(str(settings.get("kind")))
    if known is None:
        names = ", ".join(method_names())
        raise ConfigError(f"no method {settings.get('kind')!r}; there are {names}")
    return known[0].told(f"method {settings['kind']}: ", settings)


register_method("sprout", Sprout)
register_method("pass", PassAtK, at="k")
register_method("rollback_no_hint", RollbackNoHint)
register_method("reward_only_review", RewardOnlyReview)
