"""Groups as the records of trainers that we cannot run here: plain data, in their field names.

Each function takes a group and gives what one library calls a sample, a datum or a trajectory.
Unscorable attempts are in no group, so none of them can become a reward of 0; review text is
refused before anything is written. docs/integrations.md says which of these a test has shown to
the library itself, and which follow its schema only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sprout_env.errors import ConfigError
from sprout_env.records.advantages import Estimator, advantages
from sprout_env.records.attempt import Attempt
from sprout_env.records.groups import Group, TokenRow, group_of, review_leaks, token_row
from sprout_env.records.reviews import Attempts
from sprout_env.transcript import Turn


def learner_rows(collection: Attempts, **options: Any) -> tuple[Group, tuple[TokenRow, ...]]:
    """Return a collection's group and its token rows, checked for text of reviews.

    Args:
        collection: All that a method did for one task.
        **options: Of ``group_of``.

    Raises:
        GroupWithoutReward: Nothing was judged.
        TokensDiverge: A row is not what the model saw.
        ConfigError: Text of a review is in a row.
    """
    group = group_of(collection.attempts, **options)
    leaks = review_leaks(group.rows, collection.reviews)
    if leaks:
        raise ConfigError(f"text of a review is in a row of task {group.task}: {leaks[0]}")
    return group, tuple(token_row(row) for row in group.rows)


def verl_rows(
    collection: Attempts, uid: str, *, response_length: int | None = None, **options: Any
) -> list[tuple[str, dict[str, Any]]]:
    """Return keys ``{uid}_{session}_{index}`` and the arguments of verl's ``AgentLoopOutput``.

    Each attempt is a session of its own: verl takes the advantage of a session from its last
    output. A branch's shared prefix stands in ``response_ids`` with mask 0, never in the prompt,
    which verl cuts on the left. What is longer than ``response_length`` is cut at its end.
    Attempts without a verdict are in no row; how many, ``reward_extra_info`` tells verl's metrics.
    """
    _, rows = learner_rows(collection, **options)
    cut = min(row.prompt_length for row in rows)
    unjudged = len(collection.attempts) - len(rows)
    made = []
    for session, row in enumerate(rows):
        end = len(row.token_ids) if response_length is None else cut + response_length
        steps = [version for version in row.versions if version >= 0]
        told = {
            "prompt_ids": list(row.token_ids[:cut]),
            "response_ids": list(row.token_ids[cut:end]),
            "response_mask": list(row.loss_mask[cut:end]),
            "response_logprobs": list(row.logprobs[cut:end]),
            "reward_score": row.reward,
            "num_turns": _turns(collection, row.attempt),
            "metrics": {},
            "extra_fields": {
                "attempt": row.attempt,
                "min_global_steps": min(steps, default=None),
                "max_global_steps": max(steps, default=None),
                "reward_extra_info": {"unjudged": unjudged},
            },
        }
        made.append((f"{uid}_{session}_0", told))
    return made


def tinker_data(
    collection: Attempts, estimator: Estimator = "grpo", **options: Any
) -> list[dict[str, Any]]:
    """Return the arguments of Tinker's ``Datum``: targets shifted by one, an advantage per token.

    Its losses know no mask: a token without loss has the advantage 0. ``model_input`` is for
    ``ModelInput.from_ints``.
    """
    group, rows = learner_rows(collection, **options)
    worth = advantages(group, estimator)
    return [
        {
            "model_input": list(row.token_ids[:-1]),
            "loss_fn_inputs": {
                "target_tokens": list(row.token_ids[1:]),
                "logprobs": list(row.logprobs[1:]),
                "advantages": [worth[row.attempt] * on for on in row.loss_mask[1:]],
            },
        }
        for row in rows
    ]


def skyrl_output(collection: Attempts, **options: Any) -> dict[str, list[Any]]:
    """Return SkyRL's ``GeneratorOutput`` in step-wise mode: one row and one step per attempt."""
    _, rows = learner_rows(collection, **options)
    return {
        "prompt_token_ids": [list(row.token_ids[: row.prompt_length]) for row in rows],
        "response_ids": [list(row.token_ids[row.prompt_length :]) for row in rows],
        "rewards": [row.reward for row in rows],
        "loss_masks": [list(row.loss_mask[row.prompt_length :]) for row in rows],
        "rollout_logprobs": [list(row.logprobs[row.prompt_length :]) for row in rows],
        "stop_reasons": ["stop" for _ in rows],
        "trajectory_ids": [
            {"instance_id": collection.task, "repetition_id": n} for n in range(len(rows))
        ],
        "is_last_step": [True for _ in rows],
    }


