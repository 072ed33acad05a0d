"""The three files of /etc that make a root ours: they are written into a new disk."""

from __future__ import annotations

import contextlib
from pathlib import Path

from sprout_env.disks.images.debian import CA_BUNDLE
from sprout_env.errors import SandboxError
from sprout_env.sandbox.native.files import Putter
from sprout_env.sandbox.sandbox import SandboxConfig


def write_etc(putter: Putter, config: SandboxConfig) -> None:
    """Write ``/etc/hosts``, ``hostname`` and ``resolv.conf`` and make the working directory.

    They lie on the disk, not on a mount over it, so that an agent's edits are part of snapshots.
    """
    name = config.hostname
    hosts = ("127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost", f"127.0.1.1\t{name}")
    putter.write("/etc/hosts", ("\n".join(hosts) + "\n").encode())
    putter.write("/etc/hostname", f"{name}\n".encode())
    putter.write("/etc/resolv.conf", _resolv_conf(config))
    if config.workdir.strip("/"):
        with contextlib.suppress(SandboxError):
            # What cannot be made is said by the first command, as any other wrong directory.
            putter.make_folder(config.workdir)


def write_bundle(putter: Putter, bundle: Path) -> None:
    """Write this site's certificates where ``sandbox.network`` says that they are."""
    putter.write(CA_BUNDLE, bundle.read_bytes())


def _resolv_conf(config: SandboxConfig) -> bytes:
    if config.network.mode == "host":
        with contextlib.suppress(OSError):
            return Path("/etc/resolv.conf").read_bytes()
    return b"# No name server: this sandbox has no route out.\n"
