"""Folders and archives become bases with everything kept, once, whatever else happens."""

from __future__ import annotations

import hashlib
import io
import json
import multiprocessing
import os
import signal
import stat
import struct
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sprout_env.disks import images
from sprout_env.disks.images import base
from sprout_env.disks.images.bases import find_base, keep_base
from sprout_env.disks.store import ImageConfig
from sprout_env.errors import ImageError
from sprout_env.tasks.task import ArchiveImage, FolderImage

pytestmark = pytest.mark.root

CAPABILITY = bytes.fromhex("0100000200200000000000000000000000000000")
ACL = struct.pack("<I", 2) + b"".join(
    struct.pack("<HHI", tag, permissions, id)
    for tag, permissions, id in (
        (0x01, 7, 0xFFFFFFFF),  # owner
        (0x02, 6, 1234),  # user 1234
        (0x04, 5, 0xFFFFFFFF),  # group
        (0x10, 7, 0xFFFFFFFF),  # mask
        (0x20, 5, 0xFFFFFFFF),  # others
    )
)
"""``setfacl -m u:1234:rw`` as the kernel keeps it (linux/posix_acl_xattr.h)."""
"""cap_net_raw+ep as the kernel keeps it."""
ODD_NAME = b"not-utf8-\xff\xfe"


def facts(root: Path) -> dict[bytes, tuple[object, ...]]:
    """Everything that makes up a tree: what the reference's comparator looks at."""
    found: dict[bytes, tuple[object, ...]] = {}
    groups: dict[int, list[bytes]] = {}
    top = len(os.fsencode(root))
    for folder, folders, files in os.walk(os.fsencode(root)):
        for name in [
            b"",
            *files,
            *(f for f in folders if Path(os.fsdecode(folder + b"/" + f)).is_symlink()),
        ]:
            path = folder + b"/" + name if name else folder
            seen = os.lstat(path)
            attributes = {
                key: os.getxattr(path, key, follow_symlinks=False)
                for key in os.listxattr(path, follow_symlinks=False)
            }
            content: object = None
            if stat.S_ISREG(seen.st_mode):
                with Path(os.fsdecode(path)).open("rb") as file:
                    content = (seen.st_size, hashlib.file_digest(file, "sha256").hexdigest())
                groups.setdefault(seen.st_ino, []).append(path[top:])
            elif stat.S_ISLNK(seen.st_mode):
                content = Path(os.fsdecode(path)).readlink()
            sparse = stat.S_ISREG(seen.st_mode) and seen.st_blocks * 512 < seen.st_size / 2
            found[path[top:]] = (
                oct(seen.st_mode), seen.st_uid, seen.st_gid, seen.st_mtime_ns, seen.st_rdev,
                attributes, content, sparse,
            )  # fmt: skip
    for names in groups.values():
        for name in names:
            found[name] = (*found[name], tuple(sorted(names)))
    return found


