"""Training groups: all scorable attempts of a task, with what of each carries loss.

A group is made of roots and branches alike. A shared prefix carries loss once per group (or in
every row, or nowhere); the starting turn of a branch was written under the review's context and is
masked unless the learner recomputes its log-probabilities. Review text is in no row: see
``review_leaks``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal

from sprout_env.errors import ConfigError, GroupWithoutReward, TokensDiverge
from sprout_env.records.attempt import Attempt
from sprout_env.records.reviews import ReviewRecord
from sprout_env.transcript import Entry, Frozen, Turn

PrefixLoss = Literal["once", "all", "none"]
"""Where turns shared by several rows carry loss: in the first row, in all of them, in none."""
StartingTurnLoss = Literal["mask", "recompute"]
"""Whether a branch's starting turn carries loss; ``recompute`` needs new log-probabilities."""


class RowEntry(Frozen):
    """One entry of a row and how the learner takes it."""

    entry: Entry
    loss: bool
    """Whether the assistant's tokens of this turn carry loss in this row."""
    recompute: bool = False
    """Its sampling log-probabilities are of another context and must be computed anew."""


class Row(Frozen):
    """One attempt as the learner sees it."""

    attempt: str
    kind: Literal["root", "branch"]
    instruction: str
    entries: tuple[RowEntry, ...]
    reward: float
    origin: str = ""
    """Id of the node that a branch began after; empty for roots and the untouched start."""


class TokenRow(Frozen):
    """A row as token ids, exactly as the engine saw and sampled them."""

    attempt: str
    token_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    """1 on tokens that were sampled by the policy and carry loss."""
    logprobs: tuple[float, ...]
    """Sampling log-probabilities (natural log), 0.0 where the mask is 0."""
    recompute: tuple[int, ...]
    """1 where ``logprobs`` must be computed anew under the learner's context."""
    versions: tuple[int, ...] = ()
    """Weight version that sampled each token; -1 for what was not sampled, or not known."""
    prompt_length: int = 0
    """Ids before the first that the policy sampled; a branch's shared prefix is not among them."""
    reward: float


class Group(Frozen):
    """All scorable attempts of one task."""

    task: str
    suite: str = ""
    rows: tuple[Row, ...]
    prefix_loss: PrefixLoss
    starting_turn: StartingTurnLoss
    unscorable: int
    """Attempts left out because nobody judged them."""

    def _repr_html_(self) -> str:
        """Draw the rows in a notebook, thick where turns carry loss."""
        from sprout_env.records.pictures import group_html

        return group_html(self)


def group_of(
    attempts: Sequence[Attempt],
    *,
    prefix_loss: PrefixLoss = "once",
    starting_turn: StartingTurnLoss = "mask",
) -> Group:
    """Return the training group of one task's attempts.

    Raises:
        GroupWithoutReward: No attempt has one.
        ConfigError: They are of several tasks.
    """
    scorable = [attempt for attempt in attempts if attempt.reward is not None]
    if not scorable:
        task = attempts[0].task if attempts else "?"
        raise GroupWithoutReward(task, len(attempts), "all verdicts are invalid or missing")
    if len({(attempt.suite, attempt.task) for attempt in scorable}) > 1:
        raise ConfigError("a group holds the attempts of one task")
    shared = Counter(entry.id for attempt in scorable for entry in attempt.entries)
    seen: set[str] = set()
    rows: list[Row] = []
    for attempt in scorable:
        entries: list[RowEntry] = []
        for entry in attempt.entries:
            loss = recompute = False
            if isinstance(entry, Turn):
                recompute = entry.provenance == "policy_under_review"
                loss = entry.provenance == "policy" or (recompute and starting_turn == "recompute")
                if prefix_loss == "once":
                    loss = loss and entry.id not in seen
                elif prefix_loss == "none":
                    loss = loss and shared[entry.id] == 1
            seen.add(entry.id)
            entries.append(RowEntry(entry=entry, loss=loss, recompute=loss and recompute))
        rows.append(
            Row(
                attempt=attempt.id,
                kind=attempt.kind,
                instruction=attempt.instruction,
                entries=tuple(entries),
                reward=float(attempt.reward or 0.0),
                origin=_origin(attempt),
            )
        )
    return Group(
        task=scorable[0].task,
        suite=scorable[0].suite,
        rows=tuple(rows),
        prefix_loss=prefix_loss,
        starting_turn=starting_turn,
        unscorable=len(attempts) - len(scorable),
    )


def _origin(attempt: Attempt) -> str:
    """Return the last node that a branch shares with its parent."""
    last, turn = "", 0
    if attempt.plan is not None:
        for entry in attempt.entries:
            turn += isinstance(entry, Turn)
            if turn > attempt.plan.boundary:
                break
            if isinstance(entry, Turn):
                last = entry.id
    return last


