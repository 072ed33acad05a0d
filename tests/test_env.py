"""One episode after another on the real engine: Gymnasium's rules, restores, limits, the end."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import textwrap
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit

import sprout_env
from sprout_env.env import SproutEnv
from sprout_env.errors import (
    ConfigError,
    EpisodeOver,
    NotReset,
    SnapshotNotFound,
    StackMismatch,
    TaskNotFound,
    UnknownLayer,
)
from sprout_env.registration import SUITES
from sprout_env.transcript import TokenTrace, Turn
from tests.small_task import write_task

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("suite")
    write_task(folder)
    write_task(folder, "second", instruction="Another task.")
    return folder


@pytest.fixture
def kwargs(suite: Path, shared_store: Path) -> dict[str, Any]:
    return {"tasks_path": str(suite), "store": str(shared_store), "task": "answer"}


@pytest.fixture
def env(kwargs: dict[str, Any]) -> Iterator[gym.Env[Any, Any]]:
    made = gym.make("sprout/Harbor-v0", **kwargs)
    yield made
    made.close()


# -- Gymnasium's rules ----------------------------------------------------------------------


def test_check_env_with_warnings_as_errors(kwargs: dict[str, Any]) -> None:
    env = gym.make("sprout/Harbor-v0", render_mode="ansi", **kwargs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped, skip_render_check=False)
    env.close()


@pytest.mark.parametrize("id", sorted(SUITES))
def test_specs_survive_json_and_pickle_and_constructors_open_nothing(id: str) -> None:
    env = gym.make(id, task="x", store="/nonexistent/store")
    assert env.spec is not None
    again = gym.envs.registration.EnvSpec.from_json(env.spec.to_json())
    assert again.kwargs == env.spec.kwargs
    assert pickle.loads(pickle.dumps(env.spec)).id == id
    remade = gym.make(again)
    assert type(remade) is type(env)
    remade.close()
    env.close()
    env.close()


def test_bad_arguments_are_named(kwargs: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="no max_turn here; did you mean max_turns"):
        SproutEnv(max_turn=3)
    with pytest.raises(ConfigError, match="no xyzzy here; there are suite, task, "):
        SproutEnv(xyzzy=3)
    with pytest.raises(ConfigError, match="output_chars"):
        SproutEnv(output_chars="many")
    env = SproutEnv(suite="harbor", **kwargs)
    with pytest.raises(NotReset):
        env.step("ls")
    with pytest.raises(ConfigError, match="snapshots"):
        env.reset(options={"snapshots": "x"})
    with pytest.raises(ConfigError, match="its own task and seed"):
        env.reset(seed=1, options={"snapshot": "x"})
    with pytest.raises(TaskNotFound, match="answer"):
        env.reset(options={"task": "anser"})
    with pytest.raises(SnapshotNotFound):
        env.reset(options={"snapshot": "0123456789ab-0123456789abcdef"})
    with pytest.raises(SnapshotNotFound):
        env.reset(options={"snapshot": "../../etc/passwd"})
    env.close()


def test_a_suite_that_is_not_here_is_missed_at_reset() -> None:
    env = gym.make("sprout/DeepSWE-v0")
    with pytest.raises(TaskNotFound, match="sprout tasks pull deepswe"):
        env.reset()
    env.close()


def test_without_a_task_each_reset_draws_one_by_seed(kwargs: dict[str, Any]) -> None:
    kwargs.pop("task")
    env = gym.make("sprout/Harbor-v0", **kwargs)
    drawn = [env.reset(seed=seed)[1]["task"] for seed in range(6)]
    assert drawn == [env.reset(seed=seed)[1]["task"] for seed in range(6)]
    assert set(drawn) == {"answer", "second"}
    env.close()


# -- an episode -----------------------------------------------------------------------------


def test_an_episode_that_passes(env: gym.Env[Any, Any]) -> None:
    obs, info = env.reset(seed=1)
    assert obs["instruction"].startswith("Write 42")
    assert (obs["turn"], obs["cwd"], info["task"]) == (0, "/root", "answer")
    obs, reward, terminated, truncated, info = env.step("echo é→; echo oops >&2; exit 3")
    assert (obs["exit_code"], reward, terminated, truncated) == (3, 0.0, False, False)
    assert obs["output"] == "é→\noops\n"
    env.step("cd /srv; export WHO=me")
    obs, *_ = env.step('echo "$WHO $PWD"')
    assert obs["output"] == "me /srv\n"
    env.step(Turn(message="The answer.", command="echo 42 > answer"))
    obs, reward, terminated, truncated, info = env.step("submit")
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info["verdict"]["outcome"] == "passed"
    assert {t["name"] for t in info["verdict"]["tests"]} == {"test_answer", "test_world"}
    json.dumps(info["verdict"])
    with pytest.raises(EpisodeOver):
        env.step("ls")
    turns = env.unwrapped.transcript.turns  # type: ignore[attr-defined]
    assert [t.command for t in turns][-1] == "submit"
    assert turns[3].message == "The answer."


def test_doing_nothing_fails(env: gym.Env[Any, Any]) -> None:
    env.reset()
    _, reward, terminated, _, info = env.step("submit")
    assert (reward, terminated, info["verdict"]["outcome"]) == (0.0, True, "failed")


@pytest.mark.parametrize("network", [None, "none", "public", {"mode": "allowlist"}])
def test_the_agents_network_can_be_another(kwargs: dict[str, Any], network: Any) -> None:
    env = gym.make("sprout/Harbor-v0", **kwargs, network=network)
    env.reset()
    look = "echo ${http_proxy:-none}; tail -n +3 /proc/net/dev | cut -d: -f1"
    said = env.step(look)[0]["output"]
    here = sprout_env.snapshot(env)
    env.step("unset http_proxy")
    sprout_env.restore(env, here)
    again = env.step(look)[0]["output"]
    env.close()
    sprout_env.release(here, store=kwargs["store"])
    proxy = "none" if network in (None, "none") else "http://127.0.0.1:3128"
    assert said == again == f"{proxy}\n    lo\n"


def test_limits_end_the_episode_and_have_it_graded(kwargs: dict[str, Any]) -> None:
    env = gym.make("sprout/Harbor-v0", max_turns=2, **kwargs)
    env.reset()
    env.step("echo 42 > /srv/answer")
    _, reward, terminated, truncated, info = env.step("true")
    assert (reward, terminated, truncated, info["limit"]) == (1.0, False, True, "max_turns 2")
    env.close()


def test_a_command_that_takes_too_long_is_an_observation(kwargs: dict[str, Any]) -> None:
    env = gym.make("sprout/Harbor-v0", command_timeout_s=0.5, **kwargs)
    env.reset()
    obs, *_, info = env.step("echo begun; (setsid sleep 77 &) ; sleep 88")
    assert (obs["exit_code"], info["timed_out"]) == (124, True)
    assert obs["output"].startswith("begun\n[timed out after 0.5 s")
    obs, *_ = env.step("ps ax -o args | grep -c '[s]leep [78]'")
    assert obs["output"] == "0\n"
    env.close()


def test_long_output_keeps_head_and_tail(kwargs: dict[str, Any]) -> None:
    env = gym.make("sprout/Harbor-v0", output_chars=2000, **kwargs)
    env.reset()
    obs, *_, info = env.step("echo first; yes é | head -c 3000000; echo last")
    assert len(obs["output"]) <= 2000
    assert obs["output"].startswith("first\n")
    assert obs["output"].endswith("last\n")
    assert "characters cut" in obs["output"]
    assert info["dropped_bytes"] > 1_900_000
    env.close()


# -- snapshots ------------------------------------------------------------------------------


def test_snapshot_wreck_restore(env: gym.Env[Any, Any]) -> None:
    env.reset(seed=5)
    env.step(
        "printf '#!/bin/sh\\necho tool\\n' > /usr/local/bin/tool; chmod 4755 /usr/local/bin/tool"
    )
    env.step("mkdir -p /root/deep; cd /root/deep; echo note > note; touch -d @1.123456789 note")
    obs, *_ = env.step(
        "export KEEP=1; python3 -m http.server 8000 --bind 127.0.0.1 >/dev/null 2>&1 & "
        "for n in $(seq 200); do (: </dev/tcp/127.0.0.1/8000) 2>/dev/null && break; sleep 0.1; done"
    )
    id = sprout_env.snapshot(env)
    core = env.unwrapped
    assert isinstance(core, SproutEnv)
    before, drawn = core.transcript, None
    drawn = core.np_random.integers(1 << 30)
    env.step("rm -rf /usr/share /root/deep; echo x::0:0::/:/bin/sh >> /etc/passwd; pkill python3")
    assert env.step("ls /usr/share")[0]["exit_code"] != 0
    again, info = sprout_env.restore(env, id)
    assert again == obs
    assert core.transcript.at(3) == before
    assert any("http.server 8000" in lost for lost in info["lost_processes"])
    assert "tcp/8000" in str(info["lost_processes"])
    assert "http.server" in core.transcript.entries[-1].text  # type: ignore[union-attr]
    assert core.np_random.integers(1 << 30) == drawn
    obs, *_ = env.step(
        "tool; pwd; echo $KEEP; stat -c '%a %Y %y' /usr/local/bin/tool note | cut -c1-5"
    )
    assert obs["output"].startswith("tool\n/root/deep\n1\n4755 ")
    assert "123456789" in env.step("stat -c %y note")[0]["output"]
    assert env.step("ls /usr/share; grep -c x:: /etc/passwd")[0]["output"].endswith("\n0\n")
    sprout_env.release(id, store=core.config.store)
    with pytest.raises(SnapshotNotFound):
        sprout_env.restore(env, id)
    sprout_env.release(id, store=core.config.store)


def test_restore_in_another_process(env: gym.Env[Any, Any], kwargs: dict[str, Any]) -> None:
    env.reset(seed=5)
    env.step("mkdir /opt/here; cd /opt/here; export A='b c'")
    id = sprout_env.snapshot(env)
    script = f"""
        import gymnasium as gym, sprout_env
        env = gym.make("sprout/Harbor-v0", **{kwargs!r})
        obs, info = env.restore({id!r})
        assert obs["turn"] == 1, obs
        print(env.step('echo "$PWD $A"')[0]["output"], end="")
        env.close()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("/opt/here b c\n", "")
    sprout_env.release(id, store=kwargs["store"])


