"""TRL's ``GRPOTrainer``: an env with a ``bash`` tool that TRL drives, or groups that we bring.

Driven by TRL (``environment_factory``) an env cannot branch by itself, but a column ``snapshot``
of the data set lets its attempts begin at a snapshot. With ``rollout_func`` the groups are ours:
SPROUT's roots and branches, padded to ``num_generations`` with rows that carry neither loss nor
reward.
"""

from __future__ import annotations

import atexit
import json
import logging
import weakref
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from sprout_env.actors.dialogue import chat_messages, show_result
from sprout_env.disks import open_store
from sprout_env.env import SproutEnv
from sprout_env.env_config import EnvConfig
from sprout_env.errors import ConfigError, SnapshotError, SproutError
from sprout_env.integrations import pins
from sprout_env.records.groups import PrefixLoss, TokenRow, group_of, token_row
from sprout_env.records.reviews import Attempts
from sprout_env.search.attempts import ENDS_MORE
from sprout_env.snapshots import SnapshotTree
from sprout_env.tasks.suites import find_suite
from sprout_env.transcript import Transcript

OVER = "The episode is over."
_LOG = logging.getLogger(__name__)


def prompt_at(snapshot: str, *, store: str | Path | None = None) -> list[dict[str, Any]]:
    """Return the conversation at a snapshot: the ``prompt`` of a row that begins there.

    A user's message with the instruction, then each turn as a call of the tool ``bash`` and its
    result, as ``tool_environment`` shows them.

    Args:
        snapshot: Its id.
        store: The store's folder; None: the usual one.

    Raises:
        SnapshotNotFound: The store has no such snapshot.
    """
    with closing(SnapshotTree(open_store(None if store is None else Path(store)))) as tree:
        messages = chat_messages(tree.transcript(tree.get(snapshot)), tools=True)[1:]
    for message in messages:
        for call in message.get("tool_calls", ()):
            # A template of transformers writes JSON itself.
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return messages


def _untold(path: Transcript, prompt: Any) -> str | None:
    """Return what of a transcript a row's prompt does not say; None: nothing."""
    instruction = path.instruction.strip()
    if any(instruction in str(message["content"]) for message in prompt or ()):
        return None
    done = "".join(f"\n\n$ {turn.command}\n{show_result(turn.result)}" for turn in path.turns)
    return f"{instruction}\n\nDone so far:{done}" if done else instruction


def tool_environment(**kwargs: Any) -> Callable[[], Any]:
    """Return an ``environment_factory``: each env has a tool ``bash`` and a verifier's reward.

    Rows of the data set may have the columns ``task`` (a slug) and ``snapshot`` (an id): an
    attempt begins there, and its prompt is the conversation up to it (``prompt_at``); where it is
    not, what was to do and was done is added to it as text. TRL keeps its envs for ever and closes
    none, so each gives its sandbox back as soon as it was judged, and the rest at exit.

    What every attempt would meet (no such task, snapshot, image or store) is raised by ``reset``
    and stops the training. Trouble of one attempt is logged as a warning; its reward is None.

    Args:
        **kwargs: Arguments of ``SproutEnv``.

    Raises:
        TrainerUnsupported: TRL is of a series that this was not written for.
        ConfigError: An argument is unknown or malformed.
        TaskError: The suite, or the task among the arguments, is not here or cannot be read.
    """
    pins.check("trl")
    config = EnvConfig.told("argument of the env: ", kwargs)
    suite = find_suite(config.suite, config.tasks_path, config.dataset)
    if config.task is not None:
        suite.task(config.task)
    living: weakref.WeakSet[SproutEnv] = weakref.WeakSet()

    def close_all() -> None:
        for env in list(living):
            env.close()

    atexit.register(close_all)

    class SproutToolEnv:
        """Every public method but ``reset`` and ``get_reward`` is a tool for the model."""

        def __init__(self) -> None:
            self._env = SproutEnv(**kwargs)
            living.add(self._env)
            self._verdict: dict[str, Any] | None = None
            self._trouble: SproutError | None = None
            self._running = False
            self._begun_at = ""

        def _told(self, error: SproutError) -> None:
            self._trouble, self._running = error, False
            _LOG.warning("%s, no reward: %s: %s", self._begun_at, type(error).__name__, error)

        def reset(
            self, task: str | None = None, snapshot: str | None = None, **row: Any
        ) -> str | None:
            """Begin an attempt; return what its prompt does not say yet, which TRL adds to it."""
            self._verdict, self._trouble, self._running = None, None, False
            options = {"snapshot": snapshot} if snapshot else {"task": task} if task else {}
            self._begun_at = f"snapshot {snapshot}" if snapshot else f"task {task or config.task}"
            try:
                self._env.reset(options=options)
                self._running = True
            except (*ENDS_MORE, SnapshotError):
                raise
            except SproutError as error:
                self._told(error)
                return ""
            return _untold(self._env.transcript, row.get("prompt"))

        def bash(self, command: str) -> str:
            """Run a command.

            Args:
                command: The shell command.

            Returns:
                Its output and exit code.
            """
            if not self._running:
                return OVER
            try:
                _, _, terminated, truncated, info = self._env.step(command)
            except SproutError as error:
                # TRL would show it to the model and go on; it is no failure of the policy.
                self._told(error)
                return OVER
            if terminated or truncated:
                self._verdict, self._running = info["verdict"], False
            turn = self._env.transcript.last_turn
            return show_result(turn.result if turn else None)

        def get_reward(self) -> float | None:
            """Return the verifier's reward; None when nobody could judge the attempt."""
            try:
                if self._running:
                    self._verdict = self._env.finish().model_dump(mode="json")
            except SproutError as error:
                self._told(error)
            self._running = False
            # Judged: the disk and its boundaries are given back now, not at some later reset.
            self._env.close()
            if isinstance(self._trouble, ENDS_MORE):
                raise self._trouble
            if self._trouble is not None or self._verdict is None:
                return None
            reward = self._verdict["reward"]
            if reward is None:
                _LOG.warning("%s, no reward: %s", self._begun_at, self._verdict["reason"])
                return None
            return float(reward)

    return SproutToolEnv


