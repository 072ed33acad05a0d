"""Source aliases at work: a git daemon on loopback, for as long as a stage is built."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from sprout_env.disks.images.sources import spellings
from sprout_env.errors import ImageError

_REQUEST = re.compile(rb"Request upload-pack for '/?(\d+)/")
_START_S = 10.0


class SourceServer:
    """Serves the folders of source aliases to builds, which have the host's network.

    Nothing is copied into the image and nothing is mounted into it: the client's ``insteadOf``
    leads to the daemon, and what it is asked for is known afterwards.
    """

    def __init__(self, aliases: Mapping[str, Path], label: object) -> None:
        """Take the aliases; nothing runs before entering.

        Args:
            aliases: Patterns to folders.
            label: What errors call the build.
        """
        self._aliases = dict(aliases)
        self._label = label
        self._port = 0

    def __enter__(self) -> SourceServer:
        if not self._aliases:
            return self
        if shutil.which("git") is None:
            raise ImageError(self._label, "source aliases need git on this machine; install it")
        self._made = tempfile.TemporaryDirectory(prefix="sprout-sources-")
        base = Path(self._made.name)
        for number, (pattern, folder) in enumerate(self._aliases.items()):
            (base / str(number)).mkdir()
            if not folder.is_dir():
                raise ImageError(self._label, f"source alias {pattern}: there is no {folder}")
            wanted = sorted(folder.iterdir()) if pattern.endswith("*") else [folder]
            for repository in wanted:
                called = repository.name if pattern.endswith("*") else "repository"
                for name in {called.removesuffix(".git"), called.removesuffix(".git") + ".git"}:
                    link = base / str(number) / name
                    if not link.is_symlink():
                        link.symlink_to(repository.resolve())
        self._log = (base / "log").open("w+b")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        options = {
            # The clones may belong to another user, and a build asks for any commit in them.
            "safe.directory": "*",
            "uploadpack.allowAnySHA1InWant": "true",
            "uploadpack.allowFilter": "true",
        }
        self._daemon = subprocess.Popen(
            ["git", "daemon", "--verbose", "--export-all", "--reuseaddr", "--listen=127.0.0.1",
             f"--port={self._port}", f"--base-path={base}", "--timeout=600"],
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
            env={**os.environ, **git_options(options)}, start_new_session=True,
        )  # fmt: skip
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
            except OSError as error:
                if self._daemon.poll() is not None or time.monotonic() > deadline:
                    said = self._said().decode(errors="replace").strip()[-500:]
                    raise ImageError(self._label, f"git daemon does not start: {said}") from error
                time.sleep(0.02)
            else:
                return

    def __exit__(self, *exc: object) -> None:
        if not self._aliases:
            return
        # It starts a process for each request: all of them are in its session's group.
        with suppress(ProcessLookupError):
            os.killpg(self._daemon.pid, signal.SIGKILL)
        self._daemon.wait()
        self._log.close()
        self._made.cleanup()

    @property
    def env(self) -> dict[str, str]:
        """The variables that lead a git client here."""
        if not self._aliases:
            return {}
        options: list[tuple[str, str]] = []
        for number, pattern in enumerate(self._aliases):
            place = f"git://127.0.0.1:{self._port}/{number}/"
            if not pattern.endswith("*"):
                place += "repository"
            options += [(f"url.{place}.insteadOf", spelling) for spelling in spellings(pattern)]
        return _variables(options)

    @property
    def used(self) -> tuple[str, ...]:
        """Patterns of the aliases that a client has asked for."""
        if not self._aliases:
            return ()
        numbers = {int(number) for number in _REQUEST.findall(self._said())}
        return tuple(p for n, p in enumerate(self._aliases) if n in numbers)

    def _said(self) -> bytes:
        self._log.flush()
        return Path(self._log.name).read_bytes()


def git_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that give git these options, as ``git -c`` does."""
    return _variables(list(options.items()))


def _variables(options: list[tuple[str, str]]) -> dict[str, str]:
    found = {"GIT_CONFIG_COUNT": str(len(options))}
    for number, (key, value) in enumerate(options):
        found[f"GIT_CONFIG_KEY_{number}"] = key
        found[f"GIT_CONFIG_VALUE_{number}"] = value
    return found
