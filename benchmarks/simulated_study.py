"""Measured against written-down: what the simulated actor resolves and spends, method by method.

    python benchmarks/simulated_study.py [--seeds 60] [--real] [--out docs/]

Every bundled playbook, several skills and accuracies, in a world made of the playbooks; with
``--real`` also attempts in sandboxes (root), whose verdicts must be what the playbook promises.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.simulated import closed_forms as forms
from benchmarks.simulated.closed_forms import Book
from benchmarks.simulated.playbook_world import PlaybookWorld, bundled, judge, shape
from sprout_env.records.attempt import Attempt
from sprout_env.search import (
    Budget,
    Collector,
    Meter,
    Recipe,
    RunConfig,
    Running,
    Stop,
    load_method,
    run,
)
from sprout_env.search.charts import figure, save
from sprout_env.search.events import ignore
from sprout_env.tasks.playbook import Playbook
from sprout_env.tasks.task import Task
from sprout_env.transcript import Turn

Form = Callable[[Book, float, float], float]

CASES: dict[str, tuple[str, Form]] = {
    "pass@1": ("p^n", lambda b, p, a: forms.pass_at_k(b, p, 1)),
    "pass@4": ("1 - (1 - p^n)^4", lambda b, p, a: forms.pass_at_k(b, p, 4)),
    "sprout:rounds=1,branches=1": (
        "p^n + sum over first faults i: p^(i-1) (1-p) a p^(n-i)",
        lambda b, p, a: forms.sprout_one_branch(b, p, a, 1),
    ),
    "sprout:rounds=3,branches=1": (
        "the same as a chain over the first fault, three rounds",
        lambda b, p, a: forms.sprout_one_branch(b, p, a, 3),
    ),
    "rollback_no_hint:rounds=1,branches=1": (
        "p^n + sum over i: p^(i-1) (1-p) a p^(n-i+1)",
        lambda b, p, a: forms.sprout_one_branch(b, p, a, 1, hint=False),
    ),
    "reward_only_review:rounds=1,branches=1": (
        "any boundary evenly, the next step right, p for each risky step after it",
        lambda b, p, a: forms.reward_only(b, p),
    ),
    "random_boundary@1": (
        "any boundary evenly, p for each risky step after it",
        lambda b, p, a: forms.random_boundary(b, p),
    ),
    "entropy@1": (
        "before a step with most errors, evenly, p for each risky step after it",
        lambda b, p, a: forms.entropy(b, p),
    ),
    "shepherd:every=1,forks=1": (
        "a right supervisor forks before the first fault: rollback with a = 1",
        lambda b, p, a: forms.sprout_one_branch(b, p, a, 1, hint=False),
    ),
    "rtv:n=4,votes=3": (
        "faults of the winner, duel by duel; the better wins by a majority of votes",
        lambda b, p, a: forms.rtv(b, p, a, 4, 3),
    ),
    "pdr:n=2,k=2": (
        "(q (p + a (1-p)) + (1-q) p)^n, q = 1 - (1-p)^2",
        lambda b, p, a: forms.pdr(b, p, a, 2),
    ),
}
RIGHT_ONLY: dict[str, tuple[str, Form]] = {
    "sprout:rounds=1,branches=4": (
        "1 - product over plans m of 1 - p^(risky steps after boundary fault - m + 1)",
        lambda b, p, a: forms.sprout_one_round(b, p, 4),
    ),
}
"""Formulas that hold for a reviewer who is always right."""
CALLS: dict[str, Form] = {
    "pass@1": lambda b, p, a: forms.calls_pass_at_k(b, 1),
    "pass@4": lambda b, p, a: forms.calls_pass_at_k(b, 4),
    "sprout:rounds=1,branches=1": forms.calls_sprout_one_round,
}
ALWAYS_RIGHT = ("shepherd:every=1,forks=1", *RIGHT_ONLY)


@dataclass
class Line:
    """One method at one skill and accuracy."""

    method: str
    skill: float
    accuracy: float
    trials: int
    expected: float
    measured: float
    sigma: float
    """Standard error of ``measured`` under the formula."""
    calls_expected: float | None = None
    calls_measured: float | None = None
    calls_sigma: float | None = None

    @property
    def z(self) -> float:
        """How many standard errors they are apart."""
        return (self.measured - self.expected) / self.sigma if self.sigma else 0.0

    @property
    def calls_z(self) -> float:
        """The same for the calls."""
        if self.calls_measured is None or self.calls_expected is None or not self.calls_sigma:
            return 0.0
        return (self.calls_measured - self.calls_expected) / self.calls_sigma


def collect(
    task: Task, playbook: Playbook, method: str, skill: float, accuracy: float, seed: int
) -> tuple[bool, int]:
    """Run a method once in the playbooks' world; return its outcome and calls."""
    actor = {"kind": "simulated", "skill": skill, "reviewer_accuracy": accuracy}
    stop = Stop()
    world = PlaybookWorld(task.instruction, lambda job, turns: judge(playbook, turns))
    recipe = Recipe(suite="seedbed", actor=actor, seed=seed)
    collector = Collector(task, recipe, Running(world, Meter(Budget(), stop), stop, ignore))
    done = load_method(method).collect(collector)
    return done.passed, done.usage().calls


