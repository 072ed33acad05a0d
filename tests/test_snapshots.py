"""The tree of snapshots against a model, with a crash between any two steps."""

from __future__ import annotations

import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from sprout_env.catalogue import Catalogue
from sprout_env.disks.memory import MemoryStore
from sprout_env.disks.store import Disk, FrozenDiskId
from sprout_env.errors import (
    PauseTimeout,
    SnapshotError,
    SnapshotInUse,
    SnapshotNotFound,
    StoreError,
)
from sprout_env.sandbox import Sandbox, SandboxConfig, ShellState, start
from sprout_env.snapshots import FORMAT, LayerState, SnapshotTree, TaskRef
from sprout_env.tasks.task import NamedImage
from sprout_env.transcript import Notice, Result, Transcript, Turn

TASK = TaskRef(suite="s", name="t", digest="0" * 64)
STEPS = ("freeze", "frozen", "drop", "dropped")


class Crash(Exception):
    """The process ended here."""


class Fragile(MemoryStore):
    """A store under which the process ends at a chosen step."""

    at: str | None = None

    def _maybe(self, step: str) -> None:
        if self.at == step:
            self.at = None
            raise Crash(step)

    def freeze(self, disk: Disk, name: str, records: Any) -> Any:
        self._maybe("freeze")
        frozen = super().freeze(disk, name, records)
        self._maybe("frozen")
        return frozen

    def drop(self, id: Any) -> None:
        self._maybe("drop")
        super().drop(id)
        self._maybe("dropped")


@dataclass
class Live:
    """A disk in use, and what the model knows of it."""

    disk: Disk
    sandbox: Sandbox
    transcript: Transcript
    files: dict[str, str]
    at: str | None


@dataclass(frozen=True)
class Kept:
    """What a snapshot must give back."""

    files: tuple[tuple[str, str], ...]
    transcript: Transcript
    parent: str | None
    processes: int


