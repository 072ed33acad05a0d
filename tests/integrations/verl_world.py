"""The recipe for verl as it stands in docs/integrations.md, and what a tiny model needs there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.integrations import tiny
from tests.integrations.recipes import blocks
from tests.integrations.world import save


def prepare(folder: Path, store: Path) -> list[str]:
    """Write a model, a task and ``loops.yaml``; return the overrides of verl's configuration."""
    import torch

    torch.set_num_threads(1)
    tokenizer = tiny.make_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    model = tiny.make_model(tokenizer)
    tiny.warm_up(model, tiny.conversations(tokenizer))
    tiny.write_log_task(folder / "tasks", "first")
    (loops,) = map(yaml.safe_load, blocks("verl", "yaml"))
    (command,) = blocks("verl", "text")
    told: dict[str, Any] = loops[0]["sprout"]
    told |= {
        "tasks_path": str(folder / "tasks"),
        "store": str(store),
        "limits": {"max_turns": 3},
        "max_tokens": 48,
        "reviewer": {
            "kind": "simulated",
            "folders": [str(folder / "tasks" / "first")],
            "reviewer_accuracy": 1.0,
        },
    }
    (folder / "loops.yaml").write_text(yaml.safe_dump(loops))
    return [
        *command.split()[3:],
        f"actor_rollout_ref.rollout.agent.agent_loop_config_path={folder}/loops.yaml",
        f"actor_rollout_ref.model.path={save(model, tokenizer, folder / 'model')}",
        "actor_rollout_ref.rollout.prompt_length=128",
        "actor_rollout_ref.rollout.response_length=320",
        "actor_rollout_ref.rollout.agent.num_workers=1",
    ]


def on_a_cpu() -> list[str]:
    """Return the settings that a CPU and a tiny model need; nothing of verl is switched off."""
    return [
        "trainer.device=cpu",
        "trainer.n_gpus_per_node=1",
        "+ray_kwargs.ray_init.num_gpus=1",
        "actor_rollout_ref.model.external_lib=verl_tiny",
        "actor_rollout_ref.rollout.name=tiny",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
        "actor_rollout_ref.rollout.free_cache_engine=false",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
        "actor_rollout_ref.model.use_remove_padding=false",
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        "actor_rollout_ref.actor.strategy=fsdp2",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
        "actor_rollout_ref.actor.fsdp_config.use_torch_compile=false",
        "+actor_rollout_ref.actor.fsdp_config.mixed_precision={param_dtype:fp32}",
        "actor_rollout_ref.actor.optim.lr=1e-3",
    ]
