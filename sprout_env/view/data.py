"""A run as the plain data that its page draws from: every turn once, texts cut and harmless."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from sprout_env.actors.load import load_actor
from sprout_env.grading.plain import plain, shorten
from sprout_env.records.attempt import Attempt, Usage
from sprout_env.records.lanes import Lane, lanes
from sprout_env.records.outline import headline, labels
from sprout_env.records.reviews import Attempts, ReviewRecord
from sprout_env.records.summary import PARTS
from sprout_env.records.tree import TreeNode, tree_of
from sprout_env.search.runs import RunResult
from sprout_env.transcript import Turn
from sprout_env.view.changes import Changes

OUTPUT_CHARS = 6000
"""Most characters of a turn's output on the page."""
PAGE_CHARS = 24_000_000
"""Most characters of all outputs together: beyond it every output is cut shorter."""


def _text(text: str, limit: int = OUTPUT_CHARS) -> str:
    return shorten(plain(text), limit)


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "calls": usage.calls,
        "prompt": usage.prompt_tokens,
        "cached": usage.cached_tokens,
        "completion": usage.completion_tokens,
    }


def _node(node: TreeNode, limit: int, changes: Changes) -> dict[str, Any]:
    """Return one turn or notice; what is empty is left out."""
    entry = node.entry
    if not isinstance(entry, Turn):
        return {"n": node.turn, "notice": _text(entry.text, limit)}
    told: dict[str, Any] = {
        "n": node.turn,
        "message": _text(entry.message, limit),
        "command": _text(entry.command, limit),
        "review": entry.provenance == "policy_under_review",
        "by": "" if entry.provenance == "policy" else entry.provenance.replace("_", " "),
        "snapshot": node.snapshot or "",
    }
    if entry.trace is not None:
        told["tokens"] = [
            entry.trace.prompt_tokens,
            entry.trace.cached_tokens,
            entry.trace.completion_tokens,
        ]
        told["model"] = plain(entry.trace.model)
    if entry.result is not None:
        told |= {
            "output": _text(entry.result.output, limit),
            "exit": entry.result.exit_code,
            "seconds": round(entry.result.duration_s, 3),
            "late": entry.result.timed_out,
            "dropped": entry.result.dropped_bytes,
            "stateless": entry.result.shell_state_lost,
        }
    if node.snapshot in changes:
        told["changes"] = changes[node.snapshot or ""]
    return {name: value for name, value in told.items() if value not in ("", False, [])}


def _verdict(attempt: Attempt) -> dict[str, Any] | None:
    verdict = attempt.verdict
    if verdict is None:
        return None
    tests = [[plain(t.name), t.status, _text(t.message, 3000)] for t in verdict.tests]
    return {
        "outcome": verdict.outcome,
        "reward": verdict.reward,
        "rewards": {plain(name): value for name, value in verdict.rewards.items()},
        "tests": sorted(tests, key=lambda test: ("failed", "skipped", "passed").index(test[1])),
        "reason": _text(verdict.reason),
        "log": _text(verdict.log_tail),
        "seconds": round(verdict.duration_s, 2),
        "liveOnly": verdict.live_only,
        "substituted": verdict.environment != "original",
    }


def _attempt(
    lane: Lane, names: Mapping[str, str], at: Mapping[str, int], reviews: tuple[ReviewRecord, ...]
) -> dict[str, Any]:
    attempt = lane.attempt
    assert attempt is not None
    plan = attempt.plan
    told: dict[str, Any] = {
        "id": attempt.id,
        "label": lane.label,
        "look": lane.look,
        "sign": lane.sign,
        "ending": _text(lane.ending, 400),
        "start": lane.start,
        "end": lane.end,
        "owner": lane.owner,
        "round": attempt.round,
        "seed": attempt.seed,
        "status": attempt.status.replace("_", " "),
        "error": _text(attempt.error),
        "seconds": round(attempt.seconds, 2),
        "usage": _usage(attempt.usage),
        "lost": [_text(process, 400) for process in attempt.lost_processes],
        "path": [at[entry.id] for entry in attempt.entries],
        "none": {b.turn: _text(b.reason, 400) for b in attempt.boundaries if b.snapshot is None},
        "verdict": _verdict(attempt),
        "analyses": [
            [review.round, _text(text)]
            for review in reviews
            if (text := review.analysis_of(attempt.id)) is not None
        ],
    }
    if plan is not None:
        told["plan"] = {
            "from": names.get(plan.attempt, plan.attempt),
            "boundary": plan.boundary,
            "why": _text(plan.why),
            "message": _text(plan.starting_turn.message) if plan.starting_turn else "",
            "command": _text(plan.starting_turn.command) if plan.starting_turn else "",
        }
    return told


