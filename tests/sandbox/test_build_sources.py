"""Source aliases, image aliases and a site's certificates, in builds and in verdicts."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sprout_env.disks import images, open_store
from sprout_env.disks.images.debian import CA_BUNDLE, CA_VARIABLES
from sprout_env.disks.images.sources import (
    SUBSTITUTED,
    source_alias,
    source_aliases,
    source_unalias,
)
from sprout_env.disks.store import Base, DiskStore
from sprout_env.errors import ConfigError, ImageError
from sprout_env.grading import nop
from sprout_env.sandbox import SandboxConfig, start
from sprout_env.sandbox.build import base_for, substitutions
from sprout_env.sandbox.network import NetworkConfig
from sprout_env.tasks.harbor import load_task
from sprout_env.tasks.task import DockerfileImage, FolderImage, NamedImage
from tests.processes import running

pytestmark = [pytest.mark.root, pytest.mark.slow]

HOST = "https://git.invalid"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, debian_base: Path) -> Iterator[DiskStore]:
    path = tmp_path_factory.mktemp("sources") / "store"
    opened = open_store(path)
    images.alias(path, "our/debian", FolderImage(path=debian_base))
    yield opened
    opened.close()
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two repositories, one of them bare and with ``.git`` in its name."""
    folder = tmp_path_factory.mktemp("upstream")
    git = ["git", "-c", "user.name=A", "-c", "user.email=a@b.invalid"]
    subprocess.run([*git, "init", "-q", "-b", "trunk", folder / "tool"], check=True)
    (folder / "tool/VERSION").write_text("1.2\n")
    subprocess.run([*git, "-C", folder / "tool", "add", "-A"], check=True)
    subprocess.run([*git, "-C", folder / "tool", "commit", "-q", "-m", "one"], check=True)
    subprocess.run(
        [*git, "clone", "-q", "--bare", folder / "tool", folder / "bare.git"], check=True
    )
    return folder


def dockerfile(folder: Path, text: str) -> DockerfileImage:
    folder.mkdir()
    (folder / "Dockerfile").write_text(text)
    return DockerfileImage(context=folder)


def read(store: DiskStore, base: Base, command: str) -> str:
    family = store.family("cd" * 32, base)
    disk = store.create(family)
    sandbox = start(store, disk, SandboxConfig(env=base.config.env), fresh=True)
    try:
        done = sandbox.run(command, timeout_s=60)
        assert done.exit_code == 0, done.stderr.decode()
        return done.stdout.decode()
    finally:
        sandbox.close()
        store.drop(disk.id)
        store.drop_family(family.id)


def test_local_clones_stand_for_a_git_host(
    store: DiskStore, upstream: Path, tmp_path: Path
) -> None:
    source_alias(store.path, f"{HOST}/them/*", upstream)
    source_alias(store.path, f"{HOST}/other/one", upstream / "tool")
    image = dockerfile(
        tmp_path / "context",
        f"""\
FROM our/debian
RUN git clone {HOST}/them/tool /a && git -C /a remote show origin | grep 'HEAD branch: trunk'
RUN git clone --depth 1 {HOST}/them/bare.git /b && git clone git@git.invalid:them/tool.git /c
RUN git clone {HOST}/other/one /d && git clone {HOST}/other/one.git /e
""",
    )
    base = base_for(store, image)

    assert read(store, base, "cat /?/VERSION") == "1.2\n" * 5
    assert "git.invalid" in read(store, base, "git -C /a remote get-url origin")
    # What led there is not left in the image.
    assert "127.0.0.1" not in read(store, base, "cat /root/.gitconfig /etc/gitconfig 2>&1 || true")
    expected = (f"{HOST}/other/one", f"{HOST}/them/*", "our/debian")
    assert substitutions(store, image, base) == expected
    child = dockerfile(tmp_path / "child", "FROM scratch\nCOPY --from=our/debian /bin/true /t\n")
    assert base_for(store, child).config.labels[SUBSTITUTED] == "our/debian"
    # Another folder for the same address is another image.
    source_alias(store.path, f"{HOST}/other/one", upstream / "bare.git")
    assert base_for(store, image).digest != base.digest
    source_unalias(store.path, f"{HOST}/other/one")
    assert list(source_aliases(store.path)) == [f"{HOST}/them/*"]


