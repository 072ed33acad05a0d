"""Who is to blame for what was not decided: the rule itself, on verdicts that are given."""

from __future__ import annotations

import uuid

import pytest

from sprout_env.errors import StoreFull
from sprout_env.grading.blame import Judged, settle, undecided
from sprout_env.grading.verdict import Verdict

PASSED = Judged(Verdict(outcome="passed", reward=1.0))
FAILED = Judged(Verdict(outcome="failed", reward=0.0))
NOTHING = undecided("nothing was written")
SIGN = Judged(Verdict(outcome="failed", reward=0.0, reason="a remark"), "no python")
OTHER = Judged(Verdict(outcome="failed", reward=0.0), "no program")
HUNG = Judged(Verdict.invalid("too late"), "too late", hung=True)
PARTLY = Judged(Verdict(outcome="failed", reward=0.5), again=True)


@pytest.mark.parametrize(
    ("agents", "controls", "retries", "outcome"),
    [
        ([PASSED], [], 0, "passed"),
        ([FAILED], [], 2, "failed"),
        ([NOTHING, NOTHING], [FAILED], 0, "failed"),
        ([NOTHING, NOTHING], [FAILED], 5, "failed"),
        ([SIGN, SIGN], [FAILED], 0, "failed"),
        ([SIGN, SIGN], [OTHER], 0, "failed"),
        ([NOTHING, NOTHING], [OTHER], 0, "failed"),
        ([HUNG, HUNG], [PASSED], 0, "failed"),
        ([NOTHING, PASSED], [FAILED], 0, "passed"),
        ([HUNG, NOTHING], [PASSED, FAILED], 0, "failed"),
        ([NOTHING], [NOTHING], 0, "invalid"),
        ([SIGN], [SIGN], 0, "invalid"),
        ([SIGN], [NOTHING], 0, "invalid"),
        ([NOTHING] * 3, [NOTHING], 2, "invalid"),
        ([NOTHING, PASSED], [NOTHING], 2, "passed"),
        ([PARTLY, PASSED], [], 0, "passed"),
        ([PARTLY, PARTLY], [], 0, "failed"),
    ],
)
def test_the_rule(agents: list[Judged], controls: list[Judged], retries: int, outcome: str) -> None:
    """Each control is looked at once, each end of the agent's as often as it is listed."""
    ours, theirs = iter(controls), iter(agents)
    verdict = settle(lambda: next(theirs), lambda _: next(ours), uuid.uuid4().hex, retries)
    assert verdict.outcome == outcome
    assert (verdict.reward is None) == (outcome == "invalid")
    assert (next(theirs, None), next(ours, None)) == (None, None)


@pytest.mark.parametrize(
    ("end", "words"), [(SIGN, "the untouched disk"), (HUNG, "the reference solution")]
)
def test_the_reason_names_the_control(end: Judged, words: str) -> None:
    told = settle(lambda: end, lambda _: FAILED, uuid.uuid4().hex, 0).reason
    assert words in told
    assert told.startswith(end.doubt)


def test_a_control_is_asked_anew_each_time_and_an_error_of_it_is_no_verdict() -> None:
    asked = []
    key = uuid.uuid4().hex

    def control(_: bool) -> Judged:
        asked.append(1)
        if len(asked) == 2:
            raise StoreFull("store", 1, 2)
        return FAILED if len(asked) != 3 else NOTHING

    assert settle(lambda: NOTHING, control, key, 0).outcome == "failed"
    with pytest.raises(StoreFull):
        settle(lambda: NOTHING, control, key, 0)
    assert settle(lambda: NOTHING, control, key, 0).outcome == "invalid"
    assert settle(lambda: NOTHING, control, key, 0).outcome == "failed"
