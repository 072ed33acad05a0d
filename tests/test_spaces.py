"""Text spaces hold what terminals print."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from sprout_env.spaces import CommandSpace, UnicodeText, action_space, observation_space
from sprout_env.transcript import Turn


@given(st.text(max_size=50))
def test_every_encodable_string_is_inside(text: str) -> None:
    assert text in UnicodeText(50)


@given(st.binary(max_size=50))
def test_whatever_bytes_a_command_prints_are_inside_once_decoded(output: bytes) -> None:
    assert output.decode(errors="replace") in UnicodeText(50)


@pytest.mark.parametrize("outside", ["\ud800", "x" * 51, "", b"bytes", None, 3])
def test_what_is_outside(outside: object) -> None:
    assert outside not in UnicodeText(50, min_length=1)


def test_samples_are_inside_and_repeat_with_the_seed() -> None:
    for space in (UnicodeText(9, min_length=9), UnicodeText(2), CommandSpace(100)):
        space.seed(7)
        first = [space.sample() for _ in range(20)]
        space.seed(7)
        assert first == [space.sample() for _ in range(20)]
        assert all(sample in space for sample in first)


def test_an_action_is_a_command_or_a_turn() -> None:
    space = action_space()
    assert "ls" in space
    assert Turn(message="look", command="ls") in space
    assert "\ud800" not in space
    assert Turn(message="\ud800", command="ls") in space, "a turn holds a mark in its place"


def test_spaces_compare_print_and_pickle() -> None:
    assert UnicodeText(5) == UnicodeText(5) != UnicodeText(6)
    assert UnicodeText(5) != CommandSpace(5)
    assert repr(UnicodeText(5, min_length=1)) == "UnicodeText(5, min_length=1)"
    space = observation_space(100)
    assert pickle.loads(pickle.dumps(space)) == space
    with pytest.raises(NotImplementedError):
        spaces.flatten_space(UnicodeText(5))


def test_observations_hold_plain_values() -> None:
    space = observation_space(10)
    observation = {"output": "é→\x1b", "exit_code": 255, "turn": 3, "cwd": "/", "instruction": "x"}
    assert observation in space
    assert {**observation, "exit_code": 256} not in space
    assert {**observation, "output": "x" * 11} not in space
    assert {**observation, "turn": np.int64(4)} in space
