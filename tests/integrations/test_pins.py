from __future__ import annotations

import configparser
import re
from pathlib import Path

from sprout_env.integrations.pins import PINS

ROOT = Path(__file__).parent.parent.parent


def test_extras_take_the_series_that_adapters_take() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    extras = config["options.extras_require"]
    for name, pin in PINS.items():
        major, minor = pin.series.split(".")
        wanted = f"{pin.distribution}>={pin.series},<{major}.{int(minor) + 1}"
        told = extras[name].replace("[rllib]", "")
        assert wanted in told.split(), name
        ours = [each for each in pin.install if each.startswith(pin.distribution)]
        assert any(f"=={pin.series}." in each for each in ours), name


def test_the_table_of_levels_names_the_tests_that_are_run() -> None:
    """A level above "schema only" needs a test that CI's scripts run."""
    folder = ROOT / "tests" / "integrations"
    run = {
        path.name
        for name in PINS
        for path in folder.glob(f"test_{name.replace('-', '_')}*.py")
        if "importorskip" in path.read_text()
    }
    run |= set(re.findall(r"test_\w+\.py", (ROOT / "scripts" / "test_llm.sh").read_text()))
    docs = (ROOT / "docs" / "integrations.md").read_text()
    table = docs.split("| library, tested release |")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()[2:]]
    proven: set[str] = set()
    for _, _, _, level, test in rows:
        assert level.startswith(("trained here", "ran here", "contract-tested", "schema only"))
        names = set(re.findall(r"test_\w+\.py", test))
        assert names
        if level.startswith("schema only"):
            assert not names & run
        else:
            proven |= names
    assert proven <= run
    for name in PINS:
        assert any(file.startswith(f"test_{name.replace('-', '_')}") for file in proven), name


def test_every_trainer_has_a_test_and_a_line_in_the_docs() -> None:
    docs = (ROOT / "docs" / "integrations.md").read_text()
    for name, pin in PINS.items():
        assert (ROOT / "tests" / "integrations" / f"test_{name.replace('-', '_')}.py").exists()
        version = next(i.split("==")[1] for i in pin.install if i.startswith(pin.distribution))
        assert version in docs, f"{name} {version}"
