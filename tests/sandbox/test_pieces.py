"""The pieces that need no sandbox: state parsing, capture, the small shell, the init's binary."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sprout_env.errors import SandboxStartFailed
from sprout_env.sandbox import ShellState
from sprout_env.sandbox.memory.minishell import ShellSyntaxError, expand, parse
from sprout_env.sandbox.native import init_binary
from sprout_env.sandbox.native.output import Capture
from sprout_env.sandbox.native.shell import parse_state, variables

VALUES = st.binary(max_size=60).map(lambda data: data.replace(b"\0", b""))


def exported(shell: str, value: bytes) -> bytes:
    """Let a real shell say what it exports."""
    script = b"cd /; pwd; printf '\\000'; export -p; printf '\\000'"
    done = subprocess.run(
        [shell, "-c", script], env={b"VALUE": value}, capture_output=True, check=True
    )
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "dash", "sh"])
@settings(max_examples=60, deadline=None)
@given(value=VALUES)
def test_what_a_shell_exports_is_read_back(shell: str, value: bytes) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    state = parse_state(exported(shell, value))
    assert state is not None
    assert state.cwd == "/"
    assert state.env["VALUE"].encode("utf-8", "surrogateescape") == value
    assert b"VALUE=" + value in variables(state.env, state.cwd)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"/\n\0",
        b"/\n\0export A='x'\n",
        b"x\n\0\0",
        b"/\n\0garbage\n\0",
        b"/\n\0export A='x\n\0",
        b"/\n\0\0\0",
        b"/\n\0" + b"export A='" + b"x" * (1 << 20) + b"'\n\0",
    ],
)
def test_half_a_state_is_no_state(raw: bytes) -> None:
    assert parse_state(raw) is None


def test_a_state_by_hand() -> None:
    raw = b'/a b\n\n\0declare -x A\ndeclare -rx B="\\$x\\""\nexport C=$\'\\x41\\u00e9\\cA\\e\'\n\0'
    assert parse_state(raw) == ShellState("/a b\n", {"B": '$x"', "C": "Aé\x01\x1b"})


@given(st.lists(st.binary(max_size=40)), st.integers(0, 60))
def test_a_capture_keeps_head_and_tail(pieces: list[bytes], limit: int) -> None:
    capture = Capture(limit)
    for piece in pieces:
        capture.feed(piece)
    whole = b"".join(pieces)
    kept, dropped = capture.result()
    assert len(kept) + dropped == len(whole)
    if len(whole) <= limit:
        assert kept == whole
    else:
        head = limit - limit // 2
        assert kept == whole[:head] + whole[len(whole) - limit // 2 :]


def test_a_capture_of_much_stays_small() -> None:
    capture = Capture(1000)
    for _ in range(1000):
        capture.feed(b"x" * 10_000)
    assert len(capture._tail) < 100_000
    assert capture.result() == (b"x" * 1000, 9_999_000)


def test_words_and_operators_of_the_small_shell() -> None:
    one, two, three, four = parse("a 'b c' \"$D\" && e>f 2>&1 || g 1 & # not this\nh < i")
    assert one.words == ["a", "'b c'", '"$D"']
    assert (two.joined, three.joined, four.joined) == ("&&", "||", ";")
    assert [r.operator for r in two.redirections] == [">", "2>&1"]
    assert three.background
    assert not two.background
    assert four.redirections[0].target == "i"
    assert expand(r"""'$A'"$A ${A} \$A"\$A$A$?""", {"A": "1", "?": "2"}) == "$A1 1 $A$A12"
    assert parse("") == parse("\n# only\n;") == []


@pytest.mark.parametrize(
    "script",
    ["a | b", "echo $(x)", "echo `x`", "a &&", "&& a", "a >", "'open", "f() { :; }", "a << E"],
)
def test_what_the_small_shell_has_not_is_refused(script: str) -> None:
    with pytest.raises(ShellSyntaxError):
        parse(script)


def test_the_init_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "init.c"
    source.write_bytes(init_binary.SOURCE.read_bytes())
    monkeypatch.setattr(init_binary, "SOURCE", source)
    monkeypatch.setattr(init_binary, "_BUILT", tmp_path / "sprout-init")
    find = init_binary.init_binary.__wrapped__
    first = find()
    assert first.parent == tmp_path
    assert os.access(first, os.X_OK)
    made = first.stat().st_mtime_ns
    assert find() == first
    assert first.stat().st_mtime_ns == made
    source.write_bytes(source.read_bytes() + b"/* changed */\n")
    second = find()
    assert second != first
    assert not first.exists(), "the old one is cleared away"
    built = tmp_path / "sprout-init"
    second.rename(built)
    built.with_suffix(".source").write_text(second.name.rpartition("-")[2])
    assert find() == built, "what the package's build made is taken"


def test_without_a_compiler_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxStartFailed, match="apt install gcc"):
        init_binary.compile_init(tmp_path / "x")
    monkeypatch.undo()
    monkeypatch.setattr(init_binary, "SOURCE", tmp_path / "bad.c")
    (tmp_path / "bad.c").write_text("int main(void) { return nothing; }")
    with pytest.raises(SandboxStartFailed, match="nothing"):
        init_binary.compile_init(tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_started_by_hand_it_only_refuses() -> None:
    done = subprocess.run([str(init_binary.init_binary())], close_fds=True, check=False)
    assert done.returncode == 2
