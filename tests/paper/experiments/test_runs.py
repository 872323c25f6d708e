"""The experiments: parameterisations are inverses, evaluations are ordered, files are written."""

import csv
import json

import jax.numpy as jnp
import numpy as np
import pytest

from curvi._core.errors import Outcome
from curvi.cli import main
from curvi.families import MeanField, Params
from curvi.glm._bound import SampledGLMProblem
from curvi.likelihoods import Bernoulli
from curvi.paper.experiments import _concentration as concentration
from curvi.paper.experiments import _conditions as conditions
from curvi.paper.experiments import _regression as regression
from curvi.paper.experiments._figures import draw_convergence, median_and_range, plot_convergence
from curvi.paper.experiments._methods import (
    NEWTON,
    PAPER_METHODS,
    SMALL,
    Comparison,
    Options,
    Pilot,
    best_of,
    newton_run,
)
from curvi.paper.experiments._runs import (
    MethodRun,
    Setting,
    errors,
    evaluation_steps,
    run_setting,
    steps_to,
)
from curvi.solvers import HFSGVI, LBFGS

pytestmark = pytest.mark.float64_only


@pytest.mark.parametrize(("to", "back"), [("to_raw", "from_raw"), ("to_mean", "from_mean")])
def test_every_parameterisation_comes_back_to_where_it_started(to, back):
    problem = SampledGLMProblem(Bernoulli(), MeanField(), True)
    params = Params(jnp.asarray([0.5, -2.0]), jnp.asarray([-1.0, 0.3]))
    found = getattr(problem, back)(getattr(problem, to)(params))
    np.testing.assert_allclose(found.mean, params.mean, rtol=1e-12)
    np.testing.assert_allclose(found.scale_params, params.scale_params, rtol=1e-12)


def test_hfsgvi_goes_uphill_on_a_relevance_bound():
    """With draws per row and the iterate of least residual; the curvature is indefinite."""
    X, y = table(200)
    method = HFSGVI(parameters="log_scale", keep="least_residual")
    setting = Setting(method, 30, num_draws=10, per_row=True)
    run = run_setting(setting, X, y, seed=0, seconds=30.0)
    best = newton_run(X, y, seed=0, num_starts=4)
    assert run.bound[0] < run.last <= best.last + 1e-9
    assert best.last - run.last < 0.25 * (best.last - run.bound[0])


def test_evaluations_are_in_order_and_end_at_the_last_step():
    for steps in (1, 2, 7, 1000):
        found = evaluation_steps(steps)
        assert found == sorted(set(found))
        assert found[0] == 1
        assert found[-1] == steps


def table(rows=40):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 3))
    return X, np.where(X[:, 0] + 0.5 * rng.normal(size=rows) > 0, 1, -1)


@pytest.mark.slow  # the runs of HFSGVI above say as much
def test_a_stochastic_run_stays_below_the_exact_optimum():
    """The ELBO that is recorded is exact, so noise cannot lift it above the maximum."""
    X, y = table()
    best = newton_run(X, y, seed=0, num_starts=4)
    run = run_setting(Setting(LBFGS(), 60, num_draws=10), X, y, seed=0, seconds=30.0)
    assert best.outcome is Outcome.CONVERGED
    assert run.bound[0] < run.last <= best.last + 1e-6
    assert errors(run.mean, X, y) < len(y) / 2


def curve(*bound):
    values = np.array(bound)
    place = np.arange(len(values))
    return MethodRun(place, place, values, np.zeros(1), np.ones(1), Outcome.BUDGET)


def test_steps_count_from_where_the_elbo_stays_good():
    assert steps_to(curve(-9.0, -1.0, -5.0, -1.0, -1.0), -2.0) == 3
    assert steps_to(curve(-9.0, -8.0), -2.0) is None
    assert steps_to(curve(-9.0, -20.0), -22.0) is None


def test_a_range_is_shown_only_where_there_is_one():
    assert median_and_range([3, 3]) == "3"
    assert median_and_range([1, 2, 9]) == "2 (1 to 9)"


