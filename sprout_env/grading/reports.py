"""What a verifier's own reports say, test by test: CTRF, JUnit XML, and as a last resort its log.

Reports are feedback; the reward file alone decides. They come out of a sandbox and are read as
such: size caps, no document types, no entities, no links.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple
from xml.parsers import expat

from sprout_env.grading.plain import plain
from sprout_env.grading.verdict import TestReport

MAX_REPORT_BYTES = 64 << 20
"""A report larger than this is not read."""
MAX_TESTS = 200_000
"""Tests kept of one verdict; the largest public suite has 30,014."""
MAX_MESSAGE_CHARS = 800
MAX_NAME_CHARS = 1000
"""Longer ids, and log lines longer than twice this, are a hostile verifier's."""

Status = Literal["passed", "failed", "skipped"]
_WORST: Mapping[Status, int] = {"passed": 0, "skipped": 1, "failed": 2}

_TIMING = re.compile(r"\s*[\[(]\d+(?:\.\d+)?\s*(?:ms|s|sec|secs|seconds)[\])]$")
_TAG = re.compile(r"\[\w+\]\s+")
_WORD = re.compile(r"\w+")
_MAX_FOLDERS = 6
_CTRF_STATUS: Mapping[str, Status] = {
    "passed": "passed",
    "skipped": "skipped",
    "pending": "skipped",
}
_LOG_SHORT = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (\S+::.+?)(?: - (.*))?$")
_LOG_LONG = re.compile(r"^(\S+::.+?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)(?:\s|$)")
_LOG_STATUS: Mapping[str, Status] = {
    "PASSED": "passed",
    "XFAIL": "passed",
    "XPASS": "passed",
    "SKIPPED": "skipped",
    "FAILED": "failed",
    "ERROR": "failed",
}


class _Refused(Exception):
    """The document wants something that a report has no business with."""


class Reports(NamedTuple):
    """All tests of a verifier's reports, and the reports that could not be read."""

    tests: tuple[TestReport, ...]
    unreadable: tuple[str, ...]


def normalise(name: str) -> str:
    """Return a test's id as one line without colour codes, timing suffix and space around it."""
    line = plain(name[:MAX_NAME_CHARS]).strip().replace("\n", " ")
    return _TIMING.sub("", line).strip()


