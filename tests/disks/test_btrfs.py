"""Disks on btrfs: crashes, full disks, nested subvolumes, long chains, space that comes back."""

from __future__ import annotations

import errno
import os
import shutil
import statistics
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from sprout_env.disks import (
    Base,
    Disk,
    FamilyId,
    FrozenDisk,
    FrozenDiskId,
    family_of,
    init_store,
    kernel,
    libbtrfs,
    loopfs,
    open_store,
)
from sprout_env.disks.btrfs import BtrfsStore
from sprout_env.disks.layout import name_of
from sprout_env.disks.loopfs import find_loop, mount_image
from sprout_env.disks.rooms import MountRoom
from sprout_env.errors import StoreError, StoreFull
from tests.inside import UserNamespace, do_inside

pytestmark = pytest.mark.root


def new_name() -> str:
    return uuid.uuid4().hex[:16]


@pytest.fixture
def disk(btrfs: BtrfsStore, small_base: Base) -> Disk:
    return btrfs.create(btrfs.family("a task", small_base))


def upper(store: BtrfsStore, disk: Disk | FrozenDisk) -> Path:
    """Where a disk's upper is, seen by this process; the family stays attached: it has a disk."""
    kind = "live" if isinstance(disk, Disk) else "frozen"
    with store._use(_family(disk)) as place:
        return place.root / kind / name_of(disk.id) / "upper"


def _family(disk: Disk | FrozenDisk) -> FamilyId:
    return family_of(disk.id)


def image_of(store: BtrfsStore, disk: Disk | FrozenDisk) -> Path:
    return store.path / "families" / _family(disk) / "disk.img"


# Crashes.


@pytest.mark.skipif(
    kernel.kernel_version() < (6, 7), reason="two copies of one image need Linux 6.7"
)
def test_the_pair_is_whole_on_the_disk_when_freeze_returns(
    btrfs: BtrfsStore, disk: Disk, tmp_path: Path
) -> None:
    """An image copied right then, as a power cut would leave it, holds disk and records."""
    data = os.urandom(3_000_000)
    (upper(btrfs, disk) / "data").write_bytes(data)
    names = []
    for turn in range(5):
        (upper(btrfs, disk) / "turn").write_text(str(turn))
        names.append(new_name())
        btrfs.freeze(disk, names[-1], {"snapshot.json": b"%d" % turn})
        (upper(btrfs, disk) / "data2").write_bytes(data)  # later, and never synced
    crashed = tmp_path / "crashed.img"
    subprocess.run(
        ["cp", "--sparse=always", image_of(btrfs, disk), crashed], check=True, timeout=60
    )
    (tmp_path / "mnt").mkdir()
    room = MountRoom(tmp_path / "mnt")
    try:
        fd, _ = mount_image(room, crashed)
        for turn, name in enumerate(names):
            frozen = Path(f"/proc/self/fd/{fd}/frozen/{name}")
            assert (frozen / "upper/turn").read_text() == str(turn)
            assert (frozen / "meta/snapshot.json").read_text() == str(turn)
            assert (frozen / "upper/data").read_bytes() == data
            assert (frozen / "upper/data2").exists() == (turn > 0)
        os.close(fd)
    finally:
        room.close()


# Nested subvolumes (bug reports 4 and 5).


def test_a_subvolume_inside_is_never_lost_in_silence(btrfs: BtrfsStore, disk: Disk) -> None:
    inner = upper(btrfs, disk) / "inner"
    btrfs._btrfsutil.create_subvolume(inner)
    (inner / "file").write_text("precious")
    with pytest.raises(StoreError, match="another subvolume"):
        btrfs.freeze(disk, new_name(), {})
    assert list(btrfs.list_frozen(_family(disk))) == []
    btrfs._btrfsutil.delete_subvolume(inner)
    btrfs.freeze(disk, new_name(), {})


def test_a_subvolume_inside_does_not_stop_a_drop(btrfs: BtrfsStore, disk: Disk) -> None:
    other = btrfs.create(btrfs.open_family(_family(disk)))
    btrfs._btrfsutil.create_subvolume(upper(btrfs, disk) / "inner")
    btrfs._btrfsutil.create_subvolume(upper(btrfs, disk) / "inner/deeper")
    btrfs.drop(disk.id)
    btrfs.drop(other.id)
    with btrfs._use(_family(disk)) as place:
        assert list((place.root / "live").iterdir()) == []


# Full disks (bug reports 8 and 14).


@pytest.fixture
def tiny(
    store_path: Path, small_base: Base, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[BtrfsStore, Disk]]:
    init_store(store_path, kind="btrfs", image_gib=0.3, reserve_bytes=1 << 26)
    store = open_store(store_path)
    assert isinstance(store, BtrfsStore)
    # As in images of old, nothing limits a disk but the image's end.
    monkeypatch.setattr(
        store,
        "_make",
        lambda folder, _: loopfs.make_image(folder / "disk.img", store.config.image_bytes),
    )
    yield store, store.create(store.family("a task", small_base))
    store.close()


