from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from sprout_env.actors import Actor, Message, SimulatedActor, load_actor
from sprout_env.actors.simulated import follow
from sprout_env.errors import ActorError, ConfigError
from sprout_env.records.attempt import Attempt
from sprout_env.search.attempts import AttemptJob
from sprout_env.search.plan import read_plans
from sprout_env.search.review import ReviewSettings, analyst_messages, reviewer_messages
from sprout_env.tasks.playbook import load_playbook
from sprout_env.tasks.suites import find_suite
from sprout_env.transcript import Notice, Result, Transcript, Turn
from tests.search.playbook_world import INSTRUCTION, execute, play, write_task


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_task(tmp_path / "shop")


def job(folder: Path, *, skill: float, seed: int, id: str = "shop:root-1") -> AttemptJob:
    actor = SimulatedActor(skill=skill, folders=(str(folder),)).spec()
    return AttemptJob(id=id, suite="toy", task="shop", actor=actor, seed=seed)


def failed(folder: Path, *, skill: float = 0.5, at_least: int = 0) -> Attempt:
    for seed in range(at_least, at_least + 100):
        attempt = play(job(folder, skill=skill, seed=seed))
        if not attempt.passed:
            return attempt
    raise AssertionError("nothing failed")


def test_it_is_an_actor_and_its_name_says_simulated() -> None:
    actor = load_actor("simulated:skill=0.8,accuracy=0.5", seed=1)
    assert isinstance(actor, Actor)
    assert actor.name == "simulated(skill=0.8, seed=1, accuracy=0.5)"
    assert load_actor(actor.spec()) == actor
    trace = SimulatedActor()._bill(400, 40)
    assert "estimated" in trace.model
    assert (trace.prompt_tokens, trace.completion_tokens) == (100, 10)


def test_full_skill_plays_every_right_step_with_captured_values_and_submits(folder: Path) -> None:
    attempt = play(job(folder, skill=1.0, seed=3))
    commands = [entry.command for entry in attempt.entries if isinstance(entry, Turn)]
    assert commands == [
        "git log --oneline",
        "apply 1 1f2e3d",
        "apply 2 1f2e3d",
        "apply 3 1f2e3d",
        "check 1",
        "check 2",
        "submit",
    ]
    assert attempt.passed
    assert attempt.usage.calls == 7


def test_no_skill_plays_every_risky_step_wrong(folder: Path) -> None:
    attempt = play(job(folder, skill=0.0, seed=3))
    assert attempt.verdict is not None
    assert {"test_shop.py::test_part_1", "test_shop.py::test_part_3"} <= set(
        attempt.verdict.failing
    )
    playbook = load_playbook(folder)
    turns = Transcript.of(INSTRUCTION, attempt.entries).turns
    assert [turn for turn, _, _ in follow(playbook, turns).wrong] == [2, 3, 4]


def test_the_next_turn_follows_from_the_transcript_alone_in_another_process(folder: Path) -> None:
    actor = SimulatedActor(skill=0.5, seed=11, folders=(str(folder),))
    transcript = Transcript.start(INSTRUCTION)
    for _ in range(3):
        transcript = transcript.append(execute(actor.act(transcript)))
    here = actor.act(transcript)
    # Other node ids and a notice in between change nothing.
    copied = Transcript.start(INSTRUCTION).append(Notice(text="processes were lost"))
    for turn in transcript.turns:
        copied = copied.append(Turn(message=turn.message, command=turn.command, result=turn.result))
    assert actor.act(copied).command == here.command
    program = (
        "import sys, json; from sprout_env.actors import load_actor\n"
        "from sprout_env.transcript import Transcript, Turn\n"
        "spec, text, turns = json.load(sys.stdin)\n"
        "path = Transcript.of(text, [Turn.model_validate(turn) for turn in turns])\n"
        "print(load_actor(spec).act(path).command)"
    )
    given = [actor.spec(), INSTRUCTION, [turn.model_dump(mode="json") for turn in transcript.turns]]
    done = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(given), text=True, capture_output=True
    )
    assert done.stdout.strip() == here.command, done.stderr


def test_a_wrong_step_is_not_noticed_and_an_unknown_command_changes_nothing(folder: Path) -> None:
    actor = SimulatedActor(skill=1.0, folders=(str(folder),))
    path = Transcript.start(INSTRUCTION)
    for command in ("git log --oneline", "ls", "skip 1 1f2e3d"):
        path = path.append(execute(Turn(command=command)))
    assert actor.act(path).command == "apply 2 1f2e3d"