def test_thirty_two_forks_at_once(env: gym.Env[Any, Any], kwargs: dict[str, Any]) -> None:
    env.reset()
    env.step("echo shared > /opt/shared; cd /opt")
    forks = sprout_env.fork(env, 32)
    try:
        for number, one in enumerate(forks):
            one.step(f"echo {number} >> shared")
        outputs = [one.step("cat shared")[0]["output"] for one in forks]
        assert outputs == [f"shared\n{number}\n" for number in range(32)]
        assert env.step("cat shared")[0]["output"] == "shared\n"
    finally:
        for one in forks:
            one.close()


def test_a_fork_of_a_fork_of_a_fork(env: gym.Env[Any, Any]) -> None:
    env.reset()
    generations = [env]
    for depth in range(4):
        generations[-1].step(f"echo {depth} >> /opt/line")
        generations += sprout_env.fork(generations[-1], 1)
    assert generations[-1].step("cat /opt/line")[0]["output"] == "0\n1\n2\n3\n"
    for one in generations[1:]:
        one.close()


def test_restore_then_snapshot_shows_no_rolled_back_write(env: gym.Env[Any, Any]) -> None:
    env.reset()
    env.step("echo A > /opt/a")
    a = sprout_env.snapshot(env)
    env.step("echo B > /opt/b")
    sprout_env.restore(env, a)
    env.step("echo C > /opt/c")
    c = sprout_env.snapshot(env)
    sprout_env.restore(env, c)
    assert env.step("ls /opt")[0]["output"] == "a\nc\n"
    changed = sprout_env.diff(a, c, store=env.unwrapped.config.store)  # type: ignore[attr-defined]
    assert [(x.path, x.kind) for x in changed if x.path.startswith("/opt/")] == [
        ("/opt/c", "added")
    ]
    node = sprout_env.tree(env)
    assert a in str(node)
    assert c in str(node)


