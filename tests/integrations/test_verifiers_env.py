"""verifiers' own eval runner plays our groups over HTTP, in real sandboxes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verifiers", reason="verifiers is not here (scripts/trainers.sh verifiers)")

from sprout_env.disks import open_store
from sprout_env.snapshots import SnapshotTree
from tests.actors.chat_server import Server, serve
from tests.integrations import log_model, tiny
from tests.small_task import write_task

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.root,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),
]

MODULE = """\
from sprout_env.integrations.verifiers_env import plugins

SproutTaskset, SproutHarness, SproutEnv = plugins()
__all__ = ["SproutTaskset", "SproutHarness", "SproutEnv"]
"""


@pytest.fixture
def server() -> Iterator[Server]:
    with serve(log_model.answer) as running:
        yield running


def evaluate(
    server: Server, tasks: Path, store: Path, out: Path, monkeypatch: pytest.MonkeyPatch, **env: Any
) -> list[Any]:
    """Run verifiers' eval as its command line does."""
    from verifiers.v1.cli.eval.runner import run_eval
    from verifiers.v1.configs.cli.eval import EvalConfig

    (out / "sprout_tasks.py").write_text(MODULE)
    monkeypatch.syspath_prepend(out)
    monkeypatch.delitem(sys.modules, "sprout_tasks", raising=False)
    config = EvalConfig.model_validate(
        {
            "env": {
                "taskset": {
                    "id": "sprout_tasks",
                    "suite": "toy",
                    "tasks_path": str(tasks),
                    "store": str(store),
                    **({"task": env.pop("task")} if "task" in env else {}),
                },
                "max_turns": 3,
                **env,
            },
            "model": "log-model",
            "client": {"base_url": server.url},
            "output_dir": str(out / "out"),
            "push": False,
            "rich": None,
        }
    )
    return asyncio.run(run_eval(config))


def snapshots(store: Path) -> int:
    tree = SnapshotTree(open_store(store))
    try:
        return len(tuple(tree.list()))
    finally:
        tree.close()


def test_an_episode_is_a_group_with_lineage(
    server: Server, tmp_path: Path, shared_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.write_log_task(tmp_path / "tasks")
    before = snapshots(shared_store)
    (episode,) = evaluate(
        server,
        tmp_path / "tasks",
        shared_store,
        tmp_path,
        monkeypatch,
        method="group:size=4,roots=2,branches=2",
    )
    assert episode.ok, episode.errors or [t.errors for t in episode.traces]
    by_kind: dict[str, list[Any]] = {"root": [], "branch": []}
    for trace in episode.traces:
        by_kind[trace.task.data.kind].append(trace)
    assert [t.reward for t in by_kind["root"]] == [0.0, 0.0]
    assert [t.reward for t in by_kind["branch"]] == [1.0, 1.0]
    roots = {t.task.data.attempt: t for t in by_kind["root"]}
    for root in roots.values():
        assert [n.sampled for n in root.nodes if n.message.role == "assistant"] == [True] * 3
    for branch in by_kind["branch"]:
        told = branch.task.data
        parent = roots[told.parent]
        assert (told.boundary, told.round) == (1, 1)
        assert told.snapshot == parent.info["sprout"]["snapshots"][1]
        # Turn 1 is the parent's, turn 2 the review's; only turn 3 was sampled here.
        said = [n for n in branch.nodes if n.message.role == "assistant"]
        assert [n.sampled for n in said] == [False, False, True]
        commands = [n.message.tool_calls[0].arguments for n in said]
        assert [tiny.A in c for c in commands] == [True, False, False]
        assert branch.num_turns == 1
    texts = [str(n.message.content) for t in episode.traces for n in t.nodes]
    assert not any("wrong line" in text for text in texts)
    assert any("<branches>" in str(r["messages"][-1]["content"]) for r in server.requests)
    assert snapshots(shared_store) == before


REWARD = """\
async def lines(trace, runtime):
    assert (await runtime.read("/srv/log")).startswith(b"a")
    await runtime.write("/srv/more", b"seen")
    done = await runtime.run(["sh", "-c", "wc -l < /srv/log; cat /srv/more"], {})
    return {"lines": float(done.stdout.split()[0]), "more": float(done.stdout.split()[1] == "seen")}
"""


def test_rewards_of_ones_own_see_a_clone_of_the_end(
    server: Server, tmp_path: Path, shared_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from verifiers.v1 import WireEpisode

    tiny.write_log_task(tmp_path / "tasks")
    (tmp_path / "sprout_rewards.py").write_text(REWARD)
    monkeypatch.delitem(sys.modules, "sprout_rewards", raising=False)
    (episode,) = evaluate(
        server,
        tmp_path / "tasks",
        shared_store,
        tmp_path,
        monkeypatch,
        method="pass@1",
        task={"rewards": {"lines": {"fn": "sprout_rewards:lines", "weight": 0.5}}},
    )
    (trace,) = episode.traces
    assert trace.ok, trace.errors
    assert {name: reward.score for name, reward in trace.rewards.items()} == {
        "verdict": 0.0,
        "lines": 3.0,
        "more": 1.0,
    }
    (line,) = next((tmp_path / "out").rglob("traces.jsonl")).read_text().splitlines()
    assert WireEpisode.model_validate_json(line).traces[0].task.data.attempt == "log:root-1"


def test_what_nobody_could_judge_has_no_reward(
    server: Server, tmp_path: Path, shared_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = "#!/bin/bash\nexit 0\n"
    write_task(tmp_path / "tasks", "log", instruction=tiny.INSTRUCTION, test=silent)
    (episode,) = evaluate(
        server, tmp_path / "tasks", shared_store, tmp_path, monkeypatch, method="pass@2"
    )
    assert not episode.ok
    assert not episode.errors
    for trace in episode.traces:
        assert not trace.ok
        assert not trace.rewards
        assert trace.info["sprout"]["outcome"] == "invalid"
        assert "has no reward" in trace.last_error.message
