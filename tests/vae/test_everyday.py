"""What a builder of auto-encoders tries first: images, optax, labels, budgets."""

import time

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.datasets import load_digits

import curvi
from curvi.engine import _drivers as drivers
from curvi.engine import _loop as loop
from curvi.vae import VAEModel, VAEObjective

pytestmark = pytest.mark.float64_only
TINY = {"latent": 2, "hidden": (3,), "random_state": 0, "max_epochs": 2}


@pytest.fixture(scope="module")
def images():
    return (load_digits().images[:120] / 16).astype(np.float32)


def test_a_transformation_of_optax_is_a_method_everywhere(images):
    steps, labels = optax.adagrad(1e-3), load_digits().target[:120]
    seen = []
    curvi.VAE(**TINY, method=steps).fit(images)
    model = curvi.SemiSupervisedVAE(**TINY, method=steps, beta=2.0, on_step=seen.append)
    model.fit(images, labels)
    assert len(seen) == model.n_iter_
    assert model.result_.objective.beta == 2.0
    with pytest.raises(curvi.InputError, match="'kfac', 'hessian_free'"):
        curvi.VAE(method="Adam").fit(images)


def test_a_model_with_classes_encodes_draws_and_repaints(images):
    labels = load_digits().target[:120]
    model = curvi.SemiSupervisedVAE(**TINY, method="adagrad").fit(images, labels)
    mean, sd = model.encode(images, labels)
    assert mean.shape == sd.shape == (120, 2)
    assert (sd > 0).all()
    likeliest = model.encode(images, model.predict(images))
    np.testing.assert_array_equal(model.encode(images)[0], likeliest[0])
    as_three = model.reconstruct(images[:5], 3)
    assert as_three.shape == (5, 8, 8)
    assert not np.array_equal(as_three, model.reconstruct(images[:5], 4))
    np.testing.assert_array_equal(model.sample(2, 7, seed=1), model.sample(2, [7, 7], seed=1))
    for wrong in (11, [1, 2], [[1]]):
        with pytest.raises(curvi.InputError, match="y must be one of the classes"):
            model.sample(3, wrong)


def test_images_as_lists_are_images_and_one_image_is_told_apart(images):
    model = curvi.VAE(**TINY).fit(images.tolist())
    assert model.image_shape_ == (8, 8)
    with pytest.raises(curvi.InputError, match=r"that of one image.*X\[None\]"):
        model.transform(images[0])


def test_own_networks_rebuild_images_in_their_shape(images):
    objective = VAEObjective(
        lambda p, x: (x.reshape(len(x), -1) @ p["e"], jnp.zeros((len(x), 2), x.dtype)),
        lambda p, z: z @ p["d"],
    )
    params = {"e": np.ones((64, 2), np.float32), "d": np.ones((2, 64), np.float32)}
    assert VAEModel(objective, params, latent=2).reconstruct(images).shape == images.shape


class Clock:
    """Time that passes by what is done: compilation and every step have their price."""

    def __init__(self, monkeypatch, compiling, step):
        self.now, self.step = 0.0, step
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        for name, price in (("__init__", compiling), ("prepare", compiling)):
            self.charge(monkeypatch, name, lambda *_, price=price: price)
        self.charge(monkeypatch, "advance", lambda _, count, *__: count * step)
        monkeypatch.setattr(drivers, "_wait", lambda found, seconds: found.block_until_ready())

    def charge(self, monkeypatch, name, price):
        inner = getattr(drivers.CompiledDriver, name)

        def charged(*arguments):
            self.now += price(*arguments)
            return inner(*arguments)

        monkeypatch.setattr(drivers.CompiledDriver, name, charged)


@pytest.mark.parametrize("step", [0.01, 40.0])
def test_a_budget_counts_training_and_not_compilation(monkeypatch, images, step):
    """Steps of a hundredth of a second fill the budget; of those of 40 s there is one, not four."""
    Clock(monkeypatch, compiling=100.0, step=step)
    options = {**TINY, "max_epochs": 10_000, "validation_fraction": 0.0, "method": "adagrad"}
    model = curvi.VAE(**options, time_budget=5.0)
    with pytest.warns(curvi.NotConvergedWarning, match="time_budget ran out after") as caught:
        model.fit(images)
    said = str(caught[0].message)
    assert "max_steps" not in said
    assert model.n_iter_ == (1 if step > 5 else pytest.approx(500, abs=25))
    assert f"Compilation took {model.result_.compile_seconds:.1f} s" in said
    assert model.result_.compile_seconds >= 100.0
    assert loop._CHUNK_SECONDS < 1  # a chunk is short beside any budget of seconds
