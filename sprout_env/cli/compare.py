"""``sprout compare``: methods side by side, as table, JSON, Markdown and chart."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.padding import Padding
from rich.table import Table
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
    number,
    out,
    print_json,
    seconds,
    tasks_place,
)
from sprout_env.cli.progress import Progress
from sprout_env.cli.runs import acting
from sprout_env.cli.tables import SIMULATED, SUBSTITUTED, plain_table
from sprout_env.errors import ConfigError
from sprout_env.records.outline import counted
from sprout_env.search.attempts import AttemptLimits
from sprout_env.search.budget import Budget, Prices
from sprout_env.search.charts import draw_comparison, draw_scaling
from sprout_env.search.compare import (
    ABLATION,
    CompareConfig,
    scaling_methods,
    split_methods,
)
from sprout_env.search.compare import compare as run_comparison
from sprout_env.search.comparison import Comparison, Estimate, Rate
from sprout_env.search.events import OnEvent
from sprout_env.tasks.suites import find_suite

METHODS = "pass@1,pass@4,entropy,shepherd,sprout"
"""The columns of the paper's Table 2."""


def compare(
    suite: SuiteName,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Separated by commas; gains are over the first. "
            f"\\[default: {METHODS.replace(',', ', ')}]"
        ),
    ] = None,
    scaling: Annotated[
        bool,
        typer.Option("--scaling", help="Sweep rounds x branches instead (paper: Figure 4)."),
    ] = False,
    ablate: Annotated[
        bool,
        typer.Option("--ablate", help="SPROUT and its ablations instead (paper: Table 5)."),
    ] = False,
    rounds: Annotated[str, typer.Option(help="Rounds of the sweep.")] = "1,2,3",
    branches: Annotated[str, typer.Option(help="Branches of the sweep.")] = "1,2,4",
    model: Annotated[
        str | None, typer.Option(help="A model behind an OpenAI-compatible server: openai/NAME.")
    ] = None,
    base_url: Annotated[str | None, typer.Option(help="The server's /v1 address.")] = None,
    actor: Annotated[
        str | None, typer.Option(help="Another actor, as simulated:skill=0.8,accuracy=0.9.")
    ] = None,
    task: Annotated[list[str] | None, typer.Option(help="Only this task; repeat for more.")] = None,
    seeds: Annotated[str, typer.Option(help="Run seeds, separated by commas.")] = "0",
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Attempts at a time.")] = 4,
    out_dir: Annotated[
        Path | None,
        typer.Option("--out", help="Folder; the same one goes on with it. \\[default: runs/...]"),
    ] = None,
    max_turns: Annotated[int | None, typer.Option(help="Most turns of an attempt.")] = None,
    max_calls: Annotated[
        int | None, typer.Option(help="Model calls of each method and seed.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Tokens of each method and seed.")] = None,
    max_seconds: Annotated[
        float | None, typer.Option(help="Wall seconds of each method and seed.")
    ] = None,
    max_money: Annotated[float | None, typer.Option(help="Money, with --prices.")] = None,
    prices: Annotated[
        str | None,
        typer.Option(help="Per million tokens: PROMPT,ANSWERS or PROMPT,ANSWERS,CACHED."),
    ] = None,
    network: Network = "task",
    path: TasksPath = None,
    dataset: Annotated[str | None, typer.Option(help="The data set's own version.")] = None,
    store: StorePath = None,
    as_json: AsJson = False,
) -> None:
    """Compare methods on the same tasks, seeds and roots; what is finished is not paid again."""
    if sum((scaling, ablate, methods is not None)) > 1:
        raise ConfigError("choose one of --methods, --scaling and --ablate")
    if not scaling and (rounds, branches) != ("1,2,3", "1,2,4"):
        raise ConfigError(
            "--rounds and --branches belong to --scaling; for one method: --methods "
            "sprout:rounds=2,branches=4"
        )
    names = split_methods(METHODS if methods is None else methods)
    if scaling:
        names = scaling_methods(_numbers("rounds", rounds), _numbers("branches", branches))
    elif ablate:
        names = list(ABLATION)
    who = acting(actor, model, base_url, path)
    config = CompareConfig.make(
        suite,
        actor=who,
        methods=names,
        tasks=tuple(task or ()),
        seeds=tuple(_numbers("seeds", seeds)),
        tasks_path=tasks_place(path),
        dataset=dataset,
        store=str(store.resolve()) if store is not None else None,
        limits=AttemptLimits.make(max_turns=max_turns),
        network=network_policy(network),
    )
    rates = _prices(prices)
    if max_money is not None and rates == Prices():
        raise ConfigError("--max-money needs --prices")
    budget = Budget.make(
        calls=max_calls, tokens=max_tokens, seconds=max_seconds, money=max_money, prices=rates
    )
    slugs = tuple(task or find_suite(suite, path, dataset).slugs())
    folder = out_dir or Path("runs") / time.strftime(f"%Y%m%d-%H%M%S-compare-{suite}")
    console = err() if as_json else out()
    title = f"on {suite} with {load_actor(who).name}"

    @contextmanager
    def watch(label: str, seed: int) -> Iterator[OnEvent]:
        with Progress(console, slugs, f"{label}, seed {seed}, {title}") as progress:
            yield progress

    began = time.monotonic()
    table = run_comparison(config, folder, workers=jobs, budget=budget, watch=watch)
    drawn = _write(table, folder, scaling=scaling)
    if as_json:
        print_json(table)
        return
    for each in tables(table, ablate=ablate):
        out().print(each)
    for line in remarks(table):
        out().print(Padding(Text(line, "dim"), (0, 0, 0, 2)))
    took = seconds(time.monotonic() - began)
    out().print(f"{took}; {', '.join(map(str, drawn))}", style="dim", soft_wrap=True)


