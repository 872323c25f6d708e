"""Hostile posteriors whose means and sds are known, by kind: where does a fit go wrong in silence?

``python -m tests.adversarial.posteriors`` fits them all with nothing chosen and prints how many
answers are right, how many are wrong and not flagged (silent), and how many are right and flagged
(false alarms). An answer is right where every judged mean is within ``MEAN`` true sds and every sd
within the factors ``SDS`` of the truth: three times the Monte-Carlo error that a fit promises, and
what changes an interval by no more than a reader would round. It is flagged where the fit raises or
warns, and where ``result.warnings`` holds a sentence.

Truth is a closed form, or quadrature in one dimension: a density that is a product, a rotation of
one, or a mixture has its moments from those of its parts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import curvi

MEAN, SDS = 0.15, (0.85, 1.2)
ANYWHERE = 5  # dimensions up to which a narrow mode is found in any direction


@dataclass(frozen=True, eq=False)
class Posterior:
    """A log density, where a fit starts, and its true moments; NaN where one is not judged."""

    kind: str
    name: str
    density: Callable[[Any], Any]
    start: np.ndarray
    mean: np.ndarray
    sd: np.ndarray
    dtype: Any = np.float64
    seed: int = 0


def moments(log_p: Callable[[Any], Any], low: float, high: float) -> tuple[float, float]:
    """Mean and sd of a density of one number, by the trapezoidal rule on many points."""
    ticks = np.linspace(low, high, 400_001)
    logs = np.asarray(jax.vmap(log_p)(jnp.asarray(ticks)), np.float64)
    mass = np.exp(logs - logs[np.isfinite(logs)].max())
    mean = np.sum(mass * ticks) / np.sum(mass)
    return float(mean), float(np.sqrt(np.sum(mass * (ticks - mean) ** 2) / np.sum(mass)))


def product(
    kind: str, name: str, log_p: Callable[[Any], Any], size: int, span: tuple[float, float],
    start: float = 0.0, **more: Any,
) -> Posterior:  # fmt: skip
    """Independent coordinates with one density."""
    mean, sd = moments(log_p, *span)
    return Posterior(
        kind, f"{name}, D = {size}", lambda x: jnp.sum(jax.vmap(log_p)(x)),
        np.full(size, start), np.full(size, mean), np.full(size, sd), **more,
    )  # fmt: skip


def normals(means: np.ndarray, sds: Any, weights: Any) -> Callable[[Any], Any]:
    """The log density of a mixture of spherical normals."""
    sds, logs = jnp.asarray(sds), jnp.log(jnp.asarray(weights))

    def log_p(x: Any) -> Any:
        far = jnp.sum((x[None] - jnp.asarray(means, x.dtype)) ** 2, axis=1)
        parts = logs - 0.5 * far / sds**2 - x.shape[0] * jnp.log(sds)
        return jax.nn.logsumexp(parts)

    return log_p


def mixture(
    kind: str, name: str, means: Any, sds: Any, weights: Any, start: Any = None, **more: Any
) -> Posterior:
    """Normals with the moments that their parts give them; a fit starts at the first one."""
    means, sds, weights = (np.asarray(part, np.float64) for part in (means, sds, weights))
    weights = weights / weights.sum()
    mean = weights @ means
    var = weights @ ((means - mean) ** 2 + sds[:, None] ** 2)
    first = means[0] if start is None else np.full(means.shape[1], float(start))
    return Posterior(
        kind, f"{name}, D = {means.shape[1]}", normals(means, sds, weights),
        first, mean, np.sqrt(var), **more,
    )  # fmt: skip


def ways(size: int) -> dict[str, np.ndarray]:
    """Unit vectors: one coordinate, all together, all by turns, a pair, and nowhere special."""
    one, every = np.zeros(size), np.full(size, size**-0.5)
    one[-1] = 1.0
    if size == 1:
        return {"one": one}
    found = {"one": one, "all": every}
    if size <= ANYWHERE:
        pair, rng = np.eye(size)[:2].sum(axis=0), np.random.default_rng(size)
        found |= {"turns": every * (-1) ** np.arange(size), "pair": pair / 2**0.5}
        found |= {f"any {i}": _unit(rng.normal(size=size)) for i in range(2)}
    return found


def _unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def modes() -> Iterator[Posterior]:
    """Two and three modes, near and far, narrow and wide, light and heavy."""
    for size, weight in itertools.product((1, 2, 3, 5, 10), (0.3, 0.5, 0.9)):
        for way, unit in ways(size).items():
            means = np.stack([0 * unit, 6.0 * unit])
            yield mixture(
                "modes", f"narrow, {way}, {weight}", means, [1, 0.3], [1 - weight, weight]
            )
    for size, far in itertools.product((1, 2, 5), (4.0, 8.0, 30.0)):
        unit = np.full(size, size**-0.5)
        means = np.stack([0 * unit, far * unit])
        yield mixture("modes", f"equal, {far} apart", means, [1, 1], [0.5, 0.5])
        yield mixture("modes", f"wide, {far} apart", means, [0.5, 1.5], [0.4, 0.6], start=0.1)
    for size, far in itertools.product((1, 2, 5), (5.0, 9.0)):
        unit = list(ways(size).values())[-1]
        means = np.stack([-far * unit, 0 * unit, far * unit])
        yield mixture("modes", f"three, {far} apart", means, [0.5] * 3, [0.3, 0.4, 0.3], start=0.0)


def ripples() -> Iterator[Posterior]:
    """A normal with waves on it, in every coordinate."""
    for size, (height, waves) in itertools.product(
        (1, 2, 5, 10), ((0.5, 3.0), (2.0, 3.0), (5.0, 2.0), (3.0, 8.0))
    ):
        yield product(
            "ripples", f"{height} high, {waves} waves",
            lambda x, h=height, w=waves: -0.5 * x**2 / 4 + h * jnp.cos(w * x),
            size, (-40, 40), 0.3,
        )  # fmt: skip


def student(x: Any, df: float) -> Any:
    """The log density of Student's t, up to a constant."""
    return -0.5 * (df + 1) * jnp.log1p(x**2 / df)


