"""What needs a library that is missing says so, and how to install it."""

from __future__ import annotations

import sys

import jax.numpy as jnp
import pytest

import curvi
from curvi._core.errors import MissingDependencyError

pytestmark = pytest.mark.float64_only

NEEDS = {
    "numpyro": lambda _: curvi.from_numpyro(lambda: None),
    "pymc": lambda _: curvi.from_pymc(None),
    "arviz": lambda result: result.to_arviz(),
}


@pytest.fixture(scope="module")
def result():
    return curvi.fit(lambda x: -0.5 * jnp.sum(x**2), jnp.ones(3))


@pytest.mark.parametrize("library", NEEDS)
def test_a_missing_library_is_named_with_its_extra(monkeypatch, library, result):
    for name in [m for m in sys.modules if m == library or m.startswith(f"{library}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingDependencyError, match=rf'needs {library}.*curvi\[{library}\]"'):
        NEEDS[library](result)


def test_the_drop_in_for_svi_needs_numpyro(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpyro", None)
    with pytest.raises(MissingDependencyError, match=r"curvi.SVI needs numpyro"):
        curvi.SVI(lambda: None, None)


def test_what_blackjax_needs_does_not_need_blackjax(monkeypatch, result):
    monkeypatch.setitem(sys.modules, "blackjax", None)
    assert result.to_blackjax(2).positions.shape == (2, 3)
