"""An agent that acts by itself: a program of the host, as a run's configuration names it."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

from pydantic import Field, field_validator

from sprout_env.actors.actor import Completion, Message
from sprout_env.errors import ActorError, ActorUnavailable, ConfigError
from sprout_env.transcript import Frozen, Transcript, Turn

PLACES = ("instruction", "task", "cwd", "model_url", "attempt")
"""What may stand in braces in an agent's command."""
_PLACE = re.compile(r"\{(\{[a-z_]+\})\}|\{([a-z_]+)\}")
_PROBE_S = 15.0


class AgentActor(Frozen):
    """A program that is run once per attempt; ``sprout capture`` makes turns of its calls."""

    kind: Literal["agent"] = "agent"
    command: tuple[str, ...] = Field(min_length=1)
    """Words, in which ``{instruction}``, ``{task}``, ``{cwd}`` (the task's directory in the
    sandbox), ``{model_url}`` and ``{attempt}`` (fit for a file's name) are filled in. Two braces
    on each side stand for one; braces around anything but a small word are left alone."""
    base_url: str
    """The model server's ``/v1`` address."""
    seed: int | None = None
    """Of the attempt; the agent is not told."""

    @field_validator("command")
    @classmethod
    def _known(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        for word in command:
            for _, name in _PLACE.findall(word):
                if name and name not in PLACES:
                    known = ", ".join(f"{{{each}}}" for each in PLACES)
                    raise ValueError(
                        f"{{{name}}} is no placeholder; there are {known}, and {{{{{name}}}}} "
                        f"stands for {{{name}}} itself"
                    )
        return command

    @property
    def name(self) -> str:
        """How it is called where results are printed."""
        return f"agent/{Path(self.command[0]).name}"

    def spec(self) -> dict[str, Any]:
        """Return the JSON from which ``load_actor`` makes the same actor elsewhere."""
        return self.model_dump(mode="json")

    def argv(self, values: Mapping[str, str]) -> list[str]:
        """Return the command with ``values`` in its placeholders."""
        return [_PLACE.sub(lambda m: m[1] or values[m[2]], word) for word in self.command]

    def probe(self) -> None:
        """Find out, before anything is spent, whether program and model server are there.

        Raises:
            ConfigError: There is no such program, or the address is none.
            ActorUnavailable: The server cannot be reached, or refuses us.
        """
        if shutil.which(self.command[0]) is None:
            raise ConfigError(
                f"there is no program {self.command[0]} to run as the agent; install it, or name "
                "it by its path"
            )
        if not self.base_url.startswith(("http://", "https://")):
            raise ConfigError(
                f"{self.base_url} is no address of a server; write http://{self.base_url.rpartition('://')[2]}"
            )
        try:
            request = urllib.request.Request(f"{self.base_url.rstrip('/')}/models")
            if key := os.environ.get("OPENAI_API_KEY"):
                request.add_header("Authorization", f"Bearer {key}")
            urllib.request.urlopen(request, timeout=_PROBE_S).close()
        except ValueError as error:
            raise ConfigError(f"{self.base_url} is no address of a server: {error}") from error
        except urllib.error.HTTPError as error:
            # It answers; many servers have no such list.
            if error.code in (401, 403):
                said = f"refuses us ({error.code}); is OPENAI_API_KEY set, and right?"
                raise ActorUnavailable(self.base_url, said) from error
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "reason", error)
            said = f"cannot be reached ({why}); is it running, and is its address right?"
            raise ActorUnavailable(self.base_url, said) from error

    def act(self, transcript: Transcript) -> Turn:
        """Refuse: an agent is asked for no single turn. Raises ActorError."""
        self._refuse()

    def complete(
        self, messages: Sequence[Message], schema: Mapping[str, Any] | None = None
    ) -> Completion:
        """Refuse: an agent answers no questions. Raises ActorError."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ActorError(f"{self.name} acts by itself and reviews nothing: sprout capture runs it")
