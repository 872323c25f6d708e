"""bambi models as targets, where bambi can be imported."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import curvi

pytestmark = pytest.mark.float64_only


def bambi_or_skip():
    """The library, or a skip: its plots do not import with every version of matplotlib."""
    try:
        import bambi
    except (ImportError, AttributeError) as error:
        pytest.skip(f"bambi cannot be imported: {error}")
    return bambi


def test_anything_but_a_bambi_model_is_refused():
    bambi_or_skip()
    with pytest.raises(curvi.InputError, match=r"bambi\.Model"):
        curvi.from_bambi("y ~ x")


@pytest.mark.filterwarnings("ignore")  # bambi's own, about pandas
def test_a_bambi_model_is_fitted_like_the_mixed_model_of_the_same_formula():
    bambi = bambi_or_skip()
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(10), 8)
    x = rng.standard_normal(80)
    y = 1 + 2 * x + 0.7 * rng.standard_normal(10)[group] + 0.5 * rng.standard_normal(80)
    table = pd.DataFrame({"y": y, "x": x, "g": group.astype(str)})
    target = curvi.from_bambi(bambi.Model("y ~ x + (1 | g)", table))
    result = curvi.fit(target, family=curvi.FullRank(), progress=False)
    model = curvi.MixedModel("y ~ x + (1 | g)").fit(table)
    assert abs(float(np.ravel(result.mean["x"])[0]) - model.coef_[1]) < 0.2 * model.coef_sd_[1]
