"""Harbor's verifier protocol inside one sandbox: clean, upload, run, pause, read.

Everything that the sandbox says is untrusted: files are read by the host only after all processes
in it were stopped, from a folder that was made afresh after the agent's end, regular files only,
with size caps. The script's exit code means nothing; the reward file decides.
"""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath

from sprout_env.disks.store import Base
from sprout_env.errors import PauseTimeout, SandboxError, VerdictInvalid
from sprout_env.grading import reports, rewards
from sprout_env.grading.blame import Judged
from sprout_env.grading.judges import decide
from sprout_env.grading.plain import plain
from sprout_env.grading.settings import ROOT, Setting
from sprout_env.grading.signatures import MACHINE, OUT_OF_MEMORY, sign_of, store_may_be_full
from sprout_env.grading.verdict import Verdict
from sprout_env.sandbox.sandbox import Sandbox, ShellState
from sprout_env.tasks.folder import included_files
from sprout_env.tasks.templates import resolve_env

LOGS = "/logs/verifier"
REWARD_JSON = f"{LOGS}/reward.json"
REWARD_TEXT = f"{LOGS}/reward.txt"
STDOUT = f"{LOGS}/test-stdout.txt"
PARSED = f"{LOGS}/parsed.json"
DEFAULT_TIMEOUT_S = 3600.0
"""For a solution of a task that sets no limit to its agent, in seconds."""

_MAX_LOG_BYTES = 32 << 20
_TAIL_CHARS = 6000
_USUAL_REPORTS = ("ctrf.json", "junit.xml", "report.xml", "results.xml", "pytest.xml")
_TOOLS = ShellState("/", {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})


class StaleReward(VerdictInvalid):
    """Raised when a reward file is there before the verifier ran: the facts are the sentence."""


def prepare(sandbox: Sandbox, setting: Setting, *, own_tests: bool) -> None:
    """Remove whatever stands where tests, reports and rewards will be; make the log folder.

    The host does it, by no program and through no link of the sandbox's.

    Args:
        sandbox: Where the verifier will run.
        setting: How.
        own_tests: The verifier's image holds ``/tests`` itself.

    Raises:
        SandboxError: It could not be done.
        StaleReward: A reward file came back at once.
    """
    # Faster than the host where there is much; whatever it leaves undone, the host does.
    victims = [LOGS] if own_tests else [LOGS, "/tests"]
    sandbox.run(f"rm -rf -- {' '.join(victims)}", timeout_s=60, state=_TOOLS, user=ROOT)
    with tempfile.TemporaryDirectory(prefix="sprout-empty-") as made:
        nothing, folder = Path(made) / "nothing", Path(made) / "folder"
        nothing.touch()
        folder.mkdir(mode=0o755)
        try:
            _make_logs(sandbox, setting, nothing, folder)
        except StaleReward:
            raise
        except (SandboxError, VerdictInvalid):
            # A link or a file stands at /logs: it goes, what it points at stays.
            sandbox.put(nothing, "/logs")
            sandbox.put(folder, "/logs")
            _make_logs(sandbox, setting, nothing, folder)


def _make_logs(sandbox: Sandbox, setting: Setting, nothing: Path, folder: Path) -> None:
    # A file takes the place of what stands there, folders included; then a folder of its own.
    sandbox.put(nothing, LOGS)
    sandbox.put(folder, LOGS, user=setting.user)
    sandbox.put(folder, "/logs/artifacts", user=setting.user)
    for path in (REWARD_JSON, REWARD_TEXT):
        if _read(sandbox, path, rewards.MAX_BYTES) is not None:
            raise StaleReward(f"{path} is there before the verifier ran")


