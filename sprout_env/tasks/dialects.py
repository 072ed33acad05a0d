"""The families of SWE-bench-like rows, as data: columns, images, commands, rules of judging.

The same words mean different things from family to family; see each field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from sprout_env.errors import TaskBroken
from sprout_env.tasks.task import LogKind
from sprout_env.transcript import Frozen

Ids = Literal["json", "python", "list"]


class Dialect(Frozen):
    """How one family writes its rows and judges them."""

    name: str
    marks: tuple[str, ...]
    """Columns that tell this family from those after it."""
    repositories: frozenset[str] = frozenset()
    """Where columns do not tell: a row must be of one of these, in small letters."""
    ids: Ids = "json"
    """Lists of tests are JSON strings, strings of Python literals, or lists."""
    id_column: str = "instance_id"
    fail_to_pass: tuple[str, ...] = ("FAIL_TO_PASS",)
    pass_to_pass: tuple[str, ...] = ("PASS_TO_PASS",)
    statement: tuple[str, ...] = ("problem_statement",)
    patch: str = "patch"
    patch_is_bug: bool = False
    """The patch makes the bug; the fix is its reverse."""
    test_patch: str | None = "test_patch"
    base_commit: str | None = "base_commit"
    image: str = "swebench/sweb.eval.x86_64.{docker_id}:latest"
    """With columns of the row, ``docker_id`` and ``repo_name`` in braces."""
    workdir: str = "/testbed"
    path: str = ""
    """Folders of programs before the usual ones, for agent and tests."""
    activate: str = ""
    """Shell line before the tests."""
    command: str = ""
    """The test command; empty: the row's own, else the repository's."""
    apply: str = "git apply -v --whitespace=nowarn"
    p2p_skipped_is_ok: bool = False
    xfail_is_ok: bool = True
    whole_map: bool = False
    """Every test's status must be the expected one, and no other test may be there."""
    held_back: tuple[str, ...] = ()
    """Tests and solutions that the images hold; see ``VerifierSpec.held_back``."""


_CONDA = "source /opt/miniconda3/bin/activate && conda activate testbed"
_CONDA_PATH = "/opt/miniconda3/envs/testbed/bin:/opt/miniconda3/bin"

DIALECTS: tuple[Dialect, ...] = (
    Dialect(
        name="R2E-Gym",
        marks=("expected_output_json",),
        id_column="commit_hash",
        image="{docker_image}",
        test_patch=None,
        base_commit=None,
        path="/testbed/.venv/bin:/root/.local/bin:/root/.cargo/bin",
        activate="ln -sfn /r2e_tests r2e_tests",
        command="bash run_tests.sh",
        whole_map=True,
        held_back=(
            "/r2e_tests",
            "/testbed/r2e_tests",
            "/testbed/run_tests.sh",
            "/testbed/syn_issue.json",
            "/testbed/expected_test_output.json",
            "/testbed/execution_result.json",
            "/testbed/parsed_commit.json",
            "/testbed/modified_files.json",
            "/testbed/modified_entities.json",
        ),
    ),
    Dialect(
        name="Multi-SWE-bench",
        marks=("fix_patch", "number"),
        ids="list",
        fail_to_pass=("f2p_tests", "s2p_tests", "n2p_tests"),
        pass_to_pass=("p2p_tests",),
        statement=("title", "body"),
        patch="fix_patch",
        base_commit=None,
        image="mswebench/{org_lower}_m_{repo_lower}:pr-{number}",
        workdir="/home/{repo_name}",
        command="bash /home/run.sh",
        xfail_is_ok=False,
        held_back=("/home/fix.patch", "/home/test.patch", "/home/run.sh"),
    ),
    Dialect(
        name="SWE-bench Pro",
        marks=("dockerhub_tag",),
        ids="python",
        fail_to_pass=("fail_to_pass", "FAIL_TO_PASS"),
        pass_to_pass=("pass_to_pass", "PASS_TO_PASS"),
        statement=("problem_statement", "requirements", "interface"),
        image="jefzda/sweap-images:{dockerhub_tag}",
        workdir="/app",
        command="bash /tests/run_script.sh {selected} > /tmp/out 2> /tmp/err; "
        "python /tests/parser.py /tmp/out /tmp/err /logs/verifier/parsed.json; "
        "cat /tmp/out /tmp/err",
        xfail_is_ok=False,
    ),
    Dialect(
        name="SWE-rebench",
        marks=("install_config",),
        ids="list",
        image="{image_name}",
        workdir="/{repo_name}",
        apply="git apply --3way --recount --ignore-space-change --whitespace=nowarn",
        xfail_is_ok=False,
    ),
    Dialect(
        name="SWE-smith",
        marks=("image_name", "FAIL_TO_PASS"),
        ids="list",
        image="{image_name}",
        patch_is_bug=True,
        test_patch=None,
        base_commit=None,
        path=_CONDA_PATH,
        activate=_CONDA,
        command="pytest --disable-warnings --color=no --tb=no --verbose",
    ),
    Dialect(
        name="SWE-Gym",
        marks=("instance_id", "FAIL_TO_PASS"),
        repositories=frozenset(
            (
                "bokeh/bokeh",
                "conan-io/conan",
                "dask/dask",
                "facebookresearch/hydra",
                "getmoto/moto",
                "iterative/dvc",
                "modin-project/modin",
                "pandas-dev/pandas",
                "project-monai/monai",
                "pydantic/pydantic",
                "python/mypy",
            )
        ),  # fmt: skip
        image="xingyaoww/sweb.eval.x86_64.{gym_id}:latest",
        path=_CONDA_PATH,
        activate=_CONDA,
        p2p_skipped_is_ok=True,
    ),
    Dialect(
        name="SWE-bench",
        marks=("instance_id", "FAIL_TO_PASS"),
        path=_CONDA_PATH,
        activate=_CONDA,
        p2p_skipped_is_ok=True,
    ),
)

