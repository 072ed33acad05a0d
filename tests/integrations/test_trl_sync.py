"""TRL's ``GRPOTrainer``, run for real on a CPU, driving our envs and taking our groups."""

from __future__ import annotations

import copy
import logging
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="TRL is not in this environment (scripts/trainers.sh trl)")

from sprout_env.disks import open_store
from sprout_env.env import SproutEnv
from sprout_env.errors import SandboxLost, SnapshotNotFound, SproutError, TaskNotFound
from sprout_env.integrations.trl_sync import (
    env_reward,
    prompt_at,
    rollout_func,
    tool_environment,
)
from sprout_env.records import Attempts
from sprout_env.snapshots import SnapshotTree
from sprout_env.transcript import TokenTrace, Turn
from tests.integrations import tiny
from tests.integrations.world import World, save
from tests.records.forests import attempt

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.root,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    tiny.write_log_task(tmp_path / "tasks")
    return tmp_path / "tasks"


def snapshots(store: Path) -> int:
    tree = SnapshotTree(open_store(store))
    try:
        return len(tuple(tree.list()))
    finally:
        tree.close()


def settings(out: Path, **more: Any) -> Any:
    from trl import GRPOConfig

    return GRPOConfig(
        output_dir=str(out),
        beta=0.0,
        logging_steps=1,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        **more,
    )


def driving(row: dict[str, Any], factory: Any, out: Path) -> Any:
    """Return a trainer that takes one step of two attempts by its own loop."""
    import trl
    from datasets import Dataset

    tokenizer = tiny.make_tokenizer()
    templates = Path(trl.__file__).parent / "chat_templates"
    tokenizer.chat_template = (templates / "qwen2_5.jinja").read_text()
    return trl.GRPOTrainer(
        model=tiny.make_model(tokenizer),
        processing_class=tokenizer,
        args=settings(
            out,
            per_device_train_batch_size=2,
            num_generations=2,
            max_completion_length=16,
            max_steps=1,
        ),
        train_dataset=Dataset.from_list([row] * 2),
        environment_factory=factory,
    )


def test_grpo_by_rollout_func_takes_our_groups(
    tasks: Path, shared_store: Path, tmp_path: Path
) -> None:
    import torch
    from datasets import Dataset
    from trl import GRPOTrainer

    torch.set_num_threads(1)
    tokenizer = tiny.make_tokenizer()
    model = tiny.make_model(tokenizer)
    tiny.warm_up(model, tiny.conversations(tokenizer))
    folder = save(model, tokenizer, tmp_path / "model")
    from transformers import AutoModelForCausalLM

    learner = AutoModelForCausalLM.from_pretrained(folder)
    world = World(tokenizer, learner, tasks, shared_store, seed=11)
    before = copy.deepcopy(learner.state_dict())
    sizes: list[int] = []

    def collect(prompt: str, number: int) -> Any:
        assert prompt == tiny.INSTRUCTION
        # Fewer attempts than TRL was told: the rest is padding.
        collection = world.collect(number, size=4, roots=2, branches=2)
        sizes.append(sum(attempt.scorable for attempt in collection.attempts))
        return collection

    seen: list[dict[str, Any]] = []
    trainer = GRPOTrainer(
        model=learner,
        processing_class=tokenizer,
        args=settings(
            tmp_path / "out",
            per_device_train_batch_size=6,
            num_generations=6,
            max_completion_length=256,
            learning_rate=2e-4,
            max_steps=4,
        ),
        train_dataset=Dataset.from_list([{"prompt": tiny.INSTRUCTION}] * 8),
        reward_funcs=env_reward,
        rollout_func=rollout_func(collect, size=6, end=tokenizer.eos_token_id),
    )
    inner = trainer._generate_and_score_completions

    def watch(inputs: Any) -> Any:
        out = inner(inputs)
        seen.append(out)
        return out

    trainer._generate_and_score_completions = watch
    trainer.train()
    log = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(log) == 4
    assert all(math.isfinite(entry["loss"]) for entry in log)
    moved = max(
        float((value - before[name]).abs().max()) for name, value in learner.state_dict().items()
    )
    assert (moved > 1e-6) == any(len(set(rewards)) > 1 for rewards in world.rewards)
    for batch, size in zip(seen, sizes, strict=False):
        # Padding has an advantage of exactly 0 and no token that is learned from.
        assert batch["advantages"][size:].abs().max() == 0.0
        learned = (batch["tool_mask"] * batch["completion_mask"]).sum(1)
        assert int(learned[size:].sum()) == 0
        assert int(learned[0]) > 0
    assert snapshots(shared_store) == 0


