"""Image archives as they circulate: a plain root tar, ``docker save``, an OCI archive or layout."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sprout_env.disks.images.unpack import (
    Unpacker,
    compression,
    confined,
    plain_stream,
    tar_headers,
)
from sprout_env.disks.store import ImageConfig
from sprout_env.errors import ImageError
from sprout_env.tasks.task import Healthcheck

_INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "riscv64": "riscv64"}
_OUTER = re.compile(
    r"(manifest\.json|index\.json|oci-layout|repositories|blobs(/.*)?"
    r"|[0-9a-f]{64}(\.json|\.tar|/.*)?)"
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class _Layer:
    path: Path
    sha256: str | None
    """What the file itself must hash to; None: nothing says so."""


def config_from_oci(config: Mapping[str, Any] | None) -> ImageConfig:
    """Return our view of an image's ``Config`` (Docker's and OCI's spelling are the same)."""
    config = config or {}
    env = dict(entry.partition("=")[::2] for entry in config.get("Env") or ())
    return ImageConfig(
        env=env,
        workdir=config.get("WorkingDir") or "/",
        user=config.get("User") or "",
        entrypoint=_words(config.get("Entrypoint")),
        cmd=_words(config.get("Cmd")),
        shell=_words(config.get("Shell")),
        volumes=tuple(sorted(config.get("Volumes") or ())),
        labels=config.get("Labels") or {},
        healthcheck=_healthcheck(config.get("Healthcheck")),
    )


def _healthcheck(given: Mapping[str, Any] | None) -> Healthcheck | None:
    """Read a check as images keep it: words, and times in nanoseconds; 0 is Docker's default."""
    test = list((given or {}).get("Test") or ())
    if given is None or not test or test[0] == "NONE" or len(test) < 2:
        return None
    kept = {
        "interval_s": given.get("Interval"),
        "timeout_s": given.get("Timeout"),
        "start_period_s": given.get("StartPeriod"),
        "start_interval_s": given.get("StartInterval"),
    }
    command = test[1] if test[0] == "CMD-SHELL" else shlex.join(test[1:])
    return Healthcheck.model_validate(
        {"interval_s": 30.0, "command": command, "retries": given.get("Retries") or 3}
        | {key: value / 1e9 for key, value in kept.items() if value}
    )


def unpack_archive(path: Path, root: Path, lock_fd: int) -> ImageConfig:
    """Unpack any image archive (or OCI layout folder) into an empty root.

    Args:
        path: The archive.
        root: An empty folder.
        lock_fd: A lock that the programs we start hold as long as they live.

    Raises:
        ImageError: It is none, it is damaged, or it would write outside the root.
    """
    if path.is_dir():
        return _unpack_image(path, path, root, lock_fd)
    if not _is_image(path):
        unpacker = Unpacker(root, lock_fd, path)
        unpacker.layer(path, whiteouts=False)
        unpacker.finish()
        return ImageConfig()
    with tempfile.TemporaryDirectory(dir=root.parent, prefix="archive-") as scratch:
        with plain_stream(path) as stream:
            done = subprocess.run(
                confined(Path(scratch), ["tar", "--extract", "--file=-", "--no-same-owner"]),
                stdin=stream,
                capture_output=True,
                pass_fds=(lock_fd,),
                check=False,
            )
        if done.returncode != 0:
            raise ImageError(path, f"tar: {done.stderr.decode('utf-8', 'replace')[-2000:]}")
        return _unpack_image(path, Path(scratch), root, lock_fd)


def _is_image(path: Path) -> bool:
    """Whether a tar is an image archive: every name is one of theirs, and a manifest is there."""
    manifest = False
    with tar_headers(path) as headers:
        for member in headers:
            name = member.name.removeprefix("./").rstrip("/")
            if name in ("", "."):
                continue
            if not _OUTER.fullmatch(name):
                return False
            manifest = manifest or name in ("manifest.json", "index.json")
    return manifest


