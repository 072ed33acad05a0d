"""No agent's disk turns a failure into ``invalid``, and no trouble of ours turns work into a 0."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sprout_env.disks import DiskStore, init_store, loopfs, open_store
from sprout_env.disks.btrfs import BtrfsStore
from sprout_env.disks.images.aliases import alias
from sprout_env.errors import ConfigError, StoreFull
from sprout_env.grading.grade import grade, grade_end, grade_live
from sprout_env.tasks.task import FolderImage
from tests.grading.conftest import TOML
from tests.grading.conftest import Bench as RealBench

pytestmark = pytest.mark.root

Bench = Any  # the class of the fixture in conftest.py

VERIFIER = (
    "python3 -c \"assert open('/srv/answer').read() == '42'\" && r=1 || r=0\n"
    "echo $r > /logs/verifier/reward.txt"
)
SEPARATE = (
    'artifacts = ["/srv/answer"]\n'
    + TOML.replace("[verifier]", '[verifier]\nenvironment_mode = "separate"')
)  # fmt: skip
LIVE = TOML + "[metadata.sprout]\nlive = true\n"


def _swap(program: str, *lines: str) -> str:
    """Put a shell script of these lines where a program is."""
    text = "\\n".join(("#!/bin/sh", *lines, ""))
    return f"printf '{text}' > /swap; chmod +x /swap; mv /swap {program}"


BASH = "mv /swap /bin/bash"
ATTACKS = {
    "everything removed": "rm -rf --no-preserve-root / 2>/dev/null; true",
    "a shell that is no program": f"printf x > /swap; chmod +x /swap; {BASH}",
    "a shell that is a folder": "rm /bin/bash; mkdir /bin/bash",
    "a shell that does nothing": _swap("/bin/bash", "exit 0"),
    "no shell": "rm /bin/bash /bin/sh /bin/dash",
    "no bash": "rm /bin/bash",
    "no loader": "rm -f /lib64/ld-linux-* /lib/*/ld-linux-* /lib/ld-linux-*",
    "no python": "rm -f /usr/bin/python3*",
    "no verifier's user": "rm -f /etc/passwd /etc/group",
    "logs taken away": _swap("/usr/bin/python3", "rm -rf /logs", "ln -s /proc /logs", "exit 1"),
    "reward is a pipe": _swap(
        "/usr/bin/python3", "rm -rf /logs/verifier/*; mkfifo /logs/verifier/reward.json", "exit 1"
    ),
    "a crash is claimed": _swap(
        "/usr/bin/python3", "echo -1 > /logs/verifier/reward.json; echo no > /logs/verifier/x",
        "exit 1",
    ),
    "no number": _swap(
        "/usr/bin/python3", "echo {} > /logs/verifier/reward.json", "exit 1"
    ),
    "the script is killed": _swap("/usr/bin/python3", "kill -9 $PPID; sleep 1"),
    "no certificates": "rm -rf /etc/ssl /usr/local/share; touch /etc/ssl /usr/local/share",
    "an endless path": "mkdir -p /srv/answer; cd /srv/answer; d=$(printf 'a%.0s' $(seq 250)); "
    "for i in $(seq 30); do mkdir $d; cd $d; done; touch x; cd /",
}  # fmt: skip


def _play(bench: RealBench, task: Any, attack: str) -> Any:
    sandbox, disk = bench.live(task)
    sandbox.run(attack, timeout_s=60)  # it may take its own shell away
    sandbox.kill_all()
    frozen = bench.freeze(sandbox, disk)
    sandbox.close()
    return frozen


@pytest.mark.parametrize("mode", ["shared", "separate"])
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_no_disk_makes_a_failure_invalid(bench: Bench, attack: str, mode: str) -> None:
    toml = TOML if mode == "shared" else SEPARATE
    if attack == ATTACKS["no verifier's user"]:
        toml = toml.replace("[verifier]", '[verifier]\nuser = "nobody"')
    if attack == ATTACKS["no certificates"]:
        toml = toml.replace("no-network", "public")
    task = bench.task(VERIFIER, toml)
    verdict = grade(bench.store, task, _play(bench, task, attack), bench.base)
    assert (verdict.outcome, verdict.reward) == ("failed", 0.0), verdict


def test_the_verdict_says_whose_fault_it_is(bench: Bench) -> None:
    task = bench.task(VERIFIER)
    frozen = _play(bench, task, ATTACKS["everything removed"])
    verdict = grade(bench.store, task, frozen, bench.base)
    assert "wrote no reward file; its script ended with exit code 127" in verdict.reason
    assert "not so on the untouched disk, so the agent's changes are the cause" in verdict.reason


@pytest.mark.parametrize("toml", [LIVE, LIVE.replace("[verifier]", '[verifier]\nuser = "nobody"')])
@pytest.mark.parametrize(
    "name", ["everything removed", "a shell that is no program", "reward is a pipe"]
)
def test_no_live_end_makes_a_failure_invalid(bench: Bench, name: str, toml: str) -> None:
    task = bench.task(VERIFIER, toml)
    sandbox, disk = bench.live(task, "(setsid sleep 1000 >/dev/null 2>&1 &)")
    sandbox.run(ATTACKS[name], timeout_s=60)
    frozen = bench.freeze(sandbox, disk)
    verdict = grade_end(bench.store, task, frozen, bench.base, sandbox)
    assert (verdict.outcome, verdict.reward) == ("failed", 0.0), verdict


def test_a_live_service_that_spoils_the_verifier_has_failed(bench: Bench) -> None:
    """It takes the reward away once the tests are there, and leaves our decoy alone."""
    spoil = (
        "import os, socket, time\n"
        "held = socket.create_server(('127.0.0.1', 8123)); print('up', flush=True)\n"
        "while True:\n"
        "    time.sleep(0.001)\n"
        "    if os.path.exists('/tests/marker') and os.path.exists('/logs/verifier/reward.txt'):\n"
        "        os.unlink('/logs/verifier/reward.txt')\n"
    )
    task = bench.task(f"{VERIFIER}; sleep 0.3", LIVE, **{"tests/marker": ""})
    sandbox, _ = bench.live(
        task,
        f'printf %s "{spoil}" > /spoil.py; (setsid python3 /spoil.py > /up 2>&1 &); '
        "until grep -q up /up; do sleep 0.05; done",
    )
    verdict = grade_live(sandbox, bench.store, task, bench.base)
    assert (verdict.outcome, verdict.reward) == ("failed", 0.0), verdict


@pytest.mark.parametrize("toml", [TOML, SEPARATE, LIVE])
@pytest.mark.parametrize("attack", ["true", ATTACKS["everything removed"]])
def test_a_broken_verifier_blames_nobody(bench: Bench, toml: str, attack: str) -> None:
    task = bench.task("python-of-yore /tests/test.py", toml)
    sandbox, disk = bench.live(task)
    sandbox.run(attack, timeout_s=60)
    frozen = bench.freeze(sandbox, disk)
    verdict = grade_end(bench.store, task, frozen, bench.base, sandbox)
    assert (verdict.outcome, verdict.reward) == ("invalid", None), verdict


@pytest.mark.parametrize("toml", [TOML, SEPARATE])
@pytest.mark.parametrize(
    "script",
    [
        "exit 1",
        "r=0; echo $r > /logs/verifier/reward.txt; exit 1",
    ],
)
def test_want_of_network_blames_nobody(bench: Bench, toml: str, script: str) -> None:
    fetch = "import urllib.request as u; u.urlopen('http://files.example.invalid/x', timeout=5)"
    task = bench.task(f'python3 -c "{fetch}" || {{ {script}; }}; {VERIFIER}', toml)
    for left in ("printf 41 > /srv/answer", ATTACKS["everything removed"]):
        verdict = grade(bench.store, task, _play(bench, task, left), bench.base)
        assert (verdict.outcome, verdict.reward) == ("invalid", None), verdict


def test_a_host_variable_that_is_missing_blames_nobody(bench: Bench) -> None:
    task = bench.task(VERIFIER, TOML + '[verifier.env]\nKEY = "${KEY}"\n')
    frozen = _play(bench, task, ATTACKS["everything removed"])
    with pytest.raises(ConfigError, match="KEY"):
        grade(bench.store, task, frozen, bench.base, environ={})


HASTY = TOML.replace("timeout_sec = 30", "timeout_sec = 6")
SOLUTION = {"solution/solve.sh": "#!/bin/bash\nprintf 42 > /srv/answer\n"}
HANGS = {
    "a pipe": "rm -f /srv/answer; mkfifo /srv/answer",
    "a loop": _swap("/usr/bin/python3", "while :; do :; done"),
    "a sleep": _swap("/usr/bin/python3", "sleep 1000"),
}


@pytest.mark.parametrize("hang", HANGS.values(), ids=HANGS)
def test_no_disk_makes_a_failure_a_time_out(bench: Bench, hang: str) -> None:
    task = bench.task(VERIFIER, HASTY, **SOLUTION)
    verdict = grade(bench.store, task, bench.end(task, hang), bench.base)
    assert (verdict.outcome, verdict.reward) == ("failed", 0.0), verdict
    assert "timed out after 6 s: not so with the reference solution" in verdict.reason


@pytest.mark.parametrize(
    ("test", "solution"),
    [
        pytest.param(VERIFIER, {}, id="no solution"),
        pytest.param(VERIFIER, {"solution/solve.sh": "#!/bin/bash\nexit 1\n"}, id="a wrong one"),
        pytest.param(f"{VERIFIER}; sleep 3", SOLUTION, id="not much faster"),
        pytest.param(f"{VERIFIER}; sleep 100", SOLUTION, id="hangs as well"),
        pytest.param(
            VERIFIER,
            {**SOLUTION, "task.toml": HASTY + '[solution.env]\nKEY = "${KEY}"\n'},
            id="wants a variable",
        ),
    ],
)
def test_a_time_out_without_evidence_blames_nobody(
    bench: Bench, test: str, solution: dict[str, str]
) -> None:
    task = bench.task(test, HASTY, **solution)
    frozen = bench.end(task, HANGS["a pipe"])
    verdict = grade(bench.store, task, frozen, bench.base, environ={})
    assert (verdict.outcome, verdict.reward) == ("invalid", None), verdict
    assert verdict.reason == "the verifier timed out after 6 s"


def test_slow_once_is_tried_again(bench: Bench) -> None:
    """As on a machine that is under load for a while."""
    task = bench.task(f"sleep $(cat /tests/wait); {VERIFIER}", HASTY, **SOLUTION)
    wait = task.verifier.tests / "wait"
    frozen = bench.end(task, "printf 42 > /srv/answer")
    wait.write_text("100")
    store = Troubled(bench.store, create=lambda _: wait.write_text("0"))
    assert grade(store, task, frozen, bench.base).passed
    assert store.made == ["clone", "create", "clone"]


class Troubled:
    """A real store around which something happens when a disk is made or cloned."""

    def __init__(self, store: DiskStore, *, clone: Any = None, create: Any = None) -> None:
        self._store = store
        self._before = {"clone": clone, "create": create}
        self.made: list[str] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in self._before:
            return found

        def call(asked: Any) -> Any:
            self.made.append(name)
            disk = found(asked)
            if self._before[name] is not None:
                self._before[name](self.made.count(name))
            return disk

        return call


def test_honest_work_is_tried_again_before_it_is_blamed(bench: Bench) -> None:
    """The verifier's file is broken while the first clone is judged, and there afterwards."""
    task = bench.task(f"cat /tests/needed || exit 1; {VERIFIER}", **{"tests/needed": "x"})
    needed = task.verifier.tests / "needed"
    frozen = bench.end(task, "printf 42 > /srv/answer")
    needed.unlink()

    def mend(_: int) -> None:
        needed.write_text("x")

    store = Troubled(bench.store, create=mend)
    verdict = grade(store, task, frozen, bench.base)
    assert verdict.passed, verdict
    assert store.made == ["clone", "create", "clone"]


