"""A hostile task folder harms nothing, and is reported in one line."""

from __future__ import annotations

import os
import shlex
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sprout_env
from sprout_env.disks import images, open_store
from sprout_env.disks.store import DiskStore
from sprout_env.errors import SproutError, VerdictInvalid
from sprout_env.grading import gate
from sprout_env.grading.trials import nop
from sprout_env.grading.verdict import Verdict
from sprout_env.sandbox.build import base_for
from sprout_env.tasks.harbor import load_task
from sprout_env.tasks.task import FolderImage
from tests.processes import running

Hostile = Callable[[Path], None]
SHADOW = "/etc/shadow"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "hostile"
    for part in ("environment", "tests", "solution"):
        (root / part).mkdir(parents=True)
    (root / "instruction.md").write_text("Trust me.\n")
    (root / "environment/Dockerfile").write_text("FROM our/debian\n")
    (root / "task.toml").write_text("")
    (root / "tests/test.sh").write_text("echo 0 > /logs/verifier/reward.txt\n")
    (root / "solution/solve.sh").write_text("true\n")
    return root


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, debian_base: Path) -> Iterator[DiskStore]:
    path = tmp_path_factory.mktemp("hostile") / "store"
    opened = open_store(path)
    images.alias(path, "our/debian", FolderImage(path=debian_base))
    yield opened
    opened.close()
    shutil.rmtree(path)


def one_line(error: SproutError) -> str:
    said = " ".join(str(error).split())
    assert "root:" not in said
    return said


def toml(text: str) -> Hostile:
    def make(root: Path) -> None:
        (root / "task.toml").write_text(text)

    return make


def link(at: str, to: str) -> Hostile:
    def make(root: Path) -> None:
        (root / at).unlink(missing_ok=True)
        (root / at).symlink_to(to)

    return make


@pytest.mark.parametrize(
    ("do", "said"),
    [
        (toml('artifacts = ["/logs/../../etc/shadow"]'), "'..'"),
        (toml('artifacts = [{source = "/a", destination = "../x"}]'), "destination"),
        (toml('[[steps]]\nname = "../../etc"'), "step name"),
        (toml("a = " + "[" * 100_000), "task.toml"),
        (link("tests/test.sh", SHADOW), "leaves the task folder"),
        (link("instruction.md", "../../../../../../etc/shadow"), "leaves the task folder"),
        (link("environment/loop", "."), "circles"),
        (lambda root: os.mkfifo(root / "solution/pipe"), "neither a regular file nor a folder"),
    ],
    ids=["artifact", "destination", "step", "deep", "link", "climb", "circle", "fifo"],
)
def test_what_is_refused_when_it_is_read(folder: Path, do: Hostile, said: str) -> None:
    do(folder)
    with pytest.raises(SproutError) as caught:
        load_task(folder)
    assert said in one_line(caught.value)


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize(
    ("dockerfile", "said"),
    [
        ("COPY ../../../../etc/shadow /x\n", "not in the build context"),
        ("COPY evil /x\n", "leads out of the build context or nowhere"),
        ("RUN mkdir /d && rm -rf /etc && ln -s / /etc\nCOPY Dockerfile /etc/t\nRUN cat /t && "
         "test ! -e /root/../work-of-the-host && exit 9\n", "exit code 9"),
    ],
    ids=["climb", "link", "moved-etc"],
)  # fmt: skip
def test_what_is_refused_when_it_is_built(
    store: DiskStore, folder: Path, dockerfile: str, said: str
) -> None:
    (folder / "environment/evil").symlink_to("shadow")
    (folder / "environment/Dockerfile").write_text(f"FROM our/debian\n{dockerfile}")
    task = load_task(folder)
    (folder / "environment/evil").unlink()
    (folder / "environment/evil").symlink_to(SHADOW)
    with pytest.raises(SproutError) as caught:
        base_for(store, task.image)
    assert said in one_line(caught.value)


