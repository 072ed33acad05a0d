"""What a tiny policy learns from plain GRPO groups and from SPROUT groups, in real sandboxes.

The policy is a table of logits over the playbook's commands at each risky step of one bundled
long-horizon task; it acts in sandboxes, is judged by the verifier, and learns by policy gradient
from the same token rows that every trainer gets. All methods have the same number of updates and
the same group size. It cannot read, so the reviewer is simulated (``simulated reviewer``: it knows
the playbook and errs with a given rate): the figures are about the groups, and are not the
paper's claim about self-review.

    python benchmarks/training.py --updates 8 --seeds 3 --out benchmarks/results/training
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from measuring import machine

from sprout_env.actors.menu import MenuPolicy, playbook_of, publish
from sprout_env.integrations.groups import TrainingGroup
from sprout_env.integrations.menu_learner import update
from sprout_env.records import advantages, group_of, pass_rates, review_leaks, token_row
from sprout_env.records.groups import PrefixLoss
from sprout_env.search.runs import RunConfig, run
from sprout_env.tasks.suites import find_suite

METHODS: dict[str, tuple[str, PrefixLoss]] = {
    "grpo": ("plain", "once"),
    "sprout, prefix once": ("sprout", "once"),
    "sprout, prefix all": ("sprout", "all"),
}
"""Which groups, and where a prefix that several rows share carries loss."""


def train(name: str, seed: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Train one policy from the start; return what each update saw and cost."""
    suite = find_suite(options.suite, Path(options.tasks_path) if options.tasks_path else None)
    folders = [str(Path(options.tasks_path) / options.task)] if options.tasks_path else []
    policy = MenuPolicy(
        playbook_of(suite.task(options.task).instruction, folders), skill=options.skill
    )
    spec = publish(f"{name}-{seed}", policy)
    spec["reviewer"] = {
        "kind": "simulated",
        "reviewer_accuracy": options.accuracy,
        "folders": folders,
    }
    groups, prefix_loss = METHODS[name]
    size = options.group
    method = TrainingGroup(size=size, roots=size if groups == "plain" else size // 2)
    seen: list[dict[str, Any]] = []
    for number in range(options.updates):
        before, begun = policy.success, time.monotonic()
        config = RunConfig.make(
            options.suite,
            actor=spec,
            method=method.spec(),
            tasks=(options.task,),
            tasks_path=options.tasks_path,
            store=options.store,
            # Seeds are the same for all methods: they differ in what they do with them.
            seed=1000 * seed + number,
        )
        collection = run(config, workers=options.workers).collections[0]
        if collection.cut_short:
            raise SystemExit(f"{name}, update {number}: {collection.cut_short}")
        rates = pass_rates([collection.attempts])
        group = group_of(collection.attempts, prefix_loss=prefix_loss)
        rows = [token_row(row) for row in group.rows]
        leaks = review_leaks(group.rows, collection.reviews)
        if leaks:
            raise SystemExit(f"review text in a row: {leaks[0]}")
        loss = update(policy, rows, advantages(group), learning_rate=options.learning_rate)
        seen.append(
            {
                "method": name,
                "seed": seed,
                "update": number,
                "success": before,
                "roots_passed": rates.roots.count,
                "roots": rates.roots.of,
                "branches_passed": rates.branches.count,
                "branches": rates.branches.of,
                "informative": rates.informative.count,
                "turns": sum(attempt.own_turns for attempt in collection.attempts),
                "sandbox_s": sum(attempt.seconds for attempt in collection.attempts),
                "review_s": sum(review.seconds for review in collection.reviews),
                "wall_s": time.monotonic() - begun,
                "loss": loss,
                "unscorable": rates.unscorable,
            }
        )
        last = seen[-1]
        print(
            f"  {name:20s} seed {seed} update {number:2d}  p(success) {before:.3f} -> "
            f"{policy.success:.3f}  roots {rates.roots}  branches {rates.branches}  "
            f"{last['turns']} turns, {last['wall_s']:.0f} s",
            flush=True,
        )
    seen.append(
        {"method": name, "seed": seed, "update": options.updates, "success": policy.success}
    )
    return seen


def table(results: list[dict[str, Any]]) -> str:
    """Return the summary, one line per method."""
    lines = [
        f"{'method':22s} {'seeds':>5s} {'success, first':>15s} {'last (each seed)':>30s} "
        f"{'informative':>12s} {'turns/update':>13s} {'sandbox s':>10s} {'wall s':>8s}"
    ]
    for name in METHODS:
        mine = [item for item in results if item["method"] == name]
        work = [item for item in mine if "turns" in item]
        if not work:
            continue
        end = max(item["update"] for item in mine)
        last = [item["success"] for item in mine if item["update"] == end]
        told = f"{statistics.mean(last):.3f} ({', '.join(f'{value:.3f}' for value in last)})"
        first = statistics.mean(item["success"] for item in mine if item["update"] == 0)
        lines.append(
            f"{name:22s} {len(last):5d} {first:15.3f} {told:>30s} "
            f"{sum(i['informative'] for i in work):8d}/{len(work):<3d} "
            f"{statistics.mean(i['turns'] for i in work):13.1f} "
            f"{statistics.mean(i['sandbox_s'] for i in work):10.1f} "
            f"{statistics.mean(i['wall_s'] for i in work):8.1f}"
        )
    return "\n".join(lines)


def plot(results: list[dict[str, Any]], title: str) -> str:
    """Return an SVG: success of a root attempt over updates, mean of the seeds and each seed."""
    end = max(item["update"] for item in results)
    top = max(0.05, max(item["success"] for item in results)) * 1.05
    colours = dict(zip(METHODS, ("#777777", "#1b6ca8", "#c2410c"), strict=True))

    def points(items: list[tuple[int, float]]) -> str:
        return " ".join(f"{60 + 500 * x / end:.1f},{330 - 280 * y / top:.1f}" for x, y in items)

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 620 400" font-family="sans-serif">',
        '<rect width="620" height="400" fill="white"/>',
        *(
            f'<text x="60" y="{22 + 16 * n}" font-size="12">{line}</text>'
            for n, line in enumerate(title.split("; "))
        ),
        '<path d="M60 50V330H560" fill="none" stroke="black"/>',
        '<text x="270" y="365" font-size="12">updates</text>',
    ]
    for share in (0, 0.5, 1):
        y = 330 - 280 * share / 1.05
        parts.append(f'<text x="20" y="{y + 4:.0f}" font-size="11">{top * share / 1.05:.2f}</text>')
    parts += [
        f'<text x="{57 + 500 * number / end:.0f}" y="345" font-size="11">{number}</text>'
        for number in range(end + 1)
    ]
    for n, (name, colour) in enumerate(colours.items()):
        mine = [item for item in results if item["method"] == name]
        if not mine:
            continue
        for seed in sorted({item["seed"] for item in mine}):
            path = [(i["update"], i["success"]) for i in mine if i["seed"] == seed]
            parts.append(
                f'<polyline points="{points(path)}" fill="none" stroke="{colour}" opacity="0.3"/>'
            )
        mean = [
            (u, statistics.mean(i["success"] for i in mine if i["update"] == u))
            for u in sorted({item["update"] for item in mine})
        ]
        parts.append(
            f'<polyline points="{points(mean)}" fill="none" stroke="{colour}" stroke-width="2.5"/>'
        )
        parts.append(f'<text x="80" y="{70 + 18 * n}" font-size="12" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    """Train every method with every seed, then print the table and write JSON and SVG."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--suite", default="seedbed")
    parser.add_argument("--task", default="build-cache-repair")
    parser.add_argument("--tasks-path")
    parser.add_argument("--store")
    parser.add_argument("--updates", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--skill", type=float, default=0.7, help="p(right) before training")
    parser.add_argument("--accuracy", type=float, default=0.8, help="of the simulated reviewer")
    parser.add_argument("--learning-rate", type=float, default=4.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/training"))
    options = parser.parse_args()
    results: list[dict[str, Any]] = []
    options.out.parent.mkdir(parents=True, exist_ok=True)
    title = (
        f"{options.task}: success of the policy's own attempts; "
        f"simulated reviewer (accuracy {options.accuracy:g})"
    )
    for seed in range(options.seeds):
        for name in options.methods:
            results += train(name, seed, options)
            told = {key: str(value) for key, value in vars(options).items()}
            said = {"machine": machine(), "options": told, "updates": results}
            options.out.with_suffix(".json").write_text(json.dumps(said, indent=1))
            options.out.with_suffix(".svg").write_text(plot(results, title))
    print(f"\n{title}\n\n{table(results)}")


if __name__ == "__main__":
    main()
