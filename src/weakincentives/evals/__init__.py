"""Evaluates an agent on a data set with a pool of workers, and reports the results."""

from .collection import collect_results
from .comparison import Comparison, compare
from .dataset import Dataset, DatasetError, Sample
from .evaluators import (
    all_of,
    any_of,
    contains,
    exact_match,
    json_equal,
    regex_match,
    within_tolerance,
)
from .judge import llm_judge
from .loop import EvalLoop
from .messages import EvalRequest, EvalResult
from .report import EvalReport, TagSummary
from .score import Evaluator, Score, SessionEvaluator
from .statistics import Interval
from .submission import submit_dataset

__all__ = [
    "Comparison",
    "Dataset",
    "DatasetError",
    "EvalLoop",
    "EvalReport",
    "EvalRequest",
    "EvalResult",
    "Evaluator",
    "Interval",
    "Sample",
    "Score",
    "SessionEvaluator",
    "TagSummary",
    "all_of",
    "any_of",
    "collect_results",
    "compare",
    "contains",
    "exact_match",
    "json_equal",
    "llm_judge",
    "regex_match",
    "submit_dataset",
    "within_tolerance",
]
