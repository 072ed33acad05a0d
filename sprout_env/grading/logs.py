"""What the test logs of the SWE-bench family say: one table of line patterns by kind of log.

Each pattern is matched against a line without colour codes. What it catches: ``name`` and
``status`` of a test; ``suite``, a heading that tests under it may be named with; ``pending``, a
test whose status stands on a later line. A pattern with a status beside it catches that status.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from sprout_env.grading.reports import MAX_NAME_CHARS, normalise
from sprout_env.tasks.task import LogKind

# Narrower than what is shown to people: a string that never ends must hide no line of a log.
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_TOOK = r"(?: \(?\d+(?:\.\d+)? ?m?s\)?)?"
_PYTEST = "PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS"
_SHORT = r"(?P<name>[^\[\s][^\[]*?(?:\[.*?\])?)(?: - .*)?$"
"""A name may hold " - " in its parameters; a reason follows one outside them."""

_Patterns = tuple[tuple[str, str], ...]
_PYTEST_LINES: _Patterns = (
    ("", rf"(?P<status>{_PYTEST})\s+{_SHORT}"),
    ("", rf"(?P<name>\S+::.*?)\s+(?P<status>{_PYTEST})(?:\s|$)"),
)
_LINES: Mapping[LogKind, _Patterns] = {
    "pytest": _PYTEST_LINES,
    "pytest-options": _PYTEST_LINES,
    "r2e": (("", r"(?P<status>PASSED|FAILED|ERROR)\s+[^:]*(?:::(?P<name>.*?))?(?: - .*)?$"),),
    "unittest": (
        ("", r"\s*(?P<name>\S.*?) \.\.\.\s+(?P<status>ok|OK|FAIL|ERROR|skipped\b.*|expected failure"
             r"|unexpected success)\s*$"),
        ("", r"(?P<status>FAIL|ERROR): (?P<name>\S+ \(.*\))"),
        ("", r"\s*(?P<pending>\S.*?) \.\.\. "),
        ("PASSED", r"\s*ok\b"),
    ),
    "sympy": (
        ("", r"\s*(?P<name>test_\S+)\s+(?P<status>ok|F|E|s|f|X)\b"),
        ("FAILED", r"_+ (?P<name>\S+\.py:\S+) _+$"),
    ),
    "go": (
        ("", rf"\s*--- (?P<status>PASS|FAIL|SKIP): (?P<name>\S.*?){_TOOK}$"),
        ("", r"(?P<status>FAIL)\s+(?P<name>\S+)\s+(?:\[.*\]|[\d.]+s)$"),
    ),
    "cargo": (("", r"\s*test (?P<name>\S.*?) \.\.\. (?P<status>ok|FAILED|ignored)\b"),),
    "js": (
        ("", rf"\s*(?P<status>[✓✔✕✗×✖✘○↓])\s+(?P<name>\S.*?)(?: \[skipped\])?{_TOOK}$"),
        ("", r"\[(?P<status>PASSED|FAILED)\] (?P<name>.+)$"),
        ("", rf"(?P<status>PASS|FAIL) +(?P<suite>\S.*?){_TOOK}$"),
        ("FAILED", r"\s+\d+\) (?P<name>\S.*?):?$"),
        ("SKIPPED", r"\s+- (?P<name>\S.*)$"),
    ),
    "java": (
        ("SKIPPED", r".*Tests run: ([1-9]\d*), Failures: 0, Errors: 0, Skipped: \1, Time elapsed: "
                    r".* in (?P<name>\S+)$"),
        ("PASSED", r".*Tests run: [1-9]\d*, Failures: 0, Errors: 0, Skipped: \d+, Time elapsed: "
                   r".* in (?P<name>\S+)$"),
        ("FAILED", r".*Tests run: [1-9]\d*, Failures: \d+, Errors: \d+, Skipped: \d+, "
                   r"Time elapsed: .* in (?P<name>\S+)$"),
        ("FAILED", r"\[ERROR\]\s+(?P<name>\S.*?)\s+--\s+Time elapsed: .*<<< (?:FAILURE|ERROR)!"),
        ("PASSED", r"\[(?:INFO|ERROR)\]\s+(?P<name>\S.*?)\s+--\s+Time elapsed: "),
        ("", r".*-Dtest=(?P<pending>\S+)"),
        ("", r".*BUILD (?P<status>SUCCESS|FAILURE)$"),
        ("", r"> Task :(?P<name>\S+)(?: (?P<status>FAILED|SKIPPED|UP-TO-DATE|NO-SOURCE"
             r"|FROM-CACHE))?$"),
        ("", r"\s*(?P<name>[^>\s].* > .*?)\s+(?P<status>PASSED|FAILED|SKIPPED)$"),
        ("", r"\s*(?P<pending>[^>\s]\S* > \S+)$"),
        ("", r"\s*(?P<status>PASSED|FAILED)$"),
        ("", r"\s*\[junit\] \[(?P<status>PASS|FAIL|ERR)\] (?P<name>\S.*)$"),
    ),
    "c": (
        ("", r"\s*\d+/\d+\s+Test\s+#\d+: (?P<name>\S.*?)\s*\.+\s*"
             r"(?P<status>Passed|\*\*\*(?:Failed|Skipped|Not Run|Timeout|Exception))"),
        ("", r".*\[\s*(?P<status>OK|FAILED|SKIPPED)\s*\] (?P<name>[^\s,]+)(?:,.*)?(?: \(.*\))?$"),
        ("", r"\s*(?P<status>PASS|FAIL|SKIP|XFAIL|XPASS|ERROR): (?P<name>\S.*)$"),
    ),
    "tap": (("", r"\s*(?P<status>ok|not ok) \d+ (?P<name>\S.*)$"),),
    "failures": (
        ("FAILED", r".*\(.*?\) (?P<name>\S.*?)\s*FAILED$"),
        ("FAILED", r"\d+\) (?P<name>\S.*)$"),
    ),
}  # fmt: skip
_COMPILED = {
    kind: [(status, re.compile(pattern)) for status, pattern in patterns]
    for kind, patterns in _LINES.items()
}
_WORDS: Mapping[str, str] = {
    **dict.fromkeys(
        ("PASS", "ok", "OK", "Passed", "SUCCESS", "UP-TO-DATE", "NO-SOURCE", "FROM-CACHE", "✓",
         "✔"), "PASSED"),
    **dict.fromkeys(
        ("SKIP", "s", "ignored", "○", "↓", "***Skipped", "***Not Run"), "SKIPPED"),
    **dict.fromkeys(("expected failure", "f"), "XFAIL"),
    **dict.fromkeys(("unexpected success", "X"), "XPASS"),
    **dict.fromkeys(("E", "ERR"), "ERROR"),
}  # fmt: skip
"""What runners write, beside our words; everything else is a failure."""
_RANK = {"PASSED": 0, "XFAIL": 1, "SKIPPED": 2}
_RAN = re.compile(
    r"Executed [1-9]\d* of \d+|TOTAL: [1-9]\d* (?:SUCCESS|FAILED)|[1-9]\d* passing"
    r"|[1-9]\d* specs?, \d+ failures?"
)


def read_statuses(kind: LogKind, log: str) -> dict[str, str]:
    """Return the status of each test that a log names, in capitals; of several the worst.

    So a line that only looks like a result can spoil a result, but never mend one.
    """
    if kind == "r2e":
        log = log.partition("short test summary info")[2]
    return merge(_read(kind, log))


def suite_ran(log: str) -> bool:
    """Whether a log that names failures only says that tests were run at all."""
    return _RAN.search(_ANSI.sub("", log)) is not None


def merge(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the status of each normalised id; of several the worst."""
    found: dict[str, str] = {}
    for name, status in pairs:
        key = normalise(name)
        if key not in found or _RANK.get(status, 3) > _RANK.get(found[key], 3):
            found[key] = status
    return found


