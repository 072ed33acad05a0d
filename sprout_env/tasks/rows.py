"""Files of rows: JSON, JSONL (gzipped or not) or, with pyarrow, Parquet; by slug and unread."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sprout_env.errors import ConfigError, TaskBroken
from sprout_env.tasks.dialects import Dialect, dialect_of, family

SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz", ".parquet")
_DEPTH = 3
"""How many folders down files of rows are looked for."""


class Row(NamedTuple):
    """One row of a file, and the family that somebody said it is of."""

    source: Path
    columns: dict[str, Any]
    family: str | None = None


class Rows(NamedTuple):
    """Rows by slug, and the files that could not be read by name."""

    found: dict[str, Row]
    broken: dict[str, TaskBroken]


def find_rows(root: Path, dataset: str | None = None) -> Rows:
    """Find the rows of a file, or of the files of a folder, three folders down at most.

    Args:
        root: The file or folder.
        dataset: What to choose, words between slashes: names of files or folders below ``root``
            or parts of them (``verified``, ``lite/test``), or a family, as which rows are read.

    Raises:
        TaskBroken: ``root`` is a file that cannot be read, or holds a row of no family; or it is
            a folder with files of rows, and ``dataset`` chooses none of them.
        ConfigError: A chosen file is Parquet, and pyarrow is not installed.
    """
    files = [root] if root.is_file() else _files(root)
    words = [word for word in (dataset or "").split("/") if word]
    named = next((word for word in words if family(word) is not None), None)
    for word in words:
        kept = [
            path for path in files if _plain(word) in _plain(str(path.relative_to(root.parent)))
        ]
        if not kept and word != named and files:
            have = ", ".join(str(path.relative_to(root.parent)) for path in files[:10])
            raise TaskBroken(root, f"no file of rows is named like {word!r}, nor a family: {have}")
        files = kept or files
    rows = Rows({}, {})
    for path in files:
        try:
            for number, columns in enumerate(read_rows(path), 1):
                try:
                    slug = row_id(columns, dialect_of(columns, named))
                except (TaskBroken, KeyError) as error:
                    said = error.facts[1] if isinstance(error, TaskBroken) else f"no column {error}"
                    raise TaskBroken(f"{path}, row {number}", said) from None
                rows.found[slug] = Row(path, columns, named)
        except TaskBroken as error:
            if root.is_file():
                raise
            rows.broken[path.name] = error
    return rows


def _files(root: Path) -> list[Path]:
    patterns = ["/".join(["*"] * depth) for depth in range(1, _DEPTH + 1)]
    found = [path for pattern in patterns for path in root.glob(pattern)]
    return sorted(path for path in found if path.name.endswith(SUFFIXES) and path.is_file())


def _plain(text: str) -> str:
    return text.lower().replace("_", "").replace("-", "")


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file; ``.gz`` is unpacked on the way.

    Raises:
        TaskBroken: It cannot be read as rows.
        ConfigError: It is Parquet and pyarrow is not installed.
    """
    if path.suffix == ".parquet":
        yield from _parquet(path)
        return
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8", newline="") as file:
            is_lines = ".jsonl" in path.suffixes
            found = (json.loads(line) for line in file if line.strip()) if is_lines else None
            if found is None:
                found = json.load(file)
                if isinstance(found, dict):
                    found = found.get("rows", list(found.values()))
            for row in found:
                row = row.get("row", row) if isinstance(row, dict) else row
                if not isinstance(row, dict):
                    raise TaskBroken(path, "a row that is no object")
                yield row
    except TaskBroken:
        raise
    except (OSError, EOFError, ValueError, TypeError, RecursionError) as error:
        raise TaskBroken(path, f"cannot be read ({error})") from error


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise ConfigError(
            f"{path} is Parquet, which needs pyarrow: pip install 'sprout_env[parquet]', or "
            "convert it to JSONL"
        ) from None
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=500):
                yield from batch.to_pylist()
    except (OSError, ArrowException) as error:
        raise TaskBroken(path, f"cannot be read ({error})") from error


def row_id(row: Mapping[str, Any], dialect: Dialect) -> str:
    """Return the slug of a row.

    Raises:
        KeyError: It has no id.
        TaskBroken: Its id cannot name a task.
    """
    if dialect.name == "Multi-SWE-bench":
        slug = f"{row['org']}__{row['repo']}-{row['number']}"
    else:
        slug = str(row.get("instance_id") or row[dialect.id_column])
    if "/" in slug or slug in ("", ".", ".."):
        raise TaskBroken("row", f"the id {slug!r} cannot name a task")
    return slug
