"""Pages: they stand alone, escape what is foreign, and their numbers are those of the fit."""

import json
import re
from html.parser import HTMLParser
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import curvi
from curvi._core.errors import InputError
from curvi.glm._narrowness import TOO_NARROW
from curvi.report import (
    Chart,
    Code,
    Estimate,
    Facts,
    Forest,
    Grid,
    Layer,
    Prose,
    Report,
    Tab,
    Tile,
    Verdict,
    write_report,
)
from curvi.report._blocks import estimates_of, normal_estimate, plain, rounded, tick_labels, ticks
from curvi.report._build import Page
from curvi.report._predictive import calibration, central, coverage, predictive, with_misses
from curvi.report._text import text_of
from curvi.vae._report import _picture

pytestmark = pytest.mark.float64_only

HOSTILE = '"><script>alert(1)</script>\x1b[31m\u202e{{ 7 * 7 }}'
CHART = Chart("c", "said", "x", "y", (Layer("line", [0, 1, 2], [1.0, 2.0, float("nan")], "l"),))


def generator(key):
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def page_of(text):
    """A report with a foreign text in every place that takes one."""
    row = Estimate(text, 1.0, 0.5, 0.2, 1.8, 0.97, (text,))
    blocks = (
        Prose(text), Facts(text, {text: text}), Code(text, text), Grid(text, (text,), ((text,),)),
        Forest(text, (row, row), text, text, (text,)),
        Chart(text, text, text, text, (Layer("points", [1], [2], text, tips=(text,)),), note=text),
    )  # fmt: skip
    verdict = Verdict("caution", text, (text,), (text,))
    tabs = (Tab("estimates", text, blocks), Tab("model", text, (Facts("a", {"b": text}),)))
    return Report(text, text, verdict, (Tile(text, text, text),), tabs)


class Strict(HTMLParser):
    """Collects tags and attributes, and proves that all elements are closed in order."""

    VOID = ("meta", "input", "img", "line", "circle", "rect", "polyline", "polygon")

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.values, self.ids = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.values += [(name, value or "") for name, value in attrs]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)
        self.values += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def parsed(text):
    found = Strict()
    found.feed(text)
    assert found.open == []
    return found


def test_nothing_foreign_becomes_markup_script_or_a_command():
    plain_page, hostile = parsed(page_of("a").html()), parsed(page_of(HOSTILE).html())
    assert hostile.seen == plain_page.seen
    assert hostile.seen.count("script") == 1
    for text in (page_of(HOSTILE).html(), page_of(HOSTILE).json(), text_of(page_of(HOSTILE))):
        assert not set("\x1b\u202e") & set(text)
    assert "{{ 7 * 7 }}" in page_of(HOSTILE).html()


def test_a_page_holds_no_address_and_may_load_nothing():
    text = page_of("a").html()
    assert re.search(r"https?:|//[a-z]", text.replace("// ", "")) is None
    found = parsed(text)
    (policy,) = [v for name, v in found.values if name == "content" and "default-src" in v]
    assert policy.startswith("default-src 'none'")
    assert not [name for name, _ in found.values if name.startswith("on")]
    assert len(found.ids) == len(set(found.ids))


def test_labels_name_elements_that_exist():
    found = parsed(page_of("a").html())
    named = [value for name, value in found.values if name in ("aria-labelledby", "aria-controls")]
    assert named
    assert set(named) <= set(found.ids)


def test_the_numbers_beside_a_page_are_strict_json():
    broken = Estimate("a", float("nan"), float("inf"), 0.0, 1.0)
    report = Report("t", "s", Verdict("bad", "h"), (), (
        Tab("estimates", "e", (Forest("f", (broken,)), CHART)),
    ))  # fmt: skip
    found = json.loads(report.json())["parts"]["estimates"]
    assert found["f"][0]["mean"] is None
    assert found["c"][0]["y"] == [1.0, 2.0, None]
    parsed(report.html())


def test_a_report_replaces_a_report_and_nothing_else(tmp_path):
    page = write_report(page_of("a"), tmp_path / "r")
    assert page == tmp_path / "r.html"
    assert write_report(page_of("b"), page) == page
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.html", "r.json"]
    (tmp_path / "mine.html").write_text("precious")
    with pytest.raises(InputError, match="is no report"):
        write_report(page_of("a"), tmp_path / "mine.html")
    assert (tmp_path / "mine.html").read_text() == "precious"
    with pytest.raises(InputError, match=r"end in .html"):
        write_report(page_of("a"), tmp_path / "r.json")


