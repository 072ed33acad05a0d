"""Rows of the SWE-bench family, read into tasks.

A row names an image that holds the repository, tests that must pass, and a patch. What a family
means by its columns stands in ``dialects``; nothing is run here.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sprout_env.errors import TaskBroken
from sprout_env.tasks.dialects import (
    COMMANDS,
    DIALECTS,
    FAIL_ONLY,
    PARSERS,
    Dialect,
    dialect_of,
)
from sprout_env.tasks.rows import row_id
from sprout_env.tasks.task import Judge, LogKind, NamedImage, SolutionSpec, Task, VerifierSpec

_TARGET = re.compile(r"^diff --git a/.* b/(.+)$", re.MULTILINE)
_NEW = re.compile(r"^diff --git a/.* b/(.+)\nnew file mode", re.MULTILINE)
_NOT_TESTS = (".json", ".png", ".csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml",
              ".toml", ".rst", ".html", ".po", ".mo")  # fmt: skip
_VERIFIER_S = 1800.0
_REFRESH = "git update-index -q --refresh > /dev/null || true"
"""Copied into an image, files have other times than git's index says: it would refuse patches."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def task_from_row(
    row: Mapping[str, Any], suite: str = "", *, source: Path | None = None, name: str | None = None
) -> Task:
    """Read one row.

    Args:
        row: Its columns.
        suite: Name of the suite that it belongs to.
        source: The file that it is from; SWE-bench Pro's scripts are looked for beside it.
        name: The family; None: told by the columns.

    Raises:
        TaskBroken: It is of no family that we know, or a column is missing or malformed.
    """
    label = source or Path("row")
    dialect = dialect_of(row, name)
    try:
        return _task(row, dialect, suite, source)
    except (KeyError, ValueError, SyntaxError, TypeError, AttributeError) as error:
        if isinstance(error, TaskBroken):
            raise
        said = f"column {error}" if isinstance(error, KeyError) else str(error)
        raise TaskBroken(label, f"a row of {dialect.name}: {said}") from error


def _task(row: Mapping[str, Any], dialect: Dialect, suite: str, source: Path | None) -> Task:
    slug = row_id(row, dialect)
    repository = str(row.get("repo") or row.get("repo_name") or "")
    if dialect.name == "SWE-rebench" and row.get("docker_image") and not row.get("image_name"):
        # Its first version: images and commands like those of SWE-bench.
        row = {**row, "image_name": row["docker_image"]}
        like = next(other for other in DIALECTS if other.name == "SWE-bench")
        dialect = dialect.model_copy(
            update={name: getattr(like, name) for name in ("workdir", "path", "activate")}
        )
    words = {key: value for key, value in row.items() if isinstance(value, str | int)} | {
        "docker_id": slug.replace("__", "_1776_").lower(),
        "gym_id": slug.replace("__", "_s_").lower(),
        "repo_name": repository.rpartition("/")[2],
        "repo_lower": repository.rpartition("/")[2].lower(),
        "org_lower": str(row.get("org", "")).lower(),
    }
    unsupported: list[str] = []
    image = dialect.image.format(**words | {"image_name": row.get("image_name") or ""})
    if not image:
        unsupported.append("an image that the row does not name")
    workdir = dialect.workdir.format(**words)
    files, judge = _tests(row, dialect, repository, workdir, source, unsupported)
    digest = hashlib.sha256(
        json.dumps([dialect.name, row], sort_keys=True, default=str).encode()
    ).hexdigest()
    parts = [str(row.get(column) or "").strip() for column in dialect.statement]
    instruction = "\n\n".join(part for part in parts if part)
    for issue in row.get("resolved_issues") or () if dialect.name == "Multi-SWE-bench" else ():
        instruction += f"\n\n{issue.get('title', '')}\n{issue.get('body', '')}"
    return Task(
        name=slug,
        suite=suite,
        instruction=instruction,
        image=NamedImage(name=image or "unknown"),
        workdir=workdir,
        env={"PATH": f"{dialect.path}:{_PATH}"} if dialect.path else {},
        setup=_setup(row, dialect),
        verifier=VerifierSpec(
            files=files,
            judge=judge,
            user="root",
            timeout_s=_VERIFIER_S,
            held_back=dialect.held_back,
        ),
        solution=_solution(row, dialect, workdir),
        digest=digest,
        metadata={"family": dialect.name, "repo": repository},
        unsupported=tuple(unsupported),
    )


