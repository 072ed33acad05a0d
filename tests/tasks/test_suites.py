"""Finding suites and tasks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sprout_env.errors import TaskBroken, TaskNotFound
from sprout_env.tasks import find_suite

Writer = Callable[..., Path]


@pytest.fixture
def three(write_task: Writer) -> Path:
    write_task(name="build-wheel")
    write_task(name="fix-git")
    write_task(toml="[", name="ruined")
    (write_task(name="x").parent / "x").rename(write_task(name="y").parent / "not-a-task")
    root = write_task(name="y").parent
    (root / "not-a-task/task.toml").unlink()
    return root


def test_folder_suite(three: Path) -> None:
    suite = find_suite("harbor", path=three)
    assert suite.slugs() == ("build-wheel", "fix-git", "ruined", "y")
    assert len(suite) == 4
    assert suite.task("fix-git").suite == "harbor"
    assert suite.task("org/fix-git") is suite.task("fix-git")


def test_broken_tasks_do_not_break_the_others(three: Path) -> None:
    suite = find_suite("harbor", path=three)
    assert [task.name for task in suite] == ["build-wheel", "fix-git", "y"]
    assert list(suite.broken) == ["ruined"]
    assert "task.toml" in str(suite.broken["ruined"])
    with pytest.raises(TaskBroken):
        suite.task("ruined")


def test_one_task_is_parsed_alone(three: Path) -> None:
    suite = find_suite("harbor", path=three)
    (three / "fix-git/instruction.md").unlink()
    assert suite.task("build-wheel").name == "build-wheel"


def test_unknown_slug_shows_near_ones(three: Path) -> None:
    with pytest.raises(TaskNotFound, match="did you mean build-wheel"):
        find_suite("harbor", path=three).task("build-whele")


def test_a_single_task_is_a_suite(three: Path) -> None:
    assert find_suite("harbor", path=three / "fix-git").slugs() == ("fix-git",)


def test_search_in_sprout_tasks(
    three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    (root / "deep-swe").mkdir(parents=True)
    three.rename(root / "deep-swe/tasks")
    monkeypatch.delenv("SPROUT_TASKS", raising=False)
    with pytest.raises(TaskNotFound, match="sprout tasks pull deepswe"):
        find_suite("deepswe")
    monkeypatch.setenv("SPROUT_TASKS", f"/nowhere:{root}")
    assert len(find_suite("deepswe")) == 4
    with pytest.raises(TaskNotFound, match=r"deepswe 2\.1"):
        find_suite("deepswe", dataset="2.1")
    (root / "deep-swe").rename(root / "deep-swe@2.1")
    assert len(find_suite("deepswe", dataset="2.1")) == 4
    with pytest.raises(TaskNotFound):
        find_suite("../root/deep-swe@2.1")


def test_harbor_needs_a_path() -> None:
    with pytest.raises(TaskNotFound, match="give its path: `--path`, in Python `tasks_path=`"):
        find_suite("harbor")


def test_misspelt_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPROUT_TASKS", raising=False)
    with pytest.raises(TaskNotFound, match="did you mean seedbed"):
        find_suite("seadbed")
    # Nobody publishes a suite of this name: no command can get it.
    with pytest.raises(TaskNotFound, match="tasks_path=.* there are seedbed, harbor, ") as caught:
        find_suite("mine")
    assert "pull" not in str(caught.value)


def test_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(TaskNotFound, match=r"no task\.toml"):
        find_suite("harbor", path=tmp_path)


def test_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TaskNotFound, match="no such file or folder"):
        find_suite("swebench", path=tmp_path / "rows.jsonl")


def test_seedbed_is_bundled_and_base_is_no_task() -> None:
    suite = find_suite("seedbed")
    assert "base" not in suite.slugs()
    assert suite.broken == {}