def fill(folder: Path) -> int:
    """Write incompressible files until nothing more fits; return the number of files."""
    block, number = os.urandom(1 << 20), 0
    while True:
        try:
            with open(folder / f"fill{number}", "wb", 0) as file:
                for _ in range(8):
                    file.write(block)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return number
        number += 1


def test_a_full_image_loses_nothing_and_deleting_helps(tiny: tuple[BtrfsStore, Disk]) -> None:
    store, disk = tiny
    (upper(store, disk) / "early").write_text("early")
    early = store.freeze(disk, new_name(), {"snapshot.json": b"early"})
    assert fill(upper(store, disk)) > 5
    listed = list(store.list_frozen(_family(disk)))
    full = FrozenDiskId(f"{_family(disk)}-{new_name()}")
    try:
        store.freeze(disk, name_of(full), {"snapshot.json": b"full"})
    except StoreFull:
        assert list(store.list_frozen(_family(disk))) == listed, "a failed freeze left an id"
    else:
        assert store.read_records(full, "snapshot.json")[0] == b"full"
        store.drop(full)
    with pytest.raises(StoreFull):
        store.clone(early.id)
    with pytest.raises(StoreFull):
        store.create(store.open_family(_family(disk)))
    assert store.read_records(early.id, "snapshot.json")[0] == b"early"
    store.drop(disk.id)
    deadline = time.monotonic() + 30
    while True:
        try:
            clone = store.clone(early.id)
            break
        except StoreFull:
            assert time.monotonic() < deadline, "space did not come back"
            time.sleep(0.1)
    assert (upper(store, clone) / "early").read_text() == "early"
    store.freeze(clone, new_name(), {"snapshot.json": b"again"})


def test_records_that_do_not_fit_leave_no_snapshot(tiny: tuple[BtrfsStore, Disk]) -> None:
    store, disk = tiny
    before = store.freeze(disk, new_name(), {"snapshot.json": b"before"})
    with pytest.raises(StoreFull):
        store.freeze(disk, new_name(), {"snapshot.json": bytes(os.urandom(1 << 20) * 400)})
    assert list(store.list_frozen(_family(disk))) == [before.id]
    after = store.freeze(disk, new_name(), {"turns/1.json": b"x"})
    assert store.read_records(after.id, "snapshot.json")[0] == b"before"


def test_below_the_watermark_new_work_is_refused(btrfs: BtrfsStore, disk: Disk) -> None:
    frozen = btrfs.freeze(disk, new_name(), {"snapshot.json": b"x"})
    free = shutil.disk_usage(btrfs.path).free
    btrfs.config = btrfs.config.model_copy(update={"reserve_bytes": free + (1 << 40)})
    for work in (
        lambda: btrfs.create(btrfs.open_family(_family(disk))),
        lambda: btrfs.clone(frozen.id),
        lambda: btrfs.freeze(disk, new_name(), {}),
        lambda: btrfs.family("new task", disk.base),
    ):
        with pytest.raises(StoreFull):
            work()
    assert btrfs.read_records(frozen.id, "snapshot.json")[0] == b"x"
    btrfs.drop(frozen.id)
    assert list(btrfs.list_frozen(_family(disk))) == []


def test_what_is_still_in_memory_counts_against_the_watermark(
    btrfs: BtrfsStore, disk: Disk
) -> None:
    (upper(btrfs, disk) / "big").write_bytes(os.urandom(60_000_000))
    with btrfs._use(_family(disk)) as place:
        assert libbtrfs.dirty_bytes(place.fd) > 50_000_000
        btrfs.freeze(disk, new_name(), {})
        assert libbtrfs.dirty_bytes(place.fd) < 1_000_000


@pytest.mark.skipif(
    kernel.kernel_version() < (6, 3), reason="the host of this test is a tmpfs, idmapped from 6.3"
)
def test_a_host_that_runs_full_is_a_clear_error(small_base: Base, tmp_path: Path) -> None:
    """The kernel writes an image into a host without room: it turns read-only, and we say so."""
    place = tmp_path / "host"
    place.mkdir()
    kernel.mount("tmpfs", str(place), "tmpfs", 0, "size=60m")
    try:
        init_store(place / "store", kind="btrfs", image_gib=1, reserve_bytes=0)
        store = open_store(place / "store")
        assert isinstance(store, BtrfsStore)
        try:
            disk = store.create(store.family("a task", small_base))
            frozen = store.freeze(disk, new_name(), {"snapshot.json": b"x"})
            (upper(store, disk) / "big").write_bytes(os.urandom(80_000_000))
            with pytest.raises(StoreFull):
                store.freeze(disk, new_name(), {})
            assert list(store.list_frozen(_family(disk))) == [frozen.id]
            with store._use(_family(disk)) as place_, pytest.raises(OSError, match="Input/output"):
                libbtrfs.sync(place_.fd)
            with pytest.raises(StoreError, match="takes no more writes"):
                store.freeze(disk, new_name(), {})
            assert store.read_records(frozen.id, "snapshot.json")[0] == b"x"
        finally:
            store.close()
    finally:
        kernel.unmount(place, lazily=True)