def slime_samples(
    collection: Attempts, group_index: int, estimator: Estimator = "grpo", **options: Any
) -> list[dict[str, Any]]:
    """Return slime's ``Sample`` as plain data.

    slime's own normaliser takes the mean of the whole batch where groups are unequal, so the
    advantage is in ``train_metadata`` for ``--custom-reward-post-process-path``.
    """
    group, rows = learner_rows(collection, **options)
    worth = advantages(group, estimator)
    return [
        {
            "group_index": group_index,
            "index": n,
            "tokens": list(row.token_ids),
            "response_length": len(row.token_ids) - row.prompt_length,
            "loss_mask": list(row.loss_mask[row.prompt_length :]),
            "rollout_log_probs": list(row.logprobs[row.prompt_length :]),
            "reward": row.reward,
            "status": "completed",
            "remove_sample": False,
            "train_metadata": {"attempt": row.attempt, "advantage": worth[row.attempt]},
        }
        for n, row in enumerate(rows)
    ]


def areal_batch(
    collection: Attempts, estimator: Estimator = "grpo", **options: Any
) -> dict[str, list[Any]]:
    """Return AReaL's batch of ``[n, L]`` lists, padded on the right with zeros.

    AReaL normalises in slices of a fixed size; ``rewards`` are therefore our advantages, and its
    own normalisation is to be off.
    """
    group, rows = learner_rows(collection, **options)
    worth = advantages(group, estimator)
    width = max(len(row.token_ids) for row in rows)

    def padded(values: Sequence[Any], fill: Any = 0) -> list[Any]:
        return [*values, *[fill] * (width - len(values))]

    return {
        "input_ids": [padded(row.token_ids) for row in rows],
        "loss_mask": [padded(row.loss_mask) for row in rows],
        "logprobs": [padded(row.logprobs, 0.0) for row in rows],
        "versions": [padded(row.versions, -1) for row in rows],
        "attention_mask": [padded([1] * len(row.token_ids)) for row in rows],
        "rewards": [worth[row.attempt] for row in rows],
    }


def rllm_episodes(
    collection: Attempts, index: int, estimator: Estimator = "grpo", **options: Any
) -> list[dict[str, Any]]:
    """Return rLLM's ``Episode`` as plain data, one per attempt: it groups by task and name.

    A turn that carries no loss is left out: a step of rLLM is always trained.
    """
    group, _ = learner_rows(collection, **options)
    worth = advantages(group, estimator)
    made = []
    for row in group.rows:
        steps = [
            {
                "prompt_ids": list(item.entry.trace.prompt_ids),
                "response_ids": list(item.entry.trace.token_ids),
                "logprobs": list(item.entry.trace.logprobs),
                "advantage": worth[row.attempt],
                "weight_version": item.entry.trace.weight_version,
            }
            for item in row.entries
            if item.loss and isinstance(item.entry, Turn) and item.entry.trace is not None
        ]
        trajectory = {"name": "sprout", "steps": steps, "reward": row.reward}
        made.append({"id": f"{collection.task}:{index}", "trajectories": [trajectory]})
    return made


def art_groups(collection: Attempts, decode: Any, **options: Any) -> dict[str, Any]:
    """Return ART's ``TrajectoryGroup`` as plain data.

    Args:
        collection: All that a method did for one task.
        decode: Turns one token id into text, as ART reads ``token_id:N`` beside it.
        **options: Of ``group_of``.
    """
    group, _ = learner_rows(collection, **options)
    trajectories = []
    for row in group.rows:
        told: list[dict[str, Any]] = [{"role": "user", "content": row.instruction}]
        for item in row.entries:
            entry = item.entry
            if not isinstance(entry, Turn):
                told.append({"role": "user", "content": entry.text})
                continue
            content = f"{entry.message}\n{entry.command}".strip()
            message = {"role": "assistant", "content": content}
            if item.loss and entry.trace is not None:
                pairs = zip(entry.trace.token_ids, entry.trace.logprobs, strict=True)
                told.append(
                    {
                        "finish_reason": entry.trace.finish_reason or "stop",
                        "index": 0,
                        "message": message,
                        "logprobs": {
                            "content": [
                                {
                                    "token": f"token_id:{token}",
                                    "bytes": list(decode(token).encode("utf-8", "replace")),
                                    "logprob": logprob,
                                    "top_logprobs": [],
                                }
                                for token, logprob in pairs
                            ]
                        },
                    }
                )
            else:
                told.append(message)
            told.append({"role": "user", "content": entry.result.output if entry.result else ""})
        trajectories.append({"messages_and_choices": told, "reward": row.reward, "metrics": {}})
    return {"trajectories": trajectories}


def _turns(collection: Attempts, attempt: str) -> int:
    found: Attempt = next(item for item in collection.attempts if item.id == attempt)
    return 1 + sum(isinstance(entry, Turn) for entry in found.entries)
