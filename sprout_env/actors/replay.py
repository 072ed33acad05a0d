"""An actor that says again what a recorded run said: turns, analyses and plans."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from sprout_env.actors.actor import Completion, Message, TokenFact
from sprout_env.errors import ActorError, ConfigError, ContextExceeded
from sprout_env.records.attempt import Attempt
from sprout_env.records.export import read_attempts, read_reviews
from sprout_env.records.reviews import Exchange
from sprout_env.transcript import Frozen, Transcript, Turn


class _TooLong(ContextExceeded):
    """A recorded sentence."""

    message = "{0}"


class ReplayActor(Frozen):
    """Replays a run's attempts: the one whose turns begin as the transcript does."""

    kind: Literal["replay"] = "replay"
    run: str
    """A run's folder, or one file of attempts."""
    seed: int | None = None
    """The recorded attempt's seed; None: the first attempt that fits."""
    attempt: str | None = None
    """The recorded attempt's id; None: found by seed and transcript."""

    @property
    def name(self) -> str:
        """How it is called where results are printed."""
        return f"replay({self.run})"

    @property
    def gives(self) -> frozenset[TokenFact]:
        """Whatever was recorded: it is not asked for anything that was not."""
        return frozenset({"logprobs", "entropies"})

    def spec(self) -> dict[str, Any]:
        """Return the JSON from which ``load_actor`` makes the same actor elsewhere."""
        return self.model_dump(mode="json")

    def act(self, transcript: Transcript) -> Turn:
        """Return the recorded turn that follows, without its result.

        Raises:
            ActorError: The run has no attempt that begins like this and goes on.
        """
        commands = [turn.command for turn in transcript.turns]
        for attempt in _recorded(self.run):
            if self.attempt is not None and attempt.id != self.attempt:
                continue
            if self.attempt is None and self.seed is not None and attempt.seed != self.seed:
                continue
            if attempt.instruction != transcript.instruction:
                continue
            turns = [entry for entry in attempt.entries if isinstance(entry, Turn)]
            told = [turn.command for turn in turns[: len(commands)]]
            if told == commands and len(turns) > len(commands):
                return turns[len(commands)].model_copy(update={"result": None})
        raise ActorError(
            f"{self.name} has no recorded attempt that goes on after these {len(commands)} turns"
        )

    def complete(
        self, messages: Sequence[Message], schema: Mapping[str, Any] | None = None
    ) -> Completion:
        """Return the recorded answer to exactly these messages, that of the same seed first.

        Raises:
            ActorError: The run has none, or the actor failed there, too.
        """
        asked = tuple((message.role, message.content) for message in messages)
        found = None
        for exchange in _exchanges(self.run):
            if tuple((m.role, m.content) for m in exchange.messages) == asked:
                found = found or exchange
                if exchange.seed == self.seed:
                    found = exchange
                    break
        if found is None:
            raise ActorError(f"{self.name} has no recorded answer to this review")
        if found.error:
            raise ActorError(found.error) if found.lost else _TooLong(found.error)
        return Completion(text=found.answer, trace=found.trace)


def _file(run: str, name: str) -> Path:
    path = Path(run)
    found = path / name if path.is_dir() else path
    if not found.exists():
        raise ConfigError(f"no recorded run at {found}")
    return found


@functools.lru_cache(maxsize=8)
def _read_exchanges(path: Path, stamp: int) -> tuple[Exchange, ...]:
    return tuple(e for review in read_reviews(path) for e in review.exchanges)


def _exchanges(run: str) -> tuple[Exchange, ...]:
    path = _file(run, "reviews.jsonl")
    return _read_exchanges(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=8)
def _read(path: Path, stamp: int) -> tuple[Attempt, ...]:
    return read_attempts(path)


def _recorded(run: str) -> tuple[Attempt, ...]:
    path = _file(run, "attempts.jsonl")
    return _read(path, path.stat().st_mtime_ns)
