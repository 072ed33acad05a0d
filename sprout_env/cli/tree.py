"""Draws the attempts of a task as lines over turns, with the branch points and why they were taken.

One line per attempt, one column per turn (or more, where turns outnumber columns); a branch hangs
under the boundary that it starts from, whoever owns that turn.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sprout_env.records.attempt import Attempt
from sprout_env.records.lanes import SIGNS, Look, lanes, look
from sprout_env.records.outline import counted, headline, labels, ordered, own_turns

COLOURS: dict[Look, str] = {
    "passed": "green",
    "failed": "red",
    "invalid": "yellow",
    "lost": "magenta",
    "unjudged": "bright_black",
}
LABEL_COLUMNS = 12
VERDICT_COLUMNS = 30


def mark(attempt: Attempt) -> tuple[str, str]:
    """Return the sign and the colour of how an attempt ended."""
    return SIGNS[look(attempt)], COLOURS[look(attempt)]


def picture(attempts: Sequence[Attempt], width: int) -> list[Text]:
    """Return one line for the ruler and one for each attempt."""
    rows = lanes(attempts)
    longest = max((lane.end for lane in rows), default=0)
    columns = max(10, min(longest * 2, width - LABEL_COLUMNS - VERDICT_COLUMNS))

    def column(turn: int) -> int:
        return round(turn * columns / longest) if longest else 0

    canvas = [[(" ", "")] * (columns + 2) for _ in rows]
    for row, lane in enumerate(rows):
        colour, last = COLOURS[lane.look], column(lane.end)
        for x in range(column(lane.start), last + 1):
            canvas[row][x] = ("─", colour)
        canvas[row][last + 1] = (lane.sign, f"bold {colour}")
        if lane.owner is None:
            canvas[row][column(lane.start)] = ("●", colour)
    for row, lane in enumerate(rows):
        if lane.owner is None:
            continue
        x = column(lane.start)
        if canvas[lane.owner][x][0] == "─":
            canvas[lane.owner][x] = ("┬", canvas[lane.owner][x][1])
        for between in range(lane.owner + 1, row):
            sign = "├" if canvas[between][x][0] in "└├" else "│"
            canvas[between][x] = (sign, canvas[between][x][1] or "dim")
        canvas[row][x] = ("└", COLOURS[lane.look])
    lines = [_ruler(longest, columns)]
    for row, lane in enumerate(rows):
        line = Text(f"{lane.label:<{LABEL_COLUMNS}}", no_wrap=True, overflow="ellipsis")
        for sign, style in canvas[row]:
            line.append(sign, style)
        lines.append(line.append(f"  {lane.ending}", COLOURS[lane.look]))
    return lines


def _ruler(longest: int, columns: int) -> Text:
    """Return the numbers of some turns over their columns."""
    step = next(
        (s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500) if s * columns >= 5 * max(longest, 1)),
        1000,
    )
    cells = [" "] * (columns + 6)
    for turn in range(0, longest + 1, step):
        x = round(turn * columns / longest) if longest else 0
        for offset, digit in enumerate(str(turn)):
            cells[x + offset] = digit
    return Text(f"{'turn':<{LABEL_COLUMNS}}" + "".join(cells).rstrip(), style="dim", no_wrap=True)


def _cut(text: str, size: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= size else line[: size - 1] + "…"


def explain(attempts: Sequence[Attempt], *, full: bool = False) -> Table:
    """Say for each branch where it starts, why, with which command; for each failure, the tests."""
    names = labels(attempts)
    size = 10_000 if full else 160
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, width=LABEL_COLUMNS - 1)
    table.add_column(ratio=1)
    for attempt in ordered(attempts):
        sign, colour = mark(attempt)
        text = Text.assemble((f"{sign} ", colour))
        if attempt.plan is None:
            text.append(counted(own_turns(attempt), "turn"))
        else:
            parent = names.get(attempt.plan.attempt, attempt.plan.attempt)
            text.append(f"from {parent} after turn {attempt.plan.boundary}: ", "bold")
            text.append(_cut(attempt.plan.why, size) or "no reason given")
            if attempt.plan.starting_turn is not None:
                text.append("\nstarts with  ", "dim")
                text.append(_cut(attempt.plan.starting_turn.command, size), "cyan")
        if attempt.verdict is not None and attempt.verdict.failing:
            text.append("\nfails  ", "dim")
            failing = [name.rsplit("::", 1)[-1] for name in attempt.verdict.failing]
            shown = failing if full else failing[:6]
            more = f" and {len(failing) - len(shown)} more" if len(shown) < len(failing) else ""
            text.append(", ".join(shown) + more, "red")
        if attempt.lost_processes:
            text.append("\nlost at the restore  ", "dim")
            text.append(_cut(", ".join(attempt.lost_processes), size), "yellow")
        table.add_row(Text(names[attempt.id], colour), text)
    return table


def draw(attempts: Sequence[Attempt], *, width: int, full: bool = False) -> RenderableType:
    """Return picture and explanation of one task's attempts, in the order they were made.

    Args:
        attempts: All attempts of one task.
        width: Columns to draw in.
        full: Cut nothing.
    """
    task = attempts[0].task if attempts else "no attempts"
    title = Text.assemble((task, "bold"), "  ", (headline(attempts), "italic"))
    return Group(
        title,
        Padding(Group(*picture(attempts, width - 2)), (1, 0, 1, 2)),
        Padding(explain(attempts, full=full), (0, 0, 1, 2)),
    )
