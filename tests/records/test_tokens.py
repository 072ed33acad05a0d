from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sprout_env.errors import ConfigError, GroupWithoutReward, RecordVersionUnknown, TokensDiverge
from sprout_env.records import (
    Attempt,
    Exchange,
    ReviewRecord,
    group_of,
    read_records,
    review_leaks,
    token_row,
    token_tree,
    tree_of,
    with_token_ids,
    write_records,
)
from sprout_env.records.reviews import ReviewMessage
from sprout_env.transcript import TokenTrace, Turn
from tests.records.forests import attempt, end_of, forests

LAWS = settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def policy_turns(item: Attempt) -> list[Turn]:
    return [e for e in item.entries if isinstance(e, Turn) and e.provenance == "policy"]


@LAWS
@given(forests())
def test_the_concatenation_along_a_path_is_what_the_model_saw(attempts: list[Attempt]) -> None:
    tree = token_tree(attempts, group="g7", tokenizer="abc")
    lineage = {leaf.attempt: leaf for leaf in tree_of(attempts).leaves}
    assert len({node.id for node in tree.nodes}) == len(tree.nodes)
    for item in attempts:
        last = policy_turns(item)[-1]
        assert tree.token_ids(item.id) == end_of((last,))
        path = tree.path(item.id)
        for node in path:
            assert len(node.token_ids) == len(node.loss_mask) == len(node.logprobs)
            assert (node.kind == "action") == any(node.loss_mask)
            assert all(m or p == 0.0 for m, p in zip(node.loss_mask, node.logprobs, strict=True))
        # Each action is the very turn: sampled ids are passed through untouched.
        actions = [node for node in path if node.kind == "action"]
        for node, turn in zip(actions, policy_turns(item), strict=True):
            assert turn.trace is not None
            assert (node.id, node.token_ids, node.logprobs, node.weight_version) == (
                turn.id,
                turn.trace.token_ids,
                turn.trace.logprobs,
                turn.trace.weight_version,
            )
        # Starting turns that follow on each other are shown in one piece.
        hinted = [isinstance(e, Turn) and e.provenance != "policy" for e in item.entries]
        runs = sum(
            now and not before for before, now in zip([False, *hinted], hinted, strict=False)
        )
        assert sum(node.kind == "injected" for node in path) == runs
        leaf = next(leaf for leaf in tree.leaves if leaf.attempt == item.id)
        assert leaf.reward == item.reward
        assert leaf == lineage[item.id].model_copy(update={"node": last.id})
    stored = sum(len(node.token_ids) for node in tree.nodes if node.kind == "action")
    distinct = {t.id: t for item in attempts for t in policy_turns(item)}
    assert stored == sum(len(t.trace.token_ids) for t in distinct.values() if t.trace)


@LAWS
@given(forests(), st.sampled_from(["mask", "recompute"]))
def test_a_sampled_token_carries_loss_once_and_aligned(
    attempts: list[Attempt], starting: str
) -> None:
    group = group_of(attempts, prefix_loss="once", starting_turn=starting)  # type: ignore[arg-type]
    by_id = {item.id: item for item in attempts}
    rows = [token_row(row) for row in group.rows]
    learned = again = 0
    for row in rows:
        item = by_id[row.attempt]
        assert row.token_ids == end_of((policy_turns(item)[-1],))
        lengths = {len(row.loss_mask), len(row.logprobs), len(row.recompute), len(row.versions)}
        assert lengths == {len(row.token_ids)}
        for mask, prob, anew in zip(row.loss_mask, row.logprobs, row.recompute, strict=True):
            assert mask or (prob == 0.0 and not anew)
            assert not mask or anew or prob < 0.0
        assert not any(row.loss_mask[: row.prompt_length])
        learned += sum(row.loss_mask)
        again += sum(row.recompute)
    scorable = [item for item in attempts if item.scorable]
    sampled = {t.id: t for item in scorable for t in policy_turns(item)}
    hints = {
        t.id: t
        for item in scorable
        for t in item.entries
        if isinstance(t, Turn) and t.provenance == "policy_under_review"
    }
    injected = sum(len(t.trace.token_ids) for t in hints.values() if t.trace)
    wanted = sum(len(t.trace.token_ids) for t in sampled.values() if t.trace)
    assert again == (injected if starting == "recompute" else 0)
    assert learned == wanted + again


