"""Tasks that are published as git repositories: fetched once, pinned to a commit, kept as folders.

``URL[@REF][#FOLDER]``, and a code host's own ``URL/tree/REF/FOLDER``, as Harbor's ``--repo`` reads
them; a ref is a branch, a tag or a whole commit. What such an address means is settled when it is
first used on a machine, and stays until it is pulled again: a run's tasks do not change under it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from sprout_env.errors import ConfigError, TaskNotFound
from sprout_env.transcript import Frozen

_ADDRESS = re.compile(
    r"(?P<url>(?:https?|ssh|git|file)://[^/#]*/[^#]*?|git@[^:/]+:[^#]+?)"
    r"(?:@(?P<ref>[^#@:]+))?(?:#(?P<folder>.*))?"
)
_TREE = re.compile(r"(?P<url>.+?)/tree/(?P<ref>[^/]+)(?:/(?P<folder>.+))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SOURCE_FILE = ".sprout-source"
_FETCH_S = 1800.0


class Address(NamedTuple):
    """What is meant by an address of tasks."""

    url: str
    ref: str = "HEAD"
    folder: str = ""

    def __str__(self) -> str:
        """As it is typed."""
        ref = "" if self.ref == "HEAD" else f"@{self.ref}"
        return f"{self.url}{ref}{f'#{self.folder}' if self.folder else ''}"


class Source(Frozen):
    """Where the files of a folder come from; it lies beside them."""

    url: str
    ref: str
    commit: str


def parse_address(told: str) -> Address | None:
    """Read an address; None: it is no git URL.

    Raises:
        ConfigError: Its folder leads out of the repository.
    """
    found = _ADDRESS.fullmatch(told)
    if found is None:
        return None
    url, ref, folder = found["url"], found["ref"], found["folder"]
    tree = _TREE.fullmatch(url)
    if tree is not None and ref is None and folder is None:
        url, ref, folder = tree["url"], tree["ref"], tree["folder"]
    folder = (folder or "").strip("/")
    if ".." in folder.split("/"):
        raise ConfigError(f"{told}: the folder leads out of the repository")
    return Address(url.rstrip("/"), ref or "HEAD", folder)


def source_of(folder: Path) -> Source | None:
    """Return where a folder's files come from, if they were fetched."""
    for place in (folder, *folder.parents):
        try:
            return Source.model_validate_json((place / _SOURCE_FILE).read_bytes())
        except ValidationError:
            return None
        except OSError:
            continue
    return None


def fetch(address: Address, parent: Path, name: str = "") -> Path:
    """Put the files of a repository, without their history, into a folder; return it.

    Args:
        address: What to fetch.
        parent: Where the folder is made.
        name: Its name; by itself it is ``NAME@COMMIT``, and may be there already.

    Raises:
        TaskNotFound: Git is missing or failed; the message holds its last word and a remedy.
    """
    if shutil.which("git") is None:
        raise TaskNotFound(str(address), "git is not installed: apt-get install git")
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".sprout-fetch-", dir=parent) as made:
        place = Path(made) / "tasks"
        _git(address, "init", "--quiet", str(place))
        here = ("-C", str(place))
        _git(address, *here, "fetch", "--quiet", "--depth=1", "--", address.url, address.ref)
        _git(address, *here, "checkout", "--quiet", "--detach", "FETCH_HEAD")
        commit = _git(address, *here, "rev-parse", "HEAD").strip()
        shutil.rmtree(place / ".git")
        source = Source(url=address.url, ref=address.ref, commit=commit)
        (place / _SOURCE_FILE).write_text(source.model_dump_json(indent=1) + "\n")
        target = parent / (name or _folder_name(address, commit))
        try:
            place.rename(target)
        except OSError:
            # Another process was faster: the same commit is the same files.
            if name or not target.is_dir():
                raise
    return target


def local_copy(
    address: Address, *, again: bool = False, root: Path | None = None
) -> tuple[Path, Address]:
    """Return the folder that an address means on this machine, and the address with its commit.

    Args:
        address: What is meant.
        again: Ask the repository anew which commit its ref is at.
        root: Where copies are kept; None: the first folder of ``SPROUT_TASKS``, else the user's
            cache.

    Raises:
        TaskNotFound: The repository cannot be had, or has no such ref or folder.
    """
    root = root or _root()
    pin = root / ".pins" / hashlib.sha256(f"{address.url}@{address.ref}".encode()).hexdigest()
    commit = address.ref if _COMMIT.fullmatch(address.ref) else ""
    if not commit and not again and pin.is_file():
        commit = pin.read_text().strip()
    place = root / _folder_name(address, commit)
    if not commit or not place.is_dir():
        place = fetch(address._replace(ref=commit or address.ref), root)
        source = source_of(place)
        assert source is not None
        commit = source.commit
        pin.parent.mkdir(exist_ok=True)
        pin.write_text(f"{commit}\n")
    found = place / address.folder
    if not found.is_dir():
        raise TaskNotFound(str(address), f"the repository has no folder {address.folder}")
    return found, address._replace(ref=commit)


def _folder_name(address: Address, commit: str) -> str:
    name = re.sub(r"[^\w.-]", "-", re.split("[/:]", address.url.removesuffix(".git"))[-1])
    return f"{name or 'tasks'}@{commit[:12]}"


def _root() -> Path:
    told = os.environ.get("SPROUT_TASKS", "").split(":")[0]
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(told) if told else Path(cache) / "sprout" / "tasks"


def _git(address: Address, *arguments: str) -> str:
    # Nothing may wait for a password, and nothing of the user's runs on what is fetched.
    safe = ("-c", "core.hooksPath=/dev/null", "-c", "core.autocrlf=false")
    environ = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            ["git", *safe, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=environ,
            timeout=_FETCH_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TaskNotFound(str(address), f"git took longer than {_FETCH_S:g} s") from error
    if done.returncode == 0:
        return done.stdout
    said = done.stderr.strip().splitlines() or [f"git ended with {done.returncode}"]
    why = next((line for line in said if line.startswith("fatal:")), said[-1])
    raise TaskNotFound(str(address), f"{why.removeprefix('fatal: ')}; {_remedy(why)}")


def _remedy(why: str) -> str:
    if "couldn't find remote ref" in why or "not our ref" in why or "no such remote ref" in why:
        return "name a branch, a tag or a whole commit of it after @"
    if "could not read Username" in why or "Authentication failed" in why:
        return "it is private or not there: give git its credentials, or a clone's folder"
    return (
        "where its host cannot be reached, bring a clone from elsewhere and give its folder "
        "(--path, tasks_path=), or an address file://FOLDER"
    )
