"""Models from other libraries, results for other libraries, and drop-in replacements.

Each file imports its library only when it is used; none of them is needed by the rest of curvi.
"""

from curvi.interop._arviz import arviz_of_draws as arviz_of_draws
from curvi.interop._arviz import to_arviz
from curvi.interop._blackjax import SamplerStart, to_blackjax
from curvi.interop._numpyro import from_numpyro
from curvi.interop._numpyro_svi import SVI, SVIRunResult
from curvi.interop._optax import hessian_free
from curvi.interop._pymc import from_bambi, from_pymc

__all__ = [
    "SVI", "SVIRunResult", "SamplerStart", "from_bambi", "from_numpyro", "from_pymc",
    "hessian_free", "to_arviz", "to_blackjax",
]  # fmt: skip
