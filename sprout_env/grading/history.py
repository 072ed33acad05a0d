"""Answers that an agent could dig up: later commits in a repository, copies of the fixed code."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from sprout_env.disks.store import Base, DiskStore
from sprout_env.errors import SandboxError
from sprout_env.grading.settings import ROOT
from sprout_env.sandbox import SandboxConfig, start
from sprout_env.sandbox.boot import SETUP_S
from sprout_env.tasks.task import Task

_LOOK_S = 120.0
_MIN_CHARS = 30
"""Shorter lines of a patch are everywhere."""
_WANTED = 3
"""So many of a patch's own lines in one file are no coincidence."""
_MAX_BYTES = 4 << 20

_LATER = r"""
command -v git >/dev/null || exit 0
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
find / -xdev -maxdepth 5 -name .git \( -path /proc -o -path /sys \) -prune -o \
    -xdev -maxdepth 5 -name .git -type d -print 2>/dev/null | while IFS= read -r found; do
  cd "$found" 2>/dev/null || continue
  now=$(git log -1 --format=%ct HEAD 2>/dev/null) || continue
  git cat-file --batch-all-objects --batch-check='%(objecttype) %(objectname)' 2>/dev/null |
    sed -n 's/^commit //p' | sort > /tmp/all.$$
  git rev-list HEAD 2>/dev/null | sort > /tmp/own.$$
  later=$(comm -23 /tmp/all.$$ /tmp/own.$$ | head -2000 | git log --no-walk --stdin \
    --format='%ct %h' 2>/dev/null | awk -v now="$now" '$1 > now' | wc -l)
  [ "$later" -gt 0 ] && echo "$later $found"
done
exit 0
"""


def later_commits(store: DiskStore, task: Task, base: Base) -> list[str]:
    """Return which repositories of the image hold commits later than what is checked out.

    Whether reachable by a name or not: whoever looks finds both. They are looked for inside a
    sandbox, since a repository can make git run what it likes.
    """
    if store.kind == "memory":
        return []
    disk = store.create(store.family(task.family_digest, base, task.limits.storage_mb))
    try:
        config = SandboxConfig(env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"})
        sandbox = start(store, disk, config, fresh=True)
        try:
            if task.setup:
                # It may begin the history anew.
                setup = f"cd {shlex.quote(task.workdir or '/')}\n{task.setup}"
                sandbox.run(setup, timeout_s=SETUP_S, user=ROOT)
            done = sandbox.run(_LATER, timeout_s=_LOOK_S, user=ROOT)
        finally:
            sandbox.close()
    except SandboxError:
        return []
    finally:
        store.drop(disk.id)
    found = []
    for line in done.stdout.decode(errors="replace").splitlines():
        count, _, place = line.partition(" ")
        if count.isdigit():
            commits = "1 commit" if count == "1" else f"{count} commits"
            found.append(f"hackable history: {place} holds {commits} later than its HEAD")
    return sorted(found)


def fixed_copies(task: Task, base: Base) -> list[str]:
    """Return files of the image that hold what the solution's patch adds: installed copies."""
    if task.solution is None:
        return []
    wanted: dict[str, list[tuple[str, set[str]]]] = {}
    for text in _patches(task):
        for path, lines in _added(text).items():
            if len(lines) >= _WANTED:
                wanted.setdefault(Path(path).name, []).append((path, lines))
    found: list[str] = []
    if not wanted:
        return found
    for layer in base.layers:
        for folder, _, names in os.walk(layer):
            for name in wanted.keys() & set(names):
                file = Path(folder, name)
                if file.is_symlink() or not file.is_file() or file.stat().st_size > _MAX_BYTES:
                    continue
                have = {line.strip() for line in file.read_text(errors="replace").splitlines()}
                inside = file.relative_to(layer)
                found += [
                    f"/{inside} in the image holds what the solution adds to {path}"
                    for path, lines in wanted[name]
                    if len(lines & have) >= max(_WANTED, len(lines) // 2)
                ]
    return sorted(set(found))


def _patches(task: Task) -> list[str]:
    assert task.solution is not None
    texts = [text for name, text in task.solution.files.items() if name.endswith(".patch")]
    if task.solution.folder is not None:
        folder = task.solution.folder
        paths = [*sorted(folder.glob("*.patch")), *sorted(folder.glob("*.diff"))]
        texts += [path.read_text("utf-8", errors="replace") for path in paths]
    return texts


def _added(patch: str) -> dict[str, set[str]]:
    """Return the long lines that a patch adds to files that were there before, by path."""
    found: dict[str, set[str]] = {}
    path = ""
    for line in patch.splitlines():
        head = re.match(r"\+\+\+ b/(.+)", line)
        if head is not None:
            path = head.group(1)
        elif path and line.startswith("+") and len(line.strip()) > _MIN_CHARS:
            found.setdefault(path, set()).add(line[1:].strip())
    return found
