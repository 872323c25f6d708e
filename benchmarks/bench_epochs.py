"""Auto-encoders for the impatient: epochs per second of Adam, and the first fit of a small table.

`method="adam"` of `curvi.VAE` against the loop that one would write: a compiled scan over a
permutation of the rows with the same networks, batches and optax. Both run in turns; what is
compared is processor time without compilation and without evaluations. Then, each in a process of
its own, the first fit of small tables, a fit with another number of rows and a cross-validation.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.common import verdict
from curvi.engine import _drivers as drivers
from curvi.vae import MLPObjective, initial_params
from curvi.vae._base import method_named
from curvi.vae._training import Schedule, train

ROWS, PIXELS, BATCH, EPOCHS, ROUNDS = 20_000, 784, 100, 2, 5
TARGET_SPEED, TARGET_FIRST = 0.9, 3.0
CODE = """
import json, time
import numpy as np
from sklearn.model_selection import cross_val_score
import curvi
curvi.VAE
rng = np.random.default_rng(0)
table = rng.normal(size=(160, 2)) @ rng.normal(size=(2, 10)) + 0.1 * rng.normal(size=(160, 10))
marks, begun = [], time.process_time()
def mark():
    global begun
    marks.append(time.process_time() - begun)
    begun = time.process_time()
model = curvi.VAE(latent=2, hidden=(20,), likelihood="gaussian", random_state=0)
model.fit(table)
mark()
model.fit(table[:130])
mark()
cross_val_score(model, table, cv=3)
mark()
print(json.dumps(marks))
"""


def plain_loop(X, objective, params):
    """Epochs as a scan: what a user of optax would write."""
    rule = optax.adam(1e-3)
    count = len(X) // BATCH * BATCH
    rows = jnp.asarray(X[:count])

    def body(carry, given):
        params, state = carry
        index, key = given
        value, gradient = jax.value_and_grad(objective)(params, rows[index], key)
        updates, state = rule.update(gradient, state, params)
        return (optax.apply_updates(params, updates), state), value

    @jax.jit
    def epoch(carry, key):
        first, second = jax.random.split(key)
        order = jax.random.permutation(first, count).reshape(-1, BATCH)
        return jax.lax.scan(body, carry, (order, jax.random.split(second, len(order))))

    def run(epochs):
        carry = params, rule.init(params)
        for number in range(epochs):
            carry, values = epoch(carry, jax.random.key(number))
        jax.block_until_ready(values)

    return run


class Charged:
    """Processor seconds of the steps of curvi, and of nothing else."""

    def __init__(self):
        self.seconds, inner = 0.0, drivers.CompiledDriver.advance

        def advance(*arguments):
            begun = time.process_time()
            found = inner(*arguments)
            self.seconds += time.process_time() - begun
            return found

        drivers.CompiledDriver.advance = advance


def speed() -> list[tuple[float, float]]:
    """Epochs per processor second of the plain loop and of ours, round by round."""
    X = np.random.default_rng(0).random((ROWS, PIXELS), np.float32)
    objective = MLPObjective()
    params = initial_params(np.random.default_rng(1), inputs=PIXELS, hidden=(500,), latent=20)
    plain, charged = plain_loop(X, objective, params), Charged()
    schedule = Schedule(batch_size=BATCH, max_epochs=EPOCHS, patience=10**9)

    def ours():
        charged.seconds = 0.0
        train(objective, params, X, method=method_named("adam"), schedule=schedule)
        return charged.seconds

    plain(1)
    ours()
    found = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        plain(EPOCHS)
        found.append((EPOCHS / (time.process_time() - begun), EPOCHS / ours()))
    return found


def first_fits() -> list[float]:
    """Processor seconds of a first fit, of one with other rows, and of three folds."""
    done = subprocess.run([sys.executable, "-c", CODE], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def main() -> dict:
    rounds = speed()
    share = statistics.median(mine / theirs for theirs, mine in rounds)
    theirs, mine = (statistics.median(column) for column in zip(*rounds, strict=True))
    print(
        f"  epochs per processor second: plain scan {theirs:.3f}, method='adam' {mine:.3f}, "
        f"ratio {share:.2f} (target {TARGET_SPEED}: {verdict(share >= TARGET_SPEED)})"
    )
    fits = zip(*(first_fits() for _ in range(3)), strict=True)
    marks = [statistics.median(column) for column in fits]
    names = ("first fit of 160 x 10", "then 130 rows", "then 3 folds of 160 rows")
    for name, seconds in zip(names, marks, strict=True):
        print(f"  {name}: {seconds:.2f} processor s")
    met = marks[0] <= TARGET_FIRST
    print(f"  target: first fit within {TARGET_FIRST} processor s: {verdict(met)}")
    return {
        "epochs_per_processor_second": {"plain scan": theirs, "adam": mine},
        "ratio": share,
        "rounds": rounds,
        "processor_seconds": dict(zip(names, marks, strict=True)),
        "met": bool(met and share >= TARGET_SPEED),
    }
