"""The context is an immutable path that branches share."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sprout_env.transcript import Notice, Result, Transcript, Turn

texts = st.text(max_size=20)
turns = st.builds(
    Turn, message=texts, command=texts, result=st.builds(Result, output=texts, exit_code=st.just(0))
)
entries = st.lists(turns | st.builds(Notice, text=texts), max_size=12)


@given(entries)
def test_the_path_is_what_was_appended(path: list[Turn | Notice]) -> None:
    transcript = Transcript.of("do it", path)
    assert transcript.entries == tuple(path)
    assert transcript.turns == tuple(e for e in path if isinstance(e, Turn))
    assert transcript.turn == len(transcript.turns)
    assert pickle.loads(pickle.dumps(transcript)) == transcript


@given(entries, entries)
def test_branches_share_their_prefix_and_leave_it_alone(
    path: list[Turn | Notice], more: list[Turn | Notice]
) -> None:
    trunk = Transcript.of("do it", path)
    before = trunk.entries
    branch = trunk
    for entry in more:
        branch = branch.append(entry)
    assert trunk.entries == before
    assert branch.entries[: len(path)] == before
    for turn in range(trunk.turn + 1):
        assert branch.at(turn) is trunk.at(turn)


def test_at_ends_right_after_the_turn_before_any_notice() -> None:
    one = Transcript.start("x").append(Turn(command="a"))
    later = one.append(Notice(text="restored")).append(Turn(command="b"))
    assert later.at(1) is one
    assert later.at(0).turn == 0
    with pytest.raises(IndexError, match="no turn 3"):
        later.at(3)


def test_a_path_of_ten_thousand_turns_pickles_and_compares() -> None:
    path = Transcript.of("long", [Turn(command=str(n)) for n in range(10_000)])
    assert pickle.loads(pickle.dumps(path)).turn == 10_000
    assert path.at(17).last_turn == path.turns[16]


@pytest.mark.parametrize("made", [Turn(command="\ud83d", message="\udcff"), Notice(text="\ud800")])
def test_half_characters_of_models_and_processes_become_marks(made: Turn | Notice) -> None:
    """A server, a shell and a file of records take text; half a character is none."""
    told = made.command + made.message if isinstance(made, Turn) else made.text
    assert set(told) == {"\ufffd"}
    assert type(made).model_validate_json(made.model_dump_json()) == made


def test_submit_is_recognised_with_spaces_around_it() -> None:
    assert Turn(command=" submit\n").submits
    assert not Turn(command="echo submit").submits
