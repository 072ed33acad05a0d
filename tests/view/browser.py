"""A browser without a window, to see what a page becomes when its script has run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlencode

import pytest

NAMES = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
# In CI it has to be there: what nobody looked at is not shown to work.
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None and not os.environ.get("CI"), reason="no Chromium (scripts/setup.sh --browser)"
)


def opened(url: str, tmp_path: Path, size: str = "1400,900", **state: str) -> str:
    """Return the page's document after its script ran, in a browser without a window."""
    assert CHROMIUM is not None, "no Chromium: scripts/setup.sh --browser"
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
            "--no-first-run", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", f"--user-data-dir={tmp_path / 'browser'}",
            "--virtual-time-budget=5000", f"--window-size={size}", "--dump-dom",
            f"{url}#{urlencode(state)}",
        ],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    # What came in as data is not what was drawn from it.
    return re.sub(r'<script type="application/json".*?</script>', "", done.stdout, flags=re.S)