def test_trouble_that_lasts_is_invalid_and_is_not_remembered(bench: Bench) -> None:
    task = bench.task(f"cat /tests/needed || exit 1; {VERIFIER}", **{"tests/needed": "x"})
    needed = task.verifier.tests / "needed"
    honest = bench.end(task, "printf 42 > /srv/answer")
    attacked = _play(bench, task, ATTACKS["no python"] + "; rm -f /bin/bash")
    assert grade(bench.store, task, attacked, bench.base).outcome == "failed"
    # An untouched disk that was sound a moment ago says nothing of now.
    needed.unlink()
    for frozen in (honest, attacked):
        assert grade(bench.store, task, frozen, bench.base).outcome == "invalid"
    needed.write_text("x")
    assert grade(bench.store, task, attacked, bench.base).outcome == "failed"
    assert grade(bench.store, task, honest, bench.base).passed


def test_many_at_once_share_one_look_at_the_untouched_disk(bench: Bench) -> None:
    task = bench.task(f"sleep 0.5; {VERIFIER}; cat /gone || rm -f /logs/verifier/*")
    sound = bench.task(f"sleep 0.5; [ -e /broken ] || {{ {VERIFIER}; }}")
    for each, outcome in ((task, "invalid"), (sound, "failed")):
        frozen = bench.end(each, "touch /broken")
        store, gate = Troubled(bench.store), threading.Barrier(6)

        def judge(gate: Any, each: Any = each, frozen: Any = frozen, store: Any = store) -> str:
            gate.wait(10)
            return grade(store, each, frozen, bench.base).outcome

        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(judge, [gate] * 6)) == [outcome] * 6
        assert store.made.count("create") <= 2


