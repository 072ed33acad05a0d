"""An actor behind any OpenAI-compatible server, with one bash tool.

The ``openai`` package (extra ``llm``) is imported on the first call. What a server refuses (tools,
log-probabilities, token ids, a schema) is left out from then on and never guessed.
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, PrivateAttr

from sprout_env.actors.actor import Completion, Message, TokenFact
from sprout_env.actors.dialogue import BASH_TOOL, NO_COMMAND, chat_messages, read_answer
from sprout_env.actors.tracing import merge_traces, text_and_calls, trace_of
from sprout_env.errors import ActorUnavailable, ConfigError, ContextExceeded
from sprout_env.transcript import Frozen, TokenTrace, Transcript, Turn

_TOO_LONG = re.compile(
    r"context[ _](?:length|size|window)|maximum context|too many tokens|prompt is too long", re.I
)
_OPTIONAL = ("tools", "logprobs", "top_logprobs", "return_token_ids", "response_format", "seed")
"""Parameters that a server may refuse without our losing the answer."""
_MAX_WAIT_S = 60.0
_PROBE_S = 15.0
"""Wall time of the question whether a server answers at all, in seconds."""


class ChatActor(Frozen):
    """A model that acts through chat completions.

    An answer without a command is asked for once more, with what was wrong (``requests`` of the
    trace says so, and its token ids are left out: they were sampled in a context that is not the
    transcript). If that fails too, the message is kept with a command of ours that tells the model
    so in its result, and the turn's provenance is ``scripted``: it never carries loss.
    """

    kind: Literal["openai"] = "openai"
    model: str = Field(min_length=1)
    base_url: str | None = None
    """The server's ``/v1`` address; None: the package's default."""
    api_key_env: str = "OPENAI_API_KEY"
    """Name of the environment variable that holds the key, read at the first call."""
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = Field(default=None, gt=0)
    """Most tokens of one answer."""
    seed: int | None = None
    timeout_s: float = Field(default=600.0, gt=0)
    """Wall time of one request, in seconds."""
    max_context: int | None = Field(default=None, gt=0)
    """Most tokens of prompt and answer together, where the server's limit is known."""
    tools: bool = True
    """Ask with the bash tool; off: in text only."""
    logprobs: bool = True
    top_logprobs: int = Field(default=0, ge=0, le=20)
    """Alternatives per position, from which entropies are estimated; 0: none."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Parameters of the server's own, sent where a turn is asked for (``top_k``, a grammar)."""
    retries: int = Field(default=6, ge=0)
    """How often a rate limit, a server error or a lost connection is tried again."""
    backoff_s: float = Field(default=1.0, ge=0)
    """First wait before a retry, in seconds; it doubles, with jitter, up to 60."""

    _lock: threading.Lock = PrivateAttr(default_factory=threading.Lock)
    _client: Any = PrivateAttr(default=None)
    _refused: set[str] = PrivateAttr(default_factory=set)
    _closed: bool = PrivateAttr(default=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the settings alone."""
        return type(self).model_validate, (self.spec(),)

    @property
    def name(self) -> str:
        """How it is called where results are printed."""
        return f"openai/{self.model}"

    def spec(self) -> dict[str, Any]:
        """Return the JSON from which ``load_actor`` makes the same actor elsewhere."""
        return self.model_dump(mode="json")

    @property
    def gives(self) -> frozenset[TokenFact]:
        """What it asks the server to tell of its tokens; ``probe`` finds out whether it does."""
        if not self.logprobs:
            return frozenset()
        return frozenset({"logprobs", "entropies"} if self.top_logprobs else {"logprobs"})

    def probe(self, needs: frozenset[TokenFact] = frozenset()) -> None:
        """Find out, before anything is spent, whether the server answers and tells what is needed.

        The server's list of models is asked for, which costs nothing. Only where there is none or
        the model is not in it, or ``needs`` names something, one token is asked for as well.

        Raises:
            ActorUnavailable: It cannot be reached, refuses us, or has no such model.
            ConfigError: It does not tell what is needed.
        """
        openai = _openai()
        client = self._connect(openai)
        try:
            listed = client.models.list(timeout=min(self.timeout_s, _PROBE_S))
            models = [model.id for model in getattr(listed, "data", None) or ()]
        except openai.APIConnectionError as error:
            raise ActorUnavailable(
                self._where,
                f"cannot be reached ({_short(error)}); is it running, and is its address right?",
            ) from error
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            raise ActorUnavailable(self._where, _short(error)) from error
        except openai.APIStatusError:
            # It answers; many servers have no such list.
            models = []
        if not needs and self.model in models:
            return
        short = self.model_copy(update={"max_tokens": 1})
        try:
            trace = trace_of(short._request([{"role": "user", "content": "Say yes."}], {}, 0))
        except ActorUnavailable as error:
            if self.model in models:
                raise
            some = ", ".join(models[:8]) + (", ..." if len(models) > 8 else "")
            raise ActorUnavailable(
                self._where,
                f"does not serve {self.model!r}; it lists {some or 'no models: is this its /v1?'} "
                f"({error.facts[1]})",
            ) from error
        except AttributeError as error:
            raise ActorUnavailable(
                self._where, "speaks another protocol; the address mostly ends in /v1"
            ) from error
        told: set[TokenFact] = set()
        if trace.logprobs:
            told.add("logprobs")
        if trace.entropies:
            told.add("entropies")
        if not needs <= told:
            missing = " and ".join(sorted(needs - told))
            raise ConfigError(f"{self.name} at {self._where} gives no {missing}")

    def close(self) -> None:
        """End its connections; a call under way fails with ActorUnavailable. Idempotent."""
        self._closed = True
        if self._client is not None:
            self._client.close()

    def act(self, transcript: Transcript) -> Turn:
        """Return the next turn.

        Raises:
            ActorUnavailable: The server cannot serve us, after retries.
            ContextExceeded: The transcript no longer fits.
            ConfigError: The ``openai`` package is not installed.
        """
        known = _known_tokens(transcript)
        answer, trace = self._ask(transcript, [], known)
        if answer.command is None:
            complaint = (
                f"Your answer cannot be run: {answer.problem}. Answer again, with exactly one "
                "command."
            )
            said = answer.message or "(empty)"
            extra = [
                {"role": "assistant", "content": said},
                {"role": "user", "content": complaint},
            ]
            again, more = self._ask(transcript, extra, known)
            trace = merge_traces(trace, more)
            if again.command is None:
                message = again.message or answer.message
                return Turn(message=message, command=NO_COMMAND, provenance="scripted", trace=trace)
            answer = again
        assert answer.command is not None
        return Turn(message=answer.message, command=answer.command, trace=trace)

    def complete(
        self, messages: Sequence[Message], schema: Mapping[str, Any] | None = None
    ) -> Completion:
        """Answer messages; with ``schema`` the server is asked to hold to it, where it can.

        Raises:
            ActorUnavailable: The server cannot serve us, after retries.
            ContextExceeded: The messages do not fit.
            ConfigError: The ``openai`` package is not installed.
        """
        options: dict[str, Any] = {}
        if schema is not None:
            options["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": dict(schema)},
            }
        response = self._request([message.model_dump() for message in messages], options, 0)
        text, _ = text_and_calls(response)
        return Completion(text=text, trace=trace_of(response))

    def _ask(
        self, transcript: Transcript, extra: list[dict[str, Any]], known: int
    ) -> tuple[Any, TokenTrace]:
        options: dict[str, Any] = {"tools": [BASH_TOOL]} if self.tools else {}
        if self.extra:
            options["extra_body"] = self.extra

        def messages() -> list[dict[str, Any]]:
            tools = self.tools and "tools" not in self._refused
            return chat_messages(transcript, tools=tools) + extra

        response = self._request(messages, options, known)
        text, calls = text_and_calls(response)
        return read_answer(text, calls), trace_of(response)

    def _request(self, messages: Any, options: dict[str, Any], known: int) -> Any:
        """Send one request, and again as the rules say."""
        openai = _openai()
        client = self._connect(openai)
        attempt = 0
        while True:
            sent = messages() if callable(messages) else messages
            self._check_size(sent, known)
            arguments = self._arguments(options)
            try:
                return client.chat.completions.create(
                    model=self.model, messages=sent, timeout=self.timeout_s, **arguments
                )
            except openai.BadRequestError as error:
                self._refuse_or_raise(error, arguments)
                continue
            except openai.UnprocessableEntityError as error:
                self._refuse_or_raise(error, arguments)
                continue
            except (openai.APIConnectionError, openai.RateLimitError) as error:
                cause: Exception = error
            except openai.APIStatusError as error:
                if _TOO_LONG.search(str(error)):
                    raise ContextExceeded(*_limits(str(error), self.max_context)) from error
                if error.status_code < 500 and error.status_code not in (408, 409, 425):
                    raise ActorUnavailable(self._where, _short(error)) from error
                cause = error
            except Exception as error:
                # A client closed under a call fails in whatever way its transport does.
                if not self._closed:
                    raise
                raise ActorUnavailable(self._where, "closed") from error
            if self._closed or attempt >= self.retries:
                raise ActorUnavailable(
                    self._where, f"{_short(cause)} (tried {attempt + 1} times)"
                ) from cause
            time.sleep(_wait(cause, attempt, self.backoff_s))
            attempt += 1

    @property
    def _where(self) -> str:
        return self.base_url or "api.openai.com"

    def _connect(self, openai: Any) -> Any:
        with self._lock:
            if self._closed:
                raise ActorUnavailable(self._where, "closed")
            if self._client is None:
                key = os.environ.get(self.api_key_env)
                if key is None and self.base_url is None:
                    said = "or say where your own server is: --base-url, or base_url= in the actor"
                    raise ActorUnavailable(self._where, f"no key: set {self.api_key_env}, {said}")
                # Retries are ours alone, so that every wait and every request is counted.
                self._client = openai.OpenAI(
                    api_key=key or "none", base_url=self.base_url, max_retries=0
                )
            return self._client

    def _arguments(self, options: Mapping[str, Any]) -> dict[str, Any]:
        wanted: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.seed,
            "logprobs": True if self.logprobs else None,
            "top_logprobs": self.top_logprobs or None if self.logprobs else None,
            **options,
        }
        wanted = {k: v for k, v in wanted.items() if v is not None and k not in self._refused}
        if self.max_tokens is not None:
            newer = "max_tokens" in self._refused
            wanted["max_completion_tokens" if newer else "max_tokens"] = self.max_tokens
        # Only servers of one's own give token ids; the public one refuses unknown parameters.
        if self.base_url is not None and "return_token_ids" not in self._refused:
            wanted["extra_body"] = {"return_token_ids": True, **wanted.get("extra_body", {})}
        return wanted

    def _refuse_or_raise(self, error: Any, arguments: Mapping[str, Any]) -> None:
        """Leave out from now on what the server refused, or raise."""
        text = str(error)
        if _TOO_LONG.search(text):
            raise ContextExceeded(*_limits(text, self.max_context)) from error
        if "max_completion_tokens" in text and "max_tokens" in arguments:
            self._refused.add("max_tokens")
            return
        sent = {*arguments, *(arguments.get("extra_body") or {})}
        words = {"tools": ("tool",), "response_format": ("response_format", "json_schema")}
        for name in _OPTIONAL:
            if name in sent and any(word in text for word in words.get(name, (name,))):
                self._refused.add(name)
                if name == "logprobs":
                    self._refused.add("top_logprobs")
                return
        raise ActorUnavailable(self._where, _short(error)) from error

    def _check_size(self, messages: Sequence[Mapping[str, Any]], known: int) -> None:
        if self.max_context is None:
            return
        # The last bill counts exactly what it covers; the rest is an estimate that errs low.
        estimate = sum(len(str(message.get("content") or "")) for message in messages) // 5
        needed = max(known, estimate) + (self.max_tokens or 1)
        if needed > self.max_context:
            raise ContextExceeded(needed, self.max_context)


def _openai() -> Any:
    try:
        import openai
    except ImportError as error:
        raise ConfigError(
            "a chat actor needs the openai package: pip install 'sprout_env[llm]'"
        ) from error
    return openai


def _known_tokens(transcript: Transcript) -> int:
    """Return the least size of the next prompt: the last billed call and what came after it."""
    later = 0
    for entry in reversed(transcript.entries):
        if not isinstance(entry, Turn):
            later += len(entry.text)
            continue
        later += len(entry.result.output) if entry.result is not None else 0
        trace = entry.trace
        if trace is not None and trace.prompt_tokens and trace.requests == 1:
            return trace.prompt_tokens + trace.completion_tokens + later // 5
        later += len(entry.message) + len(entry.command)
    return 0


def _limits(text: str, limit: int | None) -> tuple[object, object]:
    """Return tokens wanted and allowed, as far as a server's sentence tells them."""
    numbers = sorted({int(word) for word in re.findall(r"\b\d{3,9}\b", text)})
    if len(numbers) >= 2:
        return numbers[-1], numbers[-2]
    return "more", limit if limit is not None else (numbers[0] if numbers else "fewer")


def _wait(cause: Exception, attempt: int, first_s: float) -> float:
    """Return seconds to wait: the server's word, else doubled with full jitter."""
    response = getattr(cause, "response", None)
    told = response.headers.get("retry-after", "") if response is not None else ""
    try:
        return min(_MAX_WAIT_S, max(0.0, float(told)))
    except ValueError:
        longest = min(_MAX_WAIT_S, first_s * 2**attempt)
        return random.uniform(longest / 2, longest)


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:300]}"
