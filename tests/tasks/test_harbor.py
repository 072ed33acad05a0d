"""Task folders in every spelling, and broken ones."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sprout_env.errors import ConfigError, TaskBroken
from sprout_env.tasks import load_task
from sprout_env.tasks.folder import included_files
from sprout_env.tasks.lint import networks
from sprout_env.tasks.task import DockerfileImage, NamedImage, NetworkPolicy, Task, VerifierSpec
from sprout_env.tasks.templates import resolve_env, secrets_of

Writer = Callable[..., Path]


def test_minimal_folder_gets_harbors_defaults(write_task: Writer) -> None:
    folder = write_task()
    task = load_task(folder, "mine")
    assert (task.name, task.suite, task.instruction) == ("one", "mine", "Do it.\n")
    assert task.image == DockerfileImage(context=folder / "environment")
    assert task.verifier.mode == "shared"
    assert task.verifier.tests == folder / "tests"
    assert task.verifier.timeout_s == 600
    assert task.limits.agent_timeout_s is None
    assert task.network == task.verifier.network == NetworkPolicy(mode="public")
    assert task.warnings == ()
    assert task.solution is None
    assert task.unsupported == ()


def test_new_spelling(write_task: Writer) -> None:
    task = load_task(
        write_task(
            """
schema_version = "1.3"
artifacts = ["/logs/artifacts/model.patch", {source = "/out", exclude = ["*.o"]}]
[task]
name = "org/one"
[metadata]
category = "x"
[metadata.sprout]
max_turns = 90
live = true
reward_key = "score"
pass_threshold = 0.9
[agent]
timeout_sec = 5400
network_mode = "no-network"
user = 1000
[verifier]
timeout_sec = 1800.0
environment_mode = "separate"
user = "root"
[verifier.env]
KEY = "${KEY:-none}"
[verifier.environment]
memory_mb = 100
network_mode = "public"
[[verifier.collect]]
command = "git diff > /logs/artifacts/model.patch"
timeout_sec = 300
[environment]
network_mode = "allowlist"
allowed_hosts = ["PyPI.org.", "*.example.com", "10.0.0.0/8"]
docker_image = "registry/agent:1"
cpus = 2
memory_mb = 8192
storage_mb = 20480
workdir = "/app"
[environment.env]
A = "b"
[environment.healthcheck]
command = "true"
[solution.env]
S = "t"
""",
            **{
                "tests/Dockerfile": "FROM registry/agent:1\n",
                "solution/solve.sh": "true\n",
            },
        )
    )
    assert task.folder is not None
    agents = NamedImage(
        name="registry/agent:1", build=DockerfileImage(context=task.folder / "environment")
    )
    assert task.image == agents
    assert task.network == NetworkPolicy(mode="none")
    verifier = task.verifier
    assert verifier.mode == "separate"
    assert verifier.tests is None  # the image owns them
    assert verifier.image == DockerfileImage(context=task.folder / "tests", known=(agents,))
    assert verifier.network == NetworkPolicy(mode="public")
    assert verifier.limits.memory_mb == 100
    assert verifier.env == {"KEY": "${KEY:-none}"}
    assert verifier.collect[0].timeout_s == 300
    assert [a.source for a in verifier.artifacts] == ["/logs/artifacts/model.patch", "/out"]
    assert verifier.artifacts[1].exclude == ("*.o",)
    assert (verifier.live, verifier.reward_key, verifier.pass_threshold) == (True, "score", 0.9)
    assert (task.user, task.workdir, task.env) == ("1000", "/app", {"A": "b"})
    assert (task.limits.max_turns, task.limits.agent_timeout_s) == (90, 5400)
    assert (task.limits.cpus, task.limits.memory_mb, task.limits.storage_mb) == (2, 8192, 20480)
    assert task.solution is not None
    assert task.solution.env == {"S": "t"}
    assert task.healthcheck is not None
    assert task.healthcheck.retries == 3
    assert task.metadata["harbor"]["name"] == "org/one"
    assert task.warnings == ()


def test_allowlist_is_normalised(write_task: Writer) -> None:
    toml = """[environment]
