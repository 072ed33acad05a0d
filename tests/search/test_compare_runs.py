"""Comparisons in real sandboxes: killed, gone on with, extended, refused."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sprout_env.errors import ConfigError
from sprout_env.records import read_attempts, read_reviews
from sprout_env.search.compare import CompareConfig, compare
from sprout_env.search.comparison import Comparison
from sprout_env.search.events import (
    AttemptFinished,
    AttemptRetried,
    AttemptStarted,
    Event,
    OnEvent,
)
from tests.actors.chat_server import completion, problem, serve
from tests.search.real_task import write_parts_task
from tests.search.test_real_runs import snapshots
from tests.small_task import write_task

pytestmark = pytest.mark.root

METHODS = ["pass@2", "sprout:rounds=1,branches=2", "entropy@2", "shepherd:every=2", "rtv@2"]


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    write_parts_task(tmp_path / "tasks")
    return tmp_path / "tasks"


def config(suite: Path, store: Path, methods: list[str], **more: object) -> CompareConfig:
    actor = {"kind": "simulated", "skill": 0.6, "folders": [str(suite / "parts")]}
    return CompareConfig.make(
        "toy", actor=actor, methods=methods, tasks_path=str(suite), store=str(store), **more
    )


class Watching:
    """Keeps the events of all runs of a comparison."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int, Event]] = []

    @contextmanager
    def __call__(self, label: str, seed: int) -> Iterator[OnEvent]:
        yield lambda event: self.events.append((label, seed, event))

    @property
    def began(self) -> list[tuple[str, int, str]]:
        return [(m, s, e.attempt) for m, s, e in self.events if isinstance(e, AttemptStarted)]


_PROGRAM = """
import sys
from contextlib import contextmanager
from pathlib import Path
from sprout_env.search.compare import CompareConfig, compare
from sprout_env.search.events import AttemptFinished
config = CompareConfig.model_validate_json(sys.stdin.read())
@contextmanager
def watch(label, seed):
    def tell(event):
        if isinstance(event, AttemptFinished):
            print(label, event.attempt.id, flush=True)
    yield tell
compare(config, Path(sys.argv[1]), workers=2, watch=watch)
"""


@pytest.mark.slow
def test_a_killed_comparison_goes_on_and_pays_nothing_twice(
    suite: Path, shared_store: Path, tmp_path: Path
) -> None:
    before = snapshots(shared_store)
    folder = tmp_path / "run"
    made = config(suite, shared_store, METHODS, seeds=(0, 1))
    child = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(made.model_dump_json())
    child.stdin.close()
    for finished, _ in enumerate(child.stdout, start=1):
        if finished == 4:  # two roots, and sprout's first attempts
            break
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    recorded = {
        (path.parent.name, attempt.id)
        for path in folder.glob("seed-0/*/attempts.jsonl")
        for attempt in read_attempts(path)
    }
    assert len(recorded) >= 4
    watch = Watching()
    table = compare(made, folder, workers=2, watch=watch)
    again = {(m.replace(":", "-"), id) for m, s, id in watch.began if s == 0}
    assert not again & recorded
    # Each attempt is in its run once, each review too, and no shared root was run a second time.
    for path in folder.glob("seed-*/*/attempts.jsonl"):
        ids = Counter(attempt.id for attempt in read_attempts(path))
        assert set(ids.values()) == {1}, path
        reviews = Counter(record.id for record in read_reviews(path.with_name("reviews.jsonl")))
        assert set(reviews.values()) <= {1}
    own = [(m, s, id) for m, s, id in watch.began if id == "parts:root-1" and "shepherd" not in m]
    assert len(own) <= 1  # that of seed 1
    assert table.shared_uses >= 2 * 4
    assert [row.label for row in table.rows] == METHODS
    for row in table.rows:
        assert (row.trouble.unjudged, row.trouble.lost, row.resolve.ratio.of) == (0, 0, 2)
    # What the killed process left is swept, and the comparison has released its own.
    assert snapshots(shared_store) == before
    # A finished comparison is read again at once; it may be extended.
    idle = Watching()
    assert compare(made, folder, watch=idle) == table
    assert idle.began == []
    more = config(suite, shared_store, [*METHODS, "random_boundary"], seeds=(0, 1))
    added = Watching()
    longer = compare(more, folder, watch=added)
    assert longer.rows[:-1] == table.rows
    assert {m for m, _, _ in added.began} == {"random_boundary"}
    assert longer.rows[-1].trouble.lost == 0
    assert snapshots(shared_store) == before


def test_ctrl_c_ends_a_comparison_that_goes_on_later(
    suite: Path, shared_store: Path, tmp_path: Path
) -> None:
    before = snapshots(shared_store)
    made = config(suite, shared_store, ["pass@2", "sprout:rounds=1,branches=1"])
    child = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(tmp_path / "run")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdin.write(made.model_dump_json())
    child.stdin.close()
    first = child.stdout.readline().split()
    child.send_signal(signal.SIGINT)
    said = child.stderr.read()
    assert child.wait(30) == -signal.SIGINT
    child.stdout.close()
    child.stderr.close()
    assert said.rstrip().endswith("KeyboardInterrupt")
    watch = Watching()
    table = compare(made, tmp_path / "run", workers=2, watch=watch)
    assert ("pass@2", 0, first[1]) not in watch.began
    assert [(row.trouble.lost, row.trouble.unjudged) for row in table.rows] == [(0, 0)] * 2
    assert snapshots(shared_store) == before


