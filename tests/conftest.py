"""Fixtures that many tests need: a throw-away store, a real Debian root."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# CI judges a change: it must not fail by a case that happens to be drawn there for the first time.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A script's background job ignores Ctrl-C, and so would all that tests start and stop by it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _why_no_root() -> str | None:
    if os.geteuid() != 0:
        return "not root"
    if "btrfs" not in Path("/proc/filesystems").read_text() and subprocess.call(
        ["modprobe", "-q", "btrfs"], stderr=subprocess.DEVNULL
    ):
        return "this kernel has no btrfs"
    if not Path("/dev/loop-control").exists():
        return "no loop devices"
    if shutil.which("mkfs.btrfs") is None:
        return "btrfs-progs is not installed"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs root, btrfs and loop devices only where one of them is truly missing."""
    why = _why_no_root()
    if why is None:
        return
    for item in items:
        if item.get_closest_marker("root"):
            item.add_marker(pytest.mark.skip(reason=f"needs root and btrfs: {why}"))


@pytest.fixture(scope="session")
def debian_base() -> Path:
    """A Debian root with python3, git, make, sqlite3 and pytest; built once per machine."""
    told = os.environ.get("SPROUT_TEST_BASE")
    if told:
        return Path(told)
    root = Path(os.environ.get("XDG_CACHE_HOME", "/var/cache")) / "sprout-test-base"
    if not (root / "usr/bin/python3").exists():
        pytest.fail("no test base: run `make test`, which builds it, or set SPROUT_TEST_BASE")
    return root


@pytest.fixture(scope="session")
def shared_store(tmp_path_factory: pytest.TempPathFactory, debian_base: Path) -> Iterator[Path]:
    """A store whose alias ``test/base`` is a Debian root, unpacked once per session."""
    from sprout_env.disks import open_store
    from sprout_env.disks.images.aliases import alias
    from sprout_env.tasks.task import FolderImage

    path = tmp_path_factory.mktemp("shared") / "store"
    store = open_store(path)
    alias(path, "test/base", FolderImage(path=debian_base))
    yield path
    store.close()
    left = [
        line for line in Path("/proc/self/mounts").read_text().splitlines() if str(path) in line
    ]
    assert not left, f"left mounted: {left}"


@pytest.fixture
def store_path(tmp_path: Path) -> Iterator[Path]:
    """A folder for a store; the test fails if anything of it is still mounted at its end."""
    path = tmp_path / "store"
    yield path
    mounts = [
        line for line in Path("/proc/self/mounts").read_text().splitlines() if str(path) in line
    ]
    assert not mounts, f"left mounted: {mounts}"
