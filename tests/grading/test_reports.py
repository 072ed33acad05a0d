"""Reports: formats, ids, duplicates, and hostile documents."""

from __future__ import annotations

import json
import time

import pytest

from sprout_env.grading.reports import collect, merge, normalise, read_ctrf, read_junit, shorten
from sprout_env.grading.verdict import TestReport

JUNIT = b"""<?xml version="1.0"?>
<testsuites><testsuite name="pytest" tests="4">
<testcase classname="test_outputs" name="test_a" time="0.1"/>
<testcase classname="test_outputs" name="test_b"><failure message="assert 1 == 2">def
 ...</failure></testcase>
<testcase classname="" name="test_c"><skipped message="why"/></testcase>
<testcase name="test_d"><error>boom</error><system-out>noise</system-out></testcase>
</testsuite></testsuites>"""


def test_junit() -> None:
    a, b, c, d = read_junit(JUNIT)
    assert (a.name, a.status) == ("test_outputs::test_a", "passed")
    assert (b.name, b.status, b.message) == ("test_outputs::test_b", "failed", "assert 1 == 2")
    assert (c.name, c.status) == ("test_c", "skipped")
    assert (d.status, d.message) == ("failed", "boom")


def test_ctrf() -> None:
    report = {
        "results": {
            "tests": [
                {"name": "a", "status": "passed", "suite": "s"},
                {"name": "x::b", "status": "failed", "message": "no", "suite": "s"},
                {"name": "c", "status": "pending"},
                {"name": "d", "status": "other"},
            ]
        }
    }
    tests = read_ctrf(json.dumps(report).encode())
    assert [(t.name, t.status) for t in tests] == [
        ("s::a", "passed"),
        ("x::b", "failed"),
        ("c", "skipped"),
        ("d", "failed"),
    ]


def test_worst_status_wins_over_duplicates() -> None:
    tests = [
        TestReport(name="a", status="passed"),
        TestReport(name="a", status="failed", message="once"),
        TestReport(name="a", status="passed"),
        TestReport(name="b", status="skipped"),
        TestReport(name="b", status="passed"),
    ]
    assert [(t.name, t.status) for t in merge(tests)] == [("a", "failed"), ("b", "skipped")]


def test_ids_are_normalised() -> None:
    assert normalise("\x1b[32m  test_a[x-1] (0.12s)\x1b[0m ") == "test_a[x-1]"
    assert normalise("suite > sub [12 ms]") == "suite > sub"
    assert normalise("test_p[3]") == "test_p[3]"


def test_messages_are_cut() -> None:
    assert len(shorten("x" * 10_000)) < 900
    assert shorten("\x1b[31mred\x1b[0m") == "red"


BOMB = (
    b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">'
    + b"".join(b'<!ENTITY %c "%s">' % (c + 1, b"&%c;" % c * 10) for c in range(97, 105))
    + b"]><testsuite><testcase name='&i;'/></testsuite>"
)
EXTERNAL = (
    b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>'
    b"<testsuite><testcase name='x'>&a;</testcase></testsuite>"
)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("document", [BOMB, EXTERNAL])
def test_document_types_are_refused(document: bytes, encoding: str) -> None:
    with pytest.raises(ValueError, match="document type"):
        read_junit(document.decode().encode(encoding))


@pytest.mark.parametrize("data", [b"", b"<", b"<a/>", b"<testsuite><testcase>", b"\x00\xff"])
def test_damaged_junit(data: bytes) -> None:
    with pytest.raises(ValueError, match="no JUnit report"):
        read_junit(data)


@pytest.mark.parametrize("data", [b"", b"[]", b'{"results": 1}', b"[" * 100_000, b"\xff"])
def test_damaged_ctrf(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - json's own error is one too
        read_ctrf(data)


def test_damaged_reports_are_named_and_the_others_count() -> None:
    reports = collect({"junit.xml": JUNIT, "ctrf.json": b"", "other.json": b"x"}, "FAILED a::b")
    assert len(reports.tests) == 4
    assert len(reports.unreadable) == 1
    assert reports.unreadable[0].startswith("ctrf.json")


def junit(*names: tuple[str, str]) -> bytes:
    cases = "".join(f'<testcase classname="{c}" name="{n}"/>' for c, n in names)
    return f"<testsuite>{cases}</testsuite>".encode()


def ctrf(*names: str, status: str = "failed") -> bytes:
    tests = [{"name": name, "status": status, "message": "why"} for name in names]
    return json.dumps({"results": {"tests": tests}}).encode()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("test_outputs.py::test_a", ("test_outputs", "test_a")),
        ("../tests/test_outputs.py::TestX::test_a", ("tests.test_outputs.TestX", "test_a")),
        ("test_outputs.py::test_a[x-1.5]", ("tests.test_outputs", "test_a[x-1.5]")),
        ("[f2p] tests.unit.test_x::test_a[a/b]", ("tests.unit.test_x", "test_a[a/b]")),
        ("test_a", ("tests.test_outputs", "test_a")),
        ("suite > sub > title", ("src/file.test.ts", "suite > sub > title")),
        ("file.test.ts: suite > title", ("file.test.ts", "suite &gt; title")),
    ],
)
def test_one_test_is_one_line_however_it_is_named(one: str, other: tuple[str, str]) -> None:
    (told,) = collect({"ctrf.json": ctrf(one), "junit.xml": junit(other)}).tests
    assert told == TestReport(name=one, status="failed", message="why")
    (told,) = collect({"a.xml": junit(other), "ctrf.json": ctrf(one, one)}).tests
    assert (told.status, told.message) == ("failed", "why")


@pytest.mark.parametrize(
    ("ones", "others"),
    [
        (["test_a[a-b]"], [("t", "test_a[a.b]")]),
        (["test_a"], [("x", "test_a"), ("y", "test_a")]),
        (["x::test_a", "y::test_a"], [("", "test_a")]),
        (["x::test_a"], [("y", "test_a")]),
        (["a.b", "a b"], [("t", "a.b")]),
        (["x::test_a[1]"], [("x", "test_a")]),
    ],
)
def test_different_tests_stay_different(ones: list[str], others: list[tuple[str, str]]) -> None:
    files = {"ctrf.json": ctrf(*ones), "junit.xml": junit(*others)}
    assert len(collect(files).tests) == len(ones) + len(others)


def test_many_tests_of_two_reports_are_few_seconds() -> None:
    names = [(f"tests.unit.test_{n % 97}", f"test_it[{n}]") for n in range(30_000)]
    files = {
        "ctrf.json": ctrf(*(f"{c.replace('.', '/')}.py::{n}" for c, n in names), status="passed"),
        "junit.xml": junit(*names),
    }
    began = time.process_time()
    assert len(collect(files).tests) == 30_000
    assert time.process_time() - began < 10


def test_log_only_where_there_is_no_report() -> None:
    log = "t.py::test_a PASSED [ 50%]\nFAILED t.py::test_b - assert 0\nERROR t.py::test_c\nother"
    assert [(t.name, t.status, t.message) for t in collect({}, log).tests] == [
        ("t.py::test_a", "passed", ""),
        ("t.py::test_b", "failed", "assert 0"),
        ("t.py::test_c", "failed", ""),
    ]
    assert len(collect({"a.xml": JUNIT}, log).tests) == 4
