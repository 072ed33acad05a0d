"""What of a task its own agent could read: the verifier or the solution, lying in the image."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from sprout_env.disks.store import Base
from sprout_env.tasks.task import Task

_MIN_BYTES = 64
"""Shorter files say too little to tell a copy from a coincidence."""
_SCRIPTS = (".sh", ".py", ".js", ".ts", ".go", ".rs", ".patch")


def find_leaks(task: Task, base: Base) -> list[str]:
    """Return where the agent could read the verifier or the solution on the untouched disk.

    Looked for are the folders that tests and solutions are copied to, and the exact content of
    their scripts anywhere in the image. A file that the task's environment holds on purpose, with
    the same content, is no leak of the tests; of the solution, and of the script that judges, it
    always is. What the task's setup takes away before the agent begins is none either.
    """
    wanted: dict[int, dict[str, str]] = {}
    for name, size, digest in _pieces(task):
        wanted.setdefault(size, {})[digest] = name
    found: dict[str, str] = {}
    for layer in base.layers:
        names = (f"tests/{task.verifier.script}", "solution/solve.sh")
        found |= {f"/{name}": " is in the image" for name in names if os.path.lexists(layer / name)}
        for path, size in _files(layer):
            known = wanted[size].get(_digest(path)) if size in wanted else None
            if known is not None:
                found[f"/{path.relative_to(layer)}"] = f" in the image is the task's {known}"
    return sorted(
        path + what
        for path, what in found.items()
        if not any(PurePosixPath(path).is_relative_to(held) for held in task.verifier.held_back)
    )


def _pieces(task: Task) -> Iterator[tuple[str, int, str]]:
    """Yield name, size and digest of what nobody but the verifier and the oracle may read."""
    files = {f"tests/{name}": text for name, text in task.verifier.files.items()}
    if task.solution is not None:
        files |= {f"solution/{name}": text for name, text in task.solution.files.items()}
    for name, text in files.items():
        data = text.encode()
        if len(data) >= _MIN_BYTES:
            yield name, len(data), hashlib.sha256(data).hexdigest()
    if task.folder is None:
        return
    given = {digest for _, _, digest in _digests(task.folder / "environment")}
    judge = task.folder / "tests" / task.verifier.script
    for part in ("tests", "solution"):
        for path, size, digest in _digests(task.folder / part):
            tells = path.suffix in _SCRIPTS and (digest not in given or path == judge)
            if size >= _MIN_BYTES and (tells or part == "solution"):
                yield path.relative_to(task.folder).as_posix(), size, digest


def _files(root: Path) -> Iterator[tuple[Path, int]]:
    """Yield the regular files of a root with their sizes; no link is followed."""
    waiting = [str(root)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        yield Path(entry.path), entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue


def _digests(root: Path) -> Iterator[tuple[Path, int, str]]:
    if root.is_dir():
        for path, size in _files(root):
            yield path, size, _digest(path)


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