def tails() -> Iterator[Posterior]:
    """Student's t in every coordinate, in one of many, and in all together; exponential tails."""
    for size, df in itertools.product((1, 4, 20), (2.5, 4.0, 8.0)):
        sd = np.full(size, (df / (df - 2)) ** 0.5)
        yield Posterior(
            "tails", f"t {df}, D = {size}", lambda x, df=df: jnp.sum(student(x, df)),
            np.ones(size), np.zeros(size), sd,
        )  # fmt: skip
    for size, df, place in itertools.product((30, 100, 300), (2.5, 3.0, 5.0), (0, -1)):
        sd = np.ones(size)
        sd[place] = (df / (df - 2)) ** 0.5

        def log_p(x: Any, df: float = df, place: int = place) -> Any:
            return student(x[place], df) + 0.5 * x[place] ** 2 - 0.5 * jnp.sum(x**2)

        yield Posterior(
            "tails", f"t {df} at {place}, D = {size}", log_p, np.zeros(size), np.zeros(size), sd
        )
    for size in (1, 5, 30):
        log_p = lambda x: -jnp.sqrt(1e-4 + x**2)  # noqa: E731
        yield product("tails", "double exponential", log_p, size, (-60, 60), 1.0)


def funnels() -> Iterator[Posterior]:
    """Normals whose log sd is normal itself, centred; the wide ones are judged at their neck."""
    for size, spread in itertools.product((2, 5, 10, 30), (0.5, 1.0, 1.5, 3.0)):

        def log_p(x: Any, spread: float = spread) -> Any:
            rest = x[1:] * jnp.exp(-0.5 * x[0])
            free = x.shape[0] - 1
            return -0.5 * (x[0] / spread) ** 2 - 0.5 * jnp.sum(rest**2) - 0.5 * free * x[0]

        sd = np.full(size, np.exp(spread**2 / 4) if spread <= 1.5 else np.nan)
        sd[0] = spread
        yield Posterior(
            "funnels", f"spread {spread}, D = {size}", log_p, np.zeros(size), np.zeros(size), sd
        )