def odd_tree(root: Path) -> None:
    """A root with one of every kind of thing that gets lost."""
    root.mkdir()
    root.chmod(0o755)
    folder = root / "f"
    folder.mkdir()
    (folder / "a").write_text("a\n")
    os.link(folder / "a", folder / "a2")
    (folder / "dangling").symlink_to("/nowhere/at/all")
    (folder / "up").symlink_to("../../../etc")
    os.utime(folder / "up", ns=(0, 1_600_000_000_222_222_222), follow_symlinks=False)
    os.mkfifo(folder / "fifo")
    os.mknod(folder / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(folder / "loop", stat.S_IFBLK | 0o600, os.makedev(7, 99))
    for name, mode in (("setuid", 0o4755), ("setgid", 0o2755), ("secret", 0)):
        (folder / name).write_bytes(b"\x7fELF")
        (folder / name).chmod(mode)
    (folder / "ping").write_bytes(b"\x7fELF ping")
    os.setxattr(folder / "ping", "security.capability", CAPABILITY)
    os.setxattr(folder / "a", "user.test", b"\x00\xffbytes")
    os.setxattr(folder / "setgid", "system.posix_acl_access", ACL)
    (folder / "sticky").mkdir()
    (folder / "sticky").chmod(0o1777)
    os.chown(folder / "secret", 12345, 54321)
    (folder / "far").mkdir()
    os.chown(folder / "far", 4_000_000, 4_000_000)
    (folder / "far/own").write_text("x")
    os.chown(folder / "far/own", 4_000_000, 4_000_001)
    with (folder / "sparse").open("wb") as file:
        file.seek(50 << 20)
        file.write(b"end")
    Path(os.fsdecode(os.fsencode(folder) + b"/" + ODD_NAME)).write_text("odd")
    (folder / ("n" * 250)).write_text("long")
    (folder / "ünï ☃").write_text("snow")
    deep = folder / ("d" * 120) / ("e" * 120) / ("g" * 100)
    deep.mkdir(parents=True)
    (deep / "file").write_text("deep")
    os.utime(folder / "a", ns=(0, 1_500_000_000_123_456_789))
    for path in (folder / "sticky", folder / "far", folder, root):
        os.utime(path, ns=(0, 1_400_000_000_000_000_007))


def tar_of(root: Path, target: Path, *options: str) -> Path:
    keep = "--numeric-owner --xattrs --xattrs-include=* --acls --sparse --format=posix".split()
    command = ["tar", "-C", str(root), *keep, *options, "-cf", str(target), "."]
    subprocess.run(command, check=True, env={**os.environ, "LC_ALL": "C.UTF-8"})
    return target


def root_of(store: Path, image: ArchiveImage | FolderImage) -> Path:
    return base(store, image).layers[0]


def test_folder_keeps_everything(store_path: Path, tmp_path: Path) -> None:
    odd_tree(tmp_path / "odd")
    root = root_of(store_path, FolderImage(path=tmp_path / "odd"))
    assert facts(root) == facts(tmp_path / "odd")


def test_folder_is_copied_once_and_anew_after_a_change(store_path: Path, tmp_path: Path) -> None:
    odd_tree(tmp_path / "odd")
    image = FolderImage(path=tmp_path / "odd")
    first = base(store_path, image)
    assert base(store_path, image) == first
    assert len(images.list_bases(store_path)) == 1
    os.setxattr(tmp_path / "odd/f/a", "user.test", b"changed")
    second = base(store_path, image)
    assert second.digest != first.digest
    assert os.getxattr(first.layers[0] / "f/a", "user.test") == b"\x00\xffbytes"


def test_nobody_else_reaches_a_base(store_path: Path, tmp_path: Path) -> None:
    odd_tree(tmp_path / "odd")
    root = root_of(store_path, FolderImage(path=tmp_path / "odd"))
    probe = subprocess.run(["stat", str(root / "f/setuid")], user=65534, group=65534, check=False,
                           extra_groups=[], capture_output=True)  # fmt: skip
    assert probe.returncode != 0
    assert b"Permission denied" in probe.stderr


@pytest.mark.parametrize("option", ["", "--gzip", "--zstd", "--xz"])
def test_plain_archive_keeps_everything(store_path: Path, tmp_path: Path, option: str) -> None:
    odd_tree(tmp_path / "odd")
    archive = tar_of(tmp_path / "odd", tmp_path / "odd.tar", *filter(None, [option]))
    root = root_of(store_path, ArchiveImage(path=archive))
    assert facts(root) == facts(tmp_path / "odd")


def test_plain_archive_may_hold_names_that_look_like_whiteouts(
    store_path: Path, tmp_path: Path
) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r/.wh.kept").write_text("kept")
    root = root_of(store_path, ArchiveImage(path=tar_of(tmp_path / "r", tmp_path / "r.tar")))
    assert (root / ".wh.kept").read_text() == "kept"


def layered(tmp_path: Path) -> tuple[list[Path], Path]:
    """Three layers, and the tree that they make together."""
    lower, upper, top = tmp_path / "l1", tmp_path / "l2", tmp_path / "l3"
    odd_tree(lower)
    folder = lower / "f"
    for name in ("gone-dir", "opaque", "dir-to-file", "dir-to-link"):
        (folder / name).mkdir()
        (folder / name / "old").write_text("old")
    for name in ("gone", "file-to-dir"):
        (folder / name).write_text("old")
    (folder / "link-to-dir").symlink_to("/etc")
    (folder / "there-and-back").mkdir()

    upper.mkdir()
    over = upper / "f"
    over.mkdir()
    (over / ".wh.gone-dir").touch()
    (over / ".wh.gone").touch()
    (over / ".wh.never-was").touch()
    (over / "opaque").mkdir()
    (over / "opaque/.wh..wh..opq").touch()
    (over / "opaque/new").write_text("new")
    (over / "dir-to-file").write_text("now a file")
    (over / "file-to-dir").mkdir()
    (over / "file-to-dir/inside").write_text("in")
    (over / "dir-to-link").symlink_to("/etc")
    (over / "link-to-dir").mkdir()
    (over / "link-to-dir/passwd").write_text("ours\n")
    (over / "there-and-back").write_text("a file for a while")
    (over / "a").write_text("a\nmore\n")
    os.link(over / "a", over / "a3")
    os.utime(over, ns=(0, 1_300_000_000_000_000_009))

    top.mkdir()
    (top / "f").mkdir()
    (top / "f/there-and-back").mkdir()
    (top / "f/there-and-back/file").write_text("again")
    # No entry for "f" in the last layer's archive: the folder keeps the second layer's time.
    tars = [tar_of(lower, tmp_path / "l1.tar"), tar_of(upper, tmp_path / "l2.tar")]
    last = tmp_path / "l3.tar"
    subprocess.run(["tar", "-C", str(top), "--format=posix", "--no-recursion", "-cf", str(last),
                    "f/there-and-back", "f/there-and-back/file"], check=True)  # fmt: skip

    tars.append(last)

    expected = tmp_path / "expected"
    subprocess.run(["cp", "-a", str(lower), str(expected)], check=True)
    inside = expected / "f"
    for name in ("gone-dir", "opaque", "dir-to-file", "dir-to-link", "there-and-back"):
        subprocess.run(["rm", "-rf", str(inside / name)], check=True)
    for name in ("gone", "file-to-dir", "link-to-dir", "a"):
        (inside / name).unlink()
    copied = ("opaque", "dir-to-file", "file-to-dir", "dir-to-link", "link-to-dir", "a", "a3")
    subprocess.run(["cp", "-a", *(str(over / name) for name in copied), str(inside)], check=True)
    (inside / "opaque/.wh..wh..opq").unlink()
    subprocess.run(["cp", "-a", str(top / "f/there-and-back"), str(inside)], check=True)
    for path, like in ((inside / "opaque", over / "opaque"), (inside, over), (expected, upper)):
        os.utime(path, ns=(0, like.stat().st_mtime_ns))
        path.chmod(stat.S_IMODE(like.stat().st_mode))
    return tars, expected


CONFIG = {
    "Env": ["PATH=/bin", "FOO=a b=c"], "WorkingDir": "/app", "User": "agent", "Cmd": ["sleep", "1"],
    "Entrypoint": ["/init"], "Volumes": {"/data": {}}, "Labels": {"k": "v"},
}  # fmt: skip
EXPECTED_CONFIG = ImageConfig(
    env={"PATH": "/bin", "FOO": "a b=c"}, workdir="/app", user="agent", cmd=("sleep", "1"),
    entrypoint=("/init",), volumes=("/data",), labels={"k": "v"},
)  # fmt: skip


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def docker_save(tmp_path: Path, layers: list[Path], *, link_equal: bool = False) -> Path:
    folder = tmp_path / "saved"
    folder.mkdir()
    config = {"config": CONFIG, "rootfs": {"diff_ids": [f"sha256:{sha256(p)}" for p in layers]}}
    text = json.dumps(config).encode()
    name = hashlib.sha256(text).hexdigest() + ".json"
    (folder / name).write_bytes(text)
    names: list[str] = []
    for number, layer in enumerate(layers):
        inner = folder / hashlib.sha256(str(number).encode()).hexdigest()
        inner.mkdir()
        (inner / "VERSION").write_text("1.0")
        if link_equal and number and layer == layers[0]:
            (inner / "layer.tar").symlink_to("../" + names[0])
        else:
            (inner / "layer.tar").write_bytes(layer.read_bytes())
        names.append(f"{inner.name}/layer.tar")
    manifest = [{"Config": name, "RepoTags": ["x:latest"], "Layers": names}]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "repositories").write_text("{}")
    subprocess.run(["tar", "-C", str(folder), "-cf", str(tmp_path / "saved.tar"),
                    *(path.name for path in folder.iterdir())], check=True)  # fmt: skip
    return tmp_path / "saved.tar"