def test_another_comparison_s_folder_is_refused(
    suite: Path, shared_store: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    compare(config(suite, shared_store, ["pass@1"]), folder)
    other = config(suite, shared_store, ["pass@1"]).model_copy(update={"suite": "other"})
    for made, words in (
        (other, "different: suite"),
        (
            config(suite, shared_store, ["pass@1"], limits={"max_turns": 3}),
            "different: limits",
        ),
    ):
        with pytest.raises(ConfigError, match=words):
            compare(made, folder)
    with pytest.raises(ConfigError, match="holds a single run"):
        compare(config(suite, shared_store, ["pass@1"]), folder / "seed-0" / "pass@1")
    told = json.loads((folder / "comparison.json").read_text())
    assert told["suite"] == "toy"


def test_forks_begin_while_their_root_runs(suite: Path, shared_store: Path, tmp_path: Path) -> None:
    before = snapshots(shared_store)
    book = suite / "parts" / "playbook.toml"
    # The root still has a slow step before it when the supervisor looks.
    book.write_text(
        book.read_text() + '\n[[steps]]\nid = "nap"\nmessage = "Wait."\ncommand = "sleep 4"\n'
    )
    actor = {"kind": "simulated", "skill": 0.0, "folders": [str(suite / "parts")]}
    made = CompareConfig.make(
        "toy",
        actor=actor,
        methods=["shepherd:every=2,forks=1,hint=yes"],
        tasks_path=str(suite),
        store=str(shared_store),
    )
    watch = Watching()
    compare(made, tmp_path / "run", workers=2, watch=watch)
    order = [
        (type(event), event.attempt if isinstance(event, AttemptStarted) else event.attempt.id)
        for _, _, event in watch.events
        if isinstance(event, AttemptStarted | AttemptFinished)
    ]
    fork = "parts:fork-1-at-2-1"
    assert order.index((AttemptStarted, fork)) < order.index((AttemptFinished, "parts:root-1"))
    found = {
        a.id: a
        for path in (tmp_path / "run").glob("seed-0/*/attempts.jsonl")
        for a in read_attempts(path)
    }
    branch = found[fork]
    assert branch.plan is not None
    assert branch.plan.boundary == 1
    assert branch.entries[0] == found["parts:root-1"].entries[0]
    assert branch.scorable
    assert snapshots(shared_store) == before


def test_what_the_machine_loses_is_tried_again_then_a_column_of_its_own(
    shared_store: Path, tmp_path: Path
) -> None:
    before = snapshots(shared_store)
    write_task(tmp_path / "tasks")
    broken = {"requests": 2}

    def script(body: dict[str, Any], number: int) -> tuple[int, dict[str, Any], dict[str, str]]:
        if broken["requests"]:
            broken["requests"] -= 1
            return 500, problem("out of memory"), {}
        told = any(message["role"] == "tool" for message in body["messages"])
        return 200, completion(command="submit" if told else "echo 42 > /srv/answer"), {}

    with serve(script) as server:
        actor = {"kind": "openai", "model": "m", "base_url": server.url, "retries": 0}

        def once() -> tuple[Comparison, Watching]:
            watch = Watching()
            made = CompareConfig.make(
                "toy",
                actor=actor,
                methods=["pass@2"],
                tasks_path=str(tmp_path / "tasks"),
                store=str(shared_store),
            )
            return compare(made, tmp_path / "run", workers=1, watch=watch), watch

        # The rule: an attempt begins anew once. The first is lost, the second is well again.
        table, watch = once()
        retried = [e.attempt for _, _, e in watch.events if isinstance(e, AttemptRetried)]
        assert retried == ["answer:root-1"]
        row = table.rows[0]
        assert (row.trouble.lost, row.trouble.unjudged, str(row.resolve.ratio)) == (
            1,
            0,
            "1/1 (100.0 %)",
        )
        # Gone on with, only the lost one is run, and nothing is missing any more.
        table, watch = once()
        assert watch.began == [("pass@2", 0, "answer:root-1")]
        assert table.rows[0].trouble.lost == 0
        # A task of which nothing could be judged is in no rate, and is said.
        broken["requests"] = 1 << 30
        (tmp_path / "other").mkdir()
        made = CompareConfig.make(
            "toy",
            actor=actor,
            methods=["pass@1"],
            tasks_path=str(tmp_path / "tasks"),
            store=str(shared_store),
        )
        lost = compare(made, tmp_path / "other").rows[0]
        assert (lost.trouble.lost, lost.trouble.unjudged, lost.resolve.ratio.of) == (1, 1, 0)
    assert snapshots(shared_store) == before
