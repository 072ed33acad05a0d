"""What every store of disks must do, whatever it is made of."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from sprout_env.disks import (
    Base,
    Disk,
    DiskId,
    DiskStore,
    Family,
    FamilyId,
    FrozenDisk,
    FrozenDiskId,
    init_store,
    kernel,
    open_store,
    overlay,
)
from sprout_env.disks.opening import StoreKind
from sprout_env.errors import ConfigError, DiskNotFound, StoreError
from tests.inside import UserNamespace, do_inside, user_namespace

REAL = [pytest.param(kind, marks=pytest.mark.root) for kind in ("directory", "btrfs")]
_NO_MEMORY = pytest.mark.skipif(
    importlib.util.find_spec("sprout_env.disks.memory") is None,
    reason="the memory double is not part of this build",
)


def _open(path: Path, kind: str) -> DiskStore:
    if kind != "memory":
        init_store(path, kind=cast(StoreKind, kind), image_gib=1, reserve_bytes=1 << 26)
    return open_store(path, kind=cast(StoreKind, kind))


@pytest.fixture(params=[pytest.param("memory", marks=_NO_MEMORY), *REAL])
def store(request: pytest.FixtureRequest, store_path: Path) -> Iterator[DiskStore]:
    opened = _open(store_path, request.param)
    yield opened
    opened.close()


@pytest.fixture(params=["fd", "path"])
def real_store(
    request: pytest.FixtureRequest,
    kind: str,
    store_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[DiskStore]:
    """A store on real disks, once with layers by descriptor and once by path."""
    if request.param == "fd" and kernel.kernel_version() < (6, 13):
        pytest.skip("layers by descriptor need Linux 6.13")
    monkeypatch.setenv("SPROUT_OVERLAY", request.param)
    overlay.overlay_mode.cache_clear()
    opened = _open(store_path, kind)
    yield opened
    opened.close()
    overlay.overlay_mode.cache_clear()


@pytest.fixture(params=REAL)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def users() -> Iterator[UserNamespace]:
    with user_namespace() as made:
        yield made


@pytest.fixture
def base(debian_base: Path) -> Base:
    return Base("b" * 64, (debian_base,))


@pytest.fixture
def family(store: DiskStore, base: Base) -> Family:
    return store.family("a task", base)


def new_name() -> str:
    return uuid.uuid4().hex[:16]


# Ids, records and lists.


def test_says_its_kind_and_path(store: DiskStore, store_path: Path) -> None:
    assert isinstance(store, DiskStore)
    assert store.kind in ("memory", "directory", "btrfs")
    assert store.path == store_path


def test_one_family_per_task_and_base(store: DiskStore, base: Base) -> None:
    first = store.family("a task", base)
    assert len(first.id) == 12
    assert int(first.id, 16) >= 0
    assert store.family("a task", base).id == first.id
    assert store.family("another task", base).id != first.id
    assert store.open_family(first.id).base.digest == base.digest
    assert set(store.families()) >= {first.id}


def test_an_unknown_family_is_not_found(store: DiskStore) -> None:
    with pytest.raises(DiskNotFound):
        store.open_family(FamilyId("0" * 12))


def test_a_frozen_disk_carries_its_records(store: DiskStore, family: Family) -> None:
    disk = store.create(family)
    assert disk.recorded == 0
    name = new_name()
    records = {"snapshot.json": b"{}", "turns/000000.json": b"zero", "turns/000001.json": b"one"}
    frozen = store.freeze(disk, name, records)
    assert frozen.id == f"{family.id}-{name}"
    assert store.frozen(frozen.id) == frozen
    assert {key: store.read_records(frozen.id, key)[0] for key in records} == records
    assert list(store.list_frozen(family.id)) == [frozen.id]
    clone = store.clone(frozen.id)
    assert clone.recorded == 2
    assert clone.id != disk.id
    assert clone.base.digest == family.base.digest


def test_records_of_the_same_name_are_replaced_and_others_stay(
    store: DiskStore, family: Family
) -> None:
    disk = store.create(family)
    first = store.freeze(disk, new_name(), {"snapshot.json": b"1", "turns/0.json": b"a"})
    second = store.freeze(disk, new_name(), {"snapshot.json": b"2", "turns/1.json": b"b"})
    assert store.read_records(first.id, "snapshot.json")[0] == b"1"
    assert store.read_records(second.id, "snapshot.json")[0] == b"2"
    assert store.read_records(second.id, "turns/0.json")[0] == b"a"
    with pytest.raises(DiskNotFound):
        store.read_records(first.id, "turns/1.json")[0]


@pytest.mark.parametrize("name", ["../out", "/etc/passwd", "turns/../../x", "", "turns//x"])
def test_a_record_stays_in_its_disk(store: DiskStore, family: Family, name: str) -> None:
    with pytest.raises((ConfigError, DiskNotFound)):
        store.freeze(store.create(family), new_name(), {name: b"x"})


def test_a_name_is_used_once(store: DiskStore, family: Family) -> None:
    disk, name = store.create(family), new_name()
    first = store.freeze(disk, name, {"snapshot.json": b"first"})
    with pytest.raises(StoreError):
        store.freeze(disk, name, {"snapshot.json": b"second"})
    assert store.read_records(first.id, "snapshot.json")[0] == b"first"


@pytest.mark.parametrize("name", ["", "short", "../../../../escape", "X" * 16, "a" * 17])
def test_an_odd_name_is_refused(store: DiskStore, family: Family, name: str) -> None:
    with pytest.raises(ConfigError):
        store.freeze(store.create(family), name, {})
    assert list(store.list_frozen(family.id)) == []


def test_a_foreign_id_is_not_found(store: DiskStore, family: Family) -> None:
    for id in (f"{family.id}-{'0' * 16}", "nonsense", f"{'0' * 12}-{'0' * 16}", "a-../../etc"):
        with pytest.raises(DiskNotFound):
            store.frozen(FrozenDiskId(id))
        with pytest.raises(DiskNotFound):
            store.clone(FrozenDiskId(id))
        with pytest.raises(DiskNotFound):
            store.read_records(FrozenDiskId(id), "snapshot.json")[0]
        store.drop(FrozenDiskId(id))


def test_a_dropped_disk_is_gone_and_dropping_is_idempotent(
    store: DiskStore, family: Family
) -> None:
    disk = store.create(family)
    kept, gone = (store.freeze(disk, new_name(), {"n": b"1"}) for _ in range(2))
    clone = store.clone(gone.id)
    for _ in range(2):
        store.drop(gone.id)
        store.drop(disk.id)
    assert list(store.list_frozen(family.id)) == [kept.id]
    with pytest.raises(DiskNotFound):
        store.frozen(gone.id)
    with pytest.raises(DiskNotFound):
        store.freeze(disk, new_name(), {})
    later = store.freeze(clone, new_name(), {})
    assert store.read_records(later.id, "n")[0] == b"1", "a clone outlives what it was made from"


def test_a_family_in_use_is_not_deleted(store: DiskStore, family: Family) -> None:
    disk = store.create(family)
    with pytest.raises(StoreError):
        store.drop_family(family.id)
    store.freeze(disk, new_name(), {})
    store.drop(disk.id)
    store.drop_family(family.id)
    assert family.id not in store.families()
    with pytest.raises(DiskNotFound):
        store.open_family(family.id)
    store.drop_family(family.id)


def test_frozen_disks_of_all_families_are_listed(store: DiskStore, base: Base) -> None:
    ids = set()
    for task in ("one", "two", "three"):
        disk = store.create(store.family(task, base))
        ids |= {store.freeze(disk, new_name(), {}).id for _ in range(2)}
    assert set(store.list_frozen()) == ids


def test_closing_is_idempotent_and_final(store: DiskStore, family: Family) -> None:
    store.close()
    store.close()
    with pytest.raises(StoreError):
        store.create(family)


def test_its_owner_is_alive_while_it_is_open(store: DiskStore) -> None:
    owner = store.owner
    assert owner
    assert store.owner_alive(owner)
    assert not store.owner_alive("1-1-00000000")


def test_usage_is_in_bytes(store: DiskStore, family: Family) -> None:
    store.create(family)
    usage = store.usage()
    assert usage.host_free > 0
    assert min(usage.data, usage.metadata, usage.unallocated, usage.pending_deletes) >= 0


# What is on the disks: real stores, both ways of mounting.


@pytest.fixture
def disk(real_store: DiskStore, base: Base) -> Disk:
    return real_store.create(real_store.family("a task", base))


def freeze(store: DiskStore, disk: Disk) -> FrozenDisk:
    return store.freeze(disk, new_name(), {})


EVERYTHING = r"""
mkdir -p /opt/x /opt/deep/er && cd /opt/x
echo plain > plain; chmod 640 plain; chown 1000:1001 plain
cp /bin/true suid; chown 12:34 suid; chmod 6755 suid
cp /bin/true caps; setcap cap_net_raw,cap_net_bind_service+ep caps
setfattr -n user.note -v hello plain; setfacl -m u:77:rwx plain
ln plain hard1; ln plain ../deep/er/hard2; ln -s /nowhere link; chown -h 55:66 link
truncate -s 5M sparse; printf end | dd of=sparse bs=1 seek=3000000 conv=notrunc status=none
mkfifo fifo; chmod 600 fifo
python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("sock")'
python3 -c 'import os; open(b"bad\xff\xfename","w").write("x"); open("new\nline","w").close()'
chmod 1777 ../deep
touch -d '2001-02-03 04:05:06.123456789' plain ../deep
touch -h -d '1999-12-31 23:59:59.987654321' link
rm /etc/debian_version; rm -rf /usr/share/doc; mkdir /usr/share/doc; echo new > /usr/share/doc/only
echo root:x:0:0::/root:/bin/sh > /etc/passwd
"""

LOOK = r"""
cd / && python3 - <<'END'
import hashlib, os, stat
for top in ("/opt", "/etc", "/usr/share/doc", "/root"):
    for folder, folders, files in os.walk(os.fsencode(top)):
        folders.sort()
        for name in sorted(folders + files) + [b"."]:
            path = os.path.join(folder, name)
            s = os.lstat(path)
            kind = stat.S_IFMT(s.st_mode)
            says = hashlib.sha256(open(path, "rb").read()).hexdigest() if stat.S_ISREG(kind) else ""
            says = os.readlink(path) if stat.S_ISLNK(kind) else says
            links = s.st_nlink if not stat.S_ISDIR(kind) else 0
            attributes = [(n, os.getxattr(path, n, follow_symlinks=False))
                          for n in sorted(os.listxattr(path, follow_symlinks=False))]
            print(path, oct(s.st_mode), s.st_uid, s.st_gid, s.st_mtime_ns, links,
                  s.st_size if kind != stat.S_IFDIR else 0, says, attributes)