def oci_layout(tmp_path: Path, layers: list[Path]) -> Path:
    folder = tmp_path / "oci"
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True)

    def blob(data: bytes, media: str, **more: Any) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(data), **more}

    packed = []
    for number, layer in enumerate(layers):
        program = ["gzip", "zstd", "cat"][number % 3]
        command = [program] if program == "cat" else [program, "-c"]
        data = subprocess.run([*command, str(layer)], check=True, capture_output=True).stdout
        packed.append(blob(data, "application/vnd.oci.image.layer.v1.tar"))
    config = {"config": CONFIG, "rootfs": {"diff_ids": [f"sha256:{sha256(p)}" for p in layers]}}
    manifest = {"config": blob(json.dumps(config).encode(), "config"), "layers": packed}
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    other = blob(b'{"layers": []}', "manifest", platform={"os": "linux", "architecture": "s390x"})
    proof = blob(b"{}", "manifest", platform={"os": "unknown", "architecture": "unknown"})
    mine = blob(json.dumps(manifest).encode(), "manifest",
                platform={"os": "linux", "architecture": machine})  # fmt: skip
    inner = blob(json.dumps({"manifests": [other, mine, proof]}).encode(), "index")
    (folder / "index.json").write_text(json.dumps({"manifests": [inner]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


def test_docker_save_applies_layers(store_path: Path, tmp_path: Path) -> None:
    layers, expected = layered(tmp_path)
    made = base(store_path, ArchiveImage(path=docker_save(tmp_path, layers)))
    assert facts(made.layers[0]) == facts(expected)
    assert made.config == EXPECTED_CONFIG


def test_docker_save_with_linked_layers(store_path: Path, tmp_path: Path) -> None:
    layers, _ = layered(tmp_path)
    archive = docker_save(tmp_path, [layers[0], layers[1], layers[0]], link_equal=True)
    root = root_of(store_path, ArchiveImage(path=archive))
    assert (root / "f/gone").read_text() == "old"


@pytest.mark.parametrize("form", ["layout", "tar", "tar.gz"])
def test_oci_applies_layers(store_path: Path, tmp_path: Path, form: str) -> None:
    layers, expected = layered(tmp_path)
    path = oci_layout(tmp_path, layers)
    if form != "layout":
        archive = tmp_path / f"oci.{form}"
        subprocess.run(["tar", "-C", str(path), "-caf", str(archive), "."], check=True)
        path = archive
    made = base(store_path, ArchiveImage(path=path))
    assert facts(made.layers[0]) == facts(expected)
    assert made.config == EXPECTED_CONFIG


def test_damaged_layer_is_refused(store_path: Path, tmp_path: Path) -> None:
    layers, _ = layered(tmp_path)
    layout = oci_layout(tmp_path, layers[:1])
    blob = max((layout / "blobs/sha256").iterdir(), key=lambda path: path.stat().st_size)
    blob.write_bytes(blob.read_bytes()[:-1] + b"?")
    with pytest.raises(ImageError, match="damaged"):
        base(store_path, ArchiveImage(path=layout))
    assert images.list_bases(store_path) == ()


def test_second_use_of_an_archive_does_not_read_it(store_path: Path, tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r/big").write_bytes(os.urandom(64 << 20))
    image = ArchiveImage(path=tar_of(tmp_path / "r", tmp_path / "r.tar"))
    first = base(store_path, image)
    before = Path("/proc/self/io").read_text().splitlines()[0]
    assert base(store_path, image) == first
    after = Path("/proc/self/io").read_text().splitlines()[0]
    assert int(after.split()[1]) - int(before.split()[1]) < 1 << 20


def _member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode = kind, target, 0o755
    return member


def _victim(members: list[tarfile.TarInfo], path: Path) -> Path:
    with tarfile.open(path, "w") as tar:
        for member in members:
            data = b"HOSTILE" if member.isreg() else b""
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


HOSTILE: dict[str, Callable[[str], list[tarfile.TarInfo]]] = {
    "absolute": lambda to: [_member(f"{to}/file")],
    "dots": lambda to: [_member("../" * 12 + f"{to.lstrip('/')}/file")],
    "link then write": lambda to: [_member("x", tarfile.SYMTYPE, to), _member("x/file")],
    "link by dots": lambda to: [
        _member("x", tarfile.SYMTYPE, "../" * 12 + to.lstrip("/")),
        _member("x/file"),
    ],
    "link then folder": lambda to: [
        _member("x", tarfile.SYMTYPE, to),
        _member("x", tarfile.DIRTYPE),
        _member("x/file"),
    ],
    "link to link": lambda to: [
        _member("x", tarfile.SYMTYPE, to),
        _member("y", tarfile.SYMTYPE, "x"),
        _member("y/file"),
    ],
    "hard link out": lambda to: [
        _member("x", tarfile.LNKTYPE, f"{to}/file"),
        _member("x"),
    ],
    "hard link by dots": lambda to: [
        _member("x", tarfile.LNKTYPE, "../" * 12 + f"{to.lstrip('/')}/file"),
        _member("x"),
    ],
    "hard link through link": lambda to: [
        _member("l", tarfile.SYMTYPE, to),
        _member("x", tarfile.LNKTYPE, "l/file"),
        _member("x"),
    ],
    "file over link": lambda to: [
        _member("x", tarfile.SYMTYPE, f"{to}/file"),
        _member("x"),
    ],
}


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of the host that must stay as it is."""
    folder = tmp_path / "outside"
    folder.mkdir(mode=0o711)
    (folder / "file").write_text("the host's")
    os.utime(folder, ns=(0, 10**18 + 5))
    return folder


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("form", ["plain", "layer"])
def test_hostile_archive_harms_nothing(
    store_path: Path, tmp_path: Path, outside: Path, case: str, form: str
) -> None:
    before = facts(outside)
    archive = _victim(HOSTILE[case](str(outside)), tmp_path / "bad.tar")
    if form == "layer":
        archive = docker_save(tmp_path, [archive])
    image = ArchiveImage(path=archive)
    if case == "absolute":
        # What is neither '..' nor through a link lands inside, as with Docker.
        root = base(store_path, image).layers[0]
        assert (root / str(outside).lstrip("/") / "file").read_bytes() == b"HOSTILE"
    else:
        with pytest.raises(ImageError, match=r"refused|tar ended with"):
            base(store_path, image)
        assert images.list_bases(store_path) == ()
        assert not list((store_path / "bases").glob(".making-*"))
    assert facts(outside) == before


LATER: dict[str, tuple[str | None, list[tarfile.TarInfo]]] = {
    "write through": ("goes through", [_member("x/file")]),
    "whiteout through": (None, [_member("x/.wh.file")]),
    "opaque through": (None, [_member("x/.wh..wh..opq")]),
    "folder instead": (None, [_member("x", tarfile.DIRTYPE), _member("x/mine")]),
    "hard link through": ("goes through", [_member("h", tarfile.LNKTYPE, "x/file")]),
    "whiteout of ..": ("impossible whiteout", [_member(".wh...")]),
}


@pytest.mark.parametrize("case", LATER)
def test_links_of_a_lower_layer_lead_nowhere(
    store_path: Path,
    tmp_path: Path,
    outside: Path,
    case: str,
) -> None:
    before = facts(outside)
    first = _victim([_member("x", tarfile.SYMTYPE, str(outside))], tmp_path / "1.tar")
    refusal, members = LATER[case]
    second = _victim(members, tmp_path / "2.tar")
    image = ArchiveImage(path=docker_save(tmp_path, [first, second]))
    if refusal is None:
        root = base(store_path, image).layers[0]
        assert (root / "x").is_symlink() == (case != "folder instead")
    else:
        with pytest.raises(ImageError, match=refusal):
            base(store_path, image)
    assert facts(outside) == before


def test_tar_itself_cannot_write_outside(tmp_path: Path, outside: Path) -> None:
    """The second wall: even a program that tries is refused by the kernel."""
    from sprout_env.disks.images.unpack import confined

    root = tmp_path / "root"
    root.mkdir()
    before = facts(outside)
    script = (
        f"echo x > ok; echo x > {outside}/new; chmod 0 {outside}/file; chown 5 {outside};"
        f"rm {outside}/file; touch {outside}; ln {outside}/file stolen"
    )
    done = subprocess.run(confined(root, ["sh", "-c", script]), capture_output=True, check=False)
    assert (root / "ok").exists()
    assert not (root / "stolen").exists()
    assert done.stderr.count(b"Read-only file system") == 5
    assert facts(outside) == before


@pytest.mark.parametrize("evil", ["../../../../etc/passwd", "/etc/passwd", "link"])
def test_manifest_cannot_name_files_of_the_host(
    store_path: Path, tmp_path: Path, evil: str
) -> None:
    layers, _ = layered(tmp_path)
    folder = tmp_path / "evil"
    folder.mkdir()
    name = "0" * 64
    (folder / name).symlink_to("/etc/passwd")
    chosen = name if evil == "link" else evil
    manifest = [{"Config": chosen, "Layers": [chosen]}]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    archive = tmp_path / "evil.tar"
    subprocess.run(
        ["tar", "-C", str(folder), "-cf", str(archive), "manifest.json", name], check=True
    )
    with pytest.raises(ImageError, match="outside the archive"):
        base(store_path, ArchiveImage(path=archive))


@pytest.mark.parametrize("content", [b"", b"not a tar at all" * 100, b"\x1f\x8bnot gzip"])
def test_what_is_no_archive_is_said_so(store_path: Path, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "junk"
    path.write_bytes(content)
    with pytest.raises(ImageError, match="junk"):
        base(store_path, ArchiveImage(path=path))
    with pytest.raises(ImageError, match="no such archive"):
        base(store_path, ArchiveImage(path=tmp_path / "missing"))
    with pytest.raises(ImageError, match="not a folder"):
        base(store_path, FolderImage(path=tmp_path / "missing"))


def _make_slowly(store: Path, digest: str, seconds: float, count: Path) -> None:
    def fill(root: Path, lock_fd: int) -> ImageConfig:
        (root / "half").write_text("half")
        with count.open("a") as file:
            file.write("made\n")
        time.sleep(seconds)
        (root / "whole").write_text("whole")
        return ImageConfig()

    keep_base(store, digest, fill, source="test")


DIGEST = "ab" * 32


def test_two_makers_make_one(store_path: Path, tmp_path: Path) -> None:
    count = tmp_path / "count"
    spawn = multiprocessing.get_context("spawn")
    makers = [
        spawn.Process(target=_make_slowly, args=(store_path, DIGEST, 0.5, count)) for _ in range(4)
    ]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join(100)
        assert maker.exitcode == 0
    assert count.read_text() == "made\n"
    found = find_base(store_path, DIGEST)
    assert found is not None
    assert (found.layers[0] / "whole").exists()


def test_a_killed_maker_leaves_what_sweep_removes(store_path: Path, tmp_path: Path) -> None:
    count = tmp_path / "count"
    spawn = multiprocessing.get_context("spawn")
    maker = spawn.Process(target=_make_slowly, args=(store_path, DIGEST, 60.0, count))
    maker.start()
    deadline = time.monotonic() + 100
    while not count.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert images.sweep_bases(store_path) == (), "what is being made is left alone"
    assert maker.pid is not None
    os.kill(maker.pid, signal.SIGKILL)
    maker.join(30)
    assert find_base(store_path, DIGEST) is None
    swept = images.sweep_bases(store_path)
    assert len(swept) == 1
    assert not list((store_path / "bases").glob(".making-*"))
    _make_slowly(store_path, DIGEST, 0.0, count)
    assert find_base(store_path, DIGEST) is not None


def test_a_failure_leaves_nothing(store_path: Path) -> None:
    def fill(root: Path, lock_fd: int) -> ImageConfig:
        (root / "half").write_text("half")
        raise ImageError("test", "went wrong")

    with pytest.raises(ImageError, match="went wrong"):
        keep_base(store_path, DIGEST, fill, source="test")
    assert not [path for path in (store_path / "bases").iterdir() if "ab" in path.name]


def test_drop_refuses_a_layer_in_use(store_path: Path) -> None:
    def fill(root: Path, lock_fd: int) -> ImageConfig:
        return ImageConfig(workdir="/w")

    child = "cd" * 32
    keep_base(store_path, DIGEST, fill, source="lower")
    made = keep_base(store_path, child, fill, source="upper", parents=[DIGEST])
    assert [path.parent.name for path in made.layers] == [child, DIGEST]
    assert made.config.workdir == "/w"
    with pytest.raises(ImageError, match="is a layer of"):
        images.drop_base(store_path, DIGEST)
    images.drop_base(store_path, child)
    images.drop_base(store_path, DIGEST)
    images.drop_base(store_path, DIGEST)
    assert images.list_bases(store_path) == ()
