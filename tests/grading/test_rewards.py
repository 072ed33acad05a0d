"""Reward files, signs that the machinery never ran."""

from __future__ import annotations

import pytest

from sprout_env.errors import VerdictInvalid
from sprout_env.grading.rewards import parse_json, parse_text, primary
from sprout_env.grading.signatures import sign_of
from sprout_env.grading.verdict import TestReport, Verdict


@pytest.mark.parametrize(
    ("data", "value"), [(b"1\n", 1.0), (b" 0.25 ", 0.25), (b"0", 0.0), (b"1e-3", 0.001)]
)
def test_text(data: bytes, value: float) -> None:
    assert parse_text(data) == {"reward": value}


@pytest.mark.parametrize(
    "data", [b"", b" \n", b"true", b"NaN", b"inf", b"-Infinity", b"1e309", b"1 2", b"\xff", b"{}"]
)
def test_text_that_is_no_reward(data: bytes) -> None:
    with pytest.raises(VerdictInvalid, match=r"reward\.txt"):
        parse_text(data)


def test_json() -> None:
    assert parse_json(b'{"reward": 1, "partial": 0.5, "ok": true}') == {
        "reward": 1.0,
        "partial": 0.5,
        "ok": 1.0,
    }


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"1",
        b"true",
        b"[]",
        b"{}",
        b"{",
        b'{"reward": "1"}',
        b'{"reward": null}',
        b'{"reward": NaN}',
        b'{"reward": Infinity}',
        b'{"reward": 1e309}',
        b'{"reward": {"a": 1}}',
        b'{"a": ' * 50_000,
        b'{"reward": 1' + b"0" * 400 + b"}",
        b'{"reward": 1' + b"0" * 5000 + b"}",
        b"\xff\xfe",
    ],
)
def test_json_that_is_no_reward(data: bytes) -> None:
    with pytest.raises(VerdictInvalid, match=r"reward\.json"):
        parse_json(data)


def test_primary_key_is_never_guessed() -> None:
    assert primary({"reward": 0.0, "partial": 0.998}, "reward") == 0.0
    assert primary({"score": 0.5, "x": 1.0}, "score") == 0.5
    assert primary({"accuracy": 0.5}, "reward") == 0.5
    with pytest.raises(VerdictInvalid, match="no key 'reward' but a, b"):
        primary({"a": 1.0, "b": 1.0}, "reward")


def test_crash_sentinel_is_no_score() -> None:
    with pytest.raises(VerdictInvalid, match="crashed"):
        primary({"reward": -1.0}, "reward")
    assert primary({"reward": -0.5}, "reward") == -0.5


@pytest.mark.parametrize(
    ("log", "sign"),
    [
        ("/tests/test.sh: line 3: python: command not found\n", "command not found: python"),
        ("/tests/test.sh: 3: uv: not found\n", "command not found: uv"),
        ("/usr/bin/env: ‘python’: No such file or directory", "command not found: python"),
        ("/usr/bin/python3: No module named pytest", "no Python module pytest"),
        ("curl: (6) Could not resolve host: astral.sh", "no network: Could not resolve host"),
        ("curl: (22) The requested URL returned error: 502", "no network: returned error: 502"),
        ("curl: (56) CONNECT tunnel failed, response 403", "no network: CONNECT tunnel failed"),
        ("  cause: tunnel error: unsuccessful", "no network: tunnel error"),
        (
            "fatal: Received HTTP code 502 from proxy after CONNECT",
            "no network: HTTP code 502 from proxy",
        ),
        ("ProxyError('Cannot connect to proxy.', OSError('Tunnel", "no network: ProxyError"),
        (
            "Err:1 http://deb.debian.org x\n  502  Bad Gateway [IP: 127.0.0.1 3128]",
            "no network: 502  Bad Gateway",
        ),
        ("collected 0 items\n\n=== no tests ran in 0.01s ===", "no tests: collected 0 items"),
        (
            "curl: (6) Could not resolve host: astral.sh\n/tests/test.sh: 3: uvx: not found\n",
            "no network: Could not resolve host",
        ),
        ("OSError: [Errno 28] No space left on device", "disk full: No space left on device"),
    ],
)
def test_signs(log: str, sign: str) -> None:
    assert sign_of(log, ()) == sign


@pytest.mark.parametrize(
    "log",
    [
        "python: command not found\n==== 3 failed in 0.1s ====",
        "collected 0 items / 1 error\n==== 1 error in 0.1s ====",
        "AssertionError: no such table",
        "",
    ],
)
def test_no_sign_where_tests_ran(log: str) -> None:
    assert sign_of(log, ()) is None


def test_reports_show_whether_tests_ran() -> None:
    log = "python: command not found\n"
    missing = TestReport(name="a", status="failed", message="missing from report")
    assert sign_of(log, [missing]) == "command not found: python"
    assert sign_of(log, [missing, TestReport(name="b", status="passed")]) is None
    assert sign_of(log, [TestReport(name="b", status="failed", message="assert 0")]) is None


def test_a_verdict_is_printed_as_one_line() -> None:
    tests = tuple(TestReport(name=name, status="failed", message="x\n" * 9) for name in "ab")
    failed = Verdict(outcome="failed", reward=0.0, tests=tests, log_tail="y\n" * 99)
    assert str(failed) == "failed: 2 of 2 tests fail"
    assert str(Verdict(outcome="passed", reward=1.0)) == "passed"
    assert str(Verdict.invalid("no reward file")) == "invalid: no reward file"
