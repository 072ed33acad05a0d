"""verl's own trainer learns from our groups: its loop, workers, FSDP engine and loss, on a CPU."""

from __future__ import annotations

import json
import math
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl is not in this environment (scripts/trainers.sh verl)")

import numpy as np

from sprout_env.integrations.exports import verl_rows
from sprout_env.records import advantages, group_of
from tests.integrations import tiny, verl_cpu
from tests.integrations.verl_world import on_a_cpu, prepare
from tests.integrations.world import World

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.root,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),
]


def rows(path: Path, *tasks: str) -> str:
    """Write a data set whose rows name tasks."""
    from datasets import Dataset

    prompt = [{"role": "user", "content": ""}]
    told = [{"prompt": prompt, "task": task, "data_source": task} for task in tasks]
    Dataset.from_list(told).to_parquet(path)
    return str(path)


def unjudged(suite: Path) -> None:
    """Write a task that is never judged, and one that is only where line 2 is right."""
    test = tiny.write_log_task(suite, "broken") / "tests" / "test.sh"
    test.write_text("exit 0\n")
    test = tiny.write_log_task(suite, "half") / "tests" / "test.sh"
    test.write_text('[ "$(sed -n 2p /srv/log)" = b ] || exit 0\n' + test.read_text())


@pytest.fixture
def short() -> Iterator[str]:
    """A folder whose name is short enough for Ray's sockets."""
    folder = tempfile.mkdtemp(prefix="ray")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def weights(folder: Path) -> dict[str, Any]:
    from transformers import AutoModelForCausalLM

    return dict(AutoModelForCausalLM.from_pretrained(folder).state_dict())


def test_verl_s_own_loop_validates_trains_and_sends_its_weights(
    tmp_path: Path, shared_store: Path, short: str
) -> None:
    unjudged(tmp_path / "tasks")
    command = [
        *(sys.executable, "-m", "verl.trainer.main_ppo"),
        *prepare(tmp_path, shared_store),
        *on_a_cpu(),
        f"data.train_files={rows(tmp_path / 'train.parquet', 'first', 'broken')}",
        f"data.val_files={rows(tmp_path / 'val.parquet', 'first', 'half', 'broken')}",
        "data.train_batch_size=2",
        "data.dataloader_num_workers=0",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "actor_rollout_ref.rollout.val_kwargs.n=4",
        "actor_rollout_ref.actor.checkpoint.save_contents=[hf_model]",
        "trainer.save_freq=2",
        "trainer.total_epochs=2",
        "trainer.logger=[file]",
        f"trainer.default_local_dir={tmp_path}/saved",
        "reward.num_workers=0",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        "ray_kwargs.ray_init.num_cpus=16",
        "+ray_kwargs.ray_init.include_dashboard=false",
        "+ray_kwargs.ray_init.object_store_memory=200000000",
        f"+ray_kwargs.ray_init._temp_dir={short}",
    ]
    environ = os.environ | {
        **verl_cpu.ENVIRON,
        "VERL_FILE_LOGGER_PATH": str(tmp_path / "metrics.jsonl"),
        "OMP_NUM_THREADS": "1",
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "SPROUT_STORE": str(shared_store),
    }
    subprocess.run(command, cwd=tmp_path, env=environ, check=True, timeout=800)
    validated, *steps = [json.loads(line)["data"] for line in (tmp_path / "metrics.jsonl").open()]
    # Attempts without a verdict are no zeros: they are in no mean, and counted apart.
    assert validated["val-aux/first/unjudged/mean@4"] == 0
    (judged,) = (n for n in (1, 2, 3) if f"val-core/half/reward/mean@{n}" in validated)
    assert validated[f"val-aux/half/unjudged/mean@{judged}"] == 4 - judged
    assert validated[f"val-core/half/reward/mean@{judged}"] > 0
    assert not any("broken" in name for name in validated)
    assert len(steps) == 2
    for step in steps:
        # What verl computes again is what our records say was sampled, also after an update.
        assert step["training/rollout_probs_diff_valid"] == 1
        assert step["training/rollout_probs_diff_max"] < 1e-4
        assert step["training/off_policy/trajectory_staleness/max"] == 0
        assert math.isfinite(step["actor/loss"])
        spread = step["critic/score/min"] < step["critic/score/max"]
        assert (step["actor/grad_norm"] > 0) == spread
    assert any(step["actor/grad_norm"] > 0 for step in steps)
    before, after = weights(tmp_path / "model"), weights(next(tmp_path.rglob("huggingface")))
    assert all(tensor.isfinite().all() for tensor in after.values())
    assert all(not after[name].equal(before[name]) for name in before)


