"""A simulated actor: a seed and a skill play a task's playbook; it is no model and says so.

It carries only its settings. Which step is next, what earlier outputs said and which draws come out
are found again from the transcript alone, so it acts the same in another process, after a restore,
and on a transcript that another actor began.
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from sprout_env.actors.actor import Completion, Message, TokenFact
from sprout_env.actors.simulated_answers import answer_other, decisions, priors_in
from sprout_env.actors.simulated_review import Reading, answer_review
from sprout_env.errors import ActorError
from sprout_env.tasks.folder import strip_canary
from sprout_env.tasks.playbook import (
    Playbook,
    Step,
    captures_of,
    fill,
    load_playbook,
    playbook_for,
)
from sprout_env.transcript import SUBMIT, Frozen, Notice, TokenTrace, Transcript, Turn

CHARACTERS_PER_TOKEN = 4
"""What the estimates of tokens assume."""

_PLACEHOLDER = re.compile(r"\$\{\{\s*(\w+)\s*\}\}")


class SimulatedActor(Frozen):
    """Plays each risky step of the playbook right with probability ``skill``.

    Example:
        >>> SimulatedActor(skill=0.8, seed=1).name
        'simulated(skill=0.8, seed=1)'
    """

    kind: Literal["simulated"] = "simulated"
    skill: float = Field(default=0.8, ge=0, le=1)
    """Probability of playing a risky step right."""
    seed: int = 0
    reviewer_accuracy: float = Field(default=1.0, ge=0, le=1)
    """Probability that a plan takes the boundary right before the faulty turn, that a vote is for
    the better attempt, that a supervisor notices a fault, and that a step which an earlier attempt
    did right is taken over from its summary."""
    entropies: bool = True
    """Tell, for every turn, the entropy of the draw that decided it: exact for this policy, which
    is uncertain at the playbook's risky steps alone, and no model's."""
    folders: tuple[str, ...] = ()
    """Folders of tasks outside the bundled suite, whose playbooks it may play."""

    @property
    def name(self) -> str:
        """How it is called where results are printed."""
        accuracy = "" if self.reviewer_accuracy == 1 else f", accuracy={self.reviewer_accuracy:g}"
        return f"simulated(skill={self.skill:g}, seed={self.seed}{accuracy})"

    @property
    def gives(self) -> frozenset[TokenFact]:
        """What its traces tell."""
        return frozenset({"entropies"} if self.entropies else ())

    def spec(self) -> dict[str, Any]:
        """Return the JSON from which ``load_actor`` makes the same actor elsewhere."""
        return self.model_dump(mode="json")

    def act(self, transcript: Transcript) -> Turn:
        """Return the next turn: the playbook's next step, right or wrong, or ``submit`` at its end.

        Raises:
            ActorError: The instruction is of no task with a playbook.
        """
        playbook = self._playbook(transcript.instruction)
        progress = follow(playbook, transcript.turns)
        told = _first_notice(transcript)
        known = _known_right(transcript.instruction.strip(), self.folders, told) if told else ()
        message, command, entropy = self._choose(transcript.instruction, progress, known)
        if progress.surprised:
            message = f"That is not quite the output I expected; going on. {message}"
        return Turn(
            message=message,
            command=command,
            trace=self._bill(_size(transcript), len(message) + len(command), entropy),
        )

    def complete(
        self, messages: Sequence[Message], schema: Mapping[str, Any] | None = None
    ) -> Completion:
        """Answer one of our prompts from its text and the playbook alone.

        Raises:
            ActorError: The prompt is none of ours, or of no task with a playbook.
        """
        prompt = "\n".join(message.content for message in messages if message.role == "user")
        accuracy = self.reviewer_accuracy
        text = answer_other(prompt, self._reader, draw=self._draw, accuracy=accuracy)
        if text is None:
            text = answer_review(prompt, self._reader, draw=self._draw, accuracy=accuracy)
        size = sum(len(message.content) for message in messages)
        return Completion(text=text, trace=self._bill(size, len(text)))

    def _bill(self, prompt: int, answer: int, entropy: float | None = None) -> TokenTrace:
        return TokenTrace(
            model=f"{self.name}, tokens estimated",
            entropies=(entropy,) if self.entropies and entropy is not None else (),
            prompt_tokens=-(-prompt // CHARACTERS_PER_TOKEN),
            completion_tokens=-(-answer // CHARACTERS_PER_TOKEN),
            finish_reason="stop",
        )

    def _draw(self, *facts: object) -> float:
        """Return the number in [0, 1) that belongs to these facts."""
        text = "\x1f".join(str(fact) for fact in (self.seed, *facts))
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        return int.from_bytes(digest[:7], "big") / (1 << 56)

    def _choose(
        self, instruction: str, progress: Progress, known: Collection[str]
    ) -> tuple[str, str, float]:
        """Return message, command and the entropy of the draw between right and wrong ones."""
        step = progress.step
        if step is None:
            return "All steps are done.", SUBMIT, 0.0
        right = (step.message, fill(step.command, progress.names))
        if not step.wrong:
            return *right, 0.0
        facts = (instruction, step.id, *progress.signature)
        skill = self.skill
        if step.id in known:
            skill += self.reviewer_accuracy * (1 - skill)
        entropy = _entropy(skill, len(step.wrong))
        if self._draw("right", *facts) < skill:
            return *right, entropy
        wrong = step.wrong[int(self._draw("wrong", *facts) * len(step.wrong))]
        return wrong.message, fill(wrong.command, progress.names), entropy

    def _playbook(self, instruction: str) -> Playbook:
        found = _find_playbook(instruction.strip(), self.folders)
        if found is None:
            raise ActorError(
                "a simulated actor plays only tasks with a playbook.toml, and none has the "
                f"instruction {instruction[:80]!r}; a model plays any task (--model openai/NAME)"
            )
        return found

    def _reader(self, instruction: str, turns: Sequence[Turn]) -> Reading:
        """Read a transcript through the playbook, as the reviewer does."""
        progress = follow(self._playbook(instruction), turns)
        return Reading(
            faults=tuple(
                (turn, step.wrong[which].shows_in) for turn, step, which in progress.wrong
            ),
            rights={
                turn: (step.message, fill(step.command, progress.names))
                for turn, step in progress.steps.items()
            },
            after=None
            if progress.step is None
            else (progress.step.message, fill(progress.step.command, progress.names)),
            signature=progress.signature,
        )


@dataclass
class Progress:
    """Where a transcript stands in a playbook."""

    step: Step | None
    """The step that comes next; None when all are done."""
    names: dict[str, str] = field(default_factory=dict)
    """What ``${{name}}`` stands for."""
    signature: tuple[str, ...] = ()
    """What was played, without what differs from run to run (captured values, ids)."""
    steps: dict[int, Step] = field(default_factory=dict)
    """The step that each turn played, by turn number."""
    wrong: list[tuple[int, Step, int]] = field(default_factory=list)
    """Turn, step and which of its wrong commands."""
    surprised: bool = False
    """The newest output is not what the playbook expects."""


def _entropy(skill: float, wrong: int) -> float:
    """Return the entropy in nats of a draw: right with ``skill``, else one of ``wrong`` evenly."""
    chances = (skill, *[(1 - skill) / wrong] * wrong)
    return -sum(chance * math.log(chance) for chance in chances if chance > 0)


def _first_notice(transcript: Transcript) -> str:
    """Return what was told before the first turn."""
    first = transcript.entries[0] if transcript.entries else None
    return first.text if isinstance(first, Notice) else ""


@functools.lru_cache(maxsize=256)
def _known_right(instruction: str, folders: tuple[str, ...], notice: str) -> frozenset[str]:
    """Return the risky steps that at least one summary in a notice did right."""
    known: set[str] = set()
    playbook = _find_playbook(instruction, folders)
    assert playbook is not None
    for summary in priors_in(notice):
        progress = follow(playbook, decisions(summary))
        wrong = {step.id for _, step, _ in progress.wrong}
        known |= {step.id for step in progress.steps.values() if step.risky} - wrong
    return frozenset(known)


@functools.lru_cache(maxsize=256)
def _find_playbook(instruction: str, folders: tuple[str, ...]) -> Playbook | None:
    for folder in folders:
        told = (Path(folder) / "instruction.md").read_text(encoding="utf-8")
        if strip_canary(told).strip() == instruction:
            return load_playbook(folder)
    return playbook_for(instruction)


def _pattern(command: str) -> re.Pattern[str]:
    """Return what matches a command with any captured values in it; the values are its groups."""
    seen: set[str] = set()

    def group(name: str) -> str:
        again = name in seen
        seen.add(name)
        return f"(?P={name})" if again else f"(?P<{name}>.*?)"

    parts = _PLACEHOLDER.split(command.strip())
    made = (group(part) if at % 2 else re.escape(part) for at, part in enumerate(parts))
    return re.compile("".join(made), re.DOTALL)


def follow(playbook: Playbook, turns: Sequence[Turn]) -> Progress:
    """Match a transcript's commands to the playbook's.

    Each command is sought in the step that is next, then in later steps (the transcript skipped
    some), then in earlier ones (it goes back); one that is in no step changes nothing.
    """
    progress = Progress(step=None)
    signature: list[str] = []
    at = 0
    steps = playbook.steps
    for number, turn in enumerate(turns, start=1):
        progress.surprised = False
        played = _find(steps, at, turn.command, progress.names)
        if played is None:
            signature.append(f"other:{turn.command.strip()}")
            continue
        at, which, values = played
        step = steps[at]
        progress.steps[number] = step
        for name, value in values.items():
            progress.names.setdefault(name, value)
        output = turn.result.output if turn.result is not None else ""
        if which is not None:
            progress.wrong.append((number, step, which))
        else:
            progress.surprised = not step.healthy(output)
        progress.names.update(captures_of(step, output))
        signature.append(f"{step.id}:{'right' if which is None else which}")
        at += 1
    progress.step = steps[at] if at < len(steps) else None
    progress.signature = tuple(signature)
    return progress


def _find(
    steps: Sequence[Step], start: int, command: str, names: Mapping[str, str]
) -> tuple[int, int | None, Mapping[str, str]] | None:
    """Return the step that a command plays, which of its wrong ones (None: right), and values."""
    told = command.strip()
    for at in (*range(start, len(steps)), *range(min(start, len(steps)))):
        step = steps[at]
        choices: tuple[tuple[int | None, str], ...] = (
            (None, step.command),
            *((which, wrong.command) for which, wrong in enumerate(step.wrong)),
        )
        # What is the same to the letter comes before what a template could also mean.
        for which, template in choices:
            if fill(template, names).strip() == told:
                return at, which, {}
        for which, template in choices:
            if "${{" in template and (match := _pattern(template).fullmatch(told)):
                return at, which, match.groupdict()
    return None


def _size(transcript: Transcript) -> int:
    """Return the characters of a prompt made of the transcript."""
    size = len(transcript.instruction)
    for entry in transcript.entries:
        if isinstance(entry, Turn):
            size += len(entry.message) + len(entry.command)
            size += len(entry.result.output) if entry.result is not None else 0
        else:
            size += len(entry.text)
    return size
