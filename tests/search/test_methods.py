"""Methods and the collector, in the playbook's world: thousands of attempts, no sandbox."""

from __future__ import annotations

import math
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import pytest

from sprout_env.actors import SimulatedActor
from sprout_env.errors import BudgetExhausted, ConfigError, TaskUnsupported
from sprout_env.grading.verdict import Verdict
from sprout_env.records import group_of, review_leaks, summarise, tree_of
from sprout_env.records.attempt import Attempt, Usage
from sprout_env.records.reviews import Attempts
from sprout_env.search import (
    AttemptJob,
    AttemptLimits,
    Budget,
    Collector,
    Meter,
    PassAtK,
    Prices,
    Recipe,
    Running,
    Sprout,
    Stop,
    derive_seed,
    load_method,
    method_names,
)
from sprout_env.search.events import AttemptFinished, Event, OnEvent, ReviewCalled
from sprout_env.transcript import Turn
from tests.search.playbook_world import WorldExecutor, the_task, write_task


def recipe_job(folder: Path, *, skill: float, seed: int = 0) -> AttemptJob:
    actor = SimulatedActor(skill=skill, folders=(str(folder),)).spec()
    return AttemptJob(id="shop:root-1", suite="toy", task="shop", actor=actor, seed=seed)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_task(tmp_path / "shop")


def collector(
    folder: Path,
    *,
    skill: float = 0.5,
    accuracy: float = 1.0,
    seed: int = 0,
    executor: Any = None,
    budget: Budget | None = None,
    events: list[Event] | None = None,
    **more: Any,
) -> Collector:
    actor = SimulatedActor(skill=skill, reviewer_accuracy=accuracy, folders=(str(folder),))
    stop = Stop()
    meter = Meter(budget or Budget(), stop)

    def tell(event: Event) -> None:
        meter.on_event(event)
        if isinstance(event, AttemptFinished) and not event.resumed:
            meter._spent = meter._spent + event.attempt.usage  # this world tells no single turns
        if events is not None:
            events.append(event)

    return Collector(
        the_task(),
        Recipe(suite="toy", actor=actor.spec(), seed=seed),
        Running(executor or WorldExecutor(), meter, stop, tell),
        **more,
    )


def share(passed: list[bool]) -> float:
    return sum(passed) / len(passed)


def test_pass_at_k_agrees_with_its_closed_form(folder: Path) -> None:
    """1 - (1 - p^n)^k."""
    skill, k, count = 0.6, 3, 400
    right = 1 - (1 - skill**3) ** k
    passed = [
        PassAtK(k=k).collect(collector(folder, skill=skill, seed=seed)).passed
        for seed in range(count)
    ]
    assert abs(share(passed) - right) < 4 * math.sqrt(right * (1 - right) / count)


@pytest.mark.parametrize("accuracy", [1.0, 0.6])
def test_sprout_agrees_with_its_closed_form(folder: Path, accuracy: float) -> None:
    """One round, one branch: p^n + sum over the first fault i of p^(i-1) (1-p) a p^(n-i).

    The reviewer (right with probability a) keeps the i - 1 right parts and mends part i; the branch
    then needs the n - i parts after it.
    """
    skill, parts, count = 0.7, 3, 500
    rescued = sum(
        skill ** (i - 1) * (1 - skill) * accuracy * skill ** (parts - i)
        for i in range(1, parts + 1)
    )
    right = skill**parts + rescued
    passed = [
        Sprout(rounds=1, branches=1)
        .collect(collector(folder, skill=skill, accuracy=accuracy, seed=seed))
        .passed
        for seed in range(count)
    ]
    assert abs(share(passed) - right) < 4 * math.sqrt(right * (1 - right) / count)


def test_rounds_branch_from_branches_until_all_is_mended(folder: Path) -> None:
    """Skill 0 fails every part; each accurate round mends the first fault that is left."""
    executor = WorldExecutor()
    method = Sprout(rounds=5, branches=1)
    done = method.collect(collector(folder, skill=0.0, executor=executor))
    assert done.passed
    assert [attempt.round for attempt in done.attempts] == [0, 1, 2, 3]
    assert tree_of(done.attempts).lineage(done.attempts[3].id) == tuple(
        attempt.id for attempt in done.attempts
    )
    # Round 1 asks an analyst of the root; later ones only of what is new.
    assert [len(review.exchanges) for review in done.reviews] == [2, 2, 2]
    assert [review.failures for review in done.reviews][2] == tuple(
        attempt.id for attempt in done.attempts[:3]
    )
    assert [job.snapshot for job in executor.jobs][1] == "shop:root-1@1"
    # The last branch holds all three starting turns, and only its own was its plan's.
    turns = [e for e in done.attempts[3].entries if isinstance(e, Turn)]
    assert [t.provenance == "policy_under_review" for t in turns[:4]] == [False, True, True, True]
    assert done.attempts[3].own_turns == 4
    group = group_of(done.attempts)
    assert review_leaks(group.rows, done.reviews) == ()


