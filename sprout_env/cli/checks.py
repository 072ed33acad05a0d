"""What works on this machine, and why: each check looks for itself and names its remedy.

Nothing here asks a version where the thing itself can be tried.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sprout_env.disks import open_store, probe
from sprout_env.disks.images import docker_why_not
from sprout_env.disks.images.aliases import SEEDBED_BASE
from sprout_env.disks.images.bases import find_base, list_bases
from sprout_env.errors import SandboxStartFailed, SproutError
from sprout_env.sandbox import start
from sprout_env.sandbox.native.init_binary import init_binary
from sprout_env.sandbox.sandbox import SandboxConfig

State = Literal["ok", "limited", "missing"]


SAFE = ("apt-get", "modprobe", "sysctl", "pip", "sprout")
"""What a remedy may run by itself: it adds what is missing and takes nothing away."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    state: State
    """``limited``: works, slower or with less; ``missing``: what it is for cannot be done."""
    found: str
    remedy: str = ""
    """What to do; what a machine can do of it stands between backticks, as it is to be typed."""

    @property
    def commands(self) -> list[str]:
        """The remedy's commands that harm nothing, in order."""
        if self.state == "ok":
            return []
        told = re.findall(r"`([^`]+)`", self.remedy)
        return [command for command in told if command.split()[0] in SAFE]


def namespaces() -> Check:
    """Try to make the namespaces of a sandbox."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return Check(
            "namespaces",
            "missing",
            "no unshare(1) to try with",
            "`apt-get install -y util-linux`",
        )
    kinds = ["--user", "--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup", "--fork"]
    tried = subprocess.run(
        [unshare, *kinds, "true"], check=False, capture_output=True, text=True, timeout=20
    )
    if tried.returncode:
        return Check(
            "namespaces",
            "missing",
            tried.stderr.strip() or f"unshare exited with {tried.returncode}",
            "allow user namespaces: `sysctl -w user.max_user_namespaces=15000`; "
            "in a container --privileged; never from inside a chroot",
        )
    return Check("namespaces", "ok", "user, mount, pid, net, uts, ipc and cgroup can be made")


def cgroups() -> Check:
    """Look which cgroup controllers can limit and pause a sandbox."""
    unified = Path("/sys/fs/cgroup/cgroup.controllers")
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    legacy = sorted({o for m in mounts if m[2] == "cgroup" for o in m[3].split(",")})
    wanted = {"memory", "pids", "cpu"}
    if unified.exists():
        have = set(unified.read_text().split())
        layout = "v2"
    else:
        have = set(legacy)
        if any(m[2] == "cgroup2" for m in mounts):
            layout = "hybrid"
        elif legacy:
            layout = "v1"
        else:
            return Check(
                "cgroups",
                "missing",
                "no cgroup file system",
                "`mount -t cgroup2 none /sys/fs/cgroup`",
            )
    if layout != "v2":  # v2 has its freezer without a controller
        wanted.add("freezer")
    lacking = sorted(wanted - have)
    said = f"{layout}: " + ", ".join(sorted(wanted & have))
    if lacking:
        return Check("cgroups", "limited", f"{said}; no {', '.join(lacking)}", "enable them")
    return Check("cgroups", "ok", said)


def init() -> Check:
    """Look for the static program that is PID 1 of a sandbox; it is compiled if need be."""
    try:
        program = init_binary()
    except SandboxStartFailed as error:
        return Check("sandbox init", "missing", str(error), "`apt-get install -y gcc libc6-dev`")
    return Check("sandbox init", "ok", f"{program}, {program.stat().st_size >> 10} KiB")


def docker() -> Check:
    """Ask for a Docker engine, which only brings images; nothing else needs it."""
    why = docker_why_not()
    if why is not None:
        return Check("docker", "limited", why, "only needed to take images from an engine")
    return Check("docker", "ok", "an engine answers")


def debian() -> Check:
    """Look for a program that makes Debian bases without Docker."""
    for name in ("mmdebstrap", "debootstrap"):
        if shutil.which(name):
            return Check("Debian bases", "ok", name)
    return Check(
        "Debian bases",
        "limited",
        "no mmdebstrap or debootstrap",
        "`apt-get install -y mmdebstrap`",
    )


def trial(path: Path) -> Check:
    """Start a sandbox on a disk of the store, run a command, freeze, clone; time it."""
    bases = list_bases(path) if (path / "store.json").exists() else ()
    base = next(filter(None, (find_base(path, info.digest) for info in reversed(bases))), None)
    if base is None:
        return Check(
            "trial run",
            "limited",
            "not done: the store holds no base yet",
            f"`sprout image build {SEEDBED_BASE} --store {path}`",
        )
    store = open_store(path)
    began = time.monotonic()
    disk = store.create(store.family("doctor", base))
    try:
        sandbox = start(store, disk, SandboxConfig(), fresh=True)
        try:
            started = time.monotonic()
            done = sandbox.run("echo alive && id -u && cat /proc/sys/kernel/ostype", timeout_s=20)
        finally:
            sandbox.close()
        asked = time.monotonic()
        frozen = store.freeze(disk, uuid.uuid4().hex[:16], {})
        kept = time.monotonic()
        store.drop(frozen.id)
    finally:
        store.drop(disk.id)
    if done.stdout != b"alive\n0\nLinux\n":
        said = (done.stdout + done.stderr).decode(errors="replace").strip()
        return Check("trial run", "missing", f"a sandbox ran and said {said!r}", "report it")
    return Check(
        "trial run",
        "ok",
        f"sandbox and disk {1e3 * (started - began):.0f} ms, snapshot "
        f"{1e3 * (kept - asked):.0f} ms, on {store.kind}",
    )


def machine(path: Path) -> Iterator[Check]:
    """Yield every check, for a store at ``path``; one that itself breaks is a finding, too."""
    store_there = False
    for finding in probe(path):
        state: State = "ok" if finding.ok else "missing"
        if not finding.ok and finding.what in ("btrfs", "btrfsutil", "disk limit"):
            # The directory store copies instead: slower, without the limit, and everything runs.
            state = "limited"
        store_there = store_there or finding.what == "store"
        yield Check(finding.what, state, finding.says, finding.remedy)
    if not store_there:
        yield Check("store", "ok", f"none at {path} yet: it is made on first use")
    for check in (namespaces, cgroups, init, debian, docker):
        try:
            yield check()
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            yield Check(check.__name__, "missing", f"the check failed: {error}", "report it")
    if os.geteuid() == 0:
        try:
            yield trial(path)
        except (SproutError, OSError) as error:
            yield Check("trial run", "missing", str(error), "what is missing above, first")
