"""An OpenAI-compatible proxy that records what an unmodified agent asks, in a sandbox of ours.

The agent runs on the host as it is. It is given two addresses: a model server, which is this proxy
(``/v1/chat/completions``, streamed or not, and ``/v1/models``), and a ``docker`` command, first in
its ``PATH``, that knows ``run``, ``exec``, ``stop`` and ``rm`` and runs commands in the session's
sandbox. Each answer of the model and the command that follows it become a turn with the token ids
and log-probabilities that the server told, and a boundary with its snapshot.

A session belongs to one agent, which asks one thing at a time: an answer that comes after a newer
request, after its client has gone or after the session's end is thrown away and not recorded.
"""

from __future__ import annotations

import base64
import json
import socket
import tempfile
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from sprout_env.env import SproutEnv
from sprout_env.errors import ConfigError, SproutError
from sprout_env.integrations.capture_session import Refused, Session, Watch
from sprout_env.integrations.capture_upstream import ASKED, Upstream


class Capture:
    """The proxy: one server, any number of sessions.

    Args:
        upstream: The model server's address, with its ``/v1``.
        idle_s: Wall time without a request after which a session's client counts as gone and its
            sandbox is given back, in seconds; also the longest wait for the model server.
        asked: Parameters added to each request.
        **env: Arguments of ``SproutEnv``, for all sessions.

    Example:
        .. code-block:: python

            with Capture("http://127.0.0.1:8000/v1", suite="seedbed") as capture:
                session = capture.session(task="build-cache-repair")
                agent = ["mini", "-y", "--exit-immediately", "-t", session.instruction, ...]
                attempt = session.run(agent, timeout_s=3600)
            rows = [token_row(row) for row in group_of([attempt]).rows]
    """

    def __init__(
        self,
        upstream: str,
        *,
        idle_s: float = 1800.0,
        asked: Mapping[str, Any] = ASKED,
        **env: Any,
    ) -> None:
        self._upstream, self._env, self._idle_s = Upstream(upstream, asked, idle_s), env, idle_s
        self._sessions: dict[str, Session] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="sprout-capture-")
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        """Of the server; each session has a secret path of its own below it."""
        self._closed = threading.Event()
        for work in (self._server.serve_forever, self._watch):
            threading.Thread(target=work, name="sprout-capture", daemon=True).start()

    def __enter__(self) -> Capture:
        """Use it as a context."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def find(self, key: str) -> Session:
        """Return a session that lives, by its key.

        Raises:
            Refused: There is none.
        """
        session = self._sessions.get(key)
        if session is None:
            raise Refused(404, "there is no such session, or it is over")
        return session

    def models(self, headers: Mapping[str, str]) -> Any:
        """Return what the model server lists.

        Raises:
            OSError: It cannot be reached.
        """
        return self._upstream.models(headers)[1]

    def session(
        self, *, task: str | None = None, snapshot: str | None = None, watch: Watch | None = None
    ) -> Session:
        """Begin a session: a task's start, or a snapshot's disk (the agent begins anew on it).

        Raises:
            ConfigError: Both are named, or the proxy is closed.
            SproutError: What ``SproutEnv.reset`` raises.
        """
        if self._closed.is_set():
            raise ConfigError("the capture proxy is closed")
        named = {"task": task, "snapshot": snapshot}
        env = SproutEnv(**self._env)
        try:
            session = Session(
                self._upstream,
                self.address,
                Path(self._folder.name),
                env,
                {key: name for key, name in named.items() if name},
                lambda ended: self._sessions.pop(ended.key, None),
                watch or Watch(),
            )
        except BaseException:
            env.close()
            raise
        self._sessions[session.key] = session
        return session

    def close(self) -> None:
        """End all sessions and the server. Idempotent."""
        if not self._closed.is_set():
            self._closed.set()
            self._server.shutdown()
            self._server.server_close()
        for session in list(self._sessions.values()):
            session.close()
        self._folder.cleanup()

    def _watch(self) -> None:
        while not self._closed.wait(min(1.0, self._idle_s / 4)):
            for session in list(self._sessions.values()):
                if session.idle_s > self._idle_s:
                    session.close(f"its client has asked nothing for {self._idle_s:g} s")


def _handler(capture: Capture) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(lambda session, verb: self._models(session, verb))

        def do_POST(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            told = self.rfile.read(size)
            self._answer(lambda session, verb: self._post(session, verb, told))

        def _answer(self, work: Any) -> None:
            key, _, verb = self.path.strip("/").partition("/")
            try:
                session = capture.find(key)
                with session.serving():
                    said = work(session, verb)
            except Refused as error:
                self._send(error.status, json.dumps({"error": {"message": error.why}}))
            except (SproutError, OSError, ValueError, KeyError, TypeError) as error:
                self._send(500, json.dumps({"error": {"message": str(error)}}))
            else:
                if isinstance(said, str):
                    self._send(200, said, "text/event-stream")
                else:
                    self._send(200, json.dumps(said))

        def _models(self, session: Session, verb: str) -> Any:
            if verb != "v1/models":
                session.unknown(verb)
            return capture.models(dict(self.headers))

        def _post(self, session: Session, verb: str, told: bytes) -> Any:
            body = json.loads(told or b"{}")
            if verb == "v1/chat/completions":
                said = session.chat(body, dict(self.headers), self._gone)
                return _streamed(said) if body.get("stream") else said
            if verb == "run":
                return session.container(body["cwd"], body["variables"])
            if verb == "exec":
                fed = base64.b64decode(body.get("stdin", ""))
                return session.execute(body["words"], body["cwd"], body["variables"], fed)
            if verb in ("stop", "rm"):
                return session.stop()
            return session.unknown(verb)

        def _gone(self) -> bool:
            try:
                return not self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            except OSError:
                return True

        def _send(self, status: int, text: str, kind: str = "application/json") -> None:
            data = text.encode()
            try:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except OSError:
                # Whoever asked is gone; what was done is recorded.
                self.close_connection = True

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


def _streamed(said: dict[str, Any]) -> str:
    """Return a whole answer as the events of a stream: one per choice, and the bill."""
    events = []
    for choice in said["choices"]:
        calls = [
            {"index": n, **call} for n, call in enumerate(choice["message"].get("tool_calls") or ())
        ]
        delta = {key: value for key, value in choice["message"].items() if value is not None}
        if calls:
            delta["tool_calls"] = calls
        piece = {"index": choice["index"], "delta": delta, "finish_reason": choice["finish_reason"]}
        events.append(
            {**said, "object": "chat.completion.chunk", "choices": [piece], "usage": None}
        )
    bill = {**said, "object": "chat.completion.chunk", "choices": []}
    return "".join(f"data: {json.dumps(each)}\n\n" for each in (*events, bill)) + "data: [DONE]\n\n"
