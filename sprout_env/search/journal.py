"""A run's folder: what is finished is appended and durable, so that a rerun pays nothing twice."""

from __future__ import annotations

import fcntl
import json
import re
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from sprout_env.errors import ConfigError
from sprout_env.records.attempt import Attempt
from sprout_env.records.export import RecordWriter, read_attempts, read_records, read_reviews
from sprout_env.records.reviews import Attempts, ReviewRecord
from sprout_env.search.events import (
    AttemptFinished,
    Event,
    ReviewFinished,
    SnapshotsKept,
    TaskFinished,
)


def hold(path: Path, mine: dict[str, Any], what: str) -> IO[str]:
    """Lock a folder's file of settings, written if it is new; the lock goes when it is closed.

    Args:
        path: The file.
        mine: What it must hold.
        what: What lies in the folder: a run, a comparison.

    Raises:
        ConfigError: Another process holds it, it cannot be read, or it holds other settings.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as undo:
        file = undo.enter_context(path.open("a+", encoding="utf-8"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"another process writes to the {what} in {path.parent}") from error
        file.seek(0)
        try:
            theirs = json.loads(file.read() or "null")
        except ValueError as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error
        if not isinstance(theirs, dict | None):
            raise ConfigError(f"{path} cannot be read: it holds no settings")
        if theirs is None:
            file.write(json.dumps(mine, indent=1))
            file.flush()
        elif different := sorted(n for n in {*mine, *theirs} if mine.get(n) != theirs.get(n)):
            raise ConfigError(
                f"{path.parent} holds another {what} (different: {', '.join(different)}); "
                "choose another folder"
            )
        undo.pop_all()
        return file


class Journal:
    """A run's folder: ``run.json``, ``attempts.jsonl``, ``reviews.jsonl``, ``tasks.jsonl``.

    ``kept.txt`` holds the snapshots of attempts that were judged, written before they are kept.

    Raises:
        ConfigError: The folder holds another run, or another process writes to it.
    """

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        with ExitStack() as undo:
            self._file = undo.enter_context(hold(folder / "run.json", config, "run"))
            self.done = self._read()
            self._kept = undo.enter_context((folder / "kept.txt").open("a+", encoding="utf-8"))
            self._kept.seek(0)
            recorded = {
                boundary.snapshot
                for record in self.done.values()
                if isinstance(record, Attempt)
                for boundary in record.boundaries
            }
            self.orphans = frozenset(self._kept.read().split()) - recorded
            """Snapshots that a killed process kept for attempts that it did not come to record."""
            self._writers = {
                name: RecordWriter(folder / f"{name}.jsonl")
                for name in ("attempts", "reviews", "tasks")
            }
            undo.pop_all()

    def _read(self) -> dict[str, Attempt | ReviewRecord | Attempts]:
        done: dict[str, Attempt | ReviewRecord | Attempts] = {}
        for record in load_folder(self.folder):
            done[f"task:{record.task}" if isinstance(record, Attempts) else record.id] = record
        return done

    def on_event(self, event: Event) -> None:
        """Record what is finished and new."""
        if isinstance(event, SnapshotsKept):
            with self._lock:
                self._kept.write("".join(f"{id}\n" for id in event.snapshots))
                self._kept.flush()
        elif isinstance(event, AttemptFinished) and not event.resumed:
            self._append("attempts", event.attempt)
        elif isinstance(event, ReviewFinished) and not event.resumed:
            self._append("reviews", event.review)
        elif isinstance(event, TaskFinished) and event.whole and not event.resumed:
            light = event.attempts.model_copy(update={"attempts": (), "reviews": ()})
            self._append("tasks", light)

    def _append(self, name: str, record: Attempt | ReviewRecord | Attempts) -> None:
        with self._lock:
            self._writers[name].append(record)

    def close(self) -> None:
        """Close the files and let other processes have the folder. Idempotent."""
        for writer in self._writers.values():
            writer.close()
        self._kept.close()
        self._file.close()


def _planned(attempt: Attempt) -> tuple[int, list[tuple[int, str]]]:
    """Return what orders attempts: their round, then their ids with numbers as numbers."""
    parts = re.findall(r"\d+|\D+", attempt.id)
    return attempt.round, [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def load_folder(folder: Path) -> tuple[Attempt | ReviewRecord | Attempts, ...]:
    """Return a run's attempts and reviews (the last of each id), and its finished tasks whole.

    Raises:
        ConfigError: A file cannot be read.
    """
    attempts: dict[str, Attempt] = {}
    reviews: dict[str, ReviewRecord] = {}
    if (path := folder / "attempts.jsonl").exists():
        # Written as they ended; a run holds them as they were planned.
        known = {attempt.id: attempt for attempt in read_attempts(path)}
        attempts = {a.id: a for a in sorted(known.values(), key=_planned)}
    if (path := folder / "reviews.jsonl").exists():
        reviews = {review.id: review for review in read_reviews(path)}
    tasks: dict[str, Attempts] = {}
    if (path := folder / "tasks.jsonl").exists():
        for record in read_records(path):
            if isinstance(record, Attempts):
                tasks[record.task] = record.model_copy(
                    update={
                        "attempts": tuple(a for a in attempts.values() if a.task == record.task),
                        "reviews": tuple(r for r in reviews.values() if r.task == record.task),
                    }
                )
    return (*attempts.values(), *reviews.values(), *tasks.values())
