"""Public bug reports of other systems, as tests of whole episodes.

The numbers are those of the project's list of reports. Those about disks alone stand in
``tests/conformance/test_diskstore.py`` and ``tests/disks``, the one about time-outs (19) in
``tests/sandbox/test_commands.py``.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import sprout_env
from sprout_env.env import SproutEnv
from sprout_env.errors import SandboxError, SandboxLost
from sprout_env.snapshots import SnapshotTree
from tests.processes import running
from tests.small_task import write_task

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("suite")
    write_task(folder)
    return folder


@pytest.fixture
def env(suite: Path, shared_store: Path) -> Iterator[Any]:
    made = gym.make(
        "sprout/Harbor-v0", tasks_path=str(suite), store=str(shared_store), task="answer"
    )
    yield made
    taken = [s.id for s in _core(made).tree.list()]
    made.close()
    for id in taken:
        sprout_env.release(id, store=shared_store)


def _core(env: Any) -> SproutEnv:
    core = env.unwrapped
    assert isinstance(core, SproutEnv)
    return core


_LIST = (
    "find / -xdev \\( -path /proc -o -path /dev -o -path /sys \\) -prune -o "
    "-printf '%p %y %m %U:%G %s %T@ %l\\n' | LC_ALL=C sort | sha256sum"
)


def test_12_forks_hold_whole_repositories(env: Any) -> None:
    """30 % of forks had empty files and git crashed."""
    env.reset()
    env.step("git init -q /srv/r; cd /srv/r; git config user.email a@b; git config user.name n")
    ids = []
    for number in range(6):
        env.step(
            f"head -c 20000 /dev/urandom > blob{number}; sha256sum blob{number} >> sums; "
            f"git add -A; git commit -qm {number}"
        )
        ids.append(sprout_env.snapshot(env))
    for number, id in enumerate(ids):
        for fork in sprout_env.fork(id, 2, store=_core(env).config.store):
            obs, *_ = fork.step(
                "git fsck --strict 2>&1 | grep -v dangling; sha256sum -c --quiet sums; "
                "git rev-list --count HEAD; git status --short"
            )
            assert obs["output"] == f"{number + 1}\n"
            fork.close()


def test_15_17_a_restore_is_exact_whatever_git_thinks(env: Any) -> None:
    """Files made later stayed, untracked ones vanished, deleted ones came back."""
    env.reset()
    env.step(
        "git init -q /srv/r; cd /srv/r; echo kept > untracked; echo '*.log' > .gitignore; "
        "echo x > ignored.log; echo t > tracked; git add tracked .gitignore; rm tracked; "
        "mkdir -p empty/deep; ln -s nowhere dangling"
    )
    before = env.step(_LIST)[0]["output"]
    # The listing itself must not change what it lists.
    assert env.step(_LIST)[0]["output"] == before
    id = sprout_env.snapshot(env)
    env.step("git clean -fdxq; echo new > created-later; echo t > tracked; rm -rf /usr/share/doc")
    assert env.step(_LIST)[0]["output"] != before
    sprout_env.restore(env, id)
    assert env.step(_LIST)[0]["output"] == before


def test_18_a_restore_never_yields_an_empty_disk(env: Any) -> None:
    """Resume succeeded, and the file system was empty."""
    env.reset()
    env.step("echo marker > /root/marker")
    id = sprout_env.snapshot(env)
    core = _core(env)
    for _ in range(3):
        sprout_env.restore(env, id)
        assert env.step("cat /root/marker; test -x /bin/bash && echo base")[0]["output"] == (
            "marker\nbase\n"
        )
        assert core.transcript.turn == 2


def test_20_lost_infrastructure_is_never_reward_zero(env: Any) -> None:
    """A full disk scored every episode 0.0 in silence."""
    env.reset()
    core = _core(env)
    episode = core._episode
    assert episode is not None
    episode.sandbox.close()
    with pytest.raises(SandboxLost):
        env.step("echo 42 > /srv/answer")
    env.reset()
    episode = core._episode
    assert episode is not None
    env.step("true")
    episode.sandbox.close()
    with pytest.raises(SandboxError):
        env.step("submit")


def test_21_a_killed_driver_leaves_nothing(suite: Path, shared_store: Path) -> None:
    """Sandboxes leaked on SIGKILL: ownership was only in memory."""
    script = f"""
        import gymnasium as gym, sprout_env, time
        made = []
        for _ in range(3):
            env = gym.make("sprout/Harbor-v0", tasks_path={str(suite)!r},
                           store={str(shared_store)!r}, task="answer")
            env.reset()
            env.step("sleep 4242 & true")
            env.step("true")
            made.append(env)
        print(sprout_env.snapshot(made[0]), flush=True)
        time.sleep(60)
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    kept = child.stdout.readline().strip()
    assert kept
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    store = sprout_env.make("sprout/Harbor-v0", store=str(shared_store))
    tree = SnapshotTree(store.sprout.store)
    try:
        # What was asked for stays; the boundaries that nobody asked for, and the disks, are gone.
        assert [s.id for s in tree.list()] == [kept]
        _wait_until_gone("sleep 4242")
        assert not any("live" in line for line in tree.sweep())
        mounts = Path("/proc/self/mounts").read_text()
        assert str(shared_store) not in mounts
    finally:
        tree.release(kept)
        tree.close()
        store.close()


