"""What is learned from: attempts, reviews beside them, the rollout tree, training groups."""

from __future__ import annotations

from sprout_env.records.advantages import Estimator, advantages, node_credit
from sprout_env.records.attempt import (
    Attempt,
    AttemptStatus,
    Boundary,
    BranchPlan,
    StartingTurn,
    Usage,
)
from sprout_env.records.export import (
    RecordWriter,
    read_attempts,
    read_records,
    read_reviews,
    write_records,
)
from sprout_env.records.groups import (
    Group,
    Row,
    TokenRow,
    group_of,
    review_leaks,
    token_row,
    with_token_ids,
)
from sprout_env.records.reviews import Attempts, DroppedPlan, Duel, Exchange, ReviewRecord
from sprout_env.records.statistics import PassRates, pass_at_k, pass_rates
from sprout_env.records.summary import PartCost, Ratio, Summary, summarise
from sprout_env.records.tokens import TokenNode, TokenTree, token_tree
from sprout_env.records.tree import Leaf, RolloutTree, TreeNode, tree_of

__all__ = [
    "Attempt",
    "AttemptStatus",
    "Attempts",
    "Boundary",
    "BranchPlan",
    "DroppedPlan",
    "Duel",
    "Estimator",
    "Exchange",
    "Group",
    "Leaf",
    "PartCost",
    "PassRates",
    "Ratio",
    "RecordWriter",
    "ReviewRecord",
    "RolloutTree",
    "Row",
    "StartingTurn",
    "Summary",
    "TokenNode",
    "TokenRow",
    "TokenTree",
    "TreeNode",
    "Usage",
    "advantages",
    "group_of",
    "node_credit",
    "pass_at_k",
    "pass_rates",
    "read_attempts",
    "read_records",
    "read_reviews",
    "review_leaks",
    "summarise",
    "token_row",
    "token_tree",
    "tree_of",
    "with_token_ids",
    "write_records",
]
