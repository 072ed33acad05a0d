"""Several methods over the same tasks and seeds, in one folder that a later call goes on with."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

from pydantic import Field

from sprout_env.actors.load import load_actor
from sprout_env.disks import open_store
from sprout_env.errors import ConfigError, SnapshotError, StoreError
from sprout_env.records.reviews import Attempts
from sprout_env.search.attempts import Executor, Recipe
from sprout_env.search.budget import Budget, Prices
from sprout_env.search.comparison import Comparison, Units, compare_rows, what_was_shared
from sprout_env.search.events import OnEvent
from sprout_env.search.events import ignore as ignore_events
from sprout_env.search.journal import hold
from sprout_env.search.methods import load_method, method_names
from sprout_env.search.runs import RunConfig, RunResult, probe, run
from sprout_env.search.shared import SharedRoots
from sprout_env.snapshots import SnapshotTree
from sprout_env.tasks.suites import find_suite

Watch = Callable[[str, int], AbstractContextManager[OnEvent]]
"""From a method's label and a seed to who is told of that run's events."""


class CompareConfig(Recipe):
    """What is compared. The run seeds are ``seeds``; ``seed`` of the recipe is not used."""

    methods: dict[str, dict[str, Any]]
    """Label to spec, in the order of the table; gains are over the first."""
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    tasks: tuple[str, ...] = ()
    """Slugs; empty is the whole suite."""

    @classmethod
    def make(cls, suite: str, *, actor: Any, methods: Sequence[str], **more: Any) -> CompareConfig:
        """Return the configuration with short forms written out.

        Raises:
            ConfigError: A method or the actor cannot be, or a method cannot be served by it.
        """
        acting = load_actor(actor)
        specs: dict[str, dict[str, Any]] = {}
        for text in methods:
            method = load_method(text)
            method.check(acting)
            if twin := next((label for label, s in specs.items() if s == method.spec()), None):
                raise ConfigError(
                    f"method {text} is named twice" + ("" if text == twin else f": it is {twin}")
                )
            specs[text] = method.spec()
        if not specs:
            raise ConfigError(
                f"a comparison needs at least one method of {', '.join(method_names())}"
            )
        settings = {"suite": suite, "actor": acting.spec(), "methods": specs, **more}
        return cls.told("comparison: ", settings)


def split_methods(text: str) -> list[str]:
    """Split ``sprout:rounds=1,branches=2,pass@4``: a name=value belongs to the method before it."""
    found: list[str] = []
    for piece in filter(None, (part.strip() for part in text.split(","))):
        name = piece.partition("=")[0]
        if "=" in piece and ":" not in name and found:
            found[-1] += f",{piece}"
        else:
            found.append(piece)
    return found


def scaling_methods(rounds: Sequence[int], branches: Sequence[int]) -> list[str]:
    """Return the methods of the sweep over rounds and branches, one root first."""
    cells = [f"sprout:rounds={r},branches={b}" for r in rounds for b in branches]
    return ["pass@1", *cells]


ABLATION = ("sprout", "rollback_no_hint", "reward_only_review")
"""SPROUT, without the starting turn, and with a reviewer who learns the reward alone."""


def compare(
    config: CompareConfig,
    folder: Path,
    *,
    workers: int = 2,
    budget: Budget | None = None,
    watch: Watch | None = None,
    executor: Executor | None = None,
) -> Comparison:
    """Run every method for every seed and return the table.

    A folder may be gone on with: finished attempts are never paid twice, and methods or seeds may
    be added. Roots that several methods begin with are run once (``SharedRoots``).

    Args:
        config: What is compared.
        folder: Where it is recorded: a run per seed and method.
        workers: Attempts at the same time.
        budget: Limits of each method and seed; shared roots count for each.
        watch: Told of each run's events.
        executor: Where attempts run; None: threads of this process.

    Raises:
        ConfigError: Something cannot be served, or the folder holds another comparison.
        ActorUnavailable: A model's server does not answer; nothing was begun.
        TaskNotFound: The suite or a task is not on this machine.
        StoreUnavailable: There is no store here.
    """
    suite = find_suite(config.suite, config.tasks_path, config.dataset)
    for slug in set(config.tasks) - set(suite.slugs()):
        suite.task(slug)
    acting = load_actor(config.actor)
    for spec in config.methods.values():
        load_method(spec).check(acting)
    if (folder / "run.json").exists():
        raise ConfigError(f"{folder} holds a single run; choose another folder")
    mine = config.model_dump(mode="json", exclude={"methods", "seeds"})
    with hold(folder / "comparison.json", mine, "comparison"):
        todo = [
            (seed, label)
            for seed in config.seeds
            for label in config.methods
            if not _finished(_run_folder(folder, seed, label), config.tasks or suite.slugs())
        ]
        for label in dict.fromkeys(label for _, label in todo):
            probe(config.actor, load_method(config.methods[label]))
        results: dict[tuple[int, str], RunResult] = {}
        for seed in config.seeds:
            results |= _seed(config, folder, seed, workers, budget, watch, executor)
        return _table(config, results, budget.prices if budget is not None else None)


def _run_folder(folder: Path, seed: int, label: str) -> Path:
    safe = "".join(c if c.isalnum() or c in "@+=,-_." else "-" for c in label)
    return folder / f"seed-{seed}" / safe


def _finished(run_folder: Path, slugs: Sequence[str]) -> bool:
    path = run_folder / "tasks.jsonl"
    if not path.exists():
        return False
    told = [json.loads(line) for line in path.read_text().splitlines()[1:] if line.endswith("}")]
    return set(slugs) <= {item["data"]["task"] for item in told}


def _seed(
    config: CompareConfig,
    folder: Path,
    seed: int,
    workers: int,
    budget: Budget | None,
    watch: Watch | None,
    executor: Executor | None,
) -> dict[tuple[int, str], RunResult]:
    store = open_store(Path(config.store) if config.store else None, kind=config.store_kind)
    found: dict[tuple[int, str], RunResult] = {}
    with ExitStack() as stack:
        tree = SnapshotTree(store)
        stack.callback(tree.close)
        shared = SharedRoots(folder / f"seed-{seed}" / "roots.jsonl", alive=_alive(tree))
        stack.callback(shared.close)
        for label, spec in config.methods.items():
            made = RunConfig.model_validate(
                {
                    **config.model_dump(exclude={"methods", "seeds", "seed"}),
                    "method": spec,
                    "seed": seed,
                }
            )
            watching: AbstractContextManager[OnEvent] = (
                watch(label, seed) if watch is not None else nullcontext(ignore_events)
            )
            with watching as on_event:
                found[seed, label] = run(
                    made,
                    folder=_run_folder(folder, seed, label),
                    workers=workers,
                    budget=budget,
                    on_event=on_event,
                    executor=executor,
                    shared=shared,
                )
        # A part that is not whole goes on from these snapshots when the folder is gone on with.
        if all(_whole(item) for result in found.values() for item in result.collections):
            tree.release_all(shared.snapshots)
    return found


def _whole(item: Attempts) -> bool:
    return not item.cut_short and not item.lost


def _alive(tree: SnapshotTree) -> Callable[[str], bool]:
    def alive(id: str) -> bool:
        try:
            tree.get(id)
        except (SnapshotError, StoreError):
            return False
        return True

    return alive


def _table(
    config: CompareConfig, results: dict[tuple[int, str], RunResult], prices: Prices | None
) -> Comparison:
    units: dict[str, Units] = {
        label: {
            (item.task, seed): item
            for (seed, name), result in results.items()
            if name == label
            for item in result.collections
        }
        for label in config.methods
    }
    roots, uses, billed, paid = what_was_shared(units)
    actor = load_actor(config.actor)
    return Comparison(
        suite=config.suite,
        actor=actor.name,
        simulated=config.actor.get("kind") == "simulated",
        substituted=any(result.summary.substituted for result in results.values()),
        tasks=len({task for mine in units.values() for task, _ in mine}),
        seeds=config.seeds,
        rows=compare_rows(units, dict(config.methods), prices if prices != Prices() else None),
        shared_roots=roots,
        shared_uses=uses,
        billed=billed,
        paid=paid,
    )
