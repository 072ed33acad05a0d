"""What Docker's engine holds: images pulled, found and copied out. The only importer of docker."""

from __future__ import annotations

import hashlib
import os
import socket
import tempfile
from pathlib import Path
from typing import Any

from sprout_env.disks.images.archives import config_from_oci
from sprout_env.disks.images.bases import digest_of, keep_base, note_seen
from sprout_env.disks.images.folders import copy_root
from sprout_env.disks.images.logged import Progress
from sprout_env.disks.images.unpack import Unpacker
from sprout_env.disks.store import Base, ImageConfig
from sprout_env.errors import ImageError


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


def docker_image(store_path: Path, name: str, progress: Progress | None) -> Base:
    """Return the base of an image that Docker has, or pulls.

    Raises:
        ImageError: It cannot be had.
    """
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


def take_image(name: str, root: Path, lock_fd: int) -> ImageConfig:
    """Copy the root of an image that Docker has into a folder."""
    client = _client()
    try:
        return _take(client, client.images.get(name), root, lock_fd)
    finally:
        client.close()


def _take(client: Any, image: Any, root: Path, lock_fd: int) -> ImageConfig:
    """Copy an image's root: from the btrfs driver's subvolume where it can be read, else export."""
    subvolume = _driver_subvolume(client.info(), image.attrs.get("RootFS", {}).get("Layers") or [])
    if subvolume is not None:
        copy_root(subvolume, root, lock_fd)
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
