"""A Debian root made here, for real; and what is taken from the host for it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from sprout_env.disks import images
from sprout_env.disks.images.debian import CA_BUNDLE, CA_VARIABLES, custom_ca_bundle, host_sources
from sprout_env.errors import ImageError
from sprout_env.tasks.task import DebianImage

_MAKERS = [name for name in ("mmdebstrap", "debootstrap") if shutil.which(name)]


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("maker", ["mmdebstrap", "debootstrap"])
def test_a_debian_root_is_made(
    store_path: Path, maker: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if maker not in _MAKERS:
        pytest.skip(f"{maker} is not installed")
    if maker == "debootstrap":
        _hide(monkeypatch, tmp_path, "mmdebstrap")
    image = DebianImage(release="bookworm", packages=("python3-minimal", "ca-certificates"))
    lines: list[str] = []
    made = images.base(store_path, image, progress=lines.append)
    assert lines
    root = made.layers[0]
    assert "bookworm" in (root / "etc/os-release").read_text()
    assert (root / "usr/bin/python").readlink() == Path("python3")
    assert not list((root / "var/cache/apt/archives").glob("*.deb"))
    assert not [path for path in (root / "var/lib/apt/lists").iterdir() if path.is_file()]
    assert (root / "etc/hostname").read_text() == "debian\n"
    said = subprocess.run(
        ["chroot", str(root), "python", "-c", "print(6 * 7)"],
        capture_output=True,
        check=False,
        env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin"},
    )
    assert said.stderr == b""
    assert said.stdout == b"42\n"
    bundle = custom_ca_bundle()
    if bundle is None:
        assert made.config.env == {}
    else:
        assert (root / CA_BUNDLE.lstrip("/")).read_bytes() == bundle.read_bytes()
        assert made.config.env == dict.fromkeys(CA_VARIABLES, CA_BUNDLE)
    sources = host_sources("bookworm")
    if sources:
        listed = (root / "etc/apt/sources.list").read_text().splitlines()
        assert listed == [line for entry, _ in sources for line in entry]
        assert not list((root / "etc/apt/sources.list.d").iterdir())
    lines.clear()
    assert images.base(store_path, image, progress=lines.append) == made
    assert lines == []


def _hide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str) -> None:
    """Make a PATH that has everything but one program."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for place in ("/usr/sbin", "/usr/bin", "/sbin", "/bin"):
        for path in Path(place).iterdir():
            if path.name != program and not (folder / path.name).is_symlink():
                (folder / path.name).symlink_to(path)
    monkeypatch.setenv("PATH", str(folder))


@pytest.mark.root
@pytest.mark.parametrize("maker", ["mmdebstrap", "none"])
def test_a_root_that_cannot_be_made(
    store_path: Path, maker: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if maker == "none":
        monkeypatch.setenv("PATH", str(tmp_path))
        said = "neither mmdebstrap nor debootstrap is installed"
    elif not _MAKERS:
        pytest.skip("neither mmdebstrap nor debootstrap is installed")
    else:
        said = r"failed: exit code .*log: "
    with pytest.raises(ImageError, match=f"(?s){said}"):
        images.base(store_path, DebianImage(release="nosuchrelease"))
    assert images.list_bases(store_path) == ()


@pytest.mark.root
def test_package_names_are_no_options(store_path: Path) -> None:
    with pytest.raises(ImageError, match="not a package's name"):
        images.base(store_path, DebianImage(packages=("git", "x --variant=y")))


def test_the_digest_knows_release_and_packages(store_path: Path) -> None:
    from sprout_env.disks.images.debian import debian_facts

    one = debian_facts(DebianImage(packages=("a", "b")))
    assert debian_facts(DebianImage(packages=("b", "a", "a"))) == one
    assert debian_facts(DebianImage(packages=("a",))) != one
    assert debian_facts(DebianImage(release="trixie", packages=("a", "b"))) != one