def study(seeds: int, skills: list[float], accuracies: list[float], most: int) -> list[Line]:
    """Measure every case."""
    tasks = {slug: pair for slug, pair in bundled().items() if len(pair[1].steps) <= most}
    lines: list[Line] = []
    for accuracy in accuracies:
        cases = CASES if accuracy < 1 else {**CASES, **RIGHT_ONLY}
        for skill in skills:
            for method, (_, form) in cases.items():
                if method in ALWAYS_RIGHT and accuracy < 1:
                    continue
                first = 1_000_000 * len(lines)
                lines.append(measure(tasks, method, form, skill, accuracy, first, seeds))
                print(said(lines[-1]), flush=True)
    return lines


def measure(
    tasks: dict[str, tuple[Task, Playbook]],
    method: str,
    form: Form,
    skill: float,
    accuracy: float,
    first: int,
    seeds: int,
) -> Line:
    """Run one method over tasks and seeds and hold it against its formula."""
    expected, variance, passed, trials = 0.0, 0.0, 0, 0
    calls: list[float] = []
    calls_expected = 0.0
    for task, playbook in tasks.values():
        book = shape(playbook)
        chance = form(book, skill, accuracy)
        told = CALLS[method](book, skill, accuracy) if method in CALLS else 0.0
        for seed in range(first, first + seeds):
            ok, spent = collect(task, playbook, method, skill, accuracy, seed)
            passed += ok
            calls.append(spent - told)
            expected += chance
            variance += chance * (1 - chance)
            calls_expected += told
            trials += 1
    line = Line(
        method,
        skill,
        accuracy,
        trials,
        expected / trials,
        passed / trials,
        math.sqrt(variance) / trials,
    )
    if method in CALLS:
        mean = sum(calls) / trials
        spread = math.sqrt(sum((c - mean) ** 2 for c in calls) / max(1, trials - 1))
        line.calls_expected = calls_expected / trials
        line.calls_measured = line.calls_expected + mean
        line.calls_sigma = spread / math.sqrt(trials)
    return line


def said(line: Line) -> str:
    """Return a line for the terminal."""
    text = (
        f"{line.method:40s} skill {line.skill:.2f} accuracy {line.accuracy:.1f} n={line.trials:4d} "
        f"expected {100 * line.expected:5.1f} % measured {100 * line.measured:5.1f} % "
        f"z {line.z:+.1f}"
    )
    if line.calls_measured is not None:
        text += (
            f"; calls {line.calls_expected:.1f} / {line.calls_measured:.1f} z {line.calls_z:+.1f}"
        )
    return text


def real(store: Path | None, slugs: list[str], seeds: int, folder: Path) -> dict[str, Any]:
    """Play attempts in sandboxes; each verdict must be what the playbook promises of its turns."""
    books = bundled()
    agreed = same_tests = 0
    apart: list[str] = []
    attempts: list[Attempt] = []
    for seed in range(seeds):
        config = RunConfig.make(
            "seedbed",
            actor={"kind": "simulated", "skill": 0.85, "reviewer_accuracy": 0.8},
            method="sprout:rounds=1,branches=2,stop_on_pass=no",
            tasks=tuple(slugs),
            seed=seed,
            store=str(store) if store is not None else None,
        )
        result = run(config, folder=folder / f"real-{seed}", workers=2)
        attempts += [a for item in result.collections for a in item.attempts]
    for attempt in attempts:
        turns = tuple(entry for entry in attempt.entries if isinstance(entry, Turn))
        promised = judge(books[attempt.task][1], turns)
        if attempt.passed == promised.passed:
            agreed += 1
        else:
            apart.append(f"{attempt.id} (seed {attempt.seed})")
        told = {
            name.split("::")[-1] for name in (attempt.verdict.failing if attempt.verdict else ())
        }
        same_tests += told == set(promised.failing)
    return {
        "tasks": slugs,
        "attempts": len(attempts),
        "passed": sum(attempt.passed for attempt in attempts),
        "as_promised": agreed,
        "same_failing_tests": same_tests,
        "apart": apart,
    }