@pytest.fixture
def actor(
    tmp_path: Path, shared_store: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Any, Any]]:
    """verl's actor worker in this process, and its configuration."""
    import torch
    from hydra import compose, initialize_config_module

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    alone = {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in {**verl_cpu.ENVIRON, **alone}.items():
        monkeypatch.setenv(name, str(value))
    verl_cpu.stand_in(monkeypatch.setattr)
    from verl.workers import engine_workers

    overrides = [*prepare(tmp_path, shared_store), *on_a_cpu()]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=overrides)
    config.actor_rollout_ref.model.external_lib = None
    config.actor_rollout_ref.actor.optim.total_training_steps = 1
    torch.distributed.init_process_group("gloo")
    try:
        worker = engine_workers.ActorRolloutRefWorker(config.actor_rollout_ref, role="actor")
        worker.init_model()
        yield worker, config
    finally:
        torch.distributed.destroy_process_group()


def test_verl_s_actor_learns_where_our_masks_and_advantages_say(
    actor: tuple[Any, Any], tmp_path: Path, shared_store: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
    from verl.protocol import DataProto
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
    from verl.utils import tensordict_utils as tu
    from verl.workers.utils.padding import response_from_nested, response_to_nested

    worker, config = actor
    tiny.write_log_task(tmp_path / "tasks", "log")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    world = World(tokenizer, model, tmp_path / "tasks", shared_store, 3)
    # Until a group teaches, and one of its branches has turns of its own.
    for number in range(20):
        collection = world.collect(number)
        keyed = verl_rows(collection, "u")
        told = [AgentLoopOutput(**row).as_dict() for _, row in keyed]
        ours = advantages(group_of(collection.attempts), "grpo")
        worth = [ours[row["extra_fields"]["attempt"]] for row in told]
        kinds = {a.id: a.kind for a in collection.attempts}
        if any(
            w and kinds[row["extra_fields"]["attempt"]] == "branch" and row["response_mask"].any()
            for w, row in zip(worth, told, strict=True)
        ):
            break
    else:
        raise AssertionError("no branch of 20 groups teaches")
    assert len({tuple(row["prompts"].tolist()) for row in told}) == 1

    def nested(pieces: list[Any]) -> Any:
        return torch.nested.as_nested_tensor(pieces, layout=torch.jagged)

    ids = [torch.cat([row["prompts"], row["responses"]]) for row in told]
    data = tu.get_tensordict(
        {
            **{k: nested([row[k] for row in told]) for k in ("prompts", "responses")},
            "input_ids": nested(ids),
            "position_ids": nested([torch.arange(len(one)) for one in ids]),
            "response_mask": nested([row["response_mask"] for row in told]),
            "loss_mask": nested([row["response_mask"] for row in told]),
        },
        {"temperature": 1.0, "compute_loss": False, "micro_batch_size_per_gpu": len(told)},
    )

    def recompute() -> Any:
        found = worker.compute_log_prob(data.clone())["log_probs"]
        return response_from_nested(found, data["response_mask"]).to_padded_tensor(0.0)

    old = recompute()
    mask = data["response_mask"].to_padded_tensor(0)
    sampled = nested([row["rollout_log_probs"] for row in told]).to_padded_tensor(0.0)
    assert torch.allclose(old[mask == 1], sampled[mask == 1], atol=1e-4)

    scores = nested([row["rm_scores"] for row in told]).to_padded_tensor(0.0)
    rated = compute_advantage_for_multi_trajectories(
        DataProto.from_dict(
            {"token_level_rewards": scores, "response_mask": mask},
            non_tensors={"uid": np.array(["u"] * len(told), dtype=object)},
        ),
        [key for key, _ in keyed],
        "grpo",
    ).batch["advantages"]
    assert torch.allclose(rated, torch.tensor(worth)[:, None] * mask, atol=1e-3)

    data["old_log_probs"] = response_to_nested(old, data["response_mask"])
    data["advantages"] = response_to_nested(rated, data["response_mask"])
    tu.assign_non_tensor(
        data, compute_loss=True, global_batch_size=len(told), mini_batch_size=len(told)
    )
    module = worker.actor.engine.module
    slopes: list[Any] = []
    before = {name: one.full_tensor().clone() for name, one in module.named_parameters()}
    hook = module.lm_head.register_forward_hook(
        lambda _module, _given, logits: logits.register_hook(slopes.append) and None
    )
    metrics = worker.update_actor(data.clone())["metrics"]
    hook.remove()
    assert math.isfinite(metrics["loss"][0])
    assert metrics["grad_norm"][0] > 0
    # A token's gradient lies on the logits before it: where it is masked, there is none at all.
    (slope,) = slopes
    for row, one, value in zip(slope, told, worth, strict=True):
        first = len(one["prompts"]) - 1
        on = torch.zeros(len(row), dtype=torch.bool)
        on[first : first + len(one["response_mask"])] = (one["response_mask"] == 1) & (value != 0)
        assert not row[~on].any()
        assert row[on].any(-1).all()
    assert all(not one.full_tensor().equal(before[name]) for name, one in module.named_parameters())
    # And the step went where the advantages point.
    assert ((recompute() - old) * rated).sum() > 0
