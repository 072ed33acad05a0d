"""Any source of an image becomes a base of the store: the one call is ``base``."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from sprout_env.disks.images.aliases import resolve
from sprout_env.disks.images.archives import unpack_archive
from sprout_env.disks.images.bases import digest_of, find_base, keep_base, note_seen, seen
from sprout_env.disks.images.builders import build_with_cli, context_digest
from sprout_env.disks.images.debian import debian_facts, make_debian
from sprout_env.disks.images.docker import docker_image, docker_why_not, take_image
from sprout_env.disks.images.folders import copy_root, tree_digest
from sprout_env.disks.images.logged import Progress
from sprout_env.disks.store import Base, ImageConfig
from sprout_env.errors import ImageError
from sprout_env.tasks.task import (
    ArchiveImage,
    DebianImage,
    DockerfileImage,
    FolderImage,
    ImageSource,
    NamedImage,
)


def base(store_path: Path, image: ImageSource, *, progress: Progress | None = None) -> Base:
    """Return the image's root, made on first use; a second use costs one lookup.

    Args:
        store_path: The store, made if it is not there.
        image: Where the root comes from.
        progress: Gets lines of what takes long.

    Raises:
        ImageError: It cannot be found, built or unpacked; or we are not root.
    """
    if isinstance(image, NamedImage):
        return _named(store_path, image, progress)
    if isinstance(image, FolderImage):
        return _folder(store_path, image)
    if isinstance(image, ArchiveImage):
        return _archive(store_path, image)
    if isinstance(image, DebianImage):
        return _debian(store_path, image, progress)
    return _dockerfile(store_path, image, progress)


def _named(store_path: Path, image: NamedImage, progress: Progress | None) -> Base:
    target = resolve(store_path, image.name)
    if isinstance(target, str):
        if found := find_base(store_path, target):
            return found
        raise ImageError(image.name, f"its alias leads to base {target}, which is not in the store")
    if not isinstance(target, NamedImage):
        return base(store_path, target, progress=progress)
    name = target.name
    missing = docker_why_not()
    why = f"there is no Docker engine to bring it ({missing})"
    if missing is None:
        try:
            return docker_image(store_path, name, progress)
        except ImageError as error:
            why = f"Docker cannot bring it ({error.facts[1]})"
    digest = seen(store_path, f"docker:{name}")
    if digest and (found := find_base(store_path, digest)):
        return found
    raise ImageError(
        name,
        f"has no alias in this store, and {why}; `sprout image alias {name} SOURCE` supplies it",
    )


def _folder(store_path: Path, image: FolderImage) -> Base:
    """Copy a folder: were it used in place, its owner's next edit would change every disk."""
    folder = image.path.resolve()
    if not folder.is_dir():
        raise ImageError(folder, "is not a folder")

    def fill(root: Path, lock_fd: int) -> ImageConfig:
        copy_root(folder, root, lock_fd)
        return ImageConfig()

    digest = digest_of("folder", tree_digest(folder))
    return keep_base(store_path, digest, fill, source=f"folder {folder}")


def _archive(store_path: Path, image: ArchiveImage) -> Base:
    path = image.path.resolve()
    if path.is_dir():
        index = path / "index.json"
        if not index.is_file():
            raise ImageError(path, "is a folder without index.json, so it is no OCI layout")
        content = hashlib.sha256(index.read_bytes()).hexdigest()
    elif path.is_file():
        facts = path.stat()
        stamp = f"file:{path}:{facts.st_dev}:{facts.st_ino}:{facts.st_size}:{facts.st_ctime_ns}"
        content = seen(store_path, stamp) or ""
        if not content:
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            note_seen(store_path, stamp, content)
    else:
        raise ImageError(path, "there is no such archive")

    def fill(root: Path, lock_fd: int) -> ImageConfig:
        return unpack_archive(path, root, lock_fd)

    return keep_base(store_path, digest_of("archive", content), fill, source=f"archive {path}")


def _debian(store_path: Path, image: DebianImage, progress: Progress | None) -> Base:
    digest = digest_of(*debian_facts(image))
    log = store_path / "logs" / f"debian-{digest[:12]}.log"

    def fill(root: Path, lock_fd: int) -> ImageConfig:
        return make_debian(image, root, lock_fd, log, progress)

    source = f"debian {image.release} with {len(image.packages)} packages"
    return keep_base(store_path, digest, fill, source=source)


def _dockerfile(store_path: Path, image: DockerfileImage, progress: Progress | None) -> Base:
    """Build with the command line tools; without Docker ``sandbox.build`` does it itself."""
    digest = digest_of("docker build", context_digest(image), os.uname().machine)
    log = store_path / "logs" / f"build-{digest[:12]}.log"
    source = f"dockerfile {image.context / image.dockerfile}"

    def fill(root: Path, lock_fd: int) -> ImageConfig:
        with tempfile.TemporaryDirectory(dir=root.parent, prefix="build-") as folder:
            usable = docker_why_not() is None
            built = build_with_cli(image, Path(folder), log, docker=usable, progress=progress)
            if isinstance(built, Path):
                return unpack_archive(built, root, lock_fd)
            return take_image(built, root, lock_fd)

    return keep_base(store_path, digest, fill, source=source)
