"""Each recipe of docs/integrations.md is run as it stands, in its trainer's own environment."""

from __future__ import annotations

import copy
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from sprout_env.disks import open_store
from sprout_env.disks.images.aliases import SEEDBED_BASE, alias
from sprout_env.snapshots import SnapshotTree
from sprout_env.tasks.task import FolderImage
from tests.actors.chat_server import serve
from tests.integrations import log_model, tiny
from tests.integrations.cpu_attention import stand_in
from tests.integrations.recipes import README, ROOT, blocks, folded, headings, play

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.root,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),
]


def needs(library: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(library) is None, reason=f"the recipe needs {library}")


@pytest.fixture
def store(
    tmp_path: Path, shared_store: Path, debian_base: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A folder with ``tasks/first`` to stand in, and the store that all take by themselves."""
    alias(shared_store, SEEDBED_BASE, FolderImage(path=debian_base))
    monkeypatch.setenv("SPROUT_STORE", str(shared_store))
    with (tiny.write_log_task(tmp_path / "tasks", "first") / "task.toml").open("a") as file:
        file.write("[metadata.sprout]\nmax_turns = 3\n")
    monkeypatch.chdir(tmp_path)
    yield shared_store
    tree = SnapshotTree(open_store(shared_store))
    for snapshot in list(tree.list()):
        tree.release(snapshot.id)
    tree.close()


@pytest.fixture(scope="module")
def taught() -> tuple[Any, Any]:
    """A tokenizer, and a model that writes tool calls."""
    import torch

    torch.set_num_threads(1)
    tokenizer = tiny.make_tokenizer()
    model = tiny.make_model(tokenizer)
    tiny.warm_up(model, tiny.conversations(tokenizer))
    return tokenizer, model


@pytest.fixture
def own(store: Path, tmp_path: Path, taught: tuple[Any, Any]) -> dict[str, Any]:
    """What the page calls the reader's own, where the trainer is TRL."""
    from datasets import Dataset

    tokenizer, model = copy.deepcopy(taught)
    path = str(tmp_path / "model")
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    options = {
        "output_dir": str(tmp_path / "out"),
        "per_device_train_batch_size": 4,
        "max_steps": 1,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
    }
    dataset = Dataset.from_list([{"prompt": tiny.INSTRUCTION}] * 4)
    return {
        "tokenizer": tokenizer,
        "model": model,
        "path": path,
        "options": options,
        "dataset": dataset,
    }


def with_policy(own: dict[str, Any]) -> dict[str, Any]:
    """Run the recipe of a policy, whose tiny model cannot review: plain groups then."""
    return play("A policy and its groups", own)


@needs("trl")
def test_a_group_and_its_exports(own: dict[str, Any]) -> None:
    found = play("Exporters", with_policy(own))
    assert len(found["rows"]) == len(found["data"]) == len(found["samples"]) == 4
    assert set(found["worth"]) == {row.attempt for row in found["group"].rows}


@needs("trl")
def test_trl_async(own: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    own["options"] |= {"token_budget": 1024, "max_staleness": 4}
    play("TRL, asynchronous", with_policy(own))
    assert own["sampler"].version >= 1


@needs("trl")
def test_trl_with_our_groups(own: dict[str, Any]) -> None:
    own["options"]["max_completion_length"] = 256
    play("TRL, synchronous, with our groups", with_policy(own))


@needs("trl")
def test_trl_with_its_own_loop(own: dict[str, Any]) -> None:
    import trl

    template = Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja"
    own["tokenizer"].chat_template = template.read_text()
    own["options"] |= {"max_completion_length": 128, "max_tool_calling_iterations": 2}
    play("TRL, synchronous, with its own loop", own)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@needs("openenv")
def test_openenv(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import uvicorn

    running: list[Any] = []

    def start(app: Any, **kwargs: Any) -> None:
        # Uvicorn's own loop, but one that a test can end.
        running.append(uvicorn.Server(uvicorn.Config(app, **kwargs)))
        running[0].run()

    monkeypatch.setattr(uvicorn, "run", start)
    thread = threading.Thread(target=play, args=("OpenEnv", {}), daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not (running and running[0].started):
        assert thread.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    try:
        last = play("OpenEnv", {}, 1)["last"]
    finally:
        running[0].should_exit = True
        thread.join(20)
    assert last.done
    assert last.observation.verdict["outcome"] == "failed"


@needs("skyrl_gym")
def test_skyrl_gym(store: Path) -> None:
    found = play("skyrl-gym", {})
    assert [message["role"] for message in found["prompt"]] == ["user", "assistant", "user"]
    found["env"].close()
    found["branch"].close()


@needs("stable_baselines3")
def test_stable_baselines3(store: Path) -> None:
    play("Stable-Baselines3", {"options": {"n_steps": 16, "batch_size": 16, "device": "cpu"}})


@needs("tree")  # what `ray[rllib]` brings beside `ray`
def test_rllib(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    # No token in the home folder, no reports to anybody; sockets need a short path.
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    # Its runners are processes of their own, and we are not installed here.
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    short = tempfile.mkdtemp(prefix="ray")
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=200 * 2**20, _temp_dir=short)
    try:
        options = {"train_batch_size_per_learner": 8, "minibatch_size": 8, "num_epochs": 1}
        play("RLlib", {"options": options})
    finally:
        ray.shutdown()
        shutil.rmtree(short, ignore_errors=True)


@needs("verifiers")
def test_verifiers(store: Path, tmp_path: Path) -> None:
    (tmp_path / "sprout_tasks.py").write_text(blocks("verifiers", "python")[0])
    (command,) = blocks("verifiers", "sh")
    with serve(log_model.answer) as server:
        env = {
            **os.environ,
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
            "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT))),
            "MODEL": "log-model",
            "MODEL_URL": server.url,
        }
        more = " --env.max-turns 3 --no-push --output-dir out"
        done = subprocess.run(
            ["bash", "-ec", command.rstrip() + more],
            env=env,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    assert next((tmp_path / "out").rglob("traces.jsonl")).read_text().count('"kind":"branch"') >= 2


def test_every_recipe_is_run_by_a_test() -> None:
    here = Path(__file__).parent
    told = "".join(path.read_text() for path in here.glob("*.py"))
    missed = [h for h in headings() if not re.search(rf'(play|blocks)\("{re.escape(h)}"', told)]
    assert not missed


def test_the_readme_shows_every_recipe() -> None:
    """`python -m tests.integrations.recipes` copies them there."""
    shown = README.read_text()
    assert len(headings()) > 10
    assert shown.count("<summary>") == len(headings())
    assert folded(shown) == shown