def rollout_func(
    collect: Callable[[str, int], Attempts],
    *,
    size: int,
    end: int,
    prefix_loss: PrefixLoss = "once",
) -> Callable[[list[Any], Any], dict[str, list[Any]]]:
    """Return a ``rollout_func`` that brings groups of at most ``size`` rows, padded to it.

    The reward function must hand ``env_reward`` on (``env_reward``, below, does). Padding has
    reward None, which TRL leaves out of mean and deviation, and no token with loss; it is free
    with ``loss_type="dapo"``, TRL's default. TRL itself never looks at how long the rows are: they
    are cut here at the trainer's ``max_completion_length``, with a warning. A row is all turns of
    an attempt with what their commands printed.

    Args:
        collect: Brings the attempts of one prompt (its text) and group number.
        size: ``num_generations`` of the trainer.
        end: Id of the end-of-sequence token, which padding consists of.
        prefix_loss: Where shared turns carry loss.

    Raises:
        TrainerUnsupported: TRL is of a series that this was not written for.
    """
    pins.check("trl")
    groups = 0

    def produce(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        nonlocal groups
        if len(prompts) % size or any(
            prompt != prompts[at - at % size] for at, prompt in enumerate(prompts)
        ):
            raise ConfigError(f"{len(prompts)} prompts are not repeated {size} times each")
        keys = ("prompt_ids", "completion_ids", "logprobs", "env_mask", "env_reward", "is_branch")
        out: dict[str, list[Any]] = {key: [] for key in keys}
        most = getattr(trainer, "max_completion_length", None)
        for prompt in prompts[::size]:
            text = prompt if isinstance(prompt, str) else str(prompt[-1]["content"])
            collection = collect(text, groups)
            groups += 1
            group = group_of(collection.attempts, prefix_loss=prefix_loss)
            if len(group.rows) > size:
                raise ConfigError(f"a group of {len(group.rows)} rows, TRL was told {size}")
            begin: tuple[int, ...] = ()
            for row in group.rows:
                ids = token_row(row)
                begin = ids.token_ids[: ids.prompt_length]
                _add(out, ids, most, row.reward, row.kind == "branch")
            for _ in range(size - len(group.rows)):
                for key, value in zip(keys, (begin, [end], [0.0], [0], None, False), strict=True):
                    out[key].append(list(value) if isinstance(value, tuple) else value)
        return out

    return produce


def _add(
    out: dict[str, list[Any]], row: TokenRow, most: int | None, reward: float, branch: bool
) -> None:
    begin, tokens = row.prompt_length, len(row.token_ids) - row.prompt_length
    end = begin + (tokens if most is None else min(tokens, most))
    if begin + tokens > end:
        _LOG.warning(
            "a row of %d tokens is cut at max_completion_length, %d: raise it (None takes any), or "
            "keep attempts shorter by max_turns and output_chars of the run's limits and "
            "max_tokens of TokenActor",
            tokens,
            most,
        )
    out["prompt_ids"].append(list(row.token_ids[:begin]))
    out["completion_ids"].append(list(row.token_ids[begin:end]))
    out["logprobs"].append(list(row.logprobs[begin:end]))
    out["env_mask"].append(list(row.loss_mask[begin:end]))
    out["env_reward"].append(reward)
    out["is_branch"].append(branch)


def env_reward(completions: list[Any], env_reward: list[float | None], **_: Any) -> Any:
    """Hand on what the verifier said: the ``reward_funcs`` beside ``rollout_func``."""
    return env_reward
