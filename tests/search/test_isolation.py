"""What goes wrong around one attempt ends that attempt alone: tried again, then a column."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sprout_env.actors import Completion, Message
from sprout_env.actors.load import register_actor
from sprout_env.disks import kernel, open_store
from sprout_env.disks.images.aliases import alias
from sprout_env.disks.opening import init_store
from sprout_env.errors import ActorError
from sprout_env.records import read_attempts
from sprout_env.records.attempt import Attempt
from sprout_env.sandbox.build import base_for
from sprout_env.search.compare import CompareConfig, compare
from sprout_env.search.comparison import Comparison
from sprout_env.search.events import (
    AttemptRetried,
    Event,
    OnEvent,
    TurnFinished,
)
from sprout_env.tasks.task import FolderImage, NamedImage
from sprout_env.transcript import Transcript, Turn
from tests.search.test_real_runs import snapshots
from tests.small_task import write_task

pytestmark = pytest.mark.root

Tell = Callable[[Event], None]

LIVE = "[metadata.sprout]\nlive = true\n"


class Clumsy:
    """Does the small task right, but where a test makes it stumble."""

    acting: Callable[[int], None] = staticmethod(lambda calls: None)
    answering: Callable[[int], str] = staticmethod(lambda calls: "{}")
    slow = ""
    """A command that it runs before it answers."""
    calls = 0

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._seed = spec.get("seed", 0)

    @property
    def name(self) -> str:
        return "clumsy"

    def spec(self) -> dict[str, Any]:
        return {"kind": "clumsy", "seed": self._seed}

    def act(self, transcript: Transcript) -> Turn:
        Clumsy.calls += 1
        Clumsy.acting(Clumsy.calls)
        commands = [*filter(None, [self.slow]), "echo 42 > /srv/answer", "submit"]
        return Turn(command=commands[transcript.turn])

    def complete(
        self, messages: Sequence[Message], schema: Mapping[str, Any] | None = None
    ) -> Completion:
        return Completion(text=Clumsy.answering(len(messages)))


@pytest.fixture
def clumsy(monkeypatch: pytest.MonkeyPatch) -> type[Clumsy]:
    for name in ("acting", "answering", "slow", "calls"):
        monkeypatch.setattr(Clumsy, name, Clumsy.__dict__[name])
    register_actor("clumsy", Clumsy)
    return Clumsy


def compared(
    tasks: Path, store: Path, folder: Path, method: str = "pass@2", tell: Tell | None = None
) -> tuple[Comparison, list[Event]]:
    events: list[Event] = []

    @contextmanager
    def watch(label: str, seed: int) -> Iterator[OnEvent]:
        def heard(event: Event) -> None:
            events.append(event)
            if tell is not None:
                tell(event)

        yield heard

    made = CompareConfig.make(
        "toy",
        actor={"kind": "clumsy"},
        methods=[method],
        tasks_path=str(tasks),
        store=str(store),
    )
    return compare(made, folder, workers=1, watch=watch), events


def recorded(folder: Path) -> dict[str, Attempt]:
    """The last record of each attempt."""
    return {a.id: a for file in folder.glob("seed-0/*/attempts.jsonl") for a in read_attempts(file)}


def lost_of(table: Comparison) -> tuple[int, int, str]:
    row = table.rows[0]
    return row.trouble.lost, row.trouble.unjudged, str(row.resolve.ratio)


def test_an_actor_s_own_error_ends_one_attempt(
    clumsy: type[Clumsy], shared_store: Path, tmp_path: Path
) -> None:
    before = snapshots(shared_store)
    write_task(tmp_path / "tasks")

    def stumble(calls: int) -> None:
        if calls in (2, 3):
            raise ZeroDivisionError("of the actor's own")

    clumsy.acting = staticmethod(stumble)
    table, events = compared(tmp_path / "tasks", shared_store, tmp_path / "run")
    # In the middle of the first attempt, at the start of its second try; the next one is well.
    retried = [event for event in events if isinstance(event, AttemptRetried)]
    assert [event.attempt for event in retried] == ["answer:root-1"]
    assert lost_of(table) == (1, 0, "1/1 (100.0 %)")
    lost = recorded(tmp_path / "run")["answer:root-1"]
    assert (lost.status, lost.verdict) == ("infra_error", None)
    assert lost.error == "ZeroDivisionError: of the actor's own"
    log = next((tmp_path / "run").glob("seed-0/*/log.jsonl")).read_text()
    assert "Traceback" in log
    # The same folder again: only what was lost is run, and it is well now.
    table, events = compared(tmp_path / "tasks", shared_store, tmp_path / "run")
    assert lost_of(table) == (0, 0, "1/1 (100.0 %)")
    assert snapshots(shared_store) == before


def test_a_lost_attempt_or_review_is_no_failure(
    clumsy: type[Clumsy], shared_store: Path, tmp_path: Path
) -> None:
    before = snapshots(shared_store)
    write_task(tmp_path / "tasks", test="#!/bin/bash\necho 0 > /logs/verifier/reward.txt\n")

    def stumble(calls: int) -> None:
        if calls <= 2:
            raise KeyError("x")

    clumsy.acting = staticmethod(stumble)
    # One lost, one failed: whether pass@2 solves the task is not known.
    table, _ = compared(tmp_path / "tasks", shared_store, tmp_path / "one")
    assert lost_of(table) == (1, 1, "0/0")
    table, _ = compared(tmp_path / "tasks", shared_store, tmp_path / "one")
    assert lost_of(table) == (0, 0, "0/1 (0.0 %)")

    def refuse(messages: int) -> str:
        raise TypeError("no reader")

    clumsy.answering = staticmethod(refuse)
    table, _ = compared(tmp_path / "tasks", shared_store, tmp_path / "two", "sprout")
    trouble = table.rows[0].trouble
    # Two rounds of an analyst (asked again in the second) and a reviewer, each asked twice.
    assert (trouble.lost, trouble.unanswered, trouble.dropped) == (0, 4, 2)
    assert lost_of(table) == (0, 1, "0/0")
    clumsy.answering = staticmethod(lambda messages: "{}")
    table, _ = compared(tmp_path / "tasks", shared_store, tmp_path / "two", "sprout")
    # Asked anew; the model's answers hold no plans: that is its own failure.
    assert (table.rows[0].trouble.unanswered, lost_of(table)) == (0, (0, 0, "0/1 (0.0 %)"))
    assert snapshots(shared_store) == before


def init_of(command: str) -> int:
    """The host's pid of PID 1 of the sandbox that runs a command."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if (entry / "cmdline").read_bytes().split(b"\0")[:2] != command.encode().split():
                    continue
                pid = int(entry.name)
                while True:
                    status = dict(
                        line.split(":\t", 1)
                        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
                        if ":\t" in line
                    )
                    if status["NSpid"].split()[-1] == "1":
                        return pid
                    pid = int(status["PPid"])
            except (OSError, KeyError, ValueError):
                continue
        time.sleep(0.02)
    raise AssertionError(f"no sandbox runs {command}")


