"""What an agent wrote reaches the user's terminal as text, whichever command prints it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from sprout_env.cli import console, failures, shell
from sprout_env.cli.console import TextConsole
from sprout_env.cli.progress import Progress
from sprout_env.cli.transcripts import turns_of
from sprout_env.records.attempt import Usage
from sprout_env.records.export import write_records
from sprout_env.sandbox import CommandResult, ShellState
from sprout_env.search.events import AttemptStarted, TurnFinished
from sprout_env.search.runs import RunConfig
from sprout_env.transcript import Result, Turn
from tests.cli.test_tree import attempt

HOSTILE = "\x1b]0;title\x07\x1b[2J\x9b31m[/nothing] [red]a\x08b\udcff"
ODD = set(map(chr, {*range(32), *range(127, 160)} - {10}))


def _printed(write: object, *, terminal: bool = False) -> str:
    file = io.StringIO()
    made = TextConsole(file=file, force_terminal=terminal, width=70, color_system=None)
    assert callable(write)
    write(made)
    return file.getvalue()


def test_no_control_character_leaves_a_console() -> None:
    table = Table(title=HOSTILE)
    table.add_column(HOSTILE)
    table.add_row(HOSTILE)
    for renderable in (HOSTILE, Text(HOSTILE, "red"), table):
        said = _printed(lambda c, r=renderable: c.print(r))
        assert not ODD & set(said), said
        assert "[/nothing] [red]a" in " ".join(said.split()), said
        said.encode()


def test_a_transcript_and_a_live_display_show_what_an_agent_wrote() -> None:
    root = attempt("hostile", 1)
    result = Result(output=HOSTILE, exit_code=1)
    turn = Turn(command=HOSTILE, message=HOSTILE, result=result)
    shown = root.model_copy(update={"entries": (turn,), "task": HOSTILE})
    assert not ODD & set(_printed(lambda c: c.print(turns_of(shown, "root 1", full=True))))

    def live(made: TextConsole) -> None:
        with Progress(made, ["task"], "a run") as watch:
            watch(AttemptStarted("task", "a", "root", 0, None, None))
            watch(TurnFinished("task", "a", "root", 1, f"mine {HOSTILE}", 0, Usage()))

    said = _printed(live, terminal=True)
    assert "mine" in said
    assert "\x1b]" not in said
    assert "\x1b[2J" not in said


def test_an_error_and_json_hold_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        failures.fail(f"no file {HOSTILE}", 6)
    assert not ODD & set(capsys.readouterr().err)
    console.print_json({"path": HOSTILE})
    said = capsys.readouterr().out
    assert not ODD & set(said)
    assert json.loads(said) == {"path": HOSTILE}


def test_a_shell_on_a_terminal_shows_text_and_a_pipe_gets_the_bytes() -> None:
    class Terminal(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

    result = CommandResult(
        stdout=HOSTILE.encode("utf-8", "surrogateescape"), stderr=b"", exit_code=0, duration_s=0.1
    )
    for kind in (Terminal, io.TextIOWrapper):
        file = kind(io.BytesIO(), encoding="utf-8")
        shell.show(file, result.stdout)
        said = file.buffer.getvalue()  # type: ignore[attr-defined]
        assert (said == result.stdout) == (kind is io.TextIOWrapper)
        assert kind is io.TextIOWrapper or not ODD & set(said.decode())
    assert not ODD & set(shell.prompt(ShellState(HOSTILE, {})))


def test_a_folder_named_like_markup_is_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "[" / "x] [red]y"
    folder.mkdir(parents=True)
    config = RunConfig.make("seedbed", actor="simulated:skill=1")
    (folder / "run.json").write_text(config.model_dump_json())
    write_records(folder / "attempts.jsonl", [attempt("a", 1)])
    for arguments in (["runs", "list", str(tmp_path)], ["view", str(folder)]):
        with pytest.raises(SystemExit) as ended:
            failures.run([*arguments, "--debug"])
        assert not ended.value.code
        assert "[red]y" in "".join(capsys.readouterr().out.split("\n"))
