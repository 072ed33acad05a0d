from __future__ import annotations

import json
import math
import pickle
import threading
import time
from typing import Any

import pytest

from sprout_env.actors import Actor, ChatActor, Message, load_actor
from sprout_env.actors.dialogue import NO_COMMAND, chat_messages
from sprout_env.errors import ActorUnavailable, ConfigError, ContextExceeded
from sprout_env.transcript import Notice, Result, Transcript, Turn
from tests.actors.chat_server import completion, problem, serve

START = Transcript.start("Repair the build.")


def ok(answer: dict[str, Any]) -> tuple[int, dict[str, Any], dict[str, str]]:
    return 200, answer, {}


def actor(url: str, **settings: Any) -> ChatActor:
    made = load_actor(
        {"kind": "openai", "model": "m", "base_url": url, "backoff_s": 0.001, **settings}
    )
    assert isinstance(made, ChatActor)
    return made


def ran(turn: Turn, output: str = "done\n") -> Turn:
    return turn.model_copy(update={"result": Result(output=output, exit_code=0)})


def test_a_tool_call_becomes_a_turn_with_its_bill() -> None:
    with serve(lambda body, n: ok(completion("Look.", command="ls -la"))) as server:
        made = actor(server.url, temperature=0.5, top_p=0.9, max_tokens=100, seed=7)
        assert isinstance(made, Actor)
        turn = made.act(START)
        made.close()
    assert (turn.message, turn.command, turn.provenance) == ("Look.", "ls -la", "policy")
    assert turn.result is None
    assert turn.trace is not None
    assert (turn.trace.prompt_tokens, turn.trace.cached_tokens) == (20, 5)
    assert (turn.trace.completion_tokens, turn.trace.requests) == (3, 1)
    assert turn.trace.model == "served-model"
    sent = server.requests[0]
    assert sent["tools"][0]["function"]["name"] == "bash"
    assert (sent["temperature"], sent["top_p"], sent["max_tokens"], sent["seed"]) == (
        0.5,
        0.9,
        100,
        7,
    )
    assert [message["role"] for message in sent["messages"]] == ["system", "user"]
    assert sent["messages"][1]["content"] == "Repair the build."


@pytest.mark.parametrize("style", ["tools", "text"])
def test_the_messages_of_a_turn_are_a_prefix_of_the_next_ones(style: str) -> None:
    answers = [completion("Look.", command="ls"), completion("Again\n```bash\nls -l\n```")]

    def script(body: dict[str, Any], number: int) -> tuple[int, dict[str, Any], dict[str, str]]:
        return ok(answers[number % 2])

    with serve(script) as server:
        made = actor(server.url, tools=style == "tools")
        path = START
        for number in range(5):
            path = path.append(ran(made.act(path)))
            if number == 2:
                path = path.append(Notice(text="The server on port 80 is gone."))
        made.act(path)
        # Another actor on a restored copy says the same.
        copied = Transcript.of(path.instruction, path.entries)
        again = chat_messages(copied, tools=style == "tools")
        made.close()
    sent = [request["messages"] for request in server.requests]
    for before, after in zip(sent, sent[1:], strict=False):
        assert after[: len(before)] == before
        assert len(after) > len(before)
    assert again == sent[-1]
    roles = {message["role"] for message in sent[-1]}
    assert ("tool" in roles) == (style == "tools")


def test_a_tool_call_is_sent_back_under_the_id_that_the_server_gave_it() -> None:
    with serve(lambda body, n: ok(completion("Look.", command="ls"))) as server:
        made = actor(server.url)
        made.act(START.append(ran(made.act(START))))
        made.close()
    _, _, said, result = server.requests[1]["messages"]
    assert said["tool_calls"][0]["id"] == result["tool_call_id"] == "x1"


def test_a_fenced_block_is_taken_where_no_tool_is_called() -> None:
    text = "First\n```bash\nls\n```\nbetter:\n```bash\nmake \\\n  all\n```\n"
    with serve(lambda body, n: ok(completion(text))) as server:
        made = actor(server.url)
        turn = made.act(START)
        made.close()
    assert turn.command == "make \\\n  all"
    shown = chat_messages(START.append(ran(turn)), tools=True)[2:]
    assert shown[0] == {"role": "assistant", "content": text}
    assert shown[1]["role"] == "user"
    assert shown[1]["content"] == "done\n[exit code 0]"


def test_an_answer_without_a_command_is_asked_for_once_more_and_paid_twice() -> None:
    answers = [
        completion("I am thinking."),
        completion(
            "Now.", command="make", choice={"token_ids": [1, 2]}, top={"prompt_token_ids": [9]}
        ),
    ]
    with serve(lambda body, n: ok(answers[n])) as server:
        made = actor(server.url)
        turn = made.act(START)
        made.close()
    assert turn.command == "make"
    assert turn.provenance == "policy"
    assert turn.trace is not None
    assert (turn.trace.requests, turn.trace.prompt_tokens) == (2, 40)
    # Sampled under a prompt that no transcript shows: not to be learned from.
    assert turn.trace.token_ids == ()
    extra = server.requests[1]["messages"][2:]
    assert extra[0] == {"role": "assistant", "content": "I am thinking."}
    assert "cannot be run" in extra[1]["content"]


