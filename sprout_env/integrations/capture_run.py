"""An agent as the one who acts in a run: its attempts are captured, then recorded as any others.

``search.runs.run`` is given this as its executor; method, folder, resume, budgets and progress are
the run's own.
"""

from __future__ import annotations

import logging
import re
import subprocess
import threading
import time
from concurrent.futures import CancelledError
from math import inf
from pathlib import Path

from sprout_env.actors.agent import AgentActor
from sprout_env.errors import ActorError, SproutError
from sprout_env.integrations.capture import Capture
from sprout_env.integrations.capture_session import Watch
from sprout_env.records.attempt import Attempt, AttemptStatus, Usage
from sprout_env.search.attempts import ENDS_MORE, AttemptJob, ThreadExecutor, ending
from sprout_env.search.budget import Stop
from sprout_env.search.events import AttemptStarted, OnEvent, SnapshotsKept, TurnFinished
from sprout_env.transcript import Turn

_LOG = logging.getLogger(__name__)
_LAST_WORDS = 300
"""Most characters of an agent's output that an error holds."""


class AgentExecutor(ThreadExecutor):
    """Runs attempts by an agent.

    Args:
        agent: Who acts.
        logs: A folder for what each attempt's agent writes to its standard output and error.
        workers: Attempts at a time.
    """

    def __init__(self, agent: AgentActor, logs: Path, workers: int) -> None:
        super().__init__(workers, self._attempt)
        self._agent, self._logs = agent, logs
        self._lock = threading.Lock()
        self._capture: Capture | None = None
        self._answered = False

    def close(self) -> None:
        """Wait for what runs and end the proxy. Idempotent."""
        super().close()
        if self._capture is not None:
            self._capture.close()

    def _attempt(self, job: AttemptJob, *, on_event: OnEvent, stop: Stop) -> Attempt:
        """Run one attempt as ``search.run_attempt`` does.

        Raises:
            ActorError: The agent ended before it had an answer, and none before it had one.
        """
        try:
            attempt = self._captured(job, on_event, stop)
        except CancelledError:
            raise
        except Exception as error:
            if stop.reason == "cancelled":
                raise CancelledError from error
            if isinstance(error, (*ENDS_MORE, ActorError)):
                raise
            if not isinstance(error, SproutError):
                _LOG.exception("attempt %s", job.id)
            said = f"{type(error).__name__}: {error}"
            attempt = job.record(status="infra_error", error=said)
        mine = {"id": job.id, "seed": job.seed, "usage": job.spent + attempt.usage}
        return attempt.model_copy(update=mine)

    def _captured(self, job: AttemptJob, on_event: OnEvent, stop: Stop) -> Attempt:
        if stop.reason:
            raise CancelledError
        with self._lock:
            if self._capture is None:
                shared = job.env_arguments() | {"task": None}
                self._capture = Capture(self._agent.base_url, **shared)
        session = self._capture.session(task=job.task, watch=_Events(job, on_event, stop))
        on_event(AttemptStarted(job.task, job.id, job.kind, job.round, None, None))
        name = re.sub(r"[^\w.-]", "-", job.id)
        argv = self._agent.argv(
            {
                "instruction": session.instruction,
                "task": job.task,
                "cwd": session.cwd,
                "model_url": f"{session.address}/v1",
                "attempt": name,
            }
        )
        self._logs.mkdir(parents=True, exist_ok=True)
        log = self._logs / f"{name}.log"
        with stop.closing(session.env), log.open("wb") as output:
            attempt = session.run(
                argv,
                timeout_s=inf,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._answered = self._answered or attempt.usage.calls > 0
        if attempt.status == "infra_error":
            said = f"{attempt.error}{_last_words(log)}"
            if not self._answered:
                raise ActorError(said)
            attempt = attempt.model_copy(update={"error": said})
        return attempt


class _Events(Watch):
    """Tells a run of a session, and a session of its run's end."""

    def __init__(self, job: AttemptJob, on_event: OnEvent, stop: Stop) -> None:
        self._job, self._on_event, self._stop = job, on_event, stop
        self._begun = time.monotonic()

    def took(self, number: int, turn: Turn, usage: Usage) -> None:
        job, code = self._job, turn.result.exit_code if turn.result is not None else 0
        self._on_event(TurnFinished(job.task, job.id, job.kind, number, turn.command, code, usage))

    def keeps(self, snapshots: tuple[str, ...]) -> None:
        self._on_event(SnapshotsKept(self._job.task, self._job.id, snapshots))

    def ending(self, usage: Usage) -> AttemptStatus | None:
        return ending(self._job, usage, self._begun, self._stop)


def _last_words(log: Path) -> str:
    said = " ".join(log.read_text(encoding="utf-8", errors="replace").split())
    return f"; it said: {said[-_LAST_WORDS:]} (all of it: {log})" if said else "; it said nothing"
