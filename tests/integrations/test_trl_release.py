"""A release of TRL outside the tested series is refused by name, whatever one begins with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
BEGINNINGS = {
    "trl_sync.tool_environment": "tool_environment(suite='toy')",
    "trl_sync.rollout_func": "rollout_func(print, size=2, end=0)",
    "trl_async.SproutRolloutWorker": "SproutRolloutWorker(print)",
    "trl_async.rollout_samples": "rollout_samples(None, 0)",
}


@pytest.mark.parametrize("version", ["1.15.2", "1.17.1", "2.16.0"])
def test_it_is_refused_before_any_of_it_is_imported(version: str, tmp_path: Path) -> None:
    # What pip writes of a release: found first, it is the one that is installed.
    folder = tmp_path / f"trl-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: trl\nVersion: {version}\n")
    lines = ["import sys", "from sprout_env.errors import TrainerUnsupported"]
    for path, call in BEGINNINGS.items():
        module, name = path.split(".")
        lines += [
            f"from sprout_env.integrations.{module} import {name}",
            f"try: {call}",
            f"except TrainerUnsupported as error: assert '{version}' in str(error), error",
            f"else: raise SystemExit('{path} took it')",
        ]
    lines.append("assert not {'trl', 'torch'} & set(sys.modules)")
    subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        check=True,
    )