@pytest.fixture
def recorded(monkeypatch):
    """Runs of every method that took no time, on tables of eight rows."""
    X, y = table(8)

    def some_runs(seeds):
        return [
            MethodRun(np.arange(3), np.arange(3.0), np.array([-19.0, -3.0, -2.0 - s]), np.ones(4),
                np.full(4, 0.1), Outcome.BUDGET)
            for s in seeds
        ]  # fmt: skip

    def compare(name, options, report):
        methods = (*PAPER_METHODS, NEWTON)
        runs = {method: some_runs(options.seeds) for method in methods}
        settings = {method: SMALL[method][0] for method in PAPER_METHODS}
        pilots = {method: [Pilot(settings[method], -1.0)] for method in PAPER_METHODS}
        return Comparison(name, options.seeds, (X, y), (X, y), runs, settings, pilots)

    monkeypatch.setattr(regression, "compare", compare)
    monkeypatch.setattr(regression, "load_rows", lambda name: ((X, y), (X, y)))
    monkeypatch.setattr(
        regression, "newton_runs", lambda name, train, *, seeds, report: some_runs(seeds)
    )
    monkeypatch.setattr(regression, "leave_one_out", lambda most: (1, 8))
    return errors(np.ones(4), X, y)


def test_the_regressions_write_their_numbers_beside_the_papers(tmp_path, capsys, recorded):
    for name in ("table1", "logistic", "coefficients"):
        assert main(["reproduce", name, "--seed", "7", "--seeds", "2", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    elbo = "-9.50 (-10.00 to -9.00)"  # of the seeds 7 and 8
    assert f"| duke | HFSGVI | 0 / 0 | {recorded} | {recorded} | {elbo} |" in printed
    assert "1 errors" in printed
    assert f"| duke | HFSGVI | {elbo} | 2.00 | 2 | 0 |" in printed
    assert "| duke | DSVI | 4 |" in printed
    lines = list(csv.DictReader((tmp_path / "table1.csv").read_text().splitlines()))
    assert {line["seed"] for line in lines} == {"7", "8"}
    assert [line["method"] for line in lines if line["data"] == "leukemia-raw"] == [NEWTON] * 2
    assert {path.name for path in tmp_path.iterdir()} == {
        "table1.csv", "table1.md", "logistic.csv", "logistic.md", "logistic.png",
        "coefficients.csv", "coefficients.md", "coefficients.png",
        *(f"{name}.provenance.json" for name in ("table1", "logistic", "coefficients")),
    }  # fmt: skip
    record = json.loads((tmp_path / "table1.provenance.json").read_text())
    assert (record["experiment"], record["seeds"]) == ("table1", [7, 8])


def test_a_quick_run_gives_no_verdict(tmp_path, capsys, recorded):
    for name in ("table1", "logistic", "coefficients"):
        assert main(["reproduce", name, "--quick", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert f"| duke | HFSGVI | 0 / 0 | {recorded} | {recorded} |" in printed
    assert printed.count("say nothing about the paper's claims") == 3
    assert not [word for word in ("reproduce (", "holds", "does not hold") if word in printed]
    record = json.loads((tmp_path / "table1.provenance.json").read_text())
    assert (record["quick"], record["seeds"]) == (True, [0, 1])


def test_a_run_that_diverges_stays_inside_the_axes():
    """In the figures of regressions and of auto-encoders."""
    bounds = np.array([-100.0, -1e30, -np.inf, np.nan])
    lost = MethodRun(np.arange(4), np.arange(4.0), bounds, np.ones(1), np.ones(1), Outcome.BUDGET)
    bounds = np.array([-100.0, -3.0, -2.0])
    good = MethodRun(np.arange(3), np.arange(3.0), bounds, np.ones(1), np.ones(1), Outcome.BUDGET)
    rows = (np.ones((5, 1)), np.ones(5))
    one = Comparison("duke", (0,), rows, rows, {"DSVI": [lost], "HFSGVI": [good]},
                     {"DSVI": SMALL["DSVI"][0]})  # fmt: skip
    histories = {
        name: [{"validation_elbo": run.bound, "seconds": run.seconds, "epoch": run.step + 1.0}]
        for name, run in (("lost", lost), ("good", good))
    }
    for figure in (draw_convergence([one]), plot_convergence(histories)):
        for panel in figure.axes:
            low, high = panel.get_ylim()
            curves = [line.get_ydata() for line in panel.get_lines()]
            assert len(curves) == 2
            assert all(((low <= curve) & (curve <= high)).all() for curve in curves)
            assert high < 1e6


def test_settings_are_named_by_what_is_not_usual():
    method = HFSGVI(parameters="log_scale", keep="least_residual")
    named = str(Setting(method, 30, num_draws=10, per_row=True, batch_size=50))
    assert named == (
        "HFSGVI(parameters='log_scale', keep='least_residual'), 10 draws per row, batches of 50"
    )


def test_epochs_count_the_rows_that_gradients_have_seen():
    steps = np.array([0, 10])
    assert Setting(LBFGS(), 10).epochs(steps, 200).tolist() == [0, 10]
    assert Setting(LBFGS(), 10, batch_size=50).epochs(steps, 200).tolist() == [0, 2.5]


def test_steps_are_an_option_that_no_clock_ends():
    options = Options((0,), steps=1000)
    assert options.seconds_for("a9a") == float("inf")
    assert options.limited(Setting(LBFGS(), 10)).max_steps == 1000
    assert Options((0,), seconds=3.0, steps=7).seconds_for("a9a") == 3.0


def test_the_candidate_with_the_highest_pilot_bound_is_chosen():
    slow, quick, lost = (Setting(LBFGS(history=k), 10) for k in (2, 3, 4))
    tried = [Pilot(slow, -9.0), Pilot(quick, -3.0), Pilot(lost, float("-inf"))]
    assert best_of(tried) == quick
    assert best_of([Pilot(slow, float("nan"))]) == slow


@pytest.mark.slow
def test_the_table_of_cg_iterations_runs_every_k_for_as_many_steps(tmp_path, monkeypatch, capsys):
    X, y = table(30)
    monkeypatch.setattr(conditions, "load_rows", lambda name: ((X, y), (X, y)))
    monkeypatch.setattr(conditions, "DATA", ("duke",))
    monkeypatch.setattr(
        conditions, "pilots", lambda *_: [Pilot(Setting(HFSGVI(curvature="plug_in"), 5, 4), -1.0)]
    )
    monkeypatch.setattr(conditions, "COUNTS", (2, 10, 20))
    command = ["reproduce", "cg_steps", "--seeds", "1", "--steps", "5", "--out", str(tmp_path)]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "nats" in printed
    assert "HFSGVI(curvature='plug_in'), 4 draws" in printed
    rows = list(csv.DictReader((tmp_path / "cg_steps.csv").read_text().splitlines()))
    assert [row["K"] for row in rows] == ["2", "10", "20"]
    # Three coefficients and a constant, each with its sd: conjugate gradients end by the eighth.
    assert len({row["bound"] for row in rows}) == 2


def test_without_draws_a_run_sees_the_bound_that_is_recorded():
    """A step of Newton's from mean zero then settles at once, and every seed gives the same run."""
    X, y = table()
    method = HFSGVI(parameters="log_scale", keep="least_residual")
    exact = Setting(method, 5, num_draws=0)
    assert str(exact).endswith(", exact expectation")
    first, second = (run_setting(exact, X, y, seed=seed, seconds=30.0) for seed in (0, 1))
    np.testing.assert_array_equal(first.bound, second.bound)
    many = run_setting(Setting(method, 5, num_draws=20_000), X, y, seed=0, seconds=30.0)
    # A curve with M draws is off by about 1 / sqrt(M) of its length.
    np.testing.assert_allclose(many.bound, first.bound, atol=0.1 * np.ptp(first.bound))


def test_the_plateau_is_found_where_a_run_stands_early_and_left_when_it_climbs(monkeypatch):
    """The curve stands at -26 from its second step on, with one outlier, and climbs at step 40."""
    X, y = table(8)
    step = np.array([0, 1, 2, 20, 25, 30, 40, 50])
    bound = np.array([-30.0, -40.0, -26.1, -26.0, -27.5, -25.9, -20.0, -7.0])

    def run_of(setting, X, y, *, seed, seconds):
        seen = step <= setting.max_steps
        mean, sd = np.array([0.1, 0.0, 0.0, 0.0]), np.ones(4)
        return MethodRun(step[seen], step[seen], bound[seen], mean, sd, Outcome.BUDGET)

    monkeypatch.setattr(conditions, "run_setting", run_of)
    found = conditions._settled(Setting(HFSGVI(), 50), X, y, 0, 1.0)
    assert (found["stands"], found["since_step"], found["leaves_at_step"]) == ("-26.0000", 2, 40)
    assert (found["largest_ratio"], found["end"]) == ("0.1000", "-7")
    bound[5] = -np.inf  # a run that is lost at the end has not settled
    lost = conditions._settled(Setting(HFSGVI(), 30), X, y, 0, 1.0)
    assert (lost["since_step"], lost["leaves_at_step"]) == ("", "")
    shown = conditions._plateau_line([{"data": "a", "reading": "b"} | lost])
    assert list(shown.values())[3] == "never"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plateau", "lbfgs_draws"])
def test_the_conditions_are_written_beside_their_runs(tmp_path, monkeypatch, capsys, name):
    X, y = table(30)
    monkeypatch.setattr(conditions, "load_rows", lambda name: ((X, y), (X, y)))
    monkeypatch.setattr(conditions, "_TABLES", {"a": (20, (2, 4), 1.0), "b": (None, (2,), 1.0)})
    command = ["reproduce", name, "--quick", "--seeds", "2", "--seconds", "0.2"]
    assert main([*command, "--out", str(tmp_path)]) == 0
    assert "say nothing about the paper's claims" in capsys.readouterr().out
    rows = list(csv.DictReader((tmp_path / f"{name}.csv").read_text().splitlines()))
    if name == "plateau":
        assert [row["draws"] for row in rows] == 2 * ["0", "10", "10"]
    else:
        seen = [(row["data"], row["method"], row["seed"]) for row in rows]
        few = [("b", method, "0") for method in ("DSVI", "L-BFGS-SGVI, 2 draws")]
        assert seen[-2:] == few
        assert len(seen) == 3 * 2 + 2


@pytest.mark.parametrize("option", ["--steps", "--seconds"])
def test_an_option_of_runs_is_refused_where_there_are_none(tmp_path, capsys, option):
    command = ["reproduce", "concentration", option, "5", "--out", str(tmp_path)]
    assert main(command) == 2
    assert f"leave {option} out" in capsys.readouterr().err


def test_an_unknown_experiment_is_refused(tmp_path, capsys):
    assert main(["reproduce", "nope", "--out", str(tmp_path)]) == 2
    assert "'table1'" in capsys.readouterr().err


def test_measured_variances_stay_below_the_sharp_inequality_and_follow_the_seed(monkeypatch):
    monkeypatch.setattr(concentration, "DIMENSIONS", (1, 10))
    rows = concentration.variance_rows(2000, range(3))
    assert [(row["function"], row["dimension"]) for row in rows] == [
        (name, dimension) for name in concentration.FUNCTIONS for dimension in (1, 10)
    ]
    assert all(row["variance"] <= 1.2 * row["sharp"] for row in rows)  # 10 standard errors
    assert concentration.variance_rows(2000, range(3)) == rows
    assert concentration.variance_rows(2000, range(3, 6)) != rows
    first, other = (concentration.tail_rows(500, seeds) for seeds in (range(2), range(2, 4)))
    assert [row["sharp"] for row in first] == [row["sharp"] for row in other]
    assert first != other


@pytest.mark.slow
def test_the_concentration_figures_are_written_with_their_numbers(tmp_path, capsys):
    command = ["reproduce", "concentration", "--quick", "--seeds", "1", "--out", str(tmp_path)]
    assert main(command) == 0
    assert "| linear | " in capsys.readouterr().out
    names = ("variance", "tails", "decoder")
    figures = {f"concentration_{name}{kind}" for name in names for kind in (".csv", ".png")}
    assert {path.name for path in tmp_path.iterdir()} == {
        *figures,
        "concentration.md",
        "concentration.provenance.json",
    }


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("name", ["table1", "logistic", "coefficients", "cg_steps"])
def test_an_experiment_runs_end_to_end(data_dir, tmp_path, capsys, name):
    options = ["--quick", "--seeds", "2", "--seconds", "1"]
    assert main(["reproduce", name, *options, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for data in regression.DATA:
        assert f"| {data} | " in printed
    assert "Quick settings" in printed
    expected = {".csv", ".md", ".json"} | (
        {".png"} if name in ("logistic", "coefficients") else set()
    )
    assert {path.suffix for path in tmp_path.iterdir()} == expected
    if name == "coefficients":
        assert "| duke | Newton (curvi) | 7130 |" in printed
    if name == "table1":  # a method that learns is far below the share of the smaller class
        rows = list(csv.DictReader((tmp_path / "table1.csv").read_text().splitlines()))
        newton = [row for row in rows if row["method"] == NEWTON and row["data"] == "a9a"]
        assert all(int(row["test_errors"]) < 3000 for row in newton)
        assert {row["seed"] for row in rows} == {"0", "1"}


def test_table_1_differs_in_either_direction_and_four_test_rows_decide_nothing():
    from curvi.paper.experiments._regression import PAPER, not_reproduced

    same = {name: [[train], [test]] for name, (train, test) in PAPER.items()}
    assert "- no difference of that size" in not_reproduced(same)
    for change in (-100, 100):
        moved = {**same, ("a9a", "DSVI"): [[4948 + change], [2455]]}
        assert f"- a9a, DSVI: {4948 + change} training errors" in not_reproduced(moved)
    few = not_reproduced({**same, ("duke", "HFSGVI"): [[0], [4]]})
    assert "- duke" not in few
    assert "too few for a verdict" in few
