"""TRL's trainers, run for real on a CPU: their optimiser, our sandboxes, a tiny model."""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="TRL is not in this environment (scripts/trainers.sh trl)")

from sprout_env.integrations.trl_async import (
    LocalWeightTransfer,
    SproutRolloutWorker,
    rollout_samples,
)
from sprout_env.records import Attempts
from sprout_env.transcript import Turn
from tests.integrations import tiny
from tests.integrations.cpu_attention import stand_in
from tests.integrations.world import World, save
from tests.records.forests import forest

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.root,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def taught() -> tuple[Any, Any]:
    """A tokenizer, and a model that writes tool calls."""
    import torch

    torch.set_num_threads(1)
    tokenizer = tiny.make_tokenizer()
    model = tiny.make_model(tokenizer)
    loss = tiny.warm_up(model, tiny.conversations(tokenizer))
    assert loss < 0.2
    return tokenizer, model


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    tiny.write_log_task(tmp_path / "tasks")
    return tmp_path / "tasks"


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)


def train_async(
    world: World, model: Any, tokenizer: Any, out: Path, *, steps: int, worker: Any, transfer: Any
) -> Any:
    from datasets import Dataset
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    trainer = AsyncGRPOTrainer(
        model=model,
        processing_class=tokenizer,
        args=AsyncGRPOConfig(
            output_dir=str(out),
            per_device_train_batch_size=6,
            max_steps=steps,
            learning_rate=1.5e-4,
            token_budget=1024,
            max_staleness=4,
            logging_steps=1,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list([{"prompt": tiny.INSTRUCTION}] * 4),
        reward_funcs=lambda **_: 0.0,
        rollout_worker=worker,
        weight_transfer=transfer,
    )
    trainer.train()
    return trainer


def weights(model: Any) -> Any:
    import torch

    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


def test_async_grpo_learns_from_sprout_groups_in_real_sandboxes(
    taught: tuple[Any, Any],
    tasks: Path,
    shared_store: Path,
    tmp_path: Path,
    cpu: None,
    record_property: Any,
) -> None:
    tokenizer, model = taught
    world = World(tokenizer, copy.deepcopy(model), tasks, shared_store, seed=1)
    kept: list[Attempts] = []
    worker = SproutRolloutWorker(world.collect, ahead=6, on_group=kept.append)
    transfer = LocalWeightTransfer(world.sampler)
    before = weights(world.sampler.model)
    steps = 8
    trainer = train_async(
        world,
        save(model, tokenizer, tmp_path / "model"),
        tokenizer,
        tmp_path / "out",
        steps=steps,
        worker=worker,
        transfer=transfer,
    )
    log = [entry for entry in trainer.state.log_history if "loss" in entry]
    record_property("root reward by group", world.roots)
    record_property("last log", str(log[-1]))
    assert len(log) == steps
    assert all(math.isfinite(entry["loss"]) for entry in log)
    assert max(abs(entry["ratio"] - 1) for entry in log if "ratio" in entry) < 0.05
    assert transfer.syncs == steps + 1
    assert float((weights(world.sampler.model) - before).abs().max()) > 1e-5
    assert any(a.kind == "branch" for c in kept for a in c.attempts)
    assert any(a.passed for c in kept for a in c.attempts)
    packing = [entry["batch/packing_ratio"] for entry in log if "batch/packing_ratio" in entry]
    record_property("packing", packing)
    assert statistics.mean(packing) > 1.2


def test_masks_of_a_branch(taught: tuple[Any, Any], tasks: Path, shared_store: Path) -> None:
    tokenizer, model = taught
    world = World(tokenizer, copy.deepcopy(model), tasks, shared_store, seed=2)
    number = 0
    collection = world.collect(number, size=4, roots=1)
    while not any(attempt.kind == "branch" for attempt in collection.attempts):
        number += 1
        collection = world.collect(number, size=4, roots=1)
    by_advantage = {s.metrics["reward"] for s in rollout_samples(collection, 7)}
    assert by_advantage <= {0.0, 1.0}
    group = {a.id: a for a in collection.attempts}
    for sample in rollout_samples(collection, 7):
        assert sample.group_id == 7
        assert len(sample.input_ids) == len(sample.completion_mask) == len(sample.old_log_probs)
        trained = [
            tokenizer.decode(piece)
            for piece in _runs(sample.input_ids.tolist(), sample.completion_mask.tolist())
        ]
        # Every run of trained tokens is a whole answer that the model sampled, to its last token.
        sampled = {
            tokenizer.decode(list(turn.trace.token_ids))
            for attempt in group.values()
            for turn in attempt.entries
            if isinstance(turn, Turn) and turn.provenance == "policy" and turn.trace
        }
        assert trained
        assert set(trained) <= sampled
        pairs = list(zip(sample.old_log_probs, sample.completion_mask, strict=True))
        assert all(p < 0 for p, m in pairs if m)
        assert all(p == 0 for p, m in pairs if not m)


def _runs(ids: list[int], mask: list[int]) -> Iterator[list[int]]:
    run: list[int] = []
    for token, on in zip([*ids, 0], [*mask, 0], strict=True):
        if on:
            run.append(token)
        elif run:
            yield run
            run = []


def test_a_dead_producer_ends_training(
    taught: tuple[Any, Any], tmp_path: Path, tasks: Path, shared_store: Path, cpu: None
) -> None:
    tokenizer, model = taught
    world = World(tokenizer, copy.deepcopy(model), tasks, shared_store, seed=3)

    def collect(number: int) -> Attempts:
        raise OSError("the disk is gone")

    worker = SproutRolloutWorker(collect)
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match="rollout worker has failed"):
        train_async(
            world,
            save(model, tokenizer, tmp_path / "model"),
            tokenizer,
            tmp_path / "out",
            steps=2,
            worker=worker,
            transfer=LocalWeightTransfer(world.sampler),
        )
    assert time.monotonic() - begun < 60
    worker.stop()


