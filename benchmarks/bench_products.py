"""What one Hessian-vector product costs, in gradients; how it grows; Theorem 1 products."""

from __future__ import annotations

import statistics

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.common import interleaved, log_log_slope, median_ratio, verdict
from curvi import curvature, expectation

TARGET_JVP, TARGET_LINEAR, TARGET_SLOPE, TARGET_THEOREM = 3.0, 2.0, 1.15, 2.0
PRODUCTS = 10  # products after one linearisation, as conjugate gradients make them
MLP = {1e3: (16, 32, 14), 1e4: (64, 96, 40), 1e5: (200, 300, 130), 1e6: (784, 750, 550)}
LOGISTIC = {1e3: 1_000, 1e4: 10_000, 1e5: 100_000, 1e6: 1_000_000}


def mlp(sizes: tuple[int, ...], batch: int):
    """A tanh network with a least-squares loss, and its parameters."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(batch, sizes[0])), jnp.float32)
    y = jnp.asarray(rng.normal(size=(batch, sizes[-1])), jnp.float32)
    shapes = list(zip(sizes[:-1], sizes[1:], strict=True))
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
    x = jnp.asarray(rng.standard_normal((batch, dimension), np.float32))
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
        value, slope, operator = curvature.hessian(lambda q: loss(q, data), p)
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


def measure(problem, rounds: int) -> dict:
    loss, params, data = problem
    seconds = interleaved(make_calls(loss, params, data), rounds)
    per_product = [
        (many - one) / PRODUCTS
        for one, many in zip(seconds["linear_1"], seconds["linear_many"], strict=True)
    ]
    return {
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
        "batch": data[0].shape[0],
        "gradient_ms": 1e3 * statistics.median(seconds["gradient"]),
        "jvp_ms": 1e3 * statistics.median(seconds["jvp"]),
        "linearised_ms": 1e3 * statistics.median(per_product),
        "jvp_in_gradients": median_ratio(seconds["jvp"], seconds["gradient"]),
        "linearised_in_gradients": median_ratio(per_product, seconds["gradient"]),
    }


def theorem_product(rounds: int) -> list[dict]:
    """Seconds of the Theorem 1 product for f = z'Az/2 with a dense A and one draw."""
    calls, sizes = {}, [512, 1024, 2048, 4096]
    for d in sizes:
        rng = np.random.default_rng(1)
        A = jnp.asarray(rng.standard_normal((d, d), np.float32) / d**0.5)
        scale = jnp.asarray(rng.standard_normal((d, d), np.float32) / d**0.5)
        draws = jnp.asarray(rng.standard_normal((1, d), np.float32))
        direction = jnp.asarray(rng.standard_normal((d, d + 1), np.float32))

        @jax.jit
        def product(A, mean, scale, draws, direction):
            f = lambda z: 0.5 * z @ (A @ z)  # noqa: E731
            return expectation.hessian_vector_product(f, mean, scale, draws, direction)

        mean = jnp.zeros(d, jnp.float32)
        arguments = (A, mean, scale, draws, direction)
        calls[str(d)] = lambda p=product, a=arguments: p(*a)
    seconds = interleaved(calls, rounds)
    return [{"d": d, "ms": 1e3 * statistics.median(seconds[str(d)])} for d in sizes]


def main() -> dict:
    rows = []
    for kind, make, cases, batches, fixed in (
        ("mlp", mlp, MLP, (32_768, 8_192, 2_048, 512), 2_048),
        ("logistic", logistic, LOGISTIC, (16_384, 1_024, 256, 32), 64),
    ):
        for (_, shape), batch in zip(cases.items(), batches, strict=True):
            rows.append({"problem": kind, "use": "cost", **measure(make(shape, batch), 9)})
        for shape in cases.values():
            rows.append({"problem": kind, "use": "growth", **measure(make(shape, fixed), 7)})
    print("  problem   use     parameters  batch  gradient ms  jvp of grad  linearised (gradients)")
    for row in rows:
        print(
            f"  {row['problem']:9s} {row['use']:7s} {row['parameters']:10d} {row['batch']:6d} "
            f"{row['gradient_ms']:12.2f} {row['jvp_in_gradients']:12.2f} "
            f"{row['linearised_in_gradients']:11.2f}"
        )
    cost = [row for row in rows if row["use"] == "cost"]
    slopes = {}
    for kind in ("mlp", "logistic"):
        grown = [row for row in rows if row["use"] == "growth" and row["problem"] == kind]
        for name in ("jvp_ms", "linearised_ms", "gradient_ms"):
            slopes[f"{kind}_{name[:-3]}"] = log_log_slope(
                [r["parameters"] for r in grown], [r[name] for r in grown]
            )
    theorem = theorem_product(9)
    slope_theorem = log_log_slope([r["d"] for r in theorem], [r["ms"] for r in theorem])
    print("  Theorem 1 product:", ", ".join(f"d={r['d']}: {r['ms']:.2f} ms" for r in theorem))
    worst = {
        "jvp_in_gradients": max(r["jvp_in_gradients"] for r in cost),
        "linearised_in_gradients": max(r["linearised_in_gradients"] for r in cost),
        "slope": max(v for k, v in slopes.items() if not k.endswith("gradient")),
        "theorem_slope": slope_theorem,
    }
    targets = dict(
        zip(worst, (TARGET_JVP, TARGET_LINEAR, TARGET_SLOPE, TARGET_THEOREM), strict=True)
    )
    met = {name: worst[name] <= targets[name] for name in worst}
    for name, value in worst.items():
        print(f"  worst {name}: {value:.2f}, target <= {targets[name]}: {verdict(met[name])}")
    return {
        "rows": rows, "slopes": slopes, "theorem": theorem, "worst": worst, "targets": targets,
        "met": met,
    }
