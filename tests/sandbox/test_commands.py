"""Real commands in real sandboxes: ends, trees, users, limits."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from sprout_env.disks import Base, init_store, open_store
from sprout_env.errors import SandboxError, SandboxLost, SandboxStartFailed
from sprout_env.sandbox import SandboxConfig, ShellState
from sprout_env.sandbox.native.driver import NativeSandbox
from tests.sandbox.conftest import StartSandbox, run

pytestmark = pytest.mark.root


def wait_for(condition: object, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


# Ends.


def test_a_signal_is_128_and_its_number(sandbox: NativeSandbox) -> None:
    result = sandbox.run("kill -9 $$", timeout_s=20)
    assert (result.exit_code, result.state) == (137, None)
    result = sandbox.run("kill -TERM $$", timeout_s=20)
    assert result.exit_code == 143


def test_an_exit_trap_of_the_command_wins(sandbox: NativeSandbox) -> None:
    result = sandbox.run("trap 'echo bye' EXIT; cd /tmp", timeout_s=20)
    assert result.stdout == b"bye\n"
    assert result.state is None


@pytest.mark.parametrize("options", ["set -e; false", "set -eu; echo $NOT_THERE", "set -x; false"])
def test_shell_options_do_not_disturb_the_state(sandbox: NativeSandbox, options: str) -> None:
    result = sandbox.run(f"cd /usr; {options}", timeout_s=20)
    assert result.exit_code != 0
    assert result.state is not None
    assert result.state.cwd == "/usr"
    assert b"printf" not in result.stderr, "our own work is not traced"
    assert b"export -p" not in result.stderr


def test_a_file_of_the_agent_on_our_descriptor_is_left_alone(sandbox: NativeSandbox) -> None:
    result = sandbox.run("exec 97>/mine; echo mine >&97", timeout_s=20)
    assert result.state is None
    assert sandbox.read_file("/mine") == b"mine\n"


def test_a_state_that_is_too_large_is_lost_and_the_next_command_runs(
    sandbox: NativeSandbox,
) -> None:
    big = "export BIG=$(head -c {} /dev/zero | tr '\\0' x)"
    assert sandbox.run(big.format(100_000), timeout_s=20).state is not None
    assert sandbox.run(big.format(140_000), timeout_s=20).state is None
    many = "; ".join(f"export V{n}=$(head -c 100000 /dev/zero | tr '\\0' x)" for n in range(12))
    assert sandbox.run(many, timeout_s=20).state is None
    assert run(sandbox, "echo on") == "on\n"


def test_odd_values_survive(sandbox: NativeSandbox) -> None:
    script = r"""export A=$'a\nb\t\x01\xff"\'`$(x)' B='\n$HOME "q"' C= D='  ' E='ünï'; f() { :; }
    export -f f; declare -ix F=7; declare -ax G=(1 2); cd /usr/bin/.."""
    state = sandbox.run(script, timeout_s=20).state
    assert state is not None
    assert state.env["A"].encode("utf-8", "surrogateescape") == b"a\nb\t\x01\xff\"'`$(x)"
    assert (state.env["B"], state.env["C"], state.env["D"]) == ('\\n$HOME "q"', "", "  ")
    assert (state.env["E"], state.env["F"]) == ("ünï", "7")
    assert not {"G", "_", "SHLVL", "PWD"} & state.env.keys()
    again = sandbox.run("true", timeout_s=20, state=state).state
    assert again is not None
    assert again == state, "living on changes nothing"


def test_links_in_the_working_directory_are_kept(sandbox: NativeSandbox) -> None:
    state = sandbox.run("mkdir /real; ln -s /real /link; cd /link", timeout_s=20).state
    assert state is not None
    assert state.cwd == "/link"
    assert run(sandbox, "pwd; pwd -P", state=state) == "/link\n/real\n"


def test_without_bash_there_is_sh(sandbox: NativeSandbox) -> None:
    run(sandbox, "rm /bin/bash /usr/bin/bash 2>/dev/null; true")
    result = sandbox.run('cd /usr; export A="it\'s"; echo $0; exit 3', timeout_s=20)
    assert result.exit_code == 3
    assert result.stdout == b"sh\n"
    assert result.state is not None
    assert (result.state.cwd, result.state.env["A"]) == ("/usr", "it's")
    assert sandbox.run("exec true", timeout_s=20).state is None


def test_a_command_may_be_megabytes_long(sandbox: NativeSandbox) -> None:
    text = "x" * 3_000_000
    assert run(sandbox, f"cat > /big <<'END'\n{text}\nEND\nwc -c < /big").strip() == "3000001"
    assert run(sandbox, "echo a\0b") == "ab\n", "as bash: NUL is dropped"


def test_the_agent_finds_only_its_own_processes_by_name(sandbox: NativeSandbox) -> None:
    assert run(sandbox, "pkill -f marker-in-the-script; echo $?") == "1\n"


# Output.


def test_endless_output_is_cut_and_ended(start_sandbox: StartSandbox) -> None:
    sandbox = start_sandbox(output_bytes=10_000)
    started = time.monotonic()
    result = sandbox.run("yes 0123456", timeout_s=2)
    assert time.monotonic() - started < 20
    assert result.timed_out
    assert len(result.stdout) == 10_000
    assert result.stdout_dropped > 1_000_000
    assert (len(result.stdout) + result.stdout_dropped) % 4096 == 0
    assert run(sandbox, "echo on") == "on\n"


def test_binary_output_is_kept(sandbox: NativeSandbox) -> None:
    result = sandbox.run(r"printf '\000\377\376\n'; printf '\200' >&2", timeout_s=20)
    assert (result.stdout, result.stderr) == (b"\0\xff\xfe\n", b"\x80")


@pytest.mark.parametrize(
    "command",
    [
        "sleep 100 &",
        "sleep 100 > /dev/null 2>&1 &",
        "(setsid sleep 100 &) ",
        "nohup sleep 100 & disown; echo done",
        "exec 5>&1; sleep 100 5>&1 &",
    ],
)
def test_what_is_left_behind_never_delays(sandbox: NativeSandbox, command: str) -> None:
    started = time.monotonic()
    result = sandbox.run(command, timeout_s=30)
    assert time.monotonic() - started < 3
    assert result.exit_code == 0
    assert result.state is not None
    wait_for(lambda: [p.argv for p in sandbox.processes()] == [("sleep", "100")])


def test_a_server_that_logs_to_its_old_output_lives_on(sandbox: NativeSandbox) -> None:
    script = "while printf '%01000d' 1; do echo -n x >> /count; done & sleep 0.1; echo started >&2"
    assert sandbox.run(script, timeout_s=20).stderr == b"started\n"

    def count() -> int:
        return len(sandbox.read_file("/count"))

    before = count()
    # Far more than a pipe holds, so that neither a full pipe nor SIGPIPE stopped it.
    wait_for(lambda: count() > before + 500)
    assert len(sandbox.processes()) == 1


# Whole trees.

_DAEMON = """python3 -c '
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            open("/beat", "a").write("x")
            time.sleep(0.01)
    os._exit(0)
