"""``sprout tasks`` and ``sprout gate``: look at suites, check them, get them, prove them."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from sprout_env.cli.console import (
    AsJson,
    Network,
    StorePath,
    SuiteName,
    TasksPath,
    err,
    network_policy,
    out,
    print_json,
    seconds,
)
from sprout_env.disks import open_store
from sprout_env.errors import ConfigError, TaskBroken, TaskNotFound
from sprout_env.grading.gate import GateStep, TaskGate
from sprout_env.grading.gate import gate as run_gate
from sprout_env.grading.verdict import Verdict
from sprout_env.records.outline import counted
from sprout_env.tasks.lint import lint as check
from sprout_env.tasks.lint import networks
from sprout_env.tasks.repositories import fetch, local_copy, parse_address
from sprout_env.tasks.suites import SEEDBED, Suite, find_suite
from sprout_env.tasks.task import Task

app = typer.Typer(help="Suites and their tasks.", no_args_is_help=True)

Dataset = Annotated[str | None, typer.Option(help="The data set's own version.")]

SOURCES = {
    "deepswe": "https://github.com/datacurve-ai/deep-swe.git",
    "terminal-bench": "https://github.com/harbor-framework/terminal-bench-2-1.git",
}
"""Where public suites are published, as git repositories."""


@app.command("list")
def list_tasks(
    suite: SuiteName = "seedbed",
    path: TasksPath = None,
    dataset: Dataset = None,
    language: Annotated[
        str | None, typer.Option(help="Only tasks that say that they are in it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the tasks of a suite."""
    found = find_suite(suite, path, dataset)
    tasks = list(found)
    if language is not None:
        tasks = [
            t for t in tasks if str(t.metadata.get("language", "")).lower() == language.lower()
        ]
    if as_json:
        print_json(
            {
                "suite": found.name,
                "root": found.root,
                "tasks": [t.model_dump(mode="json", exclude={"instruction"}) for t in tasks],
                "broken": {slug: str(error) for slug, error in found.broken.items()},
            }
        )
        return
    title = f"{found.name}: {counted(len(tasks), 'task')}"
    table = Table(title=title, title_justify="left", box=None)
    table.add_column("task", style="bold", no_wrap=True)
    table.add_column("what")
    for task in tasks:
        table.add_row(task.name, _summary(task))
    out().print(table)
    for slug, error in found.broken.items():
        err().print(Text.assemble(("broken: ", "red"), f"{slug}: {error}"))


def _summary(task: Task) -> str:
    said = task.metadata.get("description") or task.instruction.strip().splitlines()[0]
    return str(said).lstrip("# ")


@app.command()
def show(
    names: Annotated[
        list[str], typer.Argument(metavar="[SUITE] TASK", help="A task's slug, after its suite's.")
    ],
    suite: Annotated[str, typer.Option(help="Its suite.")] = "seedbed",
    path: TasksPath = None,
    dataset: Dataset = None,
    as_json: AsJson = False,
) -> None:
    """Show a task as the agent sees it, with its limits."""
    if len(names) > 2:
        raise ConfigError(f"one task, after its suite's name if need be; not {' '.join(names)}")
    found = find_suite([suite, *names][-2], path, dataset).task(names[-1])
    if as_json:
        print_json(found)
        return
    out().print(Text.assemble((found.name, "bold"), f"  {found.folder}"), soft_wrap=True)
    out().print(Markdown(found.instruction))
    limits = {k: v for k, v in found.limits.model_dump().items() if v is not None}
    out().print("limits: " + ", ".join(f"{k} {v}" for k, v in limits.items()))
    out().print(f"network: {networks(found)}")
    for warning in found.warnings:
        out().print(Text.assemble(("not understood: ", "yellow"), warning))
    for feature in found.unsupported:
        out().print(Text.assemble(("not supported: ", "red"), feature))


