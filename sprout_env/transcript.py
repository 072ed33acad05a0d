"""The agent's context: an immutable linked path of turns, which a branch shares with its parent.

A node is kept once, however many branches pass through it. The same nodes serve as transcript,
as lineage of snapshots and as training record (see ``records``).
"""

from __future__ import annotations

import difflib
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from sprout_env.errors import ConfigError

Provenance = Literal["policy", "policy_under_review", "other_model", "scripted"]
"""Who wrote a turn. A starting turn is written by the policy, but under the review's context."""

SUBMIT = "submit"
"""The command that ends an episode."""


_LONE = re.compile("[\ud800-\udfff]")


def whole(text: str) -> str:
    """Return text in which a mark stands for what is no character: no server or shell takes it."""
    return _LONE.sub("\ufffd", text)


Text = Annotated[str, AfterValidator(whole)]


def new_node_id() -> str:
    """Return a fresh id for a node of the rollout tree (16 hexadecimal digits)."""
    return uuid.uuid4().hex[:16]


class Frozen(BaseModel):
    """Base of our frozen models: unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    @classmethod
    def told(cls, what: str, settings: Mapping[str, Any]) -> Self:
        """Return a model of what a person told.

        Args:
            what: How the sentence begins if that cannot be, such as ``"limit "``.
            settings: Fields by name.

        Raises:
            ConfigError: A setting is unknown or out of range.
        """
        try:
            return cls.model_validate(settings)
        except ValidationError as error:
            raise ConfigError(what + "; ".join(map(cls._wrong, error.errors()))) from error

    @classmethod
    def _wrong(cls, error: ErrorDetails) -> str:
        where = ".".join(map(str, error["loc"]))
        if error["type"] != "extra_forbidden" or len(error["loc"]) > 1:
            return f"{where}: {error['msg'].removeprefix('Value error, ')}"
        fields = [name for name in cls.model_fields if name != "kind"]
        near = difflib.get_close_matches(where, fields, n=1)
        return f"no {where} here; " + (
            f"did you mean {near[0]}?" if near else f"there are {', '.join(fields)}"
        )


class TokenTrace(Frozen):
    """What the model engine saw and sampled for one assistant message."""

    prompt_ids: tuple[int, ...] = ()
    """Token ids of the whole prompt, as the engine saw them; empty where it gave none."""
    token_ids: tuple[int, ...] = ()
    """Token ids sampled by the model."""
    logprobs: tuple[float, ...] = ()
    """Sampling log-probability (natural log) of each of ``token_ids``; empty where not given."""
    entropies: tuple[float, ...] = ()
    """Entropy in nats at each sampled position, estimated from top log-probabilities; or empty."""
    model: str = ""
    """The model's name, as the server reported it."""
    prompt_tokens: int = 0
    """Prompt tokens billed for the call, cached ones included."""
    cached_tokens: int = 0
    """How many of ``prompt_tokens`` came from the server's prefix cache."""
    completion_tokens: int = 0
    """Completion tokens billed for the call."""
    finish_reason: str = ""
    call_id: str = ""
    """Id of the tool call that holds the command, as the server gave it: it is sent back."""
    weight_version: int | None = None
    """Which weights sampled it: the number of the trainer's last sync; None where unknown."""
    requests: int = 1
    """Requests that the tokens above were billed for: more than one after a re-ask."""


class Result(Frozen):
    """What a command did, as the actor sees it."""

    output: str
    """Standard output and error in the order written, as text, cut to the observation's limit."""
    exit_code: int
    """The command's exit status; 128 + n when signal n ended it; 124 on a time-out."""
    duration_s: float = 0.0
    timed_out: bool = False
    dropped_bytes: int = 0
    """Bytes of output that were cut out between head and tail."""
    shell_state_lost: bool = False
    """The command ended without handing over its directory and variables (exec, kill)."""


