"""Rows that stay on the host give the answers, and the bits, of rows in memory."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from curvi.engine._identity import stream_digest
from curvi.engine._problems import pick_rows
from curvi.io import RowBlocks, _streams, rows

pytestmark = pytest.mark.float64_only


@pytest.fixture
def table(monkeypatch):
    monkeypatch.setattr(_streams, "_NUMBERS", 400)  # blocks of 100 rows
    generator = np.random.default_rng(0)
    X = generator.normal(size=(503, 3))
    return X, np.where(X[:, 0] + generator.normal(size=503) > 0, 1.0, -1.0)


def target(data):
    return curvi.DataTarget(
        lambda b, r: jax.nn.log_sigmoid(r[1] * (r[0] @ b)),
        data,
        lambda b: -0.5 * jnp.sum(b**2),
        jnp.zeros(3),
    )


def blocks_of(X, y, sizes=(100, 7, 396)):
    ends = np.cumsum(sizes)
    parts = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    return RowBlocks(lambda: ((X[part], y[part]) for part in parts))


def test_value_gradient_and_product_are_those_of_all_rows(table):
    whole, streamed = target(table), target(blocks_of(*table))
    z, v = jnp.asarray([0.3, -0.2, 0.5]), jnp.ones(3)
    for of in (
        lambda t: t.log_prob(z),
        lambda t: jax.grad(t.log_prob)(z),
        lambda t: jax.jvp(jax.grad(t.log_prob), (z,), (v,))[1],
        lambda t: jax.vmap(t.log_prob)(jnp.stack([z, v])),
    ):
        assert np.allclose(of(streamed), of(whole), rtol=1e-12)


def test_blocks_of_integers_and_of_floats_keep_their_fractions():
    X, whole, fractions = np.ones((4, 1)), np.asarray([0, 1]), np.asarray([0.7, 0.9])
    blocks = RowBlocks(lambda: iter([(X[:2], whole), (X[2:], fractions)]))
    stream = _streams.Stream.of(blocks)
    assert stream.like[1].dtype == np.float64
    assert np.array_equal(stream.block(0)[1], [0, 1, 0.7, 0.9])


def test_a_product_is_one_pass_over_the_blocks(table):
    X, y = table
    reads = []

    def source():
        for first in range(0, 503, 100):
            reads.append(first)
            yield X[first : first + 100], y[first : first + 100]

    streamed = target(RowBlocks(source, prefetch=False))
    product = jax.jit(lambda z: jax.jvp(jax.grad(streamed.log_prob), (z,), (z,))[1])
    product(jnp.ones(3)).block_until_ready()
    reads.clear()
    product(jnp.ones(3)).block_until_ready()
    assert reads == list(range(0, 503, 100))


def test_a_fit_of_blocks_is_the_fit_of_the_table(table):
    options = {"family": curvi.MeanField(), "num_draws": 8, "num_starts": 1, "progress": False}
    expected, found = (curvi.fit(target(d), **options) for d in (table, blocks_of(*table)))
    assert found.converged
    assert np.allclose(found.mean, expected.mean, atol=1e-8)
    assert np.isclose(found.elbo, expected.elbo, rtol=1e-10)


def test_the_rows_of_a_step_are_those_of_the_table(table, tmp_path):
    mapped = target(blocks_of(*table).to_npy(tmp_path / "rows")).rows
    keys = jax.random.key(1), jax.random.key(2)
    pick = jax.jit(pick_rows, static_argnums=2)
    for used in (keys, keys[::-1]):  # read when they are asked for, and ahead
        for found, wanted in zip(pick(used, mapped, 7), pick(used, table, 7), strict=True):
            assert np.array_equal(found, wanted)


@pytest.mark.slow
def test_a_fit_on_batches_of_a_file_has_the_bits_of_the_table(table, tmp_path):
    mapped = blocks_of(*table).to_npy(tmp_path / "rows")
    options = {"batch_size": 50, "max_steps": 20, "on_failure": "return", "seed": 3}
    with pytest.warns(curvi.NotConvergedWarning):
        one, two = (curvi.fit(target(d), progress=False, **options) for d in (table, mapped))
    assert np.array_equal(one.mean, two.mean)
    assert np.array_equal(one.trace["elbo"], two.trace["elbo"])


def test_what_needs_rows_by_number_a_mesh_or_finite_rows_is_refused(table, tmp_path):
    X, y = table
    once = target(blocks_of(X, y))
    with pytest.raises(curvi.InputError, match="to_npy"):
        curvi.fit(once, batch_size=10)
    with pytest.raises(curvi.InputError, match="no mesh"):
        curvi.fit(once, mesh=curvi.data_mesh(1))
    with pytest.raises(curvi.InputError, match="finite"):
        target(blocks_of(np.where(X > 2, np.nan, X), y))
    with pytest.raises(curvi.InputError, match="no rows"):
        target(RowBlocks(lambda: iter(())))
    blocks_of(X, y).to_npy(tmp_path / "there")
    with pytest.raises(curvi.InputError, match="exists"):
        blocks_of(X, y).to_npy(tmp_path / "there")


def test_a_source_that_changes_is_noticed(table):
    X, y = table
    passes = []

    def source():
        passes.append(0)
        count = 503 if len(passes) < 3 else 400
        yield X[:count], y[:count]

    streamed = target(RowBlocks(source, prefetch=False))
    with pytest.raises(Exception, match="every pass must give the same rows"):
        jax.block_until_ready(streamed.log_prob(jnp.ones(3)))


def test_long_memory_maps_are_streamed_and_short_ones_are_read(table, tmp_path, monkeypatch):
    for name, part in zip("xy", table, strict=True):
        np.save(tmp_path / f"{name}.npy", part)
    mapped = tuple(np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "xy")
    assert isinstance(target(mapped).rows, tuple)
    monkeypatch.setattr(_streams, "LARGEST_IN_MEMORY", 1000)
    assert isinstance(target(mapped).rows, _streams.Stream)
    assert rows(tmp_path / "x.npy", target=tmp_path / "y.npy").num_rows == 503


def test_a_checkpoint_knows_rows_on_disk_by_their_numbers(table):
    X, y = table
    digests = [stream_digest(target(blocks_of(*d)).rows) for d in ((X, y), (X, y), (X + 1e-9, y))]
    assert digests[0] == digests[1] != digests[2]
