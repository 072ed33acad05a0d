"""The 35 things that naive loaders and verifiers get wrong: where each is tested.

The numbers are those of the project's notes on task formats. Tests that stand nowhere else are
below the table.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from sprout_env.tasks.folder import content_digest
from sprout_env.tasks.suites import Suite

TESTS = Path(__file__).parent.parent

TRAPS: dict[int, tuple[str, ...]] = {
    1: ("grading/test_grade.py::test_exit_code_means_nothing",),
    2: (
        "grading/test_grade.py::test_json_beats_text_and_the_key_counts",
        "grading/test_grade.py::test_planted_rewards_and_reports_count_for_nothing",
    ),
    3: (
        "grading/test_rewards.py::test_text_that_is_no_reward",
        "grading/test_rewards.py::test_json_that_is_no_reward",
        "grading/test_rewards.py::test_crash_sentinel_is_no_score",
    ),
    4: ("grading/test_rewards.py::test_primary_key_is_never_guessed",),
    5: ("grading/test_steps.py::test_an_episode_goes_from_step_to_step_and_back",),
    6: ("grading/test_grade.py::test_grading_never_touches_the_disk_it_judges",),
    7: (
        "grading/test_live.py::test_a_pass_that_needs_the_service_is_marked",
        "grading/test_live.py::test_a_forger_cannot_turn_a_failure_into_a_pass",
    ),
    8: (
        "grading/test_separate.py::test_only_artifacts_cross",
        "grading/test_separate.py::test_sanitise",
    ),
    9: ("grading/test_separate.py::test_hooks_run_on_a_clone",),
    10: ("grading/test_separate.py::test_work_that_was_not_committed_is_said",),
    11: (
        "sandbox/test_build_sources.py"
        "::test_an_image_that_no_registry_has_is_built_from_the_tasks_dockerfile",
    ),
    12: ("tasks/test_traps.py::test_12_another_digest_is_a_warning",),
    13: (
        "tasks/test_harbor.py::test_old_spelling",
        "tasks/test_harbor.py::test_unknown_keys_are_warnings",
    ),
    14: ("grading/test_steps.py::test_a_step_inherits_all_but_the_time_out",),
    15: ("grading/test_steps.py::test_rewards_add_up_as_harbor_does_it",),
    16: (
        "grading/test_grade.py::test_endless_forks_end_at_the_timeout",
        "grading/test_grade.py::test_nothing_written_after_a_timeout",
    ),
    17: (
        "grading/test_judges.py::test_the_rules",
        "grading/test_reports.py::test_ids_are_normalised",
        "grading/test_reports.py::test_one_test_is_one_line_however_it_is_named",
    ),
    18: (
        "tasks/test_swebench.py::test_what_an_agent_finds_and_forges",
        "grading/test_judges.py::test_what_decides_nothing",
    ),
    19: (
        "grading/test_grade.py::test_missing_tool_is_invalid_not_zero",
        "tasks/test_hostile.py::test_a_verifier_without_its_python_decides_nothing",
        "grading/test_rewards.py::test_signs",
    ),
    20: (
        "tasks/test_harbor.py::test_network_precedence",
        "tasks/test_lint.py::test_warnings",
    ),
    21: (
        "tasks/test_harbor.py::test_network_precedence",
        "test_env.py::test_the_agents_network_can_be_another",
    ),
    22: (
        "tasks/test_harbor.py::test_env_templates_are_resolved_late",
        "tasks/test_harbor.py::test_loading_does_not_read_the_environment",
    ),
    23: ("sandbox/test_boot.py::test_the_entrypoint_carries_the_service_under_test",),
    24: ("disks/test_images_aliases.py::test_the_exact_name_wins_then_the_longest_pattern",),
    25: ("grading/test_gate.py::test_gate",),
    26: (
        "tasks/test_swebench.py::test_lists_of_tests_are_data",
        "tasks/test_swebench.py::test_a_row_of_each_family_is_played_and_judged",
    ),
    27: ("tasks/test_swebench.py::test_files_are_reset_one_by_one",),
    28: (
        "grading/test_history.py::test_later_commits",
        "grading/test_gate.py::test_leaks",
        "grading/test_grade.py::test_tests_are_nowhere_before",
    ),
    29: (
        "grading/test_grade.py::test_where_and_how_the_script_runs",
        "grading/test_hacks.py::test_what_changes_nothing",
        "grading/test_hacks.py::test_what_a_verifier_runs_is_named_and_stays_behind",
        "grading/test_hacks.py::test_honest_work_gets_no_remark",
    ),
    30: ("tasks/test_harbor.py::test_canary_is_stripped_from_the_head_only",),
    31: ("search/test_methods.py::test_pass_at_k_agrees_with_its_closed_form",),
    32: ("tasks/test_lint.py::test_errors",),
    33: ("tasks/test_traps.py::test_33_names",),
    34: (
        "grading/test_hacks.py::test_verifiers_side_by_side",
        "grading/test_reports.py::test_many_tests_of_two_reports_are_few_seconds",
        "sandbox/test_proxy.py::test_public_is_the_outside_and_not_the_machine",
    ),
    35: (
        "sandbox/test_build_sources.py"
        "::test_certificates_are_there_while_building_and_not_in_the_image",
    ),
}


@pytest.mark.parametrize("number", range(1, 36))
def test_each_trap_has_its_test(number: int) -> None:
    for node in TRAPS[number]:
        file, _, name = node.partition("::")
        tree = ast.parse((TESTS / file).read_text())
        assert name in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}, node


def make(folder: Path, name: str = "") -> Path:
    (folder / "environment").mkdir(parents=True)
    (folder / "tests").mkdir()
    (folder / "environment/Dockerfile").write_text("FROM scratch\n")
    (folder / "instruction.md").write_text("Do it.\n")
    (folder / "tests/test.sh").write_text("echo 0 > /logs/verifier/reward.txt\n")
    (folder / "task.toml").write_text(f'[task]\nname = "{name}"\n' if name else "")
    return folder


def test_12_another_digest_is_a_warning(tmp_path: Path) -> None:
    """Files outside the rule may change; a task that differs is used, and it is said."""
    make(tmp_path / "tasks/same", "org/same")
    make(tmp_path / "tasks/other", "org/other")
    digest = content_digest(tmp_path / "tasks/same")
    (tmp_path / "tasks/dataset.toml").write_text(
        f'[[tasks]]\nname = "org/same"\ndigest = "sha256:{digest}"\n'
        f'[[tasks]]\nname = "org/other"\ndigest = "sha256:{"0" * 64}"\n'
    )
    (tmp_path / "tasks/same/tests/test.sh").chmod(0o755)
    (tmp_path / "tasks/same/pre_artifacts.sh").write_text("true\n")
    suite = Suite("some", tmp_path)

    def told(slug: str) -> list[str]:
        return [said for said in suite.task(slug).warnings if "digest" in said]

    assert told("same") == []
    (said,) = told("other")
    assert said.startswith("dataset.toml lists digest 000000000000, the folder has ")
    (tmp_path / "tasks/dataset.toml").write_text("[[tasks]]\nname = 3\n")
    assert Suite("some", tmp_path).task("other").warnings == ()


def test_33_names(tmp_path: Path) -> None:
    """The slug is the folder's name; ``org/name`` leads to it; any script of the world will do."""
    make(tmp_path / "修复-ünïcode", "org/other-name")
    (tmp_path / "修复-ünïcode/tests/数据 1.txt").write_text("x")
    make(tmp_path / ("long-" * 30), "org/long")
    (tmp_path / ("long-" * 30) / "README.md").symlink_to("instruction.md")
    suite = Suite("some", tmp_path)
    assert set(suite.slugs()) == {"修复-ünïcode", "long-" * 30}
    task = suite.task("org/修复-ünïcode")
    assert task.metadata["harbor"]["name"] == "org/other-name"
    assert suite.broken == {}
