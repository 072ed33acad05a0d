"""Every code block of README and docs is run, or says in its first line why it is not."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RECIPES = ROOT / "docs" / "integrations.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

NOT_RUN = "# not run: "
"""What the first line of a shell block begins with that is not run; the reason follows, for all."""
ELSEWHERE = {
    "README.md": ("python", "tests/test_readme.py"),
    "integrations.md": ("python sh", "tests/integrations/test_recipes.py"),
}
"""Pages whose blocks of these languages another test runs."""
COMMAND = re.compile(r"^(\$ |sprout |make |python|pip |\.venv/)", re.M)


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def skipped(self) -> bool:
        """Whether it is not run here."""
        # The README's recipes are those of the page of trainers, which a test holds.
        page = RECIPES if self.text in RECIPES.read_text() else self.page
        languages, _ = ELSEWHERE.get(page.name, ("", ""))
        if self.language in languages.split() or self.text.startswith(NOT_RUN):
            return True
        return self.language in ("text", "yaml")


def _blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in re.finditer(r"^```(\w*)[^\n]*\n(.*?)^```$", text, re.M | re.S):
        yield Block(page, text[: found.start()].count("\n") + 1, found[1], found[2])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, debian_base: Path) -> Path:
    from sprout_env.disks import open_store
    from sprout_env.disks.images.aliases import SEEDBED_BASE, alias
    from sprout_env.tasks.task import FolderImage

    path = tmp_path_factory.mktemp("docs")
    store = open_store(path / "store")
    alias(path / "store", SEEDBED_BASE, FolderImage(path=debian_base))
    # The blocks open it in processes of their own.
    store.close()
    return path


def test_no_command_hides_in_a_block_that_nobody_runs() -> None:
    known = {"python", "sh", "text", "toml", "yaml"}
    for block in (block for page in PAGES for block in _blocks(page)):
        where = f"{block.page}:{block.line}"
        assert block.language in known, where
        if block.language == "text" and block.page.name not in ELSEWHERE:
            assert not COMMAND.search(block.text), where
        assert block.text.count(NOT_RUN) == block.text.startswith(NOT_RUN), where
    for _, test in ELSEWHERE.values():
        assert (ROOT / test).exists()


def test_questions_quote_errors_that_exist() -> None:
    from sprout_env import errors

    messages = [getattr(each, "message", "") for each in vars(errors).values()]
    quoted = re.findall(r"^\*\*`([^`]+)`", (ROOT / "docs" / "faq.md").read_text(), re.M)
    assert len(quoted) > 8
    for text in quoted:
        pattern = ".*".join(map(re.escape, text.split("...")))
        assert any(re.search(pattern, message) for message in messages), text


def test_the_reference_has_every_public_name_and_every_flag() -> None:
    import sprout_env

    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        from docs_hooks import reference  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    from typer.main import get_command

    from sprout_env.cli.app import app
    from sprout_env.cli.settings import _leaves

    said = "\n".join(reference())
    for path, command in _leaves(get_command(app)):
        part = said.split(f"## sprout {' '.join(path)}\n")[1].split("\n## ")[0]
        shown = [p for p in command.params if not getattr(p, "hidden", False)]
        assert all(f"`{p.opts[0]}" in part for p in shown if p.param_type_name == "option"), path
    told = re.findall(r"^::: (\S+)\n(?:    options: \{members: \[(.*)\]\})?",
                      (ROOT / "docs" / "api.md").read_text(), re.M)  # fmt: skip
    pages = {module: {name.strip() for name in names.split(",") if name} for module, names in told}
    for name in set(sprout_env.__all__) - {"__version__"}:
        module = getattr(sprout_env, name).__module__
        assert module in pages, name
        assert not pages[module] or name in pages[module], name


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_blocks_run(page: Path, home: Path) -> None:
    blocks = [block for block in _blocks(page) if not block.skipped]
    if not blocks:
        return
    folder = home / page.relative_to(ROOT).as_posix().replace("/", "-")
    folder.mkdir()
    binaries = folder / "bin"
    binaries.mkdir()
    program = binaries / "sprout"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m sprout_env "$@"\n')
    program.chmod(0o755)
    # What `make setup` leaves.
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "activate").touch()
    env = {
        **os.environ,
        "SPROUT_STORE": str(home / "store"),
        "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))),
        "PATH": os.pathsep.join((str(binaries), os.environ["PATH"])),
        "COLUMNS": "140",
    }
    # In the page's order: shell blocks by themselves, neighbouring Python blocks as one program.
    programs: list[tuple[str, int, str]] = []
    for block in blocks:
        if block.language == "python" and programs and programs[-1][0] == "python":
            programs[-1] = ("python", programs[-1][1], programs[-1][2] + block.text)
        else:
            programs.append((block.language, block.line, block.text))
    for language, line, text in programs:
        argv = [sys.executable, "-c", text] if language == "python" else ["bash", "-ec", text]
        if language == "toml":
            (folder / "sprout.toml").write_text(text)
            argv = [sys.executable, "-m", "sprout_env", "config"]
        done = subprocess.run(
            argv, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False
        )
        said = f"{page}:{line}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        assert done.returncode == 0, said


def test_exit_codes_are_documented() -> None:
    from sprout_env.cli.failures import BUG, CODES, INTERRUPTED

    text = (ROOT / "docs" / "cli.md").read_text()
    table = text[text.index("| exit code") : text.index("| variable")]
    told = {int(n) for n in re.findall(r"\d+", table)}
    assert {0, 1, 2, BUG, INTERRUPTED, *CODES.values()} == told


def test_no_docstring_reads_as_a_cross_reference() -> None:
    """``[a][b]`` outside of a literal is a link to the site's builder, and a dead one stops it."""
    for path in sorted((ROOT / "sprout_env").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                text = re.sub(r"^ *(>>>|\.\.\.).*$", "", str(node.value.value), flags=re.M)
                said = re.sub(r"``.*?``", "", text, flags=re.S)
                assert not re.search(r"\]\[", said), f"{path}:{node.lineno}"
