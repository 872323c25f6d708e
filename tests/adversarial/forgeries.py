"""Saved files with forged content and a right digest: refused by name, or as good as before.

    python -m tests.adversarial.forgeries 10000 0

saves an object of every kind, changes stored values (drops, retypes, negates, resizes, swaps, puts
in what is not finite), loads the files, and uses what loads: summary, page, moments, draws,
predictions. It prints the counts, and every forgery that loaded and then failed, or whose
refusal names neither the file nor the place.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import random
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd

import curvi
from curvi.io._format import Content, read_file, write_file

RNG = np.random.default_rng(0)
X = RNG.uniform(size=(40, 4))
TABLE = pd.DataFrame(
    {
        "y": X @ [6.0, -3.0, 0.0, 1.5] + RNG.normal(size=40),
        "x": X[:, 1],
        "k": RNG.poisson(2.0, 40),
        "g": list("abcde") * 8,
        "h": list("uv") * 20,
    }
)
COUNTS = TABLE["k"].to_numpy()
LABELS = np.where(X[:, 0] > 0.5, "yes", "no")
SEQUENCES = [(X[i : i + 6, :3] < 0.5).astype(np.float32) for i in range(12)]


def _sgd() -> Any:
    return curvi.FirstOrder(optax.sgd(0.05))


def _quadratic(z: Any) -> Any:
    return -0.5 * jnp.sum((z["a"] - 1) ** 2) - 0.5 * z["b"] ** 2


def _funnel(z: Any) -> Any:
    return -0.5 * jnp.sum((z[1:] * jnp.exp(-z[0])) ** 2) - 2 * z[0] - 0.5 * z[0] ** 2


def _fit(log_density: Any, position: Any, family: Any = "auto") -> Any:
    with jax.numpy_dtype_promotion("standard"):
        return curvi.fit(log_density, position, family=family, progress=False, on_failure="return")


def _flat(family: Any) -> Any:
    return _fit(lambda z: -0.5 * jnp.sum((z - 1) ** 2) - z[0] * z[1] / 2, jnp.zeros(5), family)


NETWORK = {"latent": 2, "hidden": (4,), "max_epochs": 1, "random_state": 0}
QUICK: dict[str, Callable[[], Any]] = {
    "result": lambda: _fit(_quadratic, {"a": jnp.zeros(2), "b": jnp.zeros(())}),
    "minimum": lambda: curvi.minimise(
        lambda p, _, __: jnp.sum((p - 3) ** 2), jnp.zeros(2), fixed_key=True, progress=False
    ),
    "logistic": lambda: curvi.BayesianLogisticRegression(prior="ard").fit(X, LABELS),
    "linear": lambda: curvi.BayesianLinearRegression(covariance="full").fit(X, TABLE["y"]),
    "mixed": lambda: curvi.MixedModel("y ~ x + h + (1 + x | g)").fit(TABLE),
    "series": lambda: curvi.StateSpace().fit(TABLE["y"].to_numpy(), X[:, :2]),
    "encoder": lambda: curvi.VAE(**NETWORK, method=_sgd()).fit(X),
}
THOROUGH: dict[str, Callable[[], Any]] = {
    "funnel": lambda: _fit(_funnel, jnp.zeros(3)),
    "mean field": lambda: _flat(curvi.MeanField()),
    "low rank": lambda: _flat(curvi.LowRank(2)),
    "Student": lambda: _flat(curvi.StudentT(5.0)),
    "sparse": lambda: _flat(curvi.SparsePrecision()),
    "softmax": lambda: curvi.BayesianLogisticRegression().fit(X, TABLE["g"]),
    "low-rank regression": lambda: curvi.BayesianLogisticRegression(
        covariance="low-rank", rank=2
    ).fit(X, LABELS),
    "poisson": lambda: curvi.BayesianPoissonRegression().fit(X, COUNTS),
    "counts": lambda: curvi.MixedModel(
        "k ~ bs(x, df=4) + (1 | g) + (1 | h)", likelihood="poisson"
    ).fit(TABLE),
    "seasons": lambda: curvi.StateSpace(trend=True, season=4, likelihood="poisson").fit(COUNTS),
    "semi-supervised": lambda: curvi.SemiSupervisedVAE(**NETWORK, method=_sgd()).fit(X, LABELS),
    "Markov": lambda: curvi.DeepMarkovModel(latent=2, hidden=4, max_epochs=1, random_state=0).fit(
        SEQUENCES
    ),
}


def _of_result(found: Any) -> Iterator[Any]:
    yield found.summary()
    yield found.warnings, found.converged, found.khat
    yield {"sd": found.sd, "mean": found.mean}
    yield found.sample(3)


def _of_regression(found: Any) -> Iterator[Any]:
    yield found.predict(X)
    if hasattr(found, "predict_proba"):
        yield {"probability": found.predict_proba(X)}
    yield {"sd": [found.coef_sd_, found.intercept_sd_]}
    yield found.coef_, found.intercept_
    yield found.sample(2)


def _of_mixed(found: Any) -> Iterator[Any]:
    yield found.summary()
    yield found.predict(TABLE[:3], interval=0.9)
    yield {"sd": found.coef_sd_}
    yield found.group_effects_
    yield found.sample_posterior(5, seed=0)
    yield found.khat_


def _of_series(found: Any) -> Iterator[Any]:
    band = found.smooth()
    yield {"sd": band.sd, "mean": band.mean}
    regressors = X[:3, :2] if found.coef_.size else None
    yield found.forecast(3, X=regressors)
    yield found.simulate(2, 3, X=regressors)
    yield {"sd": found.coef_sd_}


def _of_encoder(found: Any) -> Iterator[Any]:
    labelled = type(found).__name__ == "SemiSupervisedVAE"
    yield found.encode(X)
    yield found.sample(2, found.classes_[:2]) if labelled else found.sample(2)
    yield {"probability": found.predict_proba(X)} if labelled else found.score(X)


def _of_markov(found: Any) -> Iterator[Any]:
    yield found.smooth(SEQUENCES[:2])
    yield found.sample(2, 3)


USES: dict[str, Callable[[Any], Iterator[Any]]] = {
    "FitResult": _of_result,
    "OptimiseResult": lambda found: iter((found.params, str(found), found.value)),
    "BayesianLogisticRegression": _of_regression,
    "BayesianPoissonRegression": _of_regression,
    "BayesianLinearRegression": _of_regression,
    "MixedModel": _of_mixed,
    "StateSpace": _of_series,
    "VAE": _of_encoder,
    "SemiSupervisedVAE": _of_encoder,
    "DeepMarkovModel": _of_markov,
}


def use(found: Any, folder: Path, *, page: bool) -> None:
    """What people do with a loaded object; raises where an answer cannot be one."""
    repr(found)
    for answer in USES[type(found).__name__](found):
        numbers = [np.asarray(leaf) for leaf in jax.tree.leaves(answer)]
        named = answer if isinstance(answer, dict) else {}
        for leaf in jax.tree.leaves(named.get("sd")):
            assert (np.asarray(leaf) >= 0).all(), "an sd is negative or not a number"
            assert np.isfinite(leaf).all(), "an sd is infinite"
        if "probability" in named:
            assert (named["probability"] >= 0).all(), "a probability is negative"
            assert np.allclose(np.sum(named["probability"], -1), 1), "probabilities sum to no one"
        if "lower" in named:
            assert (named["lower"] <= named["upper"]).all(), "the ends of an interval are swapped"
        for leaf in numbers:
            assert leaf.dtype.kind != "f" or not np.isnan(leaf).any(), "an answer is not a number"
    if page and hasattr(found, "report"):
        found.report(folder / "page.html")


class Place(NamedTuple):
    """A value inside a document: what holds it, its key there, and the names on the way."""

    holder: Any
    key: Any
    names: tuple[str, ...]


def places(value: Any, names: tuple[str, ...] = ()) -> Iterator[Place]:
    """Every value of a document; marks and class names are covered by other tests."""
    if isinstance(value, list):
        items: Any = enumerate(value)
    elif isinstance(value, dict):
        items = [(k, v) for k, v in value.items() if k not in ("#", "kind", "on", "dtype", "shape")]
    else:
        return
    for key, item in items:
        inner = (*names, key) if isinstance(key, str) and key != "v" else names
        if not (isinstance(value, dict) and value.get("#") == "array"):
            yield Place(value, key, inner)
        yield from places(item, inner)


def _mark(value: Any) -> Any:
    return value.get("#") if isinstance(value, dict) else None


OTHERS = (
    None, True, "text", "", -1, 0, 1, 2.5, -0.5, 1e308, 10**30, 2**40, [], ["a"], [1, 2], {},
    {"#": "float", "v": "nan"}, {"#": "float", "v": "inf"}, {"#": "tuple", "v": []},
)  # fmt: skip


def _array(array: np.ndarray, rng: random.Random) -> np.ndarray:  # noqa: PLR0911
    """Another array in the place of one."""
    kind = rng.randrange(9)
    if kind == 0:
        return array[:-1] if array.ndim and len(array) else array[None]
    if kind == 1:
        return np.concatenate([array, array]) if array.ndim else np.stack([array, array])
    if kind == 2:
        return array[None]
    if kind == 3:
        return array.T if array.ndim > 1 else array.reshape(-1)[:0]
    if kind == 4:
        return -array if array.dtype.kind in "fi" else ~array
    if kind == 5:
        with np.errstate(all="ignore"):
            return array.astype(rng.choice(["f8", "f4", "i8", "i4", "u1", "?"]))
    changed = np.array(array, "f8" if array.dtype.kind != "f" and kind == 6 else array.dtype)
    if changed.size:
        bad = [np.nan, np.inf, -np.inf, -1.0, 0.0, 1e30] if changed.dtype.kind == "f" else [0, 1]
        with np.errstate(all="ignore"):
            changed.reshape(-1)[rng.randrange(changed.size) if kind < 8 else slice(None)] = (
                rng.choice(bad)
            )
    return changed


def forged(content: Content, rng: random.Random) -> tuple[Content, Place, str]:
    """The content with one stored value changed, where, and how."""
    document, arrays = copy.deepcopy(content.document), dict(content.arrays)
    place = rng.choice(list(places(document["value"]["v"])))
    value = place.holder[place.key]
    if _mark(value) == "array" and rng.random() < 0.7:
        name = value["v"]
        arrays["forged"] = np.array(_array(arrays[name], rng), order="C")
        before = f"{arrays[name].dtype}{arrays[name].shape}"
        place.holder[place.key] = {**value, "v": "forged"}
        said = f"{before} -> {arrays['forged'].dtype}{arrays['forged'].shape}"
        return Content(document, _used(document, arrays)), place, said
    kind = rng.randrange(4)
    if kind == 0:
        del place.holder[place.key]
        return Content(document, _used(document, arrays)), place, "dropped"
    if kind == 1 and type(value) in (int, float):
        place.holder[place.key] = -value
    elif kind == 2:
        inside = place.holder
        mine = [place.key] if isinstance(inside, list) else []
        keys = range(len(inside)) if mine else [k for k in inside if k not in ("#", "kind")]
        other = rng.choice(list(keys))
        inside[place.key], inside[other] = inside[other], value
        place = place._replace(names=(*place.names, str(other)))
    else:
        place.holder[place.key] = copy.deepcopy(rng.choice(OTHERS))
    now = place.holder[place.key]
    return Content(document, _used(document, arrays)), place, f"{value!r:.60} -> {now!r:.60}"


def _used(document: Any, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    text = json.dumps(document)
    return {name: array for name, array in arrays.items() if f'"{name}"' in text}


class Verdict(NamedTuple):
    """What became of a forgery; ``fault`` is empty where that is as promised."""

    outcome: str
    fault: str


def stored_names(document: dict[str, Any]) -> set[str]:
    """The names that a refusal may say: those of stored values, and the class of the whole.

    Where two values disagree, nobody can tell which of them was forged.
    """
    names = {name for place in places(document["value"]["v"]) for name in place.names}
    return {document["kind"], *names}


def verdict(path: Path, names: Collection[str], *, page: bool) -> Verdict:
    """Load a file, and use what loads."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            found = curvi.load(path)
        except curvi.InputError as error:
            said = str(error)
            named = str(path) in said and (not names or any(name in said for name in names))
            return Verdict("refused", "" if named else f"says nothing of the place: {said}")
        except Exception as error:  # noqa: BLE001  any other is a fault, whatever it is
            return Verdict("failed to load", f"{type(error).__name__}: {error}")
        try:
            use(found, path.parent, page=page)
        except Exception as error:  # noqa: BLE001
            return Verdict("failed in use", f"{type(error).__name__}: {error}")
    return Verdict("worked", "")