def with_token_ids(
    attempts: Sequence[Attempt],
) -> tuple[tuple[Attempt, ...], tuple[TokensDiverge, ...]]:
    """Part a group's attempts from those that can have no token row.

    An agent that changes its own history, or a server that tells no ids, spoils an attempt, and
    needs not spoil its group: what is kept here goes to ``group_of`` and the exporters.

    Returns:
        The attempts that have one or, unscorable, need none; and why each other one has none.
    """
    kept, refused = [], []
    for attempt in attempts:
        try:
            if attempt.scorable:
                token_row(group_of([attempt]).rows[0])
        except TokensDiverge as error:
            refused.append(error)
        else:
            kept.append(attempt)
    return tuple(kept), tuple(refused)


def token_row(row: Row) -> TokenRow:
    """Return a row as token ids: the concatenation along its path is what the model saw.

    A starting turn has no sampled ids in this context: its text is part of the next prompt. To
    learn from it its turn must carry the ids that the learner's context has for it (a trace
    without log-probabilities, as ``integrations.tokens`` writes it).

    Raises:
        TokensDiverge: A turn that the policy sampled has no token ids, or the ids of two turns do
            not concatenate (each prompt must begin with all ids before it).
    """
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    recompute: list[int] = []
    versions: list[int] = []
    first: int | None = None

    def extend(new: Sequence[int], on: bool, probs: Sequence[float], again: bool) -> None:
        ids.extend(new)
        mask.extend([int(on)] * len(new))
        logprobs.extend(probs if on and len(probs) == len(new) else [0.0] * len(new))
        recompute.extend([int(on and (again or len(probs) != len(new)))] * len(new))

    for item in row.entries:
        turn = item.entry
        if not isinstance(turn, Turn):
            continue
        if turn.provenance != "policy" and not (item.loss and item.recompute):
            continue
        trace = turn.trace
        if trace is None or not trace.token_ids or not trace.prompt_ids:
            raise TokensDiverge(row.attempt, turn.id, "it has no token ids")
        if list(trace.prompt_ids[: len(ids)]) != ids:
            raise TokensDiverge(row.attempt, turn.id, "its prompt does not begin with all before")
        extend(trace.prompt_ids[len(ids) :], False, (), False)
        first = len(ids) if first is None else first
        versions.extend([-1] * (len(ids) - len(versions)))
        extend(trace.token_ids, item.loss, () if item.recompute else trace.logprobs, item.recompute)
        version = -1 if trace.weight_version is None else trace.weight_version
        versions.extend([version] * len(trace.token_ids))
    return TokenRow(
        attempt=row.attempt,
        token_ids=tuple(ids),
        loss_mask=tuple(mask),
        logprobs=tuple(logprobs),
        recompute=tuple(recompute),
        versions=tuple(versions),
        prompt_length=first or 0,
        reward=row.reward,
    )


def _shingles(text: str, size: int) -> Iterator[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    for at in range(len(words) - size + 1):
        yield tuple(words[at : at + size])


def _windows(ids: Sequence[int], size: int = 16) -> Iterator[tuple[int, ...]]:
    for at in range(len(ids) - size + 1):
        yield tuple(ids[at : at + size])


def review_leaks(
    rows: Sequence[Row], reviews: Sequence[ReviewRecord], *, words: int = 8
) -> tuple[str, ...]:
    """Return every run of words that a row shares with what a review wrote; empty is right.

    Looked for are the analyses and the reasons of the plans, as words and (analyses) as runs of
    16 sampled token ids. What an analysis only quotes from the transcripts is no leak, and a
    plan's starting turn is meant to be in its row, masked.
    """
    written: set[tuple[str, ...]] = set()
    quoted: set[tuple[str, ...]] = set()
    sampled: set[tuple[int, ...]] = set()
    prompted: set[tuple[int, ...]] = set()
    for review in (record for record in reviews if record.kind == "review"):
        for exchange in review.exchanges:
            if exchange.part == "analyst":
                written.update(_shingles(exchange.answer, words))
                sampled.update(_windows(exchange.trace.token_ids))
                prompted.update(_windows(exchange.trace.prompt_ids))
                for message in exchange.messages:
                    quoted.update(_shingles(message.content, words))
        for plan in review.plans:
            written.update(_shingles(plan.why, words))
    written -= quoted
    sampled -= prompted
    found: list[str] = []
    for row in rows:
        for item in row.entries:
            entry = item.entry
            texts: tuple[str, ...]
            if not isinstance(entry, Turn):
                texts = (entry.text,)
            elif entry.provenance == "policy_under_review":
                texts = (entry.result.output if entry.result else "",)
            else:
                output = entry.result.output if entry.result else ""
                texts = (entry.message, entry.command, output)
                for ids in (entry.trace.prompt_ids, entry.trace.token_ids) if entry.trace else ():
                    found.extend(
                        f"{row.attempt}: token ids {window}"
                        for window in _windows(ids)
                        if window in sampled
                    )
            for text in texts:
                found.extend(
                    f"{row.attempt}: {' '.join(shingle)}"
                    for shingle in _shingles(text, words)
                    if shingle in written
                )
    return tuple(found)
