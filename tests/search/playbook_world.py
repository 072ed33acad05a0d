"""A world made of a playbook alone: what the commands of a transcript do to the verdict.

It is the playbook's own promise (after a wrong step the rest still runs, and at the end exactly the
consequences show), executed without a sandbox, so that thousands of attempts cost seconds.
"""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.simulated.playbook_world import PlaybookWorld
from sprout_env.grading.verdict import TestReport, Verdict
from sprout_env.records.attempt import Attempt
from sprout_env.search.attempts import AttemptJob
from sprout_env.tasks.playbook import Playbook, load_playbook
from sprout_env.tasks.task import FolderImage, Task, VerifierSpec
from sprout_env.transcript import Result, Turn

INSTRUCTION = "Move the small shop to its new schema."


def write_task(folder: Path, *, risky: int = 3, safe: int = 2) -> Path:
    """Write a task folder with ``risky`` steps, each shown by a test of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "instruction.md").write_text(INSTRUCTION + "\n")
    steps = [
        '[[steps]]\nid = "look"\nmessage = "Look first."\ncommand = "git log --oneline"\n'
        "capture = { rev = 'rev ([0-9a-f]+)' }\n"
    ]
    steps.extend(
        f'[[steps]]\nid = "risky-{number}"\nmessage = "Do part {number}."\n'
        f'command = "apply {number} ${{{{rev}}}}"\nexpect = "applied {number}"\n'
        f'[[steps.wrong]]\nmessage = "Part {number} can be skipped."\n'
        f'command = "skip {number} ${{{{rev}}}}"\nshows_in = ["test_part_{number}"]\n'
        f'[[steps.wrong]]\nmessage = "Force part {number}."\n'
        f'command = "force {number}"\nshows_in = ["test_part_{number}", "test_all"]\n'
        for number in range(1, risky + 1)
    )
    steps.extend(
        f'[[steps]]\nid = "safe-{number}"\nmessage = "Check {number}."\n'
        f'command = "check {number}"\n'
        for number in range(1, safe + 1)
    )
    (folder / "playbook.toml").write_text("\n".join(steps))
    return folder


def the_task(name: str = "shop") -> Task:
    return Task(
        name=name,
        suite="toy",
        instruction=INSTRUCTION,
        image=FolderImage(path=Path("/nowhere")),
        verifier=VerifierSpec(),
        digest="0" * 64,
    )


def execute(turn: Turn) -> Turn:
    command = turn.command
    output = f"ran {command}\n"
    if command == "git log --oneline":
        output = "rev 1f2e3d first\n"
    elif match := re.match(r"apply (\d+) ", command):
        output = f"applied {match[1]}\n"
    return turn.model_copy(update={"result": Result(output=output, exit_code=0)})


def judge(playbook: Playbook, commands: list[str]) -> Verdict:
    """Each risky part needs its right command; the wrong ones fail their tests."""
    tests: dict[str, bool] = {"test_all": True}
    for number, step in enumerate(playbook.risky, start=1):
        done = f"apply {number} 1f2e3d" in commands
        tests[f"test_part_{number}"] = done
        for wrong in step.wrong:
            if any(c.split()[:2] == wrong.command.split()[:2] for c in commands):
                tests |= dict.fromkeys(wrong.shows_in, False)
    good = all(tests.values())
    return Verdict(
        outcome="passed" if good else "failed",
        reward=float(good),
        tests=tuple(
            TestReport(name=f"test_shop.py::{name}", status="passed" if ok else "failed")
            for name, ok in tests.items()
        ),
    )


def judged(job: AttemptJob, turns: tuple[Turn, ...]) -> Verdict:
    return judge(load_playbook(Path(job.actor["folders"][0])), [turn.command for turn in turns])


class WorldExecutor(PlaybookWorld):
    """The benchmarks' world, in which commands answer and the verdict looks at what they did."""

    def __init__(self) -> None:
        super().__init__(INSTRUCTION, judged, execute)


def play(job: AttemptJob) -> Attempt:
    """Play one root."""
    return WorldExecutor().play(job)