def test_a_sandbox_killed_from_outside_ends_one_attempt(
    clumsy: type[Clumsy], shared_store: Path, tmp_path: Path
) -> None:
    before = snapshots(shared_store)
    write_task(tmp_path / "tasks")
    clumsy.slow = "sleep 1.7251"
    killed: list[int] = []

    def kill(times: int) -> threading.Thread:
        def work() -> None:
            for _ in range(times):
                killed.append(init_of(clumsy.slow))
                os.kill(killed[-1], signal.SIGKILL)
                while Path(f"/proc/{killed[-1]}").exists():
                    time.sleep(0.01)

        thread = threading.Thread(target=work)
        thread.start()
        return thread

    # Once: the attempt begins anew and is well.
    thread = kill(1)
    table, events = compared(tmp_path / "tasks", shared_store, tmp_path / "one")
    thread.join()
    retried = [event for event in events if isinstance(event, AttemptRetried)]
    assert [event.attempt for event in retried] == ["answer:root-1"]
    assert "SandboxLost" in retried[0].error
    assert "signal 9" in retried[0].error
    assert lost_of(table) == (0, 0, "1/1 (100.0 %)")
    # As often as it is tried: a column, and the other attempt decides.
    thread = kill(2)
    table, _ = compared(tmp_path / "tasks", shared_store, tmp_path / "two")
    thread.join()
    assert len(set(killed)) == 3
    assert lost_of(table) == (1, 0, "1/1 (100.0 %)")
    assert "SandboxLost" in recorded(tmp_path / "two")["answer:root-1"].error
    table, _ = compared(tmp_path / "tasks", shared_store, tmp_path / "two")
    assert lost_of(table) == (0, 0, "1/1 (100.0 %)")
    assert snapshots(shared_store) == before


