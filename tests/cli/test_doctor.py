"""``sprout doctor``: what it finds where something is missing, and that its remedies mend it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sprout_env.cli import checks
from sprout_env.disks import open_store
from sprout_env.disks.images.aliases import SEEDBED_BASE, alias
from sprout_env.tasks.task import FolderImage


def sprout(*arguments: str | Path, answers: str = "", **environment: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "sprout_env", *map(str, arguments)],
        input=answers, capture_output=True, text=True, timeout=100, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def found(text: str) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in json.loads(text)}


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "read-only"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", place], check=True)
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.root
def test_a_folder_that_cannot_be_written_is_found(read_only: Path) -> None:
    store = read_only / "store"
    code, out, _ = sprout("doctor", "--store", store, "--json")
    assert code == 1
    assert found(out)["folder"]["state"] == "missing"
    assert "read-only" in found(out)["folder"]["found"]
    for command in (("store", "init"), ("snapshots", "list")):
        code, _, err = sprout(*command, "--store", store)
        assert code == 5, err
        assert "read-only file system" in err


@pytest.mark.root
def test_a_remedy_is_offered_and_run(tmp_path: Path, debian_base: Path) -> None:
    store = tmp_path / "store"
    opened = open_store(store)
    alias(store, SEEDBED_BASE, FolderImage(path=debian_base))
    opened.close()
    _, out, _ = sprout("doctor", "--store", store)
    remedy = f"sprout image build {SEEDBED_BASE} --store {store}"
    assert f"→ `{remedy}`\n" in out, "one line, to be copied"
    _, out, err = sprout("doctor", "--store", store, "--fix", "--json", answers="n\n")
    assert f"run {remedy} ?" in err
    assert found(out)["trial run"]["state"] == "limited"
    _, out, err = sprout("doctor", "--store", store, "--fix", "--yes", "--json")
    assert found(out)["trial run"]["state"] == "ok", err
    assert found(out)["trial run"]["commands"] == []


@pytest.mark.root
def test_a_program_that_is_missing_is_named_with_its_package(tmp_path: Path) -> None:
    # Hidden from this one process, in a mount namespace of its own.
    script = """
    for each in $(which -a mkfs.btrfs); do mount --bind /dev/null "$each"; done
    exec "$0" -m sprout_env doctor --store "$1" --json
    """
    done = subprocess.run(
        ["unshare", "--mount", "bash", "-c", script, sys.executable, tmp_path / "store"],
        env={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    btrfs = found(done.stdout)["btrfs"]
    assert btrfs["state"] == "limited", "copies instead"
    assert btrfs["commands"] == ["apt-get install -y btrfs-progs"]


@pytest.mark.root
def test_without_root_it_says_so_and_reads_no_other_user_s_settings(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    config = tmp_path / "home" / "sprout" / "sprout.toml"
    config.parent.mkdir(parents=True)
    config.write_text("nothing = 1\n")
    config.parent.chmod(0o700)
    drop = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    code = "from sprout_env.cli.settings import file_in_force as f; print(f())"
    done = subprocess.run(
        [*drop, sys.executable, "-c", code],
        env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "home"), "SPROUT_CONFIG": ""},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout == "None\n", done.stderr
    done = subprocess.run(
        [*drop, sys.executable, "-m", "sprout_env", "doctor", "--json", "--store", "/nowhere"],
        env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert found(done.stdout)["root"]["state"] == "missing"
    assert "sudo" in found(done.stdout)["root"]["remedy"]


def test_only_what_harms_nothing_is_run() -> None:
    remedy = "`apt-get install -y gcc`, or `rm -rf /`, then `sprout sweep`"
    assert checks.Check("x", "missing", "", remedy).commands == [
        "apt-get install -y gcc",
        "sprout sweep",
    ]
    assert checks.Check("x", "ok", "", remedy).commands == []