def test_without_the_captured_output_the_command_still_runs(folder: Path) -> None:
    actor = SimulatedActor(skill=1.0, folders=(str(folder),))
    command = actor.act(Transcript.start(INSTRUCTION).append(Turn(command="git log --oneline")))
    assert command.command == "apply 1 missing-rev"


def test_an_unexpected_output_is_read_and_said(folder: Path) -> None:
    actor = SimulatedActor(skill=1.0, folders=(str(folder),))
    path = Transcript.start(INSTRUCTION).append(execute(Turn(command="git log --oneline")))
    bad = Turn(command="apply 1 1f2e3d")
    result = execute(bad).result
    assert result is not None
    odd = bad.model_copy(update={"result": result.model_copy(update={"output": "error\n"})})
    turn = actor.act(path.append(odd))
    assert turn.message.startswith("That is not quite the output I expected")
    assert turn.command == "apply 2 1f2e3d"


def test_a_task_without_a_playbook_and_bad_settings_are_refused_by_name() -> None:
    with pytest.raises(ActorError, match="a playbook.toml, and none"):
        SimulatedActor().act(Transcript.start("Prove the Riemann hypothesis."))
    with pytest.raises(ConfigError, match="skill"):
        load_actor("simulated:skill=1.5")
    with pytest.raises(ConfigError, match="no actor of kind 'magic'"):
        load_actor("magic")
    with pytest.raises(ConfigError, match="not name=value"):
        load_actor("simulated:skill=0.5,fast")
    with pytest.raises(ActorError, match="reviews only"):
        SimulatedActor().complete([Message(role="user", content="How are you?")])


def test_short_forms_of_other_actors() -> None:
    spec = load_actor("openai/org/model:8b:base_url=http://127.0.0.1:1/v1,temperature=0.2").spec()
    assert spec["model"] == "org/model:8b"
    assert spec["base_url"] == "http://127.0.0.1:1/v1"
    assert spec["temperature"] == 0.2
    assert load_actor("openai/m", seed=5).spec()["seed"] == 5


def test_roots_pass_with_skill_to_the_power_of_risky_steps(folder: Path) -> None:
    """Closed form: p ** n, over independent seeds, within four standard errors."""
    for skill in (0.6, 0.9):
        count, right = 600, skill**3
        passed = sum(play(job(folder, skill=skill, seed=seed)).passed for seed in range(count))
        error = math.sqrt(right * (1 - right) / count)
        assert abs(passed / count - right) < 4 * error, (skill, passed / count, right)


def ask(
    folder: Path,
    attempts: list[Attempt],
    *,
    accuracy: float,
    seed: int,
    branches: int = 2,
    budget: int = 24_000,
) -> str:
    actor = SimulatedActor(seed=seed, reviewer_accuracy=accuracy, folders=(str(folder),))
    settings = ReviewSettings(branches=branches, budget_tokens=budget)
    messages = reviewer_messages(INSTRUCTION, attempts, {}, settings, None)
    return actor.complete(messages).text


def test_an_accurate_reviewer_takes_the_boundary_before_the_fault(folder: Path) -> None:
    attempt = failed(folder)
    turns = Transcript.of(INSTRUCTION, attempt.entries).turns
    fault = follow(load_playbook(folder), turns).wrong[0][0]
    # A tiny budget elides every output; commands suffice.
    for budget in (24_000, 10):
        text = ask(folder, [attempt], accuracy=1.0, seed=1, budget=budget)
        reading = read_plans(text, [attempt], branches=2, max_turns=None)
        assert not reading.dropped
        plan = reading.plans[0]
        assert plan.boundary == fault - 1
        assert plan.starting_turn is not None
        assert plan.starting_turn.command == f"apply {fault - 1} 1f2e3d"
        # The second plan is another one: an earlier boundary.
        assert reading.plans[1].boundary < fault - 1


def test_an_inaccurate_reviewer_keeps_the_fault(folder: Path) -> None:
    attempt = failed(folder)
    turns = Transcript.of(INSTRUCTION, attempt.entries).turns
    fault = follow(load_playbook(folder), turns).wrong[0][0]
    text = ask(folder, [attempt], accuracy=0.0, seed=1)
    reading = read_plans(text, [attempt], branches=2, max_turns=None)
    assert not reading.dropped
    assert all(plan.boundary >= fault for plan in reading.plans)


def test_accuracy_is_a_frequency(folder: Path) -> None:
    attempt = failed(folder)
    turns = Transcript.of(INSTRUCTION, attempt.entries).turns
    fault = follow(load_playbook(folder), turns).wrong[0][0]
    right, count = 0, 400
    for seed in range(count):
        text = ask(folder, [attempt], accuracy=0.7, seed=seed, branches=1)
        right += json.loads(text)["plans"][0]["boundary"] == fault - 1
    assert abs(right / count - 0.7) < 4 * math.sqrt(0.7 * 0.3 / count)


