"""The gate: what it lets through, what it names, and that it goes on where it stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sprout_env.disks.store import Base
from sprout_env.grading.gate import (
    GateReport,
    GateStep,
    _judge,
    _Kept,
    gate,
    gate_status,
    read_gate,
)
from sprout_env.grading.leaks import find_leaks
from sprout_env.grading.trials import nop, oracle
from sprout_env.grading.verdict import TestReport, Verdict
from sprout_env.tasks import load_task
from sprout_env.tasks.task import NetworkPolicy

Bench = Any  # the class of the fixture in conftest.py

PASS_IF_DONE = "if [ -e /done ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt"
SOLVE = {"solution/solve.sh": "#!/bin/bash\ntouch /done\n"}

FAIL = Verdict(outcome="failed", reward=0.0)
PASS = Verdict(outcome="passed", reward=1.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "task"
    for name, text in {
        "task.toml": '[environment]\nnetwork_mode = "no-network"\n',
        "instruction.md": "Do.",
        "environment/Dockerfile": "FROM x",
        "environment/shared.py": "# shared between environment and tests\n" * 5,
        "tests/test.sh": "# the verifier's script, long enough to be told apart, surely so it is\n",
        "tests/shared.py": "# shared between environment and tests\n" * 5,
        "solution/solve.sh": "# the solution, long enough to be told apart from everything else\n",
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("nops", "oracles", "status", "word"),
    [
        ((FAIL, FAIL), (PASS,) * 4, "passed", ""),
        ((PASS, PASS), (PASS,) * 4, "invalid task", "doing nothing scores"),
        ((FAIL, PASS), (PASS,) * 4, "flaky", "doing nothing"),
        ((Verdict(outcome="failed", reward=0.3),) * 2, (PASS,) * 4, "invalid task", "0.3"),
        ((FAIL, FAIL), (PASS, PASS, FAIL, PASS), "flaky", "passes 3 of 4"),
        ((FAIL, FAIL), (FAIL,) * 4, "invalid task", "passes 0 of 4"),
        ((FAIL, FAIL), (Verdict.invalid("no network: x"),) * 4, "cannot run here", "no network"),
        (
            (FAIL, FAIL),
            (PASS.model_copy(update={"live_only": True}),) * 4,
            "invalid task",
            "live = true",
        ),
    ],
)
def test_what_trials_mean(
    folder: Path, nops: tuple[Verdict, ...], oracles: tuple[Verdict, ...], status: str, word: str
) -> None:
    found, reasons = _judge(load_task(folder), _Kept(nops=nops, oracles=oracles), 2, 4)
    assert found == status
    assert word in " ".join(reasons)
    assert bool(reasons) == (status != "passed")


def test_failing_tests_are_named(folder: Path) -> None:
    failed = FAIL.model_copy(update={"tests": (TestReport(name="a::b", status="failed"),)})
    _, reasons = _judge(load_task(folder), _Kept(nops=(FAIL,), oracles=(failed,)), 1, 1)
    assert "a::b" in reasons[0]


def test_leaks(folder: Path, tmp_path: Path) -> None:
    task = load_task(folder)
    image = tmp_path / "image"
    (image / "opt").mkdir(parents=True)
    (image / "opt/shared.py").write_bytes((folder / "tests/shared.py").read_bytes())
    (image / "opt/loop").symlink_to("/")
    base = Base(digest="0" * 64, layers=(image,))
    assert find_leaks(task, base) == []
    (image / "opt/.hidden").write_bytes((folder / "solution/solve.sh").read_bytes())
    (image / "tests").mkdir()
    (image / "tests/test.sh").write_text("other")
    assert find_leaks(task, base) == [
        "/opt/.hidden in the image is the task's solution/solve.sh",
        "/tests/test.sh is in the image",
    ]
    assert _judge(task, _Kept(nops=(FAIL,), leaks=("x",)), 1, 0)[0] == "leak"
    # What the environment shows on purpose may be tests, but never the script that judges.
    judge = (folder / "tests/test.sh").read_bytes()
    (folder / "environment/check.sh").write_bytes(judge)
    (image / "opt/check.sh").write_bytes(judge)
    assert "/opt/check.sh in the image is the task's tests/test.sh" in find_leaks(task, base)
    # A task that lies in no folder; setup takes away what is held back.
    verifier = task.verifier.model_copy(update={"files": {"a.patch": "+x\n" * 40}, "tests": None})
    row = task.model_copy(update={"folder": None, "verifier": verifier})
    (image / "opt/kept.patch").write_text("+x\n" * 40)
    assert find_leaks(row, base) == [
        "/opt/kept.patch in the image is the task's tests/a.patch",
        "/tests/test.sh is in the image",
    ]
    held = verifier.model_copy(update={"held_back": ("/opt", "/tests/test.sh")})
    assert find_leaks(row.model_copy(update={"verifier": held}), base) == []


@pytest.mark.root
def test_nop_and_oracle(bench: Bench) -> None:
    task = bench.task(PASS_IF_DONE, **SOLVE)
    assert nop(bench.store, task, bench.base).reward == 0.0
    assert oracle(bench.store, task, bench.base).passed


@pytest.mark.root
def test_a_failing_solution_says_how(bench: Bench) -> None:
    task = bench.task(PASS_IF_DONE, **{"solution/solve.sh": "#!/bin/sh\necho boom >&2\nexit 7\n"})
    verdict = oracle(bench.store, task, bench.base)
    assert verdict.outcome == "failed"
    assert "ended with 7: boom" in verdict.reason


@pytest.mark.root
def test_gate(bench: Bench) -> None:
    good = bench.task(PASS_IF_DONE, **SOLVE)
    generous = bench.task("echo 1 > /logs/verifier/reward.txt", **SOLVE)
    broken = bench.task(PASS_IF_DONE, **{"solution/solve.sh": "#!/bin/bash\ntrue\n"})
    toolless = bench.task(
        "no-such-tool && r=1 || r=0; echo $r > /logs/verifier/reward.txt", **SOLVE
    )
    steps: list[GateStep] = []
    tasks = (good, generous, broken, toolless)
    report = gate(bench.store, tasks, nops=2, oracles=2, jobs=2, progress=steps.append)
    assert [task.status for task in report.tasks] == [
        "passed",
        "invalid task",
        "invalid task",
        "cannot run here",
    ]
    assert not report.passed
    assert report.tasks[3].reasons == ("command not found: no-such-tool",)
    assert len(steps) == 16
    assert GateReport.model_validate_json(report.model_dump_json()) == report
    assert read_gate(bench.store, good, bench.base) == report.tasks[0]

    steps.clear()
    again = gate(bench.store, tasks[:3], nops=2, oracles=3, jobs=2, progress=steps.append)
    assert [step.kind for step in steps] == ["oracle"] * 3
    assert [task.status for task in again.tasks] == [task.status for task in report.tasks[:3]]
    # What could not be decided is tried again.
    steps.clear()
    gate(bench.store, (toolless,), nops=1, oracles=1, jobs=1, progress=steps.append)
    assert len(steps) == 2


@pytest.mark.root
def test_gate_names_what_cannot_run_here(bench: Bench) -> None:
    unsupported = bench.task(PASS_IF_DONE, '[environment]\ndocker_image="test/base"\ngpus=1\n')
    variable = bench.task(
        PASS_IF_DONE,
        '[environment]\ndocker_image="test/base"\n[verifier.env]\nA="${SPROUT_NOT_SET}"\n',
        **SOLVE,
    )
    report = gate(bench.store, (unsupported, variable), nops=1, oracles=1)
    assert [task.status for task in report.tasks] == ["cannot run here"] * 2
    assert "GPUs" in report.tasks[0].reasons[0]
    assert "SPROUT_NOT_SET" in report.tasks[1].reasons[0]


@pytest.mark.root
def test_a_gate_with_another_network_is_another_gate(bench: Bench) -> None:
    online = '#!/bin/bash\n[ -n "$http_proxy" ] && touch /done\n'
    task = bench.task(
        '[ -z "$http_proxy" ] || exit 1\n' + PASS_IF_DONE, **{"solution/solve.sh": online}
    )
    public = NetworkPolicy(mode="public")

    def status(network: NetworkPolicy | None) -> str:
        return gate(bench.store, (task,), 1, 1, network=network).tasks[0].status

    for _ in range(2):
        assert (status(None), status(public)) == ("invalid task", "passed")
    kept = read_gate(bench.store, task, bench.base)
    assert kept is not None
    assert not kept.passed


KILLED = """
import os, signal, sys
from pathlib import Path
from sprout_env.disks import open_store
from sprout_env.grading import trials
from sprout_env.sandbox.build import base_for
from sprout_env.tasks import load_task
from sprout_env.tasks.task import NetworkPolicy

