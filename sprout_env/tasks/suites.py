"""Named suites: where they lie on this machine, their slugs, and one task of them at a time."""

from __future__ import annotations

import difflib
import os
import threading
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from sprout_env.errors import TaskBroken, TaskNotFound
from sprout_env.tasks.harbor import load_task
from sprout_env.tasks.repositories import local_copy, parse_address, source_of
from sprout_env.tasks.rows import Rows, find_rows
from sprout_env.tasks.swebench import task_from_row
from sprout_env.tasks.task import Task

SEEDBED = Path(__file__).parent / "seedbed"
"""The bundled suite."""

FOLDERS: Mapping[str, tuple[str, ...]] = {
    "deepswe": ("deepswe", "deep-swe"),
    "terminal-bench": ("terminal-bench", "terminal-bench-2-1", "terminal-bench-2"),
    "swebench": ("swebench", "swe-bench"),
}
"""Names of public suites to the folder names that their copies go by."""


class Suite:
    """The tasks of one folder. Nothing is parsed before it is asked for.

    Example:
        >>> suite = find_suite("seedbed")
        >>> task = suite.task(suite.slugs()[0])
    """

    def __init__(self, name: str, root: Path, dataset: str | None = None) -> None:
        self.name = name
        self.root = root
        self.source = source_of(root.absolute())
        """Where its files were fetched from; None: nobody said."""
        self._folders = _task_folders(root)
        rows = Rows({}, {}) if self._folders else find_rows(root, dataset)
        self._rows = rows.found
        self._tasks: dict[str, Task] = {}
        self._broken: dict[str, TaskBroken] = rows.broken
        self._digests: dict[str, str] | None = None
        self._lock = threading.Lock()

    def slugs(self) -> tuple[str, ...]:
        """Return the names of all task folders, sorted, broken ones included."""
        return tuple(self._folders or self._rows)

    def folder(self, slug: str) -> Path:
        """Return where a task lies.

        Raises:
            TaskNotFound: The suite has no such task; the message names those that look alike.
        """
        found = self._folders.get(slug) or self._folders.get(slug.rpartition("/")[2])
        if found is None:
            near = difflib.get_close_matches(slug, self.slugs(), n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}?" if near else "see `sprout tasks list`"
            raise TaskNotFound(f"{slug!r} in suite {self.name} ({self.root})", hint)
        return found

    def task(self, slug: str) -> Task:
        """Return one task, parsed on first use.

        Raises:
            TaskNotFound: The suite has no such task.
            TaskBroken: Its folder cannot be read.
        """
        if slug in self._rows:
            with self._lock:
                return self._task_of_row(slug)
        folder = self.folder(slug)
        with self._lock:
            if folder.name not in self._tasks:
                try:
                    task = load_task(folder, self.name)
                    self._tasks[folder.name] = self._checked(task)
                except TaskBroken as error:
                    self._broken[folder.name] = error
                    raise
                self._broken.pop(folder.name, None)
            return self._tasks[folder.name]

    def _checked(self, task: Task) -> Task:
        """Note a task's origin; warn of one that is not the one that the manifest lists."""
        if self.source is not None:
            told = {"source": self.source.model_dump()}
            task = task.model_copy(update={"metadata": {**task.metadata, **told}})
        if self._digests is None:
            self._digests = _manifest(self.root)
        names = (str(task.metadata["harbor"].get("name", task.name)), task.name)
        listed = next((self._digests[name] for name in names if name in self._digests), None)
        if listed is None or listed == task.digest:
            return task
        said = f"dataset.toml lists digest {listed[:12]}, the folder has {task.digest[:12]}"
        return task.model_copy(update={"warnings": (*task.warnings, said)})

    def _task_of_row(self, slug: str) -> Task:
        if slug not in self._tasks:
            path, row, family = self._rows[slug]
            try:
                self._tasks[slug] = task_from_row(row, self.name, source=path, name=family)
            except TaskBroken as error:
                self._broken[slug] = error
                raise
        return self._tasks[slug]

    @property
    def broken(self) -> Mapping[str, TaskBroken]:
        """Slugs of the tasks that cannot be read, with the reason; parses all that is left."""
        for _ in self:
            pass
        return dict(self._broken)

    def __iter__(self) -> Iterator[Task]:
        """Yield the tasks that can be read; ``broken`` has the others."""
        for slug in self.slugs():
            try:
                task = self.task(slug)
            except TaskBroken:
                continue
            yield task

    def __len__(self) -> int:
        """Return the number of tasks."""
        return len(self.slugs())

    def __repr__(self) -> str:
        """Short form for people."""
        return f"Suite({self.name!r}, {len(self)} tasks in {self.root})"


