"""The experiments: charts are inverses, looks are ordered, selection is by the bound."""

import jax.numpy as jnp
import numpy as np
import pytest

from curvi._core.errors import Outcome
from curvi.cli import main
from curvi.families import MeanField, Params
from curvi.glm import Bernoulli
from curvi.reproduction._logistic import steps_to
from curvi.reproduction._methods import newton_run
from curvi.reproduction._runs import ChartedProblem, Run, Setting, errors, looks, run_setting
from curvi.reproduction._tables import median_and_range
from curvi.solvers import LBFGS

pytestmark = pytest.mark.float64_only


@pytest.mark.parametrize("chart", ["sigma", "log sigma", "ratio"])
def test_every_chart_comes_back_to_where_it_started(chart):
    problem = ChartedProblem(Bernoulli(), MeanField(), True, chart=chart)
    params = Params(jnp.asarray([0.5, -2.0]), jnp.asarray([-1.0, 0.3]))
    back = problem.from_raw(problem.to_raw(params))
    np.testing.assert_allclose(back.mean, params.mean, rtol=1e-12)
    np.testing.assert_allclose(back.scale, params.scale, rtol=1e-12)


def test_looks_rise_and_end_at_the_last_step():
    for steps in (1, 2, 7, 1000):
        found = looks(steps)
        assert found == sorted(set(found))
        assert found[0] == 1
        assert found[-1] == steps


def table(rows=40):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 3))
    return X, np.where(X[:, 0] + 0.5 * rng.normal(size=rows) > 0, 1, -1)


def test_a_stochastic_run_stays_below_the_exact_optimum():
    """The bound that is recorded is exact, so noise cannot lift it above the maximum."""
    X, y = table()
    best = newton_run(X, y, seed=0, num_starts=4)
    run = run_setting(Setting(LBFGS(), 60, num_draws=10), X, y, seed=0, seconds=30.0)
    assert best.outcome is Outcome.CONVERGED
    assert run.bound[0] < run.last <= best.last + 1e-6
    assert errors(run.mean, X, y) < len(y) / 2


def curve(*bound):
    values = np.array(bound)
    place = np.arange(len(values))
    return Run(place, place, values, np.zeros(1), np.ones(1), Outcome.BUDGET, 0.0)


def test_steps_count_from_where_the_bound_stays_good():
    assert steps_to(curve(-9.0, -1.0, -5.0, -1.0, -1.0), -2.0) == 3
    assert steps_to(curve(-9.0, -8.0), -2.0) is None
    assert steps_to(curve(-9.0, -20.0), -22.0) is None


def test_a_range_is_shown_only_where_there_is_one():
    assert median_and_range([3, 3]) == "3"
    assert median_and_range([1, 2, 9]) == "2 (1 to 9)"


def test_an_unknown_experiment_is_refused(tmp_path, capsys):
    assert main(["reproduce", "nope", "--out", str(tmp_path)]) == 2
    assert "'table1'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.data
def test_the_sparsity_figure_is_written_with_its_numbers(data_dir, tmp_path, capsys):
    command = ["reproduce", "coefficients", "--quick", "--seeds", "1", "--out", str(tmp_path)]
    assert main(command) == 0
    assert "| duke | 7130 |" in capsys.readouterr().out
    assert (tmp_path / "coefficients.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".csv", ".md", ".png"]
