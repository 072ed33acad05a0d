"""``sprout image``: bases in the store, made from images; names that stand for them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from sprout_env.cli.console import AsJson, StorePath, TasksPath, err, out, print_json, seconds
from sprout_env.disks import open_store
from sprout_env.disks.images.aliases import alias as set_alias
from sprout_env.disks.images.aliases import aliases, resolve, unalias
from sprout_env.disks.images.bases import drop_base, find_base, list_bases
from sprout_env.errors import ConfigError, ImageError
from sprout_env.sandbox.build import base_for
from sprout_env.tasks.suites import find_suite
from sprout_env.tasks.task import (
    ArchiveImage,
    DebianImage,
    DockerfileImage,
    FolderImage,
    ImageSource,
    NamedImage,
)

app = typer.Typer(help="Bases: the images that disks stand on.", no_args_is_help=True)

Named = Annotated[str | None, typer.Argument(help="A name: an alias, else a Docker reference.")]


def _source(
    name: str | None,
    debian: str | None,
    packages: list[str],
    dockerfile: Path | None,
    archive: Path | None,
    folder: Path | None,
) -> ImageSource:
    given = [x for x in (name, debian, dockerfile, archive, folder) if x is not None]
    if len(given) != 1:
        raise ConfigError(
            "give one of: a name, --debian RELEASE, --dockerfile FOLDER, --archive, --folder"
        )
    if name is not None:
        return NamedImage(name=name)
    if debian is not None:
        return DebianImage(release=debian, packages=tuple(packages))
    if dockerfile is not None:
        if dockerfile.is_dir():
            return DockerfileImage(context=dockerfile)
        return DockerfileImage(context=dockerfile.parent, dockerfile=dockerfile.name)
    if archive is not None:
        return ArchiveImage(path=archive)
    assert folder is not None
    return FolderImage(path=folder)


@app.command()
def build(
    name: Named = None,
    debian: Annotated[
        str | None, typer.Option(help="Make a Debian root of this release, without Docker.")
    ] = None,
    packages: Annotated[
        list[str], typer.Option("--package", help="A package for --debian; repeat for more.")
    ] = [],  # noqa: B006
    dockerfile: Annotated[
        Path | None, typer.Option(help="Build a Dockerfile: its folder, or the file.")
    ] = None,
    archive: Annotated[
        Path | None, typer.Option(help="Unpack a tar, docker save or OCI archive.")
    ] = None,
    folder: Annotated[Path | None, typer.Option(help="Copy a folder that holds a root.")] = None,
    suite: Annotated[
        str | None, typer.Option(help="Build the images of all tasks of a suite instead.")
    ] = None,
    alias: Annotated[
        str | None, typer.Option(help="Let this name stand for what was built.")
    ] = None,
    path: TasksPath = None,
    store: StorePath = None,
) -> None:
    """Make a base in the store; one that is there is found at once."""
    opened = open_store(store)
    if suite is not None:
        for task in find_suite(suite, path):
            began = time.monotonic()
            base_for(opened, task.image)
            out().print(f"{seconds(time.monotonic() - began):>10}  {task.name}")
        return
    source = _source(name, debian, packages, dockerfile, archive, folder)
    began = time.monotonic()
    base = base_for(opened, source)
    if alias is not None:
        set_alias(opened.path, alias, base.digest)
    err().print(seconds(time.monotonic() - began), style="dim")
    out().print(base.digest)


@app.command("list")
def list_images(store: StorePath = None, as_json: AsJson = False) -> None:
    """List the bases of the store and the names that stand for something."""
    where = open_store(store).path
    bases, named = list_bases(where), aliases(where)
    if as_json:
        print_json({"bases": [vars(base) for base in bases], "aliases": named})
        return
    table = Table(box=None)
    for column in ("base", "made", "layers", "from"):
        table.add_column(column, no_wrap=True)
    for base in bases:
        made = time.strftime("%Y-%m-%d %H:%M", time.localtime(base.made))
        # A path's end says which it is; a task's is its folder.
        kind, _, path = base.source.removesuffix("/environment/Dockerfile").rpartition(" ")
        room = max(out().width - 46 - len(kind), 20)
        said = f"{kind} {path if len(path) < room else '…' + path[1 - room :]}"
        table.add_row(base.digest[:12], made, str(1 + len(base.parents)), said)
    out().print(table if bases else "no bases")
    for pattern, target in named.items():
        said = target[:12] if isinstance(target, str) else target.model_dump_json()
        out().print(f"{pattern} → {said}")


@app.command()
def alias(
    pattern: Annotated[str, typer.Argument(help="A name; * stands for anything.")],
    target: Annotated[
        str | None, typer.Argument(help="A base's digest, another name, or a path.")
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Forget the alias.")] = False,
    store: StorePath = None,
) -> None:
    """Let a name stand for a base or another image, as sites without registries need.

    A target that begins with / or . is a folder with a root, or an archive (tar, docker save, OCI).
    """
    where = open_store(store).path
    if delete:
        unalias(where, pattern)
        return
    if target is None:
        raise ConfigError(
            "an alias needs a target: a base's digest, another image's name, or a path"
        )
    if target.startswith(("/", ".")):
        path = Path(target).absolute()
        if not path.exists():
            raise ConfigError(f"{path} is not there")
        set_alias(
            where, pattern, FolderImage(path=path) if path.is_dir() else ArchiveImage(path=path)
        )
        return
    full = [base.digest for base in list_bases(where) if base.digest.startswith(target)]
    if len(full) > 1:
        raise ConfigError(f"{target} fits {len(full)} bases; give more digits")
    set_alias(where, pattern, full[0] if full else NamedImage(name=target))


@app.command("path")
def path_of(name: Annotated[str, typer.Argument(help="A name.")], store: StorePath = None) -> None:
    """Print where the root of a base of one layer lies; read it, never write to it."""
    opened = open_store(store)
    target = resolve(opened.path, name)
    base = find_base(opened.path, target) if isinstance(target, str) else base_for(opened, target)
    if base is None or len(base.layers) != 1:
        raise ImageError(name, "is not a base of one layer in this store")
    out().print(str(base.layers[0]), soft_wrap=True)


@app.command()
def rm(
    digests: Annotated[
        list[str], typer.Argument(metavar="BASE...", help="Digests or starts of them.")
    ],
    store: StorePath = None,
) -> None:
    """Drop bases that nothing stands on: no other base, and no task's disks."""
    opened = open_store(store)
    for start in digests:
        full = [info.digest for info in list_bases(opened.path) if info.digest.startswith(start)]
        if len(full) != 1:
            raise ImageError(start, f"fits {len(full)} bases of this store")
        for family in opened.families():
            base = opened.open_family(family).base
            if full[0] in {layer.parent.name for layer in base.layers} | {base.digest}:
                raise ImageError(
                    full[0][:12], f"disks of family {family} stand on it; release their snapshots"
                )
        drop_base(opened.path, full[0])
