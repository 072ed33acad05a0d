"""Signs in a verifier's log that its machinery never ran: a missing tool, no network, no tests.

Such a log usually comes with reward 0 and exit code 0, indistinguishable from a wrong answer. A
sign alone decides nothing, since the agent can bring it about: see ``blame`` for the rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from sprout_env.grading.verdict import TestReport

_SIGNS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.MULTILINE), reason)
    for pattern, reason in (
        # What a machine lacks comes first: a tool that could not be fetched is missing, too.
        (
            r"(?P<what>Could not resolve host|Temporary failure in name resolution|"
            r"Network is unreachable|Name or service not known|No route to host|"
            # What programs make of our proxy's answers: curl, git, wget, pip, uv, npm, apt.
            r"CONNECT tunnel failed|returned error: 50[234]|HTTP code 50[234] from proxy|"
            r"Proxy tunneling failed|ProxyError|tunnel error|tunneling socket could not be|"
            r"\b50[234]\s+(?:Bad Gateway|Service Unavailable)|Failed to download `https?:)",
            "no network: {}",
        ),
        (r"(?P<what>No space left on device)", "disk full: {}"),
        (r"(?P<what>Cannot allocate memory)", "out of memory: {}"),
        (r"(?:^|[:\s])(?P<what>[\w.+/-]+): (?:command )?not found\s*$", "command not found: {}"),
        (
            r"env: ['‘`]?(?P<what>[\w.+/-]+)['’]?: No such file or directory",
            "command not found: {}",
        ),
        (r"No module named '?(?P<what>pytest|unittest|nose)\b", "no Python module {}"),
        (r"(?P<what>collected 0 items)\s*$", "no tests: {}"),
        (r"(?P<what>[Nn]o tests? (?:ran|found|to run|files? found))\b", "no tests: {}"),
        (r"(?P<what>Executed 0 of 0)\b", "no tests: {}"),
        (r"(?P<what>Executable doesn't exist at|Failed to launch the browser)", "no browser: {}"),
    )
)
OUT_OF_MEMORY = "the verifier ran out of memory"
MACHINE = ("no network: ", "disk full: ", "out of memory: ", OUT_OF_MEMORY)
"""How those signs begin that no missing work explains, on an untouched disk either."""
_STORE = re.compile(r"No space left on device|Read-only file system|Input/output error")
_RAN = re.compile(r"\b[1-9]\d* (?:passed|failed|errors?|passing|failing)\b")
_ABSENT = re.compile(r"\b(?:missing|not found|absent)\b", re.IGNORECASE)


def sign_of(log: str, tests: Iterable[TestReport]) -> str | None:
    """Return why the tests seem never to have run, or None when there is no sign of it.

    A runner's summary in the log, a test that passed, or one that failed for another reason than
    being absent from a report, shows that they ran.
    """
    if _RAN.search(log):
        return None
    for test in tests:
        if test.status == "passed":
            return None
        if test.status == "failed" and not _ABSENT.search(test.message):
            return None
    for pattern, reason in _SIGNS:
        match = pattern.search(log)
        if match is not None:
            return reason.format(match.group("what"))
    return None


def store_may_be_full(log: str) -> bool:
    """Whether tests that did run may have failed by the store's trouble, or met some of theirs."""
    return _STORE.search(log) is not None