@pytest.mark.parametrize(
    "bad",
    [
        completion("No."),
        completion(None),
        completion("x", arguments="{broken"),
        completion("x", arguments='{"cmd": "ls"}'),
        completion("x", command="  "),
        completion("x", command="ls", tool="python"),
        {**completion("x"), "choices": []},
    ],
)
def test_two_answers_without_a_command_are_told_to_the_model_by_the_result(
    bad: dict[str, Any],
) -> None:
    with serve(lambda body, n: ok(bad)) as server:
        made = actor(server.url)
        turn = made.act(START)
        made.close()
    assert len(server.requests) == 2
    assert turn.command == NO_COMMAND
    assert turn.provenance == "scripted"


def test_logprobs_entropies_and_token_ids_are_captured_as_vllm_gives_them() -> None:
    half = math.log(0.5)
    listed = [
        {"token": "a", "logprob": half, "bytes": None,
         "top_logprobs": [{"token": "a", "logprob": half, "bytes": None},
                          {"token": "b", "logprob": half, "bytes": None}]},
        {"token": "c", "logprob": 0.0, "bytes": None,
         "top_logprobs": [{"token": "c", "logprob": 0.0, "bytes": None}]},
    ]  # fmt: skip
    answer = completion(
        "x",
        command="ls",
        logprobs=listed,
        choice={"token_ids": [11, 12]},
        top={"prompt_token_ids": [1, 2, 3]},
    )
    with serve(lambda body, n: ok(answer)) as server:
        made = actor(server.url, top_logprobs=2)
        trace = made.act(START).trace
        made.close()
    assert trace is not None
    assert (trace.prompt_ids, trace.token_ids) == ((1, 2, 3), (11, 12))
    assert trace.logprobs == (half, 0.0)
    assert trace.entropies == pytest.approx((math.log(2), 0.0))
    sent = server.requests[0]
    assert (sent["logprobs"], sent["top_logprobs"]) == (True, 2)
    assert sent["return_token_ids"] is True


def test_token_ids_beside_logprobs_are_captured_as_llama_cpp_gives_them() -> None:
    listed = [{"token": "a", "id": 5, "logprob": -0.1, "bytes": None, "top_logprobs": []}]
    # Three tokens are billed: of one the server lists nothing, as where it ends in mid-character.
    for count, ids in ((3, (5, 5, 5)), (2, ())):
        said = ok(completion("x", command="ls", logprobs=listed * count))
        with serve(lambda body, n: said) as server:  # noqa: B023
            made = actor(server.url)
            trace = made.act(START).trace
            made.close()
        assert trace is not None
        assert (trace.token_ids, trace.logprobs, trace.entropies) == (ids, (-0.1,) * count, ())


def test_what_a_server_refuses_is_left_out_from_then_on() -> None:
    def script(body: dict[str, Any], number: int) -> tuple[int, dict[str, Any], dict[str, str]]:
        for name in ("return_token_ids", "top_logprobs", "logprobs", "tools", "seed"):
            if name in body:
                return 400, problem(f"Unsupported parameter: '{name}'"), {}
        if "max_tokens" in body:
            return 400, problem("'max_tokens' is not supported; use 'max_completion_tokens'"), {}
        return ok(completion("Fine.\n```bash\nls\n```"))

    with serve(script) as server:
        made = actor(server.url, seed=1, top_logprobs=3, max_tokens=50)
        first = made.act(START)
        refused = len(server.requests)
        made.act(START)
        made.close()
    assert first.command == "ls"
    assert len(server.requests) == refused + 1
    assert set(server.requests[-1]) == {"messages", "model", "max_completion_tokens"}


def test_rate_limits_and_server_errors_are_waited_out() -> None:
    def script(body: dict[str, Any], number: int) -> tuple[int, dict[str, Any], dict[str, str]]:
        if number == 0:
            return 429, problem("slow down"), {"Retry-After": "0.05"}
        if number < 3:
            return 503, problem("overloaded"), {}
        return ok(completion("x", command="ls"))

    with serve(script) as server:
        made = actor(server.url)
        begun = time.monotonic()
        assert made.act(START).command == "ls"
        made.close()
    assert time.monotonic() - begun >= 0.05
    assert len(server.requests) == 4


def test_a_server_that_stays_away_is_unavailable_after_its_retries() -> None:
    with serve(lambda body, n: (500, problem("no"), {})) as server:
        made = actor(server.url, retries=2)
        with pytest.raises(ActorUnavailable, match="tried 3 times"):
            made.act(START)
        made.close()
        assert len(server.requests) == 3
    gone = actor(server.url, retries=1)
    with pytest.raises(ActorUnavailable, match="tried 2 times") as caught:
        gone.act(START)
    gone.close()
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), ActorUnavailable)


def test_a_refusal_is_not_retried() -> None:
    with serve(lambda body, n: (401, problem("bad key"), {})) as server:
        made = actor(server.url)
        with pytest.raises(ActorUnavailable, match="bad key"):
            made.act(START)
        made.close()
        assert len(server.requests) == 1