END
cmp /opt/x/plain /opt/deep/er/hard2 && stat -c %i /opt/x/plain /opt/deep/er/hard2 | uniq | wc -l
getcap /opt/x/caps; getfacl -np /opt/x/plain; test -e /etc/debian_version || echo absent
"""


def test_a_clone_is_identical_in_everything(
    real_store: DiskStore, disk: Disk, users: UserNamespace
) -> None:
    do_inside(real_store, disk, users, EVERYTHING)
    before = do_inside(real_store, disk, users, LOOK)
    assert "absent" in before
    assert "cap_net_raw" in before
    frozen = freeze(real_store, disk)
    do_inside(real_store, disk, users, "rm -rf /opt /usr/share; echo evil > /etc/passwd")
    clone = real_store.clone(frozen.id)
    for view in (clone, frozen):
        assert do_inside(real_store, view, users, LOOK) == before
    blocks = do_inside(real_store, clone, users, "stat -c %b /opt/x/sparse")
    assert int(blocks) * 512 < 1 << 20, "a hole has been filled"
    second = real_store.clone(freeze(real_store, clone).id)
    assert do_inside(real_store, second, users, LOOK) == before


def test_a_fresh_disk_looks_like_its_base(
    real_store: DiskStore, disk: Disk, users: UserNamespace, debian_base: Path
) -> None:
    top = debian_base.stat()
    says = do_inside(real_store, disk, users, "stat -c '%a %u %g %Y' /").split()
    assert says == [f"{top.st_mode & 0o7777:o}", "0", "0", str(int(top.st_mtime))]
    assert do_inside(real_store, disk, users, "id -u; ls /").split() == [
        "0",
        *sorted(p.name for p in debian_base.iterdir()),
    ]


def test_a_frozen_disk_cannot_be_written(
    real_store: DiskStore, disk: Disk, users: UserNamespace
) -> None:
    do_inside(real_store, disk, users, "echo one > /file")
    frozen = freeze(real_store, disk)
    says = do_inside(real_store, frozen, users, "cat /file; (echo two > /file) 2>&1 || true")
    assert says.startswith("one\n")
    assert "Read-only" in says


def test_a_branch_never_writes_to_its_parent(
    real_store: DiskStore, disk: Disk, users: UserNamespace
) -> None:
    """Bug reports 24 and 25: a fork of a fork sees all ancestors and nothing rolled back."""
    do_inside(real_store, disk, users, "echo A > /A")
    at_a = freeze(real_store, disk)
    do_inside(real_store, disk, users, "echo B > /B")
    branch = real_store.clone(at_a.id)
    do_inside(real_store, branch, users, "echo C > /C")
    at_c = freeze(real_store, branch)
    deeper = real_store.clone(at_c.id)
    do_inside(real_store, deeper, users, "echo D > /D; rm /A")
    letters = "cd /; ls | grep -x '[A-D]' | tr -d '\\n'"
    assert do_inside(real_store, deeper, users, letters) == "CD"
    assert do_inside(real_store, real_store.clone(at_c.id), users, letters) == "AC"
    assert do_inside(real_store, real_store.clone(at_a.id), users, letters) == "A"
    assert do_inside(real_store, disk, users, letters) == "AB"


def test_ten_rounds_of_restore_and_edit(
    real_store: DiskStore, disk: Disk, users: UserNamespace
) -> None:
    """Bug reports 9 and 30: what is changed after a restore is there after the next one."""
    for round in range(10):
        do_inside(real_store, disk, users, f"echo {round} >> /log; echo {round} > /r{round}")
        disk = real_store.clone(freeze(real_store, disk).id)
    expected = "".join(f"{n}\n" for n in range(10))
    assert do_inside(real_store, disk, users, "cat /log; cat /r?") == expected * 2


def test_a_write_just_before_is_there_without_fsync(
    real_store: DiskStore, disk: Disk, users: UserNamespace
) -> None:
    """Bug report 10, on page cache and mapped memory."""
    sums = do_inside(
        real_store,
        disk,
        users,
        """
        head -c 20000000 /dev/urandom > /big 2>/dev/null || python3 -c '
