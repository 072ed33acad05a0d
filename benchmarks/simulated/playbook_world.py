"""A world made of playbooks alone: an attempt passes if it played no wrong step.

It is the playbooks' own promise, which the study holds against real sandboxes too. Nothing is run,
so that thousands of attempts cost minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from benchmarks.simulated.closed_forms import Book
from sprout_env.actors.load import load_actor
from sprout_env.actors.simulated import follow
from sprout_env.grading.verdict import TestReport, Verdict
from sprout_env.records.attempt import Attempt, Boundary, Usage
from sprout_env.search.attempts import AttemptJob
from sprout_env.search.budget import Stop
from sprout_env.search.events import OnEvent
from sprout_env.search.review import usage_of
from sprout_env.tasks.playbook import Playbook, load_playbook
from sprout_env.tasks.suites import find_suite
from sprout_env.tasks.task import Task
from sprout_env.transcript import Entry, Notice, Result, Transcript, Turn


def shape(playbook: Playbook) -> Book:
    """Return what the closed forms need of a playbook."""
    risky = [(turn, step) for turn, step in enumerate(playbook.steps, start=1) if step.risky]
    return Book(
        steps=len(playbook.steps),
        risky=tuple(turn for turn, _ in risky),
        errors=tuple(len(step.wrong) for _, step in risky),
    )


def bundled() -> dict[str, tuple[Task, Playbook]]:
    """Return the bundled tasks with their playbooks."""
    suite = find_suite("seedbed")
    tasks = {slug: suite.task(slug) for slug in suite.slugs()}
    return {
        slug: (task, load_playbook(Path(task.folder)))
        for slug, task in tasks.items()
        if task.folder is not None
    }


def judge(playbook: Playbook, turns: tuple[Turn, ...]) -> Verdict:
    """Say which tests fail because of the wrong steps that were played."""
    wrong = follow(playbook, turns).wrong
    failing = sorted({name for _, step, which in wrong for name in step.wrong[which].shows_in})
    return Verdict(
        outcome="failed" if failing else "passed",
        reward=float(not failing),
        tests=tuple(TestReport(name=name, status="failed") for name in failing),
    )


def unheard(turn: Turn) -> Turn:
    """Run a turn's command as if it said nothing."""
    return turn.model_copy(update={"result": Result(output="", exit_code=0)})


class PlaybookWorld:
    """An executor of jobs in this world; it finds a branch's start among the attempts it ran.

    Args:
        instruction: The task's.
        judge: What is said of an attempt's turns.
        execute: What a turn's command says.
    """

    def __init__(
        self,
        instruction: str,
        judge: Callable[[AttemptJob, tuple[Turn, ...]], Verdict],
        execute: Callable[[Turn], Turn] = unheard,
    ) -> None:
        self._instruction = instruction
        self._judge = judge
        self._execute = execute
        self.entries: dict[str, tuple[Entry, ...]] = {}
        self.jobs: list[AttemptJob] = []
        """All that were run, as they would come over to another process."""

    def submit(self, job: AttemptJob, *, on_event: OnEvent, stop: Stop) -> Future[Attempt]:
        """Play a job at once."""
        self.jobs.append(AttemptJob.model_validate_json(job.model_dump_json()))
        attempt = self.play(job)
        self.entries[attempt.id] = attempt.entries
        future: Future[Attempt] = Future()
        future.set_result(attempt)
        return future

    def close(self) -> None:
        """Do nothing."""

    def _start(self, job: AttemptJob) -> Transcript:
        path = Transcript.start(self._instruction)
        if job.plan is not None:
            whole = Transcript.of(self._instruction, self.entries[job.plan.attempt])
            path = whole.at(job.plan.boundary)
        return path.append(Notice(text=job.notice)) if job.notice else path

    def play(self, job: AttemptJob) -> Attempt:
        """Play a job to its end."""
        actor = load_actor(job.actor, job.seed)
        path, usage = self._start(job), Usage()
        kept = {boundary.turn: boundary for boundary in job.boundaries}
        starting = job.plan.starting_turn if job.plan is not None else None
        while True:
            kept.setdefault(path.turn, Boundary(turn=path.turn, snapshot=f"{job.id}@{path.turn}"))
            if starting is not None:
                turn, starting = starting.turn(), None
            else:
                turn = actor.act(path)
                usage = usage + usage_of(turn.trace)
            path = path.append(self._execute(turn))
            if turn.submits:
                break
            assert path.turn < 1000
        return job.record(
            instruction=self._instruction,
            entries=path.entries,
            boundaries=tuple(kept[turn] for turn in sorted(kept)),
            verdict=self._judge(job, path.turns),
            usage=usage,
        )
