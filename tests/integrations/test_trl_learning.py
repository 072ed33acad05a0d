"""TRL's optimiser learns a bundled task's risky step from its verdicts, and nothing from chance.

``GRPOTrainer(environment_factory=...)`` drives our env in native sandboxes. Each attempt begins at
a snapshot of the seedbed task ``service-config-handover``: its recorded right path was played, 21
commands, all but the step ``sudo-rule``. The model was taught to write the playbook's four commands
for that step, the right one and three plausible wrong ones, and chooses among them by chance until
the task's own verifier has told it otherwise. The instruction stays out of its prompt: a model of
0.3 million weights reads no 900 tokens, and they would be most of the work.
"""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("trl", reason="TRL is not in this environment (scripts/trainers.sh trl)")

from sprout_env.disks import open_store
from sprout_env.disks.images.aliases import SEEDBED_BASE, alias
from sprout_env.env import SproutEnv
from sprout_env.integrations.trl_sync import tool_environment
from sprout_env.snapshots import SnapshotTree
from sprout_env.tasks.playbook import load_playbook
from sprout_env.tasks.suites import SEEDBED
from sprout_env.tasks.task import FolderImage
from tests.integrations import tiny
from tests.integrations.world import save

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.root,
    pytest.mark.timeout(3000),
    pytest.mark.filterwarnings("ignore"),
]

TASK, LEFT = "service-config-handover", "sudo-rule"
SEEDS = (0, 1, 2)
UPDATES, GROUP = 10, 8


class Lesson(NamedTuple):
    """What every training of this module begins with."""

    factory: Any
    judge: Any
    snapshot: str
    tokenizer: Any = None
    model: str = ""


@pytest.fixture(scope="module")
def lesson(
    shared_store: Path, debian_base: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lesson]:
    """A snapshot with one step left, and a model that knows four ways to take it by heart."""
    import torch
    import trl
    from transformers.utils import get_json_schema

    torch.set_num_threads(1)
    alias(shared_store, SEEDBED_BASE, FolderImage(path=debian_base))
    book = load_playbook(SEEDBED / TASK)
    left = book.step(LEFT)
    ways = [left.command, *(wrong.command for wrong in left.wrong)]
    where = {"suite": "seedbed", "store": str(shared_store)}
    env = SproutEnv(task=TASK, **where)
    env.reset()
    for step in book.steps:
        if step is not left:
            env.step(step.command)
    factory: Any = tool_environment(**where)
    begun = Lesson(silent(factory), factory.get_reward, env.snapshot())
    env.close()
    tool = begun.factory()
    played = []
    for command in ways:
        tool.reset(snapshot=begun.snapshot)
        played.append([(command, tool.bash(command))])
        assert begun.judge(tool) == float(command == left.command)
    schema = [get_json_schema(tool.bash)]
    tokenizer = tiny.make_tokenizer(str(schema), *map(json.dumps, ways), size=600)
    templates = Path(trl.__file__).parent / "chat_templates"
    tokenizer.chat_template = (templates / "qwen2_5.jinja").read_text()
    model = tiny.make_model(tokenizer, width=128, layers=2)
    taught = tiny.tool_conversations(tokenizer, schema, "Task: ", played)
    # All that it does not know is which of four.
    assert tiny.warm_up(model, taught, steps=300, rate=4e-3) < 0.025
    path = save(model, tokenizer, tmp_path_factory.mktemp("model"))
    yield begun._replace(tokenizer=tokenizer, model=path)
    tree = SnapshotTree(open_store(shared_store))
    try:
        # Hundreds of attempts have left nothing but where they began.
        assert [each.id for each in tree.list()] == [begun.snapshot]
        tree.release(begun.snapshot)
    finally:
        tree.close()


def silent(factory: Any) -> Any:
    """Return a factory whose envs keep the instruction to themselves, and the reward for us."""

    class Silent(factory):  # type: ignore[misc]
        get_reward = None  # TRL would ask it; here the reward passes through our hands

        def reset(self, **row: Any) -> str:
            super().reset(**row)
            return ""

    return Silent


def train(lesson: Lesson, out: Path, seed: int, *, shuffled: bool) -> list[float]:
    """Return the mean reward that the verifier gave in each update of one training."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    chance, owed = random.Random(seed), 0.0
    rewards: list[float] = []

    def judge(environments: list[Any], **_: Any) -> list[float]:
        nonlocal owed
        found = [lesson.judge(environment) for environment in environments]
        assert None not in found
        rewards.append(statistics.mean(found))
        if shuffled:
            found, owed = shuffle(found, chance, owed)
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
            max_tool_calling_iterations=1,
            # Cool, the four ways stay as likely and a slip in the hundred words of one is rare.
            temperature=0.7,
            # Steps of bounded length that shrink with the gradient: the words that were taught do
            # not break, as they do under Adam's, where one unlikely word or noise is all there is.
            optim="sgd",
            learning_rate=0.2,
            max_grad_norm=0.12,
            lr_scheduler_type="constant",
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
        environment_factory=lesson.factory,
        reward_funcs=judge,
    )
    trainer.train()
    log = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(log) == len(rewards) == UPDATES
    # The model writes what it was taught throughout: what changes is which.
    assert max(entry["tools/failure_frequency"] for entry in log) < 0.1
    return rewards


def shuffle(found: list[float], chance: random.Random, owed: float) -> tuple[list[float], float]:
    """Give as many attempts the reward 1, but passed and failed ones equally often.

    Drawn freely, the rewards of a hundred attempts favour the right command by luck in one seed
    of three, so much that it is learned: a control must know nothing, not too little.

    Args:
        found: The verifier's rewards, of 0 and 1.
        chance: Says which attempts.
        owed: The fraction of a passed attempt that earlier shuffles left over.

    Returns:
        The rewards, and what is left over now.
    """
    passed = [n for n, reward in enumerate(found) if reward]
    failed = [n for n, reward in enumerate(found) if not reward]
    fair = len(passed) ** 2 / len(found) + owed
    kept = min(max(round(fair), len(passed) - len(failed), 0), len(passed))
    given = {*chance.sample(passed, kept), *chance.sample(failed, len(passed) - kept)}
    return [float(n in given) for n in range(len(found))], fair - kept


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
