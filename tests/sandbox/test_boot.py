"""A new container's first moments: ENTRYPOINT, HEALTHCHECK, VOLUME, USER."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import sprout_env
from sprout_env.disks import images, open_store
from sprout_env.disks.images.archives import config_from_oci
from sprout_env.disks.store import DiskStore
from sprout_env.errors import ImageError, SandboxStartFailed
from sprout_env.grading import gate, nop, oracle
from sprout_env.sandbox.build import base_for
from sprout_env.tasks.harbor import load_task
from sprout_env.tasks.task import DockerfileImage, FolderImage, Healthcheck

pytestmark = [pytest.mark.root, pytest.mark.slow]

SERVICE = """\
#!/bin/bash
cd /srv && python3 -m http.server 8000 --bind 127.0.0.1 &
echo "$(id -un) in $(pwd) with $GREETING" > /srv/started
exec "$@"
"""
FETCH = (
    'python3 -c "import urllib.request as u; print(u.urlopen'
    "('http://127.0.0.1:8000/answer', timeout=5).read().decode().strip())\""
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, debian_base: Path) -> Iterator[DiskStore]:
    path = tmp_path_factory.mktemp("boot") / "store"
    opened = open_store(path)
    images.alias(path, "our/debian", FolderImage(path=debian_base))
    yield opened
    opened.close()
    shutil.rmtree(path)


def write_task(
    folder: Path, dockerfile: str, toml: str = "", test: str = "", solve: str = ""
) -> Path:
    for part in ("environment", "tests", "solution"):
        (folder / part).mkdir(parents=True)
    (folder / "instruction.md").write_text("Make the service answer 42.\n")
    (folder / "environment/Dockerfile").write_text(f"FROM our/debian\n{dockerfile}")
    (folder / "environment/serve").write_text(SERVICE)
    (folder / "task.toml").write_text(toml)
    (folder / "tests/test.sh").write_text(f"#!/bin/bash\n{test}\n")
    (folder / "solution/solve.sh").write_text(f"#!/bin/bash\n{solve}\n")
    return folder


IMAGE = """\
COPY --chmod=755 serve /serve
RUN mkdir -p /srv && echo 41 > /srv/answer && chown -R nobody /srv
ENV GREETING=hello
VOLUME ["/srv", "/var/a new/volume"]
WORKDIR /srv
USER nobody
ENTRYPOINT ["/serve"]
CMD ["false"]
"""


def test_the_entrypoint_carries_the_service_under_test(store: DiskStore, tmp_path: Path) -> None:
    """Trap 23: ignored, the solution would score 0."""
    folder = write_task(
        tmp_path / "served",
        IMAGE + f"HEALTHCHECK --interval=1s --retries=5 CMD {FETCH}\n",
        test=f'[ "$({FETCH})" = 42 ] && echo 1 > /logs/verifier/reward.txt'
        " || echo 0 > /logs/verifier/reward.txt",
        solve="[ \"$(cat /srv/started)\" = 'nobody in /srv with hello' ] && "
        "[ -d '/var/a new/volume' ] && echo 42 > /srv/answer",
    )
    task = load_task(folder)
    base = base_for(store, task.image)
    assert base.config.healthcheck is not None
    assert base.config.volumes == ("/srv", "/var/a new/volume")

    idle, solved = nop(store, task, base), oracle(store, task, base)
    assert (idle.outcome, idle.reward) == ("failed", 0.0), idle
    assert (solved.outcome, solved.live_only) == ("passed", True), solved
    assert gate(store, [task], nops=1, oracles=1).tasks[0].status == "passed"


def test_an_episode_begins_when_the_service_is_healthy(store: DiskStore, tmp_path: Path) -> None:
    folder = write_task(
        tmp_path / "healthy",
        IMAGE,
        toml=f"[environment.healthcheck]\ncommand = '''{FETCH}'''\ninterval_sec = 0.5\n"
        "retries = 20\n",
        test="cp /srv/answer /logs/verifier/reward.txt",
    )
    env = sprout_env.make("sprout/Harbor-v0", tasks_path=str(folder), store=str(store.path))
    try:
        env.reset()
        observation, *_ = env.step(FETCH)
        assert observation["output"] == "41\n"
        # What a volume holds is part of snapshots; what ran is not, and it is said.
        env.step("echo 7 > /srv/answer")
        id = env.snapshot()
        env.step("rm /srv/answer")
        _, info = env.restore(id)
        assert any("http.server" in process for process in info["lost_processes"])
        observation, *_ = env.step("cat /srv/answer")
        assert observation["output"] == "7\n"
        env.release(id)
    finally:
        env.close()


@pytest.mark.parametrize(
    ("dockerfile", "toml", "said"),
    [
        ('ENTRYPOINT ["sh", "-c", "exit 7"]\n', "",
         "ENTRYPOINT.*sh -c 'exit 7' ended at once with 7"),
        ("", '[environment.healthcheck]\ncommand = "echo not yet; exit 3"\ninterval_sec = 0.1\n'
         "retries = 2\n", "health check 'echo not yet; exit 3': ended with 3 2 times .*not yet"),
        ('HEALTHCHECK --interval=100ms --timeout=200ms --retries=1 CMD ["sleep", "9"]\n', "",
         "health check 'sleep 9': timed out 1 times"),
    ],
    ids=["entrypoint", "task", "image"],
)  # fmt: skip
def test_what_does_not_come_up_is_named(
    store: DiskStore, tmp_path: Path, dockerfile: str, toml: str, said: str
) -> None:
    folder = write_task(tmp_path / "sick", dockerfile, toml)
    env = sprout_env.make("sprout/Harbor-v0", tasks_path=str(folder), store=str(store.path))
    try:
        with pytest.raises(SandboxStartFailed, match=said):
            env.reset()
    finally:
        env.close()
    task = load_task(folder)
    found = gate(store, [task], nops=1, oracles=1).tasks[0]
    assert found.status == "cannot run here", found


def test_health_checks_are_read_from_dockerfiles_and_images(
    store: DiskStore, tmp_path: Path
) -> None:
    def check(line: str) -> Healthcheck | None:
        folder = tmp_path / "context"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "Dockerfile").write_text(f"FROM scratch\n{line}\n")
        return base_for(store, DockerfileImage(context=folder)).config.healthcheck

    assert check("HEALTHCHECK --start-period=1m30s --retries=5 CMD a && b") == Healthcheck(
        command="a && b", interval_s=30, start_period_s=90, retries=5
    )
    assert check('HEALTHCHECK CMD ["a", "b c"]') == Healthcheck(command="a 'b c'", interval_s=30)
    assert check("HEALTHCHECK CMD a\nHEALTHCHECK NONE") is None
    with pytest.raises(ImageError, match="duration|failed"):
        check("HEALTHCHECK --interval=soon CMD a")
    kept = {"Test": ["CMD-SHELL", "x"], "Interval": 2_000_000_000, "Retries": 7}
    assert config_from_oci({"Healthcheck": kept}).healthcheck == Healthcheck(
        command="x", interval_s=2, retries=7
    )
    assert config_from_oci({"Healthcheck": {"Test": ["NONE"]}}).healthcheck is None