def test_a_review_s_words_in_a_row_are_found(folder: Path) -> None:
    done = Sprout(rounds=1, branches=1).collect(collector(folder, skill=0.0))
    branch = done.branches[0]
    said = done.reviews[0].exchanges[0].answer
    leaking = branch.entries[-1]
    assert isinstance(leaking, Turn)
    entries = (*branch.entries[:-1], leaking.model_copy(update={"message": f"I was told: {said}"}))
    group = group_of([branch.model_copy(update={"entries": entries})])
    assert review_leaks(group.rows, done.reviews)


def test_nothing_is_reviewed_once_something_passed(folder: Path) -> None:
    done = Sprout(roots=2).collect(collector(folder, skill=1.0))
    assert len(done.roots) == 2
    assert done.reviews == ()
    table = summarise([done])
    assert str(table.resolve) == "1/1 (100.0 %)"
    assert str(table.recovery) == "0/0"


def test_all_roots_and_branches_of_a_training_group(folder: Path) -> None:
    method = Sprout(roots=2, rounds=1, branches=4, stop_on_pass=False)
    done = method.collect(collector(folder, skill=0.3, seed=2))
    assert len(done.branches) == len(done.reviews[0].plans) == 4
    assert len(group_of(done.attempts).rows) == 6
    table = summarise([done], estimated=True)
    assert table.parts["branch"].attempts == 4
    assert table.total.usage.calls == done.usage().calls
    assert table.parts["review"].usage.calls == 3


def test_seeds_pair_methods_and_differ_between_attempts(folder: Path) -> None:
    one = PassAtK(k=2).collect(collector(folder, seed=5))
    two = Sprout(roots=2, rounds=0).collect(collector(folder, seed=5))
    assert [a.seed for a in one.attempts] == [a.seed for a in two.attempts]
    assert len({a.seed for a in one.attempts}) == 2
    assert collector(folder, seed=6).seed_for("root-1") != one.attempts[0].seed
    assert derive_seed("a", 1) == derive_seed("a", 1) < 1 << 31


def test_what_was_finished_is_never_run_again(folder: Path) -> None:
    method = Sprout(rounds=2, branches=2)
    whole = method.collect(collector(folder, skill=0.0))
    done: dict[str, Any] = {a.id: a for a in whole.attempts[:2]}
    done |= {review.id: review for review in whole.reviews[:1]}
    executor = WorldExecutor()
    executor.entries = {attempt.id: attempt.entries for attempt in whole.attempts}
    events: list[Event] = []
    again = method.collect(
        collector(folder, skill=0.0, executor=executor, done=done, events=events)
    )
    assert [job.id for job in executor.jobs] == [a.id for a in whole.attempts[2:]]
    assert [a.passed for a in again.attempts] == [a.passed for a in whole.attempts]
    asked = [event for event in events if isinstance(event, ReviewCalled)]
    assert {event.round for event in asked} == {2}


@pytest.mark.parametrize("status", ["infra_error", "out_of_budget"])
def test_an_attempt_that_was_not_finished_is_run_again_and_its_cost_is_kept(
    folder: Path, status: str
) -> None:
    first = PassAtK(k=1).collect(collector(folder)).attempts[0]
    spent = Usage(calls=40)
    lost = first.model_copy(update={"status": status, "verdict": None, "usage": spent})
    executor = WorldExecutor()
    PassAtK(k=1).collect(collector(folder, executor=executor, done={lost.id: lost}))
    assert executor.jobs[0].spent == spent
    # Under the old budget nothing begins, and what was paid is still shown.
    desk = collector(folder, executor=executor, budget=Budget(calls=40), done={lost.id: lost})
    with pytest.raises(BudgetExhausted):
        PassAtK(k=1).collect(desk)
    assert len(executor.jobs) == 1
    assert desk.result("pass@1").attempts == (lost,)


class Broken(WorldExecutor):
    """The machine loses, or the verifier cannot judge, every second attempt."""

    def submit(self, job: AttemptJob, *, on_event: OnEvent, stop: Stop) -> Future[Attempt]:
        future = super().submit(job, on_event=on_event, stop=stop)
        attempt = future.result()
        changes: dict[str, Any] = {}
        if job.id.endswith("-2"):
            changes = {"status": "infra_error", "verdict": None}
        elif job.id.endswith("-4"):
            changes = {"verdict": Verdict.invalid("no reward file")}
        again: Future[Attempt] = Future()
        again.set_result(attempt.model_copy(update=changes))
        return again