def test_steps_have_untouched_disks_of_their_own(bench: Bench) -> None:
    """Steps share their task's digest; the one's verifier says nothing of the other's."""
    task = bench.task(
        VERIFIER,
        TOML + '[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n',
        **{
            "steps/one/instruction.md": "One.",
            "steps/one/tests/test.sh": f"#!/bin/bash\n{VERIFIER}\n",
            "steps/two/instruction.md": "Two.",
            "steps/two/tests/test.sh": "#!/bin/bash\npython-of-yore; exit 1\n",
        },
    )
    began = threading.Barrier(2)
    frozen = _play(bench, task, ATTACKS["no bash"])

    def judge(index: int) -> str:
        began.wait(10)
        return grade(bench.store, task.stage(index), frozen, bench.base).outcome

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(judge, range(2))) == ["failed", "invalid"]


@pytest.fixture
def small(
    tmp_path: Path, store_path: Path, debian_base: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RealBench]:
    init_store(store_path, kind="btrfs", image_gib=0.5, reserve_bytes=1 << 26)
    store = open_store(store_path)
    assert isinstance(store, BtrfsStore)
    # As in images of old, nothing limits a disk but the image's end.
    monkeypatch.setattr(
        store,
        "_make",
        lambda folder, _: loopfs.make_image(folder / "disk.img", store.config.image_bytes),
    )
    alias(store_path, "test/base", FolderImage(path=debian_base))
    made = RealBench(store, tmp_path)
    yield made
    made.close()
    store.close()


@pytest.mark.parametrize("counts", ["", "; printf '===== 1 failed, 2 passed ====='"])
def test_a_store_that_is_full_is_never_a_0(small: RealBench, counts: str) -> None:
    """A sibling fills the image after the verifier's clone was made."""
    task = small.task(
        f"head -c 200M /dev/urandom > /work-file && r=1 || r=0{counts}\n"
        "echo $r > /logs/verifier/reward.txt"
    )
    frozen = small.end(task, "printf 42 > /srv/answer")
    assert grade(small.store, task, frozen, small.base).passed
    sibling, _ = small.live(task)
    store = Troubled(
        small.store,
        clone=lambda _: sibling.run("head -c 2G /dev/urandom > /fill", timeout_s=100),
    )
    agents, _ = small.live(task)
    with pytest.raises(StoreFull):
        grade(store, task, frozen, small.base)
    with pytest.raises(StoreFull):
        grade_live(agents, small.store, task, small.base)
