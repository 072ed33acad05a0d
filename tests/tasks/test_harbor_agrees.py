"""What we read in a task folder is what the ``harbor`` package's own models read in it.

The package needs Python 3.12 and many libraries: it lives in an environment of its own, made once
under the user's cache. ``SPROUT_HARBOR_TASKS`` may name more folders to compare, colon-separated.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from sprout_env.errors import TaskBroken
from sprout_env.tasks.folder import content_digest
from sprout_env.tasks.harbor import load_task
from sprout_env.tasks.suites import SEEDBED
from sprout_env.tasks.task import Limits, NamedImage, NetworkPolicy, Task, VerifierSpec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HARBOR = "harbor==0.25.0"
Dump = dict[str, Any]


def _python312() -> str | None:
    candidates = [shutil.which("python3.12"), shutil.which("python3.13")]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates += [str(path) for path in sorted(pyenv.glob("3.1[23]*/bin/python"))]
    if shutil.which("pyenv"):
        root = subprocess.run(["pyenv", "root"], capture_output=True, text=True, check=False)
        found = sorted(Path(root.stdout.strip() or "/-").glob("versions/3.1[23]*/bin/python"))
        candidates += [str(path) for path in found]
    for candidate in candidates:
        # pyenv's shims exist for versions that are not switched on.
        if candidate and not subprocess.run([candidate, "-c", ""], capture_output=True).returncode:
            return candidate
    return None


@cache
def _harbor_python() -> Path | str:
    """Return the interpreter that has harbor, or why there is none."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "sprout-tests"
    venv = folder / HARBOR.replace("==", "-")
    python = venv / "bin/python"
    done = venv / ".complete"
    if done.exists():
        return python
    newer = _python312()
    if newer is None:
        return "there is no Python 3.12 on this machine"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{venv.name}.lock").open("w") as lock:
        # Another run of the tests may be making it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if done.exists():
            return python
        shutil.rmtree(venv, ignore_errors=True)
        for command in (
            [newer, "-m", "venv", str(venv)],
            [str(python), "-m", "pip", "install", "-q", HARBOR],
        ):
            tried = subprocess.run(command, capture_output=True, text=True, check=False)
            if tried.returncode:
                said = tried.stderr.strip().splitlines()
                return f"{HARBOR} cannot be installed: {said[-1] if said else tried.returncode}"
        done.touch()
        return python


@pytest.fixture
def harbor() -> Callable[[list[Path]], list[Dump]]:
    python = _harbor_python()
    if isinstance(python, str):
        pytest.skip(python)

    def ask(folders: list[Path]) -> list[Dump]:
        script = Path(__file__).with_name("harbor_dump.py")
        done = subprocess.run(
            [str(python), str(script)],
            input="".join(f"{folder}\n" for folder in folders),
            capture_output=True,
            text=True,
            check=True,
            env={k: v for k, v in os.environ.items() if not k.startswith("PYTHON")},
        )
        return [json.loads(line) for line in done.stdout.splitlines()]

    return ask


def limits(environment: Dump, **more: Any) -> Dump:
    return {
        "cpus": environment["cpus"],
        "memory_mb": environment["memory_mb"],
        "storage_mb": environment["storage_mb"],
        **more,
    }


def of(found: Limits, *names: str) -> Dump:
    return {name: getattr(found, name) for name in ("cpus", "memory_mb", "storage_mb", *names)}


def network(theirs: Dump) -> NetworkPolicy:
    """Our policy for Harbor's."""
    mode = theirs["network_mode"].replace("no-network", "none")
    return NetworkPolicy(mode=mode, allowed_hosts=tuple(theirs["allowed_hosts"]))


def text(value: object) -> str | None:
    return None if value is None else str(value)


def artifacts(entries: list[Any]) -> list[tuple[Any, ...]]:
    found = []
    for entry in entries:
        one = {"source": entry} if isinstance(entry, str) else entry
        if one.get("service") in (None, "main"):
            found.append((one["source"], one.get("destination"), tuple(one.get("exclude") or ())))
    return found


def check_verifier(
    ours: VerifierSpec, task: Task, theirs: Dump, own: Dump, step: Dump | None, mode: str
) -> None:
    """Compare a verifier; ``own`` is the section that rules, ``theirs`` the whole file."""
    shared = theirs["verifier"]
    assert ours.mode == mode
    assert ours.timeout_s == own["timeout_sec"]
    assert ours.user == text(own["user"] if own["user"] is not None else shared["user"])
    assert ours.env == {**shared["env"], **own["env"]}
    sections = [theirs] if step is None else [theirs, step]
    hooks = [h for s in sections for h in s["verifier"]["collect"] if h["service"] == "main"]
    assert [(h.command, h.timeout_s, h.user) for h in ours.collect] == [
        (h["command"], h["timeout_sec"], text(h["user"])) for h in hooks
    ]
    assert [(a.source, a.destination, a.exclude) for a in ours.artifacts] == [
        entry for s in sections for entry in artifacts(s["artifacts"])
    ]


