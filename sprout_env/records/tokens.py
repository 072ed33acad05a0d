"""The rollout tree in tokens: each message once, with what the engine saw and sampled of it.

The concatenation along a path is exactly the prompt of the last call and its answer; text is only
a view of it. An observation's ids are what a call's prompt has beyond all ids before it, so two
branches of one boundary share nodes for as long as they share ids and turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from pydantic import Field

from sprout_env.errors import TokensDiverge
from sprout_env.records.attempt import Attempt
from sprout_env.records.tree import Leaf, RolloutTree, path_to, tree_of
from sprout_env.transcript import Entry, Frozen, Provenance, Turn

NodeKind = Literal["prompt", "observation", "injected", "action"]


class TokenNode(Frozen):
    """What one message added to the context."""

    id: str
    """The turn's id for an action, with ``:before`` for what was shown before it."""
    parent: str | None
    kind: NodeKind
    """``injected``: it holds a starting turn that was written under a review, and its result."""
    turn: int
    """Turns taken up to here, this one included."""
    token_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    """1 on tokens that the policy sampled in this very context."""
    logprobs: tuple[float, ...]
    """Sampling log-probabilities (natural log); 0.0 where the mask is 0."""
    logprob_source: Literal["engine", "none"] = "none"
    provenance: Provenance | Literal["env"] = "env"
    weight_version: int | None = None
    finish_reason: str = ""
    snapshot: str | None = None
    """Disk and context right after this node; None where there is no boundary."""


class TokenTree(Frozen):
    """All attempts of one task in tokens, below its instruction."""

    task: str
    suite: str = ""
    group: str
    """The prompt group that all its leaves belong to, roots and branches alike."""
    tokenizer: str = ""
    """Fingerprint of vocabulary and template; empty where unknown."""
    nodes: tuple[TokenNode, ...]
    """Parents before children."""
    leaves: tuple[Leaf, ...] = Field(default=())
    """``node`` is the last action of the attempt; ``reward`` None is unscorable, never 0."""

    def path(self, attempt: str) -> tuple[TokenNode, ...]:
        """Return an attempt's nodes, oldest first.

        Raises:
            ConfigError: The tree has no such attempt.
        """
        return path_to(attempt, self.leaves, self.nodes, self.task)

    def token_ids(self, attempt: str) -> tuple[int, ...]:
        """Return all ids of an attempt: what the model saw and sampled, in order."""
        return tuple(id for node in self.path(attempt) for id in node.token_ids)


def token_tree(attempts: Sequence[Attempt], *, group: str = "", tokenizer: str = "") -> TokenTree:
    """Return the token tree of one task's attempts.

    Args:
        attempts: Attempts whose policy turns carry token ids.
        group: Id of the prompt group; empty: the task's name.
        tokenizer: Fingerprint of the tokenizer and its template.

    Raises:
        TokensDiverge: A turn of the policy has no token ids, or the prompt of one call does not
            begin with all ids before it.
        ConfigError: They are no tree (see ``tree_of``).
    """
    tree = tree_of(attempts)
    nodes: dict[str, TokenNode] = {}
    leaves: list[Leaf] = []
    for leaf in tree.leaves:
        last: str | None = None
        for node in _nodes(tree, leaf.attempt):
            known = nodes.setdefault(node.id, node)
            if known.token_ids != node.token_ids or known.parent != node.parent:
                raise TokensDiverge(leaf.attempt, node.id, "another attempt saw other ids there")
            last = node.id
        leaves.append(leaf.model_copy(update={"node": last}))
    return TokenTree(
        task=tree.task,
        suite=attempts[0].suite,
        group=group or tree.task,
        tokenizer=tokenizer,
        nodes=tuple(nodes.values()),
        leaves=tuple(leaves),
    )


def drifts(entries: Iterable[Entry]) -> int:
    """Return how many answers had a prompt that does not begin with all ids before it."""
    found = 0
    seen: tuple[int, ...] = ()
    for entry in entries:
        if isinstance(entry, Turn) and entry.trace is not None and entry.trace.prompt_ids:
            found += entry.trace.prompt_ids[: len(seen)] != seen
            seen = entry.trace.prompt_ids + entry.trace.token_ids
    return found


def _nodes(tree: RolloutTree, attempt: str) -> Iterator[TokenNode]:
    seen: list[int] = []
    above: str | None = None
    injected = False
    for item in tree.path(attempt):
        turn = item.entry
        if not isinstance(turn, Turn):
            continue
        if turn.provenance != "policy":
            injected = injected or turn.provenance == "policy_under_review"
            continue
        trace = turn.trace
        if trace is None or not trace.token_ids or not trace.prompt_ids:
            raise TokensDiverge(attempt, turn.id, "it has no token ids")
        if list(trace.prompt_ids[: len(seen)]) != seen:
            raise TokensDiverge(attempt, turn.id, "its prompt does not begin with all before it")
        shown = trace.prompt_ids[len(seen) :]
        kind: NodeKind = "injected" if injected else ("prompt" if above is None else "observation")
        yield TokenNode(
            id=f"{turn.id}:before",
            parent=above,
            kind=kind,
            turn=item.turn - 1,
            token_ids=shown,
            loss_mask=(0,) * len(shown),
            logprobs=(0.0,) * len(shown),
            provenance="policy_under_review" if injected else "env",
        )
        scored = len(trace.logprobs) == len(trace.token_ids)
        yield TokenNode(
            id=turn.id,
            parent=f"{turn.id}:before",
            kind="action",
            turn=item.turn,
            token_ids=trace.token_ids,
            loss_mask=(1,) * len(trace.token_ids),
            logprobs=trace.logprobs if scored else (0.0,) * len(trace.token_ids),
            logprob_source="engine" if scored else "none",
            provenance=turn.provenance,
            weight_version=trace.weight_version,
            finish_reason=trace.finish_reason,
            snapshot=item.snapshot,
        )
        seen = [*trace.prompt_ids, *trace.token_ids]
        above, injected = turn.id, False