def bananas() -> Iterator[Posterior]:
    """A second coordinate around the square of the first."""
    for size, bend, width in itertools.product((2, 10), (0.1, 0.5, 2.0), (0.1, 1.0)):

        def log_p(x: Any, bend: float = bend, width: float = width) -> Any:
            bent = (x[1] - bend * x[0] ** 2) / width
            return -0.5 * jnp.sum(x**2) + 0.5 * x[1] ** 2 - 0.5 * bent**2

        mean, sd = np.zeros(size), np.ones(size)
        mean[1], sd[1] = bend, (width**2 + 2 * bend**2) ** 0.5
        yield Posterior(
            "bananas", f"bend {bend}, width {width}, D = {size}", log_p, np.zeros(size), mean, sd
        )


def rings() -> Iterator[Posterior]:
    """A sphere with a thickness."""
    for size, (radius, width) in itertools.product(
        (2, 3, 6), ((2.0, 0.3), (3.0, 1.0), (5.0, 0.5), (10.0, 0.5))
    ):
        ticks = np.linspace(1e-6, radius + 20 * width, 200_001)
        mass = ticks ** (size - 1) * np.exp(-0.5 * ((ticks - radius) / width) ** 2)
        sd = np.sqrt(np.sum(mass * ticks**2) / np.sum(mass) / size)
        start = np.zeros(size)
        start[0] = radius

        def log_p(x: Any, radius: float = radius, width: float = width) -> Any:
            return -0.5 * ((jnp.sqrt(jnp.sum(x**2) + 1e-20) - radius) / width) ** 2

        yield Posterior(
            "rings", f"radius {radius}, width {width}, D = {size}",
            log_p, start, np.zeros(size), np.full(size, sd),
        )  # fmt: skip


def edges() -> Iterator[Posterior]:
    """Densities that end: at a wall, or in a corner."""
    walls = {
        "exponential": (lambda x: jnp.where(x > 0, -x, -jnp.inf), (1e-9, 60.0), 1.0),
        "half normal": (lambda x: jnp.where(x > 0, -0.5 * x**2, -jnp.inf), (1e-9, 15.0), 1.0),
        "uniform": (lambda x: jnp.where(jnp.abs(x) < 1, 0.0, -jnp.inf), (-1.0, 1.0), 0.2),
        "beta": (
            lambda x: jnp.where(
                (x > 0) & (x < 1),
                jnp.log(jnp.clip(x, 1e-30)) + 3 * jnp.log1p(-jnp.clip(x, 0, 1 - 1e-9)),
                -jnp.inf,
            ),
            (1e-9, 1 - 1e-9),
            0.4,
        ),
    }
    for (name, (log_p, span, start)), size in itertools.product(walls.items(), (1, 3, 10)):
        yield product("edges", name, log_p, size, span, start)


def scales() -> Iterator[Posterior]:
    """Units from 1e-8 to 1e8, alone, together, and far from the start."""
    for unit, size in itertools.product((1e-8, 1e-4, 1e4, 1e8), (1, 5)):
        log_p = lambda x, s=unit: -jnp.log(jnp.cosh((x - 3 * s) / s))  # noqa: E731
        start = 3 * unit if unit < 1 else 0.0
        yield product("scales", f"unit {unit}", log_p, size, (-30 * unit, 36 * unit), start)
    for size in (5, 17):
        sds = np.logspace(-6, 6, size)
        yield Posterior(
            "scales", f"1e-6 to 1e6, D = {size}", lambda x, s=sds: -0.5 * jnp.sum((x / s - 1) ** 2),
            np.zeros(size), sds, sds,
        )  # fmt: skip


def singles() -> Iterator[Posterior]:
    """Single precision far from zero."""
    for mean, sd, size in itertools.product((1e3, 1e5, 1e6, 1e7), (0.1, 1.0, 10.0), (1, 5)):
        for kind in ("normal", "skewed"):

            def log_p(x: Any, mean: float = mean, sd: float = sd, kind: str = kind) -> Any:
                u = (x - mean) / sd
                return jnp.sum(-0.5 * u**2 if kind == "normal" else u - jnp.exp(u))

            shift, ratio = (0.0, 1.0) if kind == "normal" else (-0.5772, np.pi / 6**0.5)
            if kind == "skewed" and (size == 5 or sd == 10.0):
                continue
            yield Posterior(
                "single", f"{kind}, mean {mean:g}, sd {sd}, D = {size}", log_p,
                np.full(size, mean + 3 * sd), np.full(size, mean + shift * sd),
                np.full(size, ratio * sd), np.float32,
            )  # fmt: skip