'
"""


def test_a_time_out_ends_daemons_of_the_command_too(sandbox: NativeSandbox) -> None:
    """Bug report 19: no write after the kill."""
    result = sandbox.run(_DAEMON + "sleep 100", timeout_s=1.0)
    assert result.timed_out
    beats = len(sandbox.read_file("/beat"))
    assert beats > 3
    assert sandbox.processes() == ()
    time.sleep(0.2)
    assert len(sandbox.read_file("/beat")) == beats


def test_a_time_out_spares_what_earlier_commands_left(sandbox: NativeSandbox) -> None:
    run(sandbox, "sleep 1000 &")
    run(sandbox, _DAEMON)
    result = sandbox.run("sleep 3000 & setsid sleep 4000", timeout_s=0.3)
    assert result.timed_out
    assert len(sandbox.processes()) == 2
    beats = len(sandbox.read_file("/beat"))
    wait_for(lambda: len(sandbox.read_file("/beat")) > beats)


def test_a_fork_bomb_stays_in_its_limit_and_dies_at_the_time_out(
    start_sandbox: StartSandbox,
) -> None:
    sandbox = start_sandbox(pids=60)
    result = sandbox.run(
        "python3 -c 'import os\nwhile True:\n try: os.fork()\n except OSError: os.sched_yield()'",
        timeout_s=1.5,
    )
    assert result.timed_out
    assert sandbox.processes() == ()
    counted = run(
        sandbox,
        """python3 -c '
import os, signal
made = []
try:
    while (pid := os.fork()):
        made.append(pid)
    signal.pause()
except OSError:
    for pid in made: os.kill(pid, 9)
print(len(made))'""",
    )
    assert 40 < int(counted) < 60


