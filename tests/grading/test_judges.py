"""What logs of each family mean, by its rule; every log here is written in the family's format."""

from __future__ import annotations

from typing import Any

import pytest

from sprout_env.errors import VerdictInvalid
from sprout_env.grading.judges import END, EXIT, START, decide
from sprout_env.tasks.task import Judge

LOG = f"""\
PASSED tests/a.py::fake_before_the_marker
{START}
tests/a.py::test_one PASSED                                              [ 20%]
\x1b[32mPASSED\x1b[0m tests/a.py::test_two[x-1]
FAILED tests/a.py::test_three - AssertionError: 1 != 2 - really
ERROR tests/b.py
SKIPPED [1] tests/a.py:9: no network
SKIPPED tests/a.py::test_skipped
XFAIL tests/a.py::test_known - not yet
PASSED tests/a.py::test_twice
FAILED tests/a.py::test_twice - second time
{END}
{EXIT}1
"""


def score(log: str = LOG, **fields: object) -> float:
    values, _ = decide(Judge.model_validate(fields), log)
    return values["reward"]


def test_statuses_of_a_pytest_log() -> None:
    names = ("one", "two[x-1]", "three", "skipped", "known", "twice", "absent")
    ids = tuple(f"tests/a.py::test_{name}" for name in names)
    _, tests = decide(Judge(fail_to_pass=ids), LOG)
    assert [t.status for t in tests] == ["passed", "passed", "failed", "failed", "passed",
                                         "failed", "failed"]  # fmt: skip
    assert tests[-1].message == "not in the log"
    assert "fake" not in str(tests)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"fail_to_pass": ["tests/a.py::test_one"]}, 1.0),
        # Skipped: never enough for a test that must come to pass; enough, in SWE-bench, for one
        # that must go on passing; nowhere else.
        ({"fail_to_pass": ["tests/a.py::test_skipped"]}, 0.0),
        ({"pass_to_pass": ["tests/a.py::test_skipped"]}, 0.0),
        ({"pass_to_pass": ["tests/a.py::test_skipped"], "p2p_ok": ["PASSED", "SKIPPED"]}, 1.0),
        # xfail is a pass in SWE-bench, not in Pro or rebench.
        ({"fail_to_pass": ["tests/a.py::test_known"]}, 1.0),
        ({"fail_to_pass": ["tests/a.py::test_known - not yet"]}, 1.0),
        ({"fail_to_pass": ["tests/a.py::test_known"], "f2p_ok": ["PASSED"]}, 0.0),
        # A missing test fails, except where logs name failures only.
        ({"fail_to_pass": ["tests/a.py::gone"]}, 0.0),
        ({"fail_to_pass": ["tests/a.py::gone"], "missing_is_ok": True}, 1.0),
        ({"fail_to_pass": ["tests/a.py::test_three"], "missing_is_ok": True}, 0.0),
        # Parameters that the data set cut off; white space and timing.
        ({"fail_to_pass": ["tests/a.py::test_two[x"]}, 1.0),
        ({"fail_to_pass": [" tests/a.py::test_one [12 ms] "]}, 1.0),
        ({"fail_to_pass": [], "pass_to_pass": ["tests/a.py::test_twice"]}, 0.0),
    ],
)
def test_the_rules(fields: dict[str, Any], expected: float) -> None:
    """Trap 17."""
    assert score(**fields) == expected


def test_ambiguous_cut_parameters_count_as_missing() -> None:
    log = "PASSED a.py::t[x-1]\nFAILED a.py::t[x-2]\n"
    assert score(log, fail_to_pass=["a.py::t[x"]) == 0.0
    # What counts the same agrees.
    assert score("PASSED a.py::t[x-1]\nXFAIL a.py::t[x-2]\n", fail_to_pass=["a.py::t[x"]) == 1.0


def test_logs_that_name_failures_only() -> None:
    """Trap 17 and 19: no name is a pass there, if anything was run at all."""
    fields = {"parser": "failures", "fail_to_pass": ["a"], "missing_is_ok": True}
    assert score("Executed 3 of 3 SUCCESS\n", **fields) == 1.0
    assert score("1) a\nExecuted 3 of 3\n", **fields) == 0.0
    for log in ("", "Executed 0 of 0\n"):
        with pytest.raises(VerdictInvalid, match="names no test"):
            score(log, **fields)


def test_an_instances_own_parser() -> None:
    """SWE-bench Pro: the parser's JSON counts, the log does not."""
    judge = Judge(parser="json", fail_to_pass=("a | b",), f2p_ok=frozenset({"PASSED"}))
    data = b'{"tests": [{"name": "a | b", "status": "PASSED"}]}'
    assert decide(judge, "", data)[0]["reward"] == 1.0
    assert decide(judge, LOG, data.replace(b"PASSED", b"FAILED"))[0]["reward"] == 0.0
    for broken in (None, b"", b"[]", b'{"tests": [1]}', b"{"):
        with pytest.raises(VerdictInvalid, match="parser"):
            decide(judge, LOG, broken)


def test_a_whole_map_must_be_equal() -> None:
    """R2E-Gym: the same tests with the same statuses; names end at " - "."""
    log = (
        "=== short test summary info ===\nPASSED r2e_tests/test_1.py::T::a\n"
        "FAILED r2e_tests/test_1.py::T::b - why\n"
    )

    def whole(**expected: str) -> float:
        told = {f"T.{name}": status for name, status in expected.items()}
        return score(log, parser="r2e", expected=told)

    assert whole(**{"a": "PASSED", "b\x1b[0m - other": "FAILED"}) == 1.0
    assert whole(a="PASSED") == 0.0
    assert whole(a="PASSED", b="PASSED") == 0.0
    assert whole(a="PASSED", b="FAILED", c="PASSED") == 0.0


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("", "names no test"),
        (f"{START}\nbash: pytest: command not found\n{END}\n{EXIT}127\n", "names no test"),
        (f"{START}\nPASSED a::b\n{END}\n{EXIT}1\n", "names no failure"),
        # The status that the tests print themselves is not the script's.
        (f"{START}\n{EXIT}0\nPASSED a::b\n{END}\n{EXIT}1\n", "names no failure"),
        ("error: patch failed\n>>>>> Tests Could Not Be Applied\n", "could not be applied"),
    ],
)
def test_what_decides_nothing(log: str, said: str) -> None:
    """Traps 18 and 19."""
    with pytest.raises(VerdictInvalid, match=said):
        decide(Judge(fail_to_pass=("a::b",)), log)
