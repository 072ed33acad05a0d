"""Answers that an agent could dig up are found before anybody uses the task."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sprout_env.disks import images, open_store
from sprout_env.disks.store import DiskStore
from sprout_env.grading import gate
from sprout_env.grading.history import fixed_copies, later_commits
from sprout_env.sandbox.build import base_for
from sprout_env.tasks.harbor import load_task
from sprout_env.tasks.task import FolderImage

pytestmark = [pytest.mark.root, pytest.mark.slow]

OLD = "def total(items):\n    return 0\n"
NEW = "".join(f"    running_total_number_{n} = sum(items, start={n})\n" for n in range(5))
PATCH = "--- a/lib/total.py\n+++ b/lib/total.py\n" + "".join(f"+{x}\n" for x in NEW.splitlines())
SCRUB = "git reflog expire --expire=now --all && git gc -q --prune=now"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, debian_base: Path) -> Iterator[DiskStore]:
    path = tmp_path_factory.mktemp("history") / "store"
    opened = open_store(path)
    images.alias(path, "our/debian", FolderImage(path=debian_base))
    yield opened
    opened.close()
    shutil.rmtree(path)


def make(folder: Path, rewind: str, copy: bool = False) -> Path:
    repo = folder / "environment/app"
    (repo / "lib").mkdir(parents=True)
    git = ["git", "-C", str(repo), "-c", "user.name=a", "-c", "user.email=a@b.invalid"]
    subprocess.run([*git, "init", "-q", "-b", "main"], check=True)
    for day, text in ((1, OLD), (2, OLD + NEW)):
        (repo / "lib/total.py").write_text(text)
        subprocess.run([*git, "add", "-A"], check=True)
        subprocess.run(
            [*git, "commit", "-q", "-m", str(day)],
            check=True,
            env={"GIT_COMMITTER_DATE": f"2026-01-0{day}T00:00:00", "PATH": "/usr/bin:/bin"},
        )
    subprocess.run(["bash", "-ec", f"cd {repo}; {rewind}"], check=True)
    more = "RUN mkdir -p /usr/lib/x/lib && cp /app/fixed /usr/lib/x/lib/total.py" if copy else ""
    if copy:
        (repo / "fixed").write_text(OLD + NEW)
    (folder / "environment/Dockerfile").write_text(f"FROM our/debian\nCOPY app /app\n{more}\n")
    for part in ("tests", "solution"):
        (folder / part).mkdir()
    (folder / "instruction.md").write_text("Add it up.\n")
    (folder / "task.toml").write_text('[environment]\nworkdir = "/app"\n')
    (folder / "tests/test.sh").write_text(
        "#!/bin/bash\ngrep -q running /app/lib/total.py && echo 1 > /logs/verifier/reward.txt "
        "|| echo 0 > /logs/verifier/reward.txt\n"
    )
    (folder / "solution/solve.sh").write_text("echo running >> /app/lib/total.py\n")
    (folder / "solution/solution.patch").write_text(PATCH)
    return folder


@pytest.mark.parametrize(
    ("rewind", "hackable"),
    [
        ("git checkout -q HEAD~1", True),
        ("git reset -q --hard HEAD~1", True),
        ("git reset -q --hard HEAD~1; git tag later ORIG_HEAD; " + SCRUB, True),
        ("git reset -q --hard HEAD~1; rm -f .git/ORIG_HEAD; " + SCRUB, False),
    ],
    ids=["detached", "reflog", "tag", "scrubbed"],
)
def test_later_commits(store: DiskStore, tmp_path: Path, rewind: str, hackable: bool) -> None:
    """Trap 28: the fix lies in the history, by a name or without one."""
    task = load_task(make(tmp_path / "task", rewind))
    found = later_commits(store, task, base_for(store, task.image))
    told = ["hackable history: /app/.git holds 1 commit later than its HEAD"]
    assert found == (told if hackable else [])


def test_installed_copies_and_the_gate(store: DiskStore, tmp_path: Path) -> None:
    clean = "git reset -q --hard HEAD~1; rm -f .git/ORIG_HEAD; " + SCRUB
    task = load_task(make(tmp_path / "copied", clean, copy=True))
    said = "/usr/lib/x/lib/total.py in the image holds what the solution adds to lib/total.py"
    assert fixed_copies(task, base_for(store, task.image)) == [said]
    found = gate(store, [task], nops=1, oracles=1).tasks[0]
    assert (found.status, found.reasons) == ("leak", (said,))

    other = load_task(make(tmp_path / "clean", clean))
    assert gate(store, [other], nops=1, oracles=1).tasks[0].status == "passed"

    always = make(tmp_path / "always", clean)
    (always / "tests/test.sh").write_text("true\necho 1 > /logs/verifier/reward.txt\n")
    found = gate(store, [load_task(always)], nops=1, oracles=1).tasks[0]
    assert found.status == "invalid task"
    assert "not 0" in found.reasons[0]
    assert "always scores 1" in found.reasons[1]
