"""Source aliases: folders that stand for git hosts while an image is built.

Many Dockerfiles clone their upstream. A site without that host says where its own clones lie,
``<store>/sources.json``: ``https://HOST/OWNER/*`` leads to a folder of repositories, an address
without ``*`` to one repository. What was built so is marked, and so are its scores.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from sprout_env.disks.images.bases import change_name, read_names
from sprout_env.disks.store import ImageConfig
from sprout_env.errors import ConfigError

_FILE = "sources.json"
SUBSTITUTED = "sprout_env.substituted"
"""The label of an image that was made from something else than it names; inherited by FROM."""


def source_alias(store_path: Path, pattern: str, folder: Path) -> None:
    """Let the repositories of ``folder`` stand for those of an address.

    Args:
        store_path: The store.
        pattern: ``https://HOST/OWNER/*`` for a folder of repositories, ``https://HOST/OWNER/NAME``
            for one.
        folder: Where they lie on this machine.

    Raises:
        ConfigError: The pattern is no address, or there is no such folder.
    """
    if not re.fullmatch(r"https://[^\s*/]+/[^\s*]*[^\s*/](?:/\*)?", pattern):
        raise ConfigError(
            f"{pattern!r} is not like https://HOST/OWNER/* or https://HOST/OWNER/NAME"
        )
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}")
    change_name(store_path, _FILE, pattern, str(folder.resolve()))


def source_unalias(store_path: Path, pattern: str) -> None:
    """Forget a source alias. Idempotent."""
    change_name(store_path, _FILE, pattern, None)


def source_aliases(store_path: Path) -> dict[str, Path]:
    """Return pattern to folder for all source aliases of this store.

    Raises:
        ConfigError: The file cannot be read.
    """
    found = read_names(store_path, _FILE)
    return {str(pattern): Path(str(folder)) for pattern, folder in sorted(found.items())}


def spellings(pattern: str) -> tuple[str, ...]:
    """Return the beginnings of addresses that a pattern covers, as git clients write them."""
    host, _, path = pattern.removeprefix("https://").removesuffix("*").partition("/")
    return (
        f"https://{host}/{path}",
        f"http://{host}/{path}",
        f"git://{host}/{path}",
        f"ssh://git@{host}/{path}",
        f"git@{host}:{path}",
    )


def concerned(patterns: Mapping[str, Path], text: str) -> dict[str, Path]:
    """Return the aliases whose addresses a text names."""
    return {
        pattern: folder
        for pattern, folder in patterns.items()
        if any(spelling in text for spelling in spellings(pattern))
    }


def marked(config: ImageConfig, names: Iterable[str]) -> ImageConfig:
    """Return a configuration that says that these were substituted, beside earlier ones."""
    all_names = sorted({*substituted(config), *names})
    if not all_names:
        return config
    labels = {**config.labels, SUBSTITUTED: " ".join(all_names)}
    return config.model_copy(update={"labels": labels})


def substituted(config: ImageConfig) -> tuple[str, ...]:
    """Return what an image was made from something else for."""
    return tuple(config.labels.get(SUBSTITUTED, "").split())