# Long chains (bug reports 22 and 26).


@pytest.mark.slow
def test_a_thousand_steps_in_one_chain(btrfs: BtrfsStore, disk: Disk) -> None:
    times = []
    last = disk
    for step in range(1000):
        (upper(btrfs, last) / f"file{step % 200}").write_text(f"{step}\n" * 100)
        started = time.perf_counter()
        frozen = btrfs.freeze(last, f"{step:016x}", {f"turns/{step:06d}.json": b"x"})
        times.append(time.perf_counter() - started)
        if step % 10 == 9:
            older, last = last, btrfs.clone(frozen.id)
            btrfs.drop(older.id)
    assert last.recorded == 1000
    assert sum(1 for _ in btrfs.list_frozen(_family(disk))) == 1000
    assert (upper(btrfs, last) / "file199").read_text() == "999\n" * 100
    early, late = statistics.median(times[20:120]), statistics.median(times[-100:])
    assert late < 20 * early, f"snapshots slow down: {early * 1e3:.1f} -> {late * 1e3:.1f} ms"


def test_many_branches_of_one_parent_stay_fast(btrfs: BtrfsStore, disk: Disk) -> None:
    (upper(btrfs, disk) / "file").write_text("x" * 5000)
    frozen = btrfs.freeze(disk, new_name(), {})
    times = []
    for _ in range(300):
        started = time.perf_counter()
        btrfs.clone(frozen.id)
        times.append(time.perf_counter() - started)
    assert statistics.median(times[-50:]) < 10 * statistics.median(times[:50])


# Space and devices.


def test_dropped_space_comes_back_to_the_host(btrfs: BtrfsStore, disk: Disk) -> None:
    image = image_of(btrfs, disk)
    (upper(btrfs, disk) / "big").write_bytes(os.urandom(50_000_000))
    frozen = btrfs.freeze(disk, new_name(), {})
    assert image.stat().st_blocks * 512 > 50_000_000
    keep = btrfs.create(btrfs.open_family(_family(disk)))
    btrfs.drop(frozen.id)
    btrfs.drop(disk.id)
    assert btrfs.usage().pending_deletes > 0
    deadline = time.monotonic() + 20
    while btrfs.usage().pending_deletes or image.stat().st_blocks * 512 > 20_000_000:
        assert time.monotonic() < deadline, btrfs.usage()
        time.sleep(0.1)
    assert btrfs.usage().data < 1_000_000
    btrfs.freeze(keep, new_name(), {})


def test_the_device_frees_itself(btrfs: BtrfsStore, disk: Disk) -> None:
    image = image_of(btrfs, disk)
    found = find_loop(image)
    assert found is not None
    os.close(found[0])
    btrfs.close()
    deadline = time.monotonic() + 10
    while (found := find_loop(image)) is not None:
        os.close(found[0])
        assert time.monotonic() < deadline, "the loop device is still bound"
        time.sleep(0.05)


def test_idle_families_are_detached(btrfs: BtrfsStore, small_base: Base) -> None:
    families = [btrfs.family(str(n), small_base).id for n in range(18)]
    assert len(btrfs._places.attached()) <= 16
    disk = btrfs.create(btrfs.open_family(families[0]))
    for family in families:
        btrfs.open_family(family)
    assert families[0] in btrfs._places.attached(), "one with a writable disk stays"
    btrfs.freeze(disk, new_name(), {})


def test_metadata_has_room_before_data_can_take_it(btrfs: BtrfsStore, disk: Disk) -> None:
    with btrfs._use(_family(disk)) as place:
        space = libbtrfs.space(place.fd)
    assert space.allocated > 50 << 20, "a fresh file system has 8 MiB of metadata"


def test_a_folder_of_a_btrfs_needs_no_images(
    tmp_path: Path, debian_base: Path, users: UserNamespace
) -> None:
    host = tmp_path / "host.img"
    with open(host, "wb") as file:
        file.truncate(1 << 30)
    subprocess.run(["mkfs.btrfs", "-q", host], check=True, stdout=subprocess.DEVNULL)
    place = tmp_path / "btrfs"
    place.mkdir()
    subprocess.run(["mount", "-o", "loop", host, place], check=True)
    try:
        config = init_store(place / "store", kind="btrfs", reserve_bytes=1 << 20)
        assert config.layout == "folder"
        store = open_store(place / "store")
        family = store.family("a task", Base("b" * 64, (debian_base,)))
        disk = store.create(family)
        do_inside(store, disk, users, "echo one > /one")
        frozen = store.freeze(disk, new_name(), {"snapshot.json": b"x"})
        clone = store.clone(frozen.id)
        assert do_inside(store, clone, users, "cat /one") == "one\n"
        assert [c.path for c in store.changes(None, frozen.id)] == ["/one"]
        for each in (disk.id, clone.id):
            store.drop(each)
        store.drop_family(family.id)
        assert store.families() == []
        store.close()
    finally:
        subprocess.run(["umount", place], check=True)