def compare(task: Task, dump: Dump) -> None:
    """Compare field by field; what ``Task`` has no field for must be in its metadata."""
    theirs = dump["config"]
    environment, agent = theirs["environment"], theirs["agent"]
    folder = task.folder
    assert folder is not None
    kept = task.metadata["harbor"]
    assert kept.get("name", folder.name) == dump["name"]
    assert content_digest(folder) == dump["digest"] == task.digest
    assert kept["schema_version"] == theirs["schema_version"]
    assert kept.get("source") == theirs["source"]
    assert theirs["metadata"].items() <= task.metadata.items()
    assert kept["build_timeout_s"] == environment["build_timeout_sec"]
    assert kept.get("skills_dir") == environment["skills_dir"]
    if environment["docker_image"]:
        assert isinstance(task.image, NamedImage)
        assert task.image.name == environment["docker_image"]
    else:
        assert not isinstance(task.image, NamedImage)
    assert (task.workdir, task.env) == (environment["workdir"], environment["env"])
    assert task.user == text(agent["user"])
    assert of(task.limits, "agent_timeout_s") == limits(
        environment, agent_timeout_s=agent["timeout_sec"]
    )
    assert task.network == network(dump["networks"]["agent"])
    assert task.verifier.network == network(dump["networks"]["verifier"])
    check = environment["healthcheck"]
    assert (task.healthcheck and task.healthcheck.model_dump()) == (
        check and {key.replace("_sec", "_s"): value for key, value in check.items()}
    )
    for feature, asked in (
        ("GPUs", environment["gpus"] or environment["gpu_types"]),
        ("TPUs", environment["tpu"]),
        ("Windows", environment["os"] == "windows"),
        ("MCP servers", environment["mcp_servers"]),
    ):
        assert any(said.startswith(feature) for said in task.unsupported) == bool(asked), feature
    if task.solution is not None:
        assert task.solution.env == theirs["solution"]["env"]

    if not theirs["steps"]:
        assert task.steps == ()
        assert task.instruction == dump["instruction"]
        check_verifier(task.verifier, task, theirs, theirs["verifier"], None, dump["mode"])
        own = dump["environment"] or environment
        assert of(task.verifier.limits) == limits(own)
        return
    assert task.step_rewards == (theirs["multi_step_reward_strategy"] or "mean")
    assert [step.name for step in task.steps] == [step["name"] for step in theirs["steps"]]
    for ours, step, more in zip(task.steps, theirs["steps"], dump["steps"], strict=True):
        assert ours.instruction == more["instruction"]
        check_verifier(ours.verifier, task, theirs, step["verifier"], step, more["mode"])
        assert ours.verifier.network == network(more["networks"]["verifier"])
        assert of(ours.verifier.limits) == limits(more["environment"] or environment)
        least = step["min_reward"]
        given = least if isinstance(least, dict) else {} if least is None else {"reward": least}
        assert ours.min_reward == given
        timeout = step["agent"]["timeout_sec"]
        assert ours.agent_timeout_s == (agent["timeout_sec"] if timeout is None else timeout)
        assert (ours.healthcheck is None) == (step["healthcheck"] is None)


