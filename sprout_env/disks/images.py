"""Images become bases: the one call is ``base``; the only importer of ``docker``.

An image's root is copied or unpacked once into the store, read-only from then on, and found
again by the digest of what it was made from.
"""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sprout_env.disks.aliases import (
    SEEDBED_BASE,
    SEEDBED_PACKAGES,
    alias,
    aliases,
    resolve,
    unalias,
)
from sprout_env.disks.archives import config_from_oci, unpack_archive
from sprout_env.disks.bases import (
    BaseInfo,
    digest_of,
    drop_base,
    find_base,
    keep_base,
    list_bases,
    note_seen,
    seen,
    sweep_bases,
)
from sprout_env.disks.builders import build_with_cli, context_digest
from sprout_env.disks.debian import debian_facts, make_debian
from sprout_env.disks.logged import Progress
from sprout_env.disks.store import Base, ImageConfig
from sprout_env.disks.unpack import Unpacker
from sprout_env.errors import ImageError
from sprout_env.tasks.task import (
    ArchiveImage,
    DebianImage,
    DockerfileImage,
    FolderImage,
    ImageSource,
    NamedImage,
)

__all__ = [
    "SEEDBED_BASE",
    "SEEDBED_PACKAGES",
    "BaseInfo",
    "alias",
    "aliases",
    "base",
    "docker_why_not",
    "drop_base",
    "list_bases",
    "sweep_bases",
    "unalias",
]


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
            return _docker_image(store_path, name, progress)
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
        _copy_root(folder, root, lock_fd)
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
            with ExitStack() as stack:
                client = _client()
                stack.callback(client.close)
                return _take(client, client.images.get(built), root, lock_fd)

    return keep_base(store_path, digest, fill, source=source)


def docker_why_not() -> str | None:
    """Return why no Docker engine can be used here, or None."""
    try:
        import docker
    except ImportError:
        return "the Python package `docker` is not installed"
    address = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    if address.startswith("unix://"):
        # docker-py leaves its socket open when nobody listens.
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(address.removeprefix("unix://"))
            except OSError as error:
                return f"{address}: {error.strerror or error}"
    try:
        client = _client()
    except docker.errors.DockerException as error:
        return str(error).splitlines()[0]
    try:
        client.ping()
    except Exception as error:
        # docker-py lets errors of requests and urllib3 through as they are.
        return str(error).splitlines()[0]
    finally:
        client.close()
    return None


def _client() -> Any:
    import docker

    return docker.from_env(timeout=600)


def _docker_image(store_path: Path, name: str, progress: Progress | None) -> Base:
    import docker

    client = _client()
    try:
        try:
            image = client.images.get(name)
        except docker.errors.ImageNotFound:
            if progress:
                progress(f"pulling {name}")
            tagged = ":" in name.rpartition("/")[2] or "@" in name
            image = client.images.pull(name if tagged else f"{name}:latest")

        def fill(root: Path, lock_fd: int) -> ImageConfig:
            return _take(client, image, root, lock_fd)

        digest = digest_of("docker", image.id)
        made = keep_base(store_path, digest, fill, source=f"docker image {name} ({image.id})")
        note_seen(store_path, f"docker:{name}", digest)
        return made
    except docker.errors.DockerException as error:
        raise ImageError(name, str(error)) from error
    finally:
        client.close()


def _take(client: Any, image: Any, root: Path, lock_fd: int) -> ImageConfig:
    """Copy an image's root: from the btrfs driver's subvolume where it can be read, else export."""
    subvolume = _driver_subvolume(client.info(), image.attrs.get("RootFS", {}).get("Layers") or [])
    if subvolume is not None:
        _copy_root(subvolume, root, lock_fd)
    else:
        _export(client, image, root, lock_fd)
    return config_from_oci(image.attrs.get("Config"))


def _driver_subvolume(info: dict[str, Any], diff_ids: list[str]) -> Path | None:
    """Return where Docker's btrfs graph driver keeps the root made of these layers."""
    if info.get("Driver") != "btrfs" or not diff_ids:
        return None
    chain = diff_ids[0]
    for diff_id in diff_ids[1:]:
        chain = "sha256:" + hashlib.sha256(f"{chain} {diff_id}".encode()).hexdigest()
    data_root = Path(info["DockerRootDir"])
    kept = data_root / "image/btrfs/layerdb/sha256" / chain.removeprefix("sha256:") / "cache-id"
    try:
        subvolume = data_root / "btrfs/subvolumes" / kept.read_text().strip()
        # A subvolume's root is inode 256: anything else under this name is not the driver's.
        return subvolume if subvolume.stat().st_ino == 256 else None
    except OSError:
        return None


def _export(client: Any, image: Any, root: Path, lock_fd: int) -> None:
    container = client.containers.create(image.id, command=["true"])
    try:
        with tempfile.NamedTemporaryFile(dir=root.parent, suffix=".tar") as spool:
            for chunk in container.export(chunk_size=1 << 20):
                spool.write(chunk)
            spool.flush()
            unpacker = Unpacker(root, lock_fd, image.id)
            unpacker.layer(Path(spool.name), whiteouts=False)
            unpacker.finish()
    finally:
        container.remove(force=True)
    (root / ".dockerenv").unlink(missing_ok=True)


def _copy_root(source: Path, root: Path, lock_fd: int) -> None:
    command = ["cp", "-a", "-x", "--reflink=auto", "--", f"{source}/.", str(root)]
    done = subprocess.run(command, capture_output=True, text=True, pass_fds=(lock_fd,), check=False)
    if done.returncode != 0:
        raise ImageError(source, f"cannot be copied: {done.stderr.strip()[-2000:]}")


def tree_digest(folder: Path) -> str:
    """Return the digest of a tree's metadata: names, types, modes, owners, sizes, times, xattrs.

    Contents are not read: a change that keeps size and time (in nanoseconds) is not seen.
    """
    digest = hashlib.sha256()
    waiting = [os.fsencode(folder)]
    top = len(waiting[0]) + 1
    first = os.lstat(folder)
    digest.update(_entry(b"", first, waiting[0]))
    while waiting:
        path = waiting.pop()
        with os.scandir(path) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        for entry in found:
            facts = entry.stat(follow_symlinks=False)
            if facts.st_dev != first.st_dev:
                continue
            digest.update(_entry(entry.path[top:], facts, entry.path))
            if stat.S_ISDIR(facts.st_mode):
                waiting.append(entry.path)
    return digest.hexdigest()


def _entry(name: bytes, facts: os.stat_result, path: bytes) -> bytes:
    kind = stat.S_IFMT(facts.st_mode)
    size = 0 if kind == stat.S_IFDIR else facts.st_size
    numbers = (facts.st_mode, facts.st_uid, facts.st_gid, size, facts.st_mtime_ns, facts.st_rdev)
    target = bytes(Path(os.fsdecode(path)).readlink()) if kind == stat.S_IFLNK else b""
    # nlink: whether names share a file is part of a root, which inode it is is not.
    links = facts.st_nlink if kind == stat.S_IFREG else 0
    attributes = b"".join(
        os.fsencode(key) + b"=" + os.getxattr(path, key, follow_symlinks=False)
        for key in sorted(os.listxattr(path, follow_symlinks=False))
    )
    parts = (name, repr((numbers, links)).encode(), target, attributes)
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)
