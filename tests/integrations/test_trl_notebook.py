"""Notebook 04 from top to bottom where TRL is installed: its last cell hands TRL our rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="TRL is not in this environment (scripts/trainers.sh trl)")

from sprout_env.disks import open_store
from sprout_env.disks.images.aliases import SEEDBED_BASE, alias
from sprout_env.snapshots import SnapshotTree
from sprout_env.tasks.task import FolderImage

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.root,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),
]
NOTEBOOK = Path(__file__).parent.parent.parent / "notebooks" / "04_training_groups.ipynb"


def test_the_cells_run_and_trl_takes_the_rows(
    shared_store: Path,
    debian_base: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    open_store(shared_store).close()
    alias(shared_store, SEEDBED_BASE, FolderImage(path=debian_base))
    monkeypatch.setenv("SPROUT_STORE", str(shared_store))
    names: dict[str, object] = {}
    cells = [c for c in json.loads(NOTEBOOK.read_text())["cells"] if c["cell_type"] == "code"]
    for cell in cells:
        capsys.readouterr()
        # The live picture needs IPython, which a trainer's environment has not.
        source = "".join(cell["source"]).replace(", on_event=Watch()", "")
        exec(compile(source, str(NOTEBOOK), "exec"), names)
    said = [line.split() for line in capsys.readouterr().out.splitlines()]
    # One sample for each row that carries loss, as long as that row.
    rows = [row for row in names["rows"] if any(row.loss_mask)]  # type: ignore[attr-defined]
    assert said == [["RolloutSample", str(len(row.token_ids)), "ids"] for row in rows]
    assert rows
    tree = SnapshotTree(open_store(shared_store))
    try:
        for each in list(tree.list()):
            tree.release(each.id)
    finally:
        tree.close()
