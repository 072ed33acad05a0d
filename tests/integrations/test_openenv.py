"""OpenEnv's own server and client over a socket, with our sandboxes behind."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openenv", reason="OpenEnv is not in this environment (scripts/trainers.sh)")

from sprout_env.disks import open_store
from sprout_env.errors import ConfigError
from sprout_env.integrations import openenv
from sprout_env.sandbox.native.hierarchies import layout
from sprout_env.snapshots import SnapshotTree
from tests.integrations import tiny

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.root,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),
]


def sandboxes() -> set[Path]:
    """Return the cgroups of this process's sandboxes."""
    return {
        folder
        for hierarchy in layout().hierarchies
        for folder in (hierarchy.own / "sprout").glob(f"*-{os.getpid()}-*")
    }


def until(what: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path, shared_store: Path) -> Iterator[str]:
    """A server on a free port of the loopback."""
    import uvicorn

    suite = tmp_path / "tasks"
    tiny.write_log_task(suite)
    app = openenv.app(
        ttl_s=getattr(request, "param", 3600.0),
        suite="toy",
        task="log",
        tasks_path=str(suite),
        store=str(shared_store),
        max_turns=3,
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    running = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    while not running.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}"
    running.should_exit = True
    thread.join(20)
    assert not thread.is_alive()
    tree = SnapshotTree(open_store(shared_store))
    for snapshot in list(tree.list()):
        tree.release(snapshot.id)
    tree.close()


def test_a_root_fails_and_a_branch_of_another_session_solves(server: str) -> None:
    async def play() -> tuple[Any, Any]:
        async with openenv.client(server) as root:
            first = await root.begin(task="log")
            assert first.observation.instruction.strip() == tiny.INSTRUCTION
            good = await root.act(tiny.A)
            await root.act(tiny.A)
            failed = await root.act(tiny.B)
        # The root's session is over; its snapshot is not.
        async with openenv.client(server) as branch:
            there = await branch.begin(snapshot_id=good.observation.snapshot_id)
            assert there.observation.turn == 1
            await branch.act(tiny.B)
            solved = await branch.act(tiny.B)
        return failed, solved

    failed, solved = asyncio.run(play())
    assert (failed.done, failed.reward) == (True, 0.0)
    assert (solved.done, solved.reward) == (True, 1.0)
    assert solved.observation.verdict["outcome"] == "passed"


def test_sessions_do_not_see_each_other(server: str) -> None:
    async def one(name: str) -> str:
        async with openenv.client(server) as env:
            await env.begin(task="log")
            await env.act(f"echo {name} > /srv/who")
            await asyncio.sleep(0.2)
            seen = await env.act("cat /srv/who")
            return str(seen.observation.output)

    async def all_of_them() -> list[str]:
        return list(await asyncio.gather(*(one(f"s{n}") for n in range(3))))

    assert [text.strip() for text in asyncio.run(all_of_them())] == ["s0", "s1", "s2"]


def test_a_late_or_repeated_step_runs_nothing(server: str) -> None:
    async def play() -> None:
        async with openenv.client(server) as env:
            await env.begin(task="log")
            await env.act(tiny.A)
            env.__dict__["turn"] = 0  # as after an answer that was given up and asked again
            with pytest.raises(ConfigError, match="follows on turn 0"):
                await env.act(tiny.A)
            env.__dict__["turn"] = 1
            seen = await env.act("cat /srv/log")
            assert seen.observation.output.split() == ["a"]
            with pytest.raises(ConfigError, match="no snapshot"):
                await env.begin(snapshot_id="nowhere-1")

    asyncio.run(play())
    env = openenv.client(server)
    late = env._parse_result({"observation": {"request_id": "old"}, "done": False})
    with pytest.raises(ConfigError, match="came too late"):
        env._answered(late, "new")


def test_an_answer_that_was_given_up_is_never_the_next_one(server: str) -> None:
    async def play() -> str:
        async with openenv.client(server, message_timeout_s=2.0) as env:
            await env.begin(task="log")
            kept = await env.act(tiny.A)
            with pytest.raises(TimeoutError):
                await env.act("sleep 4; echo late")
            with pytest.raises(ConfigError):
                await env.act("echo next")
            again = await env.begin(snapshot_id=kept.observation.snapshot_id)
            assert again.observation.turn == 1
            return str((await env.act("echo next; cat /srv/log")).observation.output)

    assert asyncio.run(play()).split() == ["next", "a"]
    until(lambda: not sandboxes(), 20)


CLIENT = """
import asyncio, sys
from sprout_env.integrations import openenv

async def play():
    async with openenv.client(sys.argv[1]) as env:
        await env.begin(task="log")
        await env.act("echo a >> /srv/log")
        print("ready", flush=True)
        await env.act("sleep 3")

asyncio.run(play())
"""


@pytest.mark.parametrize("server", [None], indirect=True)
def test_a_killed_client_leaves_no_sandbox(server: str) -> None:
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, server], stdout=subprocess.PIPE, text=True
    )
    try:
        assert client.stdout is not None
        assert client.stdout.readline() == "ready\n"
        time.sleep(1)
        assert len(sandboxes()) >= 1
    finally:
        client.send_signal(signal.SIGKILL)
        client.wait()
    until(lambda: not sandboxes(), 20)


@pytest.mark.parametrize("server", [1.0], indirect=True)
def test_a_session_that_nobody_uses_is_ended(server: str) -> None:
    async def play() -> None:
        async with openenv.client(server) as env:
            await env.begin(task="log")
            assert len(sandboxes()) >= 1
            await asyncio.to_thread(until, lambda: not sandboxes(), 20)
            with pytest.raises(ConfigError, match="reset"):
                await env.act(tiny.A)

    asyncio.run(play())
