"""What this machine can do for a store: the findings that ``sprout doctor`` prints."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sprout_env.disks import kernel, layout, overlay
from sprout_env.disks.btrfs import binding
from sprout_env.disks.libbtrfs import library
from sprout_env.errors import SproutError, StoreUnavailable


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    ok: bool
    says: str
    remedy: str = ""


def _knows_file_system(name: str) -> bool:
    def listed() -> bool:
        lines = Path("/proc/filesystems").read_text().splitlines()
        return any(line.split()[-1] == name for line in lines)

    if listed():
        return True
    modprobe = shutil.which("modprobe", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if modprobe is not None:
        subprocess.run([modprobe, "-q", name], stdin=subprocess.DEVNULL, capture_output=True)
    return listed()


def require_btrfs(*, on_btrfs: bool) -> None:
    """Check for what btrfs disks need besides the binding.

    Raises:
        StoreUnavailable: Something is missing.
    """
    library()
    if not _knows_file_system("btrfs"):
        raise StoreUnavailable("this kernel has no btrfs", "`modprobe btrfs`, or another kernel")
    if on_btrfs:
        return
    if not Path("/dev/loop-control").exists():
        raise StoreUnavailable(
            "no loop devices (/dev/loop-control)",
            "`modprobe loop`; in a container, run it privileged with /dev of the host",
        )
    if shutil.which("mkfs.btrfs", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None:
        raise StoreUnavailable("mkfs.btrfs is missing", "`apt-get install -y btrfs-progs`")


TAKEN = "ext4, xfs or btrfs, or from Linux 6.3 on tmpfs"
"""File systems that have idmapped mounts."""


def why_no_idmapped_mounts(folder: Path) -> str | None:
    """Try one on ``folder``; return the kernel's answer where it refuses, None where it works.

    None also where no user namespace is to be had for the trial: a sandbox will say so itself.
    """
    unshare = shutil.which("unshare")
    if unshare is None:
        return None
    holder = subprocess.Popen(
        [unshare, "--user", "sleep", "60"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        return _try_idmap(folder, holder.pid)
    finally:
        holder.kill()
        holder.wait()


def _try_idmap(folder: Path, pid: int) -> str | None:
    namespace = Path(f"/proc/{pid}/ns/user")
    ours = Path("/proc/self/ns/user").readlink()
    deadline = time.monotonic() + 2
    try:
        while namespace.readlink() == ours:
            if time.monotonic() > deadline:
                return None
            time.sleep(0.001)
        for kind in ("uid_map", "gid_map"):
            Path(f"/proc/{pid}/{kind}").write_text("0 100000 65536")
        userns = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fd = kernel.open_tree(folder)
        try:
            kernel.mount_setattr(fd, kernel.MOUNT_ATTR_IDMAP, userns)
        finally:
            os.close(fd)
    except OSError as error:
        return str(error)
    finally:
        os.close(userns)
    return None


def existing(path: Path) -> Path:
    """Return the folder, or the nearest above it that exists."""
    while not path.exists():
        path = path.parent
    return path


def why_not_writable(path: Path) -> StoreUnavailable | None:
    """Return what keeps a store at ``path`` from being written, or None."""
    folder = existing(path)
    if os.access(folder, os.W_OK | os.X_OK):
        return None
    read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
    why = "lies on a read-only file system" if read_only else "may not be written to"
    return StoreUnavailable(f"{folder} {why}", "make it writable, or keep the store elsewhere")


def probe(path: Path) -> list[Finding]:
    """Return what stands for and against a store at ``path``; makes nothing."""
    root = os.geteuid() == 0
    found = [
        Finding(
            "root",
            root,
            "running as root" if root else f"running as uid {os.geteuid()}",
            "" if root else "run it as root (sudo): mounts and sandboxes need it",
        ),
        _kernel(),
        _asked("overlayfs", _need_overlay),
        _asked("btrfsutil", lambda: f"imports ({binding().__name__}), library loads"),
        _asked("btrfs", _need_btrfs),
        *_place(path, root),
    ]
    config = None
    try:
        config = layout.read_config(path)
    except SproutError as error:
        found.append(Finding("store", False, str(error)))
    if config is not None:
        where = f"{config.kind} ({config.layout})" if config.kind == "btrfs" else config.kind
        found.append(Finding("store", True, f"{where} at {path}: {config.why}"))
    found.append(_disk_limit(path, config))
    return found


def _asked(what: str, ask: Callable[[], str]) -> Finding:
    try:
        return Finding(what, True, ask())
    except StoreUnavailable as error:
        return Finding(what, False, str(error.facts[0]), str(error.facts[1]))


def _need_btrfs() -> str:
    require_btrfs(on_btrfs=False)
    return "kernel, loop devices and mkfs.btrfs are there"


def _need_overlay() -> str:
    if not _knows_file_system("overlay"):
        raise StoreUnavailable("this kernel has no overlayfs", "`modprobe overlay`")
    return f"layers by {'descriptor' if overlay.overlay_mode() == 'fd' else 'path'}"


def _kernel() -> Finding:
    release = os.uname().release
    ok = kernel.kernel_version() >= (6, 1)
    return Finding("kernel", ok, release, "" if ok else "Linux 6.1 or newer is needed")


def _disk_limit(path: Path, config: layout.StoreConfig | None) -> Finding:
    in_images = kernel.file_system_of(existing(path)) != "btrfs"
    if not (in_images if config is None else config.layout == "image"):
        says = "none: only disks in btrfs images have one, and this store's lie in a folder"
        return Finding("disk limit", False, says, "keep the store on ext4, xfs or tmpfs")
    if not Path("/sys/fs/btrfs/features/simple_quota").exists():
        return Finding("disk limit", False, "none: no simple quotas", "use Linux 6.7 or newer")
    return Finding("disk limit", True, "what a disk writes beyond its limit fails inside (EDQUOT)")


def _place(path: Path, root: bool) -> list[Finding]:
    folder = existing(path)
    host = kernel.file_system_of(folder)
    local = host not in kernel.NETWORK
    found = [
        Finding(
            "file system",
            local,
            f"{folder} lies on {host}",
            ""
            if local
            else "choose a local folder for the store: `sprout store init --store FOLDER`",
        )
    ]
    if root and (why_not := why_not_writable(path)):
        found.append(Finding("folder", False, *map(str, why_not.facts)))
    if root:
        lacking = why_no_idmapped_mounts(folder)
        found.append(
            Finding(
                "idmapped mounts",
                lacking is None,
                "work here" if lacking is None else f"refused on {host}: {lacking}",
                "" if lacking is None else f"keep the store on {TAKEN}",
            )
        )
    free_bytes, reserve = layout.host_space(folder)
    found.append(
        Finding(
            "space",
            free_bytes > reserve,
            f"{free_bytes / layout.GIB:.1f} GiB free, {reserve / layout.GIB:.1f} kept in reserve",
            ""
            if free_bytes > reserve
            else f"`sprout sweep --store {path}`, free space, or another folder",
        )
    )
    return found
