"""The notebooks run from top to bottom on real disks, and lie in git without outputs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, debian_base: Path) -> Path:
    from sprout_env.disks import open_store
    from sprout_env.disks.images.aliases import SEEDBED_BASE, alias
    from sprout_env.tasks.task import FolderImage

    path = tmp_path_factory.mktemp("notebooks") / "store"
    store = open_store(path)
    alias(path, SEEDBED_BASE, FolderImage(path=debian_base))
    # The kernels open it for themselves.
    store.close()
    return path


def test_there_are_five() -> None:
    assert [path.name[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04", "05"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_outputs_are_kept(path: Path) -> None:
    for cell in json.loads(path.read_text())["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(path: Path, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="nbclient is missing (extra `notebooks`)")
    nbformat: Any = pytest.importorskip("nbformat", reason="nbformat is missing")
    monkeypatch.setenv("SPROUT_STORE", str(store))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path / "matplotlib"))
    root = Path(__file__).parent.parent
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(root), os.environ.get("PYTHONPATH", ""))))
    book = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(book, timeout=350, kernel_name="python3", resources=resources).execute()
    shown = [
        output
        for cell in book.cells
        for output in cell.get("outputs", ())
        if "data" in output or output.get("name") == "stdout"
    ]
    assert shown
    errors = [
        o for cell in book.cells for o in cell.get("outputs", ()) if o.get("name") == "stderr"
    ]
    assert not errors, errors
