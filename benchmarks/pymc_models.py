"""The regressions and our own ten models written in PyMC, for the peers that need its graphs.

Priors, supports and the order of the parameters are those of ``posteriors`` and ``own_models``;
PyMC's default transform of a positive variable is the logarithm, as there.
"""

from __future__ import annotations

import numpy as np

_FLAT = ("flat", None)
PRIORS = {  # of the coefficients, and of sigma
    "arK-arK": (("normal", (0.0, 10.0)), ("half_cauchy", 2.5)),
    "earnings-earn_height": (_FLAT, _FLAT),
    "earnings-logearn_interaction": (_FLAT, _FLAT),
    "kidiq-kidscore_interaction": (_FLAT, ("half_cauchy", 2.5)),
    "kidiq-kidscore_momhs": (_FLAT, ("half_cauchy", 2.5)),
    "kilpisjarvi_mod-kilpisjarvi": (("kilpisjarvi", None), _FLAT),
    "mesquite-logmesquite_logva": (_FLAT, _FLAT),
    "mesquite-mesquite": (_FLAT, _FLAT),
    "nes1980-nes": (_FLAT, _FLAT),
    "nes2000-nes": (_FLAT, _FLAT),
    "sblrc-blr": (("normal", (0.0, 10.0)), ("half_normal", 10.0)),
}


def native(posterior):
    """A PyMC model and the names of its variables in order, or None where there is none here."""
    if posterior.name in PRIORS:
        return regression(posterior), ["beta", "sigma"]
    if posterior.name == "diamonds-diamonds":
        return diamonds(posterior), ["b", "a", "sigma"]
    if posterior.name == "eight_schools-eight_schools_noncentered":
        return eight_schools(posterior), ["theta", "mu", "tau"]
    if posterior.name in OWN:
        from benchmarks.own_models import OWN as MODELS

        own = MODELS[posterior.name]()
        return OWN[posterior.name](own.data), [name for name, _, _ in own.layout]
    return None


def regression(posterior):
    import pymc as pm

    X, y = posterior.density.rows
    (kind, numbers), (sigma_kind, scale) = PRIORS[posterior.name]
    with pm.Model() as model:
        if kind == "flat":
            beta = pm.Flat("beta", shape=X.shape[1])
        else:
            if kind == "kilpisjarvi":
                d = posterior.data
                location = np.array([d["pmualpha"], d["pmubeta"]]).ravel()
                spread = np.array([d["psalpha"], d["psbeta"]]).ravel()
            else:
                location, spread = numbers
            beta = pm.Normal("beta", location, spread, shape=X.shape[1], initval=np.zeros(len(X.T)))
        sigma = _scale(sigma_kind, scale)
        pm.Normal("y", X @ beta, sigma, observed=y)
    return model


def _scale(kind, scale):
    import pymc as pm

    if kind == "flat":
        return pm.HalfFlat("sigma")
    return {"half_cauchy": pm.HalfCauchy, "half_normal": pm.HalfNormal}[kind]("sigma", scale)


def diamonds(posterior):
    import pymc as pm

    X, y = posterior.density.rows
    with pm.Model() as model:
        b = pm.Normal("b", 0.0, 1.0, shape=X.shape[1])
        a = pm.StudentT("a", nu=3, mu=8.0, sigma=10.0)
        sigma = pm.HalfStudentT("sigma", nu=3, sigma=10.0)
        pm.Normal("y", a + X @ b, sigma, observed=y)
    return model


def eight_schools(posterior):
    import pymc as pm

    d = posterior.data
    with pm.Model() as model:
        eta = pm.Normal("eta", shape=8)
        mu, tau = pm.Normal("mu", 0.0, 5.0), pm.HalfCauchy("tau", 5.0)
        theta = pm.Deterministic("theta", mu + tau * eta)
        pm.Normal("y", theta, d["sigma"], observed=d["y"])
    return model


def _logistic(d):
    import pymc as pm

    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 2.5, shape=d["X"].shape[1])
        pm.Bernoulli("y", logit_p=d["X"] @ beta, observed=d["y"])
    return model


def _poisson_offset(d):
    import pymc as pm

    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 2.5, shape=4)
        pm.Poisson("y", d["exposure"] * pm.math.exp(d["X"] @ beta), observed=d["y"])
    return model


def _robust_regression(d):
    import pymc as pm

    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 2.5, shape=4)
        sigma = pm.HalfNormal("sigma", 2.0, shape=1)
        pm.StudentT("y", nu=4, mu=d["X"] @ beta, sigma=sigma, observed=d["y"])
    return model


def _negative_binomial(d):
    import pymc as pm

    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 2.5, shape=4)
        phi = pm.LogNormal("phi", 1.0, 1.0, shape=1)
        pm.NegativeBinomial("y", mu=pm.math.exp(d["X"] @ beta), alpha=phi, observed=d["y"])
    return model


def _varying(d, observe, *, sigma=False, slopes=False):
    """A varying intercept (and slope), not centred; ``observe`` adds the likelihood."""
    import pymc as pm

    num_groups, group = int(d["group"].max()) + 1, d["group"]
    with pm.Model() as model:
        mu, beta = pm.Normal("mu", 0.0, 5.0, shape=1), pm.Normal("beta", 0.0, 2.5, shape=1)
        tau = pm.HalfNormal("tau", 1.0, shape=1)
        scale = pm.HalfNormal("sigma", 2.0, shape=1) if sigma else None
        eta = pm.Normal("eta", shape=num_groups)
        linear = mu + tau * eta[group] + beta * d["x"]
        if slopes:
            tau_slope = pm.HalfNormal("tau_slope", 1.0, shape=1)
            eta_slope = pm.Normal("eta_slope", shape=num_groups)
            linear = linear + tau_slope * eta_slope[group] * d["x"]
        observe(pm, linear, scale)
    return model


def _normal_rows(d):
    return lambda pm, linear, sigma: pm.Normal("y", linear, sigma, observed=d["y"])


def _thirty_schools(d):
    import pymc as pm

    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0.0, 10.0, shape=1), pm.HalfNormal("tau", 10.0, shape=1)
        eta = pm.Normal("eta", shape=30)
        pm.Normal("y", mu + tau * eta, d["spread"], observed=d["y"])
    return model


OWN = {
    "own-logistic": _logistic,
    "own-logistic_correlated": _logistic,
    "own-poisson_offset": _poisson_offset,
    "own-robust_regression": _robust_regression,
    "own-negative_binomial": _negative_binomial,
    "own-varying_intercept_normal": lambda d: _varying(d, _normal_rows(d), sigma=True),
    "own-varying_intercept_logistic": lambda d: _varying(
        d, lambda pm, linear, _: pm.Bernoulli("y", logit_p=linear, observed=d["y"])
    ),
    "own-multilevel_poisson": lambda d: _varying(
        d, lambda pm, linear, _: pm.Poisson("y", pm.math.exp(linear), observed=d["y"])
    ),
    "own-varying_slopes": lambda d: _varying(d, _normal_rows(d), sigma=True, slopes=True),
    "own-thirty_schools": _thirty_schools,
}
