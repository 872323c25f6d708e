"""How far to trust an answer: the result of a fit, and the functions that judge it."""

from curvi.diagnostics._correction import Attempt as Attempt
from curvi.diagnostics._correction import Correction as Correction
from curvi.diagnostics._evaluation import Evaluation as Evaluation
from curvi.diagnostics._evaluation import ImportanceWeights, Moments, evaluate, evaluate_elbo
from curvi.diagnostics._evaluation import evaluate_all as evaluate_all
from curvi.diagnostics._evaluation import raw_relative_ess as raw_relative_ess
from curvi.diagnostics._evaluation import smoothed_weights as smoothed_weights
from curvi.diagnostics._exports import FitRecord
from curvi.diagnostics._flat_directions import improper_sentence as improper_sentence
from curvi.diagnostics._modes import Mode
from curvi.diagnostics._modes import joined_modes as joined_modes
from curvi.diagnostics._modes import modes_of as modes_of
from curvi.diagnostics._moments import UserMoments as UserMoments
from curvi.diagnostics._moments import positions as positions
from curvi.diagnostics._moments import require_positions as require_positions
from curvi.diagnostics._moments import sd_of as sd_of
from curvi.diagnostics._moments import user_columns as user_columns
from curvi.diagnostics._moments import user_moments as user_moments
from curvi.diagnostics._moments import user_space as user_space
from curvi.diagnostics._monte_carlo import REPLICATES as REPLICATES
from curvi.diagnostics._monte_carlo import Replicates
from curvi.diagnostics._monte_carlo import descend_from_saddle as descend_from_saddle
from curvi.diagnostics._monte_carlo import draws_of as draws_of
from curvi.diagnostics._monte_carlo import replicates as replicates
from curvi.diagnostics._report import FitPage as FitPage
from curvi.diagnostics._result import FitResult
from curvi.diagnostics._verdict import Summary as Summary
from curvi.diagnostics._verdict import not_finite_sentence as not_finite_sentence
from curvi.diagnostics._verdict import summary_table as summary_table

__all__ = [
    "FitRecord",
    "FitResult",
    "ImportanceWeights",
    "Mode",
    "Moments",
    "Replicates",
    "evaluate",
    "evaluate_elbo",
]
