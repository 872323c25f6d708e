"""The auto-encoder as an estimator."""

import jax
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits

import curvi
from curvi.engine import Progress
from curvi.vae import _stopping
from curvi.vae._base import METHODS, method_named
from curvi.vae._networks import principal_rotation
from curvi.vae._stopping import EarlyStopping
from tests.compilations import num_compiled

SMALL = {"latent": 2, "hidden": (16,), "max_epochs": 60, "random_state": 0}


@pytest.fixture(scope="module")
def digits(dtype):
    return (load_digits().data[:400] / 16).astype(dtype)


@pytest.fixture(scope="module")
def fitted(digits):
    return curvi.VAE(**SMALL).fit(digits)


def test_it_learns_more_than_the_mean_image(fitted, digits):
    p = np.clip(digits.mean(axis=0), 1e-3, 1 - 1e-3)
    mean_image = np.mean(digits @ np.log(p) + (1 - digits) @ np.log1p(-p))
    assert fitted.score(digits) > mean_image + 1
    error = np.mean((fitted.reconstruct(digits) - digits) ** 2)
    assert error < 0.9 * np.mean((digits - digits.mean(axis=0)) ** 2)
    assert set(fitted.history_) == {"step", "epoch", "seconds", "elbo", "validation_elbo"}
    assert fitted.elbo_ == np.nanmax(fitted.history_["validation_elbo"])


def test_results_have_the_shapes_and_precision_of_the_data(fitted, digits, dtype):
    codes = fitted.transform(digits)
    assert codes.shape == (400, 2)
    for images in (fitted.inverse_transform(codes[:7]), fitted.denoise(digits[:7]),
                   fitted.sample(7), fitted.sample(7, noise=True)):  # fmt: skip
        assert images.shape == (7, 64)
        assert images.dtype == dtype
        assert (images >= 0).all()
        assert (images <= 1).all()
    assert fitted.manifold(3).shape == (3, 3, 64)


def test_the_importance_weighted_likelihood_is_above_the_bound(fitted, digits):
    """In expectation by Jensen; over 50 rows the difference is far above its error."""
    assert fitted.log_likelihood(digits[:50], 200).mean() > fitted.elbo(digits[:50], 50).mean()


def squared_error(images, clean, where=True):
    return np.mean((images - clean) ** 2, where=where)


def test_denoised_images_are_nearer_to_the_clean_ones_than_noisy_and_mean_images(
    fitted, digits, key
):
    """Over 100 images, where both ratios of errors are about 0.7 and vary by a few per cent."""
    rows = digits[:100]
    noise = np.asarray(jax.random.normal(key, rows.shape, rows.dtype))
    noisy = np.clip(rows + 0.4 * noise, 0, 1)
    error = squared_error(fitted.denoise(noisy), rows)
    assert error < 0.9 * squared_error(noisy, rows)
    assert error < 0.95 * squared_error(digits.mean(axis=0), rows)


def test_imputed_pixels_are_better_than_column_means_and_than_grey(fitted, digits, key):
    """Over 100 images; the ratio of errors to those of the means is about 0.8."""
    rows = digits[:100]
    missing = np.asarray(jax.random.bernoulli(key, 0.3, rows.shape))
    error = squared_error(fitted.impute(np.where(missing, np.nan, rows)), rows, missing)
    assert error < 0.95 * squared_error(digits.mean(axis=0), rows, missing)
    assert error < 0.5 * squared_error(0.5, rows, missing)


def test_imputation_keeps_what_is_known_and_fills_the_rest(fitted, digits):
    rows = digits[:20].copy()
    rows[:, 40:] = np.nan
    full = fitted.impute(rows)
    np.testing.assert_array_equal(full[:, :40], digits[:20, :40])
    assert np.isfinite(full).all()
    same = fitted.impute(digits[:20], np.isnan(rows))
    np.testing.assert_array_equal(full, same)


