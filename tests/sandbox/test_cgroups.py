"""Cgroups on v1, v2 and hybrid machines: who serves what, the freezer, the kill."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sprout_env.errors import PauseTimeout
from sprout_env.sandbox.native import cgroups
from sprout_env.sandbox.native.cgroups import SandboxCgroups
from sprout_env.sandbox.native.hierarchies import (
    Hierarchy,
    Layout,
    choose,
    layout,
    read_hierarchies,
)


def line(mount: Path, kind: str, options: str, root: str = "/") -> str:
    return f"30 20 0:26 {root} {mount} rw,nosuid shared:9 - {kind} {kind} {options}"


def test_a_hybrid_machine(tmp_path: Path) -> None:
    for name in ("memory", "cpu,cpuacct", "pids", "freezer", "unified", "memory/job/7"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "unified/cgroup.controllers").write_text("hugetlb\n")
    mountinfo = "\n".join(
        [line(tmp_path / n, "cgroup", f"rw,{n}") for n in ("memory", "cpu,cpuacct", "pids")]
        + [line(tmp_path / "freezer", "cgroup", "rw,freezer")]
        + [line(tmp_path / "unified", "cgroup2", "rw"), line(tmp_path, "tmpfs", "rw")]
    )
    own = "5:memory:/job/7\n4:cpu,cpuacct:/\n3:pids:/gone\n2:freezer:/\n0::/\n"
    found = choose(read_hierarchies(mountinfo, own))
    assert found.missing == ()
    assert found.resources["memory"].own == tmp_path / "memory/job/7", "the owner's limits hold"
    assert found.resources["pids"].own == tmp_path / "pids"
    assert found.freezer is not None
    assert found.freezer.version == 1
    assert len(found.hierarchies) == 4


def test_a_v2_machine(tmp_path: Path) -> None:
    own = tmp_path / "user.slice"
    own.mkdir()
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("")
    mountinfo = line(tmp_path, "cgroup2", "rw,nsdelegate")
    found = choose(read_hierarchies(mountinfo, "0::/user.slice\n"))
    assert found.missing == ()
    assert {h.own for h in found.resources.values()} == {tmp_path}, "own folder cannot pass them on"
    assert found.freezer is not None
    assert found.freezer.version == 2
    assert len(found.hierarchies) == 1


def test_a_machine_without_controllers(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("\n")
    found = choose(read_hierarchies(line(tmp_path, "cgroup2", "rw"), "0::/\n"))
    assert found.missing == ("memory", "pids", "cpu")
    assert found.freezer is not None
    assert choose([]) == Layout({}, None)


def freezers() -> list[object]:
    """Each kind of freezer that this machine has, as a layout of its own."""
    if os.geteuid() != 0:
        return []
    found = read_hierarchies(
        Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text()
    )
    usable = [h for h in found if h.version == 2 or "freezer" in h.controllers]
    return [pytest.param(Layout({}, h), id=f"v{h.version}") for h in usable]


@pytest.fixture(params=freezers())
def group(request: pytest.FixtureRequest) -> Iterator[SandboxCgroups]:
    made = SandboxCgroups(64, 50, None, request.param)
    yield made
    made.close()
    assert not list((request.param.freezer.own / "sprout").glob(f"*-{os.getpid()}-*"))


def begin(group: SandboxCgroups, script: str) -> subprocess.Popen[bytes]:
    fds = group.begin_command()
    join = "".join(f"echo 0 >&{fd};" for fd in fds)
    process = subprocess.Popen(["bash", "-c", f"{join} echo; {script}"], pass_fds=fds, stdout=-1)
    assert process.stdout is not None
    assert process.stdout.readline() == b"\n", "it has joined"
    process.stdout.close()
    return process


def beats(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@pytest.mark.root
def test_each_freezer_stops_and_starts(group: SandboxCgroups, tmp_path: Path) -> None:
    beat = tmp_path / "beat"
    process = begin(group, f"while :; do echo >> {beat}; done")
    for _ in range(10):
        before = beats(beat)
        while beats(beat) == before:
            time.sleep(0.001)
        group.pause(2.0)
        stopped = beats(beat)
        time.sleep(0.02)
        assert beats(beat) == stopped
        group.resume()
    assert group.kill_command()
    assert process.wait(5) == -9


@pytest.mark.root
def test_a_command_dies_alone(group: SandboxCgroups) -> None:
    left = begin(group, "sleep 1000 & setsid sleep 1000 & exit")
    assert left.wait(5) == 0
    other = begin(group, "setsid sleep 2000 & sleep 2000")
    time.sleep(0.1)
    assert group.kill_command()
    assert other.wait(5) == -9
    root = group._root
    assert root is not None
    assert len(cgroups._members(root)) == 2, "what the first command left lives on"
    assert group.kill_all()
    assert cgroups._members(root) == set()
    third = begin(group, "exit 3")
    assert third.wait(5) == 3
    assert begin(group, "exit 4").wait(5) == 4
    assert len([p for p in root.iterdir() if p.is_dir()]) <= 2, "empty groups are used again"


@pytest.mark.root
def test_a_pause_that_fails_leaves_nothing_stopped(
    group: SandboxCgroups, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beat = tmp_path / "beat"
    process = begin(group, f"while :; do echo >> {beat}; done")
    monkeypatch.setattr(cgroups, "read_text", lambda path: "FREEZING\nfrozen 0\n")
    with pytest.raises(PauseTimeout):
        group.pause(0.05)
    monkeypatch.undo()
    before = beats(beat)
    deadline = time.monotonic() + 5
    while beats(beat) == before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert beats(beat) > before
    group.kill_all()
    process.wait(5)


@pytest.mark.root
def test_sweeping_spares_the_living_and_foreigners(group: SandboxCgroups) -> None:
    process = begin(group, "sleep 1000")
    freezer = group._layout.freezer
    assert freezer is not None
    used = Layout({}, freezer)
    foreign = freezer.own / "sprout" / "1-1-1-1"
    named = freezer.own / "sprout" / "something-else"
    dead = freezer.own / "sprout" / f"{cgroups._pid_namespace()}-999999-12345-1"
    for folder in (foreign, named, dead):
        folder.mkdir()
    try:
        swept = cgroups.sweep_cgroups(used)
        assert f"cgroup {dead}" in swept
        assert not dead.exists()
        assert foreign.exists()
        assert named.exists()
        assert process.poll() is None
    finally:
        foreign.rmdir()
        named.rmdir()
        group.kill_all()
        process.wait(5)


@pytest.mark.root
def test_the_limits_are_written() -> None:
    found = layout()
    if found.missing:
        pytest.skip(f"this machine cannot limit {found.missing}")
    group = SandboxCgroups(64, 50, 0.5)
    try:
        values = {
            path.name: path.read_text().strip()
            for folder in group._folders.values()
            for path in folder.iterdir()
            if path.name
            in ("memory.limit_in_bytes", "memory.max", "pids.max", "cpu.cfs_quota_us", "cpu.max")
        }
        assert set(values.values()) <= {str(64 << 20), "50", "50000", "50000 100000"}
        assert len(values) == 3
    finally:
        group.close()
        group.close()


def test_hierarchies_are_values() -> None:
    one = Hierarchy(1, Path("/a"), Path("/a"), frozenset())
    assert Layout({"memory": one, "pids": one}, None).hierarchies == (one,)


@pytest.mark.root
def test_starting_and_ending_side_by_side() -> None:
    """The last to end removes the folder that the next one is about to use."""

    def start_and_end(_: int) -> None:
        for _ in range(150):
            SandboxCgroups(64, 32, None).close()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(start_and_end, range(6)))
