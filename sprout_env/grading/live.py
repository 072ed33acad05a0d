"""Keeping an agent's services, and nothing else, alive for the verifier.

Processes that hold a listening socket, and their children, stay; everything else is killed. What
stays is the agent's own code and may be root inside: it can still write where the verifier writes.
``rewrites`` finds those that do. A process that holds a port, waits for the one right moment and
tells our bait from the verifier's own file remains possible; that is why a live verdict never
overrules a clone's in silence, but is marked ``live_only``.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from sprout_env.errors import SandboxError, VerdictInvalid
from sprout_env.grading.protocol import LOGS, REWARD_JSON, REWARD_TEXT, stop, verifier_command
from sprout_env.grading.settings import Setting
from sprout_env.sandbox.sandbox import ProcessInfo, Sandbox

_ROUNDS = 20
_BAIT = b"0\n"
_DECOY = f"#!/bin/sh\nsleep 0.05\necho 0 > {REWARD_TEXT}\n"


def services(processes: Sequence[ProcessInfo]) -> tuple[int, ...]:
    """Return the pids of processes that listen on a socket, with all their descendants."""
    keep = {process.pid for process in processes if process.listening}
    while True:
        more = {p.pid for p in processes if p.parent in keep} - keep
        if not more:
            return tuple(sorted(keep))
        keep |= more


def keep_services(sandbox: Sandbox) -> tuple[int, ...]:
    """Kill everything in a sandbox but its services; return their pids.

    Processes that fork faster than they are killed are taken down together with the services.
    """
    for _ in range(_ROUNDS):
        processes = sandbox.processes()
        keep = services(processes)
        if len(keep) == len(processes):
            return keep
        sandbox.kill_all(keep)
        time.sleep(0.02)
    sandbox.kill_all()
    return ()


def rewrites(sandbox: Sandbox, setting: Setting) -> bool:
    """Run a decoy that fails, as the verifier is run; return whether somebody changes its word.

    The decoy stands where the verifier's script does, runs as its user and writes the same file.
    The sandbox runs, is stopped, looked at, and runs again; the bait is gone afterwards.

    Raises:
        SandboxError: The decoy cannot be put in place, or does not run.
    """
    sandbox.resume()
    with tempfile.TemporaryDirectory(prefix="sprout-decoy-") as made:
        decoy, folder = Path(made) / "decoy", Path(made) / "logs"
        decoy.write_text(_DECOY)
        decoy.chmod(0o755)
        folder.mkdir(mode=0o755)
        sandbox.put(decoy, setting.script)
        _empty(sandbox, decoy, folder, setting.user)
        ran = sandbox.run(
            verifier_command(setting), timeout_s=30, state=setting.state, user=setting.user
        )
        time.sleep(random.uniform(0.1, 0.4))
        stop(sandbox)
        try:
            text, json = _content(sandbox, REWARD_TEXT), _content(sandbox, REWARD_JSON)
            untouched = text == _BAIT and json is None
            if ran.exit_code != 0 and text is None and json is None:
                raise SandboxError(f"a decoy of the verifier ended with {ran.exit_code}")
        except VerdictInvalid:
            untouched = False
        sandbox.resume()
        _empty(sandbox, decoy, folder, setting.user)
    return not untouched


def _empty(sandbox: Sandbox, file: Path, folder: Path, user: str) -> None:
    # A file takes the place of whatever stands there; a folder then takes the file's.
    sandbox.put(file, LOGS)
    sandbox.put(folder, LOGS, user=user)


def _content(sandbox: Sandbox, path: str) -> bytes | None:
    try:
        return sandbox.read_file(path, max_bytes=64)
    except FileNotFoundError:
        return None
    except SandboxError as error:
        raise VerdictInvalid(str(error)) from error