@contextmanager
def _staged(
    root: Path | None, folders: Sequence[Path], files: Mapping[str, str], script: str
) -> Iterator[Path]:
    """Give a copy of ``tests`` or ``solution`` as it is uploaded: no links, script executable."""
    with tempfile.TemporaryDirectory(prefix="sprout-upload-") as made:
        stage = Path(made) / "stage"
        stage.mkdir(mode=0o755)
        for name, text in files.items():
            (stage / name).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            # Patches may hold carriage returns, which must come through.
            (stage / name).write_text(text, newline="")
        chosen = (
            (folder, path)
            for folder in folders
            for path in included_files(
                root or folder.parent, str(folder.relative_to(root or folder.parent))
            )
        )
        for folder, path in chosen:
            if not path.exists():
                continue
            target = stage / path.relative_to(folder)
            target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            if path.is_dir():
                shutil.copytree(path, target, dirs_exist_ok=True)
            else:
                shutil.copy2(path, target)
        for path in stage.rglob("*"):
            path.chmod((path.stat().st_mode & 0o755) | (0o755 if path.is_dir() else 0o444))
        (stage / script).chmod(0o755)
        yield stage


def upload(
    sandbox: Sandbox,
    root: Path | None,
    folders: Sequence[Path],
    script: str,
    target: str,
    files: Mapping[str, str] | None = None,
) -> None:
    """Copy folders of the task into a sandbox, each over those before it.

    Args:
        sandbox: Where to.
        root: The task's folder, if it has one.
        folders: The task's or a step's ``tests`` or ``solution``.
        script: The script in it, made executable.
        target: The folder inside the sandbox; what stands there is removed.
        files: Further files: path to text.
    """
    with (
        _staged(root, folders, files or {}, script) as stage,
        tempfile.NamedTemporaryFile() as no,
    ):
        sandbox.put(Path(no.name), target)
        sandbox.put(stage, target)


def solve(sandbox: Sandbox, setting: Setting) -> str:
    """Run the reference solution in an agent's sandbox; return a remark if it did not end well.

    Raises:
        ConfigError: A variable that it takes from the host is not set.
    """
    solution, limits = setting.task.solution, setting.task.limits
    assert solution is not None
    extra = resolve_env(solution.env, setting.environ)
    folders = [solution.folder] if solution.folder is not None else []
    upload(sandbox, setting.task.folder, folders, solution.script, "/solution", solution.files)
    state = setting.agent_state
    done = sandbox.run(
        shlex.quote(str(PurePosixPath("/solution") / solution.script)),
        timeout_s=limits.agent_timeout_s or DEFAULT_TIMEOUT_S,
        state=replace(state, env={**state.env, **extra}),
    )
    if done.exit_code == 0:
        return ""
    said = (done.stdout + done.stderr).decode(errors="replace").strip()[-500:]
    how = "timed out" if done.timed_out else f"ended with {done.exit_code}"
    return setting.redact(f"the solution {how}: {said}")


def put_back(sandbox: Sandbox, base: Base, paths: Sequence[str]) -> None:
    """Copy what the agent was not to see from the image to where it was; root owns it."""
    with tempfile.NamedTemporaryFile() as nothing:
        for path in paths:
            found = (layer.resolve() / path.lstrip("/") for layer in base.layers)
            source = next((one for one in found if os.path.lexists(one)), None)
            # A link on the way there is an image's, and may point anywhere on the host.
            if source is not None and source == source.resolve():
                sandbox.put(Path(nothing.name), path)
                sandbox.put(source, path)


def make_executable(sandbox: Sandbox, script: str) -> None:
    """Let a script of the verifier's own image be run, as Harbor does; it may lack the mode."""
    sandbox.run(f"chmod +x {shlex.quote(script)}", timeout_s=30, state=_TOOLS, user=ROOT)


def verifier_command(setting: Setting) -> str:
    """Return how the script is run, in Harbor's words."""
    return f"({shlex.quote(setting.script)}) > {STDOUT} 2>&1"