def _review(review: ReviewRecord) -> dict[str, Any]:
    answers = [e.answer for e in review.exchanges if e.part == "reviewer" and not e.error]
    return {
        "round": review.round,
        "kind": review.kind,
        "plans": len(review.plans),
        "dropped": [[d.reason.replace("_", " "), _text(d.detail, 600)] for d in review.dropped],
        "answer": _text(answers[-1]) if answers else "",
        "seconds": round(review.seconds, 2),
        "usage": _usage(review.usage),
    }


def _task(item: Attempts, limit: int, changes: Changes) -> dict[str, Any]:
    told: dict[str, Any] = {
        "name": plain(item.task),
        "passed": item.passed,
        "cutShort": _text(item.cut_short, 600),
        "headline": headline(item.attempts) if item.attempts else "no attempts",
        "instruction": "",
        "nodes": [],
        "attempts": [],
        "reviews": [_review(review) for review in item.reviews],
    }
    if not item.attempts:
        return told
    # Attempts that were told of earlier ones have another instruction: the first is the task's.
    told["instruction"] = _text(item.attempts[0].instruction, 20_000)
    nodes: dict[str, TreeNode] = {}
    for instruction in dict.fromkeys(a.instruction for a in item.attempts):
        same = [a for a in item.attempts if a.instruction == instruction]
        for node in tree_of(same).nodes:
            nodes.setdefault(node.id, node)
    at = {id: number for number, id in enumerate(nodes)}
    names = labels(item.attempts)
    told["nodes"] = [_node(node, limit, changes) for node in nodes.values()]
    told["attempts"] = [_attempt(lane, names, at, item.reviews) for lane in lanes(item.attempts)]
    return told


def page_data(result: RunResult, changes: Changes | None = None) -> dict[str, Any]:
    """Return what the page of a run shows, as JSON values.

    Args:
        result: The run.
        changes: Changed files by the snapshot after them (``changes.changes_of``).
    """
    entries = sum(len(a.entries) for item in result.collections for a in item.attempts)
    limit = max(400, min(OUTPUT_CHARS, PAGE_CHARS // max(entries, 1)))
    config, summary = result.config, result.summary
    metrics = {
        "resolved": summary.resolve,
        "recovered": summary.recovery,
        "roots passed": summary.root_pass,
        "branches passed": summary.branch_pass,
    }
    return {
        "title": f"{config.suite}, {summary.method}",
        "suite": plain(config.suite),
        "method": summary.method,
        "actor": plain(load_actor(config.actor).name),
        "simulated": config.actor.get("kind") == "simulated",
        "substituted": bool(summary.substituted),
        "seed": config.seed,
        "written": time.strftime("%Y-%m-%d %H:%M"),
        "store": config.store or "",
        "kept": config.keep_snapshots,
        "looked": changes is not None,
        "cutShort": _text(result.cut_short, 600),
        "metrics": [[n, r.count, r.of] for n, r in metrics.items()],
        "costs": [
            {
                "part": part,
                "attempts": cost.attempts,
                "turns": cost.turns,
                "seconds": round(cost.seconds, 1),
                **_usage(cost.usage),
            }
            for part in PARTS
            for cost in (summary.parts[part],)
        ],
        "tasks": [_task(item, limit, changes or {}) for item in result.collections],
    }