def shorten(message: str, limit: int = MAX_MESSAGE_CHARS) -> str:
    """Return a message without colour codes, its middle cut out where it is too long."""
    text = plain(message).strip()
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2].rstrip()}\n...\n{text[-(limit // 2) :].lstrip()}"


def merge(tests: Iterable[TestReport]) -> tuple[TestReport, ...]:
    """Return one entry per id, in order of appearance; of several results the worst wins."""
    found: dict[str, TestReport] = {}
    for test in tests:
        before = found.get(test.name)
        if before is None or _WORST[test.status] > _WORST[before.status]:
            if before is None and len(found) >= MAX_TESTS:
                break
            found[test.name] = test
    return tuple(found.values())


def _key(name: str) -> str:
    """Return the words of an id, without what runners write differently: ``a/b.py::C``, ``a.b.C``.

    A parameter list at its end is one word, exactly as it stands.
    """
    tag = _TAG.match(name)
    at = tag.end() if tag is not None else 0
    head, bracket, parameters = name[at:].partition("[")
    if not name.endswith("]"):
        head, bracket, parameters = name[at:], "", ""
    words = _WORD.findall(f"{name[:at]}{head}".replace(".py::", "::"))
    return " ".join([*words, bracket + parameters] if bracket else words)


def _ends(key: str) -> Iterator[str]:
    """Yield a key and what is left of it without its first words, of which few are folders."""
    for _ in range(_MAX_FOLDERS):
        yield key
        _, _, key = key.partition(" ")
        if not key:
            return


def _named_alike(
    known: Mapping[str, TestReport], tests: Iterable[TestReport]
) -> Iterator[TestReport]:
    """Yield the tests of a report under the names by which earlier reports know them.

    Two ids are the same test's if one's words are the end of the other's, and no third one's are.
    """
    whole: dict[str, str] = {}
    ends: dict[str, str] = {}
    for name in known:
        for found, keys in ((whole, [_key(name)]), (ends, _ends(_key(name)))):
            for key in keys:
                found[key] = "" if key in found else name
    pairs: list[tuple[TestReport, str]] = []
    for test in tests:
        key = _key(test.name)
        others = (whole[end] for end in _ends(key) if end in whole)
        other = test.name if test.name in known else ends.get(key) or next(others, "")
        pairs.append((test, other))
    times = Counter(other for _, other in pairs)
    for test, other in pairs:
        yield test.model_copy(update={"name": other}) if other and times[other] == 1 else test


def read_ctrf(data: bytes) -> list[TestReport]:
    """Read a CTRF report.

    Raises:
        ValueError: It is none.
    """
    try:
        entries = json.loads(data)["results"]["tests"]
        tests = []
        for entry in entries:
            suite = entry.get("suite")
            told = str(entry["name"])
            if isinstance(suite, str) and suite and "::" not in told:
                told = f"{suite}::{told}"
            status = _CTRF_STATUS.get(str(entry["status"]).lower(), "failed")
            message = entry.get("message") or entry.get("trace") or ""
            note = shorten(str(message)) if status != "passed" else ""
            tests.append(TestReport(name=normalise(told), status=status, message=note))
        return tests
    except (KeyError, TypeError, AttributeError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"no CTRF report ({type(error).__name__})") from error


class _JUnit:
    """Collects test cases from a stream of XML events; nothing else of the document is kept."""

    def __init__(self) -> None:
        self.tests: list[TestReport] = []
        self._name: str | None = None
        self._status: Status = "passed"
        self._message = ""
        self._text: list[str] | None = None
        self._chars = 0
        self._seen = False

    def refuse(self, *_: object) -> None:
        raise _Refused("a document type declaration")

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        tag = tag.rpartition("}")[2]
        self._seen = self._seen or tag in ("testsuite", "testsuites")
        if tag == "testcase":
            owner = attributes.get("classname", "")
            name = attributes.get("name", "")
            self._name = normalise(f"{owner}::{name}" if owner else name)
            self._status, self._message = "passed", ""
        elif self._name is not None and tag in ("failure", "error", "skipped"):
            status: Status = "skipped" if tag == "skipped" else "failed"
            if _WORST[status] > _WORST[self._status]:
                self._status, self._message = status, attributes.get("message", "")
                self._text, self._chars = [], 0

    def characters(self, text: str) -> None:
        if self._text is not None and self._chars < 1 << 16:
            self._text.append(text)
            self._chars += len(text)

    def end(self, tag: str) -> None:
        tag = tag.rpartition("}")[2]
        if tag in ("failure", "error", "skipped") and self._text is not None:
            self._message = self._message.strip() or "".join(self._text)
            self._text = None
        elif tag == "testcase" and self._name is not None:
            if len(self.tests) >= MAX_TESTS:
                raise _Refused(f"more than {MAX_TESTS} tests")
            self.tests.append(
                TestReport(name=self._name, status=self._status, message=shorten(self._message))
            )
            self._name, self._text = None, None

    def finish(self) -> list[TestReport]:
        if not self._seen:
            raise ValueError("no JUnit report (no test suite in it)")
        return self.tests


def read_junit(data: bytes) -> list[TestReport]:
    """Read a JUnit XML report; ids are ``classname::name``.

    Raises:
        ValueError: It is none, is damaged, or declares a document type.
    """
    reader = _JUnit()
    parser = expat.ParserCreate()
    parser.buffer_text = True
    # Entities can only be declared in a document type: refusing that refuses expansion bombs.
    parser.StartDoctypeDeclHandler = reader.refuse
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.characters
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, _Refused) as error:
        raise ValueError(f"no JUnit report ({error})") from error
    return reader.finish()


def read_log(text: str) -> list[TestReport]:
    """Read the result lines of a pytest log (``-v`` or ``-rA``): feedback where no report is."""
    tests = []
    for line in plain(text).splitlines():
        if len(line) > 2 * MAX_NAME_CHARS:
            continue
        short, long = _LOG_SHORT.match(line), _LOG_LONG.match(line)
        if short is not None:
            status, name, message = short.groups()
        elif long is not None:
            (name, status), message = long.groups(), ""
        else:
            continue
        tests.append(
            TestReport(
                name=normalise(name), status=_LOG_STATUS[status], message=shorten(message or "")
            )
        )
    return tests


def collect(files: Mapping[str, bytes], log: str = "") -> Reports:
    """Merge all reports among a verifier's files; its log counts only where there is none.

    Args:
        files: Names, relative to the verifier's log folder, to contents.
        log: The verifier's output.
    """
    tests: tuple[TestReport, ...] = ()
    unreadable: list[str] = []
    for name, data in sorted(files.items()):
        try:
            if name.endswith(".xml"):
                more = read_junit(data)
            elif name.endswith(".json") and "ctrf" in name.lower():
                more = read_ctrf(data)
            else:
                continue
        except ValueError as error:
            unreadable.append(f"{name}: {error}")
            continue
        known = {test.name: test for test in tests}
        tests = merge((*tests, *_named_alike(known, merge(more))))
    return Reports(tests or merge(read_log(log)), tuple(unreadable))
