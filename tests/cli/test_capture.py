"""``sprout capture``: agents that are set up well, badly, or stopped; the folders that they leave.

The model is a real HTTP server that plays a script; the agent is a program that knows only
``openai`` and ``docker``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sprout_env.actors.load import load_actor
from sprout_env.cli import failures
from sprout_env.disks import open_store
from sprout_env.errors import ActorError, ActorUnavailable, ConfigError
from sprout_env.records import group_of, token_row
from sprout_env.search import load_run
from sprout_env.snapshots import SnapshotTree
from tests.actors.chat_server import Server, serve
from tests.integrations import tiny
from tests.integrations.byte_model import Said, player

pytestmark = [pytest.mark.root, pytest.mark.timeout(400)]

ANSWERS: list[Said] = [("one", [tiny.A]), ("two", [tiny.B]), ("three", [tiny.B]), ("done", [])]

AGENT = """
import json, subprocess, sys, openai
print(json.dumps(sys.argv[1:]), flush=True)
client, messages = openai.OpenAI(max_retries=0), [{"role": "user", "content": sys.argv[1]}]
box = subprocess.check_output(["docker", "run", "-d", "any", "sleep", "2h"], text=True).strip()
while True:
    said = client.chat.completions.create(model="m", messages=messages).choices[0].message
    messages.append(said.model_dump(exclude_none=True))
    for call in said.tool_calls or ():
        command = json.loads(call.function.arguments)["command"]
        done = subprocess.run(["docker", "exec", box, "bash", "-c", command], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": done.stdout})
    if not said.tool_calls:
        break
"""

Capture = Callable[..., list[str]]


@pytest.fixture
def model() -> Iterator[Server]:
    with serve(player(lambda n: ANSWERS[n])) as server:
        yield server


@pytest.fixture
def line(model: Server, shared_store: Path, tmp_path: Path) -> Iterator[Capture]:
    """The words after ``sprout``; the store is as it was at the test's end."""
    tiny.write_log_task(tmp_path / "tasks")
    before = kept(shared_store)

    def words(
        *agent: str, out: str = "run", url: str = model.url, more: tuple[str, ...] = ()
    ) -> Any:
        return [
            "capture", "toy", "--path", str(tmp_path / "tasks"), "--base-url", url,
            "--store", str(shared_store), "--out", str(tmp_path / out), *more, "--", *agent,
        ]  # fmt: skip

    yield words
    assert kept(shared_store) == before


def kept(store: Path) -> set[str]:
    with closing(SnapshotTree(open_store(store))) as tree:
        return {each.id for each in tree.list()}


def run(words: list[str], code: int = 0) -> None:
    with pytest.raises(SystemExit) as ended:
        failures.run(["--debug", *words])
    assert ended.value.code in (code, None if code == 0 else code)


def test_an_agent_makes_a_run_that_shows_groups_and_goes_on(
    line: Capture,
    model: Server,
    shared_store: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    literal = '{"a": {"b": 1}, "c": "{{ x }} ${HOME}"}'
    places = ["{instruction}", "{task} in {cwd}", "{model_url}", "{attempt}", "{{task}}", literal]
    words = line(
        sys.executable, "-c", AGENT, *places,
        more=("--attempts", "3", "-j", "2", "--keep-snapshots", "--json"),
    )  # fmt: skip
    run(words)
    told = json.loads(capsys.readouterr().out)
    assert told["summary"]["resolve"] == {"count": 1, "of": 1}
    names = ("attempt", "reward", "turns", "calls", "with_ids", "drifted", "snapshots", "error")
    assert [tuple(row[name] for name in names) for row in told["attempts"]] == [
        (f"root {n}", 1.0, 4, 4, 4, 0, 5, "") for n in (1, 2, 3)
    ]
    for n in (1, 2, 3):
        log = json.loads((tmp_path / "run" / "agents" / f"log-root-{n}.log").read_text())
        assert [log[0].strip(), *log[3:]] == [
            tiny.INSTRUCTION, f"log-root-{n}", "{task}", literal
        ]  # fmt: skip
        assert log[1] == "log in /root"
        assert log[2].endswith("/v1")
    # The folder is a run's: what is for runs takes it.
    (item,) = load_run(tmp_path / "run").collections
    rows = [token_row(row) for row in group_of(item.attempts).rows]
    learned = bytes(t for t, m in zip(rows[0].token_ids, rows[0].loss_mask, strict=True) if m)
    assert len(rows) == 3
    assert learned.decode().split("<tool_call>")[0] == "one"
    snapshots = {b.snapshot for a in item.attempts for b in a.boundaries if b.snapshot}
    assert len(snapshots) == 15
    assert snapshots <= kept(shared_store)
    run(["show", str(tmp_path / "run"), "log", "--attempt", "root 2"])
    run(["runs", "list", str(tmp_path)])
    run(["runs", "replay", str(tmp_path / "run")])
    run(["view", str(tmp_path / "run")])
    said = capsys.readouterr().out
    told_again = "the same, but for what clocks told"
    for part in ("echo a >> /srv/log", f"agent/{Path(sys.executable).name}", told_again):
        assert part in said
    # Once more: all is there, and nobody is asked.
    asked, recorded = len(model.requests), (tmp_path / "run" / "attempts.jsonl").read_bytes()
    run(words)
    again = json.loads(capsys.readouterr().out)["attempts"]
    assert again == [row | {"recorded": True} for row in told["attempts"]]
    assert len(model.requests) == asked
    assert (tmp_path / "run" / "attempts.jsonl").read_bytes() == recorded
    with pytest.raises(ConfigError, match="holds a run of --attempts 3, not 4: give --attempts 3"):
        run([word if word != "3" else "4" for word in words])
    with pytest.raises(ActorError, match="acts by itself"):
        load_actor(load_run(tmp_path / "run").config.actor).complete([])
    with closing(SnapshotTree(open_store(shared_store))) as tree:
        tree.release_all(snapshots)


def test_what_cannot_begin_is_said_and_leaves_no_folder(line: Capture, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no program mimi"):
        run(line("mimi", "-t", "{instruction}"))
    with pytest.raises(ConfigError, match=r"\{prompt\} is no placeholder; there are \{instr"):
        run(line("true", "{prompt}"))
    with pytest.raises(ActorUnavailable, match="cannot be reached .*refused"):
        run(line("true", url="http://127.0.0.1:9/v1"))
    with pytest.raises(ConfigError, match="is no address of a server"):
        run(line("true", url="http://["))
    with pytest.raises(ConfigError, match="no address of a server; write http://localhost:1/v1"):
        run(line("true", url="localhost:1/v1"))
    assert not (tmp_path / "run").exists()


def test_an_agent_s_own_flags_are_not_ours(
    line: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = line("mimi", "-h", "config", "--debug")
    at = words.index("--base-url")
    (tmp_path / "sprout.toml").write_text(f'[capture]\nbase-url = "{words[at + 1]}"\n')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="no program mimi"):
        run([*words[:at], *words[at + 2 :]])


def test_an_agent_that_gets_no_answer_ends_the_run_with_its_last_words(
    line: Capture, model: Server, tmp_path: Path
) -> None:
    code = "import sys; sys.exit('no such option: --frob')"
    with pytest.raises(ActorError, match="ended with 1 before .* no such option: --frob"):
        run(line(sys.executable, "-c", code, more=("--attempts", "2")))
    with pytest.raises(
        ActorError,
        match="ended with 0 .*never asked the proxy; is OPENAI_BASE_URL used.*said nothing",
    ):
        run(line("true", out="second"))
    # A model that the server does not have: its own words.
    model.script = lambda body, n: (404, {"error": {"message": "no model m here"}}, {})
    with pytest.raises(ActorError, match="model's server: .*no model m here"):
        run(line(sys.executable, "-c", AGENT, "go", out="third"))
    # Nothing of it counts: nobody failed.
    assert not load_run(tmp_path / "third").collections


def test_attempts_that_the_model_s_server_lost_are_tried_again(
    line: Capture, model: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, asked = model.script, iter(range(100))

    def failing(body: Any, number: int) -> Any:
        return plain(body, number) if next(asked) < 6 else (503, {"error": {"message": "x"}}, {})

    model.script = failing
    words = line(sys.executable, "-c", AGENT, "go", more=("--attempts", "2", "-j", "1"))
    run(words, code=9)
    said = capsys.readouterr()
    assert "root 2: ! not judged: the model's server answered 503" in said.out
    assert "lost: 1 of 2 attempts" in said.err
    model.script = plain
    run(words)
    said = capsys.readouterr()
    assert "root 1 (recorded): ✓ passed" in said.out
    assert "root 2: ✓ passed" in said.out
    # What the lost one cost stays on the bill.
    (item,) = load_run(tmp_path / "run").collections
    assert [attempt.usage.calls for attempt in item.attempts] == [4, 6]


def test_an_agent_that_crashes_is_lost_and_tried_again(
    line: Capture, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    crash = """
import os
if not os.path.exists(sys.argv[2]):
    open(sys.argv[2], "w").close()
    sys.exit("no disk left here")
"""
    words = line(sys.executable, "-c", AGENT + crash, "go", str(tmp_path / "once"))
    run(words, code=9)
    said = capsys.readouterr()
    assert "! not judged: the agent ended with 1; it said: " in said.out
    assert "no disk left here" in said.out
    assert "lost: 1 of 1" in said.err
    run(words)
    assert "root 1: ✓ passed" in capsys.readouterr().out
    run(words)
    assert "root 1 (recorded): ✓ passed" in capsys.readouterr().out
    # A code that is an opinion of the agent's, hidden as the docs say.
    hidden = ("sh", "-c", '"$@" || true', "x")
    again = (sys.executable, "-c", AGENT + crash, "go", str(tmp_path / "twice"))
    run(line(*hidden, *again, out="second"))
    assert "root 1: ✓ passed" in capsys.readouterr().out


def test_an_agent_that_works_elsewhere_is_warned_of(
    line: Capture, capsys: pytest.CaptureFixture[str]
) -> None:
    code = AGENT.replace('["docker", "exec", box, "bash", "-c", command]', '["true"]')
    run(line(sys.executable, "-c", code, "go", more=("--json",)))
    said = capsys.readouterr()
    (row,) = json.loads(said.out)["attempts"]
    assert (row["turns"], row["reward"]) == (4, 0.0)
    assert row["warning"].startswith("ran no command in the sandbox")
    assert "warning: log, root 1 ran no command in the sandbox" in said.err


def test_a_limit_ends_the_agent_and_judges(
    line: Capture, model: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    hangs = f"import time, subprocess\n{AGENT}\nsubprocess.run(['sleep', '600'])"
    run(line(sys.executable, "-c", hangs, "go", more=("--timeout", "8", "--json")))
    (row,) = json.loads(capsys.readouterr().out)["attempts"]
    assert (row["status"], row["reward"], row["turns"]) == ("out_of_time", 1.0, 4)
    run(line(sys.executable, "-c", AGENT, "go", out="two", more=("--max-turns", "2", "--json")))
    (row,) = json.loads(capsys.readouterr().out)["attempts"]
    assert (row["status"], row["reward"], row["turns"]) == ("out_of_turns", 0.0, 2)
    assert row["error"].startswith("the agent ended with")


@pytest.mark.parametrize("where", ["command", "agent"])
def test_ctrl_c_ends_agents_and_sandboxes_and_the_run_goes_on(
    line: Capture, model: Server, tmp_path: Path, where: str
) -> None:
    """The second attempt hangs: in a command of its sandbox, or beside it with a child."""
    naps = "docker exec x sleep 31536" if where == "command" else "sleep 31536"
    code = f"""
import os, subprocess
if sys.argv[2].endswith("-2") and not os.path.exists(sys.argv[3]):
    open(sys.argv[3], "w").close()
    subprocess.run({naps.split()!r})
"""
    agent = AGENT.replace("    messages.append(said", "    MORE\n    messages.append(said", 1)
    agent = agent.replace("    MORE\n", "".join(f"    {x}\n" for x in code.strip().splitlines()))
    mark = tmp_path / "reached"
    words = line(
        sys.executable, "-c", agent, "go", "{attempt}", str(mark),
        more=("--attempts", "2", "-j", "1"),
    )  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-m", "sprout_env", *words], stderr=subprocess.PIPE, text=True
    ) as child:
        begun = time.monotonic()
        while not (mark.exists() and naps_now()):
            assert time.monotonic() - begun < 60
            time.sleep(0.05)
        begun = time.monotonic()
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=60)
    assert (child.returncode, time.monotonic() - begun < 15) == (130, True), said
    assert said.splitlines()[-1].startswith("error: stopped")
    assert "Traceback" not in said
    assert not naps_now()
    assert not processes(str(mark))
    asked = len(model.requests)
    run(words)
    # The first is recorded; only the second has asked again.
    assert len(model.requests) - asked == 4


def naps_now() -> list[int]:
    return processes("sleep\x0031536")


def processes(words: str) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if words in (entry / "cmdline").read_bytes().decode(errors="replace"):
                found.append(int(entry.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]
