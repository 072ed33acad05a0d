"""``sprout run``, ``show`` and ``runs``: collect attempts, look at them again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from sprout_env.actors.load import load_actor
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
    tasks_place,
)
from sprout_env.cli.failures import CODES
from sprout_env.cli.progress import Progress
from sprout_env.cli.tables import SIMULATED, report
from sprout_env.cli.transcripts import turns_of
from sprout_env.cli.tree import draw, picture
from sprout_env.disks import open_store
from sprout_env.errors import BudgetExhausted, ConfigError, SproutError
from sprout_env.grading.gate import gate_status
from sprout_env.records.outline import labels
from sprout_env.records.reviews import Attempts
from sprout_env.search.attempts import AttemptLimits
from sprout_env.search.budget import Budget
from sprout_env.search.methods import load_method
from sprout_env.search.runs import RunConfig, RunResult, load_run
from sprout_env.search.runs import run as collect
from sprout_env.tasks.suites import SEEDBED, Suite, find_suite

app = typer.Typer(help="Recorded runs.", no_args_is_help=True)

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")]
Tasks = Annotated[list[str] | None, typer.Option("--task", help="Only this task; repeat for more.")]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, help="Attempts at a time.")]
OutDir = Annotated[
    Path | None,
    typer.Option(
        "--out", help="Folder of the run; the same one goes on with it. \\[default: runs/...]"
    ),
]
MaxTurns = Annotated[int | None, typer.Option(min=1, help="Most turns of an attempt.")]
KeepSnapshots = Annotated[
    bool, typer.Option("--keep-snapshots", help="Leave them in the store, for shell and diff.")
]
Dataset = Annotated[str | None, typer.Option(help="The data set's own version.")]


def run(
    suite: SuiteName,
    method: Annotated[
        list[str] | None,
        typer.Option(help="sprout, pass@K, ...; repeat to compare. \\[default: sprout]"),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A model behind an OpenAI-compatible server: openai/NAME.")
    ] = None,
    base_url: Annotated[str | None, typer.Option(help="The server's /v1 address.")] = None,
    actor: Annotated[
        str | None, typer.Option(help="Another actor, as simulated:skill=0.8,accuracy=0.9.")
    ] = None,
    roots: Annotated[int | None, typer.Option(min=1, help="Attempts from the start.")] = None,
    rounds: Annotated[int | None, typer.Option(min=0, help="Most review rounds.")] = None,
    branches: Annotated[int | None, typer.Option(min=1, help="Most branches of a round.")] = None,
    task: Tasks = None,
    jobs: Jobs = 4,
    seed: Annotated[int, typer.Option(help="All draws follow from it.")] = 0,
    out_dir: OutDir = None,
    max_turns: MaxTurns = None,
    max_calls: Annotated[int | None, typer.Option(min=1, help="Budget of model calls.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Budget of tokens.")] = None,
    max_seconds: Annotated[float | None, typer.Option(help="Budget of wall seconds.")] = None,
    keep_snapshots: KeepSnapshots = False,
    network: Network = "task",
    path: TasksPath = None,
    dataset: Dataset = None,
    store: StorePath = None,
    as_json: AsJson = False,
) -> None:
    """Run methods over the tasks of a suite: attempts, reviews, branches; then tables and trees."""
    who = acting(actor, model, base_url, path)
    methods = _methods(method or ["sprout"], roots=roots, rounds=rounds, branches=branches)
    found = find_suite(suite, path, dataset)
    slugs = tuple(task or found.slugs())
    warn_of_ungated(found, slugs, store)
    budget = Budget.make(calls=max_calls, tokens=max_tokens, seconds=max_seconds)
    folder = out_dir or Path("runs") / time.strftime(f"%Y%m%d-%H%M%S-{suite}")
    results: list[RunResult] = []
    began = time.monotonic()
    for spec in methods:
        name = load_method(spec).name
        config = RunConfig.make(
            suite,
            actor=who,
            method=spec,
            tasks=tuple(task or ()),
            seed=seed,
            tasks_path=tasks_place(path),
            dataset=dataset,
            store=str(store.resolve()) if store is not None else None,
            limits=AttemptLimits.make(max_turns=max_turns),
            network=network_policy(network),
            keep_snapshots=keep_snapshots,
        )
        where = folder / name.replace("/", "-") if len(methods) > 1 else folder
        console = err() if as_json else out()
        title = f"{name}, seed {seed}, on {suite} with {load_actor(who).name}"
        with Progress(console, slugs, title) as watch:
            results.append(
                collect(config, folder=where, workers=jobs, budget=budget, on_event=watch)
            )
    if as_json:
        print_json([{"summary": r.summary, "cut_short": r.cut_short} for r in results])
    else:
        _print_results(results)
        for result in results:
            if result.cut_short:
                err().print(Text.assemble(("not whole: ", "yellow"), result.cut_short))
        took = seconds(time.monotonic() - began)
        said = f"{took}, recorded in {folder}; sprout show or view {folder}"
        out().print(Text(said, "dim"), soft_wrap=True)
    if any(result.cut_short for result in results):
        raise typer.Exit(CODES[BudgetExhausted])


def warn_of_ungated(suite: Suite, slugs: Sequence[str], store: Path | None) -> None:
    """Say which tasks nobody has proven here; the bundled ones are proven in their tests."""
    if suite.root == SEEDBED:
        return
    opened = open_store(store)
    readable = [slug for slug in slugs if slug not in suite.broken]
    path = f" --path {suite.root}" if suite.name == "harbor" else ""
    told = {slug: gate_status(opened, suite.task(slug)) for slug in readable}
    refused = [f"{slug}: {said}" for slug, said in told.items() if said not in (None, "passed")]
    for word, found in (
        ("not proven here", [slug for slug, status in told.items() if status is None]),
        ("refused by the gate", refused),
    ):
        if found:
            some = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
            err().print(
                Text.assemble(
                    (f"{word}: ", "yellow"),
                    f"{len(found)} of {len(slugs)} tasks ({some}); `sprout gate "
                    f"{suite.name}{path}` tells whether they are solvable and not open to cheating",
                ),
                soft_wrap=True,
            )


def acting(
    actor: str | None, model: str | None, base_url: str | None, path: str | None = None
) -> dict[str, Any]:
    """Return the spec of who acts, from a command's options."""
    if (actor is None) == (model is None):
        raise ConfigError("say who acts: --model openai/NAME, or --actor simulated:skill=0.8")
    if actor is not None:
        if base_url is not None:
            raise ConfigError("--base-url belongs to --model")
        found = load_actor(actor).spec()
        if found["kind"] == "simulated" and path is not None and not found["folders"]:
            playbooks = sorted(Path(path).resolve().glob("*/playbook.toml"))
            found["folders"] = [str(playbook.parent) for playbook in playbooks]
        return found
    assert model is not None
    spec = {"kind": "openai", "model": model.removeprefix("openai/")}
    return load_actor(spec if base_url is None else {**spec, "base_url": base_url}).spec()