def _wait_until_gone(pattern: str) -> None:
    for _ in range(100):
        found = running(f"^{pattern}")
        if not found:
            return
        time.sleep(0.05)
    raise AssertionError(f"still there: {found}")


def test_23_siblings_share_what_lies_on_the_disk_and_not_their_random_state(env: Any) -> None:
    """Forks shared random streams and machine ids: on a disk they do, and this says so."""
    env.reset()
    env.step("head -c 8 /dev/urandom | sha256sum > /etc/machine-id")
    forks = sprout_env.fork(env, 2)
    seen = [f.step("cat /etc/machine-id; head -c 8 /dev/urandom | sha256sum")[0] for f in forks]
    first, second = (o["output"].split("\n") for o in seen)
    assert first[0] == second[0]
    assert first[1] != second[1]
    for fork in forks:
        fork.close()


def test_28_a_restore_names_the_stale_files_of_lost_processes(env: Any) -> None:
    """A stale postmaster.pid blocked the restart after the state had come back."""
    env.reset()
    env.step(
        "mkdir -p /run/db; python3 - <<'E' &\n"
        "import os, socket, time\n"
        "s = socket.socket(socket.AF_UNIX); s.bind('/run/db/db.sock'); s.listen()\n"
        "open('/run/db/db.pid', 'w').write(str(os.getpid()))\n"
        "open('/var/lib/db.lock', 'w').write('x')\n"
        "time.sleep(1000)\n"
        "E\n"
        "for n in $(seq 100); do [ -e /var/lib/db.lock ] && break; sleep 0.05; done"
    )
    id = sprout_env.snapshot(env)
    _, info = sprout_env.restore(env, id)
    assert any("unix" in lost and "db.sock" in lost for lost in info["lost_processes"])
    notice = _core(env).transcript.entries[-1]
    assert notice.kind == "notice"
    for path in ("/run/db/db.sock", "/run/db/db.pid", "/var/lib/db.lock"):
        assert path in notice.text
    assert "python3" in notice.text


def test_31_an_open_but_deleted_file_is_not_on_the_disk(env: Any) -> None:
    """Snapshot, unlink, then write to the old descriptor failed: here it is simply not kept."""
    env.reset()
    env.step("echo before > /srv/log; (exec 9>>/srv/log; sleep 1000) & sleep 0.1; true")
    id = sprout_env.snapshot(env)
    env.step("rm /srv/log; for p in $(pgrep sleep); do echo late >> /proc/$p/fd/9; done")
    after = sprout_env.snapshot(env)
    assert env.step("ls /srv/log")[0]["exit_code"] != 0
    sprout_env.restore(env, id)
    assert env.step("cat /srv/log")[0]["output"] == "before\n"
    sprout_env.restore(env, after)
    assert env.step("ls /srv/log")[0]["exit_code"] != 0
