"""Names that a site gives to images of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from sprout_env.disks import images, open_store
from sprout_env.disks.images.aliases import (
    SEEDBED_BASE,
    SEEDBED_PACKAGES,
    alias,
    aliases,
    full_name,
    resolve,
    unalias,
)
from sprout_env.disks.images.sources import source_alias, source_aliases
from sprout_env.errors import ConfigError, ImageError
from sprout_env.tasks.task import ArchiveImage, DebianImage, FolderImage, NamedImage

DIGEST = "0123456789abcdef" * 4


def test_aliases_survive_and_can_be_forgotten(store_path: Path) -> None:
    assert aliases(store_path) == {}
    alias(store_path, "a/b:*", FolderImage(path=Path("/somewhere")))
    alias(store_path, "exact", DIGEST)
    assert aliases(store_path) == {
        "a/b:*": FolderImage(path=Path("/somewhere")),
        "exact": DIGEST,
    }
    unalias(store_path, "exact")
    unalias(store_path, "exact")
    assert list(aliases(store_path)) == ["a/b:*"]


def test_the_exact_name_wins_then_the_longest_pattern(store_path: Path) -> None:
    alias(store_path, "registry.example/*", ArchiveImage(path=Path("/any.tar")))
    alias(store_path, "registry.example/team/*:1", ArchiveImage(path=Path("/team.tar")))
    alias(store_path, "registry.example/team/x:1", DIGEST)
    assert resolve(store_path, "registry.example/team/x:1") == DIGEST
    assert resolve(store_path, "registry.example/team/y:1") == ArchiveImage(path=Path("/team.tar"))
    assert resolve(store_path, "registry.example/z") == ArchiveImage(path=Path("/any.tar"))
    assert resolve(store_path, "other/z") == NamedImage(name="other/z")


def test_docker_s_short_names_mean_the_same(store_path: Path) -> None:
    assert full_name("debian") == "docker.io/library/debian:latest"
    assert full_name("a/b:c") == "docker.io/a/b:c"
    assert full_name("localhost:5000/a@sha256:1") == "localhost:5000/a@sha256:1"
    alias(store_path, "docker.io/library/debian:*", DIGEST)
    assert resolve(store_path, "debian:bookworm") == DIGEST
    assert resolve(store_path, "debian") == DIGEST
    assert resolve(store_path, "debianx") == NamedImage(name="debianx")


def test_aliases_of_aliases_and_circles(store_path: Path) -> None:
    alias(store_path, "a", NamedImage(name="b"))
    alias(store_path, "b", NamedImage(name="c:1"))
    assert resolve(store_path, "a") == NamedImage(name="c:1")
    alias(store_path, "c:1", NamedImage(name="a"))
    with pytest.raises(ConfigError, match="circle: a -> b -> c:1 -> a"):
        resolve(store_path, "a")


def test_the_seedbed_base_is_made_here_unless_told_otherwise(store_path: Path) -> None:
    expected = DebianImage(release="bookworm", packages=SEEDBED_PACKAGES)
    assert resolve(store_path, SEEDBED_BASE) == expected
    alias(store_path, SEEDBED_BASE, DIGEST)
    assert resolve(store_path, SEEDBED_BASE) == DIGEST


def test_what_cannot_be_is_refused(store_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a base's digest"):
        alias(store_path, "x", "debian:bookworm")
    with pytest.raises(ConfigError, match="needs a name"):
        alias(store_path, " ", DIGEST)
    alias(store_path, "x", DIGEST)
    with pytest.raises(ImageError, match="not in the store"):
        images.base(store_path, NamedImage(name="x"))
    (store_path / "aliases.json").write_text("{broken")
    with pytest.raises(ConfigError, match="not JSON"):
        aliases(store_path)


def test_a_name_nobody_knows_gets_the_remedy(
    store_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(ImageError, match="no Docker engine.*none.sock.*sprout image alias"):
        images.base(store_path, NamedImage(name="registry.example/x:1"))


@pytest.mark.root
def test_names_may_be_given_before_the_store_is_made(store_path: Path, tmp_path: Path) -> None:
    alias(store_path, "x", DIGEST)
    source_alias(store_path, "https://host.example/owner/*", tmp_path)
    store = open_store(store_path, kind="directory")
    try:
        assert aliases(store_path) == {"x": DIGEST}
        assert source_aliases(store_path) == {"https://host.example/owner/*": tmp_path.resolve()}
    finally:
        store.close()