def test_numbers_are_rounded_to_two_digits_of_their_error():
    assert rounded(1.23456, 0.0432) == "1.235"
    assert rounded(-1234.5, 67.0) == "\N{MINUS SIGN}1,234"
    assert rounded(0.0001, 3.0) == "0.0"
    assert rounded(5.0, 0.0) == "5"
    assert plain(-0.00001234) == "\N{MINUS SIGN}1.234e-05"
    assert plain(float("nan")) == "not finite"


def test_ticks_are_round_inside_their_ends_and_told_apart(key):
    rng = generator(key)
    for _ in range(200):
        low = float(rng.normal() * 10 ** rng.uniform(-3, 5))
        high = low + float(10 ** rng.uniform(-3, 5)) * max(1e-3, abs(low) * 1e-3)
        places = ticks(low, high)
        width = high - low
        assert 2 <= len(places) <= 6
        assert low - 1e-6 * width <= places[0]
        assert places[-1] <= high + 1e-6 * width
        labels = tick_labels(places)
        if max(abs(low), abs(high)) < 1e5:
            assert len(set(labels)) == len(labels)


def test_estimates_of_normal_draws_agree_with_the_normal_distribution(key):
    rng = generator(key)
    draws = rng.normal(0.8, 0.5, size=(200_000, 1))
    (sampled,), exact = estimates_of(["a"], draws), normal_estimate("a", 0.8, 0.5)
    for name in ("mean", "sd", "lower", "upper"):  # ten standard errors of a tail quantile
        assert getattr(sampled, name) == pytest.approx(getattr(exact, name), abs=0.025)
    assert exact.direction == pytest.approx(stats.norm.cdf(1.6))
    assert sampled.direction == pytest.approx(exact.direction, abs=0.01)


class Plain(Page):
    """A page without parts."""

    def heading(self):
        return "plain", ""

    def verdict(self):
        return Verdict("good", "fine")

    def tiles(self):
        return []

    def repeat(self):
        return "", {}


def test_the_configuration_is_shown_in_the_letters_of_the_user():
    page = Plain(None, call="call", configuration={"target": "Fläche"})
    assert "Fläche" in page.report().tabs[-1].blocks[1].text


def test_a_constant_has_no_direction(key):
    draws = np.column_stack([np.zeros(50), np.ones(50), generator(key).normal(3, 1, 50)])
    zero, one, moving = estimates_of(["zero", "one", "moving"], draws)
    assert zero.sign == one.sign == ""
    assert moving.sign.endswith("positive")


def test_one_row_that_widens_the_model_for_all_others_is_a_misfit(key):
    """Most bars between it and the others are empty, and expected to be: they show no fit."""
    rng = generator(key)
    good, seen = Verdict("good", "fine", (), ("a",)), rng.normal(size=200)
    seen[0] = 1000.0
    right = predictive(seen, rng.permuted(np.tile(seen, (50, 1)), axis=1), "y")
    assert with_misses(good, [right]).level == "good"
    wide = predictive(seen, seen.mean() + seen.std() * rng.normal(size=(100, 200)), "y")
    assert with_misses(good, [wide]).level == "caution"


def test_calibration_puts_right_probabilities_into_its_band_and_wrong_ones_outside(key):
    rng = generator(key)
    chance = rng.random(4000)
    observed = rng.random(4000) < chance
    share = [sum(_inside(calibration(observed, p, "it"))) for p in (chance, chance**4)]
    assert share[0] >= 5  # of ten, each with probability 0.9: fails once in 10^4 runs
    assert share[1] <= 3


def _inside(chart):
    band, points = chart.layers
    return [low <= y <= high for low, y, high in zip(band.y, points.y, band.top, strict=True)]


def test_a_model_that_misses_the_data_is_not_called_good(key):
    rng = generator(key)
    good = Verdict("good", "fine", ("s",), ("a", "note"))
    observed = rng.normal(size=400)
    right = [predictive(observed, rng.permuted(np.tile(observed, (50, 1)), axis=1), "y")]
    wrong = [predictive(rng.normal(size=400), rng.normal(1, 2, size=(200, 400)), "y")]
    assert with_misses(good, right).level == "good"
    found = with_misses(good, wrong)
    assert found.level == "caution"
    assert found.advice[-1] == "note"
    bad = Verdict("bad", "no")
    assert with_misses(bad, wrong) is bad


