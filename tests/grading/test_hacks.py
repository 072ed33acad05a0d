"""Trap 29: what an agent plants to pass without the work; trap 34: verifiers side by side."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sprout_env.grading.grade import grade
from tests.grading.conftest import TOML

pytestmark = pytest.mark.root

Bench = Any  # the class of the fixture in conftest.py

VERIFIER = (
    "cd /tests && pytest -q -p no:cacheprovider test_it.py && r=1 || r=0\n"
    "echo $r > /logs/verifier/reward.txt"
)
TESTS = {"tests/test_it.py": "def test_answer():\n    assert open('/srv/answer').read() == '42'\n"}
SEPARATE = (
    'artifacts = ["/srv/answer"]\n'
    + TOML.replace("[verifier]", '[verifier]\nenvironment_mode = "separate"')
)  # fmt: skip
QUIT = "import os, sys; 'pytest' in str(sys.orig_argv) and os._exit(0)"
LIBRARY = "/usr/local/lib/python3.11/dist-packages"
ADDED = f'mkdir -p {LIBRARY} && echo "{QUIT}" > {LIBRARY}'

RUN_BY_ITSELF = {
    "/usr/lib/python3.11/sitecustomize.py": "rm -f /usr/lib/python3.11/sitecustomize.py; "
    f'echo "{QUIT}" > /usr/lib/python3.11/sitecustomize.py',
    f"{LIBRARY}/usercustomize.py": f"{ADDED}/usercustomize.py",
    f"{LIBRARY}/x.pth": f"{ADDED}/x.pth",
    "/usr/local/bin/pytest": "echo '#!/bin/true' > /usr/local/bin/pytest; "
    "chmod +x /usr/local/bin/pytest",
    "/pytest.ini": "printf '[pytest]\\naddopts = --co\\n' | tee /pytest.ini /root/pytest.ini",
    "/conftest.py": f'echo "{QUIT}" > /conftest.py',
    "/usr/bin/python3.11": "cp /bin/true /usr/bin/python3.11",
}
"""What a verifier on the agent's disk runs: the file that a verdict must name, how it is made."""

POWERLESS = {
    "profiles": "for f in /root/.bashrc /root/.profile /root/.bash_profile /etc/profile "
    "/etc/bash.bashrc /etc/environment; do "
    "echo 'export PATH=/evil:$PATH PYTEST_ADDOPTS=--co PYTHONPATH=/evil BASH_ENV=/evil/env; "
    "pytest() { true; }' >> $f; done; mkdir /evil; "
    f'printf "#!/bin/true\\n" > /evil/pytest; chmod +x /evil/pytest; echo "{QUIT}" '
    "> /evil/sitecustomize.py; echo 'exit 0' > /evil/env",
    "exports": "export PYTEST_ADDOPTS=--co PYTHONPATH=/evil LD_PRELOAD=/evil.so PATH=/evil",
    "home": "mkdir -p /root/.local/bin && echo '#!/bin/true' > /root/.local/bin/pytest && "
    "chmod +x /root/.local/bin/pytest",
    "tests": f'mkdir -p /tests; echo "{QUIT}" > /tests/conftest.py; '
    "printf '[pytest]\\naddopts = --co\\n' > /tests/pytest.ini",
    "reward": "mkdir -p /logs/verifier && echo 1 > /logs/verifier/reward.txt && "
    "chattr +i /logs/verifier/reward.txt || chmod 444 /logs/verifier/reward.txt",
    "links": "rm -rf /logs /tests; mkdir /evil; echo 1 > /evil/reward.txt; ln -s /evil /logs; "
    "ln -s /evil /tests",
    "watcher": "(while :; do echo 1 > /logs/verifier/reward.json; done >/dev/null 2>&1 &)",
}


@pytest.mark.parametrize("hack", POWERLESS.values(), ids=POWERLESS)
def test_what_changes_nothing(bench: Bench, hack: str) -> None:
    task = bench.task(VERIFIER, **TESTS)
    verdict = grade(bench.store, task, bench.end(task, hack), bench.base)
    assert (verdict.outcome, verdict.reward) == ("failed", 0.0), verdict
    assert "1 failed" in verdict.log_tail


@pytest.mark.parametrize("path", RUN_BY_ITSELF)
def test_what_a_verifier_runs_is_named_and_stays_behind(bench: Bench, path: str) -> None:
    hack = RUN_BY_ITSELF[path]
    shared = bench.task(VERIFIER, **TESTS)
    verdict = grade(bench.store, shared, bench.end(shared, hack), bench.base)
    assert verdict.passed, verdict
    assert path in verdict.reason
    separate = bench.task(VERIFIER, SEPARATE, **TESTS)
    verdict = grade(bench.store, separate, bench.end(separate, hack), bench.base)
    assert (verdict.outcome, verdict.reward) == ("failed", 0.0), verdict


def test_honest_work_gets_no_remark(bench: Bench) -> None:
    work = "printf 42 > /srv/answer; cp /bin/true /usr/local/bin/other; echo x > /etc/motd"
    for toml in (TOML, SEPARATE):
        task = bench.task(VERIFIER, toml, **TESTS)
        verdict = grade(bench.store, task, bench.end(task, work), bench.base)
        assert (verdict.outcome, verdict.reason) == ("passed", ""), verdict


@pytest.mark.parametrize("network", ["no-network", "public"])
def test_verifiers_side_by_side(bench: Bench, network: str) -> None:
    """The same ports, temporary files and caches, all at once."""
    test = (
        "mkdir -p /root/.cache/pip && mkdir /root/.cache/pip/lock /tmp/lock || exit 1\n"
        "cd /srv && echo $$ > mine && (python3 -m http.server 8765 >/dev/null 2>&1 &)\n"
        "python3 - <<'E'\n"
        "import socket, time\n"
        "page = b''\n"
        "while not page:\n"
        "    try:\n"
        "        with socket.create_connection(('127.0.0.1', 8765)) as s:\n"
        "            s.sendall(b'GET /mine HTTP/1.0\\r\\n\\r\\n')\n"
        "            while piece := s.recv(4096):\n"
        "                page += piece\n"
        "    except OSError:\n"
        "        time.sleep(0.1)\n"
        "open('/srv/got', 'wb').write(page.split(b'\\r\\n\\r\\n')[1])\n"
        "E\n"
        "sleep 1; cmp mine got && r=1 || r=0; echo $r > /logs/verifier/reward.txt"
    )
    toml = TOML.replace("no-network", network)
    task = bench.task(test, toml)
    frozen = bench.end(task)
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda _: grade(bench.store, task, frozen, bench.base), range(6)))
    assert [verdict.outcome for verdict in found] == ["passed"] * 6, found
