"""The reward file: what counts as a score, and what means that there is none."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import NoReturn

from sprout_env.errors import VerdictInvalid

MAX_BYTES = 1 << 20
"""A reward file larger than this is not read."""
MAX_KEYS = 1000
"""A reward file with more keys is no score: every record of an attempt holds them all."""
CRASHED = -1.0
"""Written by the traps of public verifiers that died half-way: a sentinel, never a score."""


def parse_text(data: bytes) -> dict[str, float]:
    """Read ``reward.txt``: one finite number.

    Raises:
        VerdictInvalid: It holds something else.
    """
    text = data.decode("utf-8", "replace").strip()
    if not text:
        raise VerdictInvalid("reward.txt is empty")
    try:
        value = float(text)
    except ValueError:
        raise VerdictInvalid(f"reward.txt holds {text[:40]!r}, which is no number") from None
    return {"reward": _finite("reward.txt", "reward", value)}


def parse_json(data: bytes) -> dict[str, float]:
    """Read ``reward.json``: a flat map of names to finite numbers.

    Raises:
        VerdictInvalid: It holds something else.
    """
    if not data.strip():
        raise VerdictInvalid("reward.json is empty")
    try:
        values = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise VerdictInvalid("reward.json is not JSON") from None
    if not isinstance(values, dict):
        raise VerdictInvalid(f"reward.json holds {str(values)[:40]!r}, which is no map of numbers")
    if not values:
        raise VerdictInvalid("reward.json holds no reward")
    if len(values) > MAX_KEYS:
        raise VerdictInvalid(f"reward.json holds {len(values)} keys, more than {MAX_KEYS}")
    found: dict[str, float] = {}
    for key, value in values.items():
        if not isinstance(value, int | float):
            said = f"{_name(key)} = {str(value)[:40]!r}"
            raise VerdictInvalid(f"reward.json has {said}, which is no number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        found[key] = _finite("reward.json", key, number)
    return found


def primary(values: Mapping[str, float], key: str) -> float:
    """Return the score among the keys of a reward file.

    The key that the task names counts; a file with one key only needs no name. Several named
    dimensions are never added up, averaged or picked from.

    Raises:
        VerdictInvalid: The key is not there, or the score is the sentinel of a crash.
    """
    if key in values:
        score = values[key]
    elif len(values) == 1:
        score = next(iter(values.values()))
    else:
        known = ", ".join(map(_name, sorted(values)[:10]))
        raise VerdictInvalid(
            f"the reward file has no key {key!r} but {known}; set reward_key in [metadata.sprout]"
        )
    if score == CRASHED:
        raise VerdictInvalid("the verifier reported that it crashed (reward -1)")
    return score


def _name(key: str) -> str:
    """Return a key as one short line; it may be anything."""
    return key if key.isidentifier() and len(key) <= 40 else repr(key[:40])


def _no_constant(name: str) -> NoReturn:
    raise VerdictInvalid(f"reward.json holds {name}, which is no score")


def _finite(file: str, key: str, value: float) -> float:
    if not math.isfinite(value):
        raise VerdictInvalid(f"{file} has {_name(key)} = {value}, which is no score")
    return value
