"""
A policy: the best feedback gain
================================

A cart is pushed about by random disturbances for a few steps and has to come to rest. The expected
cost is differentiated through the noisy dynamics. It is quadratic in the noise, and whitened draws
integrate that exactly, so the best gain must be the one of SciPy's Riccati solver.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy.linalg import solve_discrete_are

import curvi
from curvi.objective import sample_draws

A = np.asarray([[1.0, 0.3], [0.0, 0.9]])
B = np.asarray([[0.1], [0.3]])
STATE_COST, ACTION_COST = np.diag([1.0, 0.2]), np.asarray([[0.3]])
DISTURBED, HORIZON = 5, 120  # steps with noise; steps in all, until the cart is at rest
START = np.asarray([[0.5, 0.5]])


def riccati_gain():
    P = solve_discrete_are(A, B, STATE_COST, ACTION_COST)
    return np.linalg.solve(ACTION_COST + B.T @ P @ B, B.T @ P @ A)


def expected_cost(gain, noise, key):
    """The cost of u = -K x, averaged over draws of the disturbances."""
    del key

    def one(disturbances):
        quiet = jnp.zeros((HORIZON - DISTURBED, 2), disturbances.dtype)
        pushes = jnp.concatenate([disturbances.reshape(DISTURBED, 2), quiet])

        def step(x, push):
            x = x + push
            u = -gain @ x
            return A @ x + B @ u, x @ STATE_COST @ x + u @ ACTION_COST @ u

        return jnp.sum(jax.lax.scan(step, jnp.zeros(2, disturbances.dtype), pushes)[1])

    return jnp.mean(jax.vmap(one)(noise))


def disturbances(seed=0):
    size = 2 * DISTURBED  # numbers for one draw
    return sample_draws(jax.random.key(seed), size + 2, size, kind="whitened", dtype=jnp.float64)


def solve(method, max_steps):
    with jax.enable_x64(True):
        return curvi.minimise(
            expected_cost,
            jnp.asarray(START),
            data=disturbances(),
            method=method,
            fixed_key=True,
            max_steps=max_steps,
            tolerance=1e-15,
            on_failure="return",
            progress=False,
        )


METHODS = {
    "Hessian-free": curvi.HessianFree(
        curvature="hessian", preconditioner=None, initial_damping=1e-3
    ),
    "trust region": curvi.TrustRegion(),
    "Adam(0.05)": curvi.FirstOrder(optax.adam(0.05)),
}

# %%
# Ten second-order steps find the gain of the Riccati equation; Adam needs hundreds.
if __name__ == "__main__":
    import warnings

    from matplotlib import pyplot as plt

    warnings.simplefilter("ignore", curvi.NotConvergedWarning)  # ten steps are a budget
    best = riccati_gain()
    print(f"Riccati gain {np.round(best[0], 6)}")
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for (name, method), style in zip(METHODS.items(), ("o-", "s--", ":"), strict=True):
        steps = 300 if name.startswith("Adam") else 10
        result = solve(method, steps)
        error = np.abs(np.asarray(result.params) - best).max()
        print(f"{name:13} {steps:4d} steps: off by {error:.1e}")
        cost = np.asarray(result.trace["value"])
        axes.plot(1 + np.arange(len(cost)), cost, style, label=name)
    axes.set(xlabel="step", ylabel="expected cost", xscale="log")
    axes.legend(frameon=False)
