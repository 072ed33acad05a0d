"""``sprout source``: folders that stand for git hosts while images are built."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sprout_env.cli.console import AsJson, StorePath, out, print_json
from sprout_env.disks import open_store
from sprout_env.disks.images.sources import source_alias, source_aliases, source_unalias
from sprout_env.errors import ConfigError

app = typer.Typer(help="Git hosts that folders stand for, in builds.", no_args_is_help=True)


@app.command()
def alias(
    pattern: Annotated[str, typer.Argument(help="https://HOST/OWNER/*, or one repository.")],
    folder: Annotated[Path | None, typer.Argument(help="Its repositories on this machine.")] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Forget the alias.")] = False,
    store: StorePath = None,
) -> None:
    """Let local clones stand for a git host; what is built so is marked as substituted."""
    where = open_store(store).path
    if delete:
        source_unalias(where, pattern)
        return
    if folder is None:
        raise ConfigError("a source alias needs the folder of the repositories")
    source_alias(where, pattern, folder)


@app.command("list")
def list_sources(store: StorePath = None, as_json: AsJson = False) -> None:
    """List the addresses that folders stand for."""
    found = source_aliases(open_store(store).path)
    if as_json:
        print_json(found)
        return
    for pattern, folder in found.items():
        out().print(f"{pattern} → {folder}", soft_wrap=True)
