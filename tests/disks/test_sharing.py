"""Several processes on one store: races, mount namespaces, forks, kills, sweeps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sprout_env.disks import Base, family_of, init_store, open_store
from sprout_env.disks.btrfs import BtrfsStore
from sprout_env.disks.layout import name_of
from sprout_env.disks.local import LocalStore
from sprout_env.disks.loopfs import find_loop
from sprout_env.disks.opening import StoreKind
from sprout_env.errors import DiskNotFound, StoreError

pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[2]

PRELUDE = """
import json, os, sys, time, uuid
from pathlib import Path
from sprout_env.disks import Base, open_store
store = open_store(Path(sys.argv[1]))
base = Base("5" * 64, (Path(sys.argv[2]),))
def say(**what):
    print(json.dumps(what), flush=True)
def upper(disk):
    with store._use(disk.id[:12]) as place:
        return place.root / "live" / disk.id.partition("-")[2] / "upper"
"""

RACER = (
    PRELUDE
    + """
sys.stdin.readline()
family = store.family("a task", base)
for n in range(10):
    disk = store.create(family)
    (upper(disk) / "file").write_text("x" * 10000)
    say(frozen=store.freeze(disk, uuid.uuid4().hex[:16], {"n": b"1"}).id)
    store.drop(disk.id)
sys.stdin.readline()
say(seen=list(store.list_frozen(family.id)), mounts=open("/proc/self/mounts").read())
"""
)

WAITER = (
    PRELUDE
    + """
disk = store.create(store.family("a task", base))
(upper(disk) / "mine").write_text("x")
frozen = store.freeze(disk, uuid.uuid4().hex[:16], {"n": b"1"})
view = store.browse(frozen)
say(disk=disk.id, frozen=frozen.id, owner=store.owner, view=str(view.__enter__()))
time.sleep(100)
"""
)


def spawn(
    code: str, store: Path, base: Base, *, before: tuple[str, ...] = ()
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*before, sys.executable, "-c", code, str(store), str(base.layers[0])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def heard(process: subprocess.Popen[str]) -> dict[str, str]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"the child said nothing and ended with {process.poll()}"
    said: dict[str, str] = json.loads(line)
    return said


def loops_over(image: Path) -> int:
    stat = image.stat()
    listed = subprocess.run(
        ["losetup", "--list", "--noheadings", "--output", "BACK-INO"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    return listed.count(str(stat.st_ino))


@pytest.mark.parametrize("before", [(), ("unshare", "--mount", "--propagation", "private")])
def test_processes_race_to_open_one_family(
    store_path: Path, small_base: Base, before: tuple[str, ...]
) -> None:
    """Two processes, or two mount namespaces: one device, both see all, nothing is left."""
    init_store(store_path, kind="btrfs", image_gib=1, reserve_bytes=1 << 26)
    racers = [spawn(RACER, store_path, small_base, before=before) for _ in range(3)]
    try:
        for racer in racers:
            go(racer)
        frozen = {heard(racer)["frozen"] for racer in racers for _ in range(10)}
        assert len(frozen) == 30
        (image,) = store_path.glob("families/*/disk.img")
        assert loops_over(image) == 1
        for racer in racers:
            go(racer)
        for racer in racers:
            said = heard(racer)
            assert set(said["seen"]) == frozen
            assert str(store_path) not in said["mounts"], "a mount that others can see"
        assert [racer.wait(30) for racer in racers] == [0, 0, 0]
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()
    deadline = time.monotonic() + 10
    while loops_over(image):
        assert time.monotonic() < deadline, "a loop device is left"
        time.sleep(0.05)


def test_what_a_killed_owner_leaves_is_swept(store_path: Path, small_base: Base) -> None:
    """Bug report 21, for disks: nothing of the dead process is left but its snapshots."""
    init_store(store_path, kind="btrfs", image_gib=1, reserve_bytes=1 << 26)
    child = spawn(WAITER, store_path, small_base)
    said = heard(child)
    store = open_store(store_path)
    assert isinstance(store, BtrfsStore)
    assert store.owner_alive(said["owner"])
    assert store.sweep() == [], "the living are left alone"
    with pytest.raises(StoreError):
        store.drop_family(family_of(said["frozen"]))
    assert os.path.ismount(said["view"])
    child.send_signal(signal.SIGKILL)
    child.communicate()
    (store_path / "families" / f".{said['owner']}-0123456789ab").mkdir()
    assert not store.owner_alive(said["owner"])
    lines = "\n".join(store.sweep())
    assert said["disk"] in lines
    assert said["view"] in lines
    assert "unfinished" in lines
    assert not Path(said["view"]).exists()
    with store._use(family_of(said["disk"])) as place:
        assert list((place.root / "live").iterdir()) == []
    assert list(store.list_frozen()) == [said["frozen"]]
    assert all("detached" in line for line in store.sweep())
    store.drop_family(family_of(said["frozen"]))
    assert store.families() == []
    store.close()
    assert list((store_path / "owners").iterdir()) == []


BUSY = (
    PRELUDE
    + """
family = store.family("a task", base)
say(ready=1)
disk = store.create(family)
for n in range(100000):
    (upper(disk) / f"file{n % 7}").write_text(str(n) * 1000)
    name = uuid.uuid4().hex[:16]
    frozen = store.freeze(disk, name, {"snapshot.json": str(n).encode(), f"turns/{n}.json": b"x"})
    if n == 0:
        say(frozen=frozen.id)
    disk, old = store.clone(frozen.id), disk
    store.drop(old.id)