def _unpack_image(archive: Path, folder: Path, root: Path, lock_fd: int) -> ImageConfig:
    if (folder / "manifest.json").is_file():
        config, layers = _docker_image(archive, folder)
    elif (folder / "index.json").is_file():
        config, layers = _oci_image(archive, folder)
    else:
        raise ImageError(archive, "holds neither manifest.json nor index.json")
    unpacker = Unpacker(root, lock_fd, archive)
    for layer in layers:
        if layer.sha256 is not None and _sha256(layer.path) != layer.sha256:
            raise ImageError(archive, f"layer {layer.sha256} is damaged: its digest differs")
        unpacker.layer(layer.path, whiteouts=True)
    unpacker.finish()
    return config


def _docker_image(archive: Path, folder: Path) -> tuple[ImageConfig, list[_Layer]]:
    images = _json(archive, folder / "manifest.json")
    if not isinstance(images, list) or len(images) != 1:
        raise ImageError(archive, "holds several images; save the one that is meant alone")
    facts = images[0]
    config = _json(archive, _inside(archive, folder, facts["Config"]))
    diff_ids = config.get("rootfs", {}).get("diff_ids", [])
    names = facts["Layers"]
    if len(diff_ids) != len(names):
        raise ImageError(archive, f"lists {len(names)} layers and {len(diff_ids)} layer digests")
    layers = []
    for name, diff_id in zip(names, diff_ids, strict=True):
        path = _inside(archive, folder, name)
        plain = compression(path) is None
        layers.append(_Layer(path, diff_id.removeprefix("sha256:") if plain else None))
    return config_from_oci(config.get("config")), layers


def _oci_image(archive: Path, folder: Path) -> tuple[ImageConfig, list[_Layer]]:
    document = _json(archive, folder / "index.json")
    for _ in range(4):
        if "layers" in document:
            break
        document = _json(archive, _blob(archive, folder, _choose(archive, document)).path)
    else:
        raise ImageError(archive, "its indexes are nested too deeply")
    config_blob = _blob(archive, folder, document["config"])
    if _sha256(config_blob.path) != config_blob.sha256:
        raise ImageError(archive, "its configuration is damaged: the digest differs")
    config = _json(archive, config_blob.path)
    layers = [_blob(archive, folder, layer) for layer in document["layers"]]
    return config_from_oci(config.get("config")), layers


def _choose(archive: Path, index: Mapping[str, Any]) -> Mapping[str, Any]:
    machine = _MACHINES.get(platform.machine(), platform.machine())
    manifests: list[Mapping[str, Any]] = index.get("manifests", [])
    fitting = []
    for manifest in manifests:
        where = manifest.get("platform") or {}
        system, cpu = where.get("os", "linux"), where.get("architecture", machine)
        if system == "linux" and cpu == machine:
            fitting.append(manifest)
    if len(fitting) != 1:
        raise ImageError(archive, f"holds {len(fitting)} images for linux/{machine}, not one")
    return fitting[0]


def _blob(archive: Path, folder: Path, descriptor: Mapping[str, Any]) -> _Layer:
    digest = str(descriptor.get("digest", ""))
    if not _DIGEST.fullmatch(digest):
        raise ImageError(archive, f"names a blob by {digest!r}, which is no sha256 digest")
    hexadecimal = digest.removeprefix("sha256:")
    return _Layer(_inside(archive, folder, f"blobs/sha256/{hexadecimal}"), hexadecimal)


def _inside(archive: Path, folder: Path, name: str) -> Path:
    """Resolve a name that the archive gives; old ``docker save`` links equal layers together."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise ImageError(archive, f"refused: {name!r} lies outside the archive")
    if not path.is_file():
        raise ImageError(archive, f"has no file {name!r}")
    return path


def _json(archive: Path, path: Path) -> Any:
    if path.stat().st_size > 64 << 20:
        raise ImageError(archive, f"its {path.name} is larger than 64 MiB")
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise ImageError(archive, f"its {path.name} is not JSON: {error}") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _words(value: str | list[str] | None) -> tuple[str, ...]:
    if isinstance(value, str):
        return ("/bin/sh", "-c", value)
    return tuple(value or ())
