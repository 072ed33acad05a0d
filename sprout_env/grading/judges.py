"""Scores from the status of each test: the rules of the SWE-bench family.

A log is the word of code that the agent wrote. So its ``PASSED`` lines are checked against the
runner's exit status, and a log without any test decides nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from sprout_env.errors import VerdictInvalid
from sprout_env.grading.logs import merge, read_statuses, suite_ran
from sprout_env.grading.reports import normalise
from sprout_env.grading.verdict import TestReport
from sprout_env.tasks.task import Judge

START, END = ">>>>> Start Test Output", ">>>>> End Test Output"
EXIT = ">>>>> Test Exit Code: "
APPLY_FAILED = ">>>>> Tests Could Not Be Applied"

_OK = frozenset({"PASSED", "XFAIL", "SKIPPED"})
_EXIT = re.compile(re.escape(EXIT) + r"(\d+)")


def decide(
    judge: Judge, log: str, parsed: bytes | None = None
) -> tuple[dict[str, float], tuple[TestReport, ...]]:
    """Return the rewards, and the tests that count.

    Args:
        judge: The family's rule and the instance's tests.
        log: What the script printed.
        parsed: What the instance's own parser wrote, where there is one.

    Raises:
        VerdictInvalid: The tests were not run, or the log contradicts the runner.
    """
    if APPLY_FAILED in log:
        raise VerdictInvalid("the tests could not be applied")
    inside = _between(log)
    found = _parsed(parsed) if judge.parser == "json" else read_statuses(judge.parser, inside)
    if not found and not (judge.missing_is_ok and suite_ran(inside)):
        raise VerdictInvalid("the log names no test")
    # The last one is the script's own: it stands below all that the tests print.
    ended = _EXIT.findall(log)[-1:]
    if judge.parser != "json" and ended and int(ended[0]) != 0:
        if all(value in _OK for value in found.values()) and not judge.missing_is_ok:
            raise VerdictInvalid(f"the tests ended with {ended[0]}, but the log names no failure")
    if judge.expected is not None:
        return _whole_map(judge.expected, found)
    f2p = [_report(name, found, judge.f2p_ok, judge) for name in judge.fail_to_pass]
    p2p = [_report(name, found, judge.p2p_ok, judge) for name in judge.pass_to_pass]
    passed = sum(test.status == "passed" for test in f2p)
    kept = sum(test.status == "passed" for test in p2p)
    solved = passed == len(f2p) and kept == len(p2p)
    values = {
        "reward": float(solved),
        "f2p_passed": float(passed),
        "f2p_total": float(len(f2p)),
        "p2p_passed": float(kept),
        "p2p_total": float(len(p2p)),
    }
    return values, (*f2p, *p2p)


def _between(log: str) -> str:
    """Return what stands between the markers; the whole log where one is missing."""
    _, start, rest = log.partition(START)
    inside, end, _ = rest.rpartition(END)
    return inside if start and end else log


def _report(name: str, found: Mapping[str, str], ok: frozenset[str], judge: Judge) -> TestReport:
    wanted = normalise(name)
    status = found.get(wanted) or found.get(_bare(name))
    if status is None and wanted.count("[") > wanted.count("]"):
        # A parameter that was cut off in the data set: those that begin so must agree.
        alike = [value for key, value in found.items() if key.startswith(wanted)]
        status = alike[0] if len({value in ok for value in alike}) == 1 else None
    if status is None:
        passed, message = judge.missing_is_ok, "not in the log"
    else:
        passed, message = status in ok, status
    return TestReport(
        name=name, status="passed" if passed else "failed", message="" if passed else message
    )


def _whole_map(
    expected: Mapping[str, str], found: Mapping[str, str]
) -> tuple[dict[str, float], tuple[TestReport, ...]]:
    """Compare as R2E-Gym does: the same tests, each with the expected status."""
    theirs = {_bare(name): status for name, status in expected.items()}
    ours = {_bare(name): status for name, status in found.items()}
    tests = [
        TestReport(
            name=name,
            status="passed" if ours.get(name) == status else "failed",
            message="" if ours.get(name) == status else f"{ours.get(name)}, not {status}",
        )
        for name, status in theirs.items()
    ]
    tests += [
        TestReport(name=name, status="failed", message="an unexpected test")
        for name in ours
        if name not in theirs
    ]
    return {"reward": float(all(test.status == "passed" for test in tests))}, tuple(tests)


def _bare(name: str) -> str:
    return normalise(name.split(" - ")[0])


def _parsed(data: bytes | None) -> dict[str, str]:
    try:
        tests = json.loads(data or b"{}")["tests"]
        return merge((str(test["name"]), str(test["status"]).upper()) for test in tests)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise VerdictInvalid(f"the parser wrote no results ({type(error).__name__})") from error