"""
)


@pytest.mark.parametrize("kind", ["btrfs", "directory"])
def test_killed_anywhere_it_leaves_only_whole_snapshots(
    store_path: Path, small_base: Base, kind: StoreKind
) -> None:
    """SIGKILL between any two steps, several times; each pair that is listed is whole."""
    init_store(store_path, kind=kind, image_gib=1, reserve_bytes=1 << 26)
    for delay_s in (0.01, 0.05, 0.12, 0.3):
        child = spawn(BUSY, store_path, small_base)
        heard(child)
        if delay_s == 0.3:
            heard(child)  # on a busy machine none of the others may have come so far
        time.sleep(delay_s)
        child.kill()
        child.communicate()
    store = open_store(store_path)
    assert isinstance(store, LocalStore)
    (family,) = store.families()
    with store._use(family) as place:
        assert list((place.root / "live").iterdir()) == []
        for frozen in store.list_frozen(family):
            turn = int(store.read_records(frozen, "snapshot.json")[0])
            assert store.read_records(frozen, f"turns/{turn}.json")[0] == b"x"
            kept = place.root / "frozen" / name_of(frozen) / "upper" / f"file{turn % 7}"
            assert kept.read_text() == str(turn) * 1000
        assert not any((place.root / "drafts").glob("*"))
    assert list(store.list_frozen(family)) != []
    store.close()
    assert list((store_path / "owners").iterdir()) == []


def test_a_new_process_sweeps_by_itself(store_path: Path, small_base: Base) -> None:
    init_store(store_path, kind="btrfs", image_gib=1, reserve_bytes=1 << 26)
    child = spawn(WAITER, store_path, small_base)
    said = heard(child)
    child.kill()
    child.communicate()
    store = open_store(store_path)
    assert not Path(said["view"]).exists()
    assert not (store_path / "owners" / f"{said['owner']}.lock").exists()
    store.close()


def test_a_forked_child_is_its_own_owner(btrfs: BtrfsStore, small_base: Base) -> None:
    """It neither keeps the parent's locks alive nor takes its disks along when it ends."""
    family = btrfs.family("a task", small_base)
    disk = btrfs.create(family)
    frozen = btrfs.freeze(disk, "0" * 16, {"n": b"parent"})
    parent = btrfs.owner
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            mine = btrfs.clone(frozen.id)
            assert btrfs.owner != parent
            assert btrfs.owner_alive(parent)
            assert btrfs.read_records(frozen.id, "n")[0] == b"parent"
            btrfs.freeze(mine, "1" * 16, {"n": b"child"})
            btrfs.close()
            code = 0
        finally:
            os.write(write, bytes([code]))
            os._exit(code)
    assert os.read(read, 1) == b"\0"
    os.waitpid(pid, 0)
    os.close(read)
    os.close(write)
    assert btrfs.owner == parent
    assert name_of(disk.id).startswith(parent)
    btrfs.freeze(disk, "2" * 16, {})
    assert len(list(btrfs.list_frozen(family.id))) == 3


def test_a_sleeping_child_holds_no_lock_of_its_parent(store_path: Path, small_base: Base) -> None:
    init_store(store_path, kind="btrfs", image_gib=1, reserve_bytes=1 << 26)
    code = (
        PRELUDE
        + """
disk = store.create(store.family("a task", base))
pid = os.fork()
if pid == 0:
    os.closerange(1, 3)
    time.sleep(60)
    os._exit(0)
say(owner=store.owner, disk=disk.id, child=pid)
time.sleep(60)
"""
    )
    parent = spawn(code, store_path, small_base)
    said = heard(parent)
    try:
        parent.kill()
        parent.communicate()
        store = open_store(store_path)
        assert isinstance(store, BtrfsStore)
        assert not store.owner_alive(said["owner"]), "the child keeps its parent's lock"
        with store._use(family_of(said["disk"])) as place:
            assert list((place.root / "live").iterdir()) == []
        store.close()
    finally:
        os.kill(int(said["child"]), signal.SIGKILL)


def test_a_busy_device_is_found_by_what_lies_behind_it(
    btrfs: BtrfsStore, small_base: Base, tmp_path: Path
) -> None:
    family = btrfs.family("a task", small_base)
    image = btrfs.path / "families" / family.id / "disk.img"
    other_name = tmp_path / "linked.img"
    os.link(image, other_name)
    found = find_loop(other_name)
    assert found is not None
    os.close(found[0])
    assert find_loop(tmp_path / "base/etc/hosts") is None


def test_ctrl_c_at_the_very_end_is_quiet(store_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from sprout_env.disks import open_store\n"
        "store = open_store(Path(sys.argv[1])); end = store.close\n"
        "def close(): end(); raise KeyboardInterrupt\n"
        "store.close = close"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, store_path], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_family_without_its_record_is_found_by_its_task(
    store_path: Path, small_base: Base
) -> None:
    store = open_store(store_path)
    family = store.family("a task", small_base)
    disk = store.create(family)
    frozen = store.freeze(disk, "0123456789abcdef", {"n": b"1"})
    store.close()
    (store_path / "families" / family.id / "family.json").unlink()
    again = open_store(store_path)
    assert again.family("a task", small_base).id == family.id
    assert again.read_records(frozen.id, "n") == [b"1"]
    again.close()


def test_a_family_whose_disks_are_gone_is_named_and_hides_no_other(
    store_path: Path, small_base: Base
) -> None:
    store = open_store(store_path, kind="btrfs")
    lost, other = (store.family(task, small_base).id for task in ("lost", "other"))
    disk = store.create(store.family("other", small_base))
    kept = store.freeze(disk, "0123456789abcdef", {"n": b"1"})
    store.close()
    folder = store_path / "families" / lost
    (folder / "disk.img").unlink()
    again = open_store(store_path)
    with pytest.raises(DiskNotFound, match=rf"delete {folder}"):
        again.family("lost", small_base)
    assert list(again.list_frozen()) == [kept.id]
    assert again.open_family(other).id == other
    again.close()