network_mode = "allowlist"
allowed_hosts = ["PyPI.org.", "*.Example.com", "10.0.0.0/8", "2001:DB8::1"]"""
    assert load_task(write_task(toml)).network == NetworkPolicy(
        mode="allowlist",
        allowed_hosts=("pypi.org", "*.example.com", "10.0.0.0/8", "2001:db8::1"),
    )


def test_old_spelling(write_task: Writer) -> None:
    task = load_task(
        write_task(
            """
version = "1.0"
[environment]
memory = "4G"
storage = "512M"
cpus = 2.0
allow_internet = true
"""
        )
    )
    assert task.metadata["harbor"]["schema_version"] == "1.0"
    assert (task.limits.memory_mb, task.limits.storage_mb) == (4096, 512)
    assert task.network == NetworkPolicy(mode="public")


@pytest.mark.parametrize(
    ("toml", "agent", "verifier"),
    [
        ("", "public", "public"),
        ("[environment]\nallow_internet = true\nnetwork_mode = 'no-network'", "none", "none"),
        ("[environment]\nallow_internet = false", "none", "none"),
        ("[environment]\nnetwork_mode = 'no-network'", "none", "none"),
        ("[agent]\nnetwork_mode = 'no-network'", "none", "public"),
        ("[verifier]\nnetwork_mode = 'no-network'", "public", "none"),
        ("[environment]\nnetwork_mode = 'no-network'\n[agent]\nnetwork_mode = 'public'",
         "public", "none"),
        ("[environment]\nnetwork_mode = 'no-network'\n[verifier.environment]\ncpus = 1",
         "none", "public"),
        ("[verifier.environment]\nallow_internet = false", "public", "none"),
        ("[verifier.environment]\nallow_internet = false\n[verifier]\nnetwork_mode = 'public'",
         "public", "public"),
    ],
)  # fmt: skip
def test_network_precedence(write_task: Writer, toml: str, agent: str, verifier: str) -> None:
    task = load_task(write_task(toml))
    assert networks(task) == f"agent {agent}, verifier {verifier}"


def test_a_network_of_ones_own_is_the_agents(write_task: Writer) -> None:
    steps = {f"steps/{name}/instruction.md": "x\n" for name in "ab"}
    toml = """[[steps]]
name = "a"
[[steps]]
name = "b"
[steps.verifier]
network_mode = "allowlist"
allowed_hosts = ["a.io", "b.io"]
"""
    task = load_task(write_task(toml, **steps))
    assert task.with_network(None) is task
    closed = task.with_network(NetworkPolicy(mode="none"))
    assert networks(closed) == ("agent none, verifier public, verifier of b allowlist: a.io, b.io")
    rows = Task(name="r", instruction="x", image=NamedImage(name="i"), digest="d",
                verifier=VerifierSpec())  # fmt: skip
    opened = rows.with_network(NetworkPolicy.model_validate("public"))
    assert networks(opened) == "agent public, verifier none"


def test_verifier_phase_overrides_the_environment(write_task: Writer) -> None:
    task = load_task(
        write_task('[environment]\nnetwork_mode="no-network"\n[verifier]\nnetwork_mode="public"')
    )
    assert task.network.mode == "none"
    assert task.verifier.network == NetworkPolicy(mode="public")


def test_separate_without_image_uploads_the_tests(write_task: Writer) -> None:
    folder = write_task('[verifier]\nenvironment_mode = "separate"')
    verifier = load_task(folder).verifier
    assert (verifier.mode, verifier.image, verifier.tests) == ("separate", None, folder / "tests")


def test_separate_named_image_wins_over_dockerfile(write_task: Writer) -> None:
    task = load_task(
        write_task('[verifier.environment]\ndocker_image="v"', **{"tests/Dockerfile": "FROM x"})
    )
    assert task.verifier.mode == "separate"
    assert task.verifier.image == NamedImage(name="v")


def test_canary_is_stripped_from_the_head_only(write_task: Writer) -> None:
    text = "<!-- x canary GUID 1 -->\n# Canary: y\n\n\n# Title\n\n# canary inside\nEnd\n"
    task = load_task(write_task(**{"instruction.md": text}))
    assert task.instruction == "# Title\n\n# canary inside\nEnd\n"


def test_unknown_keys_are_warnings(write_task: Writer) -> None:
    task = load_task(
        write_task(
            """
