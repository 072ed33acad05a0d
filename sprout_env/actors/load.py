"""Actors from what a person types or a job carries."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sprout_env.actors.actor import Actor
from sprout_env.actors.agent import AgentActor
from sprout_env.actors.chat import ChatActor
from sprout_env.actors.replay import ReplayActor
from sprout_env.actors.simulated import SimulatedActor
from sprout_env.errors import ConfigError

_KINDS: dict[str, type[SimulatedActor | ChatActor | ReplayActor | AgentActor]] = {
    "agent": AgentActor,
    "simulated": SimulatedActor,
    "openai": ChatActor,
    "replay": ReplayActor,
}
_MAIN = {"openai": "model", "replay": "run"}
"""The setting that the part after ``kind/`` stands for."""
_MADE: dict[str, Callable[[Mapping[str, Any]], Actor]] = {}
"""Kinds that are registered: actors around something that lives in this process alone."""
_SHORT = {"accuracy": "reviewer_accuracy"}


def register_actor(kind: str, make: Callable[[Mapping[str, Any]], Actor]) -> None:
    """Make a kind of actor known, such as one around a model that a trainer holds.

    Args:
        kind: The ``kind`` of its spec.
        make: Makes it from a spec with the seed written in.
    """
    _MADE[kind] = make


def load_actor(spec: Mapping[str, Any] | str, seed: int | None = None) -> Actor:
    """Return the actor that a spec describes.

    Args:
        spec: JSON with a ``kind``, as an actor's ``spec()`` returns, or its short form:
            ``simulated:skill=0.9,accuracy=0.8``, ``openai/MODEL:base_url=http://127.0.0.1:8000/v1``,
            ``replay/RUN_FOLDER``, ``@FILE`` with the JSON in it.
        seed: Overrides the spec's seed, so that attempts of one actor differ.

    Raises:
        ConfigError: The kind or a setting is unknown or out of range.

    Example:
        >>> load_actor("simulated:skill=0.9,accuracy=1.0", seed=3).name
        'simulated(skill=0.9, seed=3)'
    """
    if isinstance(spec, str):
        settings = _read(Path(spec[1:])) if spec.startswith("@") else _parse(spec)
    else:
        settings = dict(spec)
    kind = settings.get("kind")
    model = _KINDS.get(str(kind))
    if model is None and kind not in _MADE:
        known = ", ".join(sorted({*_KINDS, *_MADE}))
        raise ConfigError(f"no actor of kind {kind!r}; there are {known}")
    if seed is not None:
        settings["seed"] = seed
    if model is None:
        return _MADE[str(kind)](settings)
    return model.told(f"actor {kind}: ", settings)


def _read(path: Path) -> dict[str, Any]:
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read an actor from {path}: {error}") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"cannot read an actor from {path}: it holds no JSON object")
    return settings


def _parse(text: str) -> dict[str, Any]:
    """Return the settings of a short form.

    Only a last ``:name=value,...`` holds settings: a model's own name may hold colons.
    """
    head, _, tail = text.partition(":")
    at = len(head)
    while tail and "=" not in tail.partition(":")[0].partition(",")[0]:
        more, _, tail = tail.partition(":")
        at += 1 + len(more)
    head = text[:at]
    kind, _, main = head.partition("/")
    settings: dict[str, Any] = {"kind": kind}
    if main:
        if kind not in _MAIN:
            raise ConfigError(f"cannot read actor {text!r}: {kind} takes nothing after a slash")
        settings[_MAIN[kind]] = main
    for item in filter(None, tail.split(",")):
        name, equals, value = item.partition("=")
        if not equals:
            raise ConfigError(f"cannot read actor {text!r}: {item!r} is not name=value")
        settings[_SHORT.get(name.strip(), name.strip())] = value.strip()
    return settings
