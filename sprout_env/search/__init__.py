"""Where to branch: plans, reviews, methods, and runs that collect attempts with them."""

from __future__ import annotations

from sprout_env.search.attempts import (
    AttemptJob,
    AttemptLimits,
    Executor,
    Recipe,
    ThreadExecutor,
    run_attempt,
)
from sprout_env.search.batch import Running
from sprout_env.search.budget import Budget, Meter, Prices, Stop
from sprout_env.search.collector import Collector, derive_seed
from sprout_env.search.methods import (
    Method,
    PassAtK,
    RewardOnlyReview,
    RollbackNoHint,
    Sprout,
    load_method,
    method_names,
    register_method,
)
from sprout_env.search.plan import PlanReading, eligible, plan_schema, read_plans, snapshot_at
from sprout_env.search.refinement import Pdr, Rtv, RtvPdr
from sprout_env.search.replays import differences, replay_run
from sprout_env.search.review import ReviewSettings, review
from sprout_env.search.rollbacks import Entropy, LastK, RandomBoundary, Rollback
from sprout_env.search.runs import RunConfig, RunResult, load_run, run
from sprout_env.search.shared import SharedRoots
from sprout_env.search.shepherd import Shepherd

__all__ = [
    "AttemptJob",
    "AttemptLimits",
    "Budget",
    "Collector",
    "Entropy",
    "Executor",
    "LastK",
    "Meter",
    "Method",
    "PassAtK",
    "Pdr",
    "PlanReading",
    "Prices",
    "RandomBoundary",
    "Recipe",
    "ReviewSettings",
    "RewardOnlyReview",
    "Rollback",
    "RollbackNoHint",
    "Rtv",
    "RtvPdr",
    "RunConfig",
    "RunResult",
    "Running",
    "SharedRoots",
    "Shepherd",
    "Sprout",
    "Stop",
    "ThreadExecutor",
    "derive_seed",
    "differences",
    "eligible",
    "load_method",
    "load_run",
    "method_names",
    "plan_schema",
    "read_plans",
    "register_method",
    "replay_run",
    "review",
    "run",
    "run_attempt",
    "snapshot_at",
]
