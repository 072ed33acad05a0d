"""``sprout capture``: an agent that knows nothing of us makes the attempts of a run."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from sprout_env.actors.agent import AgentActor
from sprout_env.cli.console import (
    AsJson,
    Network,
    StorePath,
    SuiteName,
    TasksPath,
    err,
    network_policy,
    number,
    out,
    print_json,
    seconds,
    tasks_place,
)
from sprout_env.cli.failures import CODES
from sprout_env.cli.progress import Progress
from sprout_env.cli.runs import (
    Dataset,
    Jobs,
    KeepSnapshots,
    MaxTurns,
    OutDir,
    Tasks,
    warn_of_ungated,
)
from sprout_env.cli.tree import mark
from sprout_env.errors import ActorError, ConfigError
from sprout_env.integrations.capture_run import AgentExecutor
from sprout_env.integrations.capture_session import NOTHING
from sprout_env.records.attempt import Attempt
from sprout_env.records.outline import ending, labels
from sprout_env.records.tokens import drifts
from sprout_env.search.attempts import AttemptLimits
from sprout_env.search.journal import load_folder
from sprout_env.search.runs import RunConfig, RunResult, load_run
from sprout_env.search.runs import run as collect
from sprout_env.tasks.suites import find_suite
from sprout_env.transcript import Turn

IDLE = "ran no command in the sandbox: does the agent use `docker exec`?"
"""Said of an agent that had answers: it may have worked elsewhere."""


def capture(
    suite: SuiteName,
    agent: Annotated[
        list[str],
        typer.Argument(
            metavar="AGENT",
            help="The agent's command after `--`, with {instruction}, {task}, {cwd}, {model_url} "
            "and {attempt} filled in.",
        ),
    ],
    base_url: Annotated[str, typer.Option(help="The model server's /v1 address.")],
    attempts: Annotated[int, typer.Option(min=1, help="Attempts at each task.")] = 1,
    task: Tasks = None,
    jobs: Jobs = 4,
    out_dir: OutDir = None,
    timeout: Annotated[
        float, typer.Option(help="Most wall seconds of an attempt; it is judged as it stands then.")
    ] = 3600.0,
    max_turns: MaxTurns = None,
    keep_snapshots: KeepSnapshots = False,
    network: Network = "task",
    path: TasksPath = None,
    dataset: Dataset = None,
    store: StorePath = None,
    as_json: AsJson = False,
) -> None:
    """Run an unmodified agent on tasks; its model calls and commands become a run of turns.

    The agent runs on this machine and finds its model server in OPENAI_BASE_URL and a `docker` in
    its PATH, whose commands run in the attempt's sandbox. Exits with 9 if an attempt was lost: the
    model's server failed, or the agent ended with another code than 0.
    """
    spec = {"kind": "agent", "command": agent, "base_url": base_url}
    actor = AgentActor.told("agent: ", spec)
    found = find_suite(suite, path, dataset)
    slugs = tuple(task or found.slugs())
    config = RunConfig.make(
        suite,
        actor=spec,
        method=f"pass@{attempts}",
        tasks=tuple(task or ()),
        tasks_path=tasks_place(path),
        dataset=dataset,
        store=str(store.resolve()) if store is not None else None,
        limits=AttemptLimits.make(max_turns=max_turns, max_seconds=timeout),
        network=network_policy(network),
        keep_snapshots=keep_snapshots,
    )
    folder = out_dir or Path("runs") / time.strftime(f"%Y%m%d-%H%M%S-{suite}")
    recorded: set[str] = set()
    if not (folder / "run.json").exists():
        # Before there is a folder, which would hold the command that is typed better next time.
        actor.probe()
    else:
        recorded = _recorded(folder, config)
    warn_of_ungated(found, slugs, store)
    began = time.monotonic()
    with (
        closing(AgentExecutor(actor, folder / "agents", jobs)) as executor,
        Progress(err() if as_json else out(), slugs, f"{actor.name} on {suite}") as watch,
    ):
        result = collect(config, folder=folder, workers=jobs, executor=executor, on_event=watch)
    rows = list(_rows(result, recorded))
    if as_json:
        print_json({"summary": result.summary, "attempts": rows})
    else:
        for row in rows:
            out().print(_line(row), soft_wrap=True)
        took = seconds(time.monotonic() - began)
        said = f"{took}, recorded in {folder}; sprout show or view {folder}"
        out().print(f"resolved {result.summary.resolve}")
        out().print(Text(said, "dim"), soft_wrap=True)
    for row in rows:
        if row["warning"]:
            said = f"{row['task']}, {row['attempt']} {row['warning']}"
            err().print(Text.assemble(("warning: ", "yellow"), said), soft_wrap=True)
    lost = [row["error"] for row in rows if row["status"] == "infra_error"]
    if lost:
        said = f"{len(lost)} of {len(rows)} attempts ({lost[0]}); the same with --out {folder} "
        said += "tries them again"
        err().print(Text.assemble(("lost: ", "yellow"), said), soft_wrap=True)
        raise typer.Exit(CODES[ActorError])


def _recorded(folder: Path, config: RunConfig) -> set[str]:
    """Return the ids of attempts that a folder has and that are not tried again.

    Raises:
        ConfigError: Another number of attempts was asked for there, or it cannot be read.
    """
    there, asked = load_run(folder).config.method.get("k"), config.method["k"]
    if there not in (None, asked):
        raise ConfigError(
            f"{folder} holds a run of --attempts {there}, not {asked}: give --attempts {there} to "
            "go on with it, or another --out"
        )
    found = (record for record in load_folder(folder) if isinstance(record, Attempt))
    return {attempt.id for attempt in found if attempt.status != "infra_error"}


def _rows(result: RunResult, recorded: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yield what is told of each attempt."""
    for item in result.collections:
        names = labels(item.attempts)
        for attempt in item.attempts:
            kept = result.config.keep_snapshots or item.lost
            turns = [entry for entry in attempt.entries if isinstance(entry, Turn)]
            traces = [turn.trace for turn in turns if turn.trace is not None]
            idle = bool(turns) and all(turn.command == NOTHING for turn in turns)
            yield {
                "task": item.task,
                "attempt": names[attempt.id],
                "status": attempt.status,
                "ending": f"{mark(attempt)[0]} {ending(attempt)}",
                "reward": attempt.reward,
                "turns": len(turns),
                "calls": attempt.usage.calls,
                "tokens": attempt.usage.tokens,
                "with_ids": sum(bool(t.prompt_ids and t.token_ids) for t in traces),
                "drifted": drifts(attempt.entries),
                "snapshots": sum(b.snapshot is not None for b in attempt.boundaries) if kept else 0,
                "seconds": attempt.seconds,
                "recorded": attempt.id in recorded,
                "error": attempt.error,
                "warning": IDLE if idle else "",
            }


def _line(row: dict[str, Any]) -> Text:
    error = f" ({row['error']})" if row["error"] and row["reward"] is not None else ""
    said = (
        f": {row['ending']}{error}; {row['turns']} turns, {row['calls']} calls, "
        f"{number(row['tokens'])} tokens; {row['with_ids']} turns with ids, {row['drifted']} "
        f"drifted; {row['snapshots']} snapshots kept; {seconds(row['seconds'])}"
    )
    said += f"; it {row['warning']}" if row["warning"] else ""
    again = " (recorded)" if row["recorded"] else ""
    return Text.assemble((f"{row['task']}, {row['attempt']}", "bold"), again, said)
