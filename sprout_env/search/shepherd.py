"""A Shepherd-style baseline: a separate meta-agent picks fork points while a root still runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from pydantic import Field, field_validator

from sprout_env.actors.actor import Actor, Message
from sprout_env.actors.load import load_actor
from sprout_env.records.attempt import Attempt, BranchPlan
from sprout_env.records.reviews import Attempts, ReviewRecord
from sprout_env.search.collector import Collector
from sprout_env.search.methods import Method, register_method
from sprout_env.search.plan import plan_schema, read_plans
from sprout_env.search.render import guard, render_attempt
from sprout_env.search.review import ask, prompt_text, read_answer, record_of


class Shepherd(Method):
    """Roots under a supervisor, which knows no verdict; forks run beside the root.

    The supervisor is asked after every ``every`` turns of a root. It may be another, stronger
    model; without one it is the policy itself, asked as supervisor.
    """

    kind: Literal["shepherd"] = "shepherd"
    roots: int = Field(default=1, gt=0)
    forks: int = Field(default=3, ge=0)
    """Most forks of a task; one root and three forks are the attempts of pass@4."""
    every: int = Field(default=4, gt=0)
    """Turns between two looks."""
    supervisor: dict[str, Any] | None = None
    """Who is asked: an actor's spec or short form; None: the policy."""
    hint: bool = False
    """The supervisor also writes the fork's first turn."""
    stop_on_pass: bool = True
    review_tokens: int = Field(default=24_000, gt=0)
    """About how many tokens of transcript one question shows."""

    @field_validator("supervisor", mode="before")
    @classmethod
    def _written_out(cls, value: object) -> object:
        return load_actor(value).spec() if isinstance(value, str) else value

    def check(self, actor: Actor) -> None:
        """Refuse a supervisor that cannot be."""
        if self.supervisor is not None:
            load_actor(self.supervisor)

    @property
    def helpers(self) -> tuple[dict[str, Any], ...]:
        """Actors that it asks beside the policy."""
        return (self.supervisor,) if self.supervisor is not None else ()

    def collect(self, collector: Collector) -> Attempts:
        """Run the roots, look at them as they go, and fork them where the supervisor says so."""
        taken: set[tuple[str, int]] = set()
        left = self.forks

        def decide(root: Attempt, turn: int) -> Sequence[BranchPlan]:
            nonlocal left
            if not left:
                return ()
            key = f"supervision-{root.id.rpartition('-')[2]}-{turn}"
            record = collector.recorded(key, lambda: self._look(collector, root, turn, left, key))
            plans = [p for p in record.plans if (p.attempt, p.boundary) not in taken][:left]
            taken.update((plan.attempt, plan.boundary) for plan in plans)
            left -= len(plans)
            return plans

        collector.watched_roots(
            self.roots, every=self.every, decide=decide, stop_on_pass=self.stop_on_pass
        )
        return collector.result(self.name)

    def _look(
        self, collector: Collector, root: Attempt, turn: int, left: int, key: str
    ) -> ReviewRecord:
        begun = time.monotonic()
        shown = render_attempt(
            root,
            budget_tokens=self.review_tokens,
            max_turns=collector.max_turns,
            feedback="none",
            running=True,
        )
        task = guard(collector.task.instruction)
        asked = f"<task>\n{task}\n</task>\n{shown}\n<forks_left>{left}</forks_left>"
        messages = [
            Message(
                role="system",
                content=prompt_text("supervisor_hint" if self.hint else "supervisor"),
            ),
            Message(role="user", content=asked),
        ]
        with collector.actor(key, self.supervisor) as actor:
            said = ask(
                actor, "supervisor", messages, attempt=root.id, schema=plan_schema(hint=self.hint)
            )
        collector.told("supervisor", root.id, said.usage)
        read = partial(
            read_plans,
            failures=[root],
            branches=left,
            max_turns=collector.max_turns,
            hint=self.hint,
            may_be_none=True,
        )
        plans, dropped = read_answer(said, read)
        return record_of(
            f"{root.task}:{key}",
            1,
            [root.id],
            [said],
            begun,
            kind="supervision",
            plans=plans,
            dropped=dropped,
        )


register_method("shepherd", Shepherd, at="forks")
