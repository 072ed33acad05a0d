"""The commands on a real store: a run, its tree, its snapshots, a shell in one of them."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sprout_env.cli import failures
from sprout_env.cli.console import tasks_place
from sprout_env.disks import open_store
from sprout_env.disks.images.aliases import SEEDBED_BASE, alias
from sprout_env.errors import ConfigError, TaskNotFound
from sprout_env.tasks.task import FolderImage

TASK = "shop-schema-migration"
pytestmark = pytest.mark.root


@dataclass
class Sprout:
    """Runs commands as typed, in this process."""

    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str | Path, code: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            failures.run([*map(str, arguments), "--debug"])
        said = self.capsys.readouterr()
        assert ended.value.code in (code, None if code == 0 else code), said.err
        return said.out

    def json(self, *arguments: str | Path) -> Any:
        return json.loads(self(*arguments, "--json"))


@pytest.fixture
def sprout(capsys: pytest.CaptureFixture[str]) -> Sprout:
    return Sprout(capsys)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, debian_base: Path) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("cli") / "store"
    opened = open_store(path)
    alias(opened.path, SEEDBED_BASE, FolderImage(path=debian_base))
    yield path
    opened.close()


@pytest.fixture(scope="module")
def recorded(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded run with its snapshots: one clumsy root, one branch."""
    folder = tmp_path_factory.mktemp("runs") / "one"
    arguments = [
        "run", "seedbed", "--task", TASK, "--actor", "simulated:skill=0.5", "--seed", "1",
        "--roots", "1", "--rounds", "1", "--branches", "1", "--keep-snapshots",
        "--store", str(store), "--out", str(folder), "--debug",
    ]  # fmt: skip
    with pytest.raises(SystemExit) as ended:
        failures.run(arguments)
    assert ended.value.code == 0
    return folder


def test_a_run_tells_that_it_is_a_simulation(recorded: Path, sprout: Sprout) -> None:
    said = sprout("show", recorded)
    assert "no model was asked" in said
    assert "root 1" in said
    assert "branch 1.1" in said
    assert "after turn" in said
    for part in ("root", "review", "branch"):
        assert part in said


def test_a_finished_run_costs_nothing_the_second_time(
    recorded: Path, store: Path, sprout: Sprout
) -> None:
    before = (recorded / "attempts.jsonl").read_bytes()
    sprout(
        "run", "seedbed", "--task", TASK, "--actor", "simulated:skill=0.5", "--seed", "1",
        "--roots", "1", "--rounds", "1", "--branches", "1", "--keep-snapshots",
        "--store", store, "--out", recorded,
    )  # fmt: skip
    assert (recorded / "attempts.jsonl").read_bytes() == before


def test_the_network_is_none_public_host_or_the_tasks_word(
    recorded: Path, store: Path, sprout: Sprout
) -> None:
    run = ["run", "seedbed", "--actor", "simulated:skill=1", "--store", str(store)]
    with pytest.raises(ConfigError, match="--network takes none, public, host or task"):
        sprout(*run, "--network", "nothing")
    with pytest.raises(ConfigError, match="holds another run"):
        sprout(*run, "--task", TASK, "--network", "none", "--out", recorded)


def test_show_as_json_holds_what_was_recorded(recorded: Path, sprout: Sprout) -> None:
    (item,) = sprout.json("show", recorded)
    assert item["task"] == TASK
    assert [a["kind"] for a in item["attempts"]] == ["root", "branch"]


def test_show_one_attempt_turn_by_turn(recorded: Path, sprout: Sprout) -> None:
    said = sprout("show", recorded, TASK, "--attempt", "branch 1.1")
    assert "shared with its parent" in said
    assert "starting turn, written by the review" in said
    (item,) = sprout.json("show", recorded)
    failed = [t for t in item["attempts"][0]["verdict"]["tests"] if t["status"] == "failed"]
    said = sprout("show", recorded, TASK, "--attempt", "root 1")
    assert f"{len(failed)} of" in said
    for test in failed:
        assert f"✗ {test['name'].split('::')[-1]}" in said
        assert test["message"].split()[0] in said.split(test["name"].split("::")[-1], 1)[1]


def test_runs_are_listed(recorded: Path, sprout: Sprout) -> None:
    (one,) = sprout.json("runs", "list", recorded.parent)
    assert one["run"] == str(recorded)
    assert one["summary"]["recovery"]["of"] == 1
    # A path is there to be copied: no line's end goes through it.
    assert str(recorded) in sprout("runs", "list", recorded.parent)


def _boundaries(recorded: Path, sprout: Sprout) -> dict[int, str]:
    (item,) = sprout.json("show", recorded)
    return {b["turn"]: b["snapshot"] for b in item["attempts"][0]["boundaries"]}


