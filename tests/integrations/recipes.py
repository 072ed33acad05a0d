"""The recipes of docs/integrations.md, by heading."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "integrations.md"


def blocks(heading: str, language: str) -> list[str]:
    """Return the code blocks of one language under a heading."""
    section = PAGE.read_text().split(f"\n### {heading}\n", 1)[1].split("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", section.split("\n### ")[0], re.M | re.S)


def play(heading: str, names: dict[str, Any], number: int = 0) -> dict[str, Any]:
    """Run one Python block as it stands; ``names`` is what the page says is the reader's own."""
    exec(compile(blocks(heading, "python")[number], f"{PAGE.name}: {heading}", "exec"), names)
    return names


def headings() -> list[str]:
    """Return the headings of all recipes."""
    recipes = PAGE.read_text().split("\n## Recipes\n", 1)[1].split("\n## ")[0]
    return re.findall(r"^### (.+)$", recipes, re.M)
