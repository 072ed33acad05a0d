"""The arguments of ``SproutEnv``."""

from __future__ import annotations

from typing import Literal

from sprout_env.tasks.task import NetworkPolicy
from sprout_env.transcript import Frozen


class EnvConfig(Frozen):
    """The arguments of ``SproutEnv``; plain JSON, so that specs survive every round trip."""

    suite: str = "seedbed"
    task: str | None = None
    """Slug of the task; None: each reset draws one with the env's own generator."""
    tasks_path: str | None = None
    """Folder of the suite, or its git ``URL[@REF][#FOLDER]``; None: it is looked for where
    ``sprout tasks pull`` puts it."""
    dataset: str | None = None
    """Version of the suite's data."""
    store: str | None = None
    """Folder of the disk store; None: ``$SPROUT_STORE``, else ``/var/lib/sprout``."""
    store_kind: Literal["auto", "btrfs", "directory", "memory"] = "auto"
    """``memory`` is a double for tests and docs, never chosen by itself."""
    max_turns: int | None = None
    """None: the task's own limit."""
    command_timeout_s: float | None = None
    """Wall time of one command in seconds; None: the task's own limit."""
    output_chars: int = 16384
    """Most characters of output that one observation holds; the middle is cut out."""
    network: NetworkPolicy | None = None
    """What the agent may reach, as "none" or "public"; None: the task's own word. A verifier
    keeps what its task gives it."""
    notices: bool = True
    """Tell the actor, in its transcript, which processes a restore has lost."""
    keep_boundaries: bool = False
    """Boundary snapshots outlive the episode; else the next reset releases those not asked for."""
    verdict_retries: int = 1
    """How often an invalid verdict is tried again."""
    render_mode: Literal["ansi"] | None = None
