"""The commands, put together."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from sprout_env.cli import (
    capture,
    compare,
    doctor,
    habits,
    images,
    runs,
    snapshots,
    sources,
    stores,
    tasks,
)
from sprout_env.cli import view as pages
from sprout_env.cli.console import out
from sprout_env.cli.failures import Stopped
from sprout_env.cli.replays import replay
from sprout_env.cli.settings import defaults

EPILOG = (
    "Exit codes: 0 done, 1 the answer is no, 2 usage or setting, 3 task, 4 image, 5 store, "
    "6 sandbox, 7 snapshot, 8 grading, 9 actor, 10 budget, 70 a bug, 130 Ctrl-C."
)


class Commands(TyperGroup):
    """The commands, with the settings' file behind their flags and Ctrl-C for ``failures``."""

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        """Take the settings' file as the flags' defaults."""
        # `sprout config` says itself what is wrong with the file; help needs none of it.
        own = args[: args.index("--")] if "--" in args else args
        if own and not {"-h", "--help", "--version", "config"} & set(own):
            extra.setdefault("default_map", defaults(self))
        return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Stopped from error


app = typer.Typer(
    name="sprout",
    cls=Commands,
    help="Coding tasks as Gymnasium environments on copy-on-write disks, and SPROUT over them.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        from sprout_env import __version__

        out().print(f"sprout_env {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks; accepted anywhere on the line.")
    ] = False,
) -> None:
    """Set what holds for every command."""


app.command()(doctor.doctor)
app.command()(habits.init)
app.command()(habits.config)
app.command()(stores.sweep)
app.add_typer(stores.app, name="store")
app.add_typer(images.app, name="image")
app.add_typer(sources.app, name="source")
app.add_typer(tasks.app, name="tasks")
app.command()(tasks.gate)
app.command()(runs.run)
app.command()(compare.compare)
app.command()(capture.capture)
app.command()(runs.show)
app.command()(pages.view)
runs.app.command("replay")(replay)
app.add_typer(runs.app, name="runs")
app.command()(snapshots.diff)
app.command()(snapshots.shell)
app.add_typer(snapshots.app, name="snapshots")