def test_an_attempt_from_a_snapshot_knows_what_was_done(
    tasks: Path, shared_store: Path, tmp_path: Path
) -> None:
    """By a prompt that is the conversation, or by text added to a prompt that is not."""
    import torch

    torch.set_num_threads(1)
    where = {"suite": "toy", "tasks_path": str(tasks), "store": str(shared_store)}
    env = SproutEnv(task="log", **where)
    env.reset()
    env.step(tiny.A)
    begun = env.snapshot()
    env.close()
    conversation = prompt_at(begun, store=shared_store)
    assert [message["role"] for message in conversation] == ["user", "assistant", "tool"]
    assert conversation[1]["tool_calls"][0]["function"]["arguments"] == {"command": tiny.A}
    factory = tool_environment(**where, max_turns=3)
    tool = factory()
    assert tool.reset(snapshot=begun, prompt=conversation) is None
    told = tool.reset(snapshot=begun, prompt=[{"role": "user", "content": "Task: "}])
    assert told == f"{tiny.INSTRUCTION.strip()}\n\nDone so far:\n\n$ {tiny.A}\n[exit code 0]"
    assert tool.bash("echo so; false") == "so\n[exit code 1]"
    tool.get_reward()
    with pytest.raises(SnapshotNotFound):
        prompt_at("none-such", store=shared_store)

    trainer = driving({"prompt": conversation, "snapshot": begun}, factory, tmp_path / "out")
    seen: list[str] = []
    inner = trainer._generate_and_score_completions

    def watch(inputs: Any) -> Any:
        out = inner(inputs)
        seen.extend(trainer.processing_class.batch_decode(out["prompt_ids"]))
        return out

    trainer._generate_and_score_completions = watch
    trainer.train()
    assert len(seen) == 2
    for text in seen:
        assert text.count(tiny.INSTRUCTION.strip()) == 1
        assert text.index(tiny.A) < text.index("[exit code 0]")
    tree = SnapshotTree(open_store(shared_store))
    tree.release(begun)
    tree.close()


@pytest.mark.parametrize(
    ("row", "error", "says"),
    [
        ({"task": "lgo"}, TaskNotFound, "did you mean log"),
        ({"snapshot": "no-such-id"}, SnapshotNotFound, "no-such-id"),
    ],
)
def test_what_every_attempt_would_meet_stops_the_training(
    row: dict[str, str],
    error: type[SproutError],
    says: str,
    tasks: Path,
    shared_store: Path,
    tmp_path: Path,
) -> None:
    factory = tool_environment(suite="toy", tasks_path=str(tasks), store=str(shared_store))
    go_on = [{"role": "user", "content": "Go on."}]
    trainer = driving({"prompt": go_on, **row}, factory, tmp_path / "out")
    with pytest.raises(error, match=says):
        trainer.train()


def test_tasks_that_are_not_there_are_refused_before_the_first_env() -> None:
    with pytest.raises(TaskNotFound, match="no such file or folder"):
        tool_environment(suite="mine", tasks_path="nowhere")


def test_trouble_of_one_attempt_is_told_and_earns_no_reward(
    tasks: Path, shared_store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tool = tool_environment(suite="toy", tasks_path=str(tasks), store=str(shared_store))()
    tool.reset(task="log")
    tool._env._episode.sandbox.close()
    with caplog.at_level(logging.WARNING, "sprout_env"):
        tool.bash("true")
        assert tool.get_reward() is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "task log" in caplog.text
    assert SandboxLost.__name__ in caplog.text


def test_an_interrupted_training_closes_its_envs_before_their_store(
    tasks: Path, shared_store: Path, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "from sprout_env.integrations.trl_sync import tool_environment\n"
        f"where = {{'tasks_path': {str(tasks)!r}, 'store': {str(shared_store)!r}}}\n"
        "tool = tool_environment(suite='toy', **where)()\n"
        "tool.reset(task='log')\n"
        "tool.bash('true')\n"
        "print('begun', flush=True)\n"
        "tool.bash('sleep 60')\n"
    )
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert "KeyboardInterrupt" in said
    assert "Exception ignored" not in said, said
    assert process.returncode == -signal.SIGINT
    assert snapshots(shared_store) == 0


def test_rows_longer_than_the_trainer_takes_are_cut(caplog: pytest.LogCaptureFixture) -> None:
    class Trainer:
        max_completion_length: int | None = 4

    trace = TokenTrace(prompt_ids=(1,), token_ids=(2,) * 5, logprobs=(-1.0,) * 5)
    turns = (Turn(command="a", trace=trace),)
    found = Attempts(task="t", attempts=tuple(attempt(id, turns, 1.0) for id in "xy"))
    produce = rollout_func(lambda *_: found, size=2, end=0)
    cut = produce(["p", "p"], Trainer())
    for key in ("completion_ids", "logprobs", "env_mask"):
        assert [len(row) for row in cut[key]] == [4, 4]
    assert "a row of 5 tokens is cut at max_completion_length, 4" in caplog.text
    for enough in (5, None):
        Trainer.max_completion_length = enough
        assert [len(row) for row in produce(["p", "p"], Trainer())["completion_ids"]] == [5, 5]