def test_the_failure_that_got_furthest_comes_first(folder: Path) -> None:
    book = load_playbook(folder)
    found: dict[int, Attempt] = {}
    for seed in range(200):
        attempt = play(job(folder, skill=0.6, seed=seed, id=f"shop:{seed}"))
        wrong = follow(book, Transcript.of(INSTRUCTION, attempt.entries).turns).wrong
        if wrong:
            found.setdefault(wrong[0][0], attempt)
    assert set(found) == {2, 3, 4}
    text = ask(folder, [found[2], found[4], found[3]], accuracy=1.0, seed=1, branches=3)
    plans = json.loads(text)["plans"]
    assert [plan["attempt"] for plan in plans] == [found[4].id, found[3].id, found[2].id]


def test_the_same_prompt_gives_the_same_plan_in_a_new_process_whatever_the_ids(
    folder: Path,
) -> None:
    attempt = failed(folder)
    settings = ReviewSettings(branches=3)
    actor = SimulatedActor(seed=5, reviewer_accuracy=0.5, folders=(str(folder),))
    messages = reviewer_messages(INSTRUCTION, [attempt], {}, settings, None)
    here = json.loads(actor.complete(messages).text)
    program = (
        "import sys, json; from sprout_env.actors import Message, load_actor\n"
        "spec, messages = json.load(sys.stdin)\n"
        "asked = [Message.model_validate(message) for message in messages]\n"
        "print(load_actor(spec).complete(asked).text)"
    )
    given = [actor.spec(), [message.model_dump() for message in messages]]
    done = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(given), text=True, capture_output=True
    )
    assert json.loads(done.stdout) == here, done.stderr
    renamed = attempt.model_copy(update={"id": "another:name"})
    again = json.loads(
        actor.complete(reviewer_messages(INSTRUCTION, [renamed], {}, settings, None)).text
    )
    for plan in (*here["plans"], *again["plans"]):
        plan.pop("attempt")
    assert again == here


def test_as_analyst_it_names_the_turn_and_says_it_is_simulated(folder: Path) -> None:
    attempt = failed(folder)
    turns = Transcript.of(INSTRUCTION, attempt.entries).turns
    fault = follow(load_playbook(folder), turns).wrong[0][0]
    actor = SimulatedActor(folders=(str(folder),))
    messages = analyst_messages(INSTRUCTION, attempt, ReviewSettings(), None)
    text = actor.complete(messages).text
    assert text.startswith("Simulated analysis")
    assert f"turn {fault};" in text


def test_without_feedback_per_test_it_can_only_guess(folder: Path) -> None:
    attempt = failed(folder)
    settings = ReviewSettings(branches=1, feedback="reward")
    boundaries = set()
    for seed in range(40):
        actor = SimulatedActor(seed=seed, folders=(str(folder),))
        messages = reviewer_messages(INSTRUCTION, [attempt], {}, settings, None)
        plan = json.loads(actor.complete(messages).text)["plans"][0]
        boundaries.add(plan["boundary"])
    assert len(boundaries) > 3


@pytest.mark.parametrize("skill", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("slug", find_suite("seedbed").slugs())
def test_a_bundled_playbook_is_followed_step_by_step_to_its_end(slug: str, skill: float) -> None:
    """No command may be mistaken for another step's, whatever was played before."""
    task = find_suite("seedbed").task(slug)
    assert task.folder is not None
    book = load_playbook(task.folder)
    actor = SimulatedActor(skill=skill, seed=2)
    path = Transcript.start(task.instruction)
    while not (turn := actor.act(path)).submits:
        path = path.append(turn.model_copy(update={"result": Result(output="", exit_code=0)}))
        assert path.turn <= len(book.steps), turn.command
    progress = follow(book, path.turns)
    assert [step.id for step in progress.steps.values()] == [step.id for step in book.steps]
    if skill == 0.0:
        assert len(progress.wrong) == len(book.risky)
    elif skill == 1.0:
        assert not progress.wrong


def test_its_entropy_is_that_of_its_own_draws() -> None:
    from sprout_env.actors.simulated import _entropy

    assert _entropy(1.0, 3) == 0
    assert _entropy(0.5, 1) == pytest.approx(math.log(2))
    # Half right, a quarter for each of two errors: 1.5 bits.
    assert _entropy(0.5, 2) == pytest.approx(1.5 * math.log(2))
