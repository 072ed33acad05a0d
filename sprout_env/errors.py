"""Every error of the package, in one tree.

SproutError
├── ConfigError (ValueError)              a setting or an argument that cannot be served
│   ├── RecordVersionUnknown              records that a later program wrote
│   ├── GroupWithoutReward                a training group in which nothing was judged
│   ├── TokensDiverge                     token ids that do not concatenate along a path
│   └── TrainerUnsupported                a trainer outside the releases that its adapter takes
├── TaskError (ValueError)
│   ├── TaskNotFound (LookupError)        no such suite or task on this machine
│   ├── TaskBroken                        a task folder that cannot be read
│   └── TaskUnsupported                   a feature that this package refuses by name
├── ImageError (RuntimeError)             an image that cannot be found, built or unpacked
├── StoreError (OSError)
│   ├── StoreUnavailable                  no store here: no root, no btrfs, wrong file system
│   ├── StoreFull                         too little space left to begin new work
│   └── DiskNotFound (LookupError)        a disk that is not, or no longer, in the store
├── SandboxError (RuntimeError)
│   ├── SandboxStartFailed
│   ├── SandboxLost                       it died, or was closed, under us
│   └── PauseTimeout (TimeoutError)       its processes did not stop in time
├── SnapshotError (RuntimeError)
│   ├── SnapshotNotFound (LookupError)
│   ├── SnapshotIncomplete                a boundary that has no snapshot, and why
│   ├── SnapshotInUse                     released while a lease on it is held
│   ├── StackMismatch (TypeError)         restored under other wrappers than it was taken under
│   └── UnknownLayer (TypeError)          a wrapper whose state nobody knows how to save
├── EpisodeError (RuntimeError)
│   ├── NotReset
│   └── EpisodeOver
├── GradingError (RuntimeError)
│   └── VerdictInvalid                    the verifier could not decide
├── ActorError (RuntimeError)
│   ├── ActorUnavailable                  the model's server cannot be reached or refuses us
│   └── ContextExceeded                   the conversation no longer fits the model
└── BudgetExhausted (RuntimeError)        calls, tokens, seconds or money are used up

Three kinds of trouble are never mixed: what the agent caused is an observation, what the
infrastructure did is an exception from this file, and what the verifier could not decide is a
``Verdict`` of "invalid". Constructors take positional facts and compose the sentence, so that
errors survive pickling on their way out of a worker process.
"""

from __future__ import annotations

from typing import Any, ClassVar


class SproutError(Exception):
    """Base of all errors of this package; ``facts`` are what the sentence was made of."""

    message: ClassVar[str] = "{0}"

    def __init__(self, *facts: object) -> None:
        self.facts = facts
        super().__init__(self.message.format(*facts))

    def __str__(self) -> str:
        """The sentence, also for the OSError leaves."""
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild from the facts."""
        return type(self), self.facts


class ConfigError(SproutError, ValueError):
    """Raised when a setting or an argument cannot be served. Facts: the sentence."""


class RecordVersionUnknown(ConfigError):
    """Raised when records are of another major version. Facts: file, theirs, ours."""

    message = "{0} is of version {1}; this program reads {2}"


class GroupWithoutReward(ConfigError):
    """Raised when a group has nothing to learn from. Facts: the task, attempts, why."""

    message = "no group of task {0}: {1} attempts, and a group needs a valid reward ({2})"


class TokensDiverge(ConfigError):
    """Raised when a path is not what the model saw. Facts: attempt, turn, what is wrong."""

    message = "token ids of attempt {0} do not concatenate at turn {1}: {2}"


class TrainerUnsupported(ConfigError):
    """Raised when an adapter does not take a trainer. Facts: package, version, series taken."""

    message = "this adapter was not written for {0} {1}; it takes {2}.x"


class TaskError(SproutError, ValueError):
    """Raised when a task cannot be used. Facts: the sentence."""


class TaskNotFound(TaskError, LookupError):
    """Raised when a suite or task is not on this machine. Facts: what was asked, the remedy."""

    message = "no such task or suite: {0}; {1}"


class TaskBroken(TaskError):
    """Raised when a task folder cannot be read. Facts: the folder or file, what is wrong."""

    message = "broken task {0}: {1}"


class TaskUnsupported(TaskError):
    """Raised when a task asks for what we refuse. Facts: the task, the feature."""

    message = "task {0} needs {1}, which sprout_env does not support"


class ImageError(SproutError, RuntimeError):
    """Raised when an image cannot be had. Facts: the image, what happened and the remedy."""

    message = "image {0}: {1}"


class StoreError(SproutError, OSError):
    """Raised when the disk store fails. Facts: the sentence."""


class StoreUnavailable(StoreError):
    """Raised when no store can be had here. Facts: what is missing, the remedy."""

    message = "no disk store here: {0}; {1}"


class StoreFull(StoreError):
    """Raised when too little space is left. Facts: the path, free bytes, bytes wanted."""

    message = (
        "store {0} has {1} bytes free and keeps {2} in reserve; release snapshots or enlarge it"
    )


class DiskNotFound(StoreError, LookupError):
    """Raised when a disk is not in the store. Facts: the disk's id."""

    message = "no disk {0} in this store"