def _methods(names: Sequence[str], **given: int | None) -> list[dict[str, Any]]:
    """Return the methods' specs with the settings that they know."""
    told = {name: value for name, value in given.items() if value is not None}
    specs = [load_method(name).spec() for name in names]
    for name, value in told.items():
        takers = [spec for spec in specs if name in spec]
        if not takers:
            raise ConfigError(f"--{name} is no setting of {', '.join(names)}")
        for spec in takers:
            spec[name] = value
    return [load_method(spec).spec() for spec in specs]


def _simulated(result: RunResult) -> bool:
    return result.config.actor.get("kind") == "simulated"


def _print_results(results: Sequence[RunResult]) -> None:
    for result in results:
        for item in result.collections:
            if not item.attempts:
                continue
            title = Text.assemble((item.task, "bold"), (f"  {result.summary.method}", "dim"))
            if _simulated(result):
                title.append("  simulated actor", "italic yellow")
            out().print(Group(title, *picture(item.attempts, out().width), Text()))
    out().print(
        report(
            [item for result in results for item in result.collections],
            [result.summary for result in results],
            simulated=any(map(_simulated, results)),
        )
    )


def show(
    folder: RunFolder,
    task: Annotated[str | None, typer.Argument(help="Only this task.")] = None,
    attempt: Annotated[
        str | None, typer.Option(help="Its turns, one by one: 'root 1', 'branch 1.2'.")
    ] = None,
    rescued: Annotated[bool, typer.Option("--rescued", help="Only tasks a branch solved.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Most tasks to draw.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Cut nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Draw the attempts of a run: over turns, where they branched and why, how they ended."""
    result = load_run(folder)
    chosen = [item for item in result.collections if task in (None, item.task)]
    if task is not None and not chosen:
        known = ", ".join(item.task for item in result.collections)
        raise ConfigError(f"no task {task} in {folder}; it has {known}")
    if rescued:
        chosen = [item for item in chosen if item.passed and item.roots_failed]
    chosen = chosen[:limit]
    if as_json:
        print_json(chosen)
        return
    if attempt is not None:
        _print_turns(chosen, attempt, full=full)
        return
    if _simulated(result):
        out().print(SIMULATED, style="italic yellow")
    for item in chosen:
        if item.attempts:
            out().print(draw(item.attempts, width=out().width, full=full))
        else:
            said = f"  {item.cut_short or 'no attempts'}"
            out().print(Text.assemble((item.task, "bold"), said))
    if task is None and not rescued:
        out().print(report(result.collections, [result.summary], simulated=_simulated(result)))
    elif not chosen:
        out().print("no such task in this run")


def _print_turns(items: Sequence[Attempts], wanted: str, *, full: bool) -> None:
    if len(items) != 1:
        raise ConfigError(
            "name the task whose attempt is meant: sprout show RUN TASK --attempt ...; there are "
            + ", ".join(item.task for item in items)
        )
    names = labels(items[0].attempts)
    found = next((a for a in items[0].attempts if wanted in (a.id, names[a.id])), None)
    if found is None:
        raise ConfigError(f"no attempt {wanted!r}; there are {', '.join(names.values())}")
    out().print(turns_of(found, names[found.id], full=full))


@app.command("list")
def list_runs(
    folder: Annotated[Path, typer.Argument(help="Where to look.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List the runs below a folder."""
    found = []
    for path in sorted(folder.glob("**/run.json")):
        try:
            config = RunConfig.model_validate_json(path.read_text())
            summary = load_run(path.parent).summary
        except (SproutError, ValueError, OSError) as error:
            err().print(Text.assemble((f"{path.parent}: ", "yellow"), str(error)))
            continue
        found.append((path.parent, config, summary))
    if as_json:
        print_json([{"run": path, "config": config, "summary": s} for path, config, s in found])
        return
    for path, config, s in found:
        # A path is there to be copied: no table breaks it.
        out().print(Text(str(path), "bold"), soft_wrap=True)
        who = load_actor(config.actor).name
        said = f"{s.method}, seed {config.seed}, on {config.suite} with {who}\n"
        said += f"resolved {s.resolve}, recovered {s.recovery}"
        out().print(Padding(Text(said), (0, 0, 0, 2)))
    if not found:
        out().print(f"no runs below {folder}")
