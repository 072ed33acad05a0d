"""What cannot be learned from is refused by name, by each adapter, before anything is taken."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

from sprout_env.errors import (
    GroupWithoutReward,
    SproutError,
    TokensDiverge,
    TrainerUnsupported,
)
from sprout_env.integrations import exports, pins
from sprout_env.records import Attempts
from sprout_env.transcript import TokenTrace, Turn
from tests.records.forests import attempt

pytestmark = [pytest.mark.trainers, pytest.mark.filterwarnings("ignore")]


def adapter(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"sprout_env.integrations.{module}"), name)


ENTRIES: dict[str, Callable[[], Any]] = {
    "trl_async": lambda: adapter("trl_async", "rollout_samples")(Attempts(task="t"), 0),
    "trl_sync, groups": lambda: adapter("trl_sync", "rollout_func")(None, size=2, end=0),
    "trl_sync, envs": lambda: adapter("trl_sync", "tool_environment")(),
    "verifiers, trace": lambda: adapter("verifiers", "trace")(Attempts(task="t")),
    "verifiers, env": lambda: adapter("verifiers_env", "plugins")(),
    "verl, loop": lambda: adapter("verl", "agent_loop")(),
    "verl, manager": lambda: adapter("verl", "AgentLoopManager"),
    "openenv, server": lambda: adapter("openenv", "app")(),
    "openenv, client": lambda: adapter("openenv", "client")("http://127.0.0.1:1"),
    "skyrl-gym": lambda: adapter("skyrl_gym", "text_env")(),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_another_release_is_refused_before_it_is_imported(
    entry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pins, "installed", lambda name: "99.1.0")
    for made in (("verl", "_loop_class"), ("verl", "_manager_class"), ("verifiers_env", "plugins")):
        adapter(*made).cache_clear()
    with pytest.raises(TrainerUnsupported, match=r"99\.1\.0"):
        ENTRIES[entry]()


LEARNERS: dict[str, Callable[[Attempts], Any]] = {
    "trl_async": lambda c: adapter("trl_async", "rollout_samples")(c, 0),
    "trl_sync": lambda c: adapter("trl_sync", "rollout_func")(lambda *_: c, size=1, end=0)(
        ["p"], None
    ),
    "verifiers": lambda c: adapter("verifiers", "trace")(c),
    "verl_rows": lambda c: exports.verl_rows(c, "u"),
    "tinker_data": exports.tinker_data,
    "skyrl_output": exports.skyrl_output,
    "slime_samples": lambda c: exports.slime_samples(c, 0),
    "areal_batch": exports.areal_batch,
    "rllm_episodes": lambda c: exports.rllm_episodes(c, 0),
    "art_groups": lambda c: exports.art_groups(c, str),
}
BRANCHED = (
    Turn(command="a", trace=TokenTrace(prompt_ids=(1,), token_ids=(2,), logprobs=(-1.0,))),
    Turn(command="b", trace=TokenTrace(prompt_ids=(1, 9, 3), token_ids=(4,), logprobs=(-1.0,))),
)
BAD: dict[str, tuple[Attempts, type[SproutError]]] = {
    "nothing was judged": (
        Attempts(task="t", attempts=(attempt("x", BRANCHED[:1], None),)),
        GroupWithoutReward,
    ),
    "ids that do not concatenate": (
        Attempts(task="t", attempts=(attempt("x", BRANCHED, 1.0),)),
        TokensDiverge,
    ),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("learner", LEARNERS)
def test_a_group_that_teaches_nothing_right_is_refused(learner: str, bad: str) -> None:
    trainer = learner.partition("_")[0]
    if trainer in ("trl", "verifiers"):
        pytest.importorskip(trainer, reason=f"{trainer} is not in this environment")
    collection, error = BAD[bad]
    with pytest.raises(error):
        LEARNERS[learner](collection)
