"""Agents that know an OpenAI-compatible server and a ``docker`` command, captured in sandboxes."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from sprout_env.disks import open_store
from sprout_env.integrations.capture import Capture
from sprout_env.integrations.capture_session import Session
from sprout_env.records import group_of, token_row, tree_of
from sprout_env.snapshots import SnapshotTree
from sprout_env.transcript import Turn
from tests.actors.chat_server import Server, serve
from tests.integrations import tiny
from tests.integrations.byte_model import Said, player

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]

ANSWERS: list[Said] = [("one", [tiny.A]), ("I think.", []), ("two", [tiny.B, tiny.B])]

AGENT = """
import os, subprocess, sys, openai
client, messages = openai.OpenAI(), [{"role": "user", "content": sys.argv[1]}]
box = subprocess.check_output(["docker", "run", "-d", "image", "sleep", "2h"], text=True).strip()
while len(messages) < 12:
    said = client.chat.completions.create(model="m", messages=messages).choices[0].message
    messages.append(said.model_dump(exclude_none=True))
    for call in said.tool_calls or ():
        run = ["docker", "exec", "-w", "/srv", "-e", "A=x y", box, "bash", "-lc"]
        done = subprocess.run([*run, eval(call.function.arguments)["command"]], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": done.stdout})
    if not said.tool_calls:
        messages.append({"role": "user", "content": "go on"})
    if said.content == "two":
        break
"""


@pytest.fixture
def model() -> Iterator[Server]:
    with serve(player(lambda n: ANSWERS[n])) as server:
        yield server


@pytest.fixture
def capture(model: Server, shared_store: Path, tmp_path: Path) -> Iterator[Capture]:
    tiny.write_log_task(tmp_path / "tasks")
    before = snapshots(shared_store)
    with Capture(
        model.url,
        idle_s=60.0,
        suite="toy",
        task="log",
        tasks_path=str(tmp_path / "tasks"),
        store=str(shared_store),
    ) as capture:
        yield capture
    assert snapshots(shared_store) == before


def snapshots(store: Path) -> list[str]:
    tree = SnapshotTree(open_store(store))
    try:
        return [each.id for each in tree.list()]
    finally:
        tree.close()


def release(store: Path, attempt: Any) -> None:
    tree = SnapshotTree(open_store(store))
    for boundary in attempt.boundaries:
        tree.release(boundary.snapshot)
    tree.close()


def ask(session: Session, messages: Any, **more: Any) -> Any:
    with openai.OpenAI(base_url=f"{session.address}/v1", api_key="k", max_retries=0) as client:
        said: Any = client.chat.completions.create(model="m", messages=messages, **more)
        return list(said) if more.get("stream") else said


def test_the_calls_of_an_agent_are_a_tree_with_ids_and_snapshots(
    capture: Capture, model: Server, shared_store: Path
) -> None:
    def one(_: int) -> Any:
        session = capture.session()
        said = session.run([sys.executable, "-c", AGENT, session.instruction], timeout_s=60)
        return session, said

    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(one, range(3)))
    for session, attempt in done:
        turns = [entry for entry in attempt.entries if isinstance(entry, Turn)]
        # Three answers; one without a command, and one with two.
        assert [turn.provenance for turn in turns] == ["policy"] * 3 + ["scripted"]
        assert [turn.message for turn in turns] == ["one", "I think.", "two", ""]
        assert [turn.result.exit_code for turn in turns if turn.result] == [0] * 4
        assert attempt.passed
        assert (attempt.error, session.drifts, attempt.usage.calls) == ("", 0, 3)
        assert [boundary.turn for boundary in attempt.boundaries] == [0, 1, 2, 3, 4]
        assert {b.snapshot for b in attempt.boundaries} <= set(snapshots(shared_store))
        (row,) = (token_row(row) for row in group_of([attempt]).rows)
        learned = bytes(t for t, m in zip(row.token_ids, row.loss_mask, strict=True) if m).decode()
        assert [piece.partition("<tool")[0] for piece in learned.split("<|im_end|>")[:3]] == [
            turn.message for turn in turns[:3]
        ]
        pairs = zip(row.token_ids, row.loss_mask, row.logprobs, strict=True)
        assert all(p == (-t / 256 if m else 0.0) for t, m, p in pairs)
        assert len(tree_of([attempt]).path(attempt.id)) >= 4
    # The same tokens as this server tells whoever asks it directly.
    with openai.OpenAI(base_url=model.url, api_key="k") as client:
        direct: Any = client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": done[0][0].instruction}],
            extra_body={"return_token_ids": True},
        )
    for _, attempt in done:
        trace = attempt.entries[0].trace
        assert list(trace.prompt_ids) == direct.model_extra["prompt_token_ids"]
        assert list(trace.token_ids) == direct.choices[0].model_extra["token_ids"]
    for _, attempt in done:
        release(shared_store, attempt)


def test_streams_and_models_are_what_the_server_has(capture: Capture) -> None:
    session = capture.session()
    with openai.OpenAI(base_url=f"{session.address}/v1", api_key="k") as client:
        assert [each.id for each in client.models.list()] == ["m", "served-model"]
    pieces = ask(session, [{"role": "user", "content": "go"}], stream=True)
    deltas = [choice.delta for piece in pieces for choice in piece.choices]
    assert "".join(delta.content or "" for delta in deltas) == "one"
    (call,) = [call for delta in deltas for call in delta.tool_calls or ()]
    assert json.loads(call.function.arguments) == {"command": tiny.A}
    assert session.execute(["sh", "-c", "echo a; exit 3"], "", {}) == {
        "output": "a\n",
        "exit_code": 3,
    }
    session.close()


def test_what_a_strict_server_refuses_is_not_asked_of_it(capture: Capture, model: Server) -> None:
    plain, unknown = model.script, ("verbose", "return_tokens", "return_token_ids")

    def strict(body: Any, number: int) -> Any:
        refused = [name for name in (*unknown, "frob") if name in body]
        said = f"Unknown parameter: {refused[0]}" if refused else ""
        return (400, {"error": {"message": said}}, {}) if refused else plain(body, number)

    model.script = strict
    session = capture.session()
    assert ask(session, [{"role": "user", "content": "go"}]).choices[0].message.content == "one"
    assert model.requests[-1]["logprobs"] is True
    # What the agent asks for itself is between the two of them.
    with pytest.raises(openai.BadRequestError, match="Unknown parameter: frob"):
        ask(session, [{"role": "user", "content": "go"}], extra_body={"frob": 1})
    session.close()


def test_answers_of_other_sessions_and_late_ones_are_refused(
    capture: Capture, model: Server
) -> None:
    one, two = capture.session(), capture.session()
    start = {"role": "user", "content": "go"}
    said = ask(one, [start]).choices[0].message.model_dump(exclude_none=True)
    with pytest.raises(openai.ConflictError, match="another session"):
        ask(two, [start, said])
    assert two.calls == 0
    # A changed history is flagged: its ids are no continuation of those before.
    ask(one, [{"role": "user", "content": "other"}])
    assert one.drifts == 1
    # The agent gives up on a slow answer and asks again: the first answer is nobody's.
    plain, waits = model.script, threading.Event()

    def slow(body: Any, number: int) -> Any:
        if body["messages"][-1]["content"] == "slow":
            assert waits.wait(30)
        return plain(body, number)

    model.script = slow
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(ask, two, [{"role": "user", "content": "slow"}])
        while not model.requests or model.requests[-1]["messages"][-1]["content"] != "slow":
            time.sleep(0.01)
        ask(two, [start])
        waits.set()
        with pytest.raises(openai.ConflictError, match="too late"):
            late.result()
    two.execute(["true"], "", {})
    attempt = two.finish()
    assert attempt.usage.calls == 1
    with pytest.raises(openai.NotFoundError):
        ask(two, [start])
    one.close()
    release(Path(capture._env["store"]), attempt)


def test_a_client_that_goes_away_leaves_no_sandbox(capture: Capture, model: Server) -> None:
    session = capture.session()
    capture._idle_s = 1.0
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "go"}]}).encode()
    plain, waits = model.script, threading.Event()

    def slow(body: Any, number: int) -> Any:
        assert waits.wait(30)
        return plain(body, number)

    model.script = slow
    port = int(capture.address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as client:
        head = f"POST /{session.key}/v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: "
        client.sendall(f"{head}{len(body)}\r\n\r\n".encode() + body)
        while not model.requests:
            time.sleep(0.01)
    waits.set()
    begun = time.monotonic()
    while session.key in capture._sessions:
        assert time.monotonic() - begun < 20
        time.sleep(0.05)
    attempt = session.finish()
    assert (attempt.status, attempt.reward, attempt.entries) == ("infra_error", None, ())
    assert "asked nothing" in attempt.error


def test_a_server_that_fails_is_no_failure_of_the_agent(capture: Capture, model: Server) -> None:
    model.script = lambda body, number: (503, {"error": {"message": "full"}}, {})
    session = capture.session()
    attempt = session.run(
        [sys.executable, "-c", AGENT, "go"], timeout_s=60, stderr=subprocess.DEVNULL
    )
    assert attempt.reward is None
    assert "503" in attempt.error


def test_an_agent_that_hangs_is_ended_and_judged(capture: Capture, shared_store: Path) -> None:
    session = capture.session()
    attempt = session.run(["sh", "-c", "sleep 600 & wait"], timeout_s=0.5)
    assert (attempt.status, attempt.reward) == ("out_of_time", 0.0)
    release(shared_store, attempt)


def docker(session: Session, *words: str, stdin: bytes | None = None) -> tuple[int, str, str]:
    done = subprocess.run(
        ["docker", *words], env={**os.environ, **session.environ}, input=stdin, capture_output=True
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_a_command_is_given_its_standard_input_and_keeps_it(
    capture: Capture, shared_store: Path
) -> None:
    session = capture.session()
    every = bytes(range(256)) * 3500
    assert docker(session, "exec", "-i", "x", "sh", stdin=b"echo one; exit 3") == (3, "one\n", "")
    assert docker(session, "exec", "-i", "x", "bash", "-s", stdin="echo 'ä'\n".encode())[1] == "ä\n"
    assert docker(session, "exec", "-i", "x", "sh", "-c", "cat > /srv/f", stdin=every)[0] == 0
    sums = docker(session, "exec", "x", "sha256sum", "/srv/f")[1]
    assert sums.split()[0] == hashlib.sha256(every).hexdigest()
    assert docker(session, "exec", "x", "cat", stdin=b"none of it")[1] == ""
    code, _, said = docker(session, "exec", "-i", "x", "cat", stdin=b"x" * (1 << 20 | 1))
    assert (code, "more than 1048576 bytes" in said) == (125, True)
    attempt = session.finish()
    turns = [entry for entry in attempt.entries if isinstance(entry, Turn)]
    assert [turn.result.exit_code for turn in turns if turn.result] == [3, 0, 0, 0, 0]
    assert "echo 'ä'\nEND" in turns[1].command
    # Whoever takes the recorded commands makes the same file.
    again = capture.session()
    for turn in turns[:3]:
        again.env.step(turn.command)
    assert again.execute(["sha256sum", "/srv/f"], "", {})["output"] == sums
    again.close()
    release(shared_store, attempt)


def test_docker_does_what_it_knows_and_refuses_the_rest_in_words(capture: Capture) -> None:
    session = capture.session()
    started = docker(
        session, "run", "-d", "--rm", "-w", "/srv/new", "-e", "A=b c", "any", "sleep", "9"
    )
    assert started == (0, f"{session.key}\n", "")
    exec_ = ("container", "exec", "x", "sh", "-c", 'echo "$PWD $A"')
    assert docker(session, *exec_)[1] == "/srv/new b c\n"
    forms = ("exec", "-it", "--workdir=/tmp", "--env=A=d", "x", "sh", "-c", 'echo "$PWD $A" "$@"')
    assert docker(session, *forms, "--", "-w", "--")[:2] == (0, "/tmp d -w --\n")
    for words, why in {
        ("run", "--rm", "any", "echo", "hi"): "run without -d is not known",
        ("run", "-d", "any", "python", "serve.py"): "run -d of `python serve.py` is not known",
        ("run", "-d", "-v", "/a:/b", "any"): "run: ",
        ("exec", "-u", "me", "x", "id"): "exec: unrecognized arguments: -u",
        ("exec", "x"): "exec needs a command",
        ("ps",): "`ps` is not known",
        ("cp", "a", "x:/b"): "`cp` is not known",
        (): "`` is not known",
    }.items():
        code, out, said = docker(session, *words)
        assert (code, out, why in said, "docker knows `run -d" in said) == (125, "", True, True), (
            said
        )
    assert docker(session, "--version")[0] == 0
    with (
        openai.OpenAI(base_url=f"{session.address}/v1", api_key="k", max_retries=0) as client,
        pytest.raises(openai.NotFoundError, match="only chat completions are captured"),
    ):
        client.responses.create(model="m", input="go")
    session.close()


def test_an_agent_at_a_snapshot_begins_anew_and_has_its_own_row(
    capture: Capture, shared_store: Path
) -> None:
    first = capture.session()
    ask(first, [{"role": "user", "content": "go"}])
    first.execute(["true"], "", {})
    before = first.finish()
    session = capture.session(snapshot=before.boundaries[-1].snapshot)
    ask(session, [{"role": "user", "content": "go on"}])
    session.execute(["sh", "-c", tiny.A], "", {})
    attempt = session.finish()
    turns = [entry for entry in attempt.entries if isinstance(entry, Turn)]
    assert [turn.provenance for turn in turns] == ["scripted", "policy"]
    assert (attempt.boundaries[-1].turn, session.drifts) == (2, 0)
    assert turns[1].trace is not None
    for group in ([attempt], [before, attempt]):
        row = {r.attempt: token_row(r) for r in group_of(group).rows}[attempt.id]
        assert row.token_ids == turns[1].trace.prompt_ids + turns[1].trace.token_ids
    for each in (attempt, before):
        release(shared_store, each)


def test_environ_puts_our_docker_first(capture: Capture) -> None:
    session = capture.session()
    first = Path(session.environ["PATH"].split(os.pathsep)[0])
    assert [each.name for each in first.iterdir()] == ["docker"]
    session.close()
    # Whoever still runs is told so, and reaches no docker of the host.
    late = subprocess.run(
        ["docker", "exec", "x", "true"], env=session.environ, capture_output=True, text=True
    )
    assert late.returncode == 125
    assert "it is over" in late.stderr