@pytest.mark.float64_only
def test_the_same_seed_gives_the_same_bits(fitted, digits):
    again = clone(fitted).fit(digits)
    for a, b in zip(jax.tree.leaves(fitted.params_), jax.tree.leaves(again.params_), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.float64_only
@pytest.mark.parametrize("method", ["kfac", "adagrad"])
def test_the_recorded_bound_is_free_of_the_penalty(method):
    X = (np.random.default_rng(0).random((200, 16)) < 0.5).astype(np.float64)
    model = curvi.VAE(latent=2, hidden=(8,), decoder_l2=1.0, max_epochs=1, random_state=0,
                      validation_fraction=0, method=method).fit(X)  # fmt: skip
    assert float(model.objective_.penalty(model.params_)) > 4
    # Means of 200 rows with sds of about 3 nats, from other draws of the code.
    assert abs(model.elbo_ - model.score(X)) < 1.5


@pytest.mark.float64_only
def test_a_first_evaluation_without_a_number_does_not_hide_later_ones():
    elbos = (np.nan, -5.0, -4.0, -np.inf, -4.5, -4.6)
    stopping = EarlyStopping(elbos.__getitem__, elbos.__getitem__, patience=3, every=1)
    verdicts = [
        stopping(Progress(step, 6, 0.0, [], lambda _, step=step: step, ended=False))
        for step in range(6)
    ]
    assert stopping.best == 2
    assert verdicts == [*[None] * 5, curvi.Outcome.CONVERGED]


@pytest.mark.float64_only
def test_patience_begins_to_count_where_the_objective_stays_the_same():
    stopping = EarlyStopping(float, lambda step: -float(step), 2, 1, patient_until=3)
    verdicts = [
        stopping(Progress(step, 9, 0.0, [], lambda _, step=step: step, ended=False))
        for step in range(1, 6)
    ]
    assert verdicts == [*[None] * 4, curvi.Outcome.CONVERGED]
    assert stopping.best == 1


@pytest.mark.float64_only
def test_evaluations_by_the_clock_wait_for_their_time_and_end_the_run_with_its_budget(monkeypatch):
    """By that of the processor since the first steps, whatever the clock on the wall says."""
    stopping = EarlyStopping(lambda _: 0.0, float, patience=100, every=1, clock=(0.4, 1.0))
    monkeypatch.setattr(_stopping.time, "process_time", lambda: 100.0)
    assert stopping.next_call(0) is None
    verdicts = []
    for step, seconds in enumerate((0.3, 0.45, 0.8, 0.9, 1.1)):
        monkeypatch.setattr(_stopping.time, "process_time", lambda now=seconds: 100.0 + now)
        progress = Progress(step, 9, 50.0, [], lambda _, step=step: step, ended=False)
        verdicts.append(stopping(progress))
    assert verdicts == [None, None, None, None, curvi.Outcome.BUDGET]
    assert [row[0] for row in stopping.table] == [1, 3, 4]


@pytest.mark.float64_only
def test_plots_are_figures(fitted, digits):
    for figure in (fitted.plot_history(), fitted.plot_reconstructions(digits),
                   fitted.plot_manifold(3)):  # fmt: skip
        assert type(figure).__name__ == "Figure"


@pytest.mark.float64_only
@pytest.mark.parametrize(
    "variance",
    [
        "pixel",
        pytest.param("one", marks=pytest.mark.slow),
        pytest.param(0.05, marks=pytest.mark.slow),
    ],
)
def test_gaussian_pixels_that_never_change_do_no_harm(digits, variance):
    assert (digits.std(axis=0) == 0).any()
    model = curvi.VAE(**SMALL, likelihood="gaussian", variance=variance).fit(digits)
    assert np.isfinite(model.elbo(digits)).all()
    assert np.isfinite(model.reconstruct(digits)).all()


@pytest.mark.float64_only
@pytest.mark.parametrize(
    "method", [pytest.param("hessian_free", marks=pytest.mark.slow), "lbfgs", "adagrad"]
)
def test_the_paper_s_methods_train_it_too(digits, method):
    options = {**SMALL, "max_epochs": 5}
    model = curvi.VAE(**options, method=method).fit(digits)
    bounds = model.history_["validation_elbo"]
    assert np.isfinite(bounds).all()
    assert model.score(digits) > -64 * np.log(2)


def spoiled(X, place, value):
    X = X.copy()
    X[place] = value
    return X


@pytest.mark.float64_only
@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda X: spoiled(X, (17, 3), np.inf), {}, r"X\[17, 3\] is inf"),
        (lambda X: spoiled(X, (slice(None), 3), np.nan), {}, "column 3 of X has no observed"),
        (lambda X: spoiled(X, (5, 2), 1.5), {}, r"X\[5, 2\] is 1.5"),
        (lambda X: X[:1], {}, "1 row"),
        (lambda X: np.repeat(X[:1], 30, axis=0), {}, "equal"),
        (lambda X: X, {"hidden": ()}, "hidden"),
        (lambda X: X, {"method": "sgd"}, "method"),
        (lambda X: X, {"likelihood": "gaussian", "variance": -1.0}, "variance"),
        (lambda X: X, {"validation_fraction": 1.0}, "validation_fraction"),
    ],
)
def test_bad_input_is_refused_with_a_sentence(digits, change, options, message):
    with pytest.raises(curvi.InputError, match=message):
        curvi.VAE(**{**SMALL, **options}).fit(change(digits))


@pytest.mark.float64_only
def test_the_encoder_reads_the_directions_it_was_given(digits):
    """Rows moved along a direction that was left out keep their codes."""
    model = curvi.VAE(
        latent=2, hidden=(8,), max_epochs=1, method=curvi.KFAC(directions=3), random_state=0,
        validation_fraction=0, likelihood="gaussian",
    ).fit(digits)  # fmt: skip
    directions = np.linalg.svd(digits - digits.mean(axis=0), full_matrices=False)[2]
    codes = model.transform(digits)
    moved = [np.abs(model.transform(digits + directions[i]) - codes).max() for i in (2, 3)]
    assert moved[0] > 1e-4
    assert moved[1] < 1e-8
    rank = np.linalg.matrix_rank(digits - digits.mean(axis=0))
    assert principal_rotation(digits, directions=None).map.shape == (64, rank)


