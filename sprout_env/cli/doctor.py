"""``sprout doctor``: what works here, what does not, and what to do about it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from typing import Annotated

import typer
from rich.text import Text

from sprout_env.cli import checks
from sprout_env.cli.console import AsJson, StorePath, err, out, print_json
from sprout_env.disks import default_path
from sprout_env.disks.overlay import overlay_mode

COLOURS = {"ok": "green", "limited": "yellow", "missing": "red"}


def doctor(
    store: StorePath = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Run the remedies that are safe, after asking for each.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --fix: do not ask.")] = False,
    as_json: AsJson = False,
    layers: Annotated[
        bool, typer.Option("--overlay-mode", help="Print only how overlay layers are given here.")
    ] = False,
) -> None:
    """Say what works on this machine and why, with a remedy for what does not.

    ok: works · limited: works, slower or with less · missing: what it is for cannot be done.
    """
    if layers:
        out().print(overlay_mode())
        return
    path = store or default_path()
    found = list(checks.machine(path))
    offered: set[str] = set()
    # One thing mended may show the next; none is offered twice.
    while fix and (left := [c for c in found if not offered.issuperset(c.commands)]):
        for command in left[0].commands:
            if command not in offered and (yes or _agreed(left[0], command)):
                _run(command)
            offered.add(command)
        found = list(checks.machine(path))
    if as_json:
        print_json([{**vars(check), "commands": check.commands} for check in found])
    else:
        for check in found:
            line = Text.assemble(
                (f"{check.name:<17}", "bold"), (f"{check.state:<9}", COLOURS[check.state])
            )
            out().print(line.append(check.found), soft_wrap=True)
            if check.state != "ok" and check.remedy:
                out().print(Text(f"{'':26}→ {check.remedy}", "italic"), soft_wrap=True)
        if not fix and any(check.commands for check in found):
            said = "sprout doctor --fix runs these commands, after asking for each"
            out().print(said, style="dim")
    if any(check.state == "missing" for check in found):
        raise typer.Exit(1)


def _agreed(check: checks.Check, command: str) -> bool:
    return typer.confirm(f"{check.name}: {check.found}\n  run {command} ?", err=True)


def _run(command: str) -> None:
    """Run a remedy as far as it goes; what it could not mend, the next look will say again."""
    argv = shlex.split(command)
    if argv[0] in ("sprout", "pip"):
        argv = [sys.executable, "-m", {"sprout": "sprout_env", "pip": "pip"}[argv[0]], *argv[1:]]
    elif os.geteuid() != 0:
        argv = ["sudo", *argv]
    err().print(Text(f"$ {shlex.join(argv)}", "bold"), soft_wrap=True)
    if shutil.which(argv[0]) is None:
        err().print(f"there is no {argv[0]} on this machine", style="red")
        return
    # Standard output is for what was found.
    code = subprocess.run(argv, stdout=sys.stderr.fileno(), check=False).returncode
    if code:
        err().print(f"it ended with exit code {code}", style="red")