def _ids(value: object, dialect: Dialect) -> tuple[str, ...]:
    """Read a list of tests; text is data and never evaluated."""
    if isinstance(value, str):
        value = ast.literal_eval(value) if dialect.ids == "python" else json.loads(value)
    if isinstance(value, dict):
        # Parquet gives every row the keys of all rows.
        return tuple(str(key) for key, result in value.items() if result is not None)
    if not isinstance(value, list | tuple):
        raise ValueError(f"a list of tests is {type(value).__name__}")
    return tuple(map(str, value))


def _column(row: Mapping[str, Any], names: tuple[str, ...], dialect: Dialect) -> tuple[str, ...]:
    present = [name for name in names if name in row]
    if not present:
        raise KeyError(names[0])
    found: list[str] = []
    for name in present:
        try:
            found += _ids(row[name], dialect)
        except (ValueError, SyntaxError) as error:
            raise ValueError(f"{name}: {error}") from error
    return tuple(found)


def _setup(row: Mapping[str, Any], dialect: Dialect) -> str:
    """Return what makes the disk what the row says, before the agent begins."""
    lines = []
    if dialect.held_back:
        lines.append(f"rm -rf -- {shlex.join(dialect.held_back)}")
    if dialect.patch_is_bug:
        # A commit on top would leave the fix one commit below: the history begins anew.
        lines += [
            _REFRESH,
            "git apply --index --whitespace=nowarn - <<'SPROUT_PATCH' || exit 3",
            f"{_ended(str(row[dialect.patch]))}SPROUT_PATCH",
            "git ls-files -z > /tmp/.files && rm -rf .git && git init -q . || exit 3",
            "git update-index -z --add --stdin < /tmp/.files && rm /tmp/.files || exit 3",
            "git -c user.name=setup -c user.email=setup@localhost commit -qm setup --no-verify",
        ]
    return "\n".join(lines)


def _ended(patch: str) -> str:
    return patch if patch.endswith("\n") else patch + "\n"


def _solution(row: Mapping[str, Any], dialect: Dialect, workdir: str) -> SolutionSpec | None:
    if dialect.name == "R2E-Gym":
        return _commit(row, workdir)
    patch = row.get(dialect.patch)
    if not isinstance(patch, str) or not patch.strip():
        return None
    reverse = "-R " if dialect.patch_is_bug else ""
    script = (
        f"#!/bin/bash\ncd {shlex.quote(workdir)} || exit 3\n{_REFRESH}\n"
        f"{dialect.apply} {reverse}/solution/fix.patch\n"
    )
    return SolutionSpec(files={"solve.sh": script, "fix.patch": _ended(patch)})


def _commit(row: Mapping[str, Any], workdir: str) -> SolutionSpec | None:
    """Return the files of a parsed commit as the solution."""
    if not row.get("parsed_commit_content"):
        return None
    files, lines = {}, ["#!/bin/bash", f"cd {shlex.quote(workdir)} || exit 3"]
    for number, diff in enumerate(json.loads(row["parsed_commit_content"])["file_diffs"]):
        path = shlex.quote(str(diff["header"]["file"]["path"]))
        if (diff.get("plus_file") or {}).get("path") == "/dev/null":
            lines.append(f"rm -f -- {path}")
        elif not diff.get("is_binary_file"):
            files[str(number)] = str(diff["new_file_content"])
            lines.append(f"install -D -m 644 /solution/{number} {path}")
    return SolutionSpec(files={"solve.sh": "\n".join(lines) + "\n", **files})


