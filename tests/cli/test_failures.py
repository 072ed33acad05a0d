"""Errors are one clear line on standard error and a documented exit code."""

from __future__ import annotations

import errno
import inspect
import re
import subprocess
import sys

import pytest

from sprout_env import errors
from sprout_env.cli import failures
from sprout_env.errors import SproutError

LEAVES = [
    c
    for _, c in inspect.getmembers(errors, inspect.isclass)
    if issubclass(c, SproutError) and c is not SproutError
]


def _raised(cls: type[SproutError]) -> SproutError:
    wanted = {int(field) for field in re.findall(r"\{(\d+)\}", cls.message)}
    return cls(*(f"fact {n}" for n in range(max(wanted) + 1)))


@pytest.mark.parametrize("cls", LEAVES)
def test_every_error_has_its_code(cls: type[SproutError]) -> None:
    assert 1 < failures.exit_code(_raised(cls)) < 128


def test_codes_are_documented() -> None:
    from sprout_env.cli.app import EPILOG

    assert failures.__doc__ is not None
    for code in {*failures.CODES.values(), failures.BUG, failures.INTERRUPTED}:
        assert re.search(rf"\b{code}\b", EPILOG), code
        assert re.search(rf"\b{code}\b", failures.__doc__), code


def test_help_shows_every_default_that_it_speaks_of(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from typer.main import get_command

    from sprout_env.cli.app import app
    from sprout_env.cli.settings import _leaves

    for path, command in _leaves(get_command(app)):
        told = sum("default:" in (getattr(p, "help", "") or "") for p in command.params)
        with pytest.raises(SystemExit):
            failures.run([*path, "--help"])
        # What reads as markup is dropped in silence.
        assert capsys.readouterr().out.count("[default:") >= told, path


def test_a_sentence_stays_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        failures.fail("two\n  lines", 5)
    assert ended.value.code == 5
    assert capsys.readouterr().err == "error: two lines\n"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["tasks", "show", "no-such-task"], 3, "no such task"),
        (["tasks", "list", "no-such-suite"], 3, "there are seedbed, harbor"),
        (["tasks", "lint", "/proc/self"], 3, "task.toml"),
        (["show", "/no/such/run"], 2, "/no/such/run"),
        (["run", "seedbed", "--actor", "wizard:skill=1"], 2, "wizard"),
        (["run", "seedbed", "--actor", "simulated:skill=7"], 2, "skill"),
        (["frobnicate"], 2, "frobnicate"),
    ],
)
def test_bad_input_is_said_in_one_line(
    arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        failures.run(arguments)
    err = capsys.readouterr().err
    assert ended.value.code == code, err
    assert said in err
    assert "Traceback" not in err


def test_debug_shows_where(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(errors.TaskNotFound):
        failures.run(["tasks", "show", "no-such-task", "--debug"])


def test_debug_after_two_dashes_is_an_argument(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        failures.run(["tasks", "show", "--", "--debug"])
    assert ended.value.code == 3
    assert "'--debug'" in capsys.readouterr().err


def test_ctrl_c_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sprout_env.cli.runs.load_actor", interrupted)
    with pytest.raises(SystemExit) as ended:
        failures.run(["run", "seedbed", "--actor", "simulated:skill=1"])
    assert ended.value.code == failures.INTERRUPTED
    assert capsys.readouterr().err.startswith("error: stopped;")


def test_ctrl_c_while_the_commands_are_loaded_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupt:
        def find_spec(self, *_: object) -> None:
            raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "sprout_env.cli.app", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupt()])
    with pytest.raises(SystemExit) as ended:
        failures.run(["tasks", "list"])
    assert ended.value.code == failures.INTERRUPTED
    assert capsys.readouterr().err.startswith("error: stopped;")


def test_a_path_that_cannot_be_used_is_no_bug(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        failures.run(["init", "/proc/self/mine/first"])
    assert ended.value.code == 2
    assert "/proc/self/mine" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("shell", "code", "said"),
    [
        ("(sleep 1; sprout tasks list; echo $? >&3) | true", 0, ""),
        ("(sleep 1; sprout tasks list --json; echo $? >&3) | true", 0, ""),
        ("sprout tasks list > /dev/full; echo $? >&3", 2, "No space left"),
        ("sprout tasks list --json > /dev/full; echo $? >&3", 2, "No space left"),
        ("sprout tasks list >&-; echo $? >&3", 0, ""),
        ("sprout tasks list --json >&-; echo $? >&3", 0, ""),
        ("PYTHONIOENCODING=ascii sprout tasks lint > /dev/null; echo $? >&3", 0, ""),
    ],
)
def test_an_output_that_takes_nothing_is_no_bug(shell: str, code: int, said: str) -> None:
    start = f'sprout() {{ "{sys.executable}" -m sprout_env "$@"; }}; exec 3>&1; {shell}'
    done = subprocess.run(["bash", "-c", start], capture_output=True, text=True)
    assert (done.stdout.strip(), said in done.stderr) == (str(code), True), done
    assert "bug?" not in done.stderr
    assert "Traceback" not in done.stderr


def test_too_few_descriptors_are_the_machine_s(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none_left(*arguments: object, **more: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("sprout_env.cli.runs.load_actor", none_left)
    with pytest.raises(SystemExit) as ended:
        failures.run(["run", "seedbed", "--actor", "simulated:skill=1"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "error: this process: Too many open files; allow more, `ulimit -n 65536`, or work on less "
        "at a time, `--jobs 1`\n"
    )
