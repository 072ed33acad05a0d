"""What one disk may write: a limit in btrfs images, of new bytes, that ends nobody else's work."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from sprout_env.disks import (
    Base,
    Disk,
    Family,
    FrozenDisk,
    family_of,
    init_store,
    libbtrfs,
    open_store,
    probe,
)
from sprout_env.disks.btrfs import BtrfsStore
from sprout_env.disks.layout import name_of
from sprout_env.sandbox import start
from sprout_env.sandbox.sandbox import Sandbox, SandboxConfig

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(
        not Path("/sys/fs/btrfs/features/simple_quota").exists(),
        reason="this kernel has no simple quotas (Linux 6.7)",
    ),
]

MIB = 1 << 20
_STEP = os.urandom(MIB)


@pytest.fixture
def family(btrfs: BtrfsStore, small_base: Base) -> Family:
    return btrfs.family("limited", small_base, 40)


def top(store: BtrfsStore, disk: Disk) -> Path:
    with store._use(family_of(disk.id)) as place:
        return place.root / "live" / name_of(disk.id) / "upper"


def fill(store: BtrfsStore, disk: Disk, name: str, most: int = 200) -> int:
    """Write up to ``most`` MiB; return how many were taken."""
    done = 0
    try:
        with open(top(store, disk) / name, "wb", 0) as file:
            for done in range(most):  # noqa: B007
                file.write(_STEP)
    except OSError as error:
        if error.errno != errno.EDQUOT:
            raise
        return done
    return most


def freeze(store: BtrfsStore, disk: Disk, records: int = 100) -> FrozenDisk:
    return store.freeze(disk, uuid.uuid4().hex[:16], {"snapshot.json": os.urandom(records)})


def test_a_disk_ends_where_its_family_says(btrfs: BtrfsStore, family: Family) -> None:
    assert family.storage_bytes == 40 * MIB
    one, other = btrfs.create(family), btrfs.create(family)
    assert 37 <= fill(btrfs, one, "big") <= 40
    assert fill(btrfs, other, "small", 20) == 20
    # In the same turn, what is deleted is free again.
    (top(btrfs, one) / "big").unlink()
    assert fill(btrfs, one, "again", 30) == 30


def test_a_full_disk_keeps_its_boundaries_and_their_records(
    btrfs: BtrfsStore, family: Family
) -> None:
    disk = btrfs.create(family)
    fill(btrfs, disk, "big")
    for _ in range(3):
        kept = freeze(btrfs, disk, 3 * MIB)
        assert len(btrfs.read_records(kept.id, "snapshot.json")[0]) == 3 * MIB
    assert fill(btrfs, disk, "more") <= 1, "keeping a boundary has lifted the limit"
    # What is restored may write as much as a new disk may.
    clone = btrfs.clone(kept.id)
    assert fill(btrfs, clone, "more") >= 37


def test_what_only_boundaries_hold_is_not_counted_for_ever(
    btrfs: BtrfsStore, family: Family
) -> None:
    """A build that is made anew at each turn may go on, until half of the image is history."""
    disk = btrfs.create(family)
    for turn in range(6):
        assert fill(btrfs, disk, "build", 30) == 30, f"stopped at turn {turn}"
        freeze(btrfs, disk)
        (top(btrfs, disk) / "build").unlink()
        freeze(btrfs, disk)
    with btrfs._use(family.id) as place:
        size = (place.folder / "disk.img").stat().st_size
    assert size == 1 << 30  # as the store asks; more where 16 disks need more
    written = 180
    while (more := fill(btrfs, disk, "build", 30)) == 30:
        written += more
        freeze(btrfs, disk)
        (top(btrfs, disk) / "build").unlink()
        freeze(btrfs, disk)
        assert written < 700, "one disk takes the whole image with its history"
    assert written > 350
    assert fill(btrfs, btrfs.create(family), "sibling", 35) == 35


def test_what_is_there_counts_when_the_limit_rises(btrfs: BtrfsStore, family: Family) -> None:
    disk = btrfs.create(family)
    for turn in range(6):
        fill(btrfs, disk, f"kept{turn}", 10)
        freeze(btrfs, disk)
    held = sum(file.stat().st_blocks * 512 for file in top(btrfs, disk).iterdir())
    assert 37 * MIB <= held <= 40 * MIB


def test_renewed_a_disk_may_write_once_more(btrfs: BtrfsStore, family: Family) -> None:
    disk = btrfs.create(family)
    fill(btrfs, disk, "agent")
    btrfs.renew(disk)
    assert 37 <= fill(btrfs, disk, "verifier") <= 40


def test_the_default_is_a_share_and_images_have_room_for_siblings(
    btrfs: BtrfsStore, small_base: Base
) -> None:
    usual = btrfs.family("usual", small_base)
    assert usual.storage_bytes == btrfs.config.image_bytes // 4
    image = btrfs.path / "families" / usual.id / "disk.img"
    assert image.stat().st_size == 4 * btrfs.config.image_bytes
    assert image.stat().st_blocks * 512 < 64 * MIB


def test_another_process_holds_a_clone_to_the_limit(btrfs: BtrfsStore, family: Family) -> None:
    kept = freeze(btrfs, btrfs.create(family))
    script = f"""