@app.command()
def lint(
    folders: Annotated[list[Path] | None, typer.Argument(help="Task folders, or suites.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check task folders; exits with 1 if one is broken or needs what is not supported."""
    reports = []
    for folder in folders or [SEEDBED]:
        suite = Suite(folder.name, folder)
        if not len(suite):
            raise TaskNotFound(str(folder), "that folder holds no task.toml")
        for slug in suite.slugs():
            try:
                task = suite.task(slug)
            except TaskBroken as error:
                reports.append(
                    {"task": slug, "ok": False, "network": "", "errors": [str(error)]}
                    | {"warnings": []}
                )
                continue
            errors = [f"not supported: {feature}" for feature in task.unsupported]
            if task.solution is None:
                errors.append("no solution/solve.sh: the gate cannot prove it solvable")
            findings = check(task)
            errors += findings.errors
            reports.append(
                {
                    "task": slug,
                    "ok": not errors,
                    "network": networks(task),
                    "errors": errors,
                    "warnings": [*task.warnings, *findings.warnings],
                }
            )
    if as_json:
        print_json(reports)
    else:
        for report in reports:
            sign = ("✓", "green") if report["ok"] else ("✗", "red")
            said = Text.assemble(sign, f" {report['task']}  ", (f"{report['network']}", "dim"))
            out().print(said)
            for line in (*report["errors"], *report["warnings"]):  # type: ignore[misc]
                out().print(f"    {line}")
    if not all(report["ok"] for report in reports):
        raise typer.Exit(1)


@app.command()
def pull(
    suite: Annotated[
        str, typer.Argument(help="A suite, or URL[@REF][#FOLDER] of any tasks in git.")
    ],
    source: Annotated[
        str | None, typer.Option("--from", help="Its git URL[@REF], or a folder to copy.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option(help="Folder of suites. \\[default: the first of $SPROUT_TASKS]")
    ] = None,
) -> None:
    """Get a suite by git, or from a folder, to where it is looked for.

    Tasks pulled by their URL are used by it as well, pinned to the commit until pulled again:
    --path URL, or tasks_path=URL of sprout/Harbor-v0.
    """
    address = parse_address(suite)
    if address is not None:
        with err().status("fetching"):
            folder, pinned = local_copy(address, again=True, root=to)
        found = find_suite("harbor", folder)
        out().print(f"{counted(len(found), 'task')} in {found.root}", soft_wrap=True)
        out().print(f"--path '{pinned}' names this commit", soft_wrap=True)
        return
    if suite == "seedbed":
        out().print(f"seedbed is bundled: {SEEDBED}", soft_wrap=True)
        return
    told = os.environ.get("SPROUT_TASKS", "").split(":")[0]
    if to is None and not told:
        raise ConfigError("say where suites are kept: --to FOLDER, or export SPROUT_TASKS=FOLDER")
    where = source or SOURCES.get(suite)
    if where is None:
        raise ConfigError(f"where {suite} is published is not known here; name it with --from")
    root = to or Path(told)
    target = root / suite
    if target.exists():
        raise ConfigError(f"{target} is already there; remove it to pull again")
    address = parse_address(where)
    if address is not None:
        with err().status("fetching"):
            fetch(address, root, suite)
    elif Path(where).is_dir():
        root.mkdir(parents=True, exist_ok=True)
        shutil.copytree(where, target, symlinks=True)
    else:
        raise ConfigError(f"{where} is neither a folder nor a git URL")
    try:
        found = find_suite(suite, target)
    except TaskNotFound:
        shutil.rmtree(target, ignore_errors=True)
        raise
    out().print(f"{counted(len(found), 'task')} in {found.root}", soft_wrap=True)
    if to is not None and str(to) not in told:
        out().print(f"so that they are found: export SPROUT_TASKS={to}", soft_wrap=True)


def gate(
    suite: SuiteName,
    task: Annotated[list[str] | None, typer.Option(help="Only this task; repeat for more.")] = None,
    nops: Annotated[int, typer.Option(min=1, help="How often nothing is done.")] = 2,
    oracles: Annotated[int, typer.Option(min=1, help="How often the solution is run.")] = 4,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Trials at a time.")] = 2,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget earlier results.")] = False,
    network: Network = "task",
    path: TasksPath = None,
    dataset: Dataset = None,
    store: StorePath = None,
    as_json: AsJson = False,
) -> None:
    """Prove tasks: doing nothing scores 0, the solution passes, each time in a fresh clone.

    Exits with 1 if a task does not pass.
    """
    found = find_suite(suite, path, dataset)
    tasks, unread = [], []
    for slug in task or found.slugs():
        try:
            tasks.append(found.task(slug))
        except TaskBroken as error:
            unread.append(TaskGate(task=slug, status="invalid task", reasons=(str(error),)))
    console = err()
    with console.status("proving") as status:
        lock = threading.Lock()
        done = 0

        def tell(step: GateStep) -> None:
            nonlocal done
            with lock:
                done += 1
                said = f"{step.task}: {step.kind} {step.number}: {step.verdict.outcome}"
                if console.is_terminal:
                    most = len(tasks) * (nops + oracles)
                    status.update(Text(f"{done} trials of up to {most}; {said}"))
                else:
                    console.print(said)

        report = run_gate(
            open_store(store),
            tasks,
            nops,
            oracles,
            jobs,
            progress=tell,
            fresh=fresh,
            network=network_policy(network),
        )
    report = report.model_copy(update={"tasks": (*report.tasks, *unread)})
    if as_json:
        print_json(report)
    else:
        table = Table(box=None)
        for name in ("task", "gate", "doing nothing", "solution", "trials took"):
            table.add_column(name, no_wrap=True)
        for one in report.tasks:
            colour = "green" if one.passed else "red"
            table.add_row(
                one.task,
                Text(one.status, colour),
                _rewards(one.nops),
                _rewards(one.oracles),
                seconds(one.seconds),
            )
        out().print(table)
        for one in report.tasks:
            for reason in one.reasons:
                out().print(f"{one.task}: {reason}", soft_wrap=True)
        passed = sum(one.passed for one in report.tasks)
        out().print(f"{passed} of {counted(len(report.tasks), 'task')} may be used")
    if not report.passed:
        raise typer.Exit(1)


def _rewards(verdicts: Sequence[Verdict]) -> str:
    return " ".join("?" if v.reward is None else f"{v.reward:g}" for v in verdicts)