@pytest.mark.parametrize("count", [20, 200])
def test_nine_of_ten_rows_are_inside_an_interval_of_however_few_draws(key, count):
    rng = generator(key)
    lower, upper = central(rng.normal(size=(count, 20_000)))
    assert abs(coverage(rng.normal(size=20_000), lower, upper) - 0.9) < 0.01


def test_a_predictive_check_counts_every_row_once(key):
    rng = generator(key)
    for observed in (rng.normal(size=500), rng.poisson(3.0, 500).astype(float)):
        drawn = rng.permuted(np.tile(observed, (50, 1)), axis=1)
        bars, band, middle = predictive(observed, drawn, "y").layers
        assert np.sum(bars.top) == 500
        np.testing.assert_array_equal(band.y, bars.top)  # the same numbers in another order
        np.testing.assert_array_equal(middle.y, bars.top)
        assert coverage(observed, observed - 1, observed + 1) == 1.0


@pytest.fixture(scope="module")
def result():
    mean = jnp.array([3.0, -3.0, 0.0])
    return curvi.fit(
        lambda x: -0.5 * jnp.sum((x["a"] - mean) ** 2) - 0.5 * x["b"] ** 2 / 1e4,
        {"a": jnp.zeros(3), "b": jnp.zeros(())},
        family=curvi.FullRank(),
        progress=False,
    )


def test_the_report_of_a_fit_has_its_numbers_and_a_good_verdict(result, tmp_path):
    page = result.report(tmp_path / "r.html", names=["p", "q", "r", "wide"], title="A & B")
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["verdict"]["level"] == "good"
    estimates = {e["name"]: e for rows in found["parts"]["estimates"].values() for e in rows}
    assert set(estimates) == {"p", "q", "r", "wide"}
    assert estimates["p"]["mean"] == pytest.approx(3.0, abs=0.2)
    assert estimates["q"]["upper"] < 0 < estimates["p"]["lower"]
    assert estimates["q"]["direction"] > 0.99
    assert 0.5 <= estimates["r"]["direction"] < 0.7
    parsed(page.read_text())


def test_the_summary_its_table_and_the_page_hold_the_same_estimates(result, tmp_path):
    names = ["p", "q", "r", "wide"]
    summary = result.summary(names)
    result.report(tmp_path / "r.html", names=names)
    found = json.loads((tmp_path / "r.json").read_text())
    for rows in found["parts"]["estimates"].values():
        for row in rows:
            for column in ("mean", "sd"):
                number = summary.frame.loc[row["name"], column]
                assert number == row[column]
                assert f"{number:.4g}" in summary


def test_a_fit_that_was_cut_short_is_not_called_good(tmp_path):
    def banana(x):
        return -jnp.sum(x**2) - 10 * (x[1] - x[0] ** 2) ** 2

    options = {"family": curvi.MeanField(), "max_steps": 1, "progress": False}
    with pytest.warns(curvi.NotConvergedWarning):
        cut = curvi.fit(banana, jnp.ones(2) * 3, on_failure="return", **options)
    cut.report(tmp_path / "r.html")
    assert json.loads((tmp_path / "r.json").read_text())["verdict"]["level"] == "bad"


def test_observations_need_draws_of_their_shape(result, tmp_path):
    for observed, replicated, words in (
        (np.ones(3), None, "belong together"),
        (np.ones(3), np.ones((2, 4)), r"\(3,\) and replicated \(2, 4\)"),
        (np.array([1.0, np.nan]), np.ones((2, 2)), "not finite"),
    ):
        with pytest.raises(InputError, match=words):
            result.report(tmp_path / "r.html", observed=observed, replicated=replicated)
    assert list(tmp_path.iterdir()) == []


