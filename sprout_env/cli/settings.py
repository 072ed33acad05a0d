"""Settings of one TOML file as defaults of flags; what it names and no command has is an error."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sprout_env.errors import ConfigError

ENVIRONMENT = ("SPROUT_CONFIG", "SPROUT_STORE", "SPROUT_TASKS")
"""The variables that the command line reads."""
PLACES = {"store": "SPROUT_STORE", "tasks": "SPROUT_TASKS"}
"""Keys at the top of the file that stand for a variable, which wins over them."""
EVERY = ("every command",)


def file_in_force() -> Path | None:
    """Return the settings' file: told, of this folder, or of this user.

    Raises:
        ConfigError: ``SPROUT_CONFIG`` names a file that is not there.
    """
    told = os.environ.get("SPROUT_CONFIG")
    if told:
        if not os.access(told, os.R_OK):
            raise ConfigError(f"SPROUT_CONFIG names {told}, which cannot be read")
        return Path(told)
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    for path in (Path("sprout.toml"), Path(home) / "sprout" / "sprout.toml"):
        # One below a folder that this user may not enter is none of this user's.
        if os.access(path, os.R_OK):
            return path.absolute()
    return None


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def _flags(command: Any) -> dict[str, str]:
    """Return the long flags of a command, without dashes, with their parameters' names."""
    return {
        option.lstrip("-"): parameter.name
        for parameter in command.params
        if parameter.param_type_name == "option"
        for option in parameter.opts
        if option.startswith("--") and option not in ("--help", "--version", "--json", "--debug")
    }


def _leaves(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _leaves(command, (*path, name))
        else:
            yield (*path, name), command


def defaults(root: Any) -> dict[str, Any]:
    """Return the file's settings as defaults of the commands below ``root``, nested by name.

    Raises:
        ConfigError: The file cannot be read, or names what no command has.
    """
    path = file_in_force()
    if path is None:
        return {}
    found: dict[str, Any] = {}
    for command, flag, value in _settings(root, path):
        if command == EVERY:
            # Also what is no flag of a command looks there: where the store is, is one thing.
            if flag in PLACES:
                os.environ.setdefault(PLACES[flag], str(value))
            continue
        *groups, name = command
        at = found
        for group in groups:
            at = at.setdefault(group, {})
        leaf = dict(_leaves(root))[command]
        at.setdefault(name, {})[_flags(leaf)[flag]] = value
    return found


def _settings(root: Any, path: Path) -> list[tuple[tuple[str, ...], str, Any]]:
    """Return command, flag and value, what holds for every command first and as such."""
    told = _read(path)
    leaves = dict(_leaves(root))
    found: list[tuple[tuple[str, ...], str, Any]] = []
    for key, value in told.items():
        if isinstance(value, dict):
            continue
        takers = [command for command, leaf in leaves.items() if key in _flags(leaf)]
        if key not in PLACES and not takers:
            raise ConfigError(f"{path}: no command has a flag --{key}")
        found.append((EVERY, key, value))
        if key not in PLACES:
            found += [(command, key, value) for command in takers]
    for name, table in told.items():
        if isinstance(table, dict):
            found += list(_table(path, leaves, (name,), table))
    return found


def _table(
    path: Path, leaves: dict[tuple[str, ...], Any], name: tuple[str, ...], table: dict[str, Any]
) -> Iterator[tuple[tuple[str, ...], str, Any]]:
    if name in leaves:
        flags = _flags(leaves[name])
        for flag, value in table.items():
            if flag not in flags:
                raise ConfigError(f"{path}: sprout {' '.join(name)} has no flag --{flag}")
            yield name, flag, value
        return
    if not any(leaf[: len(name)] == name for leaf in leaves):
        raise ConfigError(f"{path}: there is no command sprout {' '.join(name)}")
    for key, value in table.items():
        if not isinstance(value, dict):
            raise ConfigError(f"{path}: [{'.'.join(name)}] holds commands, and {key} is none")
        yield from _table(path, leaves, (*name, key), value)


def in_force(context: Any) -> dict[str, Any]:
    """Return the file, its settings and the variables that hold, for people and programs."""
    root = context.find_root().command
    path = file_in_force()
    settings = [
        {"command": "sprout", "flag": name, "value": os.environ[name], "from": "environment"}
        for name in ENVIRONMENT
        if os.environ.get(name)
    ]
    if path is not None:
        common = {key: value for command, key, value in _settings(root, path) if command == EVERY}
        settings += [
            {"command": " ".join(command), "flag": f"--{flag}", "value": value, "from": str(path)}
            for command, flag, value in _settings(root, path)
            if command == EVERY or flag not in common or value != common[flag]
        ]
    return {"file": str(path) if path is not None else None, "settings": settings}