@pytest.mark.parametrize("seed", [5, 7, 10, 11])
def test_the_tree_of_a_group_scores_as_its_rows_do(
    taught: tuple[Any, Any], seed: int, cpu: None
) -> None:
    """TRL's own trie over our rows: the same log-probabilities as plain forwards, fewer tokens."""
    import torch
    from transformers import LlamaForCausalLM
    from trl.experimental.async_grpo import packing

    _, model = taught
    packing.register_tree_attention()
    folded = LlamaForCausalLM._from_config(
        copy.deepcopy(model.config), attn_implementation=packing.TREE_ATTENTION
    )
    folded.load_state_dict(model.state_dict())
    for each in (model, folded):
        each.eval()
    collection = Attempts(task="t", attempts=forest(seed))
    row = packing.TreeRow()
    raw, plain = 0, []
    for sample in rollout_samples(collection, 1):
        raw += len(sample.input_ids)
        row.add(
            {
                "input_ids": torch.tensor(sample.input_ids),
                "completion_mask": torch.tensor(sample.completion_mask),
                "old_log_probs": torch.tensor(sample.old_log_probs),
                "advantage": sample.advantage,
                "group_id": sample.group_id,
            }
        )
        ids = torch.tensor(sample.input_ids)[None]
        with torch.no_grad():
            log = torch.log_softmax(model(input_ids=ids).logits[0], -1)
        plain += [
            float(log[at - 1, ids[0, at]]) for at, on in enumerate(sample.completion_mask) if on
        ]
    packed = row.pack()
    with torch.no_grad():
        out = folded(
            input_ids=packed["input_ids"][None],
            position_ids=packed["position_ids"][None],
            tree_kv_index=packed["tree_kv_index"],
            tree_cu_seqlens_q=packed["tree_cu_seqlens_q"],
            tree_cu_seqlens_k=packed["tree_cu_seqlens_k"],
            tree_max_seqlen_q=int(packed["tree_max_seqlens"][0]),
            tree_max_seqlen_k=int(packed["tree_max_seqlens"][1]),
        )
    log = torch.log_softmax(out.logits[0], -1)
    at = packed["token_index"]
    found = log[at, packed["shift_labels"][at]]
    assert len(found) == len(plain) > 0
    assert float((found - torch.tensor(plain)).abs().max()) < 1e-5
    assert len(packed["input_ids"]) < raw