def test_boundaries_nobody_asked_for_go_with_the_episode(env: gym.Env[Any, Any]) -> None:
    env.reset()
    for _ in range(3):
        env.step("true")
    core = env.unwrapped
    assert isinstance(core, SproutEnv)
    auto = [b.snapshot for b in core.boundaries]
    assert len(auto) == 4
    assert all(auto)
    kept = sprout_env.snapshot(env)
    env.reset()
    for id in auto:
        with pytest.raises(SnapshotNotFound):
            core.tree.get(str(id))
    assert core.tree.get(kept).turn == 3
    sprout_env.release(kept, store=core.config.store)


def test_two_threads_that_close_an_env_leave_no_boundary(kwargs: dict[str, Any]) -> None:
    """As Ctrl-C does: the run closes it, and so does whoever uses it."""
    watching = SproutEnv(**kwargs)
    before = [each.id for each in watching.tree.list()]
    for _ in range(6):
        env = SproutEnv(**kwargs)
        env.reset()
        env.begin_snapshot()
        both = threading.Barrier(2, timeout=10)

        def close(env: SproutEnv = env, both: threading.Barrier = both) -> None:
            both.wait()
            env.close()

        closers = [threading.Thread(target=close) for _ in range(2)]
        for each in closers:
            each.start()
        for each in closers:
            each.join()
    assert [each.id for each in watching.tree.list()] == before
    watching.close()


