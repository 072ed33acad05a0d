"""Summaries of attempts, and a tournament over them by votes; no verifier is asked."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sprout_env.actors.actor import Message
from sprout_env.records.attempt import Attempt
from sprout_env.records.reviews import Duel, ReviewRecord
from sprout_env.search.collector import Collector, derive_seed
from sprout_env.search.plan import json_values
from sprout_env.search.render import guard, render_attempt
from sprout_env.search.review import Asked, ask, prompt_text, record_of

FIELDS = ("approach", "decisions", "worked", "failed", "final_state", "risks")
WORKERS = 4
"""Questions asked at the same time."""


def _summary_schema() -> dict[str, Any]:
    text = {"type": "string"}
    properties: dict[str, Any] = dict.fromkeys(FIELDS, text)
    properties["decisions"] = {"type": "array", "items": text}
    return {
        "type": "object",
        "properties": properties,
        "required": list(FIELDS),
        "additionalProperties": False,
    }


_VOTE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"why": {"type": "string"}, "winner": {"type": "integer", "enum": [1, 2]}},
    "required": ["why", "winner"],
    "additionalProperties": False,
}


def comparable(attempts: Sequence[Attempt]) -> tuple[Attempt, ...]:
    """Return the attempts that can be summarised: not those that the machine lost."""
    return tuple(a for a in attempts if a.status not in ("infra_error", "stopped") and a.entries)


def summarise_attempts(
    collector: Collector, attempts: Sequence[Attempt], *, key: str, budget_tokens: int
) -> dict[str, str]:
    """Have each attempt summarised by the policy; return the summaries by attempt.

    Where the actor fails, a stub that says how the attempt ended stands in.

    Raises:
        BudgetExhausted: A budget is used up.
    """

    def one(attempt: Attempt) -> Asked:
        shown = render_attempt(
            attempt, budget_tokens=budget_tokens, max_turns=collector.max_turns, feedback="none"
        )
        task = guard(collector.task.instruction)
        messages = [
            Message(role="system", content=prompt_text("summary")),
            Message(role="user", content=f"<task>\n{task}\n</task>\n{shown}"),
        ]
        with collector.actor(f"{key}-{attempt.id}") as actor:
            return ask(actor, "summary", messages, attempt=attempt.id, schema=_summary_schema())

    def make() -> ReviewRecord:
        begun = time.monotonic()
        with ThreadPoolExecutor(WORKERS) as pool:
            said = list(pool.map(one, attempts))
        for item in said:
            collector.told("summary", item.exchange.attempt, item.usage)
        read = [attempt.id for attempt in attempts]
        return record_of(f"{collector.task.name}:{key}", 0, read, said, begun, kind="summaries")

    record = collector.recorded(key, make)
    told = {e.attempt: e.answer.strip() for e in record.exchanges if not e.error}
    return {a.id: told.get(a.id) or _stub(a) for a in attempts}


def _stub(attempt: Attempt) -> str:
    return f"No summary could be made. It took {attempt.own_turns} turns; ended: {attempt.status}."


class Tournament:
    """Pairwise duels until ``keep`` are left: even votes in both orders, byes for the odd one.

    A vote that cannot be read is asked for once more, then discarded. A tie is decided by a draw
    that follows from the run's seed.
    """

    def __init__(
        self, collector: Collector, summaries: Mapping[str, str], *, votes: int, key: str
    ) -> None:
        self._collector = collector
        self._summaries = summaries
        self._votes = votes
        self._key = key
        self._draw = random.Random(derive_seed(collector.seed_for(key)))
        self._asked: list[Asked] = []
        self._duels: list[Duel] = []

    def run(self, keep: int) -> tuple[str, ...]:
        """Return the ids that are left.

        Raises:
            BudgetExhausted: A budget is used up.
        """
        return self._collector.recorded(self._key, lambda: self._make(keep)).chosen

    def _make(self, keep: int) -> ReviewRecord:
        begun = time.monotonic()
        left = list(self._summaries)
        self._draw.shuffle(left)
        with ThreadPoolExecutor(WORKERS) as pool:
            while len(left) > keep:
                duels = min(len(left) // 2, len(left) - keep)
                pairs = [(left[2 * n], left[2 * n + 1]) for n in range(duels)]
                left = [self._duel(pool, *pair) for pair in pairs] + left[2 * duels :]
                self._draw.shuffle(left)
        return record_of(
            f"{self._collector.task.name}:{self._key}",
            0,
            [*self._summaries],
            self._asked,
            begun,
            kind="tournament",
            duels=tuple(self._duels),
            chosen=tuple(left),
        )

    def _duel(self, pool: ThreadPoolExecutor, first: str, second: str) -> str:
        swapped = [vote % 2 == 1 for vote in range(self._votes)]
        number = len(self._duels)
        asked = [
            pool.submit(self._vote, first, second, swap, f"{self._key}-{number}-{vote}")
            for vote, swap in enumerate(swapped)
        ]
        count = {first: 0, second: 0}
        discarded = 0
        for question in asked:
            said, choice = question.result()
            for item in said:
                self._asked.append(item)
                self._collector.told("vote", None, item.usage)
            if choice is None:
                discarded += 1
            else:
                count[choice] += 1
        tie = count[first] == count[second]
        winner = self._draw.choice((first, second)) if tie else max(count, key=count.__getitem__)
        self._duels.append(
            Duel(
                first=first,
                second=second,
                for_first=count[first],
                for_second=count[second],
                discarded=discarded,
                winner=winner,
                tie=tie,
            )
        )
        return winner

    def _vote(
        self, first: str, second: str, swap: bool, key: str
    ) -> tuple[list[Asked], str | None]:
        shown = (second, first) if swap else (first, second)
        task = guard(self._collector.task.instruction)
        parts = [f"<task>\n{task}\n</task>"]
        for n, id in enumerate(shown, start=1):
            text = guard(self._summaries[id])
            parts.append(f'<candidate n="{n}">\n{text}\n</candidate>')
        messages = [
            Message(role="system", content=prompt_text("vote")),
            Message(role="user", content="\n".join(parts)),
        ]
        said: list[Asked] = []
        with self._collector.actor(key) as actor:
            for _ in range(2):
                said.append(ask(actor, "vote", messages, schema=_VOTE_SCHEMA))
                winner = read_vote(said[-1].exchange.answer)
                if winner is not None or said[-1].exchange.error:
                    break
                messages = [
                    *messages,
                    Message(role="assistant", content=said[-1].exchange.answer or "(empty)"),
                    Message(
                        role="user",
                        content="Your answer cannot be read. Write the JSON alone, with `winner` "
                        "being 1 or 2.",
                    ),
                ]
        return said, shown[winner - 1] if winner is not None else None


def read_vote(text: str) -> int | None:
    """Return which candidate an answer votes for: 1, 2, or None where it does not say."""
    for value in json_values(text):
        if isinstance(value, dict) and value.get("winner") in (1, 2, "1", "2"):
            return int(value["winner"])
    return None
