"""Names for images that a site supplies itself: ``<store>/aliases.json``.

A pattern (``*`` stands for anything) leads to a base's digest or to another source. The exact
name wins, then the longest pattern. Sites without registries live on this.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from sprout_env.disks.images.bases import change_name, read_names
from sprout_env.errors import ConfigError
from sprout_env.tasks.task import DebianImage, ImageSource, NamedImage

SEEDBED_BASE = "sprout/seedbed-base"
"""The base of all bundled tasks; where no alias says otherwise it is made on this machine."""
SEEDBED_PACKAGES = (
    "python3", "python3-pytest", "python3-pip", "git", "make", "sqlite3", "procps", "sudo",
    "openssl", "attr", "acl", "libcap2-bin", "file", "patch", "rsync", "less", "ca-certificates",
)  # fmt: skip
_BUILT_IN: Mapping[str, ImageSource] = {
    SEEDBED_BASE: DebianImage(release="bookworm", packages=SEEDBED_PACKAGES)
}
_FILE = "aliases.json"
_SOURCE: TypeAdapter[ImageSource] = TypeAdapter(ImageSource)
_DIGEST = re.compile(r"[0-9a-f]{64}")


def alias(store_path: Path, pattern: str, source: ImageSource | str) -> None:
    """Let ``pattern`` stand for ``source``, replacing what it stood for.

    Args:
        store_path: The store.
        pattern: An image's name, perhaps with ``*``.
        source: Another source, or the digest of a base of this store.

    Raises:
        ConfigError: ``pattern`` is empty, or ``source`` is a string but no digest.
    """
    if not pattern.strip():
        raise ConfigError("an image alias needs a name or a pattern")
    if isinstance(source, str) and not _DIGEST.fullmatch(source):
        raise ConfigError(f"{source!r} is not a base's digest (64 hexadecimal digits)")
    value = source if isinstance(source, str) else source.model_dump(mode="json")
    change_name(store_path, _FILE, pattern, value)


def unalias(store_path: Path, pattern: str) -> None:
    """Forget an alias. Idempotent."""
    change_name(store_path, _FILE, pattern, None)


def aliases(store_path: Path) -> dict[str, ImageSource | str]:
    """Return pattern to source (or digest) for all aliases of this store.

    Raises:
        ConfigError: The file cannot be read.
    """
    found: dict[str, ImageSource | str] = {}
    for pattern, value in read_names(store_path, _FILE).items():
        try:
            found[pattern] = value if isinstance(value, str) else _SOURCE.validate_python(value)
        except ValidationError as error:
            raise ConfigError(f"alias {pattern!r} of store {store_path}: {error}") from error
    return found


def resolve(store_path: Path, name: str) -> ImageSource | str:
    """Follow aliases from ``name`` to a source or digest; without one, to itself.

    Raises:
        ConfigError: Aliases lead in a circle.
    """
    known = {**_BUILT_IN, **aliases(store_path)}
    passed = [name]
    while True:
        target = _lookup(known, passed[-1])
        if target is None:
            return NamedImage(name=passed[-1])
        if isinstance(target, str) or not isinstance(target, NamedImage):
            return target
        if target.name in passed:
            raise ConfigError(
                f"image aliases lead in a circle: {' -> '.join([*passed, target.name])}"
            )
        passed.append(target.name)


def full_name(name: str) -> str:
    """Return a Docker reference with its registry, its library folder and its tag."""
    first, slash, _ = name.partition("/")
    if not slash:
        name = f"library/{name}"
    if not slash or not ("." in first or ":" in first or first == "localhost"):
        name = f"docker.io/{name}"
    if ":" not in name.rpartition("/")[2] and "@" not in name:
        name += ":latest"
    return name


def _lookup(known: Mapping[str, ImageSource | str], name: str) -> ImageSource | str | None:
    names = {name, full_name(name)}
    for spelled in (name, full_name(name)):
        if spelled in known:
            return known[spelled]
    fitting = [pattern for pattern in known if any(_fits(pattern, spelled) for spelled in names)]
    return known[max(fitting, key=lambda pattern: (len(pattern), pattern))] if fitting else None


def _fits(pattern: str, name: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) is not None