def page(lines: list[Line], checked: dict[str, Any] | None, took_s: float, most: int) -> str:
    """Return the study as a page."""
    formulas = {**CASES, **RIGHT_ONLY}
    worst = max(abs(line.z) for line in lines)
    worst_calls = max((abs(line.calls_z) for line in lines), default=0.0)
    parts = [
        "# Simulated study: measured against written-down",
        "",
        "Made by `benchmarks/simulated_study.py`; do not edit. The simulated actor plays a "
        "bundled task's playbook: each of its n risky steps is right with probability p (skill); "
        "a reviewer, judge or supervisor is right with probability a (accuracy). No model was "
        "asked. If search, seeds or accounting were wrong, the measured numbers would leave their "
        "formulas. Each cell has seeds of its own, so that cells are independent. Playbooks of "
        f"more than {most} steps are left out, for time alone.",
        "",
        f"{len(lines)} cells, {sum(line.trials for line in lines)} collections in the playbooks' "
        f"world, {took_s:.0f} s. Furthest from its formula: {worst:.1f} standard errors (resolve), "
        f"{worst_calls:.1f} (calls).",
        "",
        "![resolve rates](simulated_study.svg)",
        "",
        "## Formulas",
        "",
        *(f"- `{method}`: {text}" for method, (text, _) in formulas.items()),
        "",
        "Calls: pass@k: k (steps + 1). SPROUT, one round and branch: (steps + 1) + sum over first "
        "faults at turn t: p^(i-1) (1-p) (2 + a (steps - t + 1) + (1-a) mean over wrong "
        "boundaries b of max(1, steps - b)). Code: `benchmarks/simulated/closed_forms.py`.",
        "",
        "## Resolve rate",
        "",
        "| method | p | a | trials | formula % | measured % | 95 % interval | z |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for line in lines:
        low, high = (100 * (line.measured + sign * 1.96 * line.sigma) for sign in (-1, 1))
        parts.append(
            f"| {line.method} | {line.skill:.2f} | {line.accuracy:.1f} | {line.trials} "
            f"| {100 * line.expected:.1f} | {100 * line.measured:.1f} "
            f"| {max(0.0, low):.1f} to {min(100.0, high):.1f} | {line.z:+.1f} |"
        )
    parts += [
        "",
        "## Model calls of a task",
        "",
        "| method | p | a | formula | measured | standard error | z |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    parts += [
        f"| {line.method} | {line.skill:.2f} | {line.accuracy:.1f} | {line.calls_expected:.2f} "
        f"| {line.calls_measured:.2f} | {line.calls_sigma:.2f} | {line.calls_z:+.1f} |"
        for line in lines
        if line.calls_measured is not None
    ]
    parts += ["", "## In real sandboxes", ""]
    if checked is None:
        parts.append("Not done in this run (`--real`).")
    else:
        parts.append(
            f"{checked['attempts']} attempts (roots and branches from restored snapshots) of "
            f"{', '.join(checked['tasks'])}: {checked['passed']} passed; the verdict was what the "
            f"playbook promises in {checked['as_promised']}, and exactly the promised tests failed "
            f"in {checked['same_failing_tests']}."
        )
        parts += [f"- not as promised: {id}" for id in checked["apart"]]
    return "\n".join(parts) + "\n"


def plot(lines: list[Line], path: Path) -> None:
    """Draw measured rates over their formulas."""
    made, (axis,) = figure(7, 6.5)
    axis.plot([0, 100], [0, 100], color="#8d99ae", linewidth=1, label="formula")
    for method in dict.fromkeys(line.method for line in lines):
        mine = [line for line in lines if line.method == method]
        axis.errorbar(
            [100 * line.expected for line in mine],
            [100 * line.measured for line in mine],
            yerr=[196 * line.sigma for line in mine],
            fmt="o",
            markersize=4,
            capsize=2,
            linewidth=1,
            label=method,
        )
    axis.set(xlabel="% resolved, by the formula", ylabel="% resolved, measured (95 % intervals)")
    axis.legend(frameon=False, fontsize=7)
    axis.grid(alpha=0.2)
    save(made, path)


def main() -> int:
    """Run the study; the exit code is 1 where a number has left its formula."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=60)
    parser.add_argument("--skills", default="0.85,0.95")
    parser.add_argument("--accuracies", default="0.6,1.0")
    parser.add_argument("--most-steps", type=int, default=30, help="longer playbooks are left out")
    parser.add_argument("--real", action="store_true", help="also attempts in sandboxes")
    parser.add_argument("--real-tasks", default="shop-schema-migration,git-history-rescue")
    parser.add_argument("--real-seeds", type=int, default=4)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()
    began = time.monotonic()
    numbers = [[float(x) for x in text.split(",")] for text in (given.skills, given.accuracies)]
    lines = study(given.seeds, numbers[0], numbers[1], given.most_steps)
    took_s = time.monotonic() - began
    given.out.mkdir(parents=True, exist_ok=True)
    checked = None
    if given.real:
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            slugs = given.real_tasks.split(",")
            checked = real(given.store, slugs, given.real_seeds, Path(folder))
        print(json.dumps(checked))
    (given.out / "simulated_study.md").write_text(page(lines, checked, took_s, given.most_steps))
    plot(lines, given.out / "simulated_study.svg")
    (given.out / "simulated_study.json").write_text(
        json.dumps({"lines": [asdict(line) for line in lines], "real": checked}, indent=1) + "\n"
    )
    off = [line for line in lines if max(abs(line.z), abs(line.calls_z)) > 4]
    off_real = checked is not None and checked["as_promised"] != checked["attempts"]
    for line in off:
        print(f"has left its formula: {said(line)}")
    return int(bool(off) or off_real)


if __name__ == "__main__":
    sys.exit(main())
