"""RTV and PDR: choose between attempts by votes; try anew, told what earlier attempts did.

After "Scaling Test-Time Compute for Agentic Coding" (arXiv 2604.16529). No verifier is asked by the
methods; a fresh attempt begins on an untouched machine, only text crosses.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from sprout_env.records.attempt import Attempt
from sprout_env.records.reviews import Attempts
from sprout_env.records.summary import Ratio
from sprout_env.search.collector import Collector, derive_seed
from sprout_env.search.methods import Method, register_method
from sprout_env.search.render import guard
from sprout_env.search.review import prompt_text
from sprout_env.search.tournament import Tournament, comparable, summarise_attempts


class Selecting(Method):
    """What methods that answer with one attempt share."""

    n: int = Field(default=4, gt=0)
    """Attempts of one generation (the paper: 16)."""
    votes: int = Field(default=4, gt=0)
    """Votes of one comparison, as many in each order (the paper: 8)."""
    review_tokens: int = Field(default=24_000, gt=0)
    """About how many tokens of transcript one summary is made from."""

    def summaries(
        self, collector: Collector, attempts: Sequence[Attempt], generation: int
    ) -> dict[str, str]:
        """Return the summaries of a generation's attempts that were not lost."""
        return summarise_attempts(
            collector,
            comparable(attempts),
            key=f"summaries-{generation}",
            budget_tokens=self.review_tokens,
        )

    def select(
        self, collector: Collector, summaries: Mapping[str, str], keep: int, generation: int
    ) -> tuple[str, ...]:
        """Return the ids that a tournament keeps."""
        key = f"tournament-{generation}"
        return Tournament(collector, summaries, votes=self.votes, key=key).run(keep)

    def answer(
        self, collector: Collector, chosen: Sequence[str], generations: Sequence[Sequence[Attempt]]
    ) -> Attempts:
        """Return the result, with the rate of each generation beside the one that was chosen."""
        data = {}
        for number, attempts in enumerate(generations):
            judged = [attempt for attempt in attempts if attempt.scorable]
            rate = Ratio(count=sum(a.passed for a in judged), of=len(judged))
            data[f"generation {number}"] = str(rate)
            if lost := len(attempts) - len(comparable(attempts)):
                data[f"generation {number} lost"] = str(lost)
        return collector.result(self.name, chosen=chosen[0] if chosen else None, data=data)


class Rtv(Selecting):
    """``n`` independent roots; the policy votes which of them to answer with."""

    kind: Literal["rtv"] = "rtv"

    def collect(self, collector: Collector) -> Attempts:
        """Run the roots, summarise them, hold the tournament."""
        collector.selects = True
        roots = collector.roots(self.n)
        chosen = self.select(collector, self.summaries(collector, roots, 0), 1, 0)
        return self.answer(collector, chosen, [roots])


class Pdr(Selecting):
    """Fresh attempts that are told what ``k`` earlier ones, drawn at random, did.

    It answers with one attempt of the last generation, drawn: its expectation is the generation's
    mean.
    """

    kind: Literal["pdr"] = "pdr"
    k: int = Field(default=2, gt=0)
    """Earlier attempts that a fresh one is told of (the paper: 4 of 16)."""
    generations: int = Field(default=2, gt=1)

    def keep(
        self, collector: Collector, summaries: Mapping[str, str], generation: int
    ) -> tuple[str, ...]:
        """Return the attempts that the next generation is told of."""
        draw = random.Random(derive_seed(collector.seed_for(f"priors-{generation}")))
        return tuple(draw.sample(list(summaries), min(self.k, len(summaries))))

    def final(self, collector: Collector, attempts: Sequence[Attempt]) -> tuple[str, ...]:
        """Return the attempt to answer with."""
        candidates = comparable(attempts)
        if not candidates:
            return ()
        draw = random.Random(derive_seed(collector.seed_for("answer")))
        return (draw.choice(candidates).id,)

    def collect(self, collector: Collector) -> Attempts:
        """Run a generation, hand over what is kept of it, run the next."""
        collector.selects = True
        generations = [collector.roots(self.n)]
        for number in range(1, self.generations):
            summaries = self.summaries(collector, generations[-1], number - 1)
            kept = self.keep(collector, summaries, number - 1)
            notice = priors([summaries[id] for id in kept])
            generations.append(collector.roots(self.n, round=number, notice=notice))
        return self.answer(collector, self.final(collector, generations[-1]), generations)


class RtvPdr(Pdr):
    """PDR whose priors and whose answer are chosen by RTV."""

    kind: Literal["rtv+pdr"] = "rtv+pdr"  # type: ignore[assignment]

    def keep(
        self, collector: Collector, summaries: Mapping[str, str], generation: int
    ) -> tuple[str, ...]:
        """Return what a tournament keeps."""
        return self.select(collector, summaries, self.k, generation)

    def final(self, collector: Collector, attempts: Sequence[Attempt]) -> tuple[str, ...]:
        """Return what a tournament of the last generation keeps."""
        last = self.generations - 1
        return self.select(collector, self.summaries(collector, attempts, last), 1, last)


def priors(summaries: Sequence[str]) -> str:
    """Return what a fresh attempt is told of earlier ones; empty where there are none."""
    if not summaries:
        return ""
    parts = [
        f'<prior n="{n}">\n{guard(text)}\n</prior>' for n, text in enumerate(summaries, start=1)
    ]
    return "\n".join([prompt_text("priors").strip(), *parts])


register_method("rtv", Rtv, at="n")
register_method("pdr", Pdr, at="n")
register_method("rtv+pdr", RtvPdr, at="n")
