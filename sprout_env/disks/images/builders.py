"""Builds of Dockerfiles by the command line tools of Docker, or by buildah without a daemon."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

from sprout_env.disks.images.dockerignore import context_files
from sprout_env.disks.images.logged import Progress, run_logged
from sprout_env.errors import ImageError
from sprout_env.tasks.task import DockerfileImage


def dockerfile_text(image: DockerfileImage) -> str:
    """Return the Dockerfile.

    Raises:
        ImageError: There is none, or it lies outside the context.
    """
    path = image.context / image.dockerfile
    try:
        if not path.resolve(strict=True).is_relative_to(image.context.resolve()):
            raise ImageError(path, "lies outside its build context")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ImageError(path, f"cannot be read: {error}") from error


def file_digest(path: Path) -> str:
    """Return the digest of one context entry: type, mode and content, never its times."""
    facts = path.lstat()
    digest = hashlib.sha256(oct(facts.st_mode).encode())
    if stat.S_ISREG(facts.st_mode):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    elif stat.S_ISLNK(facts.st_mode):
        digest.update(os.fsencode(path.readlink()))
    return digest.hexdigest()


def context_digest(image: DockerfileImage) -> str:
    """Return the digest of a Dockerfile and its whole context, less what .dockerignore names."""
    digest = hashlib.sha256(dockerfile_text(image).encode())
    for name in context_files(image.context, image.dockerfile):
        entry = f"{name}\0{file_digest(image.context / name)}\n"
        digest.update(entry.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def builder_name(*, docker: bool) -> str | None:
    """Return the best builder here: buildx, buildkit, classic, buildah, or None.

    Args:
        docker: Whether a Docker engine answers.
    """
    if docker and shutil.which("docker"):
        if _answers(["docker", "buildx", "version"]):
            return "buildx"
        said = subprocess.run(
            ["docker", "version", "--format", "{{.Client.Version}}"],
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        # From 23 on the client has no BuildKit of its own: it needs the buildx plugin.
        version = re.match(r"(\d+)", said)
        return "buildkit" if version and 18 <= int(version[1]) < 23 else "classic"
    return "buildah" if shutil.which("buildah") else None


def knows_heredocs(builder: str) -> bool:
    """Whether this builder surely understands ``RUN <<EOF``."""
    return builder == "buildx"


def build_with_cli(
    image: DockerfileImage,
    folder: Path,
    log: Path,
    *,
    docker: bool,
    progress: Progress | None = None,
) -> str | Path:
    """Build with the best builder here; the network of RUN is the host's.

    Args:
        image: What to build.
        folder: An empty folder for what the builder hands over.
        log: Where its output is kept.
        docker: Whether a Docker engine answers.
        progress: Gets each line of its output.

    Returns:
        The id of an image in the engine, or (buildah) an OCI archive inside ``folder``.

    Raises:
        ImageError: No builder is here, or the build failed; with the log's tail.
    """
    builder = builder_name(docker=docker)
    path = image.context / image.dockerfile
    if builder is None:
        raise ImageError(path, "no builder here: neither a Docker engine nor buildah")
    id_file = folder / "id"
    common = ["--network", "host", "--iidfile", str(id_file), "-f", str(path), str(image.context)]
    environment = dict(os.environ)
    if builder == "buildx":
        command = ["docker", "buildx", "build", "--progress", "plain", "--load", *common]
    elif builder == "buildah":
        command = ["buildah", "bud", "--isolation", "chroot", *common]
    else:
        command = ["docker", "build", *common]
        environment["DOCKER_BUILDKIT"] = "1" if builder == "buildkit" else "0"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        file.write(f"# {builder}: {path}\n")
        tail = run_logged(command, file, environment, progress=progress)
        if tail is None and builder == "buildah":
            archive = folder / "image.tar"
            built = id_file.read_text().strip()
            push = ["buildah", "push", built, f"oci-archive:{archive}"]
            tail = run_logged(push, file, environment, progress=progress)
            # Nobody would find it there again: the store has it.
            run_logged(["buildah", "rmi", built], file, environment)
    if tail is not None:
        raise ImageError(path, f"{builder} failed: {tail}\nlog: {log}")
    return folder / "image.tar" if builder == "buildah" else id_file.read_text().strip()


def _answers(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
