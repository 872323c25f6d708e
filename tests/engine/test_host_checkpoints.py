"""Models that are computed on the host, without the loop, resume to the same bits as well."""

from __future__ import annotations

import signal

import numpy as np
import pytest

import curvi
from curvi.engine import _checkpoint
from curvi.latent import FromPrecision
from tests.engine.runs import CutError

pytestmark = pytest.mark.float64_only


def table(likelihood="gaussian", rows=120, groups=15):
    generator = np.random.default_rng(1)
    group, x = generator.integers(0, groups, rows), generator.normal(size=rows)
    predictor = 0.5 + x + 0.7 * generator.normal(size=groups)[group]
    y = predictor + generator.normal(size=rows)
    if likelihood == "bernoulli":
        y = (generator.random(rows) < 1 / (1 + np.exp(-predictor))).astype(float)
    return {"y": y, "x": x, "g": np.asarray([f"group {g}" for g in group])}


def mixed(likelihood):
    def fit(checkpoint=None):
        model = curvi.MixedModel("y ~ x + (1 | g)", likelihood=likelihood, num_points=64)
        model.fit(table(likelihood), checkpoint=checkpoint)
        return [model.coef_, model.posterior_.level_mean, np.asarray(model.log_evidence_)]

    return fit


def crossed(checkpoint=None):
    generator = np.random.default_rng(2)
    rows = {"y": generator.normal(size=3000), "g": generator.integers(0, 500, 3000)}
    model = curvi.MixedModel("y ~ 1 + (1 | g) + (1 | h)")
    model.fit(rows | {"h": generator.integers(0, 450, 3000)}, checkpoint=checkpoint)
    return [model.coef_, model.posterior_.level_mean]


def series(checkpoint=None):
    generator = np.random.default_rng(3)
    y = generator.poisson(np.exp(np.cumsum(0.2 * generator.normal(size=40))))
    model = curvi.StateSpace(likelihood="poisson").fit(y.astype(float), checkpoint=checkpoint)
    return [model.smooth().mean, np.asarray(model.log_evidence_)]


def many_hyperparameters(checkpoint=None):
    """Importance sampling: five sds, and the noise."""
    generator = np.random.default_rng(4)
    y, eye = generator.normal(size=30), np.eye(30)
    parts = [
        FromPrecision(eye[:, 6 * j : 6 * j + 6], np.eye(6), f"sd {j}", scales={f"sd {j}": 1.0})
        for j in range(5)
    ]
    model = curvi.LatentGaussian(parts).fit(y, checkpoint=checkpoint)
    return [model.predict().mean, np.asarray(model.log_evidence_)]


FITS = {
    "gaussian": mixed("gaussian"), "bernoulli": mixed("bernoulli"), "series": series,
    "latent": many_hyperparameters,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*FITS, pytest.param("crossed", marks=pytest.mark.slow)])
@pytest.mark.parametrize("saves", [2, 5])
def test_a_fit_on_the_host_that_was_cut_resumes_to_the_same_bits(
    tmp_path, monkeypatch, name, saves
):
    fit = {**FITS, "crossed": crossed}[name]
    saves = min(saves, 3) if name == "crossed" else saves
    expected, policy = fit(), curvi.Checkpoint(tmp_path / "run", every_seconds=0)
    count, save = [], _checkpoint.Session.save

    def cut(session):
        save(session)
        count.append(1)
        if len(count) == saves:
            raise CutError

    with monkeypatch.context() as patch:
        patch.setattr(_checkpoint.Session, "save", cut)
        with pytest.raises(CutError):
            fit(policy)
    for found, wanted in zip(fit(policy), expected, strict=True):
        assert np.array_equal(found, wanted)


def test_ctrl_c_saves_what_was_computed_and_another_table_is_refused(tmp_path, monkeypatch):
    fit, policy = mixed("gaussian"), curvi.Checkpoint(tmp_path / "run", every_seconds=0)
    due = _checkpoint.Session.is_due

    def pressed(session):
        session._signalled(signal.SIGINT, None)
        return due(session)

    with monkeypatch.context() as patch:
        patch.setattr(_checkpoint.Session, "is_due", pressed)
        with pytest.raises(curvi.Interrupted), pytest.warns(UserWarning, match="resumes"):
            fit(policy)
    assert all(np.array_equal(a, b) for a, b in zip(fit(policy), fit(), strict=True))
    other = {**table(), "x": table()["x"] + 1}
    with pytest.raises(curvi.InputError, match="data was"):
        curvi.MixedModel("y ~ x + (1 | g)", num_points=64).fit(other, checkpoint=policy)
    model = curvi.MixedModel("y ~ x + (1 | g)", num_points=64, random_state=1)
    with pytest.raises(curvi.InputError, match="random_state was 0"):
        model.fit(table(), checkpoint=policy)