def _tests(
    row: Mapping[str, Any],
    dialect: Dialect,
    repository: str,
    workdir: str,
    source: Path | None,
    unsupported: list[str],
) -> tuple[dict[str, str], Judge]:
    files: dict[str, str] = {}
    patch = str(row.get(dialect.test_patch) or "") if dialect.test_patch else ""
    if patch:
        files["test.patch"] = _ended(patch)
    command, kind = _command(row, dialect, repository, patch, unsupported)
    if dialect.name == "SWE-bench Pro":
        scripts = (source or Path()).parent / "run_scripts" / row_id(row, dialect)
        for script in ("run_script.sh", "parser.py"):
            if (scripts / script).is_file():
                files[script] = (scripts / script).read_text("utf-8")
            else:
                unsupported.append(f"its {script} (looked for in {scripts})")
        selected = _ids(row.get("selected_test_files_to_run") or "[]", dialect)
        command = command.format(selected=shlex.quote(",".join(selected)))
        # As the family's own harness: of that script the last line alone, which brings tests.
        before = str(row.get("before_repo_set_cmd") or "").strip().splitlines()[-1:]
        command = "; ".join([*(f"({line}) > /dev/null 2>&1" for line in before), command])
    files["test.sh"] = _script(row, dialect, workdir, patch, command)
    passing = {"PASSED", "XFAIL"} if dialect.xfail_is_ok else {"PASSED"}
    if dialect.whole_map:
        expected = json.loads(row["expected_output_json"])
        return files, Judge(parser="r2e", expected={str(k): str(v) for k, v in expected.items()})
    judge = Judge.model_validate(
        {
            "parser": "json" if dialect.name == "SWE-bench Pro" else kind,
            "fail_to_pass": _column(row, dialect.fail_to_pass, dialect),
            "pass_to_pass": _column(row, dialect.pass_to_pass, dialect),
            "f2p_ok": passing,
            "p2p_ok": passing | ({"SKIPPED"} if dialect.p2p_skipped_is_ok else set()),
            "missing_is_ok": repository in FAIL_ONLY,
        }
    )
    return files, judge


def _command(
    row: Mapping[str, Any], dialect: Dialect, repository: str, patch: str, unsupported: list[str]
) -> tuple[str, LogKind]:
    """Return the test command and what reads its log."""
    config = row.get("install_config")
    config = json.loads(config) if isinstance(config, str) else config or row
    usual, parser = COMMANDS.get(repository.lower(), ("pytest -rA", "pytest"))
    asked = str(config.get("log_parser") or row.get("lang") or "").lower()
    if asked:
        asked = re.sub(r"^parse_(log_)?", "", asked)
        if asked not in PARSERS:
            unsupported.append(f"the log parser {asked}")
        parser = PARSERS.get(asked, "pytest")
    own = config.get("test_cmd") or dialect.command
    if isinstance(own, list):
        own = " && ".join(map(str, own))
    touched = _TARGET.findall(patch or str(row.get(dialect.patch) or ""))
    if not own and parser == "pytest" and not any(path.endswith(".py") for path in touched):
        unsupported.append("a test command: the row has no test_cmd, and its tests are no Python")
    if own and not (dialect.name == "SWE-rebench" and row.get("docker_image")):
        # Maven names no test that passes: the shell's trace and the build's end say which did.
        return f"set -x; {own}" if "-Dtest=" in str(own) else str(own), parser
    files = [path for path in _TARGET.findall(patch) if not path.endswith(_NOT_TESTS)]
    if repository == "django/django":
        # Its runner takes modules, named from tests/ on.
        files = [f.removeprefix("tests/").removesuffix(".py").replace("/", ".") for f in files]
        if row.get("version") == "1.9":
            usual = usual.partition(" --settings")[0]
    elif repository.lower() == "python/mypy":
        files = [" or ".join(re.findall(r"\[case ([^\]]+)\]", patch))]
    return " ".join([own or usual, *map(shlex.quote, dict.fromkeys(files))]), parser


def _script(
    row: Mapping[str, Any], dialect: Dialect, workdir: str, patch: str, command: str
) -> str:
    """Return ``test.sh``: files of the test patch reset one by one, the patch, the tests."""
    from_commit = str(row.get(dialect.base_commit) or "HEAD") if dialect.base_commit else "HEAD"
    new = set(_NEW.findall(patch))
    lines = ["#!/bin/bash", f"cd {shlex.quote(workdir)} || exit 3", dialect.activate or ":"]
    lines.append("git config --global --add safe.directory '*'")
    for path in dict.fromkeys(_TARGET.findall(patch)):
        quoted = shlex.quote(path)
        # Never the whole tree: building the image may have changed tracked files.
        if path in new:
            lines.append(f"git rm -rfq --cached --ignore-unmatch -- {quoted}; rm -rf -- {quoted}")
        else:
            lines.append(f"git checkout {from_commit} -- {quoted}")
    if patch:
        lines.append(_REFRESH)
        lines.append(
            f"{dialect.apply} /tests/test.patch || {{ echo '>>>>> Tests Could Not Be Applied'; "
            "exit 3; }"
        )
    lines += [
        "echo '>>>>> Start Test Output'",
        f"({command})",
        "status=$?",
        "echo; echo '>>>>> End Test Output'",
        'echo ">>>>> Test Exit Code: $status"',
    ]
    return "\n".join(lines) + "\n"
