"""What every sandbox must do, real or pretended."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from sprout_env.disks import Base, Disk, DiskStore, init_store, open_store
from sprout_env.disks.opening import StoreKind
from sprout_env.errors import SandboxError, SandboxLost
from sprout_env.sandbox import Sandbox, SandboxConfig, ShellState, start

KINDS = ["memory", pytest.param("native", marks=pytest.mark.root)]


@pytest.fixture(scope="module", params=KINDS)
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DiskStore]:
    kind = "memory" if request.param == "memory" else "directory"
    path = tmp_path_factory.mktemp("sandboxes") / "store"
    if kind != "memory":
        init_store(path, kind=cast(StoreKind, kind), reserve_bytes=1 << 26)
    opened = open_store(path, kind=cast(StoreKind, kind))
    yield opened
    opened.close()


@pytest.fixture
def disk(store: DiskStore, request: pytest.FixtureRequest) -> Iterator[Disk]:
    layers = () if store.kind == "memory" else (request.getfixturevalue("debian_base"),)
    disk = store.create(store.family("sandboxes", Base("b" * 64, layers)))
    yield disk
    store.drop(disk.id)


@pytest.fixture
def sandbox(store: DiskStore, disk: Disk) -> Iterator[Sandbox]:
    started = start(store, disk, SandboxConfig(workdir="/srv/work", output_bytes=1000), fresh=True)
    yield started
    started.close()


def run(sandbox: Sandbox, command: str, state: ShellState | None = None) -> str:
    result = sandbox.run(command, timeout_s=20, state=state)
    assert result.exit_code == 0, result
    return result.stdout.decode()


def test_it_is_a_sandbox(sandbox: Sandbox) -> None:
    assert isinstance(sandbox, Sandbox)


def test_output_error_and_exit_code_are_apart(sandbox: Sandbox) -> None:
    result = sandbox.run("echo out; cat /missing; echo more; exit 7", timeout_s=20)
    assert result.stdout == b"out\nmore\n"
    assert b"No such file" in result.stderr
    assert result.exit_code == 7
    assert not result.timed_out
    assert result.duration_s < 20


def test_its_only_member_is_itself(sandbox: Sandbox) -> None:
    assert dict(sandbox.members) == {"main": sandbox}


def test_merged_output_keeps_the_order_of_writing(sandbox: Sandbox) -> None:
    script = "echo one; ls /missing; echo three; no-such-command; echo five"
    done = sandbox.run(script, timeout_s=10, merge_stderr=True)
    lines = done.stdout.decode().splitlines()
    assert lines[::2] == ["one", "three", "five"]
    assert "/missing" in lines[1]
    assert "no-such-command" in lines[3]
    assert (done.stderr, done.stderr_dropped) == (b"", 0)
    assert done.state is not None


def test_an_unknown_command_is_127(sandbox: Sandbox) -> None:
    result = sandbox.run("no-such-command", timeout_s=20)
    assert result.exit_code == 127
    assert b"not found" in result.stderr


def test_a_syntax_error_is_an_observation(sandbox: Sandbox) -> None:
    result = sandbox.run("echo x &&", timeout_s=20)
    assert result.exit_code == 2
    assert result.stderr


def test_a_fresh_disk_has_its_files_of_etc_and_its_working_directory(sandbox: Sandbox) -> None:
    assert run(sandbox, "pwd") == "/srv/work\n"
    assert "sandbox" in run(sandbox, "cat /etc/hosts")
    assert run(sandbox, "cat /etc/hostname") == "sandbox\n"
    assert b"nameserver" not in sandbox.read_file("/etc/resolv.conf")


def test_directory_and_variables_go_from_turn_to_turn(sandbox: Sandbox) -> None:
    first = sandbox.run(
        "mkdir -p /opt/a && cd /opt/a; export ONE='1 \"x\" $y' TWO=2; LOCAL=3", timeout_s=20
    )
    assert first.state is not None
    assert first.state.cwd == "/opt/a"
    assert first.state.env["ONE"] == '1 "x" $y'
    assert "LOCAL" not in first.state.env
    second = sandbox.run('pwd; echo "$ONE-$TWO-$LOCAL"; unset TWO', timeout_s=20, state=first.state)
    assert second.stdout == b'/opt/a\n1 "x" $y-2-\n'
    assert second.state is not None
    assert "TWO" not in second.state.env
    third = sandbox.run("cd - && pwd; unset HOME", timeout_s=20, state=second.state)
    assert third.stdout.splitlines()[-1] == b"/srv/work"
    assert third.state is not None
    assert run(sandbox, 'echo "[$HOME]"', third.state) == "[]\n", "an unset variable stays unset"


def test_the_first_state_is_that_of_the_configuration(store: DiskStore, disk: Disk) -> None:
    config = SandboxConfig(env={"GREETING": "hello", "PATH": "/bin:/usr/bin"})
    sandbox = start(store, disk, config)
    try:
        assert run(sandbox, 'echo "$GREETING $HOME $PATH"') == "hello /root /bin:/usr/bin\n"
    finally:
        sandbox.close()


def test_a_vanished_directory_is_no_failure(sandbox: Sandbox) -> None:
    state = sandbox.run("mkdir /gone; cd /gone; rm -r /gone; true", timeout_s=20).state
    again = sandbox.run("pwd", timeout_s=20, state=state or ShellState("/gone"))
    assert again.exit_code == 0
    assert again.stdout == b"/\n"
    assert b"/gone" in again.stderr


def test_a_command_that_execs_leaves_no_state(sandbox: Sandbox) -> None:
    result = sandbox.run("exec false", timeout_s=20)
    assert result.exit_code == 1
    assert result.state is None


def test_a_time_out_is_124(sandbox: Sandbox) -> None:
    started = time.monotonic()
    result = sandbox.run("echo before; sleep 100; echo after", timeout_s=0.3)
    assert time.monotonic() - started < 10
    assert (result.exit_code, result.timed_out, result.state) == (124, True, None)
    assert result.stdout == b"before\n"
    assert run(sandbox, "echo alive") == "alive\n"


def test_standard_input(sandbox: Sandbox) -> None:
    assert sandbox.run("cat", timeout_s=20, stdin=b"\0\xff in").stdout == b"\0\xff in"
    assert sandbox.run("cat", timeout_s=20).stdout == b""


def test_long_output_keeps_head_and_tail(sandbox: Sandbox) -> None:
    sandbox.run("cat > /long", timeout_s=20, stdin=b"H" * 600 + b"M" * 5000 + b"T" * 600)
    result = sandbox.run("cat /long", timeout_s=20)
    assert result.stdout == b"H" * 500 + b"T" * 500
    assert result.stdout_dropped == 5200
    assert result.stderr_dropped == 0


def test_a_background_process_lives_on_and_is_listed(sandbox: Sandbox) -> None:
    started = time.monotonic()
    result = sandbox.run("sleep 1000 &", timeout_s=20)
    assert result.exit_code == 0
    assert time.monotonic() - started < 5
    assert not result.timed_out
    deadline = time.monotonic() + 10
    while [p.argv for p in sandbox.processes()] != [("sleep", "1000")]:
        assert time.monotonic() < deadline  # the shell may end before its child has become it
    (process,) = sandbox.processes()
    assert process.pid > 1
    assert process.cwd == "/srv/work"
    run(sandbox, "true")
    assert [p.pid for p in sandbox.processes()] == [process.pid]
    run(sandbox, "sleep 2000 &")
    assert len(sandbox.processes()) == 2
    sandbox.kill_all(keep=(process.pid,))
    assert [p.pid for p in sandbox.processes()] == [process.pid]
    sandbox.kill_all()
    assert sandbox.processes() == ()
    assert run(sandbox, "echo alive") == "alive\n"


def test_pause_and_resume(sandbox: Sandbox) -> None:
    run(sandbox, "sleep 1000 &")
    sandbox.pause()
    with pytest.raises(SandboxError, match="paused"):
        sandbox.run("true", timeout_s=5)
    assert len(sandbox.processes()) == 1, "looking works while it is paused"
    assert sandbox.read_file("/etc/hostname") == b"sandbox\n"
    sandbox.kill_all()
    assert sandbox.processes() == ()
    sandbox.resume()
    sandbox.resume()
    assert run(sandbox, "echo on") == "on\n"


def test_files_in_and_out(sandbox: Sandbox, tmp_path: Path) -> None:
    source = tmp_path / "tests"
    (source / "deep").mkdir(parents=True)
    (source / "run.sh").write_bytes(b"\x00bytes\xff")
    (source / "run.sh").chmod(0o755)
    (source / "deep" / "link").symlink_to("../run.sh")
    sandbox.put(source, "/put/here")
    assert sandbox.read_file("/put/here/run.sh") == b"\x00bytes\xff"
    shown = sandbox.run("cat /put/here/deep/link", timeout_s=20)
    assert shown.stdout == b"\x00bytes\xff"
    sandbox.get("/put/here", tmp_path / "back")
    assert (tmp_path / "back/run.sh").read_bytes() == b"\x00bytes\xff"
    assert (tmp_path / "back/run.sh").stat().st_mode & 0o111
    assert (tmp_path / "back/deep/link").readlink() == Path("../run.sh")
    sandbox.put(source / "run.sh", "/put/here")
    assert sandbox.read_file("/put/here") == b"\x00bytes\xff", "a file in the folder's place"
    sandbox.get("/put/here", tmp_path / "single")
    assert (tmp_path / "single").read_bytes() == b"\x00bytes\xff"


def test_no_link_is_followed_by_read_file(sandbox: Sandbox) -> None:
    run(sandbox, "mkdir /d; echo secret > /d/f; ln -s /d/f /link; ln -s /d /dlink")
    assert sandbox.read_file("/d/f") == b"secret\n"
    for path in ("/link", "/dlink/f"):
        with pytest.raises(SandboxError, match="link"):
            sandbox.read_file(path)
    with pytest.raises(FileNotFoundError):
        sandbox.read_file("/d/missing")
    with pytest.raises(SandboxError):
        sandbox.read_file("/d")
    with pytest.raises(SandboxError, match="more than 3"):
        sandbox.read_file("/d/f", max_bytes=3)
    with pytest.raises(FileNotFoundError):
        sandbox.read_file("/d/f/below")


def test_put_replaces_a_planted_link(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("ours")
    run(sandbox, "mkdir /real; echo theirs > /real/target; ln -s /real/target /planted")
    sandbox.put(tmp_path / "f", "/planted")
    assert sandbox.read_file("/planted") == b"ours"
    assert sandbox.read_file("/real/target") == b"theirs\n"
    for target in ("relative", "/", "/a/../b"):
        with pytest.raises(SandboxError):
            sandbox.put(tmp_path / "f", target)
    with pytest.raises(FileNotFoundError):
        sandbox.put(tmp_path / "missing", "/x")


def test_a_frozen_disk_cannot_be_written(store: DiskStore, disk: Disk) -> None:
    first = start(store, disk, SandboxConfig(), fresh=True)
    run(first, "echo kept > /file")
    frozen = store.freeze(disk, "ab" * 8, {})
    first.close()
    sandbox = start(store, frozen, SandboxConfig())
    try:
        assert run(sandbox, "cat /file") == "kept\n"
        result = sandbox.run("echo x > /file", timeout_s=20)
        assert result.exit_code != 0
        assert b"Read-only" in result.stderr
    finally:
        sandbox.close()
        store.drop(frozen.id)


def test_closing_is_idempotent_and_final(store: DiskStore, disk: Disk) -> None:
    sandbox = start(store, disk, SandboxConfig(), fresh=True)
    run(sandbox, "sleep 1000 &")
    sandbox.close()
    sandbox.close()
    for ask in (
        lambda: sandbox.run("true", timeout_s=5),
        lambda: sandbox.read_file("/etc/hostname"),
        sandbox.processes,
        sandbox.pause,
        sandbox.kill_all,
    ):
        with pytest.raises(SandboxLost, match="closed"):
            ask()
    sandbox.resume()


def test_closing_ends_a_running_command(store: DiskStore, disk: Disk) -> None:
    """Late output of a closed sandbox reaches nobody."""
    sandbox = start(store, disk, SandboxConfig(), fresh=True)
    caught: list[BaseException] = []

    def command() -> None:
        try:
            sandbox.run("echo early; sleep 60; echo late", timeout_s=60)
        except SandboxLost as error:
            caught.append(error)

    thread = threading.Thread(target=command)
    thread.start()
    time.sleep(0.3)
    sandbox.close()
    thread.join(10)
    assert not thread.is_alive()
    assert len(caught) == 1
