"""``sprout init`` and ``sprout config``, and the settings' file behind every flag."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sprout_env.cli import failures
from sprout_env.disks import open_store
from sprout_env.disks.images.aliases import SEEDBED_BASE, alias
from sprout_env.errors import ConfigError
from sprout_env.grading.gate import gate
from sprout_env.search.runs import load_run
from sprout_env.tasks.harbor import load_task
from sprout_env.tasks.skeleton import write_skeleton
from sprout_env.tasks.task import FolderImage


def sprout(*arguments: str | Path) -> object:
    with pytest.raises(SystemExit) as ended:
        failures.run(list(map(str, arguments)))
    return ended.value.code or 0


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "sprout.toml"
    for name in ("SPROUT_CONFIG", "SPROUT_STORE", "SPROUT_TASKS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "nowhere"))
    monkeypatch.chdir(tmp_path)
    return path


def test_a_skeleton_is_a_whole_task(tmp_path: Path) -> None:
    assert sprout("init", tmp_path / "mine" / "first") == 0
    task = load_task(tmp_path / "mine" / "first")
    assert task.name == "first"
    assert not task.warnings
    assert not task.unsupported
    assert task.solution is not None
    assert sprout("tasks", "lint", tmp_path / "mine") == 0


def test_a_skeleton_is_written_over_nothing(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("mine")
    with pytest.raises(ConfigError, match="not empty"):
        write_skeleton(tmp_path / "kept")
    with pytest.raises(ConfigError, match="no task name"):
        write_skeleton(tmp_path / "-x y")
    assert [p.name for p in (tmp_path / "kept").iterdir()] == ["file"]


@pytest.mark.root
@pytest.mark.slow
def test_a_skeleton_passes_the_gate(tmp_path: Path, store_path: Path, debian_base: Path) -> None:
    write_skeleton(tmp_path / "mine" / "first")
    store = open_store(store_path)
    try:
        alias(store_path, SEEDBED_BASE, FolderImage(path=debian_base))
        report = gate(store, [load_task(tmp_path / "mine" / "first")], 1, 1, 1)
        assert report.passed, report
    finally:
        store.close()


@pytest.mark.root
@pytest.mark.slow
def test_a_skeleton_is_run_without_a_model(
    tmp_path: Path, store_path: Path, debian_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPROUT_STORE", str(store_path))
    write_skeleton(tmp_path / "mine" / "first")
    store = open_store(store_path)
    try:
        alias(store_path, SEEDBED_BASE, FolderImage(path=debian_base))
        small = ("--roots", "2", "--rounds", "1", "--branches", "2", "--seed", "0")
        run = ("run", "harbor", "--path", tmp_path / "mine", "--out", tmp_path / "run")
        assert sprout(*run, "--actor", "simulated:skill=0.5", *small) == 0
        # The same command in a new folder, stopped by its budget.
        short = (*run[:-1], tmp_path / "short", "--max-calls", "2")
        assert sprout(*short, "--actor", "simulated:skill=0.5", *small) == 10
    finally:
        store.close()
    (item,) = load_run(tmp_path / "run").collections
    # Each error shows in the tests that its playbook names, and a branch goes round it.
    failing = {name for a in item.attempts if a.verdict for name in a.verdict.failing}
    assert {name.split("::")[-1] for name in failing} <= {"test_orders_untouched", "test_totals"}
    assert failing
    assert item.passed


def test_settings_are_defaults_of_flags_and_flags_win(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_skeleton(config.parent / "suite" / "first")
    config.write_text(f'[tasks.list]\npath = "{config.parent}/suite"\n')
    assert sprout("tasks", "list", "harbor", "--json") == 0
    (task,) = json.loads(capsys.readouterr().out)["tasks"]
    assert task["name"] == "first"
    write_skeleton(config.parent / "other" / "second")
    assert sprout("tasks", "list", "harbor", "--path", config.parent / "other", "--json") == 0
    (task,) = json.loads(capsys.readouterr().out)["tasks"]
    assert task["name"] == "second"


def test_the_place_of_the_store_holds_everywhere_and_the_variable_wins(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text('store = "/somewhere/else"\n')
    assert sprout("store", "path") == 0
    assert capsys.readouterr().out.strip() == "/somewhere/else"
    monkeypatch.setenv("SPROUT_STORE", "/a/third/place")
    assert sprout("store", "path") == 0
    assert capsys.readouterr().out.strip() == "/a/third/place"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[run]\nrots = 1\n", "sprout run has no flag --rots"),
        ("[fly]\nhigh = 1\n", "no command sprout fly"),
        ("nothing = 1\n", "no command has a flag --nothing"),
        ("[tasks]\nlist = 1\n", "list is none"),
        ("[run\n", "cannot be read"),
    ],
)
def test_what_no_command_knows_is_named(
    config: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    config.write_text(text)
    assert sprout("runs", "list") == 2
    assert said in capsys.readouterr().err
    assert sprout("config") == 2
    assert said in capsys.readouterr().err


def test_config_says_what_holds_and_where_it_is_from(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sprout("config") == 0
    assert "file: none" in capsys.readouterr().out
    config.write_text('store = "/x"\n[run]\nroots = 7\n')
    monkeypatch.setenv("SPROUT_TASKS", "/tasks")
    assert sprout("config", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["file"] == str(config)
    told = {(s["command"], s["flag"]): (s["value"], s["from"]) for s in found["settings"]}
    assert told["run", "--roots"] == (7, str(config))
    assert told["every command", "--store"] == ("/x", str(config))
    assert told["sprout", "SPROUT_TASKS"] == ("/tasks", "environment")


def test_every_listing_speaks_json() -> None:
    import typer

    from sprout_env.cli.app import app
    from sprout_env.cli.settings import _leaves

    without = [
        " ".join(path)
        for path, command in _leaves(typer.main.get_command(app))
        if path[-1] in ("list", "show", "usage", "diff", "doctor", "config", "lint", "gate", "run")
        and not any("--json" in parameter.opts for parameter in command.params)
    ]
    assert not without


@pytest.mark.root
def test_an_alias_stands_for_a_folder_or_an_archive(
    store_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "root" / "etc").mkdir(parents=True)
    (tmp_path / "image.tar").write_bytes(b"")
    where = ("--store", store_path)
    for name, path in (("a:1", "root"), ("b:1", "image.tar")):
        assert sprout("image", "alias", name, tmp_path / path, *where) == 0
    assert sprout("image", "alias", "c:1", tmp_path / "nothing", *where) == 2
    capsys.readouterr()
    assert sprout("image", "list", "--json", *where) == 0
    named = json.loads(capsys.readouterr().out)["aliases"]
    assert named["a:1"] == {"kind": "folder", "path": str(tmp_path / "root")}
    assert (named["b:1"]["kind"], named["b:1"]["path"]) == ("archive", str(tmp_path / "image.tar"))
    assert "c:1" not in named


def test_bash_completes_commands_and_flags(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "sprout"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m sprout_env "$@"\n')
    program.chmod(0o755)
    script = """
    sprout --install-completion bash >/dev/null
    source "$HOME/.bashrc"
    f=$(complete -p sprout | sed 's/.*-F \\([^ ]*\\).*/\\1/')
    complete_it() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); $f sprout; echo "${COMPREPLY[@]}"; }
    complete_it sprout ru
    complete_it sprout runs ""
    complete_it sprout run --max-t
    """
    root = Path(__file__).parents[2]
    done = subprocess.run(
        ["bash", "-ec", script],
        env={**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(root),
             "PATH": f"{program.parent}:{os.environ['PATH']}"},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "run runs",
        "list replay",
        "--max-turns --max-tokens",
    ], done.stderr