def python(code: str) -> str:
    return f"python3 -c {shlex.quote(code)}"


def keys(count: int) -> str:
    made = f"dict.fromkeys(map(str, range({count})), 1)"
    return python(
        f"import json; open('{OUT}/reward.json', 'w').write(json.dumps(dict({made}, reward=1)))"
    )


OUT = "/logs/verifier"
DECIDES_NOTHING = {
    "huge": (f"truncate -s 10G {OUT}/reward.json", "cannot be read"),
    "huge-text": (f"truncate -s 10G {OUT}/reward.txt", "cannot be read"),
    "link": (f"ln -s {SHADOW} {OUT}/reward.txt", "cannot be read"),
    "linked-folder": (f"rm -rf {OUT}; ln -s /etc {OUT}; cp {SHADOW} /etc/reward.txt", "reward"),
    "fifo": (f"mkfifo {OUT}/reward.txt", "cannot be read"),
    "folder": (f"mkdir {OUT}/reward.json", "cannot be read"),
    "socket": (python(f"import socket; socket.socket(1).bind('{OUT}/reward.txt')"),
               "cannot be read"),
    "device": (f"mknod {OUT}/reward.txt c 1 5; ln -s /dev/zero {OUT}/reward.json",
               "cannot be read"),
    "keys": (keys(10**6), "cannot be read"),
    "fewer-keys": (keys(60_000), "60001 keys"),
    "deep": (python(f"open('{OUT}/reward.json', 'w').write('{{\"a\":' * 150_000)"), "not JSON"),
    "nan": (f"echo '{{\"reward\": NaN}}' > {OUT}/reward.json", "holds NaN"),
    "infinity": (f"echo -Infinity > {OUT}/reward.txt", "which is no score"),
    "digits": (python(f"open('{OUT}/reward.json', 'w').write('{{\"reward\": 1' + '0' * 900_000"
                      " + '}')"), "not JSON"),
    "escapes": (f"printf '{{\"\\\\u001b]0;x\\\\u0007\\\\nroot\": \"1\"}}' > {OUT}/reward.json",
                "which is no number"),
    "log": (f"rm -f {OUT}/test-stdout.txt; ln -s {SHADOW} {OUT}/test-stdout.txt", "no reward"),
    "forks": ("f() { f | f & }; f; sleep 60", "timed out"),
}  # fmt: skip


def judged(store: DiskStore, folder: Path, script: str) -> Verdict:
    """Return what a task's verifier says of an agent that did nothing; it leaves nothing."""
    # A name of its own: other sandboxes of this machine run scripts called test.sh as well.
    name = f"hostile-{uuid.uuid4().hex}"
    text = f"#!/bin/bash\nexec bash -c {shlex.quote(script)} {name}\n"
    (folder / "tests/test.sh").write_text(text)
    # Only those that never end wait for it: a busy machine takes its time to write much.
    allowed_s = 10 if "sleep" in script else 60
    (folder / "task.toml").write_text(f"[verifier]\ntimeout_sec = {allowed_s}\n")
    task = load_task(folder)
    verdict = nop(store, task, base_for(store, task.image))
    assert running(name) == []
    assert SECRET not in verdict.model_dump_json()
    return verdict


SECRET = next(line for line in Path(SHADOW).read_text().splitlines() if line.startswith("root:"))


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize(("script", "said"), DECIDES_NOTHING.values(), ids=DECIDES_NOTHING)
def test_what_decides_nothing(store: DiskStore, folder: Path, script: str, said: str) -> None:
    verdict = judged(store, folder, script)
    assert verdict.outcome == "invalid", verdict
    assert said in verdict.reason
    assert verdict.reason.isprintable(), "one line, and no terminal is told what to do"
    assert len(verdict.reason) < 500


