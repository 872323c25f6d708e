"""How many draws are enough: variance and tail bounds, and the Lipschitz constants behind them."""

from curvi.concentration._inequalities import (
    draws_needed,
    error_bound,
    loose_variance_bound,
    moment_bound,
    tail_bound,
    variance_bound,
)
from curvi.concentration._lipschitz import (
    ACTIVATION_SLOPES,
    LipschitzEstimate,
    estimate_lipschitz,
    layer_lipschitz,
    logistic_lipschitz,
    logistic_row_lipschitz,
    network_lipschitz,
    reconstruction_lipschitz,
    unit_lipschitz,
)
from curvi.concentration._report import VarianceReport, measure_variance

__all__ = [
    "ACTIVATION_SLOPES",
    "LipschitzEstimate",
    "VarianceReport",
    "draws_needed",
    "error_bound",
    "estimate_lipschitz",
    "layer_lipschitz",
    "logistic_lipschitz",
    "logistic_row_lipschitz",
    "loose_variance_bound",
    "measure_variance",
    "moment_bound",
    "network_lipschitz",
    "reconstruction_lipschitz",
    "tail_bound",
    "unit_lipschitz",
    "variance_bound",
]
