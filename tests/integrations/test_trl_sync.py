"""TRL's ``GRPOTrainer``, run for real on a CPU, driving our envs and taking our groups."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="TRL is not in this environment (scripts/trainers.sh trl)")

from sprout_env.disks import open_store
from sprout_env.env import SproutEnv
from sprout_env.errors import SnapshotNotFound
from sprout_env.integrations.trl_sync import (
    env_reward,
    prompt_at,
    rollout_func,
    tool_environment,
)
from sprout_env.snapshots import SnapshotTree
from tests.integrations import tiny
from tests.integrations.world import World, save

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
    import trl
    from datasets import Dataset
    from trl import GRPOTrainer

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

    tokenizer = tiny.make_tokenizer()
    templates = Path(trl.__file__).parent / "chat_templates"
    tokenizer.chat_template = (templates / "qwen2_5.jinja").read_text()
    trainer = GRPOTrainer(
        model=tiny.make_model(tokenizer),
        processing_class=tokenizer,
        args=settings(
            tmp_path / "out",
            per_device_train_batch_size=2,
            num_generations=2,
            max_completion_length=16,
            max_steps=1,
        ),
        train_dataset=Dataset.from_list([{"prompt": conversation, "snapshot": begun}] * 2),
        environment_factory=factory,
    )
    seen: list[str] = []
    inner = trainer._generate_and_score_completions

    def watch(inputs: Any) -> Any:
        out = inner(inputs)
        seen.extend(tokenizer.batch_decode(out["prompt_ids"]))
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
