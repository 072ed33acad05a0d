"""The recipes of docs/integrations.md, by heading; run as a module: copied into the README."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "integrations.md"
README = ROOT / "README.md"

SECTION = re.compile(r"^###? ([^\n]+)\n(.*?)(?=^###? |\Z)", re.M | re.S)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
FOLDED = re.compile(r"(<!-- [^\n]*tests\.integrations\.recipes -->\n).*(<!-- end -->\n)", re.S)
OPEN = "TRL, synchronous, with its own loop"
"""What a reader of the README sees without a click."""


def _sections() -> dict[str, str]:
    """Return the page's sections from its recipes on, by heading."""
    return dict(SECTION.findall(PAGE.read_text().split("\n## Recipes\n", 1)[1]))


def blocks(heading: str, language: str) -> list[str]:
    """Return the code blocks of one language under a heading."""
    return [text for found, text in BLOCK.findall(_sections()[heading]) if found == language]


def play(heading: str, names: dict[str, Any], number: int = 0) -> dict[str, Any]:
    """Run one Python block as it stands; ``names`` is what the page says is the reader's own."""
    exec(compile(blocks(heading, "python")[number], f"{PAGE.name}: {heading}", "exec"), names)
    return names


def headings() -> list[str]:
    """Return the headings of all recipes."""
    return [heading for heading, text in _sections().items() if BLOCK.search(text)]


def folded(readme: str) -> str:
    """Return the README's text with the recipes as the page has them."""
    parts = []
    for heading in headings():
        begin = "<details open>" if heading == OPEN else "<details>"
        shown = "\n\n".join(found[0] for found in BLOCK.finditer(_sections()[heading]))
        parts.append(f"{begin}<summary>{heading}</summary>\n\n{shown}\n\n</details>\n")
    return FOLDED.sub(lambda found: found[1] + "".join(parts) + found[2], readme)


if __name__ == "__main__":
    README.write_text(folded(README.read_text()))