def saved(makers: dict[str, Callable[[], Any]], folder: Path) -> dict[str, Content]:
    """What the files of these objects hold; all of them load and can be used."""
    contents = {}
    for name, make in makers.items():
        path = folder / name
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            make().save(path)
        contents[name] = read_file(path)
        assert verdict(path, (), page=True) == ("worked", ""), (name, verdict(path, (), page=True))
    return contents


def attack(
    contents: dict[str, Content], count: int, seed: int, folder: Path
) -> tuple[Counter[str], list[str]]:
    """Counts by outcome, and a line for each fault."""
    rng = random.Random(seed)  # noqa: S311  no secret
    outcomes: Counter[str] = Counter()
    faults = []
    for index in range(count):
        name = list(contents)[index % len(contents)]
        content, place, how = forged(contents[name], rng)
        path = folder / "forged.curvi"
        write_file(path, *content)
        names = {*place.names, *stored_names(contents[name].document)}
        found = verdict(path, names, page=rng.random() < 0.2)
        outcomes[found.outcome] += 1
        if found.fault:
            faults.append(f"{name} {'.'.join(place.names)}[{place.key}]: {how}: {found}")
    return outcomes, faults


def main(count: int, seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        contents = saved(QUICK | THOROUGH, Path(folder))
        outcomes, faults = attack(contents, count, seed, Path(folder))
    for line in faults:
        print(line[:400])  # noqa: T201
    print(dict(outcomes), len(faults), "faults")  # noqa: T201
    assert not faults


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
