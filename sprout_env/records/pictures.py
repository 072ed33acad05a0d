"""Lanes as one SVG, and attempts and groups as HTML for a notebook's cell.

There is no script and no style sheet in them, and their colours can be read on light and on dark.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sprout_env.grading.plain import plain
from sprout_env.records.attempt import Attempt
from sprout_env.records.lanes import Lane, Look, lanes
from sprout_env.records.outline import headline, labels, ordered
from sprout_env.transcript import Turn

if TYPE_CHECKING:
    from sprout_env.records.groups import Group

COLOURS: dict[Look, str] = {
    "passed": "#2c9a4b",
    "failed": "#d8484d",
    "invalid": "#b58412",
    "lost": "#a45cc4",
    "unjudged": "#848d97",
    "plain": "#4f83b8",
}
REVIEW = "#c04aa6"
LABEL, WIDTH, ENDING = 92, 520, 240
ROW, TOP = 24, 22
FONT = "system-ui,'Segoe UI','DejaVu Sans',sans-serif"


def cut(text: str, size: int) -> str:
    """Return text on one line, escaped, with at most ``size`` characters shown."""
    line = " ".join(plain(text).split())
    return html.escape(line if len(line) <= size else line[: size - 1] + "…")


def _step(px: float) -> int:
    return next((s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500) if s * px >= 34), 1000)


@dataclass(frozen=True)
class _Grid:
    """Where turns and rows lie in a picture, in pixels."""

    longest: int

    @property
    def px(self) -> float:
        """The width of a turn."""
        return WIDTH / max(self.longest, 1)

    def x(self, turn: int) -> float:
        return round(LABEL + 8 + turn * self.px, 1)

    def y(self, row: int) -> float:
        return TOP + row * ROW + ROW / 2


def svg(rows: Sequence[Lane]) -> str:
    """Return a picture of lanes over turns, about 870 pixels wide."""
    grid = _Grid(max((lane.end for lane in rows), default=0))
    high = TOP + ROW * len(rows) + 4
    total = LABEL + WIDTH + ENDING + 24
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {high}" width="{total}" '
        f'height="{high}" style="max-width:100%;height:auto" role="img" '
        f'aria-label="attempts over turns" font-family="{FONT}" font-size="12">'
        '<text x="0" y="13" font-size="10.5" fill="#808890">turn</text>'
    )
    ruler = (
        f'<line x1="{grid.x(turn)}" x2="{grid.x(turn)}" y1="{TOP - 4}" y2="{high}" '
        'stroke="#808890" stroke-opacity=".28"/>'
        f'<text x="{grid.x(turn)}" y="13" text-anchor="middle" font-size="10.5" '
        f'fill="#808890">{turn}</text>'
        for turn in range(0, grid.longest + 1, _step(grid.px))
    )
    return "".join((head, *ruler, *(_lane(lane, n, grid) for n, lane in enumerate(rows)), "</svg>"))


def _lane(lane: Lane, row: int, grid: _Grid) -> str:
    colour, x, y, px = COLOURS[lane.look], grid.x, grid.y, grid.px
    here, first, last = y(row), x(lane.start), x(max(lane.start, lane.end))
    parts = []
    if lane.owner is None:
        path = f"M{first} {here}H{last}"
        parts.append(f'<circle cx="{first}" cy="{here}" r="3.5" fill="{colour}"/>')
    else:
        bend = min(7.0, max(2.0, px))
        path = (
            f"M{first} {y(lane.owner)}V{here - bend}Q{first} {here} {first + bend} {here}"
            f"H{max(last, first + bend)}"
        )
    thin = "1.3" if lane.learned is not None else "2"
    parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{thin}"/>')
    for begin, end in lane.learned or ():
        left = x(begin) - (px / 2 if begin > lane.start else 0)
        parts.append(
            f'<path d="M{left:.1f} {here}H{min(last, x(end) + px / 2):.1f}" stroke="{colour}" '
            'stroke-width="6" stroke-opacity=".75"/>'
        )
    if px >= 7:
        parts.extend(
            f'<circle cx="{x(turn)}" cy="{here}" r="2.4" fill="{colour}"/>'
            for turn in range(lane.start + 1, lane.end + 1)
        )
    if lane.command:
        at = x(lane.start + 1)
        parts.append(
            f'<path d="M{at} {here - 5}L{at + 5} {here}L{at} {here + 5}L{at - 5} {here}Z" '
            f'fill="{REVIEW}"/>'
        )
    told = " ".join((lane.sign, lane.ending)).strip()
    parts.append(
        f'<text x="{last + 9}" y="{here + 4}" fill="{colour}">{cut(told, 42)}</text>'
        f'<text x="0" y="{here + 4}" fill="{colour}" font-weight="600">{cut(lane.label, 14)}</text>'
    )
    why = f"{lane.label}: {lane.ending}"
    if lane.why:
        why += f" | {f'after turn {lane.start}: ' if lane.attempt else ''}{lane.why}"
    if lane.command:
        why += f" | starts with: {lane.command}"
    return f"<g><title>{cut(why, 400)}</title>{''.join(parts)}</g>"


def cell(title: str, said: str, *parts: str) -> str:
    """Return a titled block for a notebook's cell."""
    return (
        f'<div style="font-family:{html.escape(FONT)};font-size:13px;line-height:1.5">'
        f"<div><b>{cut(title, 120)}</b> <span style='opacity:.75'>{cut(said, 300)}</span></div>"
        f"{''.join(parts)}</div>"
    )


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table of escaped cells, all to the left; the first two columns never wrap."""
    style = "text-align:left;padding:1px 12px 1px 0;vertical-align:top"
    tight = (f"{style};white-space:nowrap", f"{style};white-space:nowrap")
    styles = (*tight, *[style] * 20)

    def line(tag: str, values: Iterable[str]) -> str:
        return "".join(
            f"<{tag} style='{s}'>{v}</{tag}>" for s, v in zip(styles, values, strict=False)
        )

    lines = [line("th", heads), *(line("td", row) for row in rows)]
    body = "".join(f"<tr style='background:none'>{each}</tr>" for each in lines)
    whole = "border-collapse:collapse;margin:4px 0;font-size:inherit;color:inherit"
    return f"<table style='{whole}'>{body}</table>"


def attempts_html(attempts: Sequence[Attempt], task: str, remark: str = "") -> str:
    """Return one task's attempts as a picture, and why each branch was taken."""
    if not attempts:
        return cell(task, remark or "no attempts")
    names = labels(attempts)
    reasons = [
        (
            cut(names[a.id], 20),
            f"{cut(names.get(a.plan.attempt, a.plan.attempt), 20)}, after turn {a.plan.boundary}",
            cut(a.plan.why, 200) or "no reason given",
            f"<code>{cut(a.plan.starting_turn.command, 90)}</code>" if a.plan.starting_turn else "",
        )
        for a in ordered(attempts)
        if a.plan is not None
    ]
    heads = ("branch", "from", "why", "starts with")
    said = f"{headline(attempts)}{'; ' + remark if remark else ''}"
    return cell(task, said, svg(lanes(attempts)), table(heads, reasons) if reasons else "")


