"""One captured agent: its answers and commands become turns in a sandbox of its own.

See ``capture``, the server before it.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sprout_env.actors.tracing import text_and_calls, trace_of
from sprout_env.env import SproutEnv
from sprout_env.errors import SproutError
from sprout_env.grading.verdict import Verdict
from sprout_env.integrations import capture_docker
from sprout_env.integrations.capture_upstream import Upstream
from sprout_env.records.attempt import Attempt, AttemptStatus, Usage
from sprout_env.records.tokens import drifts
from sprout_env.search.review import usage_of
from sprout_env.transcript import Entry, Turn

NOTHING = ":"
"""The command of an answer after which the agent ran none."""

_DOCKER = """\
#!/bin/sh
{variable}={url} exec {python} -I {program} "$@"
"""
_END = "END_OF_STDIN"


class Refused(Exception):
    """A request that is answered with a status of HTTP and recorded nowhere."""

    def __init__(self, status: int, why: str) -> None:
        self.status, self.why = status, why
        super().__init__(why)


class Watch:
    """Told what a session does, from the threads that do it."""

    def took(self, number: int, turn: Turn, usage: Usage) -> None:
        """Take notice of a turn, with its result, and of what its answer cost."""

    def keeps(self, snapshots: tuple[str, ...]) -> None:
        """Take notice of boundaries that are about to outlive this process."""

    def ending(self, usage: Usage) -> AttemptStatus | None:
        """Say whether to end the agent now; asked several times a second while it runs.

        Raises:
            CancelledError: Yes, and nobody wants to know what came of it.
        """


class Session:
    """One agent in one sandbox; made by ``Capture.session``."""

    def __init__(
        self,
        upstream: Upstream,
        address: str,
        folder: Path,
        env: SproutEnv,
        options: dict[str, Any],
        on_end: Callable[[Session], object],
        watch: Watch,
    ) -> None:
        self.key = secrets.token_hex(16)
        self.address = f"{address}/{self.key}"
        self.calls = 0
        """Requests for an answer so far."""
        self.env = env
        """Its sandbox: closing it ends a command under way."""
        self._upstream, self._on_end, self._watch = upstream, on_end, watch
        self._lock, self._counting = threading.Lock(), threading.Lock()
        self._answer: Turn | None = None
        self._default_cwd, self._default_variables = "", dict[str, str]()
        self._usage, self._unbilled = Usage(), Usage()
        self._trouble, self._error, self._refused = "", "", ""
        self._verdict: Verdict | None = None
        self._status: AttemptStatus = "submitted"
        self._busy, self._over, self._ended = 0, False, False
        self._begun = self._seen = time.monotonic()
        # It outlives the session: an agent that goes on must never meet a docker of the host.
        self._folder = folder / self.key
        self._folder.mkdir()
        docker = self._folder / "docker"
        words = {
            "variable": capture_docker.ADDRESS,
            "url": self.address,
            "python": shlex.quote(sys.executable),
            "program": shlex.quote(str(Path(capture_docker.__file__).resolve())),
        }
        docker.write_text(_DOCKER.format(**words))
        docker.chmod(0o755)
        self.cwd: str = env.reset(options=options)[0]["cwd"]
        """The task's directory, in the sandbox."""
        self._instruction, self._task = env.transcript.instruction, env.task.name
        # What a snapshot's disk has behind it: this agent said and saw nothing of it.
        self._before = tuple(_others(entry) for entry in env.transcript.entries)
        self._entries: tuple[Entry, ...] = self._before
        env.begin_snapshot()

    @property
    def instruction(self) -> str:
        """What is to be done."""
        return self._instruction

    @property
    def drifts(self) -> int:
        """Answers whose prompt did not begin with all ids before: the agent changed its history."""
        return drifts((*self._entries, *filter(None, [self._answer])))

    @property
    def environ(self) -> dict[str, str]:
        """Variables that an agent is started with: where the model is, and which ``docker``."""
        url = f"{self.address}/v1"
        return {
            "OPENAI_BASE_URL": url,
            "OPENAI_API_BASE": url,
            "OPENAI_API_KEY": os.environ.get("OPENAI_API_KEY", "none"),
            "PATH": f"{self._folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        }

    def run(self, argv: Sequence[str], *, timeout_s: float, **popen: Any) -> Attempt:
        """Run an agent to its end and return its attempt, judged.

        One that ends before the model has answered anything, or with another code than 0, has no
        verdict: it is set up wrongly, or crashed. At a limit it is judged as it stands.

        Args:
            argv: The agent's command.
            timeout_s: Wall time after which it and all that it started is killed, in seconds.
            **popen: More for ``subprocess.Popen``; ``env`` is added to.
        """
        popen["env"] = {**(popen.get("env") or os.environ), **self.environ}
        try:
            agent = subprocess.Popen(argv, start_new_session=True, **popen)
            try:
                with self.serving():
                    ending = self._wait(agent, time.monotonic() + timeout_s)
            finally:
                # Also what it left behind; the group outlives its leader.
                with suppress(ProcessLookupError):
                    os.killpg(agent.pid, signal.SIGKILL)
                agent.wait()
            if ending:
                self._status = ending
            elif agent.returncode and self._verdict is not None:
                # A limit ended the session before it: that is judged.
                self._error = f"the agent ended with {agent.returncode}"
            elif not self._trouble and (agent.returncode or not self._usage.calls):
                self._trouble = f"the agent ended with {agent.returncode}{self._too_early()}"
        except BaseException:
            self.close()
            raise
        return self.finish()

    def _too_early(self) -> str:
        if self._usage.calls:
            return ""
        if self._refused:
            return f" before it had an answer; the model's server: {self._refused}"
        asked = "" if self.calls else ": it never asked the proxy; is OPENAI_BASE_URL used?"
        return f" before it had an answer{asked}"

    def _wait(self, agent: subprocess.Popen[bytes], until: float) -> AttemptStatus | None:
        """Wait for an agent; return why it is to be ended, if it has not ended by itself."""
        while agent.poll() is None:
            if ending := self._watch.ending(self._usage):
                return ending
            if time.monotonic() >= until:
                return "out_of_time"
            with suppress(subprocess.TimeoutExpired):
                agent.wait(0.1)
        return None

    def finish(self) -> Attempt:
        """End the session: judge the disk as it stands and return the record.

        The snapshots of its boundaries are the caller's, who releases them. Without a verdict,
        and so without a reward, where the model's server failed or the agent went away.
        """
        with self._lock:
            if not self._ended:
                self._flush()
                if not self._trouble:
                    self._verdict = self._verdict or self.env.finish()
                    kept = (boundary.snapshot for boundary in self.env.boundaries)
                    self._watch.keeps(tuple(id for id in kept if id is not None))
                    self.env.keep_boundaries()
                self._put_away()
            return self._attempt

    def close(self, why: str = "it was closed") -> None:
        """Give the sandbox back; whatever is asked from now on is refused. Idempotent."""
        with self._lock:
            if not self._ended:
                self._trouble = self._trouble or why
                self._put_away()

    def _put_away(self) -> None:
        self._ended = True
        judged = self._verdict if not self._trouble else None
        try:
            self._attempt = Attempt(
                id=uuid.uuid4().hex,
                task=self._task,
                suite=self.env.config.suite,
                instruction=self._instruction,
                entries=self._entries,
                boundaries=self.env.boundaries if judged is not None else (),
                status="infra_error" if judged is None else self._status,
                error=self._trouble or self._error,
                verdict=judged,
                usage=self._usage,
                seconds=time.monotonic() - self._begun,
            )
        finally:
            self.env.close()
            self._upstream.forget(self.key)
            self._on_end(self)

    # -- what the agent asks for ----------------------------------------------------------

    def chat(
        self, body: dict[str, Any], headers: Mapping[str, str], gone: Callable[[], bool]
    ) -> Any:
        """Forward one request and take the answer down."""
        for message in body.get("messages") or ():
            for call in message.get("tool_calls") or ():
                owner = self._upstream.owners.get(str(call.get("id")))
                if owner not in (None, self.key):
                    raise Refused(409, "the history holds an answer of another session")
        with self._using():
            self._flush()
            self.calls += 1
            number = self.calls
        begun = time.monotonic()
        try:
            status, said = self._upstream.chat(body, headers)
        except OSError as error:
            self._trouble = f"the model's server: {error}"
            raise Refused(502, self._trouble) from error
        if status != 200:
            self._refused = json.dumps(said)
            if status >= 500:
                self._trouble = f"the model's server answered {status}"
            raise Refused(status, self._refused)
        with self._using():
            if number != self.calls or gone():
                raise Refused(409, "the answer came too late: nobody waits for it")
            self._take(said, time.monotonic() - begun)
        return said

    def _take(self, said: dict[str, Any], seconds: float) -> None:
        from openai.types.chat import ChatCompletion

        response = ChatCompletion.model_validate(said)
        trace, (text, _) = trace_of(response), text_and_calls(response)
        self._trouble = ""
        for choice in said["choices"]:
            for call in choice["message"].get("tool_calls") or ():
                self._upstream.owners[str(call["id"])] = self.key
        self._unbilled = usage_of(trace, seconds)
        self._usage += self._unbilled
        self._answer = Turn(message=text, command=NOTHING, trace=trace)

    def unknown(self, path: str) -> Any:
        """Refuse what an agent asks of the model's server beside answers of a conversation."""
        self._refused = (
            f"only chat completions are captured (/v1/chat/completions, /v1/models), not /{path}"
        )
        raise Refused(404, self._refused)

    def container(self, cwd: str, variables: dict[str, str]) -> dict[str, Any]:
        """Take down what ``docker run`` was told: what each ``docker exec`` begins with."""
        with self._using():
            self._default_cwd, self._default_variables = cwd, variables
        return {"output": f"{self.key}\n", "exit_code": 0}

    def execute(
        self, words: list[str], cwd: str, variables: dict[str, str], stdin: bytes = b""
    ) -> dict[str, Any]:
        """Run what ``docker exec`` was told; nothing of the shell is kept, as with docker."""
        if len(words) == 3 and words[0] in ("sh", "bash") and words[1] in ("-c", "-lc"):
            command = words[2]
        else:
            command = shlex.join(words)
        if stdin:
            command = _fed(command, stdin)
        before = [f"cd {shlex.quote(cwd)} || exit"] if cwd else []
        if self._default_cwd and not cwd:
            # Which docker makes where it is not there.
            place = shlex.quote(self._default_cwd)
            before = [f"mkdir -p {place} && cd {place} || exit"]
        variables = self._default_variables | variables
        before += [f"export {key}={shlex.quote(value)}" for key, value in variables.items()]
        command = "\n".join(["(", *before, command, ")"])
        with self._using():
            # A second command of one answer is none of the model's turns.
            turn = self._answer or Turn(command=command, provenance="scripted")
            self._answer = None
            result = self._step(turn.model_copy(update={"command": command}))
            return {"output": result["output"], "exit_code": result["exit_code"]}

    def stop(self) -> dict[str, Any]:
        """The agent says that it has done."""
        with self._using():
            self._flush()
            self._over = True
        return {"output": "", "exit_code": 0}

    def _flush(self) -> None:
        """Keep an answer after which no command was run."""
        if self._answer is not None and not self._over:
            turn, self._answer = self._answer, None
            self._step(turn)

    def _step(self, turn: Turn) -> dict[str, Any]:
        try:
            obs, _, terminated, truncated, info = self.env.step(turn)
            path = self.env.transcript
        except SproutError as error:
            # No failure of the agent: nothing that follows is judged.
            self._trouble, self._over = str(error), True
            raise Refused(500, self._trouble) from error
        self._entries = self._before + path.entries[len(self._before) :]
        bill, self._unbilled = self._unbilled, Usage()
        self._watch.took(path.turn, path.turns[-1], bill)
        if terminated or truncated:
            self._verdict, self._over = Verdict.model_validate(info["verdict"]), True
            in_time = str(info.get("limit", "")).startswith("max_turns")
            self._status = "out_of_turns" if in_time else "out_of_time"
        else:
            self.env.begin_snapshot()
        return dict(obs)

    @contextmanager
    def _using(self) -> Iterator[None]:
        with self._lock:
            if self._ended or self._over:
                raise Refused(410, "the session is over")
            yield

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Count a request: while one is served, and for a time after it, its client is there."""
        with self._counting:
            self._busy += 1
        try:
            yield
        finally:
            with self._counting:
                self._busy -= 1
                self._seen = time.monotonic()

    @property
    def idle_s(self) -> float:
        """Wall time since the last request, in seconds."""
        with self._counting:
            return 0.0 if self._busy else time.monotonic() - self._seen


def _others(entry: Entry) -> Entry:
    """Return a copy that is no word of this session's model: its command made the disk."""
    changed: dict[str, Any] = {"id": uuid.uuid4().hex}
    if isinstance(entry, Turn):
        changed |= {"provenance": "scripted", "trace": None}
    return entry.model_copy(update=changed)


def _fed(command: str, stdin: bytes) -> str:
    """Return a command with its standard input in it, so that who replays it does the same."""
    text, reader = base64.encodebytes(stdin).decode(), "base64 -d"
    with suppress(UnicodeDecodeError):
        plain = stdin.decode()
        shown = plain.replace("\n", "").replace("\t", "")
        if plain.endswith("\n") and shown.isprintable() and _END not in plain:
            text, reader = plain, "cat"
    return f"{{ {reader} <<'{_END}'\n{text}{_END}\n}} | (\n{command}\n)"
