"""What the exporters write, for random forests: the same tokens, masks and rewards everywhere."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sprout_env.errors import ConfigError, GroupWithoutReward, TokensDiverge, TrainerUnsupported
from sprout_env.integrations import exports, pins
from sprout_env.records import Attempts, advantages
from sprout_env.records.reviews import Exchange, ReviewMessage, ReviewRecord
from sprout_env.transcript import TokenTrace, Turn
from tests.records.forests import attempt, forest

LAWS = settings(max_examples=60, deadline=None)
collections = st.integers(0, 2**31).map(lambda seed: Attempts(task="t", attempts=forest(seed)))


@LAWS
@given(collections)
def test_every_export_says_the_same(collection: Attempts) -> None:
    group, rows = exports.learner_rows(collection)
    worth = advantages(group)
    verl = exports.verl_rows(collection, "u7")
    tinker = exports.tinker_data(collection)
    skyrl = exports.skyrl_output(collection)
    slime = exports.slime_samples(collection, 3)
    areal = exports.areal_batch(collection)
    rllm = exports.rllm_episodes(collection, 3)
    art = exports.art_groups(collection, str)["trajectories"]
    assert len({key for key, _ in verl}) == len(rows)
    assert {key.rsplit("_", 2)[0] for key, _ in verl} == {"u7"}
    for n, row in enumerate(rows):
        told = verl[n][1]
        assert (*told["prompt_ids"], *told["response_ids"]) == row.token_ids
        lengths = {len(told[f"response_{part}"]) for part in ("ids", "mask", "logprobs")}
        # A branch's starting turn, too, is no part of the prompt that the group shares.
        assert lengths == {len(row.token_ids) - min(each.prompt_length for each in rows)}
        assert told["reward_score"] == row.reward
        datum = tinker[n]["loss_fn_inputs"]
        assert (tinker[n]["model_input"][0], *datum["target_tokens"]) == row.token_ids
        for on, value in zip(row.loss_mask[1:], datum["advantages"], strict=True):
            assert value == (worth[row.attempt] if on else 0.0)
        assert (*skyrl["prompt_token_ids"][n], *skyrl["response_ids"][n]) == row.token_ids
        assert tuple(slime[n]["tokens"]) == row.token_ids
        assert len(slime[n]["loss_mask"]) == slime[n]["response_length"]
        assert slime[n]["train_metadata"]["advantage"] == worth[row.attempt]
        length = sum(areal["attention_mask"][n])
        assert tuple(areal["input_ids"][n][:length]) == row.token_ids
        assert tuple(areal["loss_mask"][n][:length]) == row.loss_mask
        assert not any(areal["loss_mask"][n][length:])
        steps = rllm[n]["trajectories"][0]["steps"]
        assert sum(len(step["response_ids"]) for step in steps) == sum(row.loss_mask)
        choices = [item for item in art[n]["messages_and_choices"] if "logprobs" in item]
        assert sum(len(c["logprobs"]["content"]) for c in choices) == sum(row.loss_mask)


def test_bad_input_is_refused_before_anything_is_written() -> None:
    lost = Attempts(task="t", attempts=(attempt("x", (Turn(command="a"),), None),))
    with pytest.raises(GroupWithoutReward):
        exports.verl_rows(lost, "u")
    bare = Attempts(task="t", attempts=(attempt("x", (Turn(command="a"),), 1.0),))
    with pytest.raises(TokensDiverge):
        exports.tinker_data(bare)
    said = "the third command deletes the table before it was ever copied over"
    turn = Turn(
        command="a", message=said, trace=TokenTrace(prompt_ids=(1,), token_ids=(2,), logprobs=(-1,))
    )
    exchange = Exchange(
        part="analyst",
        attempt="x",
        messages=(ReviewMessage(role="user", content="look"),),
        answer=said,
    )
    review = ReviewRecord(id="r", task="t", round=1, failures=("x",), exchanges=(exchange,))
    leaky = Attempts(task="t", attempts=(attempt("x", (turn,), 1.0),), reviews=(review,))
    with pytest.raises(ConfigError, match="text of a review"):
        exports.slime_samples(leaky, 0)


def test_a_trainer_of_another_series_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins, "installed", lambda name: "2.0.1")
    for name, pin in pins.PINS.items():
        with pytest.raises(TrainerUnsupported, match=f"{pin.distribution} 2.0.1"):
            pins.check(name)
    monkeypatch.setattr(pins, "installed", lambda name: None)
    with pytest.raises(ConfigError, match=r"trl is not installed; .*trainer_env.sh trl"):
        pins.check("trl")
    monkeypatch.setattr(pins, "installed", lambda name: f"{pins.PINS[name].series}.9")
    assert all(pins.check(name).startswith(pin.series) for name, pin in pins.PINS.items())
