"""``curvi.LatentGaussian`` as its users call it."""

import jax
import numpy as np
import pytest
from sklearn.base import clone

import curvi
from curvi._core.run import OutOfTime
from curvi.latent import Fixed, FromPrecision, RandomWalk, Trajectories
from tests.latent.models import generator
from tests.latent.test_integral import cut

pytestmark = pytest.mark.float64_only


def lattice_of_places(side):
    """The precision of an intrinsic autoregression on a square."""
    step = np.diff(np.eye(side), axis=0)
    walk, eye = step.T @ step, np.eye(side)
    return np.kron(walk, eye) + np.kron(eye, walk)


def made(rng, side=6, **options):
    places = side**2
    level = Fixed(np.ones((places, 1)), "level", prior_scale=5.0, labels=["level"])
    field = FromPrecision(
        np.eye(places), lattice_of_places(side), "field", constraints=np.ones((1, places))
    )
    truth = 1 + np.add.outer(np.sin(np.arange(side)), np.cos(np.arange(side))).ravel()
    return curvi.LatentGaussian([level, field], **options), truth


def test_a_map_of_counts_is_smoothed_and_summarised(key):
    rng = generator(key)
    model, truth = made(rng, likelihood="poisson")
    y = rng.poisson(np.exp(truth)).astype(float)
    y[7] = np.nan
    model.fit(y)
    assert model.converged_
    assert "bound was corrected" in model.message_
    band = model.predict()
    error, own = band.mean - np.exp(truth), np.nan_to_num(y, nan=0.0) - np.exp(truth)
    assert np.square(error).mean() < np.square(np.delete(own, 7)).mean()
    inside = (band.lower < np.exp(truth)) & (np.exp(truth) < band.upper)
    assert inside.mean() > 0.7
    effects = model.effects("field")
    np.testing.assert_allclose(effects.mean.sum(), 0.0, atol=1e-9)
    signal = model.predict(response=False).mean
    np.testing.assert_allclose(model.effects("level").mean + effects.mean, signal, atol=1e-9)
    table = model.summary_table()
    assert list(table.index) == ["field", "level"]
    assert tuple(table.loc["field"])[:2] == model.hyperparameters_["field"]
    text = model.summary()
    assert text.startswith("converged")
    assert "36, 35 of them with a response" in text


def test_new_rows_of_fitted_effects_are_predicted_as_they_were_fitted(key):
    rng = generator(key)
    model, truth = made(rng)
    model.fit(truth + 0.3 * rng.normal(size=36), offset=0.5)
    whole = model.predict(response=False)
    again = model.predict(
        {"level": np.ones((3, 1)), "field": np.eye(36)[4:7]}, offset=0.5, response=False
    )
    for one, other in zip(again, whole, strict=True):
        np.testing.assert_allclose(one, other[4:7], atol=1e-8)
    draws = model.sample(4000, seed=3)
    np.testing.assert_array_equal(draws.effects, model.sample(4000, seed=3).effects)
    error = 6 * whole.sd / np.sqrt(4000)
    assert (np.abs(draws.predictors.mean(axis=0) - whole.mean) < error).all()


def test_arviz_takes_draws_by_name(key):
    pytest.importorskip("arviz")
    rng = generator(key)
    model, truth = made(rng)
    y = truth + 0.3 * rng.normal(size=36)
    y[3] = np.nan
    tree = model.fit(y).to_arviz(50)
    assert set(tree.posterior) == {"field", "residual sd", "level", "field effects"}
    assert tree.posterior["field effects"].shape == (1, 50, 36)
    assert tree.posterior["level"].shape == (1, 50, 1)
    draws = model.sample(50)
    expected = model.posterior_.log_likelihood(draws)[:, model.posterior_.model.seen]
    np.testing.assert_allclose(tree.log_likelihood["y"][0], expected)


def test_trials_and_prior_scales_reach_the_likelihood(key):
    rng = generator(key)
    trials = rng.integers(1, 9, size=36)
    model, truth = made(rng, likelihood="binomial")
    y = rng.binomial(trials, 1 / (1 + np.exp(-truth)))
    band = model.fit(y, trials=trials).predict()
    assert (band.upper < trials).all()
    tight, loose = (
        made(rng, prior_scales={"residual sd": s})[0].fit(truth + rng.normal(size=36))
        for s in (0.01, 3.0)
    )
    sds = [m.hyperparameters_["residual sd"][0] for m in (tight, loose)]
    assert sds[0] < 0.5 * sds[1]


def test_it_can_be_cloned_and_a_checkpoint_resumes_it(key, tmp_path):
    rng = generator(key)
    model, truth = made(rng, likelihood="poisson")
    y = rng.poisson(np.exp(truth))
    first = clone(model).fit(y, checkpoint=tmp_path / "run")
    again = clone(model).fit(y, checkpoint=tmp_path / "run")
    assert first.log_evidence_ == again.log_evidence_
    np.testing.assert_array_equal(first.predict().mean, again.predict().mean)
    with pytest.raises(curvi.InputError, match="another call"):
        clone(model).fit(y + 1, checkpoint=tmp_path / "run")