import sys
sys.path.insert(0, {str(Path.cwd())!r})
from pathlib import Path
from sprout_env.disks import open_store
from tests.disks.test_limits import fill
store = open_store(Path({str(btrfs.path)!r}))
print(fill(store, store.clone({kept.id!r}), "big"))
store.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert 37 <= int(done.stdout) <= 40


def test_images_made_before_there_was_a_limit_go_on_without(
    btrfs: BtrfsStore, family: Family
) -> None:
    """Their record says nothing of a limit."""
    record = btrfs.path / "families" / family.id / "family.json"
    kept = freeze(btrfs, btrfs.create(family))
    btrfs.close()
    said = json.loads(record.read_text())
    del said["storage_bytes"]
    record.write_text(json.dumps(said))
    store = open_store(btrfs.path)
    assert isinstance(store, BtrfsStore)
    try:
        assert store.open_family(family.id).storage_bytes is None
        clone = store.clone(kept.id)
        assert fill(store, clone, "big", 60) == 60
        freeze(store, clone)
    finally:
        store.close()


def test_a_kernel_without_simple_quotas_has_no_limit(
    btrfs: BtrfsStore, small_base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unknown command of QUOTA_CTL is EINVAL, there as here."""
    monkeypatch.setattr(libbtrfs, "_SIMPLE_QUOTAS", 99)
    disk = btrfs.create(btrfs.family("unlimited", small_base, 10))
    assert fill(btrfs, disk, "big", 30) == 30
    btrfs.renew(disk)
    assert fill(btrfs, btrfs.clone(freeze(btrfs, disk).id), "more", 30) == 30


@pytest.mark.parametrize(("kind", "limited"), [("btrfs", True), ("directory", False)])
def test_the_doctor_knows_whether_there_is_a_limit(
    store_path: Path, small_base: Base, kind: Literal["btrfs", "directory"], limited: bool
) -> None:
    init_store(store_path, kind=kind, image_gib=1, reserve_bytes=1 << 26)
    store = open_store(store_path)
    try:
        family = store.family("a task", small_base, 10)
        assert (family.storage_bytes is not None) == limited
        found = next(f for f in probe(store_path) if f.what == "disk limit")
        assert (found.ok, bool(found.remedy)) == (limited, not limited)
    finally:
        store.close()


# From inside.


@pytest.fixture
def inside(btrfs: BtrfsStore, base: Base) -> Iterator[tuple[Disk, Sandbox]]:
    disk = btrfs.create(btrfs.family("inside", base, 60))
    sandbox = start(btrfs, disk, SandboxConfig(), fresh=True)
    yield disk, sandbox
    sandbox.close()


def said(sandbox: Sandbox, command: str) -> tuple[int | None, str]:
    done = sandbox.run(command, timeout_s=60)
    return done.exit_code, (done.stdout + done.stderr).decode()


def test_an_agent_is_stopped_deletes_and_goes_on(
    btrfs: BtrfsStore, inside: tuple[Disk, Sandbox]
) -> None:
    disk, sandbox = inside
    code, output = said(sandbox, "dd if=/dev/urandom of=/root/big bs=1M count=300")
    assert code == 1
    assert "Disk quota exceeded" in output
    assert 55 <= int(said(sandbox, "stat -c %s /root/big")[1]) / MIB <= 60
    sibling = btrfs.create(btrfs.open_family(family_of(disk.id)))
    assert fill(btrfs, sibling, "sibling", 40) == 40
    full = freeze(btrfs, disk)
    assert said(sandbox, "rm /root/big")[0] == 0
    freeze(btrfs, disk)
    assert said(sandbox, "dd if=/dev/urandom of=/root/next bs=1M count=40 && rm /etc/motd")[0] == 0
    with_own = btrfs.clone(full.id)
    restored = start(btrfs, with_own, SandboxConfig(), fresh=True)
    try:
        assert said(restored, "dd if=/dev/urandom of=/root/next bs=1M count=40")[0] == 0
        assert 55 <= int(said(restored, "stat -c %s /root/big")[1]) / MIB <= 60
    finally:
        restored.close()