REPORTS = {
    "fifo": f"mkfifo {OUT}/ctrf.json {OUT}/junit.xml",
    "socket": python(f"import socket; socket.socket(1).bind('{OUT}/junit.xml')"),
    "links": f"ln -s {SHADOW} {OUT}/junit.xml; ln -s /dev/zero {OUT}/ctrf.json",
    "folders": f"ln -s / {OUT}/root; mkdir {OUT}/ctrf.json; ln -s /proc {OUT}/x.xml",
    "huge": f"truncate -s 10G {OUT}/junit.xml",
    "deep": python(f"import os\nos.chdir('{OUT}')\n"
                   "for _ in range(2000): os.mkdir('d'); os.chdir('d')"),
    "odd": f"printf '[[[' > {OUT}/ctrf.json; head -c 100000 /dev/urandom > {OUT}/junit.xml",
}  # fmt: skip


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize("script", REPORTS.values(), ids=REPORTS)
def test_reports_that_are_none(store: DiskStore, folder: Path, script: str) -> None:
    """They are feedback: the reward stands, whatever lies beside it."""
    verdict = judged(store, folder, f"{script}; echo 0 > {OUT}/reward.txt")
    assert (verdict.outcome, verdict.reward, verdict.tests) == ("failed", 0.0, ()), verdict
    assert verdict.reason.isprintable()


@pytest.mark.root
@pytest.mark.slow
def test_what_a_report_says_is_text(store: DiskStore, folder: Path) -> None:
    title = "\\u001b]0;owned\\u0007\\u001b[2Jtest\\nit\\u202e"
    test = f'{{"name": "{title}", "status": "failed", "message": "{title}"}}'
    report = f'{{"results": {{"tests": [{test}]}}}}'
    verdict = judged(
        store,
        folder,
        f"printf '\\033]0;owned\\007\\033[31mred\\n'; echo 0 > {OUT}/reward.txt; "
        f"cat > {OUT}/ctrf.json <<'E'\n{report}\nE",
    )
    (told,) = verdict.tests
    assert told.name == "test it<U+202E>"
    assert told.message == "test\nit<U+202E>"
    assert verdict.log_tail == "red\n"


@pytest.mark.root
@pytest.mark.slow
def test_the_gate_says_it_in_one_line(store: DiskStore, folder: Path) -> None:
    (folder / "tests/test.sh").write_text(f"#!/bin/sh\nln -s {SHADOW} {OUT}/reward.txt\n")
    found = gate(store, [load_task(folder)], nops=1, oracles=1, jobs=1).tasks[0]
    assert found.status == "cannot run here", found
    (reason,) = found.reasons
    assert "cannot be read" in reason
    assert reason.isprintable()


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    [
        "python -m pytest /tests\nif [ $? -eq 0 ]; then echo 1; else echo 0; fi > {out}/reward.txt",
        "set -e\npython -m pytest /tests\necho 1 > {out}/reward.txt",
        "echo 0 > {out}/reward.txt; exec python /tests/grade.py",
        "printf '#!/usr/bin/env python\n' > /x; chmod +x /x; /x || echo 0 > {out}/reward.txt",
        "sh -c 'python x' || echo '{{\"reward\": 0, \"p2p\": 1}}' > {out}/reward.json",
    ],
    ids=["zero", "no-reward", "exec", "env", "sh"],
)
def test_a_verifier_without_its_python_decides_nothing(
    store: DiskStore, folder: Path, script: str
) -> None:
    (folder / "environment/Dockerfile").write_text(
        "FROM our/debian\nRUN rm -rf /usr/bin/python* /usr/lib/python*\n"
    )
    (folder / "tests/test.sh").write_text("#!/bin/bash\n" + script.format(out=OUT))
    env = sprout_env.make("sprout/Harbor-v0", tasks_path=str(folder), store=str(store.path))
    try:
        env.reset()
        with pytest.raises(VerdictInvalid, match=r"command not found: python\b"):
            env.step("submit")
    finally:
        env.close()