def test_orphans_are_reaped(sandbox: NativeSandbox) -> None:
    run(sandbox, "for i in $(seq 50); do (sleep 0.05 &) ; done")
    wait_for(lambda: sandbox.processes() == ())
    assert run(sandbox, "ls -d /proc/[0-9]* | wc -l") in ("3\n", "4\n"), "no zombies"


def test_too_little_memory_ends_a_process_and_is_reported(start_sandbox: StartSandbox) -> None:
    sandbox = start_sandbox(memory_mb=64)
    result = sandbox.run("python3 -c 'x = bytearray(1 << 28)'; echo still here", timeout_s=30)
    assert result.oom_killed
    assert result.stdout == b"still here\n"
    whole = sandbox.run("exec python3 -c 'x = bytearray(1 << 28)'", timeout_s=30)
    assert (whole.exit_code, whole.oom_killed) == (137, True)
    calm = sandbox.run("echo calm", timeout_s=20)
    assert not calm.oom_killed
    assert sandbox.run("head -c 200M /dev/zero > /dev/shm/x", timeout_s=30).exit_code != 0


def test_cpu_is_limited(start_sandbox: StartSandbox) -> None:
    sandbox = start_sandbox(cpus=0.2)
    used = run(sandbox, "timeout 1 sh -c 'while :; do :; done'; times | tail -1")
    minutes, seconds = used.split()[0].removesuffix("s").split("m")
    assert 60 * int(minutes) + float(seconds) < 0.6


def test_limits_of_files_and_shared_memory(start_sandbox: StartSandbox) -> None:
    sandbox = start_sandbox(open_files=300, shm_mb=5)
    assert run(sandbox, "ulimit -n; ulimit -Hn; ulimit -c") == "300\n300\n0\n"
    assert "5.0M" in run(sandbox, "df -h /dev/shm")


# Users.


def test_users_come_from_the_disk(sandbox: NativeSandbox) -> None:
    run(
        sandbox,
        "echo 'dev:x:1234:1300::/home/dev:/bin/sh' >> /etc/passwd;"
        "printf 'devs:x:1300:\\nextra:x:1301:root,dev\\n' >> /etc/group;"
        "mkdir /home/dev; chown 1234:1300 /home/dev",
    )
    shows = "id -u; id -g; id -G; echo $HOME $USER; cd; touch mine; stat -c %u mine"
    assert run(sandbox, shows, user="dev") == "1234\n1300\n1300 1301\n/home/dev dev\n1234\n"
    assert run(sandbox, "id -u; id -g", user="1234:1301") == "1234\n1301\n"
    assert run(sandbox, "id -u; id -g", user="dev:extra") == "1234\n1301\n"
    assert run(sandbox, "id -u; echo $HOME", user="4321") == "4321\n/\n"
    assert run(sandbox, "id -G", user="root") == "0\n"
    result = sandbox.run("id", timeout_s=20, user="nobody-here")
    assert result.exit_code == 126
    assert b"nobody-here" in result.stderr
    denied = sandbox.run("echo x >> /etc/passwd", timeout_s=20, user="dev")
    assert denied.exit_code != 0


def test_the_configured_user(start_sandbox: StartSandbox) -> None:
    sandbox = start_sandbox(user="nobody", workdir="/srv/w")
    assert run(sandbox, "id -un; pwd; echo $HOME") == "nobody\n/srv/w\n/nonexistent\n"
    assert run(sandbox, "id -un; echo $HOME", user="root") == "root\n/root\n"


def test_sudo_and_su_work(sandbox: NativeSandbox) -> None:
    run(
        sandbox,
        "echo 'nobody ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/n; chmod 440 /etc/sudoers.d/n",
    )
    assert run(sandbox, "sudo id -u", user="nobody") == "0\n"
    assert (
        run(sandbox, "sudo -u nobody id -un; su nobody -s /bin/sh -c 'id -un'")
        == "nobody\nnobody\n"
    )


def test_no_new_privileges_is_an_option(start_sandbox: StartSandbox) -> None:
    sandbox = start_sandbox(no_new_privileges=True)
    assert run(sandbox, "grep NoNewPrivs /proc/self/status").split()[1] == "1"
    assert sandbox.run("sudo id -u", timeout_s=20, user="nobody").exit_code != 0


# Looking, pausing.


