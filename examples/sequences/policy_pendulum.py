"""Swinging a pendulum up with a small network, through known and noisy dynamics.

The expected cost of a policy is differentiated through the dynamics, and minimised by Hessian-free
steps or by Adam on the same draws of noise and starting angles.
"""

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import curvi

HORIZON, STEP, TORQUE, NOISE, HIDDEN, DRAWS = 60, 0.1, 4.0, 0.05, 16, 32


def initial(seed):
    rng = np.random.default_rng(seed)
    first = rng.normal(size=(3, HIDDEN)) / 3**0.5
    return {
        "w": jnp.asarray(first, jnp.float32),
        "b": jnp.zeros(HIDDEN, jnp.float32),
        "v": jnp.asarray(0.1 * rng.normal(size=HIDDEN), jnp.float32),
    }


def torque(policy, angle, speed):
    seen = jnp.stack([jnp.cos(angle), jnp.sin(angle), 0.3 * speed])
    return TORQUE * jnp.tanh(jnp.tanh(seen @ policy["w"] + policy["b"]) @ policy["v"])


def expected_cost(policy, batch, key):
    """Mean cost per step; the angle is zero when the pendulum stands upright."""
    del batch
    noise = NOISE * jax.random.normal(key, (DRAWS, HORIZON + 2), jnp.float32)

    def one(e):
        def step(state, push):
            angle, speed = state
            u = torque(policy, angle, speed)
            speed = speed + STEP * (9.81 * jnp.sin(angle) - 0.1 * speed + u) + push
            angle = angle + STEP * speed
            cost = 1 - jnp.cos(angle) + 0.01 * speed**2 + 0.001 * u**2
            return (angle, speed), cost

        start = (jnp.pi + 5 * e[-1], 5 * e[-2])
        return jnp.mean(jax.lax.scan(step, start, e[:-2])[1])

    return jnp.mean(jax.vmap(one)(noise))


# A method, and whether it sees one set of draws throughout or fresh ones at every step.
METHODS = {
    "trust region": (curvi.TrustRegion, True),
    "Hessian-free": (lambda: curvi.HessianFree(curvature="hessian", cg_steps=20), False),
    "Adam(0.01)": (lambda: curvi.FirstOrder(optax.adam(0.01)), False),
}


def learn(name, seed, *, seconds, max_steps=100_000):
    """A run, and its cost on noise that it has not seen."""
    make, fixed = METHODS[name]
    result = curvi.minimise(
        expected_cost,
        initial(seed),
        method=make(),
        seed=seed,
        time_budget=seconds,
        fixed_key=fixed,
        max_steps=max_steps,
        on_failure="return",
        progress=False,
    )
    fresh = jax.jit(expected_cost)(result.params, None, jax.random.key(10_000 + seed))
    return result, float(fresh)


if __name__ == "__main__":
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0  # 30 for the figure of the manual
    for name in METHODS:
        for seed in range(3 if len(sys.argv) > 1 else 1):
            began = time.process_time()
            result, cost = learn(name, seed, seconds=seconds)
            used = time.process_time() - began
            print(f"{name:13} seed {seed}: {cost:.3f} per step after {used:.1f} processor seconds")