class Tree(RuleBasedStateMachine):
    """Write, take, restore, release; end anywhere; begin again."""

    disks = Bundle("disks")
    ids = Bundle("ids")

    @initialize()
    def open(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.store = Fragile(self.folder)
        self.index = self.folder / "catalogue.sqlite"
        self.tree = SnapshotTree(self.store, self.index)
        self.family = self.store.family("0" * 64, self.store.base(NamedImage(name="x")))
        self.kept: dict[str, Kept] = {}
        self.gone: set[str] = set()

    def teardown(self) -> None:
        self.tree.close()
        shutil.rmtree(self.folder)

    def _begin_again(self, *, lose_index: bool = False) -> None:
        self.tree.close()
        if lose_index:
            for file in self.folder.glob("catalogue.sqlite*"):
                file.unlink()
            # Only the index knew what was deleted; the disks themselves are gone.
        self.tree = SnapshotTree(self.store, self.index)
        self.tree.rebuild()

    @rule(target=disks)
    def create(self) -> Live:
        disk = self.store.create(self.family)
        sandbox = start(self.store, disk, SandboxConfig())
        return Live(disk, sandbox, Transcript.start("do it"), {}, None)

    @rule(live=disks, name=st.sampled_from("abc"), text=st.sampled_from(("x", "yy", "")))
    def write(self, live: Live, name: str, text: str) -> None:
        command = f"printf '%s' '{text}' > /{name}"
        done = live.sandbox.run(command, timeout_s=5)
        result = Result(output=done.stdout.decode(), exit_code=done.exit_code)
        live.transcript = live.transcript.append(Turn(command=command, result=result))
        live.files[f"/{name}"] = text

    @rule(live=disks)
    def notice(self, live: Live) -> None:
        live.transcript = live.transcript.append(Notice(text="note"))

    @rule(live=disks)
    def serve(self, live: Live) -> None:
        live.sandbox.run("server &", timeout_s=5)

    @rule(target=ids, live=disks, crash=st.none() | st.sampled_from(("freeze", "frozen")))
    def take(self, live: Live, crash: str | None) -> Any:
        self.store.at = crash
        before = set(self.store.list_frozen())
        kept = Kept(
            tuple(sorted(live.files.items())),
            live.transcript,
            live.at,
            len(live.sandbox.processes()),
        )
        try:
            taken = self.tree.take(
                live.disk,
                live.sandbox,
                task=TASK,
                transcript=live.transcript,
                shell=ShellState("/tmp", {"A": "b"}),
                layers=[LayerState(name="L", state={"n": live.transcript.turn})],
                parent=live.at,
            ).id
        except Crash:
            self._begin_again()
            # Whatever came of it is whole: it appears with disk and context, or not at all.
            new = set(self.store.list_frozen()) - before
            assert len(new) == (crash == "frozen")
            if not new:
                return multiple()
            taken = new.pop()
        assert not live.sandbox.processes() or live.sandbox.run("true", timeout_s=5)
        self.kept[taken] = kept
        live.at = taken
        return taken

    @rule(target=disks, id=ids)
    def restore(self, id: str) -> Any:
        if id in self.gone:
            with pytest.raises(SnapshotNotFound):
                self.tree.get(id)
            return multiple()
        snapshot, model = self.tree.get(id), self.kept[id]
        transcript = self.tree.transcript(snapshot)
        assert transcript == model.transcript
        assert len(snapshot.processes) == model.processes
        assert snapshot.layers is not None
        assert snapshot.layers[0].state == {"n": transcript.turn}
        disk = self.store.clone(FrozenDiskId(id))
        assert disk.recorded == len(transcript.entries)
        sandbox = start(self.store, disk, SandboxConfig())
        for name in ("/a", "/b", "/c"):
            done = sandbox.run(f"cat {name}", timeout_s=5)
            expected = dict(model.files).get(name)
            assert (done.stdout.decode() if done.exit_code == 0 else None) == expected
        return Live(disk, sandbox, transcript, dict(model.files), id)

    @rule(live=consumes(disks))
    def drop(self, live: Live) -> None:
        live.sandbox.close()
        self.store.drop(live.disk.id)
        self.tree.forget(live.disk)

    @rule(id=ids, crash=st.none() | st.sampled_from(("drop", "dropped")))
    def release(self, id: str, crash: str | None) -> None:
        if id in self.gone:
            self.tree.release(id)
            return
        self.store.at = crash
        try:
            self.tree.release(id)
        except Crash:
            self._begin_again()
        self.gone.add(id)

    @rule(lose_index=st.booleans())
    def begin_again(self, lose_index: bool) -> None:
        if lose_index and self.gone:
            return
        self._begin_again(lose_index=lose_index)

    @invariant()
    def the_catalogue_lists_what_exists(self) -> None:
        living = set(self.kept) - self.gone
        assert {s.id for s in self.tree.list()} == living
        for id in living:
            path = self.tree.lineage(id)
            expected, at = [id], self.kept[id].parent
            while at is not None:
                if at not in self.gone:
                    expected.append(at)
                at = self.kept[at].parent
            assert list(path) == expected[::-1]


Tree.TestCase.settings = settings(
    max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestTree = pytest.mark.timeout(600)(Tree.TestCase)


# -- single cases ---------------------------------------------------------------------------


@pytest.fixture
def live(tmp_path: Path) -> tuple[SnapshotTree, Live]:
    store = MemoryStore(tmp_path)
    disk = store.create(store.family("0" * 64, store.base(NamedImage(name="x"))))
    sandbox = start(store, disk, SandboxConfig())
    return SnapshotTree(store), Live(disk, sandbox, Transcript.start("x"), {}, None)


def _take(tree: SnapshotTree, live: Live, **more: Any) -> str:
    return tree.take(live.disk, live.sandbox, task=TASK, transcript=live.transcript, **more).id


def test_a_sandbox_that_cannot_be_paused_yields_no_snapshot(
    live: tuple[SnapshotTree, Live], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, one = live
    one.sandbox.run("server &", timeout_s=5)

    def never(deadline_s: float = 2.0) -> None:
        raise PauseTimeout(deadline_s)

    monkeypatch.setattr(one.sandbox, "pause", never)
    with pytest.raises(PauseTimeout):
        _take(tree, one)
    assert tree.list() == ()
    assert list(tree.store.list_frozen()) == []
    assert one.sandbox.run("true", timeout_s=5).exit_code == 0


def test_what_is_no_unicode_comes_back_as_it_was(live: tuple[SnapshotTree, Live]) -> None:
    """A directory, a variable, a process of bytes; half a character in a model's message."""
    tree, one = live
    shell = ShellState("/\udcff\udcfe", {"NAME": "caf\udce9"})
    said = Turn(
        command="cd $'/\\xff\\xfe'", message="half \ud83d", result=Result(exit_code=0, output="")
    )
    one.transcript = one.transcript.append(said)
    kept = tree.take(one.disk, one.sandbox, task=TASK, transcript=one.transcript, shell=shell)
    found = tree.get(kept.id)
    assert found == kept
    assert found.shell is not None
    assert (found.shell.cwd, found.shell.env) == (shell.cwd, shell.env)
    assert tree.transcript(found).turns == (said,)


def test_a_record_of_a_later_format_is_refused(
    live: tuple[SnapshotTree, Live], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, one = live
    id = _take(tree, one)
    assert tree.get(id).members == {"main": id}
    record = tree.store.read_records(FrozenDiskId(id), "snapshot.json")[0]
    later = record.replace(b'"format":1', f'"format":{FORMAT + 1}'.encode())
    assert later != record
    monkeypatch.setattr(tree.store, "read_records", lambda *_: [later])
    with pytest.raises(SnapshotError, match=f"format {FORMAT + 1}"):
        tree.get(id)


def test_a_leased_snapshot_is_not_released_by_another_process(
    live: tuple[SnapshotTree, Live], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, one = live
    id = _take(tree, one)
    with tree.leased([id]):
        monkeypatch.setattr(type(tree.store), "owner", property(lambda _: "another"))
        monkeypatch.setattr(tree.store, "owner_alive", lambda _: True)
        with pytest.raises(SnapshotInUse, match=id):
            tree.release(id)
        monkeypatch.undo()
    tree.release(id)
    with pytest.raises(SnapshotNotFound):
        tree.get(id)


def test_what_nobody_kept_goes_with_its_owner(
    live: tuple[SnapshotTree, Live], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, one = live
    kept, loose = _take(tree, one), _take(tree, one, keep=False)
    tree.keep([kept])
    monkeypatch.setattr(tree.store, "owner_alive", lambda _: False)
    assert any(loose in line for line in tree.sweep())
    assert [s.id for s in tree.list()] == [kept]


def test_many_may_open_a_new_catalogue_at_once(tmp_path: Path) -> None:
    for number in range(10):
        path = tmp_path / f"{number}.sqlite"
        with ThreadPoolExecutor(16) as pool:
            opened = list(pool.map(Catalogue, [path] * 16))
        for catalogue in opened:
            assert catalogue.ids() == ()
            catalogue.close()


@pytest.mark.parametrize("content", [b"", b"no database" * 999, bytes(8192)])
def test_an_index_that_lost_its_content_never_hides_a_snapshot(
    live: tuple[SnapshotTree, Live], tmp_path: Path, content: bytes
) -> None:
    tree, one = live
    kept = _take(tree, one)
    index = tmp_path / "broken.sqlite"
    index.write_bytes(content)
    if content:
        with pytest.raises(StoreError, match="is made anew from the disks"):
            SnapshotTree(tree.store, index)
        index.unlink()
    again = SnapshotTree(tree.store, index)
    assert [snapshot.id for snapshot in again.list()] == [kept]
    again.close()


def test_an_index_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "catalogue.sqlite").mkdir()
    with pytest.raises(StoreError, match=r"catalogue\.sqlite: unable to open"):
        SnapshotTree(MemoryStore(tmp_path), tmp_path / "catalogue.sqlite")


def test_a_rebuild_leaves_what_others_keep_meanwhile(
    live: tuple[SnapshotTree, Live], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, one = live
    loose = _take(tree, one, keep=False)
    correct = tree._catalogue.correct

    def late(*args: Any) -> None:
        tree.keep([loose])
        correct(*args)

    monkeypatch.setattr(tree._catalogue, "correct", late)
    tree.rebuild()
    monkeypatch.setattr(tree.store, "owner_alive", lambda _: False)
    tree.sweep()
    assert [snapshot.id for snapshot in tree.list()] == [loose]


def test_a_parent_that_was_released_before_is_no_parent(live: tuple[SnapshotTree, Live]) -> None:
    tree, one = live
    first = _take(tree, one)
    second = _take(tree, one, parent=first)
    tree.release(second)
    third = _take(tree, one, parent=second)
    assert tree.lineage(third) == (first, third)


@pytest.mark.parametrize(
    "id", ["", "x", "../../etc/passwd", "0123456789ab-0123456789abcdef", "a-b-c"]
)
def test_foreign_ids_are_not_found(live: tuple[SnapshotTree, Live], id: str) -> None:
    tree, _ = live
    with pytest.raises(SnapshotNotFound):
        tree.get(id)
    with pytest.raises(SnapshotNotFound):
        tree.release(id)