def execute(sandbox: Sandbox, setting: Setting) -> Judged:
    """Run the verifier's script, stop everything, read the reward and the reports.

    The sandbox is left paused (or, after a time-out, emptied).

    Raises:
        SandboxError: The sandbox failed.
    """
    verifier = setting.task.verifier
    began = time.monotonic()
    done = sandbox.run(
        verifier_command(setting),
        timeout_s=verifier.timeout_s,
        state=setting.state,
        user=setting.user,
    )
    seconds = time.monotonic() - began
    stop(sandbox)
    log = _read_log(sandbox)
    if not log:
        log = (done.stdout + done.stderr).decode(errors="replace")
    log = setting.redact(log)
    tail = plain(log[-_TAIL_CHARS:])
    found = reports.collect(_report_files(sandbox), log)
    tests = tuple(
        test.model_copy(update={"message": setting.redact(test.message)}) for test in found.tests
    )
    remark = "; ".join(found.unreadable)

    def without(reason: str, *, hung: bool = False) -> Judged:
        reason = setting.redact(reason)
        verdict = Verdict.invalid(reason, log_tail=tail, duration_s=seconds)
        return Judged(verdict.model_copy(update={"tests": tests}), reason, hung=hung)

    if done.timed_out:
        return without(f"the verifier timed out after {verifier.timeout_s:g} s", hung=True)
    sign = OUT_OF_MEMORY if done.oom_killed else sign_of(log, tests)
    try:
        if verifier.judge is not None:
            parsed = _read(sandbox, PARSED, reports.MAX_REPORT_BYTES)
            values, tests = decide(verifier.judge, log, parsed)
        else:
            values = _read_rewards(sandbox, done.exit_code)
        score = rewards.primary(values, verifier.reward_key)
    except VerdictInvalid as error:
        return without(f"{error.facts[0]}{f' ({sign})' if sign else ''}")
    passed = score >= verifier.pass_threshold
    if score <= 0 and not passed and sign is not None and sign.startswith(MACHINE):
        return without(sign)
    verdict = Verdict(
        outcome="passed" if passed else "failed",
        reward=score,
        rewards=values,
        tests=tests,
        reason=setting.redact(remark),
        log_tail=tail,
        duration_s=seconds,
    )
    if passed:
        return Judged(verdict)
    return Judged(verdict, sign if sign and score <= 0 else "", again=store_may_be_full(log))


def stop(sandbox: Sandbox) -> None:
    """Let nothing in the sandbox run any more: pause it, or failing that kill what is in it."""
    try:
        sandbox.pause()
    except PauseTimeout:
        sandbox.kill_all()


def _read(sandbox: Sandbox, path: str, max_bytes: int) -> bytes | None:
    """Return a file's bytes, or None if there is no such file.

    Raises:
        VerdictInvalid: It is a link, a special file or too large.
    """
    try:
        return sandbox.read_file(path, max_bytes=max_bytes)
    except FileNotFoundError:
        return None
    except SandboxError as error:
        raise VerdictInvalid(f"{path} cannot be read: {error}") from error


def _read_rewards(sandbox: Sandbox, exit_code: int) -> dict[str, float]:
    data = _read(sandbox, REWARD_JSON, rewards.MAX_BYTES)
    if data is not None:
        return rewards.parse_json(data)
    data = _read(sandbox, REWARD_TEXT, rewards.MAX_BYTES)
    if data is not None:
        return rewards.parse_text(data)
    raise VerdictInvalid(
        f"the verifier wrote no reward file; its script ended with exit code {exit_code}"
    )


def _read_log(sandbox: Sandbox) -> str:
    try:
        data = _read(sandbox, STDOUT, _MAX_LOG_BYTES)
    except VerdictInvalid as error:
        return f"[{error.facts[0]}]"
    return (data or b"").decode(errors="replace")


def _report_files(sandbox: Sandbox) -> dict[str, bytes]:
    """Return the report files of the log folder; where it holds something odd, the usual ones."""
    found: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory(prefix="sprout-reports-") as made:
        target = Path(made) / "verifier"
        try:
            sandbox.get(LOGS, target, max_bytes=2 * reports.MAX_REPORT_BYTES)
        except (SandboxError, OSError):
            for name in _USUAL_REPORTS:
                try:
                    data = _read(sandbox, f"{LOGS}/{name}", reports.MAX_REPORT_BYTES)
                except VerdictInvalid:
                    continue
                if data is not None:
                    found[name] = data
            return found
        # A link is copied as a link, and may point anywhere on the host: none is followed.
        for folder, _, names in os.walk(target if not target.is_symlink() else made):
            for path in (Path(folder, name) for name in names if name.endswith((".xml", ".json"))):
                facts = path.lstat()
                if stat.S_ISREG(facts.st_mode) and facts.st_size <= reports.MAX_REPORT_BYTES:
                    found[path.relative_to(target).as_posix()] = path.read_bytes()
    return found
