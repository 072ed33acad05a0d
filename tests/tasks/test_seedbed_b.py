"""Four more bundled tasks: right steps pass, and an early mistake outlives the work tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from sprout_env.disks.images.aliases import SEEDBED_BASE, alias
from sprout_env.env import SproutEnv
from sprout_env.grading import Verdict
from sprout_env.tasks.playbook import Playbook, Step, WrongStep, load_playbook
from sprout_env.tasks.suites import SEEDBED
from sprout_env.tasks.task import FolderImage

LEAST_STEPS = {
    "service-config-handover": 20,
    "build-cache-repair": 16,
    "certificate-rotation": 60,
    "tenant-split": 20,
}
SLUGS = tuple(LEAST_STEPS)
SAVED = "/root/saved-work-tree"


class Fork(NamedTuple):
    """Where a playbook first goes wrong with damage outside the work tree."""

    position: int
    step: Step
    wrong: WrongStep


def first_lasting(playbook: Playbook) -> Fork:
    for position, step in enumerate(playbook.steps):
        for wrong in step.wrong:
            if wrong.outside_work_tree:
                return Fork(position, step, wrong)
    raise AssertionError("no mistake outside the work tree")


def play(env: SproutEnv, steps: tuple[Step, ...], *, strict: bool) -> None:
    """Play steps right; with ``strict`` each must look healthy."""
    for step in steps:
        observation = env.step(step.command)[0]
        if strict:
            assert observation["exit_code"] == 0, f"{step.id}: {observation['output']}"
            assert step.healthy(str(observation["output"])), f"{step.id}: {observation['output']}"


def failing(verdict: Verdict) -> set[str]:
    return {name.rpartition("::")[2] for name in verdict.failing}


@pytest.mark.parametrize("slug", SLUGS)
def test_the_playbook_fits_its_verifier(slug: str) -> None:
    source = (SEEDBED / slug / "tests" / "test_outputs.py").read_text()
    names = {
        node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    playbook = load_playbook(SEEDBED / slug)
    assert len(names) >= 8
    assert len(playbook.steps) >= LEAST_STEPS[slug]
    assert 3 <= len(playbook.risky) <= 8
    assert first_lasting(playbook).position < len(playbook.steps) / 3
    for step in playbook.risky:
        for wrong in step.wrong:
            assert set(wrong.shows_in) <= names, step.id


@pytest.fixture(scope="module")
def store(shared_store: Path, debian_base: Path) -> Path:
    alias(shared_store, SEEDBED_BASE, FolderImage(path=debian_base))
    return shared_store


@pytest.fixture
def env(store: Path, slug: str) -> Iterator[SproutEnv]:
    made = SproutEnv(suite="seedbed", store=str(store), task=slug)
    yield made
    made.close()


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("slug", SLUGS)
def test_one_early_mistake_ruins_the_rest(env: SproutEnv, slug: str) -> None:
    playbook = load_playbook(SEEDBED / slug)
    position, step, wrong = first_lasting(playbook)
    env.reset()
    play(env, playbook.steps[:position], strict=True)
    before = env.snapshot()

    play(env, playbook.steps[position:], strict=True)
    verdict = env.finish()
    assert verdict.passed, verdict.failing

    env.reset(options={"snapshot": before})
    env.step(wrong.command)
    play(env, playbook.steps[position + 1 :], strict=False)
    verdict = env.finish()
    assert verdict.outcome == "failed"
    assert set(wrong.shows_in) <= failing(verdict)

    env.reset(options={"snapshot": before})
    tree = env.task.metadata["work_tree"]
    env.step(f"cp -a {tree} {SAVED}")
    env.step(wrong.command)
    rolled_back = env.step(f"rsync -a --delete {SAVED}/ {tree}/ && rm -rf {SAVED}")[0]
    assert rolled_back["exit_code"] == 0, rolled_back["output"]
    play(env, (step, *playbook.steps[position + 1 :]), strict=False)
    verdict = env.finish()
    assert verdict.outcome == "failed", "rolling back the work tree undid the mistake"
    assert failing(verdict) & set(wrong.shows_in)
