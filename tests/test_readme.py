"""What the README shows is run, as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sprout_env import registration
from sprout_env.cli import failures
from sprout_env.disks import open_store
from sprout_env.disks.images.aliases import SEEDBED_BASE, alias
from sprout_env.tasks.task import FolderImage

README = (Path(__file__).parent.parent / "README.md").read_text()
OURS = README.split("\n## Training\n")[0]
"""What tests/integrations/test_recipes.py does not run."""
WITHOUT_ROOT, SNAPSHOTS, BACKTRACKING = re.findall(r"```python\n(.*?)```", OURS, re.DOTALL)


def _run(source: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(source, "README.md", "exec"), names)
    return names


def test_the_example_without_root(capsys: pytest.CaptureFixture[str]) -> None:
    names = _run(WITHOUT_ROOT)
    assert names["obs"]["turn"] == 1
    assert capsys.readouterr().out.endswith("1 one\n\n")


@pytest.mark.root
def test_the_example_of_snapshots(
    store_path: Path, debian_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPROUT_STORE", str(store_path))
    store = open_store(store_path)
    alias(store_path, SEEDBED_BASE, FolderImage(path=debian_base))
    try:
        names = _run(SNAPSHOTS)
    finally:
        store.close()
    assert any("http.server" in process for process in names["info"]["lost_processes"])
    assert len(names["forks"]) == 8
    assert names["verdict"].outcome == "failed"
    paths = {change.path for change in names["changed"]}
    assert {"/usr/bin/mytool", "/root/notes"} <= paths
    assert not {path for path in paths if path.startswith("/usr/share")}


def test_the_backtracking_example_is_made_of_what_exists() -> None:
    names = _run(BACKTRACKING)
    names["env"].close()


def test_every_id_is_in_the_table() -> None:
    shown = set(re.findall(r"^\| `(sprout/[\w-]+)`", README, re.MULTILINE))
    assert shown == set(registration.SUITES)


def test_every_command_is_in_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    from typer.main import get_command

    from sprout_env.cli.app import app

    commands: Any = get_command(app)
    shown = set(re.findall(r"`sprout (\w+)", README))
    assert set(commands.commands) == shown, set(commands.commands) ^ shown


def test_exit_codes_are_in_the_table() -> None:
    table = README.split("| exit code |")[1].split("## ")[0]
    told = {int(n) for row in re.findall(r"^\| ([\d, ]+) \|", table, re.M) for n in row.split(",")}
    assert told == {0, 1, *failures.CODES.values(), failures.BUG, failures.INTERRUPTED}
