"""What can be seen of a task's verifier without running it: its scripts are read as text."""

from __future__ import annotations

import re
from typing import NamedTuple

from sprout_env.tasks.folder import included_files
from sprout_env.tasks.task import Task

_REWARD = re.compile(r"reward\.(?:txt|json)")
_CONSTANT = re.compile(
    r"^\s*(?:echo|printf)\s+['\"]?(1(?:\.0*)?)(?:\\n)?['\"]?\s*>\s*\S*reward\.txt"
)
_BRANCH = re.compile(r"^\s*(?:if|elif|else|case|while|for|until|trap)\b|&&|\|\|")
_STRICT = re.compile(r"^\s*set\s+-[a-z]*e|^\s*set\s+-o\s+errexit")
_LENIENT = re.compile(r"^\s*set\s+\+[a-z]*e")
_RUNNER = re.compile(
    r"^\s*(?:\S*/)?(?:uvx|uv\s+run|pytest|python3?\s+-m\s+pytest|npm|npx|go|cargo)\b"
)
_DOWNLOAD = re.compile(
    r"^\s*(?:sudo\s+)?(?:apt-get|apt|curl|wget|pip3?|uvx|npm\s+(?:i|install|ci)|git\s+clone)\b"
)


class Findings(NamedTuple):
    """What is wrong, and what may be."""

    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def networks(task: Task) -> str:
    """Say what each phase may reach: the agent's, the verifier's, those of steps that differ."""
    verifiers = {"verifier": task.verifier} | {
        f"verifier of {step.name}": step.verifier for step in task.steps[1:]
    }
    found = {name: str(one.network or task.network) for name, one in verifiers.items()}
    told = [f"{name} {policy}" for name, policy in found.items()
            if name == "verifier" or policy != found["verifier"]]  # fmt: skip
    return ", ".join([f"agent {task.network}", *told])


def lint(task: Task) -> Findings:
    """Check the verifier's script and the files beside it."""
    verifier = task.verifier
    if task.folder is None or verifier.judge is not None:
        return Findings()
    folders = [f for f in (verifier.tests, verifier.tests_over) if f is not None]
    if not folders and (task.folder / "tests").is_dir():
        folders = [task.folder / "tests"]
    errors: list[str] = []
    warnings: list[str] = []
    script, others = "", ""
    for folder in folders:
        for path in included_files(task.folder, str(folder.relative_to(task.folder))):
            if not path.is_file() or path.stat().st_size > 1 << 20:
                continue
            text = path.read_text("utf-8", errors="replace")
            if path.relative_to(folder).as_posix() == verifier.script:
                script = path.read_bytes().decode("utf-8", errors="replace")
            else:
                others += text
    if not script:
        return Findings()
    name = f"tests/{verifier.script}"
    if "\r\n" in script:
        errors.append(f"{name} has Windows line ends: its interpreter is not found")
    if "rewards.json" in script + others and "reward.json" not in script + others:
        errors.append(f"{name} writes rewards.json; what is read is called reward.json")
    elif not _REWARD.search(script + others):
        errors.append(f"{name} writes neither reward.txt nor reward.json")
    lines = [line for line in script.splitlines() if not line.lstrip().startswith("#")]
    if always := _always_one(lines):
        errors.append(f"{name} always scores 1: {always.strip()}")
    if _stops_early(lines):
        warnings.append(f"{name} stops at the first failing test, before it writes a reward")
    network = verifier.network or task.network
    if network.mode == "none":
        wanted = [line.strip()[:60] for line in lines if _DOWNLOAD.match(line)]
        if wanted:
            warnings.append(f"{name} downloads, and the verifier has no network: {wanted[0]}")
    return Findings(tuple(errors), tuple(warnings))


def _always_one(lines: list[str]) -> str:
    """Return the line that writes 1 whatever happens, if no other line writes a reward."""
    writes = [line for line in lines if _REWARD.search(line)]
    if len(writes) != 1 or not _CONSTANT.match(writes[0]):
        return ""
    before = lines[: lines.index(writes[0])]
    conditional = any(_BRANCH.search(line) for line in (*before, writes[0]))
    strict = any(_STRICT.match(line) for line in before)
    return "" if conditional or strict else writes[0]


def _stops_early(lines: list[str]) -> bool:
    """Whether a failing runner ends the script before a reward was written."""
    strict = False
    for number, line in enumerate(lines):
        strict = (strict or bool(_STRICT.match(line))) and not _LENIENT.match(line)
        if _REWARD.search(line):
            return False
        if strict and _RUNNER.match(line) and "||" not in line and "&&" not in line:
            return any(_REWARD.search(later) for later in lines[number + 1 :])
    return False
