from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sprout_env.errors import ConfigError, TaskNotFound
from sprout_env.records import Attempt, Attempts, write_records
from sprout_env.records.attempt import Boundary
from sprout_env.search import RunConfig, load_run, run
from sprout_env.search.events import (
    AttemptFinished,
    ReviewFinished,
    SnapshotsKept,
    TaskFinished,
)
from sprout_env.search.journal import Journal, load_folder
from sprout_env.search.methods import Sprout
from tests.search.playbook_world import write_task
from tests.search.test_methods import collector


def config(**more: object) -> RunConfig:
    return RunConfig.make("toy", actor="simulated", **more)


def told(made: RunConfig) -> dict[str, object]:
    return made.model_dump(mode="json")


def done(tmp_path: Path) -> Attempts:
    folder = write_task(tmp_path / "shop")
    return Sprout(rounds=2, branches=2).collect(collector(folder, skill=0.0))


def record(journal: Journal, attempts: Attempts, *, whole: bool = True) -> None:
    for attempt in attempts.attempts:
        journal.on_event(AttemptFinished("shop", attempt))
    for review in attempts.reviews:
        journal.on_event(ReviewFinished("shop", review))
    journal.on_event(TaskFinished("shop", attempts, whole=whole))


def test_a_folder_gives_back_what_was_finished(tmp_path: Path) -> None:
    attempts = done(tmp_path)
    journal = Journal(tmp_path / "run", told(config()))
    assert journal.done == {}
    assert load_run(str(tmp_path / "run")).summary.method, "its method is known before all else"
    record(journal, attempts)
    journal.close()
    assert load_folder(tmp_path / "run")[-1] == attempts
    assert load_run(tmp_path / "run").collections == (attempts,)
    again = Journal(tmp_path / "run", told(config()))
    assert again.done["task:shop"] == attempts
    # What is read back is not written once more.
    again.on_event(AttemptFinished("shop", attempts.attempts[0], resumed=True))
    again.on_event(TaskFinished("shop", attempts, resumed=True))
    again.close()
    assert load_run(tmp_path / "run").collections == (attempts,)


def test_a_run_that_is_not_finished_can_be_looked_at(tmp_path: Path) -> None:
    attempts = done(tmp_path)
    journal = Journal(tmp_path / "run", told(config()))
    record(journal, attempts, whole=False)
    journal.close()
    shown = load_run(tmp_path / "run").collections[0]
    assert shown.attempts == attempts.attempts
    assert shown.cut_short == "not finished"


def test_another_run_s_folder_is_refused_with_what_differs(tmp_path: Path) -> None:
    Journal(tmp_path / "run", told(config())).close()
    with pytest.raises(ConfigError, match=r"another run \(different: method, seed\)"):
        Journal(tmp_path / "run", told(config(seed=7, method="pass@2")))
    (tmp_path / "run" / "run.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        Journal(tmp_path / "run", told(config()))
    with pytest.raises(ConfigError, match="no run in"):
        load_run(tmp_path / "nothing")
    # The folder of a comparison, or of several methods: the next step is named.
    with pytest.raises(ConfigError, match=f"no run in {tmp_path}; below it are {tmp_path}/run$"):
        load_run(tmp_path)


@pytest.mark.parametrize("content", [b"[]", b"3", b"\xd9\xff", b'{"suite":', b'{"suite": "x"}'])
def test_settings_that_cannot_be_read_are_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(ConfigError, match=str(tmp_path)):
        load_run(tmp_path)
    with pytest.raises(ConfigError, match=str(tmp_path)):
        Journal(tmp_path, told(config()))


def test_two_processes_never_write_one_folder(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run", told(config()))
    program = (
        "import sys\nfrom pathlib import Path\nfrom sprout_env.search import RunConfig\n"
        "from sprout_env.search.journal import Journal\n"
        "made = RunConfig.make('toy', actor='simulated').model_dump(mode='json')\n"
        "Journal(Path(sys.argv[1]), made)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "run")]
    blocked = subprocess.run(command, capture_output=True, text=True)
    assert "another process writes to the run" in blocked.stderr
    journal.close()
    assert subprocess.run(command, capture_output=True).returncode == 0


def test_bad_input_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    with pytest.raises(TaskNotFound):
        run(RunConfig.make("no-such-suite", actor="simulated"), folder=tmp_path / "run")
    with pytest.raises(TaskNotFound, match="no-such-task"):
        run(RunConfig.make("seedbed", actor="simulated", tasks=("no-such-task",)))
    with pytest.raises(ConfigError, match="at least one worker"):
        run(RunConfig.make("seedbed", actor="simulated"), workers=0)
    for bad in ({"actor": "magic"}, {"actor": "simulated", "method": "magic"}):
        with pytest.raises(ConfigError, match="magic"):
            RunConfig.make("seedbed", **bad)
    with pytest.raises(ConfigError, match="limits.max_turns"):
        RunConfig.make("seedbed", actor="simulated", limits={"max_turns": 0})
    with pytest.raises(ConfigError, match="colour"):
        RunConfig.make("seedbed", actor="simulated", colour="green")
    assert not (tmp_path / "run").exists()


def test_attempts_come_back_in_the_order_of_their_plans(tmp_path: Path) -> None:
    def attempt(key: str, round: int) -> Attempt:
        return Attempt(id=f"shop:{key}", task="shop", round=round)

    planned = [
        attempt("root-1", 0),
        attempt("root-2", 0),
        attempt("root-10", 0),
        attempt("fork-1-at-4-1", 1),
        attempt("fork-1-at-12-1", 1),
        attempt("round-2-branch-1", 2),
    ]
    write_records(tmp_path / "attempts.jsonl", reversed(planned))
    assert list(load_folder(tmp_path)) == planned


def test_snapshots_kept_for_an_attempt_that_was_never_recorded_are_known(tmp_path: Path) -> None:
    attempts = done(tmp_path)
    journal = Journal(tmp_path / "run", told(config()))
    boundary = Boundary(turn=1, snapshot="family-recorded")
    recorded = attempts.attempts[0].model_copy(update={"boundaries": (boundary,)})
    journal.on_event(SnapshotsKept("shop", recorded.id, ("family-recorded",)))
    journal.on_event(AttemptFinished("shop", recorded))
    journal.on_event(SnapshotsKept("shop", "shop:root-2", ("family-a", "family-b")))
    journal.close()  # as a kill leaves it: the second attempt has no record
    again = Journal(tmp_path / "run", told(config()))
    assert again.orphans == {"family-a", "family-b"}
    again.close()
