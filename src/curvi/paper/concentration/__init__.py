"""How many draws are enough: concentration inequalities and the Lipschitz constants they need."""

from curvi.paper.concentration._inequalities import (
    VarianceReport,
    draws_needed,
    error_bound,
    loose_variance_bound,
    measure_variance,
    moment_bound,
    tail_bound,
    variance_bound,
)
from curvi.paper.concentration._lipschitz import (
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

__all__ = [
    "ACTIVATION_SLOPES", "LipschitzEstimate", "VarianceReport", "draws_needed", "error_bound",
    "estimate_lipschitz", "layer_lipschitz", "logistic_lipschitz", "logistic_row_lipschitz",
    "loose_variance_bound", "measure_variance", "moment_bound", "network_lipschitz",
    "reconstruction_lipschitz", "tail_bound", "unit_lipschitz", "variance_bound",
]  # fmt: skip