def test_diff_lists_paths_and_shows_text(recorded: Path, store: Path, sprout: Sprout) -> None:
    kept = _boundaries(recorded, sprout)
    last = kept[max(kept)]
    changes = sprout.json("diff", kept[0], last, "--store", store)
    paths = {change["path"]: change["kind"] for change in changes}
    assert paths["/var/lib/shop/shop.db"] == "modified"
    said = sprout("diff", kept[0], last, "--store", store)
    assert "~ /var/lib/shop/shop.db" in said
    assert "(binary," in said
    assert any(line.startswith("    +") for line in said.splitlines())
    assert sprout("diff", last, last, "--store", store).strip() == "no differences"


def test_shell_walks_in_a_clone_and_leaves_the_snapshot_alone(
    recorded: Path, store: Path, sprout: Sprout, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = _boundaries(recorded, sprout)[1]
    typed = (
        "cd /etc\nexport HERE=there\necho $HERE from \\\n  $PWD\ntouch /made-in-the-shell\nexit\n"
    )
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert "there from /etc" in sprout("shell", first, "--store", store)
    said = sprout("shell", first, "-c", "ls /made-in-the-shell", "--store", store, code=2)
    assert said == ""


def test_snapshots_are_listed_and_released(recorded: Path, store: Path, sprout: Sprout) -> None:
    found = sprout.json("snapshots", "list", "--task", TASK, "--store", store)
    assert {one["turn"] for one in found} >= {0, 1, 2}
    victim = next(one["id"] for one in found if one["turn"] == 2)
    sprout("snapshots", "release", victim, "--store", store)
    left = sprout.json("snapshots", "list", "--store", store)
    assert victim not in {one["id"] for one in left}
    assert int(sprout("snapshots", "rebuild", "--store", store).split()[0]) == len(left)


def test_store_and_images_say_what_is_there(recorded: Path, store: Path, sprout: Sprout) -> None:
    held = sprout.json("store", "usage", "--store", store)
    assert held["kind"] in ("btrfs", "directory")
    assert held["bases"] > 0
    images = sprout.json("image", "list", "--store", store)
    assert len(images["bases"]) >= 2
    assert TASK in sprout("image", "list", "--store", store)
    assert SEEDBED_BASE in images["aliases"]
    base = next(b for b in images["bases"] if b["parents"])
    with pytest.raises(Exception, match="stand on it"):
        failures.run(["image", "rm", base["digest"], "--store", str(store), "--debug"])


def test_doctor_tries_what_it_says(recorded: Path, store: Path, sprout: Sprout) -> None:
    found = {check["name"]: check for check in sprout.json("doctor", "--store", store)}
    assert found["trial run"]["state"] == "ok", found["trial run"]
    assert found["root"]["state"] == "ok"
    assert all(check["remedy"] for check in found.values() if check["state"] == "missing")


def test_sweep_finds_nothing_of_ours(recorded: Path, store: Path, sprout: Sprout) -> None:
    # Control groups of owners that other tests killed are nobody's and everybody's.
    swept = sprout.json("sweep", "--store", store)
    assert [line for line in swept if not line.startswith("cgroup ")] == []


def test_tasks_are_pulled_from_a_repository_and_pinned(
    tmp_path: Path, sprout: Sprout, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "published"
    sprout("init", work / "sets" / "mine")
    who = ("-c", "user.name=t", "-c", "user.email=t@t.io")
    for command in (("init", "-q"), ("add", "."), (*who, "commit", "-qm", "one")):
        subprocess.run(["git", "-C", str(work), *command], check=True)
    monkeypatch.setenv("SPROUT_TASKS", str(tmp_path / "kept"))
    url = f"file://{work}#sets"
    said = sprout("tasks", "pull", url)
    pinned = said.split("'")[1]
    commit = pinned.partition("@")[2].partition("#")[0]
    assert len(commit) == 40
    assert tasks_place(url) == pinned
    shutil.rmtree(work)
    found = sprout.json("tasks", "list", "harbor", "--path", pinned)
    (task,) = found["tasks"]
    assert task["metadata"]["source"]["commit"] == commit
    assert "agent none, verifier none" in sprout("tasks", "show", "harbor", "mine", "--path", url)
    (report,) = sprout.json("tasks", "lint", tmp_path / "kept" / f"published@{commit[:12]}/sets")
    assert (report["ok"], report["network"]) == (True, "agent none, verifier none")
    with pytest.raises(TaskNotFound, match="bring a clone from elsewhere"):
        sprout("tasks", "pull", url, "--to", tmp_path / "other")