VARIANTS = {
    "empty": "",
    "old": 'version = "1.0"\n[environment]\nmemory = "4G"\nstorage = "10G"\ncpus = 2.0\n'
    "allow_internet = false\n[agent]\ntimeout_sec = 900.0\n[verifier]\ntimeout_sec = 900.0\n",
    "old-public": '[environment]\nmemory = "512M"\nallow_internet = true\n',
    "both": '[environment]\nallow_internet = true\nnetwork_mode = "no-network"\n',
    "phases": '[environment]\nnetwork_mode = "public"\n[agent]\nnetwork_mode = "no-network"\n'
    'user = 1000\n[verifier]\nnetwork_mode = "allowlist"\nallowed_hosts = ["PyPI.org.", "*.a.io"]\n'
    'user = "root"\nenv = { A = "${A}", B = "${B:-b}" }\n',
    "separate": 'artifacts = ["/out", {source = "/b", exclude = ["*.o"]}]\n[verifier]\n'
    'environment_mode = "separate"\n[verifier.environment]\nmemory_mb = 100\n'
    'network_mode = "no-network"\n[[verifier.collect]]\ncommand = "true"\ntimeout_sec = 5\n'
    "[environment]\ncpus = 1\nmemory_mb = 2048\n",
    "offline": '[environment]\nnetwork_mode = "no-network"\n[verifier.environment]\ncpus = 1\n',
    "offline-agent": '[agent]\nnetwork_mode = "no-network"\n',
    "inferred": '[verifier.environment]\ncpus = 3\n[environment]\nnetwork_mode = "public"\n',
    "copied": '[verifier]\nenvironment_mode = "separate"\n[environment]\nmemory_mb = 77\n',
    "health": '[environment]\nworkdir = "/w"\nskills_dir = "/s"\nenv = { X = "${HOME}" }\n'
    '[environment.healthcheck]\ncommand = "true"\nretries = 9\nstart_period_sec = 1.5\n',
    "refused": '[environment]\nos = "Linux"\ngpus = 1\n[[environment.mcp_servers]]\nname = "m"\n'
    'url = "http://m"\n',
    "named": 'source = "here"\n[task]\nname = "org/other"\nversion = "3"\nkeywords = ["a"]\n'
    '[metadata]\nlanguage = "go"\n[solution]\nenv = { K = "v" }\n[environment]\n'
    'docker_image = "registry.invalid/a:1"\nbuild_timeout_sec = 5\n',
    "steps": 'multi_step_reward_strategy = "final"\n[agent]\ntimeout_sec = 50\n[verifier]\n'
    'user = "nobody"\nenv = { A = "1", B = "2" }\ntimeout_sec = 9\n[[verifier.collect]]\n'
    'command = "one"\n[[steps]]\nname = "a"\nmin_reward = 0.5\nartifacts = ["/a"]\n'
    '[steps.agent]\ntimeout_sec = 7\n[[steps]]\nname = "b"\nmin_reward = { x = 1 }\n'
    '[steps.verifier]\nenvironment_mode = "separate"\ntimeout_sec = 3\nenv = { B = "3" }\n'
    'network_mode = "no-network"\n'
    '[[steps.verifier.collect]]\ncommand = "two"\n[steps.healthcheck]\ncommand = "true"\n',
}
BROKEN = {
    "shared-with-table": '[verifier]\nenvironment_mode = "shared"\n[verifier.environment]\n'
    "cpus = 1\n",
    "hosts-without-list": '[environment]\nnetwork_mode = "public"\nallowed_hosts = ["a.io"]\n',
    "nan": "[environment]\ncpus = nan\n",
    "contradiction": '[environment]\nmemory = "4G"\nmemory_mb = 5\n',
    "climbing": 'artifacts = ["/a/../b"]\n',
    "package": '[task]\nname = "a/../b"\n',
    "twice": '[[steps]]\nname = "a"\n[[steps]]\nname = "A"\n',
    "step-name": '[[steps]]\nname = "a/b"\n',
    "url-host": '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["http://a.io"]\n',
}


def write(folder: Path, toml: str) -> Path:
    for part in ("environment", "tests", "solution"):
        (folder / part).mkdir(parents=True)
    (folder / "instruction.md").write_text("# canary 123\n\n\nDo it.\n")
    (folder / "environment/Dockerfile").write_text("FROM scratch\n")
    (folder / "tests/test.sh").write_text("true\n")
    (folder / "solution/solve.sh").write_text("true\n")
    (folder / "task.toml").write_text(toml)
    for name in ("a", "b"):
        (folder / "steps" / name / "tests").mkdir(parents=True)
        (folder / "steps" / name / "instruction.md").write_text(f"<!-- canary -->\nStep {name}.\n")
    return folder


def test_all_spellings_are_read_as_harbor_reads_them(
    tmp_path: Path, harbor: Callable[[list[Path]], list[Dump]]
) -> None:
    folders = [write(tmp_path / name, toml) for name, toml in VARIANTS.items()]
    for folder, dump in zip(folders, harbor(folders), strict=True):
        assert "error" not in dump, dump
        compare(load_task(folder), dump)


def test_what_harbor_refuses_is_refused(
    tmp_path: Path, harbor: Callable[[list[Path]], list[Dump]]
) -> None:
    folders = [write(tmp_path / name, toml) for name, toml in BROKEN.items()]
    for folder, dump in zip(folders, harbor(folders), strict=True):
        assert "error" in dump, folder.name
        with pytest.raises(TaskBroken):
            load_task(folder)


def test_the_bundled_tasks_and_those_at_hand_agree(
    harbor: Callable[[list[Path]], list[Dump]],
) -> None:
    named = os.environ.get("SPROUT_HARBOR_TASKS", "").split(":")
    roots = [SEEDBED, *(Path(root) for root in named if root)]
    folders = [path.parent for root in roots for path in sorted(root.glob("*/task.toml"))]
    assert folders
    for folder, dump in zip(folders, harbor(folders), strict=True):
        if "error" in dump:
            with pytest.raises(TaskBroken):
                load_task(folder)
            continue
        compare(load_task(folder), dump)