def test_any_snapshot_is_graded_without_touching_the_episode(env: gym.Env[Any, Any]) -> None:
    env.reset()
    core = env.unwrapped
    assert isinstance(core, SproutEnv)
    assert core.grade().outcome == "failed"
    env.step("echo 42 > /srv/answer")
    id = sprout_env.snapshot(env)
    assert sprout_env.verify(id, store=core.config.store).passed
    assert env.step("ls -d /tests /logs; cat /srv/answer")[0]["output"].endswith("\n42\n")
    sprout_env.release(id, store=core.config.store)


# -- layers ---------------------------------------------------------------------------------


class Unknown(gym.Wrapper[Any, Any, Any, Any]):
    """Nobody has said what this remembers."""


def test_layers_outside_are_restored_by_the_module_functions(env: gym.Env[Any, Any]) -> None:
    outer: Any = RecordEpisodeStatistics(TimeLimit(env, 5))
    outer.reset()
    for _ in range(3):
        outer.step("true")
    id = sprout_env.snapshot(outer)
    assert outer.step("true")[3] is False
    assert outer.step("true")[3] is True
    for _ in range(2):
        sprout_env.restore(outer, id)
        assert outer.step("true")[3] is False
        _, _, _, truncated, info = outer.step("true")
        assert (truncated, info["episode"]["l"]) == (True, 5)
    with pytest.raises(StackMismatch):
        outer.reset(options={"snapshot": id})
    with pytest.raises(StackMismatch):
        sprout_env.restore(env, id)
    sprout_env.release(id, store=env.unwrapped.config.store)  # type: ignore[attr-defined]


def test_a_raw_restore_under_a_remembering_layer_is_refused(env: gym.Env[Any, Any]) -> None:
    outer: Any = TimeLimit(env, 5)
    outer.reset()
    outer.step("true")
    inner = env.get_wrapper_attr("boundaries")[-1].snapshot
    with pytest.raises(StackMismatch, match="TimeLimit"):
        outer.reset(options={"snapshot": inner})
    with pytest.raises(UnknownLayer, match="Unknown"):
        sprout_env.snapshot(Unknown(env))


# -- vector envs ----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_vector_envs_restore_some_of_their_members(kwargs: dict[str, Any], mode: Any) -> None:
    extra: dict[str, Any] = {"shared_memory": False} if mode == "async" else {}
    venv: Any = gym.make_vec(
        "sprout/Harbor-v0",
        num_envs=3,
        vectorization_mode=mode,
        vector_kwargs={"autoreset_mode": gym.vector.AutoresetMode.DISABLED, **extra},
        **kwargs,
    )
    try:
        venv.reset(seed=0)
        venv.step(["echo zero > /opt/me", "echo one > /opt/me", "echo two > /opt/me"])
        id = venv.call("snapshot")[0]
        venv.step(["echo later >> /opt/me"] * 3)
        mask = np.array([False, True, True])
        obs, _ = venv.reset(options={"reset_mask": mask, "snapshot": id})
        assert list(obs["turn"]) == [2, 1, 1]
        obs, *_ = venv.step(["cat /opt/me"] * 3)
        assert list(obs["output"]) == ["zero\nlater\n", "zero\n", "zero\n"]
    finally:
        venv.close()
    sprout_env.release(id, store=kwargs["store"])


def test_a_token_trace_stays_with_its_turn(env: gym.Env[Any, Any]) -> None:
    env.reset()
    trace = TokenTrace(token_ids=(1, 2), logprobs=(-0.5, -0.1), prompt_ids=(9,))
    env.step(Turn(message="m", command="true", trace=trace))
    id = sprout_env.snapshot(env)
    sprout_env.restore(env, id)
    core = env.unwrapped
    assert isinstance(core, SproutEnv)
    assert core.transcript.turns[0].trace == trace
    sprout_env.release(id, store=core.config.store)
