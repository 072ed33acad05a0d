"""llama.cpp's own server behind the capture proxy: its ids are those that it evaluated, or none.

What it really evaluated is read from its cache: a prompt of ids alone, of which it finds all but
the last token there, is the one that it has run before, token by token.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sprout_env.disks import open_store
from sprout_env.integrations.capture import Capture
from sprout_env.integrations.capture_upstream import ASKED, Upstream
from sprout_env.records import group_of, token_row
from sprout_env.records.attempt import Attempt
from sprout_env.records.tokens import drifts
from sprout_env.snapshots import SnapshotTree
from sprout_env.transcript import TokenTrace, Turn
from tests.actors.chat_server import serve
from tests.actors.llama_server import missing, serving
from tests.actors.test_real_model import ask
from tests.small_task import write_task

pytestmark = [pytest.mark.llm, pytest.mark.slow, pytest.mark.timeout(600)]

PYTHON = os.environ.get("SPROUT_LLM_PYTHON")

AGENT = """
import subprocess, sys, openai
client = openai.OpenAI(max_retries=0)
messages = [{"role": "system", "content": "You are brief. Ω"},
            {"role": "user", "content": sys.argv[1]}]
for turn in range(3):
    said = client.chat.completions.create(
        model="m", messages=messages, max_tokens=20, temperature=0,
        stream=sys.argv[2] == "streamed")
    if sys.argv[2] == "streamed":
        text = "".join(c.delta.content or "" for piece in said for c in piece.choices)
    else:
        text = said.choices[0].message.content
    done = subprocess.check_output(["docker", "exec", "box", "echo", f"Turn {turn}."], text=True)
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": done}]
    if sys.argv[2] == "forgets":
        del messages[1]
"""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    if PYTHON is None:
        pytest.skip("the small real model has its own target: make test-llm")
    why = missing(PYTHON)
    assert not why, f"{PYTHON} cannot serve the model: {why}"
    with serving(PYTHON) as url:
        yield url


def evaluated(server: str, ids: tuple[int, ...]) -> bool:
    """Whether the server holds this very sequence: all of it but the last token, always run."""
    said = ask(server, "/completion", {"prompt": list(ids), "n_predict": 0, "cache_prompt": True})
    return bool(said["timings"]["cache_n"] == len(ids) - 1)


def attempt_of(server: str, store: Path, tasks: Path, how: str) -> Attempt:
    if not tasks.exists():
        write_task(tasks)
    with Capture(
        server, suite="toy", task="answer", tasks_path=str(tasks), store=str(store)
    ) as capture:
        session = capture.session()
        attempt = session.run(
            [sys.executable, "-c", AGENT, session.instruction, how], timeout_s=120
        )
    with closing(SnapshotTree(open_store(store))) as tree:
        tree.release_all(b.snapshot for b in attempt.boundaries if b.snapshot is not None)
    assert not attempt.error
    return attempt


def traces_of(attempt: Attempt) -> list[TokenTrace]:
    turns = [entry for entry in attempt.entries if isinstance(entry, Turn)]
    return [turn.trace for turn in turns if turn.trace is not None]


@pytest.mark.root
def test_a_captured_agent_has_rows_of_the_ids_that_were_evaluated(
    server: str, shared_store: Path, tmp_path: Path
) -> None:
    attempt = attempt_of(server, shared_store, tmp_path / "tasks", "streamed")
    traces = traces_of(attempt)
    assert len(traces) == 3
    for trace in traces:
        assert len(trace.prompt_ids) == trace.prompt_tokens > 20
        assert len(trace.token_ids) == trace.completion_tokens == len(trace.logprobs)
    last = traces[-1].prompt_ids + traces[-1].token_ids
    assert evaluated(server, last)
    # One other token in the middle, and it is another sequence: the check can fail.
    assert not evaluated(server, (*last[:30], last[30] + 1, *last[31:]))
    (row,) = (token_row(row) for row in group_of([attempt]).rows)
    assert tuple(row.token_ids) == last
    learned = [t for t, m in zip(row.token_ids, row.loss_mask, strict=True) if m]
    assert learned == [t for trace in traces for t in trace.token_ids]
    text = ask(server, "/detokenize", {"tokens": list(traces[0].token_ids)})["content"]
    first = attempt.entries[0]
    assert isinstance(first, Turn)
    assert text.removesuffix("<|im_end|>").strip() == first.message.strip()


@pytest.mark.root
def test_an_agent_that_forgets_is_seen(server: str, shared_store: Path, tmp_path: Path) -> None:
    attempt = attempt_of(server, shared_store, tmp_path / "tasks", "forgets")
    assert drifts(attempt.entries) == 2


def chat(server: str, **body: Any) -> dict[str, Any]:
    status, said = Upstream(server, ASKED, 60.0).chat(
        {"model": "m", "temperature": 0.0, "max_tokens": 16, **body}, {}
    )
    assert status == 200
    assert "__verbose" not in said
    return said  # type: ignore[no-any-return]


def ids_of(said: dict[str, Any]) -> tuple[int, ...]:
    return (*said["prompt_token_ids"], *said["choices"][0]["token_ids"])


def test_ids_are_whole_where_the_listed_log_probabilities_are_not(server: str) -> None:
    # Tokens that end in mid-character are sampled, and not listed.
    said = chat(
        server,
        messages=[{"role": "user", "content": "Say <|im_end|> 日本   \n\n"}],
        grammar='root ::= "日本語 🌱 新婴" ',
    )
    listed = said["choices"][0]["logprobs"]["content"]
    assert len(listed) < said["usage"]["completion_tokens"]
    assert evaluated(server, ids_of(said))
    # A stop word is sampled, and cut out.
    said = chat(server, messages=[{"role": "user", "content": "Count: one two"}], stop=["e", "o"])
    assert said["choices"][0]["finish_reason"] == "stop"
    assert evaluated(server, ids_of(said))


def test_no_ids_where_the_server_s_words_do_not_agree(server: str) -> None:
    """A real server, of whose answers one word is changed on the way."""
    root = server.removesuffix("/v1")

    def through(change: str) -> dict[str, Any]:
        def forward(body: dict[str, Any], number: int) -> Any:
            path = ("/v1/chat/completions", "/apply-template", "/tokenize")[number]
            said = ask(root, path, body)
            if change == path:
                key = "prompt" if path == "/apply-template" else "tokens"
                said[key] = said[key][1:]
            if path == "/v1/chat/completions" and change in ("prompt", "tokens"):
                said["__verbose"][change] = said["__verbose"][change][:-1]
            if path == "/v1/chat/completions" and change == "truncated":
                said["__verbose"]["truncated"] = True
            return 200, said, {}

        with serve(forward) as before:
            return chat(before.url, messages=[{"role": "user", "content": "Say yes."}])

    whole = through("")
    assert evaluated(server, ids_of(whole))
    for change in ("/tokenize", "prompt", "truncated"):
        assert "prompt_token_ids" not in through(change), change
    assert "token_ids" not in through("tokens")["choices"][0]
    # What its template makes, less its first sign, is no other end of the prompt but of other ids.
    assert "prompt_token_ids" not in through("/apply-template")