surprise = 1
multi_step_reward_mode = "mean"
[agent]
colour = "red"
[environment]
network_mode = "no-network"
[[verifier.collect]]
command = "true"
extra = 2
[metadata]
anything = "goes"
[metadata.sprout]
typo = 1
"""
        )
    )
    assert set(task.warnings) == {
        "task.toml: unknown key surprise",
        "task.toml: unknown key multi_step_reward_mode",
        "task.toml: unknown key agent.colour",
        "task.toml: unknown key verifier.collect[0].extra",
        "task.toml: unknown key metadata.sprout.typo",
    }


@pytest.mark.parametrize(
    ("toml", "files", "feature"),
    [
        ("", {"environment/docker-compose.yaml": "services: {}"}, "Docker Compose"),
        ("[[verifier.collect]]\ncommand='x'\nservice='db'", {}, "Docker Compose"),
        ("artifacts = [{source='/a', service='db'}]", {}, "Docker Compose"),
        ("[environment]\ngpus = 1", {}, "GPUs"),
        ("[environment]\nos = 'Windows'", {}, "Windows"),
        ("[[environment.mcp_servers]]\nname='x'\nurl='http://x'", {}, "MCP"),
        (
            "[[steps]]\nname='a'\n[[steps]]\nname='b'\n[steps.agent]\nuser='b'",
            {"steps/a/instruction.md": "a", "steps/b/instruction.md": "b"},
            "a user of its own for each step",
        ),
        ("[environment.tpu]\ntype='v4'\ntopology='2x2'", {}, "TPUs"),
        ("", {"trajectory.json": "{}"}, "trajectory"),
    ],
)
def test_unsupported_features_are_named(
    write_task: Writer, toml: str, files: dict[str, str], feature: str
) -> None:
    task = load_task(write_task(toml, **files))
    assert any(feature in name for name in task.unsupported), task.unsupported


@pytest.mark.parametrize(
    ("toml", "complaint"),
    [
        ("[environment", "cannot be read"),
        ("[verifier]\ntimeout_sec = 'soon'", "verifier.timeout_sec"),
        ("[verifier]\ntimeout_sec = nan", "verifier.timeout_sec"),
        ("[agent]\ntimeout_sec = -1", "agent.timeout_sec"),
        ("[environment]\nmemory = '4G'\nmemory_mb = 8", "contradicts"),
        ("[environment]\nmemory = 'lots'", "not a size"),
        ("[environment]\ncpus = nan", "environment.cpus"),
        ("[environment]\nallowed_hosts = ['a.b']", "allowlist"),
        (
            "[environment]\nnetwork_mode='allowlist'\nallowed_hosts = ['http://a/b']",
            "no host name",
        ),
        ("[verifier]\nenvironment_mode='shared'\n[verifier.environment]\ncpus=1", "contradicts"),
        ("artifacts = ['/logs/../etc/shadow']", ".."),
        ("artifacts = [{source='/a', destination='/etc/x'}]", "destination"),
        ("artifacts = [{source='/a', destination='manifest.json'}]", "reserved"),
        ("[task]\nname = 'noorg'", "org/name"),
        ("[metadata.sprout]\nmax_turns = 0", "max_turns"),
    ],
)
def test_broken_toml_names_file_and_reason(write_task: Writer, toml: str, complaint: str) -> None:
    with pytest.raises(TaskBroken) as caught:
        load_task(write_task(toml))
    assert "task.toml" in str(caught.value)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    "missing", ["task.toml", "instruction.md", "environment/Dockerfile", "tests/test.sh"]
)
def test_missing_files_are_named(write_task: Writer, missing: str) -> None:
    folder = write_task()
    (folder / missing).unlink()
    with pytest.raises(TaskBroken, match=f"{missing}: missing"):
        load_task(folder)


def test_undecodable_instruction(write_task: Writer) -> None:
    folder = write_task()
    (folder / "instruction.md").write_bytes(b"\xff\xfe")
    with pytest.raises(TaskBroken, match="instruction.md"):
        load_task(folder)


@pytest.mark.parametrize("where", ["tests/x", "environment/x", "solution/x", "instruction.md"])
def test_links_out_of_the_folder_are_refused(write_task: Writer, where: str) -> None:
    folder = write_task()
    path = folder / where
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to("/etc/shadow")
    with pytest.raises(TaskBroken, match="leaves the task folder"):
        load_task(folder)


def test_link_climbing_out_is_refused(write_task: Writer, tmp_path: Path) -> None:
    folder = write_task()
    (tmp_path / "suite/secret").write_text("s")
    (folder / "tests/x").symlink_to("../../secret")
    with pytest.raises(TaskBroken, match="leaves the task folder"):
        load_task(folder)


def test_links_inside_are_fine_but_not_in_circles(write_task: Writer) -> None:
    folder = write_task()
    (folder / "tests/again").symlink_to("../instruction.md")
    load_task(folder)
    (folder / "tests/loop").symlink_to("../tests")
    with pytest.raises(TaskBroken, match="circles"):
        load_task(folder)


def test_fifo_is_refused_and_never_opened(write_task: Writer) -> None:
    folder = write_task()
    os.mkfifo(folder / "tests/pipe")
    with pytest.raises(TaskBroken, match="neither a regular file"):
        load_task(folder)


def test_digest_is_harbors_rule(write_task: Writer) -> None:
    folder = write_task(**{"README.md": "r", "pre_artifacts.sh": "not covered"})
    (folder / "tests/__pycache__").mkdir()
    (folder / "tests/__pycache__/x.pyc").write_bytes(b"ignored")
    names = ["README.md", "environment/Dockerfile", "instruction.md", "task.toml", "tests/test.sh"]
    outer = hashlib.sha256()
    for name in names:
        inner = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        outer.update(f"{name}\0{inner}\n".encode())
    first = load_task(folder).digest
    assert first == outer.hexdigest()
    (folder / "tests/test.sh").chmod(0o755)
    assert load_task(folder).digest == first
    (folder / "tests/test.sh").write_text("other")
    assert load_task(folder).digest != first


def test_gitignore_replaces_the_default_ignores(write_task: Writer) -> None:
    folder = write_task(**{"tests/a.log": "x", "tests/b.pyc": "y"})
    plain = load_task(folder).digest
    (folder / ".gitignore").write_text("*.log\n")
    ignoring = load_task(folder).digest
    assert ignoring != plain
    (folder / "tests/a.log").write_text("changed")
    assert load_task(folder).digest == ignoring
    (folder / "tests/b.pyc").write_text("changed")
    assert load_task(folder).digest != ignoring


def test_harborignore_keeps_files_out_of_the_upload(write_task: Writer) -> None:
    folder = write_task(**{"tests/data/big.bin": "x", "tests/data/keep.txt": "y"})
    before = load_task(folder).digest
    (folder / "tests/.harborignore").write_text("*.bin\n")
    names = [p.relative_to(folder).as_posix() for p in included_files(folder, "tests")]
    assert names == ["tests/data/keep.txt", "tests/test.sh"]
    assert load_task(folder).digest != before


def test_env_templates_are_resolved_late() -> None:
    templates = {"A": "${KEY}", "B": "${NO:-x:-y}", "C": "/bin:${KEY}", "D": "${E:-}"}
    assert resolve_env(templates, {"KEY": "secret-1"}) == {
        "A": "secret-1",
        "B": "x:-y",
        "C": "/bin:${KEY}",
        "D": "",
    }
    assert secrets_of(templates, {"KEY": "secret-1"}) == ("secret-1",)
    with pytest.raises(ConfigError, match="KEY"):
        resolve_env(templates, {})


def test_loading_does_not_read_the_environment(
    write_task: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "secret-1")
    task = load_task(write_task('[environment.env]\nA = "${KEY}"'))
    assert task.env == {"A": "${KEY}"}
    dumped: dict[str, Any] = task.model_dump(mode="json")
    assert "secret-1" not in str(dumped)