@pytest.mark.parametrize("error", [OutOfTime, KeyboardInterrupt])
def test_a_fit_that_is_left_keeps_what_it_has_and_says_so(error, key):
    rng = generator(key)
    model, truth = made(rng, likelihood="poisson")
    y = rng.poisson(np.exp(truth))
    with pytest.MonkeyPatch.context() as patch:
        cut(patch, error, 2)
        if error is OutOfTime:
            with pytest.warns(curvi.NotConvergedWarning, match="time was up"):
                model.fit(y, time_budget=60.0)
        else:
            with pytest.raises(curvi.Interrupted):
                model.fit(y)
    assert not model.converged_
    assert np.isfinite(model.predict().mean).all()
    assert model.summary().startswith("NOT CONVERGED")


def small(**options):
    return curvi.LatentGaussian([Fixed(np.ones((3, 1)), "one")], **options)


Y = np.asarray([1.0, 2.0, 4.0])
NEW = {"one": np.ones((2, 1))}
REFUSED = {
    "new offset": (lambda: small().fit(Y).predict(NEW, offset=np.nan), "offset"),
    "new trials": (lambda: small().fit(Y).predict(NEW, trials=-3.0), "zero or less"),
    "rows": (lambda: small().fit(Y[:2]), "y has 2 rows and the components 3"),
    "shape": (lambda: small().fit(Y[:, None]), "one response per row"),
    "nothing": (lambda: small().fit(np.full(3, np.nan)), "no response"),
    "infinite": (lambda: small().fit([1.0, np.inf, 2.0]), r"y\[1\] is infinite"),
    "support": (lambda: small(likelihood="poisson").fit(Y + 0.5), r"y\[0\] is 1.5"),
    "offset": (lambda: small().fit(Y, offset=Y[:2]), r"offset has shape \(2,\)"),
    "offsets": (lambda: small().fit(Y, offset=Y * np.nan), r"offset\[0\] is nan"),
    "likelihood": (lambda: small(likelihood="cauchy").fit(Y), "choose one of"),
    "scales": (lambda: small(prior_scales={"sd": 1.0}).fit(Y), "a name in prior_scales"),
    "no components": (lambda: curvi.LatentGaussian([]).fit(Y), "components is empty"),
    "twice": (
        lambda: curvi.LatentGaussian([RandomWalk(range(3)), RandomWalk(range(3))]).fit(Y),
        "two hyperparameters are called 'walk'"),
    "not fitted": (lambda: small().predict(), "call fit"),
    "effects": (lambda: small().fit(Y).effects("two"), "choose one of"),
    "data": (lambda: small().fit(Y).predict({"two": np.ones((1, 1))}), "components 'one'"),
    "interval": (lambda: small().fit(Y).predict(interval=2.0), "below 1"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_fitted_is_refused(call, sentence):
    with pytest.raises(curvi.InputError, match=sentence):
        call()


def test_intervals_of_hyperparameters_are_those_of_a_fine_grid():
    """Quantiles of the lattice's own points are too narrow by a quarter."""
    rng = np.random.default_rng(0)
    groups, n = np.eye(20)[np.repeat(np.arange(20), 6)], 120
    y = groups @ rng.normal(0, 0.7, 20) + rng.normal(0, 0.5, n)
    model = curvi.LatentGaussian([FromPrecision(groups, np.eye(20), "sd")]).fit(y)
    log_sd, log_noise = np.linspace(-1.8, 0.8, 101), np.linspace(-1.2, -0.2, 101)
    values, vectors = np.linalg.eigh(groups @ groups.T)
    square, unit = (vectors.T @ y) ** 2, np.std(y)
    sd, noise = np.exp(2 * log_sd)[:, None, None], np.exp(2 * log_noise)[None, :, None]
    total = sd * values + noise
    log_p = -0.5 * (square / total + np.log(total)).sum(axis=2)
    log_p += (log_sd[:, None] - 0.5 * sd[..., 0]) + (log_noise - 0.5 * noise[..., 0] / unit**2)
    weight = np.exp(log_p - log_p.max())
    table = model.summary_table()
    for name, grid, axis in (("sd", log_sd, 1), ("residual sd", log_noise, 0)):
        share = weight.sum(axis=axis) / weight.sum()
        exact = np.interp([0.05, 0.95], np.cumsum(share) - 0.5 * share, grid)
        width = exact[1] - exact[0]
        found = np.log(table.loc[name, ["lower", "upper"]].to_numpy(float))
        np.testing.assert_allclose(found, exact, atol=0.03 * width)


def test_chains_agree_with_quadrature_where_a_gaussian_given_theta_does_not(key):
    """One count: its level is a skewed mixture, whose mean brute force knows."""
    y, grid = np.asarray([3.0]), np.linspace(-6, 6, 4001)
    model = curvi.LatentGaussian(
        [Fixed(np.ones((1, 1)), "level", prior_scale=2.0)], likelihood="poisson"
    ).fit(y)
    log = y[0] * grid - np.exp(grid) - 0.5 * (grid / 2.0) ** 2
    weights = np.exp(log - log.max())
    weights /= weights.sum()
    mean = weights @ grid
    variance = weights @ (grid - mean) ** 2
    rule = Trajectories(chains=64, draws=200)
    found = model.hmc(trajectories=rule, seed=int(jax.random.randint(key, (), 0, 2**30)))
    assert abs(found.moments.mean[0] - mean) < 0.03 * variance**0.5
    np.testing.assert_allclose(found.moments.variance[0], variance, rtol=0.1)
    assert "sd" in found.verdict
