"""Which release series of each trainer our adapters were written for, and what their tests install.

Their own pins conflict with one another, so each has an environment of its own:
``scripts/trainer_env.sh NAME`` makes it from this table. Nothing here imports a trainer.
"""

from __future__ import annotations

from typing import NamedTuple


class Pin(NamedTuple):
    """One trainer or harness."""

    distribution: str
    """The name that ``importlib.metadata`` knows."""
    series: str
    """Major and minor version that the adapter takes; another one is refused by name."""
    install: tuple[str, ...]
    """What its environment holds beside our own needs: the versions that the tests ran with."""


_TORCH = "torch==2.13.0"

PINS: dict[str, Pin] = {
    "trl": Pin(
        "trl",
        "1.16",
        (_TORCH, "trl==1.16.0", "transformers==5.24.0", "tokenizers==0.23.3", "jinja2", "requests"),
    ),
    "sb3": Pin("stable-baselines3", "2.9", (_TORCH, "stable-baselines3==2.9.2")),
    "rllib": Pin("ray", "2.60", (_TORCH, "ray[rllib]==2.60.0", "gymnasium==1.2.2")),
    "verifiers": Pin("verifiers", "0.4", ("verifiers==0.4.0", "openai>=1.40")),
    "openenv": Pin("openenv", "0.10", ("openenv==0.10.0",)),
    "skyrl-gym": Pin("skyrl-gym", "0.4", ("skyrl-gym==0.4.0",)),
    "mini-swe-agent": Pin("mini-swe-agent", "2.4", ("mini-swe-agent==2.4.6", "openai")),
    "tinker": Pin("tinker", "0.38", ("tinker==0.38.0",)),
    "verl": Pin(
        "verl",
        "0.9",
        (
            _TORCH,
            "verl==0.9.1",
            "transformers==5.10.4",
            "ray==2.60.0",
            "tensordict==0.10.0",
            "peft==0.21.2",
            # The agent loop imports these and verl does not declare them.
            "fastapi",
            "cachetools==8.0.2",
            "uvicorn==0.54.0",
            "TransferQueue==0.1.11",
        ),
    ),
}


def installed(name: str) -> str | None:
    """Return the version of a trainer that is installed here, or None."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(PINS[name].distribution)
    except PackageNotFoundError:
        return None


def check(name: str) -> str:
    """Return a trainer's version, or say by name why the adapter cannot be used with it.

    Raises:
        ConfigError: It is not installed.
        TrainerUnsupported: It is of a series that the adapter was not written for. Raised before
            anything of the trainer is imported.
    """
    from sprout_env.errors import ConfigError, TrainerUnsupported

    pin, found = PINS[name], installed(name)
    if found is None:
        raise ConfigError(
            f"{pin.distribution} is not installed; the adapter takes {pin.series}.x: "
            f"`pip install 'sprout_env[{name}]'`, or `scripts/trainer_env.sh {name}`"
        )
    if tuple(found.split(".")[:2]) != tuple(pin.series.split(".")):
        raise TrainerUnsupported(pin.distribution, found, pin.series)
    return found