def _read(kind: LogKind, log: str) -> Iterator[tuple[str, str]]:
    suite = pending = ""
    for line in _ANSI.sub("", log).splitlines():
        if len(line) > 2 * MAX_NAME_CHARS:
            continue
        for fixed, pattern in _COMPILED[kind]:
            match = pattern.match(line)
            if match is None:
                continue
            caught = match.groupdict()
            suite = caught.get("suite") or suite
            word = fixed or caught.get("status")
            if caught.get("pending"):
                pending = caught["pending"]
            elif "name" in caught or "suite" in caught or pending:
                name = caught.get("name") or caught.get("suite") or pending
                status = _status(word or "PASSED")
                yield _shown(kind, name), status
                if suite and suite != name:
                    yield f"{suite}:{name}", status
                pending = ""
            break


def _status(word: str) -> str:
    word = _WORDS.get(word.partition(" '")[0], word)
    if word.startswith("skipped"):
        return "SKIPPED"
    return word if word in _PYTEST.split("|") else "FAILED"


def _shown(kind: LogKind, name: str) -> str:
    if kind == "r2e":
        return name.replace("::", ".")
    if kind == "pytest-options":
        # An absolute path among the parameters differs from machine to machine: its end counts.
        return re.sub(r"\[/(?!/)[^*\]]*/([^/\]]*)\]", r"[/\1]", name)
    # As SWE-bench names matplotlib's.
    return name.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3")
