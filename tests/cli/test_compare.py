"""``sprout compare`` at the command line: bad input in one line, before anything is spent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sprout_env.cli import main
from tests.actors.chat_server import completion, problem, serve
from tests.search.real_task import write_parts_task


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    write_parts_task(tmp_path / "tasks")
    return tmp_path / "tasks"


def words(suite: Path, tmp_path: Path, *more: str) -> tuple[str, ...]:
    place = ("--path", str(suite), "--store", str(tmp_path / "store"))
    return ("compare", "toy", *place, "--out", str(tmp_path / "out"), *more)


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (("--methods", "sprout"), 2, "say who acts"),
        (("--actor", "simulated", "--methods", "magic"), 2, "no method 'magic'; there are entropy"),
        (("--actor", "simulated", "--methods", "pass@0"), 2, "k: Input should be greater than 0"),
        (("--actor", "simulated", "--methods", "pass@x"), 2, "k: Input should be a valid integer"),
        (("--actor", "simulated", "--methods", ""), 2, "needs at least one method of entropy"),
        (("--actor", "simulated", "--methods", " , "), 2, "needs at least one method of entropy"),
        (("--actor", "simulated", "--methods", "sprout,sprout"), 2, "named twice"),
        (("--actor", "simulated", "--methods", "pass@4,pass:k=4"), 2, "named twice: it is pass@4"),
        (("--actor", "simulated", "--rounds", "2"), 2, "belong to --scaling"),
        (("--actor", "simulated", "--scaling", "--branches", "0"), 2, "branches: Input should be"),
        (("--actor", "magic"), 2, "no actor of kind 'magic'; there are"),
        (("--actor", "simulated:skill=2"), 2, "skill: Input should be less than or equal to 1"),
        (("--actor", "simulated", "--base-url", "http://x"), 2, "belongs to --model"),
        (("--actor", "simulated", "--methods", "sprout", "--ablate"), 2, "choose one of"),
        (("--actor", "simulated:entropies=no", "--methods", "entropy"), 2, "gives none"),
        (("--actor", "openai/m:logprobs=no", "--methods", "entropy"), 2, "gives none"),
        (("--actor", "simulated", "--max-calls", "0"), 2, "budget of calls: Input should be gr"),
        (("--actor", "simulated", "--max-seconds", "-1"), 2, "budget of seconds"),
        (("--actor", "simulated", "--max-turns", "0"), 2, "limit max_turns"),
        (("--actor", "simulated", "--max-money", "3"), 2, "needs --prices"),
        (("--actor", "simulated", "--prices", "cheap"), 2, "two or three numbers"),
        (("--actor", "simulated", "--prices", "1"), 2, "two or three numbers"),
        (("--actor", "simulated", "--prices", "1,2,3,4"), 2, "two or three numbers"),
        (("--actor", "simulated", "--prices", "1,-2"), 2, "two or three numbers"),
        (("--actor", "simulated", "--prices", "1,nan"), 2, "two or three numbers"),
        (("--actor", "simulated", "--max-money", "nan", "--prices", "1,2"), 2, "budget of money"),
        (("--actor", "simulated", "--seeds", "a"), 2, "whole numbers"),
        (("--actor", "simulated", "--seeds", "1,1"), 2, "different whole numbers"),
        (("--actor", "simulated", "--task", "nothing"), 3, "nothing"),
        (
            ("--model", "openai/m", "--base-url", "http://127.0.0.1:9/v1"),
            9,
            "cannot be reached",
        ),
        (("--model", "openai/m", "--base-url", "not a url"), 9, "is its address right?"),
        (("--model", "openai/"), 2, "model: String should have at least 1 character"),
    ],
)
def test_bad_input_is_one_clear_line(
    suite: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    assert run(*words(suite, tmp_path, *more)) == code
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1
    assert not list(tmp_path.glob("out/seed-*"))


def test_a_server_that_gives_no_logprobs_is_found_out_first(
    suite: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve(lambda body, number: (200, completion("yes"), {})) as server:
        more = ("--model", "openai/m", "--base-url", server.url, "--methods", "entropy")
        assert run(*words(suite, tmp_path, *more)) == 2
        assert len(server.requests) == 1
        assert server.requests[0]["max_tokens"] == 1
    assert "gives no logprobs" in capsys.readouterr().err


def test_a_model_that_the_server_has_not_is_found_out_first(
    suite: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--model", "openai/typo", "--methods", "pass@1")
    with serve(lambda body, number: (404, problem("no such model"), {})) as server:
        assert run(*words(suite, tmp_path, *asked, "--base-url", server.url)) == 9
        told = capsys.readouterr().err
        assert "does not serve 'typo'; it lists m, served-model" in told
        assert told.count("\n") == 1
        server.models = []
        assert run(*words(suite, tmp_path, *asked, "--base-url", server.url)) == 9
        assert "is this its /v1?" in capsys.readouterr().err
        assert {body["max_tokens"] for body in server.requests} == {1}
    assert not list(tmp_path.glob("out/seed-*"))


@pytest.mark.root
@pytest.mark.slow
def test_the_tables_are_printed_and_written(
    suite: Path, shared_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    folders = str(suite / "parts")
    actor = {"kind": "simulated", "skill": 0.5, "folders": [folders]}
    place = ("--path", str(suite), "--store", str(shared_store), "--out", str(out))
    spec = tmp_path / "actor.json"
    spec.write_text(json.dumps(actor))
    code = run("compare", "toy", *place, "--actor", f"@{spec}", "--ablate", "--prices", "1,2")
    assert code == 0
    told = capsys.readouterr().out
    for said in ("rollback_no_hint", "Branch stage alone", "simulated actor", "paid once"):
        assert said in " ".join(told.split())
    data = json.loads((out / "results.json").read_text())
    assert [row["label"] for row in data["rows"]] == [
        "sprout",
        "rollback_no_hint",
        "reward_only_review",
    ]
    assert data["rows"][0]["cost"]["money"] > 0
    page = (out / "results.md").read_text()
    assert "| sprout |" in page
    assert (out / "results.svg").exists()
    assert (out / "results.png").exists()
    # The folder of one suite is not another's.
    assert run("compare", "seedbed", "--actor", "simulated", "--out", str(out)) == 2
    assert "different:" in capsys.readouterr().err
