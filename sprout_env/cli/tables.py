"""The tables of a run: metrics with denominators, and what roots, reviews and branches cost."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sprout_env.cli.console import number, seconds
from sprout_env.records.outline import counted, headline
from sprout_env.records.reviews import Attempts
from sprout_env.records.summary import PARTS, PartCost, Ratio, Summary

SUBSTITUTED = "environment: substituted; not a benchmark's numbers"
SIMULATED = "simulated actor: drawn from playbooks, no model was asked"


def _share(ratio: Ratio) -> str:
    """Say a share with its denominator; nothing is divided by zero."""
    return "–" if ratio.value is None else f"{ratio.count}/{ratio.of}  {100 * ratio.value:.0f} %"


def plain_table(title: str) -> Table:
    """Return an empty table as all of them look."""
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
    )


def metrics(summaries: Sequence[Summary], *, simulated: bool) -> Table:
    """Return the metrics of one or several methods, side by side."""
    notes = [SIMULATED] if simulated else []
    if any(summary.substituted for summary in summaries):
        notes.append(SUBSTITUTED)
    table = plain_table("Result" + (f" ({'; '.join(notes)})" if notes else ""))
    table.add_column("method", style="bold", no_wrap=True)
    for name in ("resolved", "recovered", "roots", "branches", "unscorable"):
        table.add_column(name, justify="right", no_wrap=True)
    for summary in summaries:
        table.add_row(
            summary.method,
            _share(summary.resolve),
            _share(summary.recovery),
            _share(summary.root_pass),
            _share(summary.branch_pass),
            str(summary.unscorable),
        )
    return table


def costs(summary: Summary) -> Table:
    """Return what each part of one method's run cost."""
    about = "≈" if summary.estimated else ""
    table = plain_table(f"Cost of {summary.method}")
    table.add_column("part", style="bold", no_wrap=True)
    for name in ("attempts", "commands", "calls", "prompt", "cached", "answers", "time"):
        table.add_column(name, justify="right", no_wrap=True)

    def row(name: str, cost: PartCost, style: str = "") -> None:
        usage = cost.usage
        table.add_row(
            name,
            counted(cost.attempts, "review") if name == "review" else str(cost.attempts),
            str(cost.turns) if name != "review" else "",
            str(usage.calls),
            about + number(usage.prompt_tokens),
            number(usage.cached_tokens),
            about + number(usage.completion_tokens),
            seconds(cost.seconds),
            style=style,
        )

    for part in PARTS:
        row(part, summary.parts[part])
    table.add_section()
    total = summary.total
    attempts = summary.parts["root"].attempts + summary.parts["branch"].attempts
    row("all", total.model_copy(update={"attempts": attempts}), "bold")
    if summary.estimated:
        table.caption = "≈ estimated from the characters that a model would have seen\n"
    return table


def tasks(collections: Sequence[Attempts]) -> Table:
    """Return one line per task: how it went."""
    table = plain_table("Tasks")
    table.add_column("task", style="bold", no_wrap=True)
    table.add_column("roots", justify="right")
    table.add_column("branches", justify="right")
    table.add_column("how it went")
    for item in collections:
        roots, branches = item.roots, item.branches
        if not item.decided:
            style = "yellow"
        else:
            style = "green" if item.passed else "red"
        said = headline(item.attempts) if item.scorable else "nothing could be judged"
        if item.scorable and not item.decided:
            said += "; not decided: the machine lost what might have passed"
        if item.cut_short:
            said += f"; cut short: {item.cut_short}"
        table.add_row(
            item.task,
            f"{sum(a.passed for a in roots)}/{len(roots)}",
            f"{sum(a.passed for a in branches)}/{len(branches)}" if branches else "",
            Text(said, style),
        )
    return table


def remarks(summary: Summary) -> list[str]:
    """Say what the numbers alone would hide: dropped plans, odd endings, exhausted budgets."""
    found = []
    if summary.dropped:
        said = ", ".join(f"{n} {reason.replace('_', ' ')}" for reason, n in summary.dropped.items())
        found.append(f"plans that became no branch: {said} (of {summary.plans} kept)")
    odd = {status: n for status, n in summary.status.items() if status != "submitted"}
    if odd:
        found.append(
            "endings other than a submission: "
            + ", ".join(f"{n} {status.replace('_', ' ')}" for status, n in odd.items())
        )
    if summary.substituted:
        found.append(
            f"environment: substituted in {summary.substituted} of "
            f"{counted(summary.tasks, 'task')}: aliases supplied their images or sources"
        )
    if summary.cut_short:
        found.append(f"cut short by a budget: {counted(summary.cut_short, 'task')}")
    return found


def report(
    collections: Sequence[Attempts], summaries: Sequence[Summary], *, simulated: bool
) -> RenderableType:
    """Return all tables of a run, one under the other."""
    parts: list[RenderableType] = [metrics(summaries, simulated=simulated)]
    for summary in summaries:
        parts += [costs(summary), *(Text(f"  {line}", "dim") for line in remarks(summary))]
    parts.append(tasks(collections))
    return Group(*parts)
