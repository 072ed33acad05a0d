"""The numbers of a comparison: rates, intervals, pairing, what was shared and what was lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sprout_env.errors import ConfigError
from sprout_env.records.reviews import Attempts
from sprout_env.search import Collector, Prices, SharedRoots, load_method
from sprout_env.search.charts import draw_comparison, draw_scaling
from sprout_env.search.compare import CompareConfig, scaling_methods, split_methods
from sprout_env.search.comparison import (
    Comparison,
    Estimate,
    Unit,
    compare_rows,
    estimate,
    first_root_failed,
    what_was_shared,
)
from sprout_env.search.events import AttemptFinished, Event
from sprout_env.transcript import Turn
from tests.search.playbook_world import WorldExecutor, write_task
from tests.search.test_methods import Broken, collector


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_task(tmp_path / "shop")


def gather(
    folder: Path, names: list[str], *, seeds: int = 6, share: bool = True, executor: Any = None
) -> tuple[dict[str, dict[Unit, Attempts]], list[str]]:
    """Run methods over seeds as a comparison does; return the units and the jobs that ran."""
    units: dict[str, dict[Unit, Attempts]] = {name: {} for name in names}
    ran: list[str] = []
    for seed in range(seeds):
        shared = SharedRoots() if share else None
        world = executor() if executor is not None else WorldExecutor()
        for name in names:
            desk = collector(folder, skill=0.7, accuracy=0.8, seed=seed, executor=world)
            desk.running.shared = shared
            units[name]["shop", seed] = load_method(name).collect(desk)
        ran += [f"{seed}:{job.id}" for job in world.jobs]
    return units, ran


def test_an_interval_covers_what_it_should() -> None:
    assert estimate({}) == Estimate(value=None)
    assert estimate({("a", 0): 1.0}) == Estimate(value=1.0)
    same = estimate({(f"t{n}", 0): 1.0 for n in range(5)})
    assert (same.low, same.value, same.high) == (1.0, 1.0, 1.0)
    half = estimate({(f"t{n}", 0): float(n % 2) for n in range(100)})
    assert half.low is not None
    assert half.high is not None
    # 1.96 standard errors of a fair coin.
    assert half.value == 0.5
    assert half.low == pytest.approx(0.5 - 0.098, abs=0.02)
    assert half.high == pytest.approx(0.5 + 0.098, abs=0.02)
    # Seeds of one task are alike here: four times the seeds tell no more than the tasks do.
    clustered = estimate({(f"t{n}", seed): float(n % 2) for n in range(100) for seed in range(4)})
    assert clustered.low == pytest.approx(half.low, abs=0.02)
    # One task alone: its seeds are what can be drawn.
    seeds = estimate({("t", seed): float(seed % 2) for seed in range(100)})
    assert seeds.low == pytest.approx(0.4, abs=0.03)


def test_gains_are_paired_and_recovery_is_of_the_first_root(folder: Path) -> None:
    units, _ = gather(folder, ["pass@1", "pass@4", "sprout"], seeds=12)
    specs = {name: load_method(name).spec() for name in units}
    base, four, sprout = compare_rows(units, specs, Prices(prompt=1.0, completion=2.0))
    failed = sum(first_root_failed(item) for item in units["pass@1"].values())
    assert 0 < failed < 12
    assert base.recovery.ratio.count == 0
    assert {row.recovery.ratio.of for row in (base, four, sprout)} == {failed}
    for row in (four, sprout):
        # Shared roots: whoever passed at once passes everywhere, so the gain is the recovery.
        assert row.gain.value == pytest.approx(row.recovery.ratio.count / 12)
        assert row.paired == 12
        assert row.cost.money == Prices(prompt=1.0, completion=2.0).cost(row.cost.usage)
    assert sprout.cost.usage.calls == sum(i.usage().calls for i in units["sprout"].values())
    assert sprout.cost.branch.calls + sprout.cost.review.calls < sprout.cost.usage.calls
    assert sprout.cost.branches == sum(len(i.branches) for i in units["sprout"].values())


def test_shared_roots_change_nothing_but_the_bill(folder: Path) -> None:
    names = ["sprout", "pass@3", "entropy", "shepherd:every=2", "rtv@2"]
    shared, ran = gather(folder, names)
    alone, ran_alone = gather(folder, names, share=False)
    for name in names:
        for unit, item in shared[name].items():
            told, same = said(item), said(alone[name][unit])
            assert told == same, name
            assert item.usage().calls == alone[name][unit].usage().calls
    assert len(ran) < len(ran_alone)
    # sprout, pass and entropy begin with root 1, pass and rtv with root 2; shepherd has its own.
    assert len([job for job in ran if job == "0:shop:root-1"]) == 2
    roots, uses, billed, paid = what_was_shared(shared)
    assert roots == 6 * 2
    assert uses == 6 * (3 + 1)
    assert billed.calls - paid.calls == uses * 7
    assert what_was_shared(alone)[:2] == (0, 0)


def said(item: Attempts) -> list[tuple[str, list[str], bool]]:
    return [
        (a.id, [e.command for e in a.entries if isinstance(e, Turn)], a.passed)
        for a in item.attempts
    ]


def test_shared_roots_are_told_billed_and_kept_in_a_file(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "roots.jsonl"
    world = WorldExecutor()

    def desk(shared: SharedRoots, events: list[Event]) -> Collector:
        made = collector(folder, executor=world, events=events)
        made.running.shared = shared
        return made

    first = SharedRoots(path)
    load_method("pass@2").collect(desk(first, []))
    first.close()
    events: list[Event] = []
    again = SharedRoots(path)
    done = load_method("pass@3").collect(desk(again, events))
    told = [(e.attempt.id, e.shared) for e in events if isinstance(e, AttemptFinished)]
    assert told == [("shop:root-1", True), ("shop:root-2", True), ("shop:root-3", False)]
    assert again.uses == {"shop:root-1": 1, "shop:root-2": 1}
    assert done.usage().calls == 21
    assert [job.id for job in world.jobs] == ["shop:root-1", "shop:root-2", "shop:root-3"]
    again.close()
    # What nothing can branch from any more is not taken.
    gone = SharedRoots(path, alive=lambda id: not id.startswith("shop:root-2"))
    assert [a.id for a in gone.attempts] == ["shop:root-1", "shop:root-3"]
    gone.close()
    # Another seed's root is another root.
    other = SharedRoots(path)
    load_method("pass@1").collect(desk_of(folder, world, other))
    assert world.jobs[-1].id == "shop:root-1"
    other.close()


def desk_of(folder: Path, world: WorldExecutor, shared: SharedRoots) -> Collector:
    made = collector(folder, seed=9, executor=world)
    made.running.shared = shared
    return made


def test_what_was_lost_is_a_column_and_leaves_no_rate_unsaid(folder: Path) -> None:
    units, _ = gather(folder, ["pass@1", "pass@4"], seeds=3, executor=Broken)
    units["pass@1"]["other", 0] = Attempts(task="other", cut_short="no such task")
    specs = {name: load_method(name).spec() for name in units}
    base, four = compare_rows(units, specs, None)
    assert (base.trouble.unjudged, base.trouble.cut_short) == (1, 1)
    assert base.resolve.ratio.of == 3
    assert (four.trouble.lost, four.trouble.invalid) == (3, 3)
    # Where nothing passed and an attempt was lost, nobody knows: that is no failure of the model.
    assert (four.trouble.unjudged, four.paired, str(four.resolve.ratio)) == (2, 1, "1/1 (100.0 %)")
    assert four.cost.money is None


def table(folder: Path, names: list[str]) -> Comparison:
    units, _ = gather(folder, names, seeds=4)
    roots, uses, billed, paid = what_was_shared(units)
    return Comparison(
        suite="toy",
        actor="simulated",
        simulated=True,
        tasks=1,
        seeds=(0, 1, 2, 3),
        rows=compare_rows(units, {name: load_method(name).spec() for name in names}, None),
        shared_roots=roots,
        shared_uses=uses,
        billed=billed,
        paid=paid,
    )


def test_charts_are_drawn_and_the_same_numbers_give_the_same_file(
    folder: Path, tmp_path: Path
) -> None:
    drawn = table(folder, ["pass@1", "sprout", "entropy"])
    draw_comparison(drawn, [tmp_path / "a.svg", tmp_path / "a.png"])
    draw_comparison(drawn, [tmp_path / "b.svg"])
    assert (tmp_path / "a.svg").read_text() == (tmp_path / "b.svg").read_text()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    scaled = table(folder, scaling_methods([1, 2], [1, 2]))
    draw_scaling(scaled, [tmp_path / "c.svg"])
    assert (tmp_path / "c.svg").stat().st_size > 5000
    # Nothing judged draws nothing, and does not fail.
    nothing = drawn.model_copy(
        update={"rows": compare_rows({"x": {("t", 0): Attempts(task="t")}}, {"x": {}}, None)}
    )
    draw_comparison(nothing, [tmp_path / "d.svg"])


def test_methods_in_one_line() -> None:
    assert split_methods("sprout,pass@4") == ["sprout", "pass@4"]
    assert split_methods("sprout:rounds=1,branches=2, pass@4") == [
        "sprout:rounds=1,branches=2",
        "pass@4",
    ]
    assert scaling_methods([1], [1, 2])[1:] == [
        "sprout:rounds=1,branches=1",
        "sprout:rounds=1,branches=2",
    ]
    for bad, words in (
        (["sprout", "sprout"], "named twice"),
        ([], "at least one method"),
        (["entropy"], "gives none"),
        (["magic"], "no method"),
    ):
        with pytest.raises(ConfigError, match=words):
            CompareConfig.make("toy", actor="simulated:entropies=no", methods=bad)
