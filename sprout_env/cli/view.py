"""``sprout view``: a run as a page to look at, written to a file or served on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sprout_env.cli.console import StorePath, err, out
from sprout_env.errors import ConfigError
from sprout_env.search.runs import load_run
from sprout_env.view import PageServer, changes_of, write_page


def view(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    out_file: Annotated[
        Path | None, typer.Option("--out", help="Where to write. \\[default: RUN/view.html]")
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve it on this machine instead; follows a run.")
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Where to serve; 0 is any free port.")
    ] = 8765,
    diffs: Annotated[
        bool, typer.Option("--diffs", help="Add what each turn changed, from kept snapshots.")
    ] = False,
    store: StorePath = None,
) -> None:
    """Draw a run as a page: its tree, each turn's command, output, tests and changed files.

    The file loads nothing from anywhere and can be sent to others.
    """
    result = load_run(folder)
    changes = changes_of(result, store) if diffs else None
    if changes is not None and not changes:
        err().print(
            "no snapshot of this run is left: sprout run --keep-snapshots leaves them",
            style="yellow",
        )
    if not serve:
        try:
            path = write_page(result, out_file or folder / "view.html", changes)
        except PermissionError as error:
            raise ConfigError(f"cannot write {error.filename}; --out names another file") from error
        out().print(f"written to {path}", soft_wrap=True)
        return
    with PageServer(folder, port, changes) as server:
        out().print(f"{server.url}  (Ctrl-C ends it)", soft_wrap=True)
        try:
            server.serve()
        except KeyboardInterrupt:
            out().print("no longer served")
