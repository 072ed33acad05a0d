"""The model server behind the capture proxy: asked for ids, in whichever words it knows.

vLLM answers ``return_token_ids`` with the ids that it saw and sampled. llama.cpp knows ``verbose``
and ``return_tokens``: the sampled ids, and the prompt as text with its count of tokens.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

ASKED = {"logprobs": True, "return_token_ids": True, "return_tokens": True, "verbose": True}
"""Asked of the model server beside what the agent asks: log-probabilities, and ids."""


class Upstream:
    """The model server, and which session it has answered with which tool calls.

    Args:
        address: With its ``/v1``.
        asked: Parameters added to each request; those that the server refuses are left out of it.
        timeout_s: Wall time of one request, in seconds.
    """

    def __init__(self, address: str, asked: Mapping[str, Any], timeout_s: float) -> None:
        self.owners: dict[str, str] = {}
        """Ids of tool calls to keys of sessions that live."""
        self._address, self._asked, self._timeout_s = address.rstrip("/"), asked, timeout_s

    def forget(self, key: str) -> None:
        """Forget what a session was answered."""
        for id in [id for id, owner in list(self.owners.items()) if owner == key]:
            self.owners.pop(id, None)

    def models(self, headers: Mapping[str, str]) -> tuple[int, Any]:
        """Return status and answer of its list of models.

        Raises:
            OSError: It cannot be reached.
        """
        return self._ask(f"{self._address}/models", None, headers)

    def chat(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> tuple[int, Any]:
        """Return status and answer of a chat completion, ids in vLLM's words where it told any.

        Raises:
            OSError: It cannot be reached.
        """
        asked = dict(self._asked)
        while True:
            sent = {**body, **asked, "stream": False}
            sent.pop("stream_options", None)
            status, said = self._ask(f"{self._address}/chat/completions", sent, headers)
            refused = [n for n in asked if status in (400, 422) and n in json.dumps(said)]
            if not refused:
                break
            asked = {name: asked[name] for name in asked if name not in refused}
        if status == 200 and (told := said.pop("__verbose", None)):
            self._write_ids(said, told, sent, headers)
        return status, said

    def _write_ids(
        self, said: dict[str, Any], told: dict[str, Any], sent: Any, headers: Mapping[str, str]
    ) -> None:
        """Write the ids of llama.cpp into its answer; none that are not surely its own.

        Those of the prompt are what its tokenizer makes of what its template makes of the request,
        where that is the text that it says it evaluated, and as many tokens.
        """
        if len(said["choices"]) != 1 or told.get("truncated"):
            return
        sampled, usage = told.get("tokens") or [], said["usage"]
        if len(sampled) == usage["completion_tokens"]:
            said["choices"][0]["token_ids"] = sampled
        root = self._address.removesuffix("/v1")
        status, made = self._ask(f"{root}/apply-template", sent, headers)
        # What it evaluated may begin with what its tokenizer adds by itself.
        if status != 200 or not str(told.get("prompt")).endswith(made["prompt"]):
            return
        text = {"content": made["prompt"], "add_special": True, "parse_special": True}
        status, made = self._ask(f"{root}/tokenize", text, headers)
        if status == 200 and len(made["tokens"]) == usage["prompt_tokens"]:
            said["prompt_token_ids"] = made["tokens"]

    def _ask(self, url: str, body: Any, headers: Mapping[str, str]) -> tuple[int, Any]:
        request = urllib.request.Request(url, None if body is None else json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")
        if headers.get("Authorization"):
            request.add_header("Authorization", headers["Authorization"])
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, {"error": {"message": error.read().decode(errors="replace")}}
