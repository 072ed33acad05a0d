"""Rows of the SWE-bench family: each family's columns, and each of them end to end."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sprout_env
from sprout_env.disks import images, open_store
from sprout_env.disks.store import DiskStore
from sprout_env.errors import ConfigError, TaskBroken, TaskNotFound
from sprout_env.grading import nop, oracle
from sprout_env.sandbox.build import base_for
from sprout_env.tasks.rows import read_rows
from sprout_env.tasks.suites import find_suite
from sprout_env.tasks.swebench import task_from_row
from sprout_env.tasks.task import DockerfileImage, FolderImage, Judge, NamedImage

BEFORE = "def double(x):\n    return x + x + 1\n"
AFTER = "def double(x):\n    return 2 * x\n"


def diff(name: str, old: str | None, new: str) -> str:
    before = [] if old is None else [f"-{line}" for line in old.splitlines()]
    after = [f"+{line}" for line in new.splitlines()]
    head = f"diff --git a/{name} b/{name}\n"
    if old is None:
        head += f"new file mode 100644\n--- /dev/null\n+++ b/{name}\n@@ -0,0 +1,{len(after)} @@\n"
    else:
        head += f"--- a/{name}\n+++ b/{name}\n@@ -1,{len(before)} +1,{len(after)} @@\n"
    return head + "".join(f"{line}\n" for line in (*before, *after))


TEST = "from double import double\ndef test_two():\n    assert double(2) == 4\n"
OLD_TEST = "from double import double\ndef test_type():\n    assert double(1) is not None\n"
FIX = diff("double.py", BEFORE, AFTER)
TEST_PATCH = diff("tests/test_new.py", None, TEST) + diff(
    "tests/test_old.py", OLD_TEST, OLD_TEST + "# kept\n"
)
F2P, P2P = ["tests/test_new.py::test_two"], ["tests/test_old.py::test_type"]

SWE_BENCH: dict[str, Any] = {
    "instance_id": "Org__repo-12",
    "repo": "org/repo",
    "base_commit": "HEAD",
    "patch": FIX,
    "test_patch": TEST_PATCH,
    "problem_statement": "double(2) is 5.\n",
    "FAIL_TO_PASS": json.dumps(F2P),
    "PASS_TO_PASS": json.dumps(P2P),
}
ROWS: dict[str, dict[str, Any]] = {
    "SWE-bench": SWE_BENCH,
    "SWE-Gym": SWE_BENCH
    | {
        "instance_id": "pydantic__pydantic-12",
        "repo": "pydantic/pydantic",
        "FAIL_TO_PASS": F2P,
        "PASS_TO_PASS": P2P,
    },
    "SWE-rebench": SWE_BENCH
    | {
        "FAIL_TO_PASS": F2P,
        "PASS_TO_PASS": P2P,
        "image_name": "nebius/x:1",
        "install_config": {"test_cmd": "pytest -rA tests", "log_parser": "parse_log_pytest"},
    },
    "SWE-bench Pro": {key: value for key, value in SWE_BENCH.items() if not key.endswith("TO_PASS")}
    | {
        "fail_to_pass": repr(F2P),
        "pass_to_pass": repr(P2P),
        "selected_test_files_to_run": "['tests/test_new.py', \"tests/test_old.py\"]",
        "before_repo_set_cmd": "git reset --hard gone\ngit checkout HEAD -- tests/test_old.py",
        "dockerhub_tag": "org.repo-12",
        "requirements": "It doubles.",
    },
    "SWE-smith": {
        "instance_id": "org__repo.abc.func_1",
        "repo": "swesmith/org__repo.abc",
        "patch": diff("double.py", AFTER, BEFORE),
        "FAIL_TO_PASS": F2P,
        "PASS_TO_PASS": P2P,
        "image_name": "swebench/swesmith.x86_64.org_1776_repo.abc",
        "problem_statement": "double(2) is 5.",
    },
    "R2E-Gym": {
        "docker_image": "namanjain12/repo:abc",
        "repo_name": "repo",
        "commit_hash": "abc",
        "problem_statement": "double(2) is 5.",
        "expected_output_json": json.dumps(
            {"test_two": "PASSED", "TestT.\x1b[1mtest_type": "PASSED"}
        ),
        "parsed_commit_content": json.dumps(
            {
                "file_diffs": [
                    {"header": {"file": {"path": "double.py"}}, "new_file_content": AFTER},
                    {"header": {"file": {"path": "logo.png"}}, "is_binary_file": True},
                ]
            }
        ),
    },
    "Multi-SWE-bench": {
        "org": "Org",
        "repo": "Repo",
        "number": 12,
        "title": "Double",
        "body": "double(2) is 5.",
        "fix_patch": FIX,
        "test_patch": TEST_PATCH,
        "lang": "python",
        "f2p_tests": {},
        "s2p_tests": {},
        "n2p_tests": {F2P[0]: {"run": "NONE", "test": "FAIL", "fix": "PASS"}},
        "p2p_tests": {P2P[0]: {}},
        "resolved_issues": [{"title": "Issue", "body": "Text"}],
    },
}


@pytest.mark.parametrize("family", ROWS)
def test_each_family_is_told_by_its_columns(family: str) -> None:
    task = task_from_row(ROWS[family])
    assert task.metadata["family"] == family
    assert "double(2) is 5" in task.instruction
    assert isinstance(task.image, NamedImage)
    judge = task.verifier.judge
    assert judge is not None
    if family == "R2E-Gym":
        assert judge.expected is not None
        return
    assert judge.fail_to_pass == tuple(F2P)
    assert judge.pass_to_pass == tuple(P2P)
    assert task.solution is not None
    assert ("-R " in task.solution.files["solve.sh"]) == (family == "SWE-smith")
    assert ("git apply" in task.setup) == (family == "SWE-smith")


def test_the_names_of_images() -> None:
    def image(family: str) -> str:
        found = task_from_row(ROWS[family]).image
        assert isinstance(found, NamedImage)
        return found.name

    assert image("SWE-bench") == "swebench/sweb.eval.x86_64.org_1776_repo-12:latest"
    assert image("SWE-bench Pro") == "jefzda/sweap-images:org.repo-12"
    assert image("R2E-Gym") == "namanjain12/repo:abc"
    assert image("Multi-SWE-bench") == "mswebench/org_m_repo:pr-12"
    assert task_from_row(ROWS["Multi-SWE-bench"]).name == "Org__Repo-12"
    assert image("SWE-Gym") == "xingyaoww/sweb.eval.x86_64.pydantic_s_pydantic-12:latest"
    gym = task_from_row(SWE_BENCH, name="swe_gym").image
    assert gym == NamedImage(name="xingyaoww/sweb.eval.x86_64.org_s_repo-12:latest")


def test_lists_of_tests_are_data() -> None:
    """Trap 26: lower-case columns hold Python literals; nothing is ever evaluated."""
    row = ROWS["SWE-bench Pro"] | {"fail_to_pass": "__import__('os').system('false')"}
    with pytest.raises(TaskBroken, match="SWE-bench Pro"):
        task_from_row(row)
    with pytest.raises(TaskBroken, match="FAIL_TO_PASS"):
        task_from_row(SWE_BENCH | {"FAIL_TO_PASS": "[1"})
    with pytest.raises(TaskBroken, match="PASS_TO_PASS"):
        task_from_row({k: v for k, v in SWE_BENCH.items() if k != "PASS_TO_PASS"})
    with pytest.raises(TaskBroken, match="has the columns a; looked for R2E-Gym: expected_output"):
        task_from_row({"a": 1})
    with pytest.raises(TaskBroken, match="'../x' cannot name a task"):
        task_from_row(SWE_BENCH | {"instance_id": "../x"})


def test_what_cannot_be_run_is_named(tmp_path: Path) -> None:
    missing = task_from_row(ROWS["SWE-bench Pro"], source=tmp_path / "rows.jsonl")
    assert [said.split(" (")[0] for said in missing.unsupported] == [
        "its run_script.sh",
        "its parser.py",
    ]
    scripts = tmp_path / "run_scripts/Org__repo-12"
    scripts.mkdir(parents=True)
    for name in ("run_script.sh", "parser.py"):
        (scripts / name).write_text("true\n")
    found = task_from_row(ROWS["SWE-bench Pro"], source=tmp_path / "rows.jsonl")
    assert found.unsupported == ()
    assert "run_script.sh tests/test_new.py,tests/test_old.py" in found.verifier.files["test.sh"]
    config = {"test_cmd": ["mix deps.get", "mix test"], "log_parser": "parse_log_elixir"}
    row = ROWS["SWE-rebench"] | {"install_config": config}
    assert task_from_row(row).unsupported == ("the log parser elixir",)
    go = task_from_row(row | {"install_config": config | {"log_parser": "parse_log_gotest"}})
    assert go.unsupported == ()
    assert go.verifier.judge is not None
    assert go.verifier.judge.parser == "go"
    assert "(mix deps.get && mix test)" in go.verifier.files["test.sh"]
    patch = diff("src/a_test.go", None, "x\n")
    (said,) = task_from_row(SWE_BENCH | {"repo": "gin-gonic/gin", "test_patch": patch}).unsupported
    assert said.startswith("a test command: the row has no test_cmd")
    row = SWE_BENCH | {"test_cmd": "mvn -Dtest=A", "log_parser": "maven", "test_patch": patch}
    assert "(set -x; mvn -Dtest=A)" in task_from_row(row).verifier.files["test.sh"]


def test_files_are_reset_one_by_one() -> None:
    """Trap 27: never the whole tree; new files have nothing to go back to."""
    script = task_from_row(SWE_BENCH).verifier.files["test.sh"]
    assert "; rm -rf -- tests/test_new.py\n" in script
    assert "git checkout HEAD -- tests/test_old.py\n" in script
    assert "reset --hard" not in script
    crlf = SWE_BENCH | {"test_patch": TEST_PATCH.replace("\n", "\r\n").removesuffix("\r\n")}
    assert task_from_row(crlf).verifier.files["test.patch"].count("\r\n") == (
        TEST_PATCH.count("\n") - 1
    )


def test_commands_of_repositories_that_have_their_own() -> None:
    patch = diff("tests/queries/test_q.py", None, "x\n") + diff("tests/a/data.json", None, "x\n")
    django = task_from_row(SWE_BENCH | {"repo": "django/django", "test_patch": patch})
    assert "--parallel 1 queries.test_q)" in django.verifier.files["test.sh"]
    assert django.verifier.judge is not None
    assert django.verifier.judge.parser == "unittest"
    patch = diff("test-data/unit/check.test", None, "[case one]\n[case two]\n") + patch
    mypy = task_from_row(SWE_BENCH | {"repo": "python/mypy", "test_patch": patch})
    assert "-k 'one or two')" in mypy.verifier.files["test.sh"]
    chart = task_from_row(SWE_BENCH | {"repo": "chartjs/Chart.js"}).verifier.judge
    assert isinstance(chart, Judge)
    assert chart.missing_is_ok


ROW = SWE_BENCH | {"instance_id": "Org__repo-13", "FAIL_TO_PASS": F2P, "PASS_TO_PASS": P2P}


def test_rows_are_read_from_every_kind_of_file(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [ROW | {"instance_id": f"Org__repo-{number}"} for number in (12, 13)]
    lines = "".join(json.dumps(row) + "\n\n" for row in rows)
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "b.json").write_text(json.dumps(rows))
    (tmp_path / "c.json").write_text(json.dumps({"rows": [{"row": row} for row in rows]}))
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "e.json.gz").write_bytes(gzip.compress(json.dumps(rows).encode()))
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "f.parquet")
    for path in sorted(tmp_path.iterdir()):
        assert list(read_rows(path)) == rows, path
        suite = find_suite("swebench", path)
        assert suite.slugs() == ("Org__repo-12", "Org__repo-13")
        assert suite.task("Org__repo-12").digest == task_from_row(rows[0]).digest
    with pytest.raises(TaskNotFound, match="did you mean Org__repo-13"):
        suite.task("org__repo-13")


def test_parquet_gives_every_row_the_tests_of_all_rows(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    row = {k: v for k, v in ROWS["Multi-SWE-bench"].items() if k not in ("f2p_tests", "s2p_tests")}
    other = row | {"number": 13, "p2p_tests": {"tests/test_old.py::test_other": {"fix": "PASS"}}}
    table = pyarrow.Table.from_pylist([row | {"p2p_tests": {P2P[0]: {"fix": "PASS"}}}, other])
    parquet.write_table(table, tmp_path / "rows.parquet")
    judge = find_suite("swebench", tmp_path / "rows.parquet").task("Org__Repo-12").verifier.judge
    assert judge is not None
    assert judge.pass_to_pass == tuple(P2P)


def test_what_is_no_file_of_rows_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, data in {
        "a.jsonl": b"{", "b.json": b"3", "c.json.gz": b"no", "d.parquet": b"PAR1",
        "e.json": b"[" * 100_000, "f.jsonl.gz": gzip.compress(b"{}" * 99)[:20],
    }.items():  # fmt: skip
        (tmp_path / name).write_bytes(data)
        with pytest.raises(TaskBroken, match=r"cannot be read"):
            find_suite("swebench", tmp_path / name)
    (tmp_path / "g.jsonl").write_text(json.dumps(SWE_BENCH) + '\n{"a": 1}\n')
    with pytest.raises(TaskBroken, match=r"g.jsonl, row 2: of no known family"):
        find_suite("swebench", tmp_path / "g.jsonl")
    # A folder's other files are read, and what could not be is kept.
    suite = find_suite("swebench", tmp_path)
    assert suite.slugs() == ("Org__repo-12",)
    assert len(suite.broken) == 7
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install 'sprout_env\[parquet\]'"):
        find_suite("swebench", tmp_path / "d.parquet")


def test_a_data_set_chooses_files_splits_and_families(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "swebench"
    for number, name in enumerate(
        ("SWE-bench_Verified/data/test-00000.jsonl", "SWE-bench_Lite/data/dev-00000.jsonl",
         "SWE-bench_Lite/data/test-00000.jsonl", "other.jsonl")
    ):  # fmt: skip
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(SWE_BENCH | {"instance_id": f"n{number}"}))
    monkeypatch.setenv("SPROUT_TASKS", str(tmp_path))

    def slugs(dataset: str | None) -> tuple[str, ...]:
        return tuple(sorted(find_suite("swebench", None, dataset).slugs()))

    assert slugs(None) == ("n0", "n1", "n2", "n3")
    assert slugs("verified") == ("n0",)
    assert slugs("Lite") == ("n1", "n2")
    assert slugs("lite/dev") == ("n1",)
    assert slugs("swe_bench_lite/test") == ("n2",)
    # A family where no file is named so: all rows are read as its own.
    assert slugs("SWE-Gym") == ("n0", "n1", "n2", "n3")
    image = find_suite("swebench", root, "swe-gym/other").task("n3").image
    assert image == NamedImage(name="xingyaoww/sweb.eval.x86_64.n3:latest")
    with pytest.raises(TaskBroken, match="named like 'multilingual', nor a family: .*other.jsonl"):
        slugs("multilingual")
    with pytest.raises(TaskNotFound, match="verified"):
        find_suite("deepswe", None, "verified")


R2E_TEST = TEST + "class TestT:\n    def test_type(self):\n        assert double(1) is not None\n"
RUN = "cd $(dirname $0)/{0} && python3 -m pytest -rA {1}"
PRO_PARSER = (
    "import json, sys\nlines = [line.split() for line in open(sys.argv[1])]\n"
    "tests = [{'name': w[1], 'status': w[0]} for w in lines if w[:1] in (['PASSED'], ['FAILED'])]\n"
    "json.dump({'tests': tests}, open(sys.argv[3], 'w'))\n"
)
IMAGES = "swebench/* xingyaoww/* nebius/* swerebench/* namanjain12/* mswebench/* jefzda/*".split()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, debian_base: Path) -> Iterator[DiskStore]:
    """A store whose alias stands for images that no registry here has."""
    folder = tmp_path_factory.mktemp("swebench")
    context = folder / "context"
    for name, text in {
        "repo/double.py": BEFORE,
        "repo/tests/test_old.py": OLD_TEST,
        "repo/conftest.py": "",
        "home/run.sh": RUN.format("Repo", "tests"),
        "home/fix.patch": FIX,
        "home/test.patch": TEST_PATCH,
        "r2e/run_tests.sh": RUN.format(".", "-p no:cacheprovider r2e_tests"),
        "r2e/parsed_commit.json": ROWS["R2E-Gym"]["parsed_commit_content"],
        "r2e_tests/test_1.py": R2E_TEST,
    }.items():
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        (context / name).write_text(text)
    subprocess.run(["git", "init", "-q", context / "repo"], check=True)
    git = "git -C /testbed -c user.name=a -c user.email=a@b.invalid"
    (context / "Dockerfile").write_text(
        "FROM our/debian\nCOPY repo /testbed\nWORKDIR /testbed\nRUN chown -R root /testbed && "
        f"{git} add -A && {git} commit -qm base && ln -sf python3 /usr/bin/python\n"
        "COPY home /home\nRUN cp -r /testbed /app && cp -r /testbed /repo && "
        "cp -r /testbed /home/Repo\nCOPY r2e /testbed\nCOPY r2e_tests /r2e_tests\n"
    )
    path = folder / "store"
    opened = open_store(path)
    images.alias(path, "our/debian", FolderImage(path=debian_base))
    base = base_for(opened, DockerfileImage(context=context))
    for name in IMAGES:
        images.alias(path, name, base.digest)
    yield opened
    opened.close()
    shutil.rmtree(path)


PLAYED: dict[str, dict[str, Any]] = ROWS | {
    "Verified": SWE_BENCH | {"difficulty": "<15 min fix"},
    "SWE-rebench V1": ROWS["SWE-rebench"]
    | {
        "image_name": None,
        "docker_image": "swerebench/x",
        "install_config": {"test_cmd": "pytest -rA"},
    },
    "SWE-smith": ROWS["SWE-smith"]
    # The one image holds the faulty code: here the bug is a test's.
    | {
        "patch": diff("tests/test_old.py", OLD_TEST, OLD_TEST.replace("is not None", "== 9")),
        "FAIL_TO_PASS": P2P,
        "PASS_TO_PASS": [],
    },
}


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize("family", PLAYED)
def test_a_row_of_each_family_is_played_and_judged(
    store: DiskStore, tmp_path: Path, family: str
) -> None:
    scripts = tmp_path / "run_scripts/Org__repo-12"
    scripts.mkdir(parents=True)
    (scripts / "run_script.sh").write_text("python3 -m pytest -rA ${1//,/ }")
    (scripts / "parser.py").write_text(PRO_PARSER)
    (tmp_path / "rows.jsonl").write_text(json.dumps(PLAYED[family]))
    (task,) = find_suite("swebench", tmp_path / "rows.jsonl")
    assert task.unsupported == ()
    base = base_for(store, task.image)
    idle, solved = nop(store, task, base), oracle(store, task, base)
    assert (idle.outcome, idle.reward) == ("failed", 0.0), idle
    wanted = {"R2E-Gym": ("test_two",), "SWE-smith": tuple(P2P)}
    assert idle.failing == wanted.get(family, tuple(F2P))
    assert (solved.outcome, solved.reward) == ("passed", 1.0), solved
    assert solved.environment == "substituted"


@pytest.mark.root
@pytest.mark.slow
def test_what_an_agent_finds_and_forges(store: DiskStore, tmp_path: Path) -> None:
    rows = [SWE_BENCH, ROWS["R2E-Gym"], ROWS["Multi-SWE-bench"], PLAYED["SWE-smith"]]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    env = sprout_env.make(
        "sprout/SWEBench-v0", tasks_path=str(tmp_path / "rows.jsonl"), store=str(store.path)
    )

    def ran(command: str) -> str:
        return str(env.step(command)[0]["output"]).strip()

    try:
        env.reset(options={"task": "abc"})
        # Tests and solutions that the image holds are out of sight, and back to judge.
        assert ran("ls -d /r2e_tests /testbed/r*t*_* /testbed/parsed* 2>/dev/null") == ""
        assert ran("echo $PATH").startswith("/testbed/.venv/bin:")
        assert env.unwrapped.grade().failing == ("test_two",)  # type: ignore[attr-defined]
        env.reset(options={"task": "Org__Repo-12"})
        assert (
            ran("ls /home; echo 'echo PASSED tests/test_new.py::test_two' > /home/run.sh") == "Repo"
        )
        assert env.unwrapped.grade().failing == tuple(F2P)  # type: ignore[attr-defined]
        # Where the patch is the bug, no history holds the time before it.
        env.reset(options={"task": "org__repo.abc.func_1"})
        assert ran("git status -suno; git log --all --format=%s; git reflog | wc -l") == "setup\n1"
        assert ran("git show HEAD:tests/test_old.py | grep -c 9") == "1"

        env.reset(options={"task": "Org__repo-12"})
        # Trap 18: lines that only look like a result are checked against the runner's status,
        # and what the agent did to the runner fails instead of deciding nothing.
        for said in ("PASSED tests/test_new.py::test_two", ""):
            ran(f"echo 'print(\"{said}\", flush=True); import os; os._exit(9)' > conftest.py")
            assert env.unwrapped.grade().outcome == "failed"  # type: ignore[attr-defined]
        *_, reward, terminated, _, info = env.step("submit")
        assert (reward, terminated) == (0.0, True), info["verdict"]
        assert "the agent's changes are the cause" in info["verdict"]["reason"]
    finally:
        env.close()
