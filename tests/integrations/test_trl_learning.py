"""TRL's optimiser learns two commands from the verifier's verdicts, and nothing from chance.

``GRPOTrainer(environment_factory=...)`` drives our env in native sandboxes. Each attempt begins at
a snapshot of the log task, after its first command. Two are left: the model was taught to write a
right one and a wrong one at each, and chooses among them by chance (about one attempt in four
passes) until the reward has told it otherwise.
"""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("trl", reason="TRL is not in this environment (scripts/trainers.sh trl)")

from sprout_env.disks import open_store
from sprout_env.env import SproutEnv
from sprout_env.integrations.trl_sync import tool_environment
from sprout_env.snapshots import SnapshotTree
from tests.integrations import tiny
from tests.integrations.world import save

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.root,
    pytest.mark.timeout(3000),
    pytest.mark.filterwarnings("ignore"),
]

SEEDS = (0, 1, 2)
UPDATES, GROUP = 25, 12


class Lesson(NamedTuple):
    """What every training of this module begins with."""

    factory: Any
    snapshot: str
    tokenizer: Any = None
    model: str = ""


@pytest.fixture(scope="module")
def lesson(shared_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lesson]:
    """A snapshot after the first command, and a model that knows the next ones by heart."""
    import torch
    import trl
    from transformers.utils import get_json_schema

    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("lesson")
    tiny.write_log_task(folder / "tasks")
    where = {"suite": "toy", "tasks_path": str(folder / "tasks"), "store": str(shared_store)}
    env = SproutEnv(task="log", **where)
    env.reset()
    env.step(tiny.A)
    begun = Lesson(tool_environment(**where, max_turns=3), env.snapshot())
    env.close()
    tool = begun.factory()
    played = []
    for commands in itertools.product((tiny.A, tiny.B), repeat=2):
        instruction = tool.reset(snapshot=begun.snapshot)
        played.append([(command, tool.bash(command)) for command in commands])
        assert tool.get_reward() == float(commands == (tiny.B, tiny.B))
    schema = [get_json_schema(tool.bash)]
    tokenizer = tiny.make_tokenizer(str(schema), size=600)
    templates = Path(trl.__file__).parent / "chat_templates"
    tokenizer.chat_template = (templates / "qwen2_5.jinja").read_text()
    model = tiny.make_model(tokenizer)
    taught = tiny.tool_conversations(tokenizer, schema, f"Task: {instruction}", played)
    # All that it does not know is which of two: its own words must not break under an update.
    assert tiny.warm_up(model, taught, steps=300) < 0.025
    yield begun._replace(tokenizer=tokenizer, model=save(model, tokenizer, folder))
    tree = SnapshotTree(open_store(shared_store))
    try:
        # Hundreds of attempts have left nothing but where they began.
        assert [each.id for each in tree.list()] == [begun.snapshot]
        tree.release(begun.snapshot)
    finally:
        tree.close()


def train(lesson: Lesson, out: Path, seed: int, *, shuffled: bool) -> list[float]:
    """Return the mean reward that the verifier gave in each update of one training."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    factory, chance = lesson.factory, random.Random(seed)
    rewards: list[float] = []

    def judge(environments: list[Any], **_: Any) -> list[float]:
        found = [factory.get_reward(environment) for environment in environments]
        assert None not in found
        rewards.append(statistics.mean(found))
        if shuffled:
            chance.shuffle(found)
        return found

    row = {"prompt": [{"role": "user", "content": "Task: "}], "snapshot": lesson.snapshot}
    trainer = GRPOTrainer(
        model=lesson.model,
        processing_class=lesson.tokenizer,
        args=GRPOConfig(
            output_dir=str(out),
            seed=seed,
            max_steps=UPDATES,
            per_device_train_batch_size=GROUP,
            num_generations=GROUP,
            max_completion_length=160,
            max_tool_calling_iterations=2,
            learning_rate=4e-4,
            lr_scheduler_type="constant_with_warmup",
            warmup_steps=3,
            beta=0.0,
            logging_steps=1,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list([row] * GROUP),
        # TRL would ask the env for its reward; here it passes through our hands.
        environment_factory=type("Judged", (factory,), {"get_reward": None}),
        reward_funcs=judge,
    )
    trainer.train()
    log = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(log) == len(rewards) == UPDATES
    # The model writes what it was taught throughout: what changes is which.
    assert max(entry["tools/failure_frequency"] for entry in log) < 0.1
    return rewards


def rise(rewards: list[float]) -> float:
    """Return the mean of the last fifth of the updates less that of the first."""
    fifth = len(rewards) // 5
    return statistics.mean(rewards[-fifth:]) - statistics.mean(rewards[:fifth])


def test_reward_rises_by_the_verdict_and_not_by_chance(
    lesson: Lesson, tmp_path: Path, record_property: Any
) -> None:
    learned = [train(lesson, tmp_path / f"{n}", n, shuffled=False) for n in SEEDS]
    control = [train(lesson, tmp_path / f"shuffled-{n}", n, shuffled=True) for n in SEEDS]
    record_property("reward by update", learned)
    record_property("reward by update, shuffled", control)
    rises = [rise(rewards) for rewards in learned]
    assert min(rises) > 0, learned
    assert statistics.mean(rises) > 0.2, learned
    drift = statistics.mean(rise(rewards) for rewards in control)
    assert drift < statistics.mean(rises) / 3, (learned, control)
