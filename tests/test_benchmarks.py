"""What the posterior benchmark rests on: its rule, its contenders, its references."""

from __future__ import annotations

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("numpyro", reason="numpyro is not installed; the benchmark's models need it")

from benchmarks import bench_posteriors, clocks, posterior_contenders, posterior_summary
from benchmarks.batch_and_match import batch_and_match, match
from benchmarks.bench_posteriors import chosen, variants
from benchmarks.hierarchical import MODELS
from benchmarks.hierarchical_references import REFERENCES, fingerprint
from benchmarks.posterior_scores import is_silent, line, scored

pytestmark = pytest.mark.float64_only


@pytest.fixture(autouse=True)
def _usual_promotion():
    """A benchmark is a user's code: it may mix ranks and dtypes."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def generator(key):
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def gaussian(rng, dimension):
    factor = rng.normal(size=(dimension, dimension))
    return rng.normal(size=dimension), factor @ factor.T + np.eye(dimension)


def test_batch_and_match_solves_its_equation(key):
    rng = generator(key)
    mean, covariance = gaussian(rng, 4)
    z, g, rate = rng.normal(size=(7, 4)), rng.normal(size=(7, 4)), 3.0
    found, factor = match(*map(jnp.asarray, (mean, covariance, z, g)), rate)
    S, share = np.asarray(factor @ factor.T), rate / (1 + rate)
    off, slope = mean - z.mean(axis=0), g.mean(axis=0)
    U = rate * np.cov(g.T, bias=True) + share * np.outer(slope, slope)
    V = covariance + rate * np.cov(z.T, bias=True) + share * np.outer(off, off)
    np.testing.assert_allclose(S @ U @ S + S, V, rtol=1e-8, atol=1e-8)
    expected = mean / (1 + rate) + share * (S @ slope + z.mean(axis=0))
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)


def test_batch_and_match_finds_a_gaussian_exactly(key):
    mean, precision = map(jnp.asarray, gaussian(generator(key), 3))
    found, factor = batch_and_match(
        lambda z: -0.5 * (z - mean) @ precision @ (z - mean), 3, steps=40
    )
    np.testing.assert_allclose(found, mean, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(factor @ factor.T, np.linalg.inv(precision), rtol=1e-6, atol=1e-6)


PROBLEM = SimpleNamespace(mean=np.zeros(3), sd=np.array([1.0, 2.0, 4.0]), labels=["a", "b", "c"])


@pytest.mark.parametrize(
    ("mean", "sd", "right"),
    [
        ([0.1, 0.0, -0.4], [1.25, 1.6, 4.0], True),
        ([0.11, 0.0, 0.0], [1.0, 2.0, 4.0], False),
        ([0.0, 0.0, 0.0], [1.0, 1.58, 4.0], False),
        ([0.0, 0.0, 0.0], [1.0, 2.0, 5.04], False),
        ([np.nan, 0.0, 0.0], [1.0, 2.0, 4.0], False),
    ],
)
def test_an_answer_is_right_within_a_tenth_of_an_sd_and_a_fifth_of_the_sds(mean, sd, right):
    row = scored(np.array(mean), np.array(sd), PROBLEM)
    assert row["right"] is right
    assert is_silent(row | {"flagged": False}) is not right
    assert not is_silent(row | {"flagged": True})


def test_the_worst_quantities_are_named():
    row = scored(np.array([0.0, 0.0, 1.0]), np.array([1.0, 1.0, 8.0]), PROBLEM)
    assert row["worst"] == ["c", "b", "c"]
    assert "SILENT" in line("m", "w", row | {"flagged": False, "seconds": 1.0})


def test_a_failure_is_neither_right_nor_silent():
    row = {"failed": "more than 9 processor seconds", "flagged": True, "right": False}
    assert not is_silent(row)
    assert "more than 9" in line("m", "w", row)


def test_a_rate_at_the_edge_of_the_grid_is_followed_by_one_beyond():
    losses = {"1e-3": 5.0, "0.001": 5.0, "0.01": 4.0, "0.1": 3.0, "1": 6.0}
    tried = []

    def measure(name):
        tried.append(name.partition("@")[2])
        return {"loss": losses[tried[-1]]}

    who = "NumPyro AutoNormal"
    assert len(list(variants(who, measure))) == 4
    assert tried == ["0.001", "0.01", "0.1", "1"]


def test_the_table_shows_the_rate_with_the_best_bound():
    rows = {
        ("ordinal", f"PyMC ADVI@{rate}"): {"loss": loss, "seconds": 1.0, "right": False}
        for rate, loss in ((0.001, 3.0), (0.01, 2.0), (0.1, None))
    }
    shown = posterior_summary.table_of(rows)["ordinal"]["PyMC ADVI"]
    assert (shown["rate"], shown["rates_tried"]) == (0.01, 3)


def test_time_is_a_share_of_that_of_nuts_in_the_same_run():
    ours = {"seconds": 2.0, "seconds_warm": 0.5, "of_nuts": 7.0, "commit": "a"}
    nuts = {"seconds": 8.0, "compiling": 6.0, "seconds_warm": 7.0, "compiling_warm": 6.0}
    rows = {
        ("ordinal", "curvi"): dict(ours),
        ("ordinal", "nutpie"): {"seconds": 4.0, "commit": "b"},
        ("ordinal", "NumPyro NUTS"): nuts | {"commit": "a"},
        ("epidemic", "curvi"): dict(ours),
    }
    shown = posterior_summary.table_of(rows)
    assert shown["ordinal"]["curvi"]["of_nuts"] == 0.25
    assert shown["ordinal"]["curvi"]["of_nuts_warm"] == 0.5
    assert "of_nuts" not in shown["ordinal"]["nutpie"]  # measured at another commit
    assert "of_nuts" not in shown["epidemic"]["curvi"]


def test_compilation_is_counted_once_however_its_spans_nest():
    looks = np.array([[0.0, 0.0], [10.0, 5.0]])  # half a processor second for each of the clock
    spans = [(1.0, 2.0), (0.5, 3.0), (2.5, 4.0)]
    assert clocks._processor_seconds(spans, looks) == pytest.approx(1.75)


def test_a_call_that_compiles_spends_time_on_it_and_a_second_one_none(key):
    function = jax.jit(lambda x: jnp.linalg.slogdet(x @ x.T + jnp.eye(7))[1])
    x = jax.random.normal(key, (7, 7))
    with clocks.spent() as first:
        function(x).block_until_ready()
    with clocks.spent() as second:
        function(x).block_until_ready()
    assert 0 < first.compiling <= first.seconds
    assert second.compiling == 0 <= second.running


def test_parts_of_names_choose_and_whole_names_choose_one():
    known = posterior_contenders.CONTENDERS
    assert chosen(known, "curvi", ";") == ["curvi"]
    assert chosen(known, "Pathfinder;nutpie", ";") == [
        "nutpie", "BlackJAX Pathfinder", "BlackJAX multi-path Pathfinder, PSIS",
    ]  # fmt: skip


# A handful of divergences in thousands of draws; to be sampled again with smaller steps.
PROVISIONAL = {"gp_poisson", "volatility_centred", "volatility_noncentred"}


def references():
    return json.loads(REFERENCES.read_text())


def test_references_are_known_to_a_fiftieth_of_an_sd_without_a_divergence():
    for name, row in references().items():
        if "sites" not in row:
            continue
        assert row["dimension"] == MODELS[name].dimension
        errors = [np.max(site["error"]) for site in row["sites"].values()]
        assert max(errors) <= 0.02, name
        assert row["rhat"] < 1.01, name
        assert row["diverging"] == 0 or name in PROVISIONAL, name
        assert row["diverging"] <= 0.002 * row["draws"], name


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_reference_belongs_to_the_model_as_it_is(name):
    row = references().get(name, {})
    if "fingerprint" not in row:
        pytest.skip("no reference yet")
    assert fingerprint(MODELS[name]) == pytest.approx(row["fingerprint"], rel=1e-9)


@pytest.mark.slow
def test_stochastic_volatility_by_its_average_state_is_the_same_posterior(key):
    from numpyro import handlers
    from numpyro.infer.util import log_density

    entry, rng = MODELS["volatility_noncentred"], generator(key)
    (by_average, _, data), (plain, _, _) = entry.easier(), entry.build()
    for phi, sigma in ((0.9, 0.2), (0.97, 0.4)):
        shared = {"phi": phi, "sigma": sigma, "z": jnp.asarray(rng.normal(size=300))}
        place = shared | {"average": jnp.asarray(-1.2)}
        seeded = handlers.substitute(handlers.seed(by_average, jax.random.key(0)), data=place)
        mu = handlers.trace(seeded).get_trace(**data)["mu"]["value"]
        there = log_density(by_average, (), data, place)[0]
        here = log_density(plain, (), data, shared | {"mu": mu})[0]
        assert float(there) == pytest.approx(float(here), rel=1e-9)


def test_a_run_goes_on_beside_a_record_that_was_made_elsewhere(tmp_path, monkeypatch):
    record = {
        "rows": {
            "ordinal": {
                "PyMC ADVI": {"loss": 2.0, "rate": 0.01, "rates_tried": 4},
                "nutpie": {"seconds": 3.0},
            },
            "epidemic": {"PyMC ADVI": {"loss": 1.0, "rate": 0.1, "rates_tried": 3}},
        }
    }
    (tmp_path / "posteriors.json").write_text(json.dumps(record))
    row = {"model": "ordinal", "who": "PyMC ADVI@0.1", "loss": 3.0}
    (tmp_path / "posteriors.jsonl").write_text(json.dumps(row) + "\n")
    monkeypatch.setattr(bench_posteriors, "RECORD", tmp_path / "posteriors.json")
    monkeypatch.setattr(bench_posteriors, "ROWS", tmp_path / "posteriors.jsonl")
    rows = bench_posteriors.read_rows()
    # What was measured here replaces the whole grid of the record, and nothing else of it.
    assert set(rows) == {
        ("ordinal", "PyMC ADVI@0.1"), ("ordinal", "nutpie"), ("epidemic", "PyMC ADVI@0.1"),
    }  # fmt: skip
    table = posterior_summary.table_of(rows)
    assert table["epidemic"]["PyMC ADVI"]["rates_tried"] == 3
    assert table["ordinal"]["PyMC ADVI"]["loss"] == 3.0