COMMANDS: Mapping[str, tuple[str, LogKind]] = {
    "django/django": (
        "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1",
        "unittest",
    ),
    "sympy/sympy": ("bin/test -C --verbose", "sympy"),
    "astropy/astropy": ("pytest -rA -vv -o console_output_style=classic --tb=no", "pytest"),
    "sphinx-doc/sphinx": ("tox --current-env -epy39 -v --", "pytest"),
    "python/mypy": ("pytest -n0 -rA -k", "pytest"),
    **dict.fromkeys(
        ("psf/requests", "pydicom/pydicom", "pylint-dev/pylint"), ("pytest -rA", "pytest-options")
    ),
}
"""Repositories whose tests are not run and read by plain ``pytest -rA``."""

PARSERS: Mapping[str, LogKind] = {
    **dict.fromkeys(
        ("pytest", "pytest_v2", "seaborn", "matplotlib", "astroid", "flask", "marshmallow",
         "pvlib", "pyvista", "sqlfluff", "xarray", "astropy", "scikit", "sphinx", "pydantic",
         "dvc", "python"), "pytest"),
    **dict.fromkeys(("pytest_options", "pydicom", "requests", "pylint"), "pytest-options"),
    **dict.fromkeys(("django", "unittest"), "unittest"),
    "sympy": "sympy",
    **dict.fromkeys(("gotest", "go", "golang"), "go"),
    **dict.fromkeys(("cargo", "rust"), "cargo"),
    **dict.fromkeys(
        ("jest", "jest_json", "vitest", "mocha", "js", "js_4", "javascript", "ts", "typescript"),
        "js"),
    **dict.fromkeys(("maven", "java_mvn", "gradle", "gradle_custom", "ant", "java"), "java"),
    **dict.fromkeys(("ctest", "googletest", "jq", "c", "cpp", "c++"), "c"),
    "tap": "tap",
    **dict.fromkeys(("marked", "chart_js", "bpmn_js"), "failures"),
}  # fmt: skip
"""What families call the kinds of logs (less ``parse_log_``), and languages, to what reads them."""

FAIL_ONLY = frozenset(
    ("chartjs/Chart.js", "processing/p5.js", "markedjs/marked", "bpmn-io/bpmn-js",
     "openlayers/openlayers", "eslint/eslint")
)  # fmt: skip
"""Repositories whose logs name failures only: a test that is not named has passed."""


def dialect_of(row: Mapping[str, Any], name: str | None = None) -> Dialect:
    """Return the family of a row: the one named, else the first that it fits.

    Raises:
        TaskBroken: There is none; the message says what was looked for.
    """
    if name is not None:
        found = family(name)
        if found is None:
            known = ", ".join(dialect.name for dialect in DIALECTS)
            raise TaskBroken(name, f"no family of that name; there are {known}")
        return found
    repository = str(row.get("repo", "")).lower()
    for dialect in DIALECTS:
        if all(mark in row for mark in dialect.marks):
            if not dialect.repositories or repository in dialect.repositories:
                return dialect
    wanted = "; ".join(f"{d.name}: {', '.join(d.marks)}" for d in DIALECTS)
    raise TaskBroken(
        "row",
        f"of no known family: it has the columns {', '.join(map(str, row)) or '(none)'}; "
        f"looked for {wanted}",
    )


def family(name: str) -> Dialect | None:
    """Return the family of a name; ``Verified`` and ``Lite`` are selections of SWE-bench."""
    wanted = _plain(name)
    return next((d for d in DIALECTS if _plain(d.name) == wanted), None)


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "")
