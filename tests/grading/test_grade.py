"""Judging real disks in real sandboxes: the protocol, what is invalid, and attacks on it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from sprout_env.errors import ConfigError, DiskNotFound, TaskUnsupported
from sprout_env.grading.grade import grade

Bench = Any  # the class of the fixture in conftest.py

pytestmark = pytest.mark.root

PASS_IF_DONE = "if [ -e /done ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt"
TOML = '[environment]\ndocker_image = "test/base"\nnetwork_mode = "no-network"\n'


def test_passed_and_failed(bench: Bench) -> None:
    task = bench.task(PASS_IF_DONE)
    failed = grade(bench.store, task, bench.end(task), bench.base)
    assert (failed.outcome, failed.reward) == ("failed", 0.0)
    passed = grade(bench.store, task, bench.end(task, "touch /done"), bench.base)
    assert (passed.outcome, passed.reward, passed.live_only) == ("passed", 1.0, False)
    assert passed.duration_s > 0


def test_grading_never_touches_the_disk_it_judges(bench: Bench) -> None:
    task = bench.task("[ -e /seen ] && echo 1 || echo 0 > /logs/verifier/reward.txt; touch /seen")
    frozen = bench.end(task)
    first = grade(bench.store, task, frozen, bench.base)
    assert grade(bench.store, task, frozen, bench.base).reward == first.reward == 0.0
    assert not [c.path for c in bench.store.changes(None, frozen) if c.path.startswith("/tests")]


def test_exit_code_means_nothing(bench: Bench) -> None:
    task = bench.task("echo 1 > /logs/verifier/reward.txt; exit 1")
    assert grade(bench.store, task, bench.end(task), bench.base).passed


def test_where_and_how_the_script_runs(bench: Bench) -> None:
    toml = (
        TOML + 'workdir = "/srv"\n[verifier]\nuser = "nobody"\n[verifier.env]\nASKED = "${GIVEN}"'
    )
    task = bench.task(
        'echo "$PWD $(id -un) $ASKED $PATH [$SET_BY_AGENT]"; ls -l /tests\n'
        "cat /tests/data/x; echo 1 > /logs/verifier/reward.txt",
        toml,
        **{"tests/data/x": "payload\n"},
    )
    frozen = bench.end(
        task, "export SET_BY_AGENT=1; echo 'export PATH=/evil:$PATH' >> /root/.profile"
    )
    with pytest.raises(ConfigError, match="GIVEN"):
        grade(bench.store, task, frozen, bench.base, environ={})
    verdict = grade(bench.store, task, frozen, bench.base, environ={"GIVEN": "hidden-value"})
    assert verdict.passed, verdict
    assert "/srv nobody **** /usr/local/sbin:" in verdict.log_tail
    assert "payload" in verdict.log_tail
    assert "/evil" not in verdict.log_tail
    assert "[]" in verdict.log_tail
    assert "hidden-value" not in verdict.model_dump_json()


def test_tests_are_nowhere_before(bench: Bench) -> None:
    task = bench.task(PASS_IF_DONE, **{"tests/marker-7731.py": "x = 1\n"})
    sandbox, disk = bench.live(task)
    done = sandbox.run("ls -d /tests /solution; find / -xdev -name 'marker-7731*'", timeout_s=60)
    assert done.stdout == b""
    frozen = bench.freeze(sandbox, disk)
    grade(bench.store, task, frozen, bench.base)
    done = sandbox.run("ls -d /tests; find / -xdev -name 'marker-7731*'", timeout_s=60)
    assert done.stdout == b""


def test_junit_gives_feedback_by_test(bench: Bench) -> None:
    task = bench.task(
        "cd /tests && python3 -m pytest -q -p no:cacheprovider --junitxml=/logs/verifier/j.xml . "
        "&& echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt",
        **{
            "tests/test_it.py": "def test_good():\n    pass\n\n"
            "def test_bad():\n    assert 1 == 2, 'told'\n"
        },
    )
    verdict = grade(bench.store, task, bench.end(task), bench.base)
    assert verdict.outcome == "failed"
    assert verdict.failing == ("test_it::test_bad",)
    assert {t.name: t.status for t in verdict.tests} == {
        "test_it::test_good": "passed",
        "test_it::test_bad": "failed",
    }
    assert "told" in next(t for t in verdict.tests if t.status == "failed").message


def test_json_beats_text_and_the_key_counts(bench: Bench) -> None:
    task = bench.task(
        "echo 1 > /logs/verifier/reward.txt\n"
        'echo \'{"reward": 0, "partial": 0.998}\' > /logs/verifier/reward.json'
    )
    verdict = grade(bench.store, task, bench.end(task), bench.base)
    assert (verdict.outcome, verdict.reward) == ("failed", 0.0)
    assert verdict.rewards == {"reward": 0.0, "partial": 0.998}


def test_threshold_and_key_of_the_task(bench: Bench) -> None:
    toml = TOML + '[metadata.sprout]\nreward_key = "score"\npass_threshold = 0.9\n'
    task = bench.task('echo \'{"score": 0.95, "x": 0}\' > /logs/verifier/reward.json', toml)
    verdict = grade(bench.store, task, bench.end(task), bench.base)
    assert (verdict.outcome, verdict.reward) == ("passed", 0.95)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exit 3", "wrote no reward file; its script ended with exit code 3"),
        ("echo -1 > /logs/verifier/reward.txt", "crashed"),
        ("echo NaN > /logs/verifier/reward.txt", "nan"),
        (": > /logs/verifier/reward.txt", "is empty"),
        ("echo 1 > /logs/verifier/reward.json", "no map"),
        ("echo '{\"reward\": NaN}' > /logs/verifier/reward.json", "NaN"),
        ('echo \'{"a": 1, "b": 1}\' > /logs/verifier/reward.json', "no key 'reward'"),
        ("ln -s /etc/shadow /logs/verifier/reward.txt", "a part of it is a link"),
        ("ln -s /proc/self/environ /logs/verifier/reward.json", "a part of it is a link"),
        ("mkfifo /logs/verifier/reward.txt", "not a regular file"),
        ("mkdir /logs/verifier/reward.json", "not a regular file"),
        ("truncate -s 10G /logs/verifier/reward.txt", "bytes"),
        ("rm -rf /logs; ln -s /etc /logs", "a part of it is a link"),
    ],
)
def test_undecided_is_invalid_and_says_why(bench: Bench, script: str, reason: str) -> None:
    task = bench.task(script)
    verdict = grade(bench.store, task, bench.end(task), bench.base)
    assert (verdict.outcome, verdict.reward) == ("invalid", None)
    assert reason in verdict.reason


def test_missing_tool_is_invalid_not_zero(bench: Bench) -> None:
    task = bench.task(
        "hash python-of-yore && python-of-yore -m pytest\n"
        "python-of-yore -m pytest && r=1 || r=0; echo $r > /logs/verifier/reward.txt"
    )
    verdict = grade(bench.store, task, bench.end(task), bench.base)
    assert verdict.outcome == "invalid"
    assert verdict.reason == "command not found: python-of-yore"


def test_removing_the_tool_does_not_make_a_failure_invalid(bench: Bench) -> None:
    task = bench.task(
        "python3 -c 'raise SystemExit(1)' && r=1 || r=0; echo $r > /logs/verifier/reward.txt"
    )
    verdict = grade(bench.store, task, bench.end(task, "rm -f /usr/bin/python3*"), bench.base)
    assert (verdict.outcome, verdict.reward) == ("failed", 0.0)
    assert "command not found: python3" in verdict.reason
    assert "untouched disk" in verdict.reason


def test_planted_rewards_and_reports_count_for_nothing(bench: Bench) -> None:
    task = bench.task("true")
    frozen = bench.end(
        task,
        "mkdir -p /logs/verifier /tests && echo 1 > /logs/verifier/reward.txt && "
        "echo '{\"reward\": 1}' > /logs/verifier/reward.json && "
        "echo '<testsuite><testcase name=\"x\"/></testsuite>' > /logs/verifier/junit.xml && "
        "echo 'import os' > /tests/conftest.py",
    )
    verdict = grade(bench.store, task, frozen, bench.base)
    assert (verdict.outcome, verdict.tests) == ("invalid", ())
    listing = bench.task("find /tests /logs; echo 0 > /logs/verifier/reward.txt")
    frozen = bench.end(listing, "mkdir -p /tests && echo 'import os' > /tests/conftest.py")
    assert "conftest" not in grade(bench.store, listing, frozen, bench.base).log_tail


@pytest.mark.parametrize(
    "plant",
    [
        "mkdir -p /logs && ln -s /etc /logs/verifier",
        "mkdir -p /x/verifier && echo 1 > /x/verifier/reward.txt && ln -s /x /logs",
        "touch /logs",
        "mkfifo /logs",
        "mkdir -p /logs/verifier && touch /logs/verifier/reward.txt && "
        "chattr +i /logs/verifier/reward.txt 2>/dev/null; true",
        "ln -s /etc /tests",
        "touch /tests",
        "printf '#!/bin/sh\\nexit 0\\n' > /usr/bin/rm; mkdir -p /logs/verifier; "
        "echo 1 > /logs/verifier/reward.txt",
        "rm -f /usr/bin/rm /usr/bin/mkdir /usr/bin/chmod",
    ],
)
def test_planted_obstacles_are_cleared(bench: Bench, plant: str) -> None:
    task = bench.task(PASS_IF_DONE)
    verdict = grade(bench.store, task, bench.end(task, plant), bench.base)
    assert (verdict.outcome, verdict.reward) == ("failed", 0.0), verdict
    verdict = grade(bench.store, task, bench.end(task, f"touch /done; {plant}"), bench.base)
    assert verdict.passed, verdict


def test_endless_forks_end_at_the_timeout(bench: Bench) -> None:
    toml = TOML + "[verifier]\ntimeout_sec = 2\n"
    task = bench.task("while :; do setsid sleep 1000 & sleep 0.05; done", toml)
    began = time.monotonic()
    verdict = grade(bench.store, task, bench.end(task), bench.base)
    assert verdict.outcome == "invalid"
    assert "timed out after 2 s" in verdict.reason
    assert time.monotonic() - began < 20


def test_nothing_written_after_a_timeout(bench: Bench) -> None:
    toml = TOML + "[verifier]\ntimeout_sec = 1\n"
    task = bench.task("setsid bash -c 'sleep 3; echo 1 > /logs/verifier/reward.txt' & wait", toml)
    verdict = grade(bench.store, task, bench.end(task), bench.base)
    assert verdict.outcome == "invalid"


def test_a_verifier_that_leaves_children_is_not_waited_for(bench: Bench) -> None:
    task = bench.task("echo 0 > /logs/verifier/reward.txt; (sleep 60) & exit 0")
    began = time.monotonic()
    assert grade(bench.store, task, bench.end(task), bench.base).outcome == "failed"
    assert time.monotonic() - began < 15


def test_a_late_writer_of_the_verifiers_own_is_stopped(bench: Bench) -> None:
    # A program that the agent swapped forks a writer; the pause comes before its second word.
    task = bench.task("swapped; echo 0 > /logs/verifier/reward.txt")
    frozen = bench.end(
        task,
        "printf '#!/bin/sh\\n(sleep 2; echo 1 > /logs/verifier/reward.txt) &\\n' > /usr/bin/swapped"
        "; chmod +x /usr/bin/swapped",
    )
    assert grade(bench.store, task, frozen, bench.base).outcome == "failed"


def test_hostile_reports_harm_nothing(bench: Bench) -> None:
    task = bench.task(
        "cd /logs/verifier; echo 0 > reward.txt; ln -s /etc/shadow a.xml; mkfifo b.xml; "
        "truncate -s 1T c.xml; ln -s / d; echo '<testsuite><testcase name=\"t\"/></testsuite>' "
        "> junit.xml"
    )
    verdict = grade(bench.store, task, bench.end(task), bench.base)
    assert verdict.outcome == "failed"
    assert [t.name for t in verdict.tests] == ["t"]


def test_huge_log_is_not_read(bench: Bench) -> None:
    task = bench.task("yes | head -c 50M; echo 0 > /logs/verifier/reward.txt")
    verdict = grade(bench.store, task, bench.end(task), bench.base)
    assert verdict.outcome == "failed"
    assert len(verdict.log_tail) < 10_000


def test_retries_are_as_many_as_asked(bench: Bench, tmp_path: Path) -> None:
    task = bench.task("true")
    frozen = bench.end(task)
    made: list[str] = []
    clone = bench.store.clone

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(bench.store, name)

        def clone(self, id: Any) -> Any:
            made.append(id)
            return clone(id)

    verdict = grade(Counting(), task, frozen, bench.base, retries=2)
    assert verdict.outcome == "invalid"
    assert len(made) == 3


def test_unsupported_is_refused_by_name(bench: Bench) -> None:
    task = bench.task("true", TOML + "gpus = 1\n")
    frozen = bench.end(bench.task("true"))
    with pytest.raises(TaskUnsupported, match="GPUs"):
        grade(bench.store, task, frozen, bench.base)


def test_an_infrastructure_failure_is_an_exception_never_a_reward(bench: Bench) -> None:
    task = bench.task(PASS_IF_DONE)
    frozen = bench.end(task)
    bench.store.drop(frozen)
    with pytest.raises(DiskNotFound):
        grade(bench.store, task, frozen, bench.base)


EAT = "python3 -c 'x = bytearray(600 << 20)'"


def test_out_of_memory_of_the_verifiers_own_is_invalid(bench: Bench) -> None:
    toml = TOML + "memory_mb = 128\n"
    task = bench.task(f"{EAT} && r=1 || r=0; echo $r > /logs/verifier/reward.txt", toml)
    verdict = grade(bench.store, task, bench.end(task), bench.base)
    assert (verdict.outcome, verdict.reason) == ("invalid", "the verifier ran out of memory")


def test_out_of_memory_of_the_agents_code_is_a_failure(bench: Bench) -> None:
    toml = TOML + "memory_mb = 128\n"
    task = bench.task("solve && r=1 || r=0; echo $r > /logs/verifier/reward.txt", toml)
    frozen = bench.end(
        task, f"printf '%s\\n' '#!/bin/sh' \"{EAT}\" > /usr/bin/solve; chmod +x /usr/bin/solve"
    )
    verdict = grade(bench.store, task, frozen, bench.base)
    assert (verdict.outcome, verdict.reward) == ("failed", 0.0)
    assert "out of memory" in verdict.reason