def _numbers(name: str, text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise ConfigError(f"--{name} takes whole numbers separated by commas: {text!r}") from error
    if not found or len(set(found)) != len(found):
        raise ConfigError(f"--{name} takes different whole numbers, not {text!r}")
    return found


def _prices(text: str | None) -> Prices:
    if text is None:
        return Prices()
    try:
        names = ("prompt", "completion", "cached")
        numbers = dict(zip(names, map(float, text.split(",")), strict=False))
        if len(numbers) < 2 or len(numbers) <= text.count(","):
            raise ValueError
        return Prices(**numbers)
    except ValueError as error:
        raise ConfigError(
            "--prices takes two or three numbers, 0 or more, per million tokens, as 2.5,10 or "
            f"2.5,10,0.25: not {text!r}"
        ) from error


def _write(table: Comparison, folder: Path, *, scaling: bool) -> list[Path]:
    """Write what a program, a page and an eye take."""
    data, page = folder / "results.json", folder / "results.md"
    data.write_text(table.model_dump_json(indent=1) + "\n")
    page.write_text(markdown(table))
    charts = [folder / "results.svg", folder / "results.png"]
    try:
        (draw_scaling if scaling else draw_comparison)(table, charts)
    except ConfigError as error:
        err().print(Text.assemble(("no chart: ", "yellow"), str(error)))
        return [data, page]
    return [data, page, *charts]


def _points(estimate: Estimate, *, sign: bool = False) -> str:
    if estimate.value is None:
        return "–"
    form = "+.0f" if sign else ".0f"
    said = f"{100 * estimate.value:{form}}"
    if estimate.low is not None and estimate.high is not None:
        said += f" [{100 * estimate.low:{form}}, {100 * estimate.high:{form}}]"
    return said


def _rate(rate: Rate) -> str:
    return f"{rate.ratio.count}/{rate.ratio.of}  {_points(rate.share)}"


Cells = tuple[list[str], list[list[str]]]
"""A table as text: head and lines."""


def rate_cells(table: Comparison) -> Cells:
    """Return what was solved."""
    head = ["method", "resolved %", "recovered %", "gain"]
    lines = [
        [row.label, _rate(row.resolve), _rate(row.recovery), _points(row.gain, sign=True)]
        for row in table.rows
    ]
    return head, lines


def cost_cells(table: Comparison) -> Cells:
    """Return what was spent."""
    about = "≈" if table.simulated else ""
    priced = any(row.cost.money is not None for row in table.rows)
    head = ["method", "steps", "tokens", "reviews", "seconds", *(["money"] if priced else [])]
    lines = []
    for row in table.rows:
        cost = row.cost
        lines.append(
            [
                row.label,
                number(cost.steps),
                about + number(cost.usage.tokens),
                about + number(cost.review.tokens),
                f"{cost.seconds:.0f}",
                *([f"{cost.money or 0.0:.4g}"] if priced else []),
            ]
        )
    return head, lines


def trouble_cells(table: Comparison) -> Cells:
    """Return what is no failure of the model: of tasks, attempts, verdicts, questions, plans."""
    head = ["method", "undecided", "cut", "lost", "invalid", "unanswered", "dropped"]
    lines = [
        [
            row.label,
            *map(str, (t.unjudged, t.cut_short, t.lost, t.invalid, t.unanswered, t.dropped)),
        ]
        for row in table.rows
        for t in [row.trouble]
    ]
    return head, lines


def ablation_cells(table: Comparison) -> Cells:
    """Return the paper's Table 5: the branch stage alone, against the first row."""
    about = "≈" if table.simulated else ""
    head = ["branch stage of", "resolved %", "delta", "branches", "steps", "tokens"]
    lines = []
    for row in table.rows:
        tokens = row.cost.branch.tokens + row.cost.review.tokens
        lines.append(
            [
                row.label,
                _points(row.resolve.share),
                _points(row.gain, sign=True),
                str(row.cost.branches),
                number(row.cost.branch_steps),
                about + number(tokens),
            ]
        )
    return head, lines


def _size(table: Comparison) -> str:
    return f"{counted(table.tasks, 'task')}, seeds {', '.join(map(str, table.seeds))}"


def tables(table: Comparison, *, ablate: bool) -> list[Table]:
    """Return the tables for the terminal."""
    notes = [SIMULATED] if table.simulated else []
    if table.substituted:
        notes.append(SUBSTITUTED)
    title = f"{table.suite}: {_size(table)}"
    title += f" ({'; '.join(notes)})" if notes else ""
    parts = [(title, rate_cells(table)), ("Cost", cost_cells(table))]
    if ablate:
        parts.append(("Branch stage alone", ablation_cells(table)))
    parts.append(("No failure of the model", trouble_cells(table)))
    found = []
    wide = max((len(row.label) for row in table.rows), default=0)
    for name, (head, lines) in parts:
        made = plain_table(name)
        for n, column in enumerate(head):
            made.add_column(
                column,
                justify="right" if n else "left",
                style="" if n else "bold",
                overflow="fold",
                min_width=0 if n else min(wide, 12 if name is title else 28),
            )
        for line in lines:
            made.add_row(*map(Text, line))
        found.append(made)
    return found


def remarks(table: Comparison) -> list[str]:
    """Say what the numbers alone would hide."""
    found = [
        "intervals: 95 %, bootstrap over tasks; recovered: of the tasks whose first root failed",
    ]
    if table.rows:
        first = table.rows[0]
        found.append(f"gain: points over {first.label}, paired by task and seed")
    if table.shared_uses:
        found.append(
            f"{table.shared_roots} roots were shared {table.shared_uses} times: paid once, billed "
            f"to each; billed {number(table.billed.tokens)} tokens, paid "
            f"{number(table.paid.tokens)}"
        )
    found.append(
        "reviews: tokens of reviews, summaries, votes and supervisors; seconds: all attempts and "
        "reviews, one after the other"
    )
    if any(row.resolve.share.low == row.resolve.share.high for row in table.rows):
        found.append("an interval without width says only that all drawn tasks went alike")
    found.append(
        "no failure of the model: tasks undecided and cut short, attempts lost, verdicts invalid, "
        "questions unanswered, plans dropped"
    )
    for row in table.rows:
        if unknown := row.trouble.unjudged:
            solved, of = row.resolve.ratio.count, row.resolve.ratio.of + unknown
            found.append(
                f"{row.label}: {unknown} undecided, in no rate and no failure of the model (of all "
                f"{of} tasks {solved} to {solved + unknown} are solved); the same command again "
                "tries what was lost"
            )
    return found


def markdown(table: Comparison) -> str:
    """Return the comparison as a page."""

    def block(head: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
        rule = ["---", *["---:"] * (len(head) - 1)]
        return [f"| {' | '.join(line)} |" for line in (head, rule, *lines)]

    note = f" ({SIMULATED})" if table.simulated else ""
    parts = [
        f"# {table.suite}: {len(table.rows)} methods",
        "",
        f"{_size(table)}, {table.actor}{note}.",
        "",
        *block(*rate_cells(table)),
        "",
        *block(*cost_cells(table)),
        "",
        "No failure of the model:",
        "",
        *block(*trouble_cells(table)),
        "",
        "Branch stage alone:",
        "",
        *block(*ablation_cells(table)),
        "",
        *(f"- {line}" for line in remarks(table)),
    ]
    return "\n".join(parts) + "\n"