import os; open("/big", "wb").write(os.urandom(20000000))'
        python3 -c '
import mmap
with open("/mapped", "w+b") as f:
    f.truncate(1 << 20)
    mmap.mmap(f.fileno(), 0)[:5] = b"hello"'
        sha256sum /big /mapped
        """,
    )
    clone = real_store.clone(freeze(real_store, disk).id)
    assert do_inside(real_store, clone, users, "sha256sum /big /mapped") == sums


def test_an_unchanged_make_has_nothing_to_do_after_a_restore(
    real_store: DiskStore, disk: Disk, users: UserNamespace
) -> None:
    """Bug report 27: times survive to the nanosecond."""
    do_inside(
        real_store,
        disk,
        users,
        r"""
        mkdir /w && cd /w
        printf 'all: %s\n' "$(seq -s' ' -f 'o%g' 40)" > Makefile
        printf 'o%%: s%%\n\tcp $< $@\n' >> Makefile
        for n in $(seq 40); do echo $n > s$n; done
        make -s
        """,
    )
    clone = real_store.clone(freeze(real_store, disk).id)
    assert "Nothing to be done" in do_inside(real_store, clone, users, "cd /w && make")


def test_the_host_looks_without_following(
    real_store: DiskStore, disk: Disk, users: UserNamespace
) -> None:
    """Bug report 29: no link, no setuid file and no device of an agent acts on the host."""
    do_inside(
        real_store,
        disk,
        users,
        "ln -s /etc/shadow /trap; cp /bin/id /suid; chmod 4755 /suid; echo text > /text",
    )
    frozen = freeze(real_store, disk)
    for each in (disk, frozen):
        with real_store.browse(each) as view:
            assert (view / "text").read_text() == "text\n"
            assert (view / "trap").is_symlink()
            with pytest.raises(OSError, match="symbolic"):
                (view / "trap").read_text()
            with pytest.raises(OSError, match="Read-only"):
                (view / "text").write_text("x")
            with pytest.raises(PermissionError):
                subprocess.run([view / "suid"], check=False)
            options = next(
                line.split()[5]
                for line in Path("/proc/self/mountinfo").read_text().splitlines()
                if line.split()[4] == str(view)
            ).split(",")
            assert {"ro", "nosuid", "nodev", "noexec"} <= set(options)
        assert not view.exists()


def test_changes_are_told_by_kind(real_store: DiskStore, disk: Disk, users: UserNamespace) -> None:
    do_inside(
        real_store,
        disk,
        users,
        "echo 1 > /opt/a; echo 1 > /opt/b; echo 1 > /opt/c; mkdir /opt/d; echo 1 > /opt/d/e",
    )
    a = freeze(real_store, disk)
    clone = real_store.clone(a.id)
    do_inside(
        real_store,
        clone,
        users,
        "rm /opt/a; chmod 600 /opt/b; echo 22 > /opt/c; rm -r /opt/d; rm /etc/debian_version;"
        "ln -s x /opt/l; touch /etc/hostname; echo z > /srv/z",
    )
    b = freeze(real_store, clone)
    told = {c.path: (c.kind, c.file_type) for c in real_store.changes(a.id, b.id)}
    assert told.pop("/etc/hostname", None) in (("added", "file"), ("metadata", "file"))
    assert told == {
        "/opt/a": ("removed", "file"),
        "/opt/b": ("metadata", "file"),
        "/opt/c": ("modified", "file"),
        "/opt/d": ("removed", "directory"),
        "/opt/d/e": ("removed", "file"),
        "/etc/debian_version": ("removed", "file"),
        "/opt/l": ("added", "symlink"),
        "/srv/z": ("added", "file"),
    }
    paths = [c.path for c in real_store.changes(a.id, b.id)]
    assert paths == sorted(paths)
    sizes = {c.path: (c.old_size, c.new_size) for c in real_store.changes(a.id, b.id)}
    assert sizes["/opt/c"] == (2, 3)
    assert list(real_store.changes(b.id, b.id)) == []
    from_base = {c.path: c.kind for c in real_store.changes(None, a.id)}
    assert from_base == {f"/opt/{n}": "added" for n in ("a", "b", "c", "d", "d/e")}


def test_changes_between_families_are_refused(real_store: DiskStore, base: Base) -> None:
    one, two = (real_store.create(real_store.family(task, base)) for task in ("1", "2"))
    with pytest.raises(StoreError):
        real_store.changes(freeze(real_store, one).id, freeze(real_store, two).id)


def test_several_layers_lie_below(
    real_store: DiskStore, users: UserNamespace, debian_base: Path, tmp_path: Path
) -> None:
    top = tmp_path / "layer"
    (top / "etc").mkdir(parents=True)
    (top / "etc/hostname").write_text("upper\n")
    os.mknod(top / "etc/debian_version", 0o20000, 0)
    family = real_store.family("layered", Base("c" * 64, (top, debian_base)))
    disk = real_store.create(family)
    look = (
        "cat /etc/hostname; test -e /etc/debian_version || echo hidden;"
        "test -d /usr/bin && echo below"
    )
    assert do_inside(real_store, disk, users, look) == "upper\nhidden\nbelow\n"
    do_inside(real_store, disk, users, "echo mine > /etc/hostname; echo 1 > /etc/debian_version")
    frozen = freeze(real_store, disk)
    assert {c.path: c.kind for c in real_store.changes(None, frozen.id)} == {
        "/etc/hostname": "modified",
        "/etc/debian_version": "added",
    }


def test_dropping_a_mounted_disk_is_safe(
    real_store: DiskStore, disk: Disk, users: UserNamespace
) -> None:
    fd = real_store.mount(disk, users.fd, 300_000)
    real_store.drop(disk.id)
    os.close(fd)
    with pytest.raises(DiskNotFound):
        real_store.mount(disk, users.fd, 300_000)
    real_store.drop(DiskId(disk.id))
