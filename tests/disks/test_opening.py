"""Opening and making stores: what is chosen, what is refused, and with which remedy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sprout_env.disks import Base, init_store, kernel, open_store, opening, probe, remove_store
from sprout_env.errors import ConfigError, StoreError, StoreUnavailable
from tests.disks.test_btrfs import new_name

ROOT = Path(__file__).parents[2]


@pytest.mark.root
def test_one_object_per_path(store_path: Path) -> None:
    store = open_store(store_path)
    assert open_store(store_path) is store
    (store_path.parent / "link").symlink_to(store_path)
    assert open_store(store_path.parent / "link") is store
    store.close()
    again = open_store(store_path)
    assert again is not store
    again.close()


@pytest.mark.root
def test_the_default_path_is_read_when_called(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPROUT_STORE", str(store_path))
    store = open_store()
    assert store.path == store_path
    store.close()


@pytest.mark.root
def test_btrfs_is_taken_where_possible(store_path: Path) -> None:
    config = init_store(store_path)
    assert config.kind == "btrfs"
    assert config.why
    with pytest.raises(StoreError, match="already"):
        init_store(store_path)
    with pytest.raises(ConfigError):
        open_store(store_path, kind="directory")


@pytest.mark.root
def test_without_the_binding_it_says_why(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "btrfsutil", None)
    with pytest.raises(StoreUnavailable, match="btrfsutil") as caught:
        init_store(store_path, kind="btrfs")
    assert "libbtrfsutil-dev" in str(caught.value)
    config = init_store(store_path)
    assert config.kind == "directory"
    assert "btrfsutil" in config.why
    findings = {f.what: f for f in probe(store_path)}
    assert not findings["btrfsutil"].ok
    assert findings["btrfsutil"].remedy
    assert "directory" in findings["store"].says


@pytest.mark.root
def test_a_later_format_is_refused(store_path: Path) -> None:
    init_store(store_path)
    file = store_path / "store.json"
    said = json.loads(file.read_text())
    file.write_text(json.dumps({**said, "format": 99, "unknown": 1}))
    with pytest.raises(StoreError, match="format 99"):
        open_store(store_path)
    file.write_text("{")
    with pytest.raises(StoreError, match="cannot be read"):
        open_store(store_path)


@pytest.mark.root
def test_other_peoples_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(StoreError, match="thesis"):
        init_store(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.root
def test_a_network_file_system_is_refused(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "file_system_of", lambda path: "nfs")
    with pytest.raises(StoreUnavailable, match="local folder"):
        init_store(store_path)


@pytest.mark.root
def test_a_folder_that_cannot_be_made_is_no_store() -> None:
    with pytest.raises(StoreUnavailable, match=r"/proc/nope cannot be made.*another folder"):
        open_store(Path("/proc/nope"))


@pytest.mark.root
def test_a_file_system_without_idmapped_mounts_is_refused(tmp_path: Path) -> None:
    """A real one: overlayfs has none."""
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    options = ",".join(
        f"{k}={tmp_path / v}"
        for k, v in (("lowerdir", "lower"), ("upperdir", "upper"), ("workdir", "work"))
    )
    kernel.mount("overlay", str(tmp_path / "merged"), "overlay", 0, options)
    try:
        with pytest.raises(StoreUnavailable, match="idmapped") as caught:
            init_store(tmp_path / "merged/store")
        assert "ext4" in str(caught.value)
    finally:
        kernel.unmount(tmp_path / "merged", lazily=True)


@pytest.mark.root
def test_a_store_in_memory(store_path: Path, small_base: Base) -> None:
    if kernel.kernel_version() < (6, 3):
        with pytest.raises(StoreUnavailable, match=r"no idmapped mounts.*from Linux 6\.3 on tmpfs"):
            init_store(store_path, ram=True, image_gib=1)
        assert not os.path.ismount(store_path)
        return
    config = init_store(store_path, ram=True, image_gib=1, reserve_bytes=1 << 20)
    assert config.ram
    assert os.path.ismount(store_path)
    store = open_store(store_path)
    assert store.kind == "btrfs"
    disk = store.create(store.family("a task", small_base))
    frozen = store.freeze(disk, new_name(), {"snapshot.json": b"x"})
    assert store.read_records(frozen.id, "snapshot.json")[0] == b"x"
    store.drop(disk.id)
    remove_store(store_path)
    assert not store_path.exists()


@pytest.mark.root
def test_sizes_are_checked(store_path: Path) -> None:
    with pytest.raises(ConfigError):
        init_store(store_path, image_gib=0.01)
    with pytest.raises(ConfigError):
        init_store(store_path, kind="memory")
    assert not store_path.exists()


@pytest.mark.root
def test_without_root_there_is_a_remedy(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from sprout_env.disks import open_store, probe\n"
        "from sprout_env.errors import StoreUnavailable\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "try: open_store(Path(sys.argv[2]))\n"
        "except StoreUnavailable as error: print(error)\n"
        "print([f.ok for f in probe(Path('/var/lib/x')) if f.what == 'root'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(ROOT), str(tmp_path / "store")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "run as root" in done.stdout
    assert "memory" in done.stdout
    assert "[False]" in done.stdout


@pytest.mark.root
def test_every_finding_that_is_not_ok_has_a_remedy(tmp_path: Path) -> None:
    findings = probe(tmp_path)
    assert {"root", "kernel", "overlayfs", "btrfs", "file system", "space"} <= {
        f.what for f in findings
    }
    assert all(f.ok or f.remedy for f in findings)
    assert list(tmp_path.iterdir()) == []


def test_the_registry_is_empty_at_import() -> None:
    code = "from sprout_env.disks import opening; assert opening._open == {}"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    assert opening.default_path().is_absolute()