def test_unscorable_attempts_are_a_column_of_their_own(folder: Path) -> None:
    done = PassAtK(k=4).collect(collector(folder, skill=0.0, executor=Broken()))
    table = summarise([done])
    assert table.status == {"infra_error": 1, "invalid": 1, "submitted": 2}
    assert str(table.root_pass) == "0/2 (0.0 %)"
    # The lost one might have passed: the task is not decided, and no failure.
    assert (table.unscorable, table.resolve.of) == (1, 0)
    assert len(done.failures) == 2
    sound = done.model_copy(update={"attempts": (done.attempts[0], *done.attempts[2:])})
    assert str(summarise([sound]).resolve) == "0/1 (0.0 %)"
    nothing = Attempts(task="x", attempts=(done.attempts[1], done.attempts[3]))
    table = summarise([nothing, sound])
    assert (table.unscorable, table.resolve.of, table.recovery.of) == (1, 1, 1)
    # A review never sees what the verifier did not fail.
    reviewed = Sprout(roots=4, rounds=1).collect(collector(folder, skill=0.0, executor=Broken()))
    assert reviewed.reviews[0].failures == ("shop:root-1", "shop:root-3")


def test_budgets_stop_new_work_and_keep_what_was_paid(folder: Path) -> None:
    for budget in (
        Budget(calls=10),
        Budget(tokens=500),
        Budget(money=1e-4, prices=Prices(prompt=1.0, completion=2.0)),
        Budget(seconds=1e-9),
    ):
        desk = collector(folder, skill=0.0, budget=budget)
        with pytest.raises(BudgetExhausted):
            Sprout(roots=2, rounds=9, branches=1).collect(desk)
        assert len(desk.result("sprout").attempts) in (0, 2)
    for bad in ({"calls": 0}, {"seconds": -1}):
        with pytest.raises(ValueError, match="greater than 0"):
            Budget.model_validate(bad)
    assert Prices(prompt=10, cached=1, completion=20).cost(
        Usage(prompt_tokens=1_000_000, cached_tokens=500_000, completion_tokens=100_000)
    ) == pytest.approx(5 + 0.5 + 2)


class Failing(WorldExecutor):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error
        self.left: list[Future[Attempt]] = []

    def submit(self, job: AttemptJob, *, on_event: OnEvent, stop: Stop) -> Future[Attempt]:
        future: Future[Attempt] = Future()
        if job.id.endswith("-1"):
            future.set_exception(self.error)
        else:
            self.left.append(future)
        return future


def test_bad_input_ends_siblings_before_it_is_raised(folder: Path) -> None:
    executor = Failing(TaskUnsupported("shop", "GPUs"))
    with pytest.raises(TaskUnsupported):
        PassAtK(k=3).collect(collector(folder, executor=executor))
    assert all(future.cancelled() for future in executor.left)


def test_a_signal_s_strongest_reason_holds_for_its_children() -> None:
    run = Stop()
    round = Stop(run)
    closed: list[str] = []

    class Thing:
        def __init__(self, name: str) -> None:
            self.name = name

        def close(self) -> None:
            closed.append(self.name)

    with run.closing(Thing("root")), round.closing(Thing("branch")):
        round.set("passed")
        assert (run.reason, round.reason) == ("", "passed")
        round.cancel()
        assert closed == ["branch"]
        run.set("budget")
        assert (run.reason, round.reason) == ("budget", "cancelled")
        run.cancel()
        assert closed == ["branch", "root", "branch"]
    run.cancel()
    assert len(closed) == 3


def test_a_cancelled_run_raises_from_its_collectors(folder: Path) -> None:
    desk = collector(folder, executor=Failing(CancelledError()))
    desk.running.stop.set("cancelled")
    with pytest.raises(CancelledError):
        PassAtK(k=1).collect(desk)


def test_methods_by_name() -> None:
    assert load_method("pass@4") == PassAtK(k=4)
    assert load_method("sprout:rounds=3,branches=8,stop_on_pass=false") == Sprout(
        rounds=3, branches=8, stop_on_pass=False
    )
    method = load_method("sprout")
    assert load_method(method.spec()) == method
    assert set(method_names()) >= {"sprout", "pass@K"}
    for bad, words in (
        ("magic", "no method 'magic'; there are entropy@BRANCHES, .*, pass@K, .*, sprout"),
        ("pass@0", "greater than 0"),
        ("pass@x", "k: "),
        ("sprout@3", "@"),
        ("sprout:depth=3", "depth"),
        ("sprout:rounds", "not name=value"),
    ):
        with pytest.raises(ConfigError, match=words):
            load_method(bad)
    assert AttemptLimits().retries == 1