class Turn(Frozen):
    """One assistant message, its command and, once it ran, the result."""

    kind: Literal["turn"] = "turn"
    id: str = Field(default_factory=new_node_id)
    message: Text = ""
    """The assistant's text beside the command; may be empty."""
    command: Text
    """The shell command; ``submit`` ends the episode."""
    provenance: Provenance = "policy"
    trace: TokenTrace | None = None
    result: Result | None = None
    """None until the turn is complete."""

    @property
    def submits(self) -> bool:
        """Whether this turn ends the episode by its command."""
        return self.command.strip() == SUBMIT


class Notice(Frozen):
    """What the environment tells the actor between turns, such as processes lost at a restore."""

    kind: Literal["notice"] = "notice"
    id: str = Field(default_factory=new_node_id)
    text: Text


Entry = Annotated[Turn | Notice, Field(discriminator="kind")]
"""A node of the transcript."""


class Transcript:
    """An immutable path from the instruction to a boundary; ``append`` shares the prefix.

    Example:
        >>> start = Transcript.start("Fix the build.")
        >>> one = start.append(Turn(command="make", result=Result(output="ok", exit_code=0)))
        >>> one.turn, start.turn, one.parent is start
        (1, 0, True)
    """

    __slots__ = ("entry", "instruction", "parent", "turn")

    def __init__(
        self, instruction: str, parent: Transcript | None, entry: Turn | Notice | None
    ) -> None:
        self.instruction = instruction
        self.parent = parent
        self.entry = entry
        before = parent.turn if parent is not None else 0
        self.turn: int = before + (1 if isinstance(entry, Turn) else 0)
        """Number of turns on the path."""

    @classmethod
    def start(cls, instruction: str) -> Transcript:
        """Return the path that holds only the task's instruction."""
        return cls(instruction, None, None)

    @classmethod
    def of(cls, instruction: str, entries: Iterable[Turn | Notice]) -> Transcript:
        """Return the path of ``entries`` under ``instruction``."""
        path = cls.start(instruction)
        for entry in entries:
            path = path.append(entry)
        return path

    def append(self, entry: Turn | Notice) -> Transcript:
        """Return the path that is one entry longer."""
        return Transcript(self.instruction, self, entry)

    def _up(self) -> Iterator[Transcript]:
        node: Transcript | None = self
        while node is not None:
            yield node
            node = node.parent

    @property
    def entries(self) -> tuple[Turn | Notice, ...]:
        """All entries, oldest first."""
        found = [node.entry for node in self._up() if node.entry is not None]
        return tuple(reversed(found))

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The turns, oldest first; turn ``n`` of the text is ``turns[n - 1]``."""
        return tuple(entry for entry in self.entries if isinstance(entry, Turn))

    @property
    def last_turn(self) -> Turn | None:
        """The newest turn, or None at the start."""
        for node in self._up():
            if isinstance(node.entry, Turn):
                return node.entry
        return None

    def at(self, turn: int) -> Transcript:
        """Return the shared path that ends right after ``turn`` (0 is the instruction alone).

        Raises:
            IndexError: The path has fewer turns.
        """
        found: Transcript | None = None
        for node in self._up():
            if node.turn == turn:
                found = node
            elif node.turn < turn:
                break
        if found is None:
            raise IndexError(f"no turn {turn} in a transcript of {self.turn}")
        return found

    def __eq__(self, other: object) -> bool:
        """Equal when instruction and all entries are equal."""
        if not isinstance(other, Transcript):
            return NotImplemented
        return self.instruction == other.instruction and self.entries == other.entries

    def __hash__(self) -> int:
        """Hash of the end of the path."""
        return hash((self.instruction, self.turn, self.entry.id if self.entry else ""))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle flat: a linked path of a thousand turns must not recurse."""
        return Transcript.of, (self.instruction, self.entries)

    def __repr__(self) -> str:
        """Short form for people."""
        return f"Transcript({self.instruction[:40]!r}, turn={self.turn})"