@LAWS
@given(attempts=forests())
def test_token_trees_come_back_as_they_were(attempts: list[Attempt], tmp_path: Path) -> None:
    path = tmp_path / "tokens.jsonl"
    tree = token_tree(attempts)
    write_records(path, [*attempts, tree])
    assert read_records(path) == (*attempts, tree)
    path.unlink()


@LAWS
@given(forests())
def test_no_token_of_a_review_is_in_any_row(attempts: list[Attempt]) -> None:
    said = tuple(range(1000, 1040))
    review = ReviewRecord(
        id="r",
        task="t",
        round=1,
        failures=("a0",),
        exchanges=(
            Exchange(
                part="analyst",
                attempt="a0",
                messages=(ReviewMessage(role="user", content="look"),),
                answer="the secret reason of this branch is written here for nobody at all",
                trace=TokenTrace(token_ids=said),
            ),
        ),
        plans=tuple(item.plan for item in attempts if item.plan),
    )
    group = group_of(attempts)
    assert review_leaks(group.rows, [review]) == ()
    assert not {id for row in group.rows for id in token_row(row).token_ids} & set(said)
    # And the guard does see one: a row whose prompt holds what the analyst sampled.
    first = attempts[0]
    turn = policy_turns(first)[0]
    leaky = turn.model_copy(
        update={"trace": TokenTrace(prompt_ids=(1, *said), token_ids=(5,))}, deep=True
    )
    bad = first.model_copy(update={"entries": (leaky,)})
    assert review_leaks(group_of([bad]).rows, [review])


def turn(command: str, prompt: tuple[int, ...], ids: tuple[int, ...]) -> Turn:
    return Turn(command=command, trace=TokenTrace(prompt_ids=prompt, token_ids=ids))


def test_an_attempt_without_ids_needs_not_spoil_its_group() -> None:
    whole = attempt("w", (turn("a", (1,), (2,)), turn("b", (1, 2, 3), (4,))), 1.0)
    drifted = attempt("x", (turn("a", (1,), (2,)), turn("b", (1, 9, 3), (4,))), 0.0)
    silent = attempt("y", (Turn(command="a"),), 0.0)
    unscorable = attempt("z", (Turn(command="a"),), None)
    kept, refused = with_token_ids([drifted, whole, silent, unscorable])
    assert [each.id for each in kept] == ["w", "z"]
    assert [error.facts[0] for error in refused] == ["x", "y"]
    group = group_of(kept)
    assert [token_row(row).token_ids for row in group.rows] == [(1, 2, 3, 4)]
    assert group.unscorable == 1


@LAWS
@given(forests())
def test_nothing_is_parted_where_all_ids_are_there(attempts: list[Attempt]) -> None:
    assert with_token_ids(attempts) == (tuple(attempts), ())


def test_what_cannot_be_learned_from_is_refused_by_name(tmp_path: Path) -> None:
    drifted = attempt("x", (turn("a", (1,), (2,)), turn("b", (1, 9, 3), (4,))), 1.0)
    with pytest.raises(TokensDiverge, match="x do not concatenate"):
        token_tree([drifted])
    with pytest.raises(TokensDiverge):
        token_row(group_of([drifted]).rows[0])
    with pytest.raises(TokensDiverge, match="no token ids"):
        token_tree([attempt("x", (Turn(command="a"),), 1.0)])
    with pytest.raises(GroupWithoutReward, match="valid reward"):
        group_of([attempt("x", (turn("a", (1,), (2,)),), None)])
    later = tmp_path / "later.jsonl"
    later.write_text('{"format": "sprout_env.records", "version": "9.0"}\n')
    with pytest.raises(RecordVersionUnknown, match=r"9\.0"):
        read_records(later)
    with pytest.raises(ConfigError, match="no attempt y"):
        token_tree([attempt("x", (turn("a", (1,), (2,)),), 1.0)]).path("y")
