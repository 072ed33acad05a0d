"""Tinker's own classes take our data, and its client writes them as it would to its server."""

from __future__ import annotations

import pytest

pytest.importorskip("tinker", reason="tinker is not in this environment (scripts/trainers.sh)")

import numpy as np

from sprout_env.integrations.exports import learner_rows, tinker_data
from sprout_env.records import Attempts, advantages
from tests.records.forests import forest

pytestmark = [pytest.mark.trainers, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("loss", ["importance_sampling", "ppo"])
def test_tinker_s_client_sends_what_our_records_say(loss: str) -> None:
    import tinker
    from tinker.proto.request_conv import forward_backward_request_to_proto

    for seed in range(20):
        collection = Attempts(task="t", attempts=forest(seed))
        group, rows = learner_rows(collection)
        worth = advantages(group)
        data = [
            tinker.Datum(
                model_input=tinker.ModelInput.from_ints(told["model_input"]),
                loss_fn_inputs=told["loss_fn_inputs"],
            )
            for told in tinker_data(collection)
        ]
        sent = forward_backward_request_to_proto(
            tinker.types.ForwardBackwardRequest(
                forward_backward_input=tinker.types.ForwardBackwardInput(data=data, loss_fn=loss),
                model_id="m",
                seq_id=1,
            )
        )
        for row, datum in zip(rows, sent.data, strict=True):
            (chunk,) = datum.model_input
            seen = np.frombuffer(chunk.encoded_text.tokens, np.int32)
            told = {
                name: np.frombuffer(one.dense, np.int64 if name == "target_tokens" else np.float32)
                for name, one in datum.loss_fn_inputs.items()
            }
            assert set(told) == {"target_tokens", "logprobs", "advantages"}
            assert (*seen, told["target_tokens"][-1]) == row.token_ids
            assert tuple(told["target_tokens"]) == row.token_ids[1:]
            assert np.allclose(told["logprobs"], row.logprobs[1:])
            assert np.allclose(
                told["advantages"], [worth[row.attempt] * on for on in row.loss_mask[1:]]
            )
