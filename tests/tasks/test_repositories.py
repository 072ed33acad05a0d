"""Tasks from git repositories: real ones, over ``file://``."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import sprout_env
from sprout_env.errors import ConfigError, TaskNotFound
from sprout_env.tasks import find_suite
from sprout_env.tasks.repositories import Address, local_copy, parse_address

Writer = Callable[..., Path]


@pytest.mark.parametrize(
    ("told", "address"),
    [
        ("https://h.io/o/n", Address("https://h.io/o/n")),
        ("https://h.io/o/n.git@v1.0#a/b", Address("https://h.io/o/n.git", "v1.0", "a/b")),
        ("https://me@h.io/o/n@feature/x", Address("https://me@h.io/o/n", "feature/x")),
        ("https://h.io/o/n#/a/", Address("https://h.io/o/n", "HEAD", "a")),
        ("https://h.io/o/n/tree/main/a/b", Address("https://h.io/o/n", "main", "a/b")),
        ("https://h.io/o/n/tree/v2", Address("https://h.io/o/n", "v2")),
        ("git@h.io:o/n.git", Address("git@h.io:o/n.git")),
        ("git@h.io:o/n.git@main#t", Address("git@h.io:o/n.git", "main", "t")),
        ("ssh://git@h.io:22/o/n@v1", Address("ssh://git@h.io:22/o/n", "v1")),
        ("file:///srv/n.git", Address("file:///srv/n.git")),
        ("/srv/n.git", None),
        ("tasks@v1#x", None),
        ("ext::sh -c true", None),
        ("--upload-pack=x", None),
    ],
)  # fmt: skip
def test_addresses(told: str, address: Address | None) -> None:
    assert parse_address(told) == address
    if address is not None:
        assert parse_address(str(address)) == address


def test_an_address_stays_in_its_repository() -> None:
    with pytest.raises(ConfigError, match="leads out"):
        parse_address("https://h.io/o/n#../x")


def git(*arguments: str | Path) -> str:
    who = {f"GIT_{role}_{what}": "t@t.io" for role in ("AUTHOR", "COMMITTER")
           for what in ("NAME", "EMAIL")}  # fmt: skip
    done = subprocess.run(
        ["git", "-c", "init.defaultBranch=main", *map(str, arguments)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **who},
    )
    return done.stdout.strip()


@pytest.fixture
def published(tmp_path: Path, write_task: Writer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bare repository with two commits, the first of them tagged; its tasks lie in ``sets/a``."""
    work, bare = tmp_path / "work", tmp_path / "public.git"
    git("init", "-q", work)
    (work / "sets").mkdir()
    shutil.copytree(write_task(name="first").parent, work / "sets/a")
    git("-C", work, "add", ".")
    git("-C", work, "commit", "-qm", "one")
    git("-C", work, "tag", "v1")
    shutil.copytree(write_task(name="second"), work / "sets/a/second")
    git("-C", work, "add", ".")
    git("-C", work, "commit", "-qm", "two")
    git("clone", "-q", "--bare", work, bare)
    monkeypatch.setenv("SPROUT_TASKS", str(tmp_path / "kept"))
    return bare


def test_a_suite_from_a_repository(published: Path, tmp_path: Path) -> None:
    url = f"file://{published}"
    suite = find_suite("harbor", f"{url}#sets/a")
    assert suite.slugs() == ("first", "second")
    head = git("-C", published, "rev-parse", "main")
    assert suite.root == tmp_path / f"kept/public@{head[:12]}/sets/a"
    assert suite.task("first").metadata["source"] == {"url": url, "ref": "HEAD", "commit": head}
    tagged = find_suite("harbor", f"{url}@v1#sets/a")
    assert tagged.slugs() == ("first",)
    assert not list((tmp_path / "kept").rglob(".git"))
    first = git("-C", published, "rev-parse", "v1")
    # Nothing of this is asked for again: neither what a ref meant, nor a whole commit.
    shutil.rmtree(published)
    for ref in ("", f"@{head}"):
        assert find_suite("harbor", f"{url}{ref}#sets/a").slugs() == ("first", "second")
    assert find_suite("harbor", f"{url}@{first}#sets/a").slugs() == ("first",)
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == sorted(
        [".pins", f"public@{head[:12]}", f"public@{first[:12]}"]
    )


def test_a_ref_means_what_it_meant_until_it_is_pulled_again(
    published: Path, tmp_path: Path
) -> None:
    address = parse_address(f"file://{published}@main#sets/a")
    assert address is not None
    before = local_copy(address)
    work = tmp_path / "work"
    git("-C", work, "rm", "-rq", "sets/a/second")
    git("-C", work, "commit", "-qm", "three")
    git("-C", work, "push", "-q", published, "main")
    assert local_copy(address) == before
    folder, pinned = local_copy(address, again=True)
    assert pinned.ref == git("-C", published, "rev-parse", "main")
    assert find_suite("harbor", folder).slugs() == ("first",)
    assert local_copy(address) == (folder, pinned)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("@no-such", "couldn't find remote ref no-such; name a branch, a tag or a whole commit"),
        (f"@{'0' * 40}", "name a branch, a tag or a whole commit"),
        ("#no-such", "the repository has no folder no-such"),
        ("", "it holds no task.toml and no rows; its folders sets/a do"),
        ("-gone", "not appear to be a git repository; where its host cannot be reached, bring"),
    ],
)  # fmt: skip
def test_what_is_said_when_it_fails(published: Path, tmp_path: Path, more: str, said: str) -> None:
    with pytest.raises(TaskNotFound) as caught:
        find_suite("harbor", f"file://{published}{more}")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    left = [path.name for path in (tmp_path / "kept").iterdir() if "@" not in path.name]
    assert left in ([], [".pins"])


def test_without_git_it_is_said(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TaskNotFound, match="apt-get install git"):
        find_suite("harbor", f"file://{published}")


def test_an_unreachable_host_is_said_at_once(published: Path) -> None:
    with pytest.raises(TaskNotFound, match=r"bring a clone from elsewhere"):
        find_suite("harbor", "https://host.invalid/org/name")


@pytest.mark.root
def test_an_env_over_a_repository(published: Path, tmp_path: Path, shared_store: Path) -> None:
    task = tmp_path / "work/sets/a/first/task.toml"
    task.write_text('[environment]\ndocker_image = "test/base"\nnetwork_mode = "no-network"\n')
    shutil.rmtree(tmp_path / "work/sets/a/first/environment")
    work = tmp_path / "work"
    git("-C", work, "commit", "-qam", "run it")
    git("-C", work, "push", "-q", published, "main")
    url = f"file://{published}@main#sets/a"
    env = sprout_env.make("sprout/Harbor-v0", tasks_path=url, task="first", store=str(shared_store))
    _, info = env.reset()
    assert info["task"] == "first"
    here = sprout_env.snapshot(env)
    env.close()
    other = sprout_env.make("sprout/Harbor-v0", tasks_path=url, store=str(shared_store))
    obs, _ = sprout_env.restore(other, here)
    assert obs["turn"] == 0
    assert other.step("submit")[1] == 1.0
    other.close()
    sprout_env.release(here, store=shared_store)