def spikes() -> Iterator[Posterior]:
    """A narrow normal on a wide one."""
    for size, width, weight in itertools.product((1, 2, 5), (0.01, 0.1), (0.2, 0.5, 0.8)):
        log_p = normals(np.zeros((2, 1)), [width, 1.0], [weight, 1 - weight])
        sd = (weight * width**2 + 1 - weight) ** 0.5
        yield Posterior(
            "spikes", f"width {width}, weight {weight}, D = {size}",
            lambda x, f=log_p: jnp.sum(jax.vmap(lambda one: f(one[None]))(x)),
            np.full(size, 0.5), np.zeros(size), np.full(size, sd),
        )  # fmt: skip


def many() -> Iterator[Posterior]:
    """Correlated coordinates, up to hundreds, normal and skewed."""
    for size, rho in itertools.product((50, 100, 300), (0.5, 0.99)):
        across = np.arange(size)
        factor = np.linalg.cholesky(rho ** np.abs(across[:, None] - across))
        inverse = np.linalg.inv(factor)
        skewed = size == 50

        def log_p(x: Any, inverse: np.ndarray = inverse, skewed: bool = skewed) -> Any:
            noise = jnp.asarray(inverse) @ x
            return jnp.sum(noise - jnp.exp(noise) if skewed else -0.5 * noise**2)

        shift, spread = (-0.5772, np.pi / 6**0.5) if skewed else (0.0, 1.0)
        mean = factor @ np.full(size, shift)
        sd = spread * np.sqrt(np.sum(factor**2, axis=1))
        yield Posterior("many", f"rho {rho}, D = {size}", log_p, np.ones(size), mean, sd)


KINDS = (
    modes, ripples, tails, funnels, bananas, rings, edges, scales, singles, spikes, many,
)  # fmt: skip


def posteriors() -> list[Posterior]:
    """All of them."""
    return [one for kind in KINDS for one in kind()]


@dataclass(frozen=True)
class Judgement:
    """What became of a fit."""

    kind: str
    name: str
    off: float
    low: float
    high: float
    flagged: str
    seconds: float

    @property
    def right(self) -> bool:
        """Whether the answer is the truth."""
        return self.off < MEAN and SDS[0] < self.low and self.high < SDS[1]

    @property
    def verdict(self) -> str:
        """Right, right but flagged, wrong and flagged, or silent."""
        if self.right:
            return "false alarm" if self.flagged else "right"
        return "flagged" if self.flagged else "silent"


def judged(one: Posterior, seed: int = 0) -> Judgement:
    """Fit with nothing chosen and compare."""
    began, said = time.process_time(), []
    off = low = high = float("nan")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = curvi.fit(
                one.density, jnp.asarray(one.start, one.dtype), progress=False, seed=one.seed + seed
            )
        except curvi.NumericalError as error:
            said.append(str(error))
        else:
            said += result.warnings
            mean, sd = (np.asarray(part, np.float64) for part in (result.mean, result.sd))
            known = np.isfinite(one.sd)
            off = float(np.max(np.abs(mean - one.mean)[known] / one.sd[known]))
            ratio = sd[known] / one.sd[known]
            low, high = float(ratio.min()), float(ratio.max())
    said += [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
    seconds = time.process_time() - began
    return Judgement(one.kind, one.name, off, low, high, said[0] if said else "", seconds)


def main() -> None:
    """Print a line per posterior, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", default="", help="only kinds and names that contain this")
    parser.add_argument("--every", type=int, default=1, help="only every n-th")
    parser.add_argument("--first", type=int, default=0, help="from this one on")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    chosen = [p for p in posteriors() if given.kind in f"{p.kind}: {p.name}"]
    counts: Counter[str] = Counter()
    for one in chosen[given.first :: given.every]:
        found = judged(one, given.seed)
        counts[found.verdict] += 1
        line = {"verdict": found.verdict, **vars(found), "flagged": found.flagged[:150]}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
        jax.clear_caches()
    sys.stdout.write(json.dumps(dict(counts)) + "\n")


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main()
