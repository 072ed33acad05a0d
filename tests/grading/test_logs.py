"""Logs of each kind, written here in the format of its runner, and what is read from them."""

from __future__ import annotations

from typing import get_args

import pytest

from sprout_env.grading.logs import read_statuses, suite_ran
from sprout_env.tasks.dialects import COMMANDS, PARSERS
from sprout_env.tasks.task import LogKind

P, F, E, S, X = "PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL"
LOGS: dict[LogKind, tuple[str, dict[str, str]]] = {
    "pytest": (
        """\
tests/a.py::test_one PASSED                                              [ 20%]
\x1b[32mPASSED\x1b[0m tests/a.py::test_two[x y-1]
PASSED tests/a.py::test_minus[a - b]
PASSED tests/a.py::test_click[MouseButton.LEFT]
FAILED tests/a.py::test_reason[a - b] - AssertionError: [1] - [2] - really
FAILED tests/a.py::TestB::test_three - AssertionError: PASSED tests/a.py::test_four
ERROR tests/b.py - ImportError: no module
SKIPPED [1] tests/a.py:9: no network
SKIPPED tests/a.py::test_skipped
XFAIL tests/a.py::test_known - not yet
PASSED tests/a.py::test_twice
FAILED tests/a.py::test_twice - second time
captured: PASSED tests/a.py::not_a_result
PASSED
tests/a.py::test_cut_off
""",
        {
            "tests/a.py::test_one": P, "tests/a.py::test_two[x y-1]": P,
            "tests/a.py::test_click[1]": P, "tests/a.py::test_minus[a - b]": P,
            "tests/a.py::test_reason[a - b]": F,
            "tests/a.py::TestB::test_three": F, "tests/b.py": E, "tests/a.py::test_skipped": S,
            "tests/a.py::test_known": X, "tests/a.py::test_twice": F,
        },
    ),
    "pytest-options": (
        "PASSED t.py::test_get[/home/me/data/x.txt]\nPASSED t.py::test_url[//host/a/b]\n"
        "FAILED t.py::test_glob[/*/b] - no\n",
        {"t.py::test_get[/x.txt]": P, "t.py::test_url[//host/a/b]": P, "t.py::test_glob[/*/b]": F},
    ),
    "r2e": (
        "PASSED r2e_tests/t.py::too_early\n=== short test summary info ===\n"
        "\x1b[32mPASSED\x1b[0m r2e_tests/test_1.py::\x1b[1mTestA::test_b\x1b[0m\n"
        "FAILED r2e_tests/test_1.py::test_c[x] - assert 1 == 2\nERROR r2e_tests/test_2.py\n"
        "XFAIL r2e_tests/test_1.py::test_d\n",
        {"TestA.test_b": P, "test_c[x]": F, "": E},
    ),
    "unittest": (
        """\
test_a (queries.tests.One) ... ok
test_a (queries.tests.Two) ... FAIL
test_b (queries.tests.One.test_b) ... skipped 'no db'
test_c (queries.tests.One)
It has a docstring, with (brackets). ... ok
test_d (q.One) ... expected failure
test_e (q.One) ... unexpected success
test_f (q.One) ... Internal Server Error: /x/
Traceback (most recent call last):
ok
test_g (q.One) ... ERROR
test_h (q.One) ... it prints and never ends
======================================================================
FAIL: test_i (q.One)
""",
        {
            "test_a (queries.tests.One)": P, "test_a (queries.tests.Two)": F,
            "test_b (queries.tests.One.test_b)": S, "It has a docstring, with (brackets).": P,
            "test_d (q.One)": X, "test_e (q.One)": "XPASS", "test_f (q.One)": P,
            "test_g (q.One)": E, "test_i (q.One)": F,
        },
    ),
    "sympy": (
        """\
sympy/core/tests/test_a.py[6]
test_one ok
test_two F
test_three f
test_four E
test_five s  [OK]
test_six X
________________ sympy/core/tests/test_a.py:test_two ________________
""",
        {"test_one": P, "test_two": F, "test_three": X, "test_four": E, "test_five": S,
         "test_six": "XPASS", "sympy/core/tests/test_a.py:test_two": F},
    ),
    "go": (
        """\
=== RUN   TestA
=== RUN   TestA/with_space_(and_brackets)
    a_test.go:7: --- PASS: TestFake (0.00s)
--- FAIL: TestA (0.01s)
    --- PASS: TestA/with_space_(and_brackets) (0.00s)
    --- FAIL: TestA/b (0.00s)
--- SKIP: TestC (0.00s)
--- PASS: TestD (12.30s)
--- PASS: TestE
ok  \texample.org/x\t0.010s
FAIL\texample.org/y [build failed]
""",
        {"TestA": F, "TestA/with_space_(and_brackets)": P, "TestA/b": F, "TestC": S, "TestD": P,
         "TestE": P, "example.org/y": F},
    ),
    "cargo": (
        """\
running 5 tests
test net::tcp::connects ... ok
test net::tcp::drops - should panic ... ok
test parse::fails ... FAILED
test slow ... ignored, needs a network
test src/lib.rs - Foo<T>::bar (line 12) ... \x1b[32mok\x1b[0m
test result: FAILED. 3 passed; 1 failed; 1 ignored
test cut ..""",
        {"net::tcp::connects": P, "net::tcp::drops - should panic": P, "parse::fails": F,
         "slow": S, "src/lib.rs - Foo<T>::bar (line 12)": P},
    ),
    "js": (
        """\
 ✓ src/x.spec.ts > suite > passes 12ms
 × src/x.spec.ts > suite > fails
 ↓ src/x.spec.ts > suite > waits [skipped]
    ✔ mocha passes (40ms)
    1) mocha fails
    - mocha waits
[PASSED] all of it
[FAILED] none
\x1b[32mPASS\x1b[39m test/a.test.js (5.2 s)
  adds (numbers)
    ✓ one and [two] (12 ms)
    ✓ one
    ○ skipped later
FAIL test/b.test.js
    ✕ breaks (1 ms)
""",
        {
            "test/a.test.js": P, "one and [two]": P, "test/a.test.js:one and [two]": P, "one": P,
            "test/a.test.js:one": P, "skipped later": S, "test/a.test.js:skipped later": S,
            "test/b.test.js": F, "breaks": F, "test/b.test.js:breaks": F,
            "src/x.spec.ts > suite > passes": P, "src/x.spec.ts > suite > fails": F,
            "src/x.spec.ts > suite > waits": S, "mocha passes": P, "mocha fails": F,
            "mocha waits": S, "all of it": P, "none": F,
        },
    ),
    "java": (
        """\
[INFO] Running org.x.ATest
[INFO] Tests run: 3, Failures: 0, Errors: 0, Skipped: 1, Time elapsed: 0.1 s -- in org.x.ATest
[ERROR] Tests run: 2, Failures: 1, Errors: 0, Skipped: 0, Time elapsed: 0.2 s <<< FAILURE! -- in \
org.x.BTest
[ERROR] org.x.BTest.breaks -- Time elapsed: 0.001 s <<< FAILURE!
[INFO] org.x.BTest.works(String)[1] -- Time elapsed: 0.001 s
Tests run: 2, Failures: 0, Errors: 0, Skipped: 2, Time elapsed: 0 sec - in org.x.CTest
+ mvn test -Dtest=org.x.DTest#one -q
[INFO] BUILD SUCCESS
+ mvn test -Dtest=org.x.DTest#two -q
[INFO] BUILD FAILURE
> Task :compileJava UP-TO-DATE
> Task :test FAILED
org.x.ETest > adds [1, 2] PASSED
org.x.ETest > breaks() FAILED
org.x.ETest > waits() SKIPPED
org.x.FTest > late()
WARNING: PASSED is said below
PASSED
    [junit] [PASS] g1
    [junit] [ERR] g2
""",
        {
            "org.x.ATest": P, "org.x.BTest": F, "org.x.BTest.breaks": F,
            "org.x.BTest.works(String)[1]": P, "org.x.CTest": S, "org.x.DTest#one": P,
            "org.x.DTest#two": F, "compileJava": P, "test": F, "org.x.ETest > adds [1, 2]": P,
            "org.x.ETest > breaks()": F, "org.x.ETest > waits()": S, "org.x.FTest > late()": P,
            "g1": P, "g2": E,
        },
    ),
    "c": (
        """\
 1/4 Test  #1: unit (a b) .......................   Passed    0.01 sec
 2/4 Test  #2: io ...............................***Failed    0.02 sec
 3/4 Test #10: net ..............................***Not Run (Disabled)   0.00 sec
 4/4 Test  #4: slow .............................***Timeout  60.00 sec
[       OK ] Suite.Case/1 (3 ms)
[  FAILED  ] Suite.Other/0, where GetParam() = 4 (1 ms)
[  SKIPPED ] Suite.Later (0 ms)
PASS: tst_filter.sh
XFAIL: tst_known
FAIL: t_dap 3a
""",
        {
            "unit (a b)": P, "io": F, "net": S, "slow": F, "Suite.Case/1": P, "Suite.Other/0": F,
            "Suite.Later": S, "tst_filter.sh": P, "tst_known": X, "t_dap 3a": F,
        },
    ),
    "tap": (
        "TAP version 13\nok 1 - adds\nnot ok 2 - breaks (badly)\nok 3 waits # SKIP no net\n1..3\n",
        {"- adds": P, "- breaks (badly)": F, "waits # SKIP no net": P},
    ),
    "failures": (
        "Chrome 100.0 (Linux x86_64) Bar draws it FAILED\n1) marked [x] should be bold\n"
        "Executed 10 of 10 (2 FAILED)\n",
        {"Bar draws it": F, "marked [x] should be bold": F},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", LOGS)
def test_what_a_log_says(kind: LogKind) -> None:
    log, expected = LOGS[kind]
    assert read_statuses(kind, log) == expected


def test_every_kind_that_families_name_has_a_log_here() -> None:
    assert set(LOGS) == set(get_args(LogKind))
    assert {*PARSERS.values(), *(kind for _, kind in COMMANDS.values()), "r2e"} == set(LOGS)


@pytest.mark.parametrize("kind", LOGS)
def test_a_log_cut_anywhere_is_read_to_there(kind: LogKind) -> None:
    log, expected = LOGS[kind]
    for end in range(0, len(log), 7):
        whole, _, _ = log[:end].rpartition("\n")
        assert set(read_statuses(kind, whole)) <= set(expected)
        read_statuses(kind, log[:end])


def test_hostile_lines_cost_nothing() -> None:
    for kind in LOGS:
        for line in ("PASSED " + "[" * 1500 + "- " * 200, " - " * 600, "a" * (1 << 20), "> " * 900):
            read_statuses(kind, f"{line}\n" * 20)


def test_whether_a_log_of_failures_ran_at_all() -> None:
    assert suite_ran("Executed \x1b[32m10\x1b[0m of 10 SUCCESS")
    assert not suite_ran("Executed 0 of 0")
    assert not suite_ran("")