def test_listening_sockets_are_named(sandbox: NativeSandbox) -> None:
    run(
        sandbox,
        """cat > /s.py <<'END'
import socket, time
t = socket.create_server(("127.0.0.1", 8000))
t6 = socket.create_server(("::1", 8001), family=socket.AF_INET6)
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(("127.0.0.1", 53))
x = socket.socket(socket.AF_UNIX); x.bind("/run/x.sock"); x.listen()
open("/ready", "w").close(); time.sleep(100)
END
        cd /usr; python3 /s.py & while ! [ -e /ready ]; do sleep 0.01; done""",
    )
    (process,) = sandbox.processes()
    assert process.argv == ("python3", "/s.py")
    assert process.cwd == "/usr"
    assert process.listening == ("tcp/8000", "tcp/8001", "udp/53", "unix/run/x.sock")
    assert process.parent == 1


def test_a_paused_sandbox_stands_still(sandbox: NativeSandbox) -> None:
    run(sandbox, _DAEMON)
    wait_for(lambda: len(sandbox.read_file("/beat")) > 3)
    for _ in range(20):
        sandbox.pause()
        beats = len(sandbox.read_file("/beat"))
        time.sleep(0.03)
        assert len(sandbox.read_file("/beat")) == beats
        sandbox.resume()
        wait_for(lambda beats=beats: len(sandbox.read_file("/beat")) > beats)


def test_pausing_works_beside_a_running_command(sandbox: NativeSandbox) -> None:
    results = []
    thread = threading.Thread(
        target=lambda: results.append(
            sandbox.run("for i in 1 2 3 4; do echo $i; sleep 0.1; done", timeout_s=30)
        )
    )
    thread.start()
    for _ in range(5):
        sandbox.pause()
        time.sleep(0.02)
        sandbox.resume()
    thread.join()
    assert results[0].stdout == b"1\n2\n3\n4\n"


def test_a_closed_sandbox_may_have_been_paused(sandbox: NativeSandbox) -> None:
    run(sandbox, "sleep 1000 &")
    sandbox.pause()
    started = time.monotonic()
    sandbox.close()
    assert time.monotonic() - started < 5


def test_an_interrupted_command_is_ended(sandbox: NativeSandbox) -> None:
    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(0.3, signal.pthread_kill, [main, signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        sandbox.run("sleep 1000", timeout_s=60)
    assert sandbox.processes() == ()
    assert run(sandbox, "echo on") == "on\n"


# Start.


def test_a_root_that_cannot_be_entered_is_a_named_error(tmp_path: Path) -> None:
    bad = tmp_path / "root"
    bad.mkdir()
    (bad / "proc").symlink_to("/etc")
    init_store(tmp_path / "store", kind="directory", reserve_bytes=1 << 26)
    store = open_store(tmp_path / "store", kind="directory")
    disk = store.create(store.family("t", Base("c" * 64, (bad,))))
    try:
        with pytest.raises(SandboxStartFailed, match="proc"):
            NativeSandbox(store, disk, SandboxConfig())
    finally:
        store.close()


def test_the_start_directory_falls_back(sandbox: NativeSandbox) -> None:
    result = sandbox.run("pwd", timeout_s=20, state=ShellState("/usr/lib/gone/away", {}))
    assert result.stdout == b"/usr/lib\n"
    assert b"/usr/lib/gone/away" in result.stderr


def test_a_command_that_cannot_be_limited_is_not_run(
    start_sandbox: StartSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = start_sandbox(), start_sandbox()
    run(one, "true")
    assert one._init.cgroups is not None
    assert one._init.cgroups._command is not None
    one._init.cgroups._command.rmdir()
    with pytest.raises(SandboxLost, match="cgroups are gone"):
        one.run("touch /ran", timeout_s=20)
    with open("/dev/null") as not_writable:
        monkeypatch.setattr(two._init.cgroups, "begin_command", lambda: [not_writable.fileno()])
        with pytest.raises(SandboxLost, match="join the cgroups"):
            two.run("touch /ran", timeout_s=20)


def test_it_is_lost_when_its_init_dies(sandbox: NativeSandbox) -> None:
    threading.Timer(0.3, os.kill, [sandbox._init.pid, signal.SIGKILL]).start()
    with pytest.raises(SandboxLost, match="signal 9"):
        sandbox.run("sleep 100", timeout_s=60)
    with pytest.raises(SandboxLost, match="signal 9"):
        sandbox.run("true", timeout_s=5)
    with pytest.raises(SandboxError):
        sandbox.processes()
    sandbox.close()