def test_estimators_report_without_rows_and_with_them(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 3))
    counts = rng.poisson(np.exp(0.3 + 0.6 * X[:, 0]))
    kinds = (rng.random(120) * 3).astype(int)
    for name, model, y in (
        ("linear", curvi.BayesianLinearRegression(), X[:, 0] + rng.normal(size=120)),
        ("poisson", curvi.BayesianPoissonRegression(prior="ard"), counts),
        ("logistic", curvi.BayesianLogisticRegression(), counts > 1),
        ("softmax", curvi.BayesianLogisticRegression(), kinds),
    ):
        model.fit(X, y)
        model.report(tmp_path / f"{name}.html")
        model.report(tmp_path / f"{name}-rows.html", X, y)
        parts = json.loads((tmp_path / f"{name}-rows.json").read_text())["parts"]
        assert set(parts) == {"estimates", "fit", "convergence", "model", "repeat"}
        parsed((tmp_path / f"{name}-rows.html").read_text())
        with pytest.raises(InputError, match="X and y belong together"):
            model.report(tmp_path / "x.html", X)


def test_a_diagonal_covariance_is_too_narrow_by_what_a_full_one_is_wider(key):
    """Exact for a linear model, whose posterior is Gaussian."""
    rng = generator(key)
    X = rng.normal(size=(200, 3)) @ np.array([[1.0, 0.9, 0.0], [0.0, 0.3, 0.0], [0.0, 0.0, 1.0]])
    y = X @ np.array([1.0, 1.0, 0.5]) + rng.normal(size=200)
    diagonal = curvi.BayesianLinearRegression(noise_scale=1.0, covariance="diagonal")
    with pytest.warns(curvi.MisfitWarning, match="leaves that out"):
        diagonal.fit(X, y)
    full = curvi.BayesianLinearRegression(noise_scale=1.0, covariance="full").fit(X, y)
    ratio = diagonal.result_.sd_ratios[0, :3]
    np.testing.assert_allclose(ratio, full.coef_sd_ / diagonal.coef_sd_, rtol=0.02)
    assert ratio[0] > 2
    assert ratio[2] < 1.1
    assert full.result_.sd_ratios is None
    classes = np.digitize(y, np.quantile(y, [0.3, 0.6]))
    several = curvi.BayesianLogisticRegression(covariance="diagonal")
    with pytest.warns(curvi.MisfitWarning, match="leaves that out"):
        several.fit(X, classes)
    assert several.result_.sd_ratios[:, 0].max() > TOO_NARROW
    relevant = curvi.BayesianLinearRegression(prior="ard", random_state=0).fit(X, y)
    assert relevant.result_.sd_ratios.shape == (1, 4)


def test_a_mixed_model_reports_its_groups(tmp_path):
    rng = np.random.default_rng(0)
    g = np.repeat(np.arange(8), 6)
    x = rng.normal(size=48)
    y = 1 + 2 * x + rng.normal(size=8)[g] + 0.3 * rng.normal(size=48)
    table = {"y": y, "x": x, "<g>": [f"<{k}>" for k in g]}
    table["g"] = table.pop("<g>")
    model = curvi.MixedModel("y ~ x + (1 + x | g)").fit(table)
    page = model.report(tmp_path / "r.html")
    parts = json.loads((tmp_path / "r.json").read_text())["parts"]
    assert [e["name"] for e in parts["groups"]["g: Intercept"]] == [f"<{k}>" for k in range(8)]
    mean, sd = model.posterior_.effects(0)
    np.testing.assert_allclose([e["mean"] for e in parts["groups"]["g: x"]], mean[:, 1])
    np.testing.assert_allclose([e["sd"] for e in parts["groups"]["g: x"]], sd[:, 1])
    parsed(page.read_text())


@pytest.mark.slow
def test_an_auto_encoder_shows_pictures_where_rows_are_images(tmp_path):
    rng = np.random.default_rng(0)
    options = {"latent": 2, "hidden": (8,), "max_epochs": 2, "random_state": 0}
    images = curvi.VAE(**options).fit(rng.random((60, 16)).round())
    images.report(tmp_path / "a.html", rng.random((20, 16)).round())
    parts = json.loads((tmp_path / "a.json").read_text())["parts"]
    assert {"history", "reconstructions", "samples", "manifold"} <= set(parts)
    page = parsed((tmp_path / "a.html").read_text())
    pictures = [v for name, v in page.values if name == "src"]
    assert len(pictures) == 3
    assert all(v.startswith("data:image/png;base64,") for v in pictures)
    assert all(v for name, v in page.values if name == "alt")
    assert _picture(SimpleNamespace(n_features_in_=5, image_shape_=None), None) is None
