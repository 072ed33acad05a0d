"""A real HTTP server that speaks the chat completions protocol and answers from a script."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Script = Callable[[dict[str, Any], int], tuple[int, dict[str, Any], dict[str, str]]]
"""From the request's body and its number (from 0) to status, body and headers."""


class Server:
    """What was asked, and where to ask."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[dict[str, Any]] = []
        self.url = ""
        self.models = ["m", "served-model"]


@contextmanager
def serve(script: Script) -> Iterator[Server]:
    server = Server(script)
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                number = len(server.requests)
                server.requests.append(body)
            status, answer, headers = server.script(body, number)
            data = json.dumps(answer).encode()
            self.reply(status, data, headers)

        def do_GET(self) -> None:
            listed = [{"id": name, "object": "model"} for name in server.models]
            self.reply(200, json.dumps({"object": "list", "data": listed}).encode(), {})

        def reply(self, status: int, data: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server.url = f"http://127.0.0.1:{http.server_address[1]}/v1"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def completion(
    content: str | None = None,
    *,
    command: str | None = None,
    arguments: str | None = None,
    tool: str = "bash",
    logprobs: list[dict[str, Any]] | None = None,
    choice: dict[str, Any] | None = None,
    top: dict[str, Any] | None = None,
    prompt_tokens: int = 20,
    cached: int = 5,
) -> dict[str, Any]:
    """Return a chat completion as servers write it."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if command is not None or arguments is not None:
        text = arguments if arguments is not None else json.dumps({"command": command})
        message["tool_calls"] = [
            {"id": "x1", "type": "function", "function": {"name": tool, "arguments": text}}
        ]
    return {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "served-model",
        "choices": [
            {
                "index": 0,
                "message": message,
                "finish_reason": "stop",
                "logprobs": {"content": logprobs} if logprobs is not None else None,
                **(choice or {}),
            }
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": 3,
            "total_tokens": prompt_tokens + 3,
            "prompt_tokens_details": {"cached_tokens": cached},
        },
        **(top or {}),
    }


def problem(message: str, *, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "code": code}}