store, task = open_store(Path(sys.argv[1])), load_task(sys.argv[2])
trials.grade_end = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)
trials.nop(store, task, base_for(store, task.image))
"""


@pytest.mark.root
def test_a_killed_gate_is_swept_and_goes_on(bench: Bench) -> None:
    task = bench.task(PASS_IF_DONE, **SOLVE)
    ran = subprocess.run(
        [sys.executable, "-c", KILLED, str(bench.store.path), str(task.folder)],
        cwd=Path(__file__).parents[2],
        timeout=60,
        check=False,
    )
    assert ran.returncode == -signal.SIGKILL
    assert gate_status(bench.store, task) is None
    family = bench.store.family(task.family_digest, bench.base).id
    assert len(list(bench.store.list_frozen(family))) == 1
    assert gate(bench.store, (task,), nops=1, oracles=1).passed
    assert gate_status(bench.store, task) == "passed"
    # What an earlier version looked for is looked for anew.
    (kept,) = (bench.store.path / "gate").glob(f"{task.digest[:24]}-*.json")
    old = _Kept.model_validate_json(kept.read_bytes()).model_copy(update={"rules": 1})
    kept.write_text(old.model_copy(update={"leaks": ("no longer",)}).model_dump_json())
    assert gate_status(bench.store, task) == "leak"
    assert gate(bench.store, (task,), nops=1, oracles=1).passed
    assert list(bench.store.list_frozen(family)) == []
