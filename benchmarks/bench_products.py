"""What one Hessian-vector product costs, in gradients; how it grows; Theorem 1 products.

Growth is measured in seconds over all sizes, which is what the target is about, and twice more to
tell the algorithm from the machine: over the sizes whose data do not fit in 32 MB of cache, and in
the floating-point operations that XLA counts.
"""

from __future__ import annotations

import itertools
import statistics

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.clocks import pin_to_one_core
from benchmarks.common import interleaved, log_log_slope, median_ratio, verdict
from curvi import linalg
from curvi.paper import reference

TARGET_JVP, TARGET_LINEAR, TARGET_SLOPE, TARGET_THEOREM = 3.0, 2.0, 1.15, 2.0
CACHE_BYTES = 32e6
PRODUCTS = 10  # products after one linearisation, as conjugate gradients make them
MLP = {1e3: (16, 32, 14), 1e4: (64, 96, 40), 1e5: (200, 300, 130), 1e6: (784, 750, 550)}
LOGISTIC = {1e3: 1_000, 1e4: 10_000, 1e5: 100_000, 1e6: 1_000_000}


def mlp(sizes: tuple[int, ...], batch: int):
    """A tanh network with a least-squares loss, and its parameters."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(batch, sizes[0])), jnp.float32)
    y = jnp.asarray(rng.normal(size=(batch, sizes[-1])), jnp.float32)
    shapes = list(itertools.pairwise(sizes))
    params = [
        (jnp.asarray(rng.normal(size=s) / s[0] ** 0.5, jnp.float32), jnp.zeros(s[1], jnp.float32))
        for s in shapes
    ]

    def loss(p, data):
        hidden, labels = data
        for weights, bias in p[:-1]:
            hidden = jnp.tanh(hidden @ weights + bias)
        return 0.5 * jnp.mean(jnp.sum((hidden @ p[-1][0] + p[-1][1] - labels) ** 2, axis=1))

    return loss, params, (x, y)


def logistic(dimension: int, batch: int):
    """The logistic log-likelihood with a Gaussian prior."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.random((batch, dimension), np.float32) - np.float32(0.5))
    y = jnp.asarray(rng.choice([-1.0, 1.0], batch), jnp.float32)

    def loss(w, data):
        rows, labels = data
        return jnp.sum(jax.nn.softplus(-labels * (rows @ w))) + 0.5 * jnp.sum(w**2)

    return loss, jnp.asarray(0.01 * rng.normal(size=dimension), jnp.float32), (x, y)


def make_calls(loss, params, data):
    """Gradient, product by jvp of grad, and PRODUCTS products after one linearisation."""
    direction = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 0.1, leaf.dtype), params)

    @jax.jit
    def gradient(p, data):
        return jax.grad(loss)(p, data)

    @jax.jit
    def jvp_of_grad(p, v, data):
        return jax.jvp(lambda q: jax.grad(loss)(q, data), (p,), (v,))[1]

    def repeated(p, v, data, count):
        value, slope, operator = linalg.hessian(lambda q: loss(q, data), p)
        # Each product feeds the next one, so that none can be hoisted or shared.
        body = lambda _, u: jax.tree.map(lambda a, b: 0.9 * a + 1e-3 * b, u, operator(u))  # noqa: E731
        return value, slope, jax.lax.fori_loop(0, count, body, v)

    linearised = jax.jit(repeated, static_argnums=3)
    return {
        "gradient": lambda: gradient(params, data),
        "jvp": lambda: jvp_of_grad(params, direction, data),
        "linear_1": lambda: linearised(params, direction, data, 1),
        "linear_many": lambda: linearised(params, direction, data, 1 + PRODUCTS),
    }


def flops(function, *arguments) -> float:
    """Floating-point operations of the compiled function, as XLA counts them."""
    return float(jax.jit(function).lower(*arguments).compile().cost_analysis()["flops"])


def measure(problem, rounds: int) -> dict:
    loss, params, data = problem
    seconds = interleaved(make_calls(loss, params, data), rounds)
    per_product = [
        (many - one) / PRODUCTS
        for one, many in zip(seconds["linear_1"], seconds["linear_many"], strict=True)
    ]
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    return {
        "parameters": size,
        "batch": data[0].shape[0],
        "bytes": 4 * (size + sum(leaf.size for leaf in data)),
        "product_flops": flops(
            lambda p, v, d: jax.jvp(lambda q: jax.grad(loss)(q, d), (p,), (v,))[1],
            params,
            params,
            data,
        ),
        "gradient_ms": 1e3 * statistics.median(seconds["gradient"]),
        "jvp_ms": 1e3 * statistics.median(seconds["jvp"]),
        "linearised_ms": 1e3 * statistics.median(per_product),
        "jvp_in_gradients": median_ratio(seconds["jvp"], seconds["gradient"]),
        "linearised_in_gradients": median_ratio(per_product, seconds["gradient"]),
    }


