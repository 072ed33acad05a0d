"""A Debian root made on this machine by mmdebstrap or debootstrap: no Docker, no registry."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from sprout_env.disks.images.logged import Progress, run_logged
from sprout_env.disks.store import ImageConfig
from sprout_env.errors import ImageError
from sprout_env.tasks.task import DebianImage

RECIPE = 1
"""Raise it when what ``make_debian`` lays down changes."""
CA_BUNDLE = "/usr/local/share/sprout/ca-bundle.crt"
"""Outside /etc/ssl/certs: installing ca-certificates in a sandbox writes the bundle there anew."""
CA_VARIABLES = (
    "PIP_CERT",
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
)
_SYSTEM_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")


def custom_ca_bundle() -> Path | None:
    """Return the host's CA bundle if it holds more than the distribution's certificates."""
    told = os.environ.get("SSL_CERT_FILE")
    if told and Path(told) != _SYSTEM_BUNDLE and Path(told).is_file():
        return Path(told)
    added = any(Path("/usr/local/share/ca-certificates").rglob("*.crt"))
    return _SYSTEM_BUNDLE if added and _SYSTEM_BUNDLE.is_file() else None


def debian_facts(image: DebianImage) -> tuple[object, ...]:
    """Return what a Debian base is made from, for its digest."""
    bundle = custom_ca_bundle()
    certificates = hashlib.sha256(bundle.read_bytes()).hexdigest() if bundle else None
    packages = sorted(set(image.packages))
    return ("debian", RECIPE, image.release, os.uname().machine, packages, certificates)


def make_debian(
    image: DebianImage, root: Path, lock_fd: int, log: Path, progress: Progress | None = None
) -> ImageConfig:
    """Make the root with the host's own apt sources of that release, where it has some.

    Args:
        image: Release and packages.
        root: An empty folder.
        lock_fd: A lock that the programs we start hold as long as they live.
        log: Where their output is kept.
        progress: Gets each line of their output.

    Raises:
        ImageError: Neither program is installed, or it failed.
    """
    for package in image.packages:
        if not re.fullmatch(r"[a-z0-9][a-z0-9+.:=~/-]*", package):
            raise ImageError(f"debian {image.release}", f"{package!r} is not a package's name")
    sources = host_sources(image.release)
    with tempfile.TemporaryDirectory(prefix="sprout-apt-") as folder:
        command = _command(image, root, sources, Path(folder))
        said = _run(command, lock_fd, log, progress)
    if said is not None:
        raise ImageError(f"debian {image.release}", f"{command[0]} failed: {said}\nlog: {log}")
    lines = [line for one_line, _ in sources for line in one_line]
    if lines:
        for path in (root / "etc/apt/sources.list.d").glob("*host.list"):
            path.unlink()
        (root / "etc/apt/sources.list").write_text("".join(f"{line}\n" for line in lines))
    return _finish(root)


def host_sources(release: str) -> list[tuple[list[str], str]]:
    """Return the host's apt entries of this Debian release: (one-line entries, first URI) each."""
    found: list[tuple[list[str], str]] = []
    folder = Path("/etc/apt/sources.list.d")
    for path in [Path("/etc/apt/sources.list"), *sorted(folder.glob("*.list"))]:
        if path.is_file():
            for line in path.read_text(errors="replace").splitlines():
                match = re.match(r"deb\s+(?:\[[^\]]*\]\s+)?(\S+)\s+(\S+)\s+\S+", line.strip())
                if match and _of_release(match[2], release):
                    found.append(([line.strip()], match[1]))
    for path in sorted(folder.glob("*.sources")):
        for stanza in re.split(r"\n\s*\n", path.read_text(errors="replace")):
            entry = _from_deb822(stanza, release)
            if entry is not None:
                found.append(entry)
    return found


def _of_release(suite: str, release: str) -> bool:
    return suite in (release, f"{release}-updates", f"{release}-security", f"{release}/updates")


def _from_deb822(stanza: str, release: str) -> tuple[list[str], str] | None:
    fields: dict[str, str] = {}
    name = ""
    for line in stanza.splitlines():
        if line.startswith("#"):
            continue
        if line[:1].isspace() and name:
            fields[name] += f"\n{line.strip()}"
        elif ":" in line:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            fields[name] = value.strip()
    suites = [suite for suite in fields.get("suites", "").split() if _of_release(suite, release)]
    uris = fields.get("uris", "").split()
    off = fields.get("enabled", "yes").lower() in ("no", "false", "0")
    if not suites or not uris or off or "deb" not in fields.get("types", "").split():
        return None
    # An inline key cannot be said in a one-line entry; apt's trusted keys must do then.
    signed_by = fields.get("signed-by", "")
    option = f"[signed-by={signed_by}] " if signed_by.startswith("/") else ""
    components = fields.get("components", "main")
    lines = [f"deb {option}{uri} {suite} {components}" for uri in uris for suite in suites]
    return lines, uris[0]


def _command(
    image: DebianImage, root: Path, sources: list[tuple[list[str], str]], folder: Path
) -> list[str]:
    packages = ",".join(image.packages)
    include = [f"--include={packages}"] if packages else []
    if shutil.which("mmdebstrap"):
        command = ["mmdebstrap", "--mode=root", "--format=directory", "--variant=minbase"]
        mirrors = []
        if sources:
            listed = folder / "host.list"
            listed.write_text("".join(f"{line}\n" for lines, _ in sources for line in lines))
            mirrors = [str(listed)]
        return [*command, *include, image.release, str(root), *mirrors]
    if shutil.which("debootstrap"):
        mirrors = [sources[0][1]] if sources else []
        return ["debootstrap", "--variant=minbase", *include, image.release, str(root), *mirrors]
    raise ImageError(
        f"debian {image.release}", "neither mmdebstrap nor debootstrap is installed; install one"
    )


def _run(command: list[str], lock_fd: int, log: Path, progress: Progress | None) -> str | None:
    """Run a program with its output in ``log``; return how it failed, or None."""
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    if shutil.which("apt-config"):
        ask = ["apt-config", "shell", "proxy", "Acquire::http::Proxy"]
        proxy = subprocess.run(ask, capture_output=True, text=True, check=False).stdout
        if match := re.search(r"proxy='([^']+)'", proxy):
            environment.setdefault("http_proxy", match[1])
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        return run_logged(command, file, environment, progress=progress, pass_fds=(lock_fd,))


def _finish(root: Path) -> ImageConfig:
    """Take away what belongs to the host or to apt's caches; add ``python`` and the CA bundle."""
    for folder in ("var/cache/apt/archives", "var/lib/apt/lists"):
        for path in sorted((root / folder).rglob("*"), reverse=True):
            if path.is_file():
                path.unlink()
    for name, text in (("hostname", "debian\n"), ("resolv.conf", ""), ("machine-id", "")):
        path = root / "etc" / name
        path.unlink(missing_ok=True)
        path.write_text(text)
    if (root / "usr/bin/python3").exists() and not (root / "usr/bin/python").is_symlink():
        (root / "usr/bin/python").symlink_to("python3")
    bundle = custom_ca_bundle()
    if bundle is None:
        return ImageConfig()
    target = root / CA_BUNDLE.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(bundle, target)
    target.chmod(0o644)
    return ImageConfig(env=dict.fromkeys(CA_VARIABLES, CA_BUNDLE))
