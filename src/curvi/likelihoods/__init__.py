"""The distribution of a response given its linear predictor: one table for all models.

Regressions, formulas, series and networks take their likelihoods from here: log density, slopes,
expectations under a Gaussian predictor, mean response, draws, what responses are possible, where to
begin. One of your own needs its log density alone (:class:`~curvi.Likelihood`).
"""

from curvi.likelihoods._base import NOTHING as NOTHING
from curvi.likelihoods._base import ORDERS as ORDERS
from curvi.likelihoods._base import Extra as Extra
from curvi.likelihoods._base import Likelihood
from curvi.likelihoods._base import RowTerms as RowTerms
from curvi.likelihoods._counts import (
    Bernoulli,
    Binomial,
    LinearNegativeBinomial,
    NegativeBinomial,
    Poisson,
    ZeroInflatedNegativeBinomial,
    ZeroInflatedPoisson,
)
from curvi.likelihoods._pixels import PIXELS as PIXELS
from curvi.likelihoods._pixels import BernoulliPixels as BernoulliPixels
from curvi.likelihoods._pixels import GaussianPixels as GaussianPixels
from curvi.likelihoods._pixels import Pixels as Pixels
from curvi.likelihoods._pixels import bounded as bounded
from curvi.likelihoods._pixels import over_pixels as over_pixels
from curvi.likelihoods._pixels import pixels_for as pixels_for
from curvi.likelihoods._positive import Beta, BetaBinomial, Exponential, Gamma, LogNormal, Weibull
from curvi.likelihoods._real import Gaussian, StudentT, Volatility
from curvi.likelihoods._softmax import Contrasts as Contrasts
from curvi.likelihoods._softmax import OnePredictor as OnePredictor
from curvi.likelihoods._softmax import PredictorTerms as PredictorTerms
from curvi.likelihoods._softmax import RowModel as RowModel
from curvi.likelihoods._softmax import contrast_basis as contrast_basis
from curvi.likelihoods._softmax import draws_for as draws_for
from curvi.likelihoods._softmax import expected_softmax as expected_softmax
from curvi.likelihoods._softmax import logit_draws as logit_draws
from curvi.likelihoods._table import LIKELIHOODS as LIKELIHOODS
from curvi.likelihoods._table import likelihood_of as likelihood_of

__all__ = [
    "Bernoulli",
    "Beta",
    "BetaBinomial",
    "Binomial",
    "Exponential",
    "Gamma",
    "Gaussian",
    "Likelihood",
    "LinearNegativeBinomial",
    "LogNormal",
    "NegativeBinomial",
    "Poisson",
    "StudentT",
    "Volatility",
    "Weibull",
    "ZeroInflatedNegativeBinomial",
    "ZeroInflatedPoisson",
]
