"""Whose fault it is that nothing was decided: the agent's, or anybody else's.

A verifier that wrote no reward or no finite one, or reported its own crash, or could not be run at
all, has not decided; nor has one that gave reward 0 for want of network, disk or memory. Reward 0
with another sign in the log that no test ever ran (``command not found: python``) is in doubt. Any
of it may be the environment's fault or the agent's doing, who may have removed python, the shell,
or everything. A control decides, now and not from memory: the same verifier on an untouched disk.

- Where it decides nothing there either, or shows the same sign, the verdict is ``invalid``. That
  never becomes a reward, is never a pass, stays in every denominator, and is retried only as often
  as the caller pays for.
- Where it does decide there, and fails once more on a fresh clone of the agent's disk, the agent
  broke the machinery: ``failed``, and reward 0 if the verifier gave none. So trouble of ours is
  taken for the agent's doing only if it strikes twice and not in between.

A verifier that did not end in time may hang in the agent's code, or starve on a machine under
load. Most verifiers fail at once on an untouched disk, which says nothing of that; so the control
is the task's reference solution: where it passes now in a third of the time, twice before and
after which the agent's disk took all of it, the agent is to blame. Where a task has no solution,
or it does not pass so here, a time-out is ``invalid``. So is a live sandbox that was lost: nothing
of it is left to try again. What fails outside of any disk (a full store, an image, a variable of
the host that is not set) is an error.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sprout_env.grading.verdict import Verdict


@dataclass(frozen=True)
class Judged:
    """A verdict, and why it may not be one on the agent's work."""

    verdict: Verdict
    doubt: str = ""
    """Not empty where the machinery failed, by the agent's doing or without."""
    hung: bool = False
    """It failed by not ending in time."""
    again: bool = False
    """To be tried once more if the store is not full: a test met a disk that may have been."""


def undecided(reason: str) -> Judged:
    """Return that nothing was decided, which an agent's disk may be the cause of."""
    return Judged(Verdict.invalid(reason), reason)


def settle(
    judge: Callable[[], Judged], control: Callable[[bool], Judged], key: str, retries: int
) -> Verdict:
    """Judge until it is decided, or known whose fault it is that it is not.

    Args:
        judge: Judges what the agent left, each time afresh.
        control: Judges in the same way, told whether that hung, what no agent has touched.
        key: Names what is the same; those who ask at the same time share one run of it.
        retries: How often an ``invalid`` verdict is tried again.
    """
    began = time.monotonic()
    for attempt in itertools.count():
        judged = judge()
        verdict = judged.verdict
        if judged.doubt:
            seen = _look(control, judged.hung, key, since=began)
            if seen is not None and seen != judged.doubt:
                if attempt:
                    return _blamed(judged)
                continue  # once more first: it may have been trouble of ours that is over
            if verdict.outcome != "invalid":
                verdict = Verdict.invalid(
                    judged.doubt, log_tail=verdict.log_tail, duration_s=verdict.duration_s
                ).model_copy(update={"tests": verdict.tests})
        elif judged.again and not attempt:
            continue
        if verdict.outcome != "invalid" or attempt >= retries:
            return verdict
    raise AssertionError("unreachable")


def _blamed(judged: Judged) -> Verdict:
    verdict = judged.verdict
    where = "with the reference solution" if judged.hung else "on the untouched disk"
    told = f"{judged.doubt}: not so {where}, so the agent's changes are the cause"
    if verdict.outcome == "invalid":
        return verdict.model_copy(update={"outcome": "failed", "reward": 0.0, "reason": told})
    return verdict.model_copy(update={"reason": "; ".join(filter(None, (told, verdict.reason)))})


@dataclass
class _Control:
    """The last run of one control; whoever looks holds the lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    began: float = -math.inf
    """When that run began, by the monotonic clock."""
    doubt: str | None = None
    """What was in doubt there; None: nothing was decided."""


_controls: dict[tuple[str, bool], _Control] = {}


def _look(control: Callable[[bool], Judged], hung: bool, key: str, *, since: float) -> str | None:
    """Return what a run of the control that began after ``since`` left in doubt.

    None: it decided nothing. An error is remembered for nobody.
    """
    known = _controls.setdefault((key, hung), _Control())
    with known.lock:
        if known.began < since:
            began = time.monotonic()
            judged = control(hung)
            known.doubt = judged.doubt if judged.verdict.outcome != "invalid" else None
            known.began = began
        return known.doubt
