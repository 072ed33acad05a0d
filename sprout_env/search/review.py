"""The review: the same actor as analyst of every failed attempt, then as reviewer with plans.

What is asked and answered stays in a ``ReviewRecord``; of all its text only a plan's starting turn
ever enters an attempt.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import partial
from importlib.resources import files
from typing import Any

from pydantic import Field

from sprout_env.actors.actor import Actor, Message
from sprout_env.errors import ConfigError, ContextExceeded, SproutError
from sprout_env.records.attempt import Attempt, Usage
from sprout_env.records.reviews import (
    DroppedPlan,
    Exchange,
    Part,
    ReviewMessage,
    ReviewRecord,
)
from sprout_env.search.events import OnEvent, PlanDropped, PlanMade, ReviewCalled, ReviewStarted
from sprout_env.search.events import ignore as ignore_events
from sprout_env.search.plan import PlanReading, merge_readings, plan_schema, read_plans
from sprout_env.search.render import Feedback, fit, guard, render_attempt
from sprout_env.transcript import Frozen, TokenTrace

RETRIES = 1
"""How often a question that an actor or its server failed to answer is asked again."""
_LOG = logging.getLogger(__name__)


class ReviewSettings(Frozen):
    """How reviews are held."""

    branches: int = Field(default=4, gt=0)
    """Most plans of one review."""
    budget_tokens: int = Field(default=24_000, gt=0)
    """About how many tokens of transcripts one prompt shows."""
    feedback: Feedback = "tests"
    hint: bool = True
    """Plans carry a starting turn."""
    workers: int = Field(default=4, gt=0)
    """Analysts asked at the same time."""


def prompt_text(part: str) -> str:
    """Return the instructions of one part: a file of ``prompts/`` without its ending."""
    return files("sprout_env.search").joinpath(f"prompts/{part}.md").read_text(encoding="utf-8")


def usage_of(trace: TokenTrace | None, seconds: float = 0.0) -> Usage:
    """Return what the calls behind a trace cost."""
    if trace is None:
        return Usage(calls=1, seconds=seconds)
    return Usage(
        calls=trace.requests,
        prompt_tokens=trace.prompt_tokens,
        cached_tokens=trace.cached_tokens,
        completion_tokens=trace.completion_tokens,
        seconds=seconds,
    )


class Asked(Frozen):
    """One exchange and its bill."""

    exchange: Exchange
    usage: Usage


def ask(
    actor: Actor,
    part: Part,
    messages: Sequence[Message],
    *,
    attempt: str | None = None,
    schema: Mapping[str, Any] | None = None,
) -> Asked:
    """Ask one question, again if the actor fails; then that is part of the exchange.

    Raises:
        CancelledError: The run was cancelled meanwhile.
    """
    begun = time.monotonic()
    answer, trace, problem, lost = "", TokenTrace(requests=0), "", False
    for _ in range(1 + RETRIES):
        try:
            completion = actor.complete(messages, schema)
        except ContextExceeded as error:
            problem, lost = str(error), False
            break
        except CancelledError:
            raise
        except Exception as error:
            if not isinstance(error, SproutError):
                _LOG.exception("%s of attempt %s", part, attempt)
            problem, lost = str(error) or type(error).__name__, True
        else:
            answer, trace, problem, lost = completion.text, completion.trace, "", False
            break
    exchange = Exchange(
        part=part,
        attempt=attempt,
        messages=tuple(ReviewMessage(role=m.role, content=m.content) for m in messages),
        answer=answer,
        trace=trace,
        error=problem,
        lost=lost,
        seed=actor.spec().get("seed"),
    )
    return Asked(exchange=exchange, usage=usage_of(trace, time.monotonic() - begun))


def record_of(
    id: str, round: int, read: Sequence[str], asked: Sequence[Asked], begun: float, **more: Any
) -> ReviewRecord:
    """Return the record of questions that were asked.

    Args:
        id: Task and key, as ``task:review-1``.
        round: The round.
        read: Ids of the attempts that were read.
        asked: The questions.
        begun: The monotonic clock at their beginning.
        **more: What else came of them.
    """
    return ReviewRecord(
        id=id,
        task=id.rpartition(":")[0],
        round=round,
        failures=tuple(read),
        exchanges=tuple(item.exchange for item in asked),
        usage=Usage.sum(item.usage for item in asked),
        seconds=time.monotonic() - begun,
        **more,
    )


def read_answer(said: Asked, read: Callable[[str], PlanReading]) -> PlanReading:
    """Return the plans of an answer; of none where the actor failed, which is said."""
    if said.exchange.error:
        fault = DroppedPlan(reason="actor_failed", detail=said.exchange.error)
        return PlanReading((), (fault,))
    return read(said.exchange.answer)


def analyst_messages(
    instruction: str, attempt: Attempt, settings: ReviewSettings, max_turns: int | None
) -> list[Message]:
    """Return what the analyst of one failed attempt is asked."""
    shown = render_attempt(
        attempt,
        budget_tokens=settings.budget_tokens,
        max_turns=max_turns,
        feedback=settings.feedback,
    )
    return [
        Message(role="system", content=prompt_text("analyst")),
        Message(role="user", content=f"<task>\n{guard(instruction)}\n</task>\n{shown}"),
    ]


def reviewer_messages(
    instruction: str,
    failures: Sequence[Attempt],
    analyses: Mapping[str, str],
    settings: ReviewSettings,
    max_turns: int | None,
) -> list[Message]:
    """Return what the reviewer of all failed attempts is asked."""

    def render(attempt: Attempt, budget_tokens: int) -> str:
        return render_attempt(
            attempt,
            budget_tokens=budget_tokens,
            max_turns=max_turns,
            feedback=settings.feedback,
            analysis=analyses.get(attempt.id),
        )

    shown = fit(failures, settings.budget_tokens, render)
    asked = f"<branches>{settings.branches}</branches>"
    return [
        Message(
            role="system",
            content=prompt_text("reviewer" if settings.hint else "reviewer_no_hint"),
        ),
        Message(role="user", content=f"<task>\n{guard(instruction)}\n</task>\n{shown}\n{asked}"),
    ]


def review(
    actor: Actor,
    instruction: str,
    failures: Sequence[Attempt],
    *,
    round: int,
    settings: ReviewSettings,
    max_turns: int | None,
    earlier: Sequence[ReviewRecord] = (),
    on_event: OnEvent = ignore_events,
) -> ReviewRecord:
    """Hold one review round over all failed attempts, those of earlier rounds included.

    An actor that fails (no server, prompt too long) is part of the record and makes no plans; it
    never raises from here.

    Args:
        actor: The policy itself.
        instruction: The task's.
        failures: Attempts that the verifier judged and failed.
        round: 1 for the first.
        settings: How it is held.
        max_turns: Most turns of an attempt; None: no limit.
        earlier: Reviews before this one; their analyses are not asked for again.
        on_event: Told of every call and plan.

    Raises:
        ConfigError: There is nothing to review.
    """
    if not failures:
        raise ConfigError("a review needs at least one failed attempt")
    begun = time.monotonic()
    task = failures[0].task
    on_event(ReviewStarted(task, round, tuple(attempt.id for attempt in failures)))
    analyses: dict[str, str] = {}
    for attempt in failures:
        known = (record.analysis_of(attempt.id) for record in earlier)
        if (text := next((k for k in known if k is not None), None)) is not None:
            analyses[attempt.id] = text
    asked: list[Asked] = []

    def note(item: Asked) -> None:
        asked.append(item)
        part, attempt = item.exchange.part, item.exchange.attempt
        on_event(ReviewCalled(task, round, part, attempt, item.usage))

    fresh = [attempt for attempt in failures if attempt.id not in analyses]
    with ThreadPoolExecutor(min(settings.workers, len(fresh)) or 1) as pool:
        questions = [
            pool.submit(
                partial(ask, actor, "analyst", attempt=attempt.id),
                analyst_messages(instruction, attempt, settings, max_turns),
            )
            for attempt in fresh
        ]
        for question in questions:
            note(question.result())
    analyses |= {
        item.exchange.attempt: item.exchange.answer
        for item in asked
        if item.exchange.attempt is not None and not item.exchange.error
    }
    messages = reviewer_messages(instruction, failures, analyses, settings, max_turns)
    schema = plan_schema(hint=settings.hint)
    read = partial(
        read_plans,
        failures=failures,
        branches=settings.branches,
        max_turns=max_turns,
        hint=settings.hint,
    )
    note(ask(actor, "reviewer", messages, schema=schema))
    first = asked[-1].exchange
    reading = read_answer(asked[-1], read)
    reasked = bool(reading.complaint) and not first.error
    if reasked:
        told = (
            "Your answer cannot be used as it is:\n"
            f"{reading.complaint}\n"
            "Write the whole JSON again, with all plans, and nothing else."
        )
        again = [
            *messages,
            Message(role="assistant", content=first.answer or "(empty)"),
            Message(role="user", content=told),
        ]
        note(ask(actor, "reviewer", again, schema=schema))
        second = asked[-1].exchange
        if not second.error:
            reading = merge_readings(reading, read(second.answer), failures, settings.branches)
    for plan in reading.plans:
        on_event(PlanMade(task, round, plan))
    for dropped in reading.dropped:
        on_event(PlanDropped(task, round, dropped))
    return record_of(
        f"{task}:review-{round}",
        round,
        [attempt.id for attempt in failures],
        asked,
        begun,
        plans=reading.plans,
        dropped=reading.dropped,
        reasked=reasked,
    )
