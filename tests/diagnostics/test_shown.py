"""What results, targets and families show in a terminal, a notebook and a figure."""

import io
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from curvi._core.errors import InputError
from curvi._core.run import Phase
from curvi.engine import hooks_for
from curvi.engine._loop import Progress

NAMES = ["a", "b", "$c$"]


@pytest.fixture(scope="module")
def result():
    mean = jnp.array([4.0, -4.0, 0.0])
    return curvi.fit(
        lambda x: -0.5 * jnp.sum((x["<b>"] - mean) ** 2), {"<b>": jnp.zeros(3)},
        family=curvi.FullRank(), progress=False,
    )  # fmt: skip


def test_a_result_says_in_one_line_how_it_ended(result):
    text = repr(result)
    assert text.startswith("FitResult(converged: 3 parameters, FullRank(), ELBO ")
    assert "\n" not in text


def test_a_result_shows_its_verdict_and_numbers_in_a_notebook(result):
    page = result._repr_html_()
    assert "The numbers can be used." in page
    assert "&lt;b&gt;[0]" in page
    assert "<b>" not in page
    assert "99.9 % positive" in page
    assert "99.9 % negative" in page


@pytest.mark.float64_only
def test_a_loaded_result_shows_the_same(result, tmp_path):
    result.save(tmp_path / "r")
    loaded = curvi.load(tmp_path / "r")
    assert repr(loaded) == repr(result)
    assert loaded._repr_html_() == result._repr_html_()
    loaded.report(tmp_path / "r.html")


def test_a_minimisation_says_in_one_line_how_it_ended():
    found = curvi.minimise(
        lambda p, batch, key: jnp.sum((p - 1) ** 2), jnp.zeros(3), fixed_key=True, progress=False
    )
    assert repr(found).startswith("OptimiseResult(converged: 3 parameters, objective ")


def test_targets_and_families_say_what_they_are(result):
    assert repr(result.target) == "Target(3 parameters: <b> (3,))"
    assert "&lt;b&gt;" in result.target._repr_html_()
    data = curvi.DataTarget(
        lambda z, rows: -((rows - z["a"]) ** 2), np.ones(7, result.mean["<b>"].dtype),
        lambda z: -(z["a"] ** 2), {"a": jnp.zeros(())},
    )  # fmt: skip
    assert repr(data) == "DataTarget(1 parameters: a (), 7 rows)"
    assert "any covariance" in curvi.FullRank()._repr_html_()


@pytest.mark.float64_only
@pytest.mark.parametrize("kind", ["fit", "forest", "pair", "convergence"])
def test_every_kind_of_figure_has_labelled_axes(result, kind):
    figure = result.plot(NAMES, kind=kind)
    figure.savefig(io.BytesIO(), format="png", dpi=20)
    texts = [axis.get_xlabel() for axis in figure.axes] + [a.get_ylabel() for a in figure.axes]
    assert any(texts)


@pytest.mark.float64_only
def test_a_forest_shows_those_that_are_named_and_marks_their_direction(result):
    (axis,) = result.plot(NAMES, kind="forest", which=["$c$", "a"]).axes
    assert [text.get_text() for text in axis.get_yticklabels()] == [r"\$c\$", "a"]
    dots = [line for line in axis.lines if line.get_marker() == "o"]
    assert [dot.get_markerfacecolor() for dot in dots] == ["white", "#0072B2"]
    with pytest.raises(InputError, match="which"):
        result.plot(NAMES, kind="forest", which=["nothing"])
    with pytest.raises(InputError, match="kind"):
        result.plot(kind="circle")


class Terminal(io.StringIO):
    """A terminal that keeps what is written."""

    def isatty(self):
        return True


@pytest.mark.float64_only
def test_a_bar_names_the_phase_the_bound_and_the_time_left(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    rows = {"value": np.array([3.0, 2.5])}
    with hooks_for(True, "ELBO", sign=-1.0) as (hook,):
        (task,) = hook.bar.tasks
        assert task.description == "compiling"
        hook(Progress(2, 10, 4.0, [rows], lambda run: None, ended=False))
        assert task.description == "fitting"
        assert task.fields == {"value": "step 2 ELBO -2.5", "left": "at most 0:00:16 left"}
        hook(Progress(4, 10, 8.0, [rows], lambda run: None, ended=True))
        assert task.description == "checking"
        assert not task.fields["left"]
        with Phase("replicates"):
            assert task.description == "replicates"
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with hooks_for(True, "ELBO") as hooks:
        assert hooks == ()