def _task_folders(root: Path) -> dict[str, Path]:
    """Find the task folders of a root: itself, its sub-folders, or those of its ``tasks``."""
    if (root / "task.toml").is_file():
        return {root.resolve().name: root}
    for parent in (root, root / "tasks"):
        if parent.is_dir():
            found = {p.name: p for p in sorted(parent.iterdir()) if (p / "task.toml").is_file()}
            if found:
                return found
    return {}


def _manifest(root: Path) -> dict[str, str]:
    """Return the digests that a data set's manifest lists, by name; one it cannot read is none."""
    for path in (root / "dataset.toml", root / "tasks/dataset.toml"):
        try:
            found = tomllib.loads(path.read_text("utf-8")).get("tasks", [])
            return {
                str(entry["name"]): str(entry["digest"]).removeprefix("sha256:") for entry in found
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
    return {}


def _search_roots() -> list[Path]:
    return [Path(root) for root in os.environ.get("SPROUT_TASKS", "").split(":") if root]


_BY_PATH = "it is any folder of tasks: give its path: `--path`, in Python `tasks_path=`"


def find_suite(name: str, path: Path | str | None = None, dataset: str | None = None) -> Suite:
    """Find a suite on this machine.

    ``seedbed`` is bundled; ``harbor`` is any folder of Harbor tasks and needs ``path``; the
    others are looked for in the folders of ``SPROUT_TASKS`` (colon-separated, read now).

    Args:
        name: ``seedbed``, ``harbor``, ``deepswe``, ``terminal-bench``, ``swebench``, or the name
            of a folder in ``SPROUT_TASKS``.
        path: The suite's folder, or the address of a git repository (``URL[@REF][#FOLDER]``), which
            is fetched if it is not here; nothing is searched then.
        dataset: The data set's own version, such as "2.1": folders named ``NAME-VERSION`` or
            ``NAME@VERSION`` are taken, and no others. Of files of rows it chooses as
            ``rows.find_rows`` says: "verified", "lite/test", "SWE-Gym".

    Raises:
        TaskNotFound: It is not on this machine; the message says how to get it.
    """
    if path is not None:
        address = parse_address(str(path))
        place = Path(path) if address is None else local_copy(address)[0]
        suite = Suite(name, place, dataset)
        if not len(suite):
            nothing = "it holds no task.toml and no rows"
            said = [*map(str, suite.broken.values())] or [nothing]
            if not place.exists():
                said = ["there is no such file or folder"]
            deep = [*place.glob("*/*/task.toml"), *place.glob("*/*/*/task.toml")]
            inner = {str(path.parent.parent.relative_to(place)) for path in deep}
            if inner:
                said.append(f"its folders {', '.join(sorted(inner)[:5])} do")
            raise TaskNotFound(f"suite {name} in {path}", "; ".join(said))
        return suite
    if name == "seedbed":
        return Suite(name, SEEDBED)
    if name == "harbor":
        raise TaskNotFound("suite harbor", _BY_PATH)
    for root in _search_roots():
        for folder in FOLDERS.get(name, (name,)):
            names = [f"{folder}-{dataset}", f"{folder}@{dataset}"] if dataset else [folder]
            for candidate in names:
                # A name comes from the user: it may not climb out of the root.
                if "/" in candidate or candidate in ("", ".", ".."):
                    continue
                suite = Suite(name, root / candidate)
                if len(suite):
                    return suite
            if name == "swebench" and (root / folder).is_dir():
                return find_suite(name, root / folder, dataset)
    wanted = f"{name} {dataset}" if dataset else name
    searched = ":".join(map(str, _search_roots()))
    known = ("seedbed", "harbor", *FOLDERS)
    near = difflib.get_close_matches(name, known, n=1)
    if name in FOLDERS:
        hint = f"`sprout tasks pull {name}` gets it"
    else:
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    raise TaskNotFound(
        f"suite {wanted} ({f'not in {searched}' if searched else 'SPROUT_TASKS is not set'})",
        f"`--path` (in Python `tasks_path=`) names the folder of your own; {hint}",
    )
