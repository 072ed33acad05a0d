"""mini-swe-agent as it comes from PyPI solves a bundled task through the capture proxy, twice.

Its own command line, ``DockerEnvironment``, prompts and model class, by the lines that the docs
show. The model is a real HTTP server that plays the task's playbook.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("minisweagent", reason="not in this environment (scripts/trainers.sh)")

from sprout_env.disks import open_store
from sprout_env.disks.images.aliases import SEEDBED_BASE, alias
from sprout_env.records import group_of, token_row
from sprout_env.search import load_run
from sprout_env.snapshots import SnapshotTree
from sprout_env.tasks.playbook import load_playbook
from sprout_env.tasks.suites import SEEDBED
from sprout_env.tasks.task import FolderImage
from sprout_env.transcript import Turn
from tests.actors.chat_server import serve
from tests.integrations.byte_model import Said, player
from tests.integrations.recipes import ROOT, blocks

pytestmark = [pytest.mark.trainers, pytest.mark.root, pytest.mark.timeout(600)]

ADDRESS = "http://127.0.0.1:8000/v1"
TASK = "build-cache-repair"
DONE = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


@pytest.fixture(scope="module")
def said() -> list[Said]:
    steps = load_playbook(SEEDBED / TASK).steps
    return [*((step.message, [step.command]) for step in steps), ("Done.", [DONE])]


@pytest.fixture
def place(
    shared_store: Path, debian_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Where what the docs say of it can be run; no snapshot stays behind."""
    open_store(shared_store).close()
    alias(shared_store, SEEDBED_BASE, FolderImage(path=debian_base))
    for name, value in {
        "SPROUT_STORE": str(shared_store),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        # No question at its first start, and no look for prices in the network.
        "MSWEA_CONFIGURED": "true",
        "MSWEA_GLOBAL_CONFIG_DIR": str(tmp_path),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }.items():
        monkeypatch.setenv(name, value)
    yield
    with closing(SnapshotTree(open_store(shared_store))) as tree:
        assert not list(tree.list())


def test_an_unmodified_agent_is_captured(
    place: None, said: list[Said], shared_store: Path, tmp_path: Path
) -> None:
    names: dict[str, Any] = {}
    with serve(player(lambda n: said[n])) as model:
        recipe = blocks("Black-box agents", "python")[0].replace(ADDRESS, model.url)
        exec(compile(recipe, "Black-box agents", "exec"), names)
    attempt, session = names["attempt"], names["session"]
    told = json.loads((tmp_path / "last_mini_run.traj.json").read_text())
    assert told["info"]["exit_status"] == "Submitted"
    turns = [entry for entry in attempt.entries if isinstance(entry, Turn)]
    assert [turn.provenance for turn in turns] == ["policy"] * len(said)
    assert [turn.message for turn in turns] == [text for text, _ in said]
    assert (attempt.error, session.drifts, attempt.usage.calls) == ("", 0, len(said))
    assert attempt.passed
    # What the agent read is what was run, but for its own word on the command that ended it.
    seen = [m["extra"]["raw_output"] for m in told["messages"] if m["role"] == "tool"]
    assert seen[:-1] == [turn.result.output for turn in turns[:-1] if turn.result]
    # Every token of every answer, none of any prompt.
    (row,) = names["rows"]
    learned = [t for t, m in zip(row.token_ids, row.loss_mask, strict=True) if m]
    assert learned == [t for turn in turns if turn.trace for t in turn.trace.token_ids]
    # A snapshot per call, each of the disk after its command.
    assert [b.turn for b in attempt.boundaries] == list(range(len(said) + 1))
    with closing(SnapshotTree(open_store(shared_store))) as tree:
        for boundary in attempt.boundaries:
            assert boundary.snapshot is not None
            assert tree.transcript(tree.get(boundary.snapshot)).turn == boundary.turn
            tree.release(boundary.snapshot)


def test_its_command_makes_a_run(
    place: None, said: list[Said], shared_store: Path, tmp_path: Path
) -> None:
    with serve(player(lambda n: said[n])) as model:
        recipe = blocks("Black-box agents", "sh")[0].replace(ADDRESS, model.url)
        for told, here in {
            "sprout capture": f"{sys.executable} -m sprout_env capture",
            "--attempts 4": "--attempts 2",
        }.items():
            assert told in recipe
            recipe = recipe.replace(told, here)
        done = subprocess.run(
            ["bash", "-ec", recipe],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    count = len(said)
    assert f"{count} turns with ids, 0 drifted; {count + 1} snapshots kept" in done.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    (item,) = load_run(folder).collections
    assert [(a.passed, a.own_turns, a.error) for a in item.attempts] == [(True, count, "")] * 2
    assert len([token_row(row) for row in group_of(item.attempts).rows]) == 2
    for n in (1, 2):
        told = json.loads((tmp_path / f"{TASK}-root-{n}.traj.json").read_text())
        assert told["info"]["exit_status"] == "Submitted"
    with closing(SnapshotTree(open_store(shared_store))) as tree:
        tree.release_all({b.snapshot for a in item.attempts for b in a.boundaries if b.snapshot})