def test_a_verdict_that_cannot_be_had_is_neither_failure_nor_silence(
    clumsy: type[Clumsy], shared_store: Path, tmp_path: Path
) -> None:
    before = snapshots(shared_store)
    write_task(tmp_path / "tasks")
    write_task(tmp_path / "tasks", "mute", test="#!/bin/bash\nexit 0\n")
    table, _ = compared(tmp_path / "tasks", shared_store, tmp_path / "run", "pass@1")
    row = table.rows[0]
    assert (table.tasks, row.trouble.invalid, lost_of(table)) == (2, 1, (0, 1, "1/1 (100.0 %)"))
    attempt = recorded(tmp_path / "run")["mute:root-1"]
    assert (attempt.status, attempt.reward, attempt.failed) == ("submitted", None, False)
    assert snapshots(shared_store) == before


def test_a_store_without_space_ends_one_attempt(
    clumsy: type[Clumsy], debian_base: Path, tmp_path: Path
) -> None:
    """A store on a small file system of its own, which something else fills and empties again."""
    write_task(tmp_path / "tasks")
    host = tmp_path / "host"
    host.mkdir()
    kernel.mount("tmpfs", str(host), "tmpfs", 0, "size=1500m")
    try:
        init_store(host / "store", kind="btrfs", image_gib=1, reserve_bytes=100 << 20)
        alias(host / "store", "test/base", FolderImage(path=debian_base))
        fillers = [host / "filler-1", host / "filler-2"]

        def fill(event: Event) -> None:
            """Take all space after the first turn, and again what came back before the retry."""
            if (
                isinstance(event, TurnFinished | AttemptRetried)
                and event.attempt == "answer:root-1"
            ):
                filler = fillers[isinstance(event, AttemptRetried)]
                free = os.statvfs(host)
                room = free.f_bavail * free.f_frsize - (1 << 20)
                if room > 0 and not filler.exists():
                    with filler.open("wb") as file:
                        os.posix_fallocate(file.fileno(), 0, room)
            else:
                for filler in fillers:
                    filler.unlink(missing_ok=True)

        store = open_store(host / "store")
        try:
            base_for(store, NamedImage(name="test/base"))
            table, events = compared(
                tmp_path / "tasks", host / "store", tmp_path / "run", tell=fill
            )
            assert lost_of(table) == (1, 0, "1/1 (100.0 %)")
            retried = [event for event in events if isinstance(event, AttemptRetried)]
            assert "no snapshot" in retried[0].error
            assert "StoreFull" in recorded(tmp_path / "run")["answer:root-1"].error
            table, _ = compared(tmp_path / "tasks", host / "store", tmp_path / "run")
            assert lost_of(table) == (0, 0, "1/1 (100.0 %)")
            assert snapshots(host / "store") == set()
        finally:
            store.close()
    finally:
        kernel.unmount(host)


def test_an_actor_that_cannot_act_at_all_ends_the_run_at_once(
    shared_store: Path, tmp_path: Path
) -> None:
    write_task(tmp_path / "tasks")
    made = CompareConfig.make(
        "toy",
        actor="simulated",
        methods=["pass@1"],
        tasks_path=str(tmp_path / "tasks"),
        store=str(shared_store),
    )
    with pytest.raises(ActorError, match="a model plays any task"):
        compare(made, tmp_path / "run")


@pytest.mark.parametrize(
    ("left", "live"),
    [("", ""), ("; nohup sh -c 'while :; do cat /root/big; done' >/dev/null &", LIVE)],
)
def test_an_agent_that_fills_its_disk_has_failed(
    clumsy: type[Clumsy], shared_store: Path, tmp_path: Path, left: str, live: str
) -> None:
    """Not lost, or filling a disk would be worth learning. Its siblings go on."""
    before = snapshots(shared_store)
    write_task(tmp_path / "tasks", extra_toml=f"storage_mb = 48\n{live}")
    filling = "dd if=/dev/urandom of=/root/big bs=1M count=200; sync; yes > /root/rest"
    clumsy.slow = filling + left
    table, _ = compared(tmp_path / "tasks", shared_store, tmp_path / "run", "pass@2")
    assert lost_of(table) == (0, 0, "0/1 (0.0 %)")
    attempts = recorded(tmp_path / "run").values()
    assert [(a.status, a.reward, a.failed) for a in attempts] == [("submitted", 0.0, True)] * 2
    clumsy.slow = f"{filling}; rm /root/big /root/rest"
    table, _ = compared(tmp_path / "tasks", shared_store, tmp_path / "well", "pass@2")
    assert lost_of(table) == (0, 0, "1/1 (100.0 %)")
    assert snapshots(shared_store) == before
