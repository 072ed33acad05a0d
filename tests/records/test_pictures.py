"""Pictures in cells: well formed, one lane for each attempt, and nothing of an agent's acts."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from sprout_env.branching import TreeNode
from sprout_env.records.groups import group_of
from sprout_env.snapshots import Snapshot, TaskRef
from tests.view.synthetic import hostile_run, long_run


def parsed(text: str) -> ET.Element:
    return ET.fromstring(f"<body>{text.replace('&nbsp;', ' ')}</body>")


def lanes_of(element: ET.Element) -> list[ET.Element]:
    return [e for e in element.iter() if e.tag.endswith("}g")]


def test_a_run_is_drawn_with_its_reasons() -> None:
    drawn = parsed(long_run(40)._repr_html_())
    assert len(lanes_of(drawn)) == 7
    said = "".join(drawn.itertext())
    assert "simulated actor: no model was asked" in said
    assert "rescued in review round 2" in said
    assert "root 1, after turn 20" in said
    assert "Turn 21 drops the table before its rows are copied." in said


def test_a_long_run_stays_small() -> None:
    assert len(long_run(2000)._repr_html_()) < 12_000


def test_hostile_text_is_text() -> None:
    told = hostile_run()._repr_html_()
    drawn = parsed(told)
    assert {e.tag.rsplit("}", 1)[-1] for e in drawn.iter()} <= {
        "body", "div", "b", "span", "svg", "g", "title", "path", "circle", "line", "text",
    }  # fmt: skip
    assert "\x1b" not in told


def test_a_group_is_thick_where_turns_carry_loss() -> None:
    (item,) = long_run(20).collections
    group = group_of(item.attempts)
    drawn = parsed(group._repr_html_())
    rows = lanes_of(drawn)
    assert len(rows) == len(group.rows)
    for row, told in zip(group.rows, rows, strict=True):
        thick = [e for e in told.iter() if e.get("stroke-width") == "6"]
        assert bool(thick) == any(entry.loss for entry in row.entries)
    said = "".join(drawn.itertext())
    assert re.search(r"reward 1, loss on \d+ of 20 turns", said)


def snapshot(number: int, turn: int) -> Snapshot:
    return Snapshot(
        id=f"family-{number:016x}",
        task=TaskRef(suite="s", name="answer", digest="d"),
        instruction="",
        turn=turn,
        entries=0,
        created=0,
    )


def test_a_tree_of_snapshots_has_a_lane_for_each_path() -> None:
    deep = TreeNode(snapshot(0, 3000), ())
    for turn in range(2999, 0, -1):
        children = (deep,) if turn != 7 else (deep, TreeNode(snapshot(9999, 8), ()))
        deep = TreeNode(snapshot(turn, turn), children)
    drawn = parsed(deep._repr_html_())
    # What a terminal shows of it: no page of its fields.
    assert repr(deep) == str(deep)
    assert len(lanes_of(drawn)) == 2
    said = "".join(drawn.itertext())
    assert "3001 snapshots" in said
    assert snapshot(0, 0).id in said
    assert snapshot(9999, 0).id in said
    # A terminal shows the same, no page of fields.
    assert repr(deep) == str(deep)
    assert len(str(deep).splitlines()) == 3001


def test_a_run_in_a_terminal_is_one_line() -> None:
    said = repr(long_run(40))
    assert "\n" not in said
    assert "resolved" in said
    assert len(said) < 200
