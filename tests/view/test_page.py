"""The page of a run: what it holds, that it loads nothing, and that no agent's text can act."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sprout_env.records.lanes import lanes
from sprout_env.search.runs import RunResult
from sprout_env.view import page, write_page
from sprout_env.view.data import OUTPUT_CHARS, page_data
from tests.view.browser import needs_chromium, opened
from tests.view.synthetic import HOSTILE, hostile_run, long_run


def data_of(text: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found is not None
    data = json.loads(found[1])
    assert isinstance(data, dict)
    return data


def test_every_turn_is_there_once_however_many_attempts_pass_through_it() -> None:
    run = long_run(40)
    (task,) = page_data(run)["tasks"]
    (item,) = run.collections
    assert len(task["nodes"]) == len({e.id for a in item.attempts for e in a.entries})
    for told in task["attempts"]:
        assert [task["nodes"][at]["n"] for at in told["path"]] == list(range(1, told["end"] + 1))


def test_a_branch_hangs_below_the_row_that_owns_its_boundary() -> None:
    (item,) = long_run(40).collections
    rows = lanes(item.attempts)
    for row, lane in enumerate(rows):
        if lane.owner is None:
            assert lane.start == 0
        else:
            assert lane.owner < row
            assert rows[lane.owner].start < lane.start <= rows[lane.owner].end


def test_the_page_names_no_other_place() -> None:
    text = page(long_run(5))
    drawn = text.replace("http://www.w3.org/2000/svg", "")
    assert "http:" not in drawn
    assert "https:" not in drawn
    assert "//" not in "".join(re.findall(r'(?:src|href)="([^"]*)"', drawn))
    assert "default-src 'none'" in text
    assert "connect-src 'none'" in text


def test_outputs_are_cut_and_the_page_stays_small() -> None:
    text = page(hostile_run())
    assert len(text) < 300_000
    (task,) = page_data(hostile_run())["tasks"]
    assert max(len(node.get("output", "")) for node in task["nodes"]) < OUTPUT_CHARS + 100


def test_hostile_text_stays_inside_the_data() -> None:
    text = page(hostile_run())
    assert text.count("<script") == 2
    assert text.count("</script>") == 2
    assert "dataset.harmed" in json.dumps(data_of(text))
    assert "\x1b" not in text
    assert HOSTILE[0] not in text


@needs_chromium
@pytest.mark.slow
def test_hostile_text_does_nothing_in_a_browser(tmp_path: Path) -> None:
    path = write_page(hostile_run(), tmp_path / "page.html")
    for tab in ("turn", "attempt", "task"):
        document = opened(f"file://{path}", tmp_path, tab=tab, turn="2")
        assert 'data-ready="1"' in document
        assert "data-harmed" not in document
        assert "<img" not in document
        # It is there to be read.
        assert "&lt;img src=x onerror=" in document


@needs_chromium
@pytest.mark.slow
def test_a_turn_of_two_thousand_is_found_and_shown(tmp_path: Path) -> None:
    path = write_page(long_run(2000), tmp_path / "page.html")
    document = opened(f"file://{path}", tmp_path, attempt="branch 2.1", turn="1501", tab="turn")
    assert 'data-ready="1"' in document
    assert "branch 2.1 · turn 1501" in document
    assert "starting turn, written by the review" in document
    assert "Turn 1501 drops the table before its rows are copied." in document
    assert "sprout shell fam-" in document
    assert document.count('class="lane s-') >= 7
    # Rows out of sight do not exist: the page stays quick however long the attempts are.
    assert 10 < document.count('role="option"') < 60


@needs_chromium
@pytest.mark.slow
def test_two_attempts_side_by_side_and_search(tmp_path: Path) -> None:
    path = write_page(long_run(60), tmp_path / "page.html")
    document = opened(
        f"file://{path}",
        tmp_path,
        attempt="root 1",
        beside="branch 1.1",
        turn="31",
        tab="turn",
        theme="dark",
    )
    assert 'data-theme="dark"' in document
    assert "root 1 · turn 31" in document
    assert "branch 1.1 · turn 31" in document
    assert "first difference: turn 31" in document
    found = opened(f"file://{path}", tmp_path, q="test_part_4")
    assert "1 found" in found
    assert "long-task · root 2" in found


def with_script(run: RunResult, script: str, path: Path) -> str:
    """Write the page without its policy and with one more script in it; return its address."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page(run))
    path.write_text(text.replace("</body>", f"<script>{script}</script></body>"))
    return f"file://{path}"


@needs_chromium
@pytest.mark.slow
@pytest.mark.parametrize("size", ["1400,900", "1000,700", "500,900"])
def test_nothing_is_cut_or_lies_over_another(size: str, tmp_path: Path) -> None:
    look = Path(__file__).with_name("layout.js").read_text()
    url = with_script(long_run(2000), look, tmp_path / "page.html")
    document = opened(url, tmp_path, size, attempt="branch 2.1", beside="root 3", turn="1501")
    found = re.search(r'data-wrong="([^"]*)"', document)
    assert found is not None
    assert not found[1]


@needs_chromium
@pytest.mark.slow
def test_keys_move_over_turns_and_attempts(tmp_path: Path) -> None:
    press = """
    const pressed = ["Home", "ArrowRight", "ArrowRight", "ArrowDown", "b", "ArrowRight", "c", "d"];
    for (const key of pressed)
      document.body.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
    """
    # The copy's policy is taken off, so that this script may press keys in it.
    url = with_script(long_run(60), press, tmp_path / "keys.html")
    document = opened(url, tmp_path, attempt="root 1", theme="dark")
    # Down from root 1 is branch 1.1, whose boundary is turn 30; one further is its starting turn.
    assert "branch 1.1 · turn 31" in document
    assert "starting turn, written by the review" in document
    # A second attempt stands beside, and the theme is the other one.
    assert "first difference: turn" in document
    assert 'data-theme="light"' in document