def test_an_alias_that_nobody_asked_for_marks_nothing(
    store: DiskStore, upstream: Path, tmp_path: Path, debian_base: Path
) -> None:
    source_alias(store.path, f"{HOST}/them/*", upstream)
    image = dockerfile(tmp_path / "context", "FROM scratch\nCOPY Dockerfile /x\n")
    assert substitutions(store, image, base_for(store, image)) == ()
    folder = FolderImage(path=debian_base)
    assert substitutions(store, folder, base_for(store, folder)) == ()


def test_what_is_not_among_the_clones_fails_with_gits_own_words(
    store: DiskStore, upstream: Path, tmp_path: Path
) -> None:
    source_alias(store.path, f"{HOST}/them/*", upstream)
    image = dockerfile(
        tmp_path / "context", f"FROM our/debian\nRUN git clone {HOST}/them/missing /m\n"
    )
    with pytest.raises(ImageError, match="git clone .*missing"):
        base_for(store, image)
    assert running("git.daemon.*sprout-sources") == []


@pytest.mark.parametrize("pattern", ["", "git.invalid/x", f"{HOST}/a*b/c", f"{HOST}/"])
def test_what_is_no_address_is_refused(store: DiskStore, tmp_path: Path, pattern: str) -> None:
    with pytest.raises(ConfigError, match="is not like"):
        source_alias(store.path, pattern, tmp_path)


def test_certificates_are_there_while_building_and_not_in_the_image(
    store: DiskStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "site.pem"
    bundle.write_text("-----site-----\n")
    monkeypatch.setenv("SPROUT_CA_BUNDLE", str(bundle))
    monkeypatch.setenv("SPROUT_NETWORK_ENV", "SITE_INDEX,NOT_SET")
    monkeypatch.setenv("SITE_INDEX", "index.invalid")
    names = " ".join(CA_VARIABLES)
    image = dockerfile(
        tmp_path / "context",
        f"""\
FROM our/debian
RUN cp "$PIP_CERT" /seen && for n in {names}; do printenv $n; done > /names && printenv SITE_INDEX
RUN --network=none ! printenv PIP_CERT
""",
    )
    base = base_for(store, image)
    # The base may have a bundle of its own at this place: the one of the build is not in it.
    left = f"grep -c -- -----site----- {CA_BUNDLE} 2>/dev/null || true"
    told = read(store, base, f"cat /seen /names; {left}")
    assert told.startswith("-----site-----\n" + f"{CA_BUNDLE}\n" * 6)
    assert told.splitlines()[7:] in ([], ["0"])
    own = {"PIP_CERT": "/own"}
    assert NetworkConfig.here().variables(own) == {"SITE_INDEX": "index.invalid"}


def test_an_image_that_no_registry_has_is_built_from_the_tasks_dockerfile(
    store: DiskStore, tmp_path: Path
) -> None:
    task = tmp_path / "late-image"
    (task / "environment").mkdir(parents=True)
    (task / "tests").mkdir()
    (task / "instruction.md").write_text("Do nothing.\n")
    (task / "environment/Dockerfile").write_text("FROM our/debian\nRUN echo agent > /agent\n")
    # Trap 11: the verifier's image is FROM the agent's, whose tag exists nowhere.
    (task / "tests/Dockerfile").write_text("FROM registry.invalid/late:1\nCOPY test.sh /tests/\n")
    (task / "tests/test.sh").write_text(
        "#!/bin/bash\ngrep -c agent /agent > /logs/verifier/reward.txt\n"
    )
    (task / "task.toml").write_text(
        '[environment]\ndocker_image = "registry.invalid/late:1"\n'
        '[verifier]\nenvironment_mode = "separate"\n'
    )
    loaded = load_task(task)
    assert isinstance(loaded.image, NamedImage)
    base = base_for(store, loaded.image)
    assert read(store, base, "cat /agent") == "agent\n"
    verdict = nop(store, loaded, base)
    assert (verdict.outcome, verdict.reward) == ("passed", 1.0), verdict
    assert verdict.environment == "substituted"
