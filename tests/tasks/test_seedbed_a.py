"""Four bundled tasks: their playbooks lead to a pass, and their mistakes outlive the work tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from sprout_env.disks.images.aliases import SEEDBED_BASE, alias
from sprout_env.env import SproutEnv
from sprout_env.grading import Verdict
from sprout_env.tasks.playbook import Playbook, Step, WrongStep, captures_of, fill, load_playbook
from sprout_env.tasks.suites import SEEDBED
from sprout_env.tasks.task import FolderImage

LEAST_STEPS = {
    "shop-schema-migration": 20,
    "git-history-rescue": 15,
    "package-release-chain": 60,
    "warehouse-replay": 150,
}
SLUGS = tuple(LEAST_STEPS)
SAVED = "/root/saved-work-tree"


class Play:
    """One episode of a playbook on the real engine."""

    def __init__(self, store: Path, slug: str) -> None:
        self.env = SproutEnv(suite="seedbed", store=str(store), task=slug)
        self.env.reset()
        self.names: dict[str, str] = {}

    def run(self, command: str) -> tuple[str, int]:
        """Take one turn; what it printed and its exit code."""
        observation = self.env.step(fill(command, self.names))[0]
        return str(observation["output"]), int(observation["exit_code"])

    def right(self, step: Step, *, strict: bool) -> None:
        """Play a step right; with ``strict`` it must look healthy."""
        output, code = self.run(step.command)
        self.names |= captures_of(step, output)
        if strict:
            assert code == 0, f"{step.id}: {output}"
            assert step.healthy(output), f"{step.id}: {output}"
            assert step.capture.keys() <= self.names.keys(), f"{step.id}: {output}"

    def wrong(self, step: Step, wrong: WrongStep) -> None:
        """Play a step wrong."""
        output, _ = self.run(wrong.command)
        self.names |= captures_of(step, output)

    def end(self) -> Verdict:
        """Grade the end."""
        return self.env.finish()


@pytest.fixture(scope="module")
def store(shared_store: Path, debian_base: Path) -> Path:
    alias(shared_store, SEEDBED_BASE, FolderImage(path=debian_base))
    return shared_store


@pytest.fixture
def play(store: Path, slug: str) -> Iterator[Play]:
    made = Play(store, slug)
    yield made
    made.env.close()


def lasting(playbook: Playbook) -> tuple[int, Step, WrongStep]:
    """The first mistake whose damage lies outside the work tree: its position, step and self."""
    for position, step in enumerate(playbook.steps):
        for wrong in step.wrong:
            if wrong.outside_work_tree:
                return position, step, wrong
    raise AssertionError("no mistake outside the work tree")


@pytest.mark.parametrize("slug", SLUGS)
def test_the_playbook_names_tests_that_exist(slug: str) -> None:
    source = (SEEDBED / slug / "tests" / "test_outputs.py").read_text()
    names = {
        node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    assert len(names) >= 8
    for step in load_playbook(SEEDBED / slug).risky:
        for wrong in step.wrong:
            assert set(wrong.shows_in) <= names, step.id


@pytest.mark.parametrize("slug", SLUGS)
def test_the_playbook_is_long_and_goes_wrong_early(slug: str) -> None:
    playbook = load_playbook(SEEDBED / slug)
    assert len(playbook.steps) >= LEAST_STEPS[slug]
    assert 3 <= len(playbook.risky) <= 8
    assert lasting(playbook)[0] < len(playbook.steps) / 3


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("slug", SLUGS)
def test_the_right_steps_lead_to_a_pass(play: Play, slug: str) -> None:
    for step in load_playbook(SEEDBED / slug).steps:
        play.right(step, strict=True)
    verdict = play.end()
    assert verdict.passed, verdict.failing


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("slug", SLUGS)
def test_rolling_back_the_work_tree_does_not_undo_a_mistake(play: Play, slug: str) -> None:
    playbook = load_playbook(SEEDBED / slug)
    position, step, wrong = lasting(playbook)
    for earlier in playbook.steps[:position]:
        play.right(earlier, strict=True)
    tree = play.env.task.metadata["work_tree"]
    play.run(f"cp -a {tree} {SAVED}")
    play.wrong(step, wrong)
    output, code = play.run(f"rsync -a --delete {SAVED}/ {tree}/ && rm -rf {SAVED}")
    assert code == 0, output
    for later in playbook.steps[position:]:
        play.right(later, strict=False)
    verdict = play.end()
    assert verdict.outcome == "failed"
    failing = {name.rpartition("::")[2] for name in verdict.failing}
    assert failing & set(wrong.shows_in), verdict.failing