@pytest.mark.float64_only
def test_the_number_of_draws_can_be_chosen_from_a_pilot_epoch(digits):
    options = {**SMALL, "max_epochs": 2, "method": "adagrad"}
    model = curvi.VAE(**options, num_draws="auto").fit(digits)
    assert 1 <= model.num_draws_ <= 16
    assert model.objective_.num_draws == model.num_draws_
    with pytest.raises(curvi.InputError, match="num_draws"):
        curvi.VAE(**options, num_draws="many").fit(digits)


@pytest.mark.float64_only
def test_a_code_larger_than_the_data_is_announced(digits):
    with pytest.warns(UserWarning, match="latent is 9 but X has 8 columns"):
        model = curvi.VAE(latent=9, hidden=(4,), max_epochs=1, method="adagrad").fit(
            digits[:, 8:16]
        )
    assert np.isfinite(model.transform(digits[:, 8:16])).all()
    with pytest.raises(curvi.InputError, match="latent=2"):
        model.manifold(3)


@pytest.mark.float64_only
@pytest.mark.parametrize("name", METHODS)
def test_a_second_fit_with_a_named_method_meets_compiled_steps(name):
    """The method is a static argument of the compiled loop: it must be equal, not only alike."""
    first, second = (method_named(name) for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)


@pytest.mark.float64_only
def test_images_keep_their_shape_and_gaps_and_conditions_are_learned_with(digits):
    """One small fit with everything: images with holes, on a condition, with other weights."""
    labels = np.eye(10)[load_digits().target[:400]]
    holes = digits.reshape(-1, 8, 8).copy()
    holes[np.random.default_rng(0).random(holes.shape) < 0.2] = np.nan
    seen = []
    options = {**SMALL, "max_epochs": 30, "activation": "relu", "beta": 0.9}
    model = curvi.VAE(
        **options,
        num_draws=2,
        importance_weighted=True,
        on_step=lambda info: seen.append(info.step),
    ).fit(holes, condition=labels)
    assert len(seen) == model.n_iter_
    mean, sd = model.encode(holes, labels)
    assert mean.shape == sd.shape == (400, 2)
    assert model.reconstruct(holes, labels).shape == holes.shape
    assert model.sample(4, condition=labels[0]).shape == (4, 8, 8)
    full = model.impute(holes, condition=labels)
    gaps = np.isnan(holes)
    known = digits.reshape(-1, 8, 8)
    assert squared_error(full, known, gaps) < squared_error(digits.mean(), known, gaps)
    with pytest.raises(curvi.InputError, match="condition"):
        model.transform(holes)
    assert type(model.plot_codes(holes, load_digits().target[:400], labels)).__name__ == "Figure"


@pytest.mark.float64_only
def test_rows_are_single_precision_unless_jax_has_double(digits):
    with jax.enable_x64(False):
        model = curvi.VAE(latent=1, hidden=(2,), max_epochs=1, method="adagrad", random_state=0)
        for rows in (digits[:50], digits[:50].astype(np.float16), digits[:50] > 0.5):
            assert model.fit(rows).params_.heads.dtype == np.float32


@pytest.mark.float64_only
def test_another_number_of_rows_compiles_nothing():
    """Nor does a first fit compile more than a handful: each program costs time."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(700, 4))
    model = curvi.VAE(latent=1, hidden=(3,), likelihood="gaussian", max_epochs=2, random_state=0)
    before = num_compiled()
    model.fit(rows[:160]).score(rows[:53])
    assert num_compiled() - before <= 8
    before = num_compiled()
    for count in (106, 101, 333, 700):
        model.fit(rows[:count]).score(rows[: count // 12])
    assert num_compiled() == before


@pytest.mark.float64_only
def test_a_training_that_stopped_early_says_when_and_why(fitted):
    history = fitted.history_
    assert history["step"][0] == 0
    assert (history["epoch"] < 1).sum() >= 2 or history["step"][1] >= 10
    if fitted.outcome_ is curvi.Outcome.CONVERGED:
        assert f"epoch {history['epoch'][-1]:.4g}" in fitted.message_
    assert str(fitted.outcome_) in ("CONVERGED", "BUDGET")


def test_a_code_of_a_million_numbers_is_refused_before_any_work():
    rows = np.random.default_rng(0).random((50, 10))
    model = curvi.VAE(latent=10**6, hidden=(8,), max_epochs=1)
    with (
        pytest.warns(UserWarning, match="latent is 1000000"),
        pytest.raises(curvi.MemoryBudgetError, match="latent=1000000"),
    ):
        model.fit(rows)