class SandboxError(SproutError, RuntimeError):
    """Raised when a sandbox fails us. Facts: the sentence."""


class SandboxStartFailed(SandboxError):
    """Raised when a sandbox cannot be started. Facts: the step, the cause."""

    message = "sandbox did not start: {0}: {1}"


class SandboxLost(SandboxError):
    """Raised when a sandbox died or was closed under us. Facts: what was being done, the cause."""

    message = "sandbox lost during {0}: {1}"


class PauseTimeout(SandboxError, TimeoutError):
    """Raised when a sandbox could not be paused in time. Facts: seconds waited."""

    message = "sandbox could not be paused within {0} s"


class SnapshotError(SproutError, RuntimeError):
    """Raised when a snapshot cannot be taken or used. Facts: the sentence."""


class SnapshotNotFound(SnapshotError, LookupError):
    """Raised when no snapshot has this id. Facts: the id, the store."""

    message = "no snapshot {0} in store {1}; `sprout snapshots list` names those there are"


class SnapshotIncomplete(SnapshotError):
    """Raised when a boundary has no snapshot. Facts: the turn, why."""

    message = "turn {0} has no snapshot: {1}"


class SnapshotInUse(SnapshotError):
    """Raised when a leased snapshot is released. Facts: the id, who holds it."""

    message = "snapshot {0} is in use by {1}"


class StackMismatch(SnapshotError, TypeError):
    """Raised when wrappers differ from those at the snapshot. Facts: saved stack, this stack."""

    message = "snapshot was taken under wrappers {0}, this env has {1}"


class UnknownLayer(SnapshotError, TypeError):
    """Raised when a wrapper's state cannot be saved. Facts: the wrapper's class."""

    message = (
        "do not know the episode state of wrapper {0}: give it episode_state() and "
        "restore_episode_state(state), or declare it with sprout_env.wrappers.declare_stateless"
    )


class EpisodeError(SproutError, RuntimeError):
    """Raised when an episode is used out of order. Facts: the sentence."""


class NotReset(EpisodeError):
    """Raised when an env is used before reset. Facts: what was asked."""

    message = "call reset() before {0}"


class EpisodeOver(EpisodeError):
    """Raised when a finished episode is stepped. Facts: what was asked."""

    message = "the episode is over; call reset() before {0}"


class GradingError(SproutError, RuntimeError):
    """Raised when grading fails. Facts: the sentence."""


class VerdictInvalid(GradingError):
    """Raised when a reward is asked for and the verifier could not decide. Facts: why."""

    message = "the verifier could not decide: {0}"


class ActorError(SproutError, RuntimeError):
    """Raised when an actor cannot act. Facts: the sentence."""


class ActorUnavailable(ActorError):
    """Raised when the model's server cannot serve us. Facts: the server, the cause."""

    message = "model server {0}: {1}"


class ContextExceeded(ActorError):
    """Raised when a conversation no longer fits the model. Facts: tokens wanted, tokens allowed."""

    message = "the conversation needs {0} tokens, the model takes {1}"


class BudgetExhausted(SproutError, RuntimeError):
    """Raised when a budget is used up. Facts: which budget, its limit."""

    message = "budget used up: {0} (limit {1})"