def test_without_a_key_the_public_server_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPROUT_TEST_KEY", raising=False)
    made = load_actor({"kind": "openai", "model": "m", "api_key_env": "SPROUT_TEST_KEY"})
    with pytest.raises(ActorUnavailable, match="set SPROUT_TEST_KEY"):
        made.act(START)


def test_the_context_limit_is_respected_before_sending_and_as_the_server_says() -> None:
    long = START.append(ran(Turn(command="cat big"), "x" * 40_000))
    with serve(lambda body, n: ok(completion("x", command="ls", prompt_tokens=900))) as server:
        made = actor(server.url, max_context=1000, max_tokens=90)
        with pytest.raises(ContextExceeded, match="the model takes 1000"):
            made.act(long)
        assert server.requests == []
        # The last bill is exact: 903 tokens and an answer of 90 fit, a little more does not.
        turn = made.act(START)
        made.act(START.append(ran(turn, "")))
        with pytest.raises(ContextExceeded):
            made.act(START.append(ran(turn, "y" * 100)))
        made.close()
    told = "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens"
    for status in (400, 413):
        with serve(lambda body, n, s=status: (s, problem(told), {})) as server:  # type: ignore[misc]
            made = actor(server.url)
            with pytest.raises(ContextExceeded, match="needs 5000 tokens, the model takes 4096"):
                made.act(START)
            made.close()
            assert len(server.requests) == 1


def test_complete_asks_with_a_schema_and_without_where_it_is_refused() -> None:
    def script(body: dict[str, Any], number: int) -> tuple[int, dict[str, Any], dict[str, str]]:
        if "response_format" in body:
            return 400, problem("response_format is not supported"), {}
        return ok(completion('{"plans": []}'))

    schema = {"type": "object"}
    with serve(script) as server:
        made = actor(server.url)
        answer = made.complete([Message(role="user", content="Plan.")], schema)
        made.close()
    assert answer.text == '{"plans": []}'
    assert answer.trace.prompt_tokens == 20
    assert server.requests[0]["response_format"]["json_schema"]["schema"] == schema
    assert "tools" not in server.requests[1]


def test_close_ends_a_call_under_way() -> None:
    asked, leave = threading.Event(), threading.Event()

    def script(body: dict[str, Any], number: int) -> tuple[int, dict[str, Any], dict[str, str]]:
        asked.set()
        leave.wait(20)
        return ok(completion("x", command="ls"))

    with serve(script) as server:
        made = actor(server.url, retries=50)
        caught: list[BaseException] = []

        def call() -> None:
            try:
                made.act(START)
            except BaseException as error:
                caught.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        assert asked.wait(10)
        made.close()
        leave.set()
        thread.join(10)
        assert not thread.is_alive()
    # The answer may have been on its way already; more requests must not have been.
    assert len(server.requests) == 1
    assert all(isinstance(error, ActorUnavailable) for error in caught)
    with pytest.raises(ActorUnavailable, match="closed"):
        made.act(START)


def test_an_actor_travels_as_its_settings() -> None:
    made = actor("http://127.0.0.1:9/v1", seed=3)
    assert load_actor(made.spec()).spec() == made.spec()
    assert pickle.loads(pickle.dumps(made)).spec() == made.spec()
    assert json.loads(json.dumps(made.spec())) == made.spec()


def test_a_probe_costs_nothing_unless_something_is_needed() -> None:
    def script(body: dict[str, Any], number: int) -> tuple[int, dict[str, Any], dict[str, str]]:
        top = [{"token": "yes", "logprob": -0.1, "bytes": None}] if "top_logprobs" in body else []
        listed = [{"token": "yes", "logprob": -0.1, "bytes": None, "top_logprobs": top}]
        return 200, completion("yes", logprobs=listed), {}

    with serve(script) as server:
        # This server has no list of models; that it answers is enough.
        plain = load_actor(f"openai/m:base_url={server.url}")
        assert isinstance(plain, ChatActor)
        plain.probe()
        assert server.requests == []
        plain.probe(frozenset({"logprobs"}))
        assert [body["max_tokens"] for body in server.requests] == [1]
        with pytest.raises(ConfigError, match="gives no entropies"):
            plain.probe(frozenset({"entropies"}))
        rich = ChatActor(model="m", base_url=server.url, top_logprobs=5)
        rich.probe(frozenset({"entropies"}))
    with pytest.raises(ActorUnavailable, match="cannot be reached"):
        plain.probe()


def test_a_server_s_own_parameters_go_with_turns_alone() -> None:
    with serve(lambda body, number: (200, completion(command="ls"), {})) as server:
        one = actor(server.url, extra={"grammar": "root ::= [a-z]+", "top_k": 5})
        one.act(START)
        one.complete([Message(role="user", content="x")])
    assert server.requests[0]["grammar"] == "root ::= [a-z]+"
    assert server.requests[0]["return_token_ids"] is True
    assert "grammar" not in server.requests[1]
    assert load_actor(one.spec()).spec() == one.spec()
