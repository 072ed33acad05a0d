"""Images out of a real Docker engine: by export, from its btrfs driver, and built by its tools."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sprout_env.disks import images
from sprout_env.disks.images.bases import list_bases
from sprout_env.disks.images.builders import builder_name
from sprout_env.errors import ImageError
from sprout_env.tasks.task import ArchiveImage, DockerfileImage, NamedImage

_WHY_NOT = images.docker_why_not()
pytestmark = [
    pytest.mark.root,
    pytest.mark.docker,
    pytest.mark.skipif(_WHY_NOT is not None, reason=f"no Docker engine answers: {_WHY_NOT}"),
]
IMAGE = "sprout-test/base:1"
CAPABILITY = bytes.fromhex("0100000200200000000000000000000000000000")


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


PROGRAMS = "sh true cp chmod mkdir rmdir rm sleep setcap file"


@pytest.fixture(scope="module")
def small_root(debian_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with a shell and a few programs out of the tests' Debian root."""
    root = tmp_path_factory.mktemp("small") / "root"
    for name in (
        "usr/bin",
        "usr/sbin",
        "usr/lib",
        "usr/lib64",
        "usr/share/doc/x",
        "etc",
        "tmp",
        "srv",
        "dev",
        "proc",
        "sys",
    ):
        (root / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    found = {name: debian_base / folder / name for folder in ("usr/sbin", "usr/bin")
             for name in PROGRAMS.split() if (debian_base / folder / name).exists()}  # fmt: skip
    programs = [f"/{path.relative_to(debian_base)}" for path in found.values()]
    needed = subprocess.run(["chroot", str(debian_base), "ldd", *programs], capture_output=True,
                            text=True, check=False, env={"PATH": "/usr/bin:/usr/sbin"})  # fmt: skip
    libraries = re.findall(r"(/\S+) \(0x", needed.stdout)
    pack = ["chroot", str(debian_base), "tar", "-ch", *programs, *set(libraries)]
    packed = subprocess.run(pack, capture_output=True, check=True).stdout
    unpack = ["tar", "-C", str(root), "-x", "--keep-directory-symlink"]
    subprocess.run(unpack, input=packed, check=True)
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    os.setxattr(root / "usr/bin/true", "security.capability", CAPABILITY)
    return root


@pytest.fixture(scope="module")
def image(small_root: Path) -> Iterator[str]:
    """The small root as an image of the engine."""
    keep = ["--numeric-owner", "--xattrs", "--xattrs-include=*"]
    with subprocess.Popen(
        ["tar", "-C", str(small_root), *keep, "-c", "."], stdout=subprocess.PIPE
    ) as tar:
        subprocess.run(
            ["docker", "import", "-c", "ENV A=b", "-c", "WORKDIR /srv", "-", IMAGE],
            stdin=tar.stdout, check=True, capture_output=True,
        )  # fmt: skip
    yield IMAGE
    docker("rmi", "-f", IMAGE)


def names(root: Path) -> dict[str, tuple[int, ...]]:
    """Type, mode, owner, size and whole-second time of every entry but the runtime's own."""
    found: dict[str, tuple[int, ...]] = {}
    own = {"/.dockerenv", "/etc/mtab", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf"}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder, name)
            inside = f"/{path.relative_to(root)}"
            if inside in own or inside.startswith("/dev/"):
                continue
            seen = path.lstat()
            size = 0 if name in folders else seen.st_size
            mtime = 0 if inside in ("/dev", "/etc", "/proc", "/sys") else int(seen.st_mtime)
            found[inside] = (seen.st_mode, seen.st_uid, seen.st_gid, size, mtime)
    return found


@pytest.mark.parametrize("way", ["export", "as it comes"])
def test_an_image_by_name(
    store_path: Path, image: str, small_root: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "export":
        monkeypatch.setattr(images.docker, "_driver_subvolume", lambda info, diff_ids: None)
    made = images.base(store_path, NamedImage(name=image))
    assert made.config.env["A"] == "b"
    assert made.config.workdir == "/srv"
    root = made.layers[0]
    assert names(root) == names(small_root)
    assert os.getxattr(root / "usr/bin/true", "security.capability") == CAPABILITY
    assert not (root / ".dockerenv").exists()
    ours = docker("ps", "-aq", "--filter", f"ancestor={image}")
    assert ours == "", "no container is left"
    assert images.base(store_path, NamedImage(name=image)) == made


def test_a_known_image_needs_no_engine(
    store_path: Path, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = images.base(store_path, NamedImage(name=image))
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    assert images.base(store_path, NamedImage(name=image)) == made


def test_an_image_that_a_registry_no_longer_has(store_path: Path, image: str) -> None:
    docker("tag", image, "127.0.0.1:9/gone:1")
    made = images.base(store_path, NamedImage(name="127.0.0.1:9/gone:1"))
    docker("rmi", "127.0.0.1:9/gone:1")
    assert images.base(store_path, NamedImage(name="127.0.0.1:9/gone:1")) == made


def test_an_image_that_nobody_has(store_path: Path) -> None:
    name = "127.0.0.1:9/no/such:image"
    with pytest.raises(
        ImageError, match=f"Docker cannot bring it.*`sprout image alias {name} SOURC"
    ):
        images.base(store_path, NamedImage(name=name))


DOCKERFILE = f"""\
FROM {IMAGE}
RUN echo built > /built && mkdir /gone && cp /bin/true /setuid && chmod 4755 /setuid
RUN rmdir /gone && rm -rf /usr/share/doc && setcap cap_net_raw+ep /usr/bin/file
COPY input /copied
ENV B="c d"
USER nobody
SHELL ["/bin/sh", "-ec"]
VOLUME /data
HEALTHCHECK --interval=5s --retries=4 CMD true
ENTRYPOINT ["sh", "-c"]
CMD ["sleep", "1"]
"""


def test_a_dockerfile_by_the_engine_s_builder(store_path: Path, image: str, tmp_path: Path) -> None:
    context = tmp_path / "context"
    context.mkdir()
    (context / "Dockerfile").write_text(DOCKERFILE)
    (context / "input").write_text("in")
    lines: list[str] = []
    wanted = DockerfileImage(context=context)
    made = images.base(store_path, wanted, progress=lines.append)
    assert lines
    root = made.layers[0]
    assert (root / "built").read_text() == "built\n"
    assert (root / "copied").read_text() == "in"
    assert (root / "setuid").stat().st_mode & 0o7777 == 0o4755
    assert os.getxattr(root / "usr/bin/file", "security.capability")[:8] == CAPABILITY[:8]
    assert not (root / "gone").exists()
    assert not (root / "usr/share/doc").exists()
    assert made.config.env["B"] == "c d"
    assert made.config.user == "nobody"
    assert made.config.cmd == ("sleep", "1")
    assert made.config.entrypoint == ("sh", "-c")
    assert made.config.volumes == ("/data",)
    assert made.config.healthcheck is not None
    assert made.config.healthcheck.retries == 4
    assert made.config.healthcheck.command.endswith("true")
    assert str(builder_name(docker=True)) in next(
        path.read_text() for path in (store_path / "logs").glob("build-*.log")
    )
    lines.clear()
    assert images.base(store_path, wanted, progress=lines.append) == made
    assert lines == []
    saved = tmp_path / "saved.tar"
    docker("save", "-o", str(saved), image)
    archived = images.base(store_path, ArchiveImage(path=saved))
    assert archived.config.workdir == "/srv"
    assert (archived.layers[0] / "usr/bin/file").exists()


def test_a_build_that_fails_says_why(store_path: Path, image: str, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {image}\nRUN echo last words; exit 9\n")
    with pytest.raises(ImageError, match=r"(?s)failed.*last words.*log: ") as caught:
        images.base(store_path, DockerfileImage(context=tmp_path))
    assert "last words" in Path(str(caught.value).rpartition("log: ")[2]).read_text()
    assert list_bases(store_path) == ()