def theorem_product(rounds: int) -> list[dict]:
    """Seconds of the Theorem 1 product for f = z'Az/2 with a dense A and one draw."""
    calls, rows = {}, []

    def product(A, mean, scale, draws, direction):
        f = lambda z: 0.5 * z @ (A @ z)  # noqa: E731
        return reference.hessian_vector_product(f, mean, scale, draws, direction)

    compiled = jax.jit(product)
    for d in (512, 1024, 3072, 4096, 6144, 8192):
        rng = np.random.default_rng(1)
        A, scale = (jnp.asarray(rng.random((d, d), np.float32)) for _ in range(2))
        draws = jnp.asarray(rng.standard_normal((1, d), np.float32))
        direction = jnp.asarray(rng.random((d, d + 1), np.float32))
        arguments = (A, jnp.zeros(d, jnp.float32), scale, draws, direction)
        calls[str(d)] = lambda a=arguments: compiled(*a)
        rows.append({"d": d, "bytes": 16 * d * d, "product_flops": flops(product, *arguments)})
    seconds = interleaved(calls, rounds)
    return [{**row, "product_ms": 1e3 * statistics.median(seconds[str(row["d"])])} for row in rows]


def growth(rows: list[dict], size: str, times: tuple[str, ...]) -> dict[str, float]:
    """Exponents in the size: of the time, of the time out of cache, of the operations."""
    large = [row for row in rows if row["bytes"] > CACHE_BYTES]
    slopes = {"flops": log_log_slope([r[size] for r in rows], [r["product_flops"] for r in rows])}
    for name in times:
        for suffix, chosen in (("", rows), ("_out_of_cache", large)):
            if len(chosen) < 2:
                continue
            slopes[name.removesuffix("_ms") + suffix] = log_log_slope(
                [r[size] for r in chosen], [r[name] for r in chosen]
            )
    return slopes


def show(rows: list[dict]) -> None:
    print("  problem   use     parameters  batch  gradient ms  jvp of grad  linearised (gradients)")
    for row in rows:
        print(
            f"  {row['problem']:9s} {row['use']:7s} {row['parameters']:10d} {row['batch']:6d} "
            f"{row['gradient_ms']:12.2f} {row['jvp_in_gradients']:12.2f} "
            f"{row['linearised_in_gradients']:11.2f}"
        )


def main() -> dict:
    pin_to_one_core()
    rows, slopes = [], {}
    for kind, make, cases, batches, fixed in (
        ("mlp", mlp, MLP, (32_768, 8_192, 2_048, 512), 2_048),
        ("logistic", logistic, LOGISTIC, (16_384, 1_024, 256, 64), 512),
    ):
        for shape, batch in zip(cases.values(), batches, strict=True):
            rows.append({"problem": kind, "use": "cost", **measure(make(shape, batch), 9)})
        grown = [
            {"problem": kind, "use": "growth", **measure(make(shape, fixed), 7)}
            for shape in cases.values()
        ]
        slopes[kind] = growth(grown, "parameters", ("jvp_ms", "linearised_ms", "gradient_ms"))
        rows += grown
    show(rows)
    theorem = theorem_product(9)
    slopes["theorem"] = growth(theorem, "d", ("product_ms",))
    print("  Theorem 1:", ", ".join(f"d={r['d']}: {r['product_ms']:.2f} ms" for r in theorem))
    for kind, entries in slopes.items():
        print(f"  exponents, {kind}:", ", ".join(f"{k} {v:.2f}" for k, v in entries.items()))
    cost = [row for row in rows if row["use"] == "cost"]
    kinds = ("mlp", "logistic")
    worst = {
        "jvp_in_gradients": max(r["jvp_in_gradients"] for r in cost),
        "linearised_in_gradients": max(r["linearised_in_gradients"] for r in cost),
        "slope": max(slopes[k][name] for k in kinds for name in ("jvp", "linearised")),
        "slope_out_of_cache": max(
            slopes["logistic"][f"{name}_out_of_cache"] for name in ("jvp", "linearised")
        ),
        "slope_flops": max(slopes[k]["flops"] for k in kinds),
        "theorem_slope": slopes["theorem"]["product"],
        "theorem_slope_out_of_cache": slopes["theorem"]["product_out_of_cache"],
        "theorem_slope_flops": slopes["theorem"]["flops"],
    }
    limits = (TARGET_JVP, TARGET_LINEAR, *(TARGET_SLOPE,) * 3, *(TARGET_THEOREM,) * 3)
    targets = dict(zip(worst, limits, strict=True))
    met = {name: worst[name] <= targets[name] for name in worst}
    for name, value in worst.items():
        print(f"  worst {name}: {value:.2f}, target <= {targets[name]}: {verdict(met[name])}")
    return {
        "rows": rows,
        "slopes": slopes,
        "theorem": theorem,
        "worst": worst,
        "targets": targets,
        "met": met,
    }
