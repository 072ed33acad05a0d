"""Whatever an agent writes, the page shows it as text that does nothing."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from sprout_env.grading.plain import plain, shorten
from sprout_env.view.page import embed


def test_colours_and_titles_of_terminals_go_and_controls_are_named() -> None:
    assert plain("\x1b[1;31mred\x1b[0m \x1b]0;title\x07done\x1b(B") == "red done"
    assert plain("a\x00b\x07c\x7f\x9f") == "a\\x00b\\x07c\\x7f\\x9f"
    assert plain("one\r\ntwo\rthree\ttab") == "one\ntwo\nthree\ttab"


def test_text_that_turns_its_direction_is_named() -> None:
    assert plain("rm \u202efdp.x\u202c") == "rm <U+202E>fdp.x<U+202C>"


@given(st.text(st.characters(codec=None)))
def test_plain_text_holds_no_control_and_no_lone_surrogate(text: str) -> None:
    found = plain(text)
    found.encode()
    assert not [c for c in found if ord(c) < 32 and c not in "\n\t"]
    assert "\x1b" not in found


@given(st.text(max_size=300), st.integers(2, 100))
def test_shortened_text_keeps_both_ends(text: str, limit: int) -> None:
    found = shorten(text, limit)
    assert found.startswith(text[: limit // 2])
    assert found.endswith(text[len(text) - limit // 2 :])
    assert len(found) <= max(limit, 0) + 60


@given(st.text())
def test_embedded_data_cannot_end_its_script_and_comes_back(text: str) -> None:
    told = embed({"text": text})
    assert not {"<", ">", "&"} & set(told)
    assert told.isascii()
    assert json.loads(told) == {"text": text}
