"""A container's first moments: the image's ENTRYPOINT runs, its health check is waited for.

Many images start the service under test in their ENTRYPOINT. As Harbor does it, the command is
replaced by one that only waits, so an entrypoint that ends with ``exec "$@"`` leaves nothing but
that. It runs once, when the sandbox is new: like all processes it is not part of a snapshot.
"""

from __future__ import annotations

import shlex
import time

from sprout_env.disks.store import ImageConfig
from sprout_env.errors import SandboxStartFailed
from sprout_env.sandbox.sandbox import Sandbox, ShellState
from sprout_env.tasks.task import Healthcheck

IDLE = ("sh", "-c", "sleep infinity")
"""What an entrypoint is given as its command."""
_START_S = 60.0
SETUP_S = 600.0
_SETTLE_S = 0.2
"""An entrypoint that has ended by then has failed: what it was given to run never ends."""


def boot(
    sandbox: Sandbox,
    image: ImageConfig,
    *,
    state: ShellState,
    user: str,
    healthcheck: Healthcheck | None = None,
    setup: str = "",
) -> None:
    """Run what a new container runs before anybody works in it.

    Args:
        sandbox: A sandbox on a new disk over the image.
        image: What the image says.
        state: Folder and variables.
        user: Whom the container runs as.
        healthcheck: The task's own, beside the image's.
        setup: A script of the task's that root runs first.

    Raises:
        SandboxStartFailed: The entrypoint ended, or a health check kept failing; it is named.
        SandboxLost: The sandbox died.
    """
    if setup:
        done = sandbox.run(setup, timeout_s=SETUP_S, state=state, user="0")
        if done.exit_code != 0:
            said = (done.stdout + done.stderr).decode(errors="replace").strip()[-500:]
            raise SandboxStartFailed("the task's setup", f"ended with {done.exit_code}: {said}")
    if image.volumes:
        # Where an engine mounts a volume it makes the folder; here it is one of the disk.
        sandbox.run(f"mkdir -p -- {shlex.join(image.volumes)}", timeout_s=_START_S, user="0")
    if image.entrypoint:
        _enter(sandbox, image, state, user)
    for check in (image.healthcheck, healthcheck):
        if check is not None:
            await_healthy(sandbox, check, state=state, user=user)


def _enter(sandbox: Sandbox, image: ImageConfig, state: ShellState, user: str) -> None:
    words = shlex.join((*image.entrypoint, *IDLE))
    script = (
        f"{words} </dev/null >/dev/null 2>&1 &\n"
        f"p=$!; sleep {_SETTLE_S:g}\n"
        'kill -0 "$p" 2>/dev/null || { wait "$p"; echo "$?"; }\n'
    )
    done = sandbox.run(script, timeout_s=_START_S, state=state, user=user)
    said = done.stdout.decode(errors="replace").strip()
    if said or done.timed_out:
        raise SandboxStartFailed(
            "the image's ENTRYPOINT",
            f"{shlex.join(image.entrypoint)} ended at once with {said or 'no answer'}",
        )


def await_healthy(sandbox: Sandbox, check: Healthcheck, *, state: ShellState, user: str) -> None:
    """Wait until a check passes, by Docker's rules; a first failure is not counted.

    Raises:
        SandboxStartFailed: It kept failing.
        SandboxLost: The sandbox died.
    """
    began = time.monotonic()
    failures = -1
    while True:
        done = sandbox.run(check.command, timeout_s=check.timeout_s, state=state, user=user)
        if done.exit_code == 0 and not done.timed_out:
            return
        starting = time.monotonic() - began < check.start_period_s
        if not starting:
            failures += 1
        if failures >= max(1, check.retries):
            said = (done.stdout + done.stderr).decode(errors="replace").strip()[-500:]
            how = "timed out" if done.timed_out else f"ended with {done.exit_code}"
            raise SandboxStartFailed(
                f"health check {check.command!r}",
                f"{how} {failures} times in {time.monotonic() - began:.1f} s: {said}",
            )
        time.sleep(check.start_interval_s if starting else check.interval_s)
