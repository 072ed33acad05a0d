"""The order of imports is the shape of the house; this reads it from the sources."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "sprout_env"

ORDER = (
    ("errors",),
    ("transcript",),
    ("spaces",),
    ("tasks",),
    ("disks",),
    ("sandbox",),
    ("catalogue",),
    ("snapshots",),
    ("grading",),
    ("records",),
    ("episode", "env_config"),
    ("episodes",),
    ("env",),
    ("actors",),
    ("search",),
    ("wrappers",),
    ("branching",),
    ("registration",),
    ("integrations",),
    ("view",),
    ("cli",),
)
RANK = {part: rank for rank, parts in enumerate(ORDER) for part in parts}

KNOWS_GYMNASIUM = {"spaces", "env", "wrappers", "branching", "registration", "integrations"}

ONLY_IN = {
    "btrfsutil": ("disks/btrfs",),
    "docker": ("disks/images/docker",),
    "typer": ("cli",),
    "rich": ("cli",),
}
"""Library to the prefixes of the modules (below the package) that alone may import it."""

OPTIONAL = {"IPython", "btrfsutil", "docker", "openai", "ray", "torch", "transformers", "datasets"}
"""Libraries that nothing may import while it is itself being imported."""


@dataclass(frozen=True)
class Import:
    """One import statement."""

    module: str
    line: int
    lazy: bool
    """Inside a function, or only for type checkers."""


def _sources() -> list[Path]:
    bundled = PACKAGE / "tasks" / "seedbed"
    return [p for p in sorted(PACKAGE.rglob("*.py")) if bundled not in p.parents]


@functools.cache
def _imports(path: Path) -> tuple[Import, ...]:
    """Return what a file imports, by absolute name, wherever in the file it stands."""
    package = ("sprout_env", *path.relative_to(PACKAGE).parent.parts)

    def walk(node: ast.AST, lazy: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(alias.name, child.lineno, lazy)
            elif isinstance(child, ast.ImportFrom):
                module = child.module or ""
                if child.level:
                    base = package[: len(package) - child.level + 1]
                    module = ".".join((*base, module) if module else base)
                for alias in child.names:
                    yield Import(f"{module}.{alias.name}", child.lineno, lazy)
            inside = lazy or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                inside = True
            yield from walk(child, inside)

    return tuple(walk(ast.parse(path.read_text(), str(path)), False))


def _part(path: Path) -> str:
    """The room of the house that a file belongs to; empty for the package's own front door."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py").removeprefix("__init__")


def _where(path: Path, found: Import) -> str:
    return f"{path.relative_to(PACKAGE.parent)}:{found.line} imports {found.module}"


def test_every_part_of_the_package_has_its_place_in_the_order() -> None:
    parts = {_part(path) for path in _sources()} - {"", "__main__"}
    assert parts <= set(RANK), f"give these a place in the order: {sorted(parts - set(RANK))}"


def test_imports_go_one_way() -> None:
    wrong = []
    for path in _sources():
        here = _part(path)
        if here in ("", "__main__"):
            continue
        for found in _imports(path):
            names = found.module.split(".")
            if names[0] != "sprout_env":
                continue
            target = names[1] if len(names) > 1 else ""
            # The front door imports every room, so that no room may import the front door; its
            # version alone is read from inside functions.
            if target == "__version__" and found.lazy:
                continue
            if target not in RANK:
                wrong.append(_where(path, found))
            elif target != here and RANK[target] >= RANK[here]:
                wrong.append(_where(path, found))
    assert not wrong, "against the order of the house:\n" + "\n".join(wrong)


def test_gymnasium_is_known_only_where_it_must_be() -> None:
    wrong = [
        _where(path, found)
        for path in _sources()
        if _part(path) not in KNOWS_GYMNASIUM and _part(path) != ""
        for found in _imports(path)
        if found.module.split(".")[0] == "gymnasium"
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("library", sorted(ONLY_IN))
def test_a_library_is_used_in_its_one_place(library: str) -> None:
    wrong = [
        _where(path, found)
        for path in _sources()
        if not path.relative_to(PACKAGE).as_posix().startswith(ONLY_IN[library])
        for found in _imports(path)
        if found.module.split(".")[0] == library
    ]
    assert not wrong, "\n".join(wrong)


def test_optional_libraries_are_imported_inside_functions() -> None:
    wrong = [
        _where(path, found)
        for path in _sources()
        for found in _imports(path)
        if found.module.split(".")[0] in OPTIONAL and not found.lazy
    ]
    assert not wrong, "\n".join(wrong)


def test_no_import_of_the_signposts_at_the_root() -> None:
    """``wrappers`` and ``tasks`` at the root are links; imported, they would be second copies."""
    tests = sorted(Path(__file__).parent.rglob("*.py"))
    wrong = [
        f"{path}:{found.line}"
        for path in [*_sources(), *tests]
        for found in (_imports(path) if path in _sources() else _plain_imports(path))
        if found.module.split(".")[0] in ("wrappers", "tasks")
    ]
    assert not wrong, "\n".join(wrong)


def _plain_imports(path: Path) -> Iterator[Import]:
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, False)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield Import(node.module or "", node.lineno, False)


def test_modules_stay_readable() -> None:
    """Beyond 450 lines a module holds two ideas."""
    long = {
        str(path.relative_to(PACKAGE)): lines
        for path in _sources()
        if (lines := len(path.read_text().splitlines())) > 450
    }
    assert not long, long
