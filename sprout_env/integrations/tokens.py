"""Token in, token out: an actor around a model that the trainer holds in this process.

Ids that the model sampled are passed through untouched and are never made again from text; only
what the model did not write (instruction, results, notices, starting turns) is encoded, once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from sprout_env.actors.actor import Actor, Completion, Message
from sprout_env.actors.load import register_actor
from sprout_env.errors import ActorError, TokensDiverge
from sprout_env.records.attempt import Attempt
from sprout_env.transcript import Entry, Notice, TokenTrace, Transcript, Turn


class Sampled(NamedTuple):
    """One answer of a model."""

    token_ids: tuple[int, ...]
    """The end-of-turn token included, where it was sampled."""
    logprobs: tuple[float, ...]
    """Natural log, at the temperature that was sampled with."""
    version: int
    """Of the weights."""
    finish_reason: str


class Sampler(Protocol):
    """A model that continues token ids. Used by many threads."""

    def sample(self, prompt_ids: Sequence[int], *, seed: int, max_tokens: int) -> Sampled:
        """Return its continuation up to its end-of-turn token."""


class Dialect(Protocol):
    """How a conversation is written in tokens: each piece is encoded alone and appended."""

    def begin(self, instruction: str) -> Sequence[int]:
        """Return all ids before the first answer."""

    def read(self, token_ids: Sequence[int]) -> tuple[str, str]:
        """Return message and command of a sampled answer; a command that only fails if none."""

    def write(self, turn: Turn) -> Sequence[int]:
        """Return the ids of an answer that the model did not sample."""

    def show(self, entry: Turn | Notice) -> Sequence[int]:
        """Return what follows an answer (its result) or is told, up to the next answer."""

    def ask(self, messages: Sequence[Message]) -> Sequence[int]:
        """Return the ids of free messages, up to the answer."""

    def text(self, token_ids: Sequence[int]) -> str:
        """Return a sampled answer as text."""


def context_ids(dialect: Dialect, instruction: str, entries: Sequence[Entry]) -> tuple[int, ...]:
    """Return what the model sees after these entries, up to its next answer.

    Raises:
        TokensDiverge: A turn was sampled under other ids than those that precede it here.
    """
    ids = list(dialect.begin(instruction))
    for entry in entries:
        if isinstance(entry, Turn) and entry.provenance == "policy" and entry.trace is not None:
            if tuple(ids) != entry.trace.prompt_ids:
                raise TokensDiverge("(running)", entry.id, "this dialect writes other ids before")
            ids += entry.trace.token_ids
        elif isinstance(entry, Turn):
            ids += dialect.write(entry)
        ids += dialect.show(entry)
    return tuple(ids)


def with_starting_ids(dialect: Dialect, attempt: Attempt) -> Attempt:
    """Return an attempt whose starting turns carry the ids of the learner's context.

    Without log-probabilities: they were sampled in another context, if at all, and a learner that
    trains on them (``starting_turn="recompute"``) computes them anew.
    """
    entries: list[Entry] = []
    for at, entry in enumerate(attempt.entries):
        if isinstance(entry, Turn) and entry.provenance == "policy_under_review":
            trace = TokenTrace(
                prompt_ids=context_ids(dialect, attempt.instruction, attempt.entries[:at]),
                token_ids=tuple(dialect.write(entry)),
            )
            entries.append(entry.model_copy(update={"trace": trace}))
        else:
            entries.append(entry)
    return attempt.model_copy(update={"entries": tuple(entries)})


class TokenActor:
    """Acts by a sampler in a dialect.

    Args:
        name: How it is called where results are printed.
        sampler: The model.
        dialect: How it is spoken to.
        seed: Of this attempt's draws; 0 unless told.
        max_tokens: Most tokens of one answer, 256 unless told. An attempt has one answer a
            turn: bound these too, by the run's ``limits={"max_turns": ...}`` (unless told, the
            task's own limit, if it has one).
        reviewer: Who answers reviews in its place (a model too small to read); None: itself.
    """

    def __init__(
        self,
        name: str,
        sampler: Sampler,
        dialect: Dialect,
        *,
        seed: int = 0,
        max_tokens: int = 256,
        reviewer: Actor | None = None,
    ) -> None:
        self._name, self._sampler, self._dialect = name, sampler, dialect
        self._seed, self._max_tokens, self._reviewer = seed, max_tokens, reviewer

    @property
    def name(self) -> str:
        """How it is called where results are printed."""
        return f"{self._name}, simulated reviewer" if self._reviewer else self._name

    def act(self, transcript: Transcript) -> Turn:
        """Sample the next turn from the ids of the transcript."""
        prompt = context_ids(self._dialect, transcript.instruction, transcript.entries)
        sampled = self._sampler.sample(
            prompt, seed=self._seed * 1000 + transcript.turn, max_tokens=self._max_tokens
        )
        message, command = self._dialect.read(sampled.token_ids)
        return Turn(message=message, command=command, trace=self._trace(prompt, sampled))

    def complete(
        self, messages: Sequence[Message], schema: Mapping[str, Any] | None = None
    ) -> Completion:
        """Answer a review, or let the reviewer do so."""
        if self._reviewer is not None:
            return self._reviewer.complete(messages, schema)
        prompt = tuple(self._dialect.ask(messages))
        sampled = self._sampler.sample(prompt, seed=self._seed, max_tokens=self._max_tokens)
        return Completion(
            text=self._dialect.text(sampled.token_ids), trace=self._trace(prompt, sampled)
        )

    def _trace(self, prompt: tuple[int, ...], sampled: Sampled) -> TokenTrace:
        return TokenTrace(
            prompt_ids=prompt,
            token_ids=sampled.token_ids,
            logprobs=sampled.logprobs,
            model=self._name,
            prompt_tokens=len(prompt),
            completion_tokens=len(sampled.token_ids),
            finish_reason=sampled.finish_reason,
            weight_version=sampled.version,
        )

    def spec(self) -> dict[str, Any]:
        """Return the JSON that stands for it in this process, once it is published."""
        return {"kind": "live", "name": self._name, "seed": self._seed}


_LIVE: dict[str, Callable[[int], Actor]] = {}


def _live(spec: Mapping[str, Any]) -> Actor:
    make = _LIVE.get(str(spec.get("name")))
    if make is None:
        raise ActorError(f"no live actor {spec.get('name')!r} in this process")
    return make(int(spec.get("seed") or 0))


def publish(name: str, make: Callable[[int], Actor]) -> dict[str, Any]:
    """Let attempts of this process act by something that lives in it; return the actor's spec.

    Args:
        name: Its name; an actor of that name is replaced.
        make: Makes the actor of one attempt from its seed.
    """
    register_actor("live", _live)
    _LIVE[name] = make
    return {"kind": "live", "name": name}


def withdraw(name: str) -> None:
    """Forget a published actor."""
    _LIVE.pop(name, None)
