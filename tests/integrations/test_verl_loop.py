"""Our agent loop in verl's own workers and queue: groups of a tiny model in real sandboxes."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl is not in this environment (scripts/trainers.sh verl)")

import numpy as np

from sprout_env.errors import ActorError, GroupWithoutReward
from tests.integrations import tiny_server
from tests.integrations.tiny_server import TinyServer
from tests.integrations.verl_world import prepare

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.root,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),
]

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def config(tmp_path: Path, shared_store: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """verl's own configuration, with our loop in it."""
    from hydra import compose, initialize_config_module

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPROUT_STORE", str(shared_store))
    overrides = [*prepare(tmp_path, shared_store), "actor_rollout_ref.rollout.name=vllm"]
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=overrides)


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Ray and verl's TransferQueue on this machine."""
    # No token in the home folder, no reports to anybody; sockets need a short path.
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))))
    short = tempfile.mkdtemp(prefix="ray")
    import ray
    import transfer_queue as tq

    # Some package of verl's puts a folder `tests` of its own on the path of Ray's workers.
    ray.cloudpickle.register_pickle_by_value(tiny_server)
    ray.init(num_cpus=8, include_dashboard=False, object_store_memory=200 * 2**20, _temp_dir=short)
    try:
        tq.init()
        yield tq
        tq.close()
    finally:
        ray.shutdown()
        shutil.rmtree(short, ignore_errors=True)


def test_verl_s_manager_brings_groups_with_a_session_for_each_attempt(
    config: Any, queue: Any
) -> None:
    from tensordict import NonTensorData, NonTensorStack, TensorDict
    from verl.utils.import_utils import load_class_from_fqn

    name = config.actor_rollout_ref.rollout.agent.agent_loop_manager_class
    manager = load_class_from_fqn(name, "AgentLoopManager").create(
        config=config, llm_client=TinyServer(config.actor_rollout_ref.model.path)
    )
    uids = ["u0", "u1"]
    queue.kv_batch_put(
        keys=uids,
        partition_id="train",
        tags=[{"is_prompt": True, "status": "pending", "global_steps": 5} for _ in uids],
    )
    manager.generate_sequences(
        TensorDict(
            {
                "uid": NonTensorStack(*uids),
                "task": NonTensorStack("first", "first"),
                "raw_prompt": NonTensorStack("", ""),
                "index": NonTensorStack(0, 1),
                "global_steps": NonTensorData(5),
            },
            batch_size=2,
        )
    )
    deadline = time.monotonic() + 300
    while True:
        tags = queue.kv_list("train")["train"]
        if all(tags[uid]["status"] in ("finished", "failure") for uid in uids):
            break
        assert time.monotonic() < deadline, tags
        time.sleep(0.5)
    assert [tags[uid]["status"] for uid in uids] == ["finished", "finished"]
    keys = sorted(key for key in tags if "_" in key)
    assert keys == [f"{uid}_{session}_0" for uid in uids for session in range(4)]
    assert all(tags[key]["min_global_steps"] == 5 for key in keys)
    rows = [queue.kv_batch_get(keys=key, partition_id="train")[0] for key in keys]
    for row in rows:
        ids, mask = row["responses"], row["response_mask"]
        assert row["input_ids"].tolist() == [*row["prompts"].tolist(), *ids.tolist()]
        assert mask.shape == ids.shape == row["rollout_log_probs"].shape
        assert (row["rollout_log_probs"][mask == 1] < 0).all()
        assert (row["rollout_log_probs"][mask == 0] == 0).all()
        # A branch whose starting turn was its last has nothing to learn from.
        assert mask.any() or "branch" in row["extra_fields"]["attempt"]
        assert row["rm_scores"][-1] in (0.0, 1.0)


def loop_of(config: Any, server: Any) -> tuple[Any, Any]:
    """Return one of verl's workers, and our loop made as the worker makes it."""
    import hydra
    from verl.experimental.agent_loop import agent_loop as verl_loop

    worker = verl_loop.AgentLoopWorker(config, server)
    loop = hydra.utils.instantiate(
        config=verl_loop._agent_loop_registry["sprout"],
        trainer_config=verl_loop.DictConfigWrap(config=config),
        server_manager=server,
        tokenizer=worker.tokenizer,
        processor=worker.processor,
        dataset_cls=worker.dataset_cls,
        data_config=verl_loop.DictConfigWrap(config.data),
    )
    assert isinstance(loop, verl_loop.AgentLoopBase)
    return worker, loop


ASKED = {"temperature": 1.0, "logprobs": True}


def test_verl_s_worker_pads_what_the_loop_returns(config: Any) -> None:
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

    async def play() -> tuple[Any, Any]:
        worker, loop = loop_of(config, TinyServer(config.actor_rollout_ref.model.path))
        outputs: list[Any] = []
        # A tiny model passes by chance: until a group has branches.
        while not any("branch" in one.extra_fields["attempt"] for one in outputs):
            outputs = await loop.run(ASKED, uid="u", task="first")
        padded = [
            await worker._agent_loop_postprocess(one, False, raw_prompt="") for one in outputs
        ]
        return outputs, worker._postprocess(padded)

    outputs, data = asyncio.run(play())
    assert len(outputs) == len(data) == 4
    for n, one in enumerate(outputs):
        length = len(one.response_ids)
        batch = data.batch[n]
        assert batch["responses"][:length].tolist() == one.response_ids
        assert batch["response_mask"][:length].tolist() == one.response_mask
        assert not batch["response_mask"][length:].any()
        assert batch["prompts"][-len(one.prompt_ids) :].tolist() == one.prompt_ids
        assert batch["rm_scores"].sum() == batch["rm_scores"][length - 1] == one.reward_score
        if "branch" in one.extra_fields["attempt"]:
            # What the parent did, and the turn that the review wrote: seen, not learned from.
            first = (*one.response_mask, 1).index(1)
            shared = [o for o in outputs if o.response_ids[:40] == one.response_ids[:40]]
            assert first > 40
            assert len(shared) > 1
    data.batch["token_level_rewards"] = data.batch["rm_scores"]
    data.non_tensor_batch["uid"] = np.array(["u"] * len(outputs), dtype=object)
    keys = [f"u_{session}_0" for session in range(len(outputs))]
    worth = compute_advantage_for_multi_trajectories(data, keys, "grpo").batch["advantages"]
    assert not worth[data.batch["response_mask"] == 0].any()
    rewards = [one.reward_score for one in outputs]
    for n, one in enumerate(outputs):
        mean = sum(rewards) / len(rewards)
        for value in worth[n][data.batch["response_mask"][n] == 1].tolist():
            assert (value > 0) == (one.reward_score > mean)


class Mute(TinyServer):
    """A server that was not told to give log-probabilities."""

    async def generate(self, *args: Any, **kwargs: Any) -> Any:
        told = await super().generate(*args, **kwargs)
        return told.model_copy(update={"log_probs": None})


def test_nothing_to_learn_from_is_a_named_error(config: Any, tmp_path: Path) -> None:
    path = config.actor_rollout_ref.model.path

    async def play(server: Any) -> None:
        await loop_of(config, server)[1].run(ASKED, uid="u", task="first")

    with pytest.raises(ActorError, match="calculate_log_probs"):
        asyncio.run(play(Mute(path)))
    (tmp_path / "tasks" / "first" / "tests" / "test.sh").write_text("exit 0\n")
    with pytest.raises(GroupWithoutReward):
        asyncio.run(play(TinyServer(path)))