def group_html(group: Group) -> str:
    """Return a training group: its rows over turns, thick where turns carry loss."""
    seen: dict[str, int] = {}
    rows: list[Lane] = []
    for number, row in enumerate(group.rows):
        name = row.attempt.rsplit(":", 1)[-1].replace("-branch-", ".")
        turns = [item for item in row.entries if isinstance(item.entry, Turn)]
        ids = [item.entry.id for item in turns]
        start = ids.index(row.origin) + 1 if row.origin in ids else 0
        learned: list[tuple[int, int]] = []
        for turn, item in enumerate(turns, 1):
            if item.loss and learned and learned[-1][1] == turn - 1:
                learned[-1] = (learned[-1][0], turn)
            elif item.loss:
                learned.append((turn, turn))
        trained = sum(item.loss for item in turns)
        review = next(
            (
                item.entry
                for item in turns[start:]
                if isinstance(item.entry, Turn) and item.entry.provenance == "policy_under_review"
            ),
            None,
        )
        rows.append(
            Lane(
                label=name.replace("root-", "root ").replace("round-", "branch "),
                look="passed" if row.reward > 0 else "failed",
                ending=f"reward {row.reward:g}, loss on {trained} of {len(turns)} turns",
                start=start,
                end=len(turns),
                owner=seen.get(row.origin),
                command=review.command if review is not None else "",
                learned=tuple(pair for pair in learned if pair[1] > start),
            )
        )
        for id in ids:
            seen.setdefault(id, number)
    said = f"{len(rows)} rows, prefix loss {group.prefix_loss}, starting turn {group.starting_turn}"
    if group.unscorable:
        said += f", {group.unscorable} attempts without a verdict left out"
    return cell(f"training group of {group.task}", said, svg(rows))
