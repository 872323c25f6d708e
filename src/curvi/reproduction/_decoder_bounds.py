"""A decoder's Lipschitz bound while it is trained, and the error of a gradient from one draw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from curvi.vae._variance import reconstruction_variance, relative_gradient_error

Row = dict[str, Any]
EPOCHS = (1, 2, 5, 10, 20, 40)
_ROWS, _DRAWS = 100, 200


def decoder_rows(seeds: int, *, quick: bool, report: Callable[[str], None]) -> list[Row]:
    """Train the paper's shape of network on bundled digits and look at it on the way.

    The same seed gives the same bits, so a longer run passes through the shorter ones.
    """
    from sklearn.datasets import load_digits

    from curvi.vae._estimator import VAE

    images = (load_digits().data / 16).astype(np.float32)
    rows = []
    for epochs in EPOCHS[:3] if quick else EPOCHS:
        found = []
        for seed in range(1 if quick else seeds):
            report(f"digits: {epochs} epochs, seed {seed}")
            model = VAE(
                latent=10, hidden=(100,), max_epochs=epochs, validation_fraction=0.0,
                random_state=seed,
            ).fit(images)  # fmt: skip
            variance = reconstruction_variance(
                model.objective_, model.params_, images[:_ROWS], num_draws=_DRAWS, seed=seed
            )
            error = relative_gradient_error(
                model.objective_, model.params_, images[:_ROWS], num_draws=_DRAWS, seed=seed
            )
            found.append((variance.lipschitz, variance.measured, variance.sharp, error))
        lipschitz, measured, sharp, error = np.mean(found, axis=0)
        rows.append(
            {
                "epochs": epochs,
                "Lipschitz bound": float(f"{lipschitz:.4g}"),
                "measured variance [nats^2]": float(f"{measured:.4g}"),
                "sharp bound [nats^2]": float(f"{sharp:.4g}"),
                "bound / measured": float(f"{sharp / measured:.4g}"),
                "gradient error, M = 1": float(f"{error:.3g}"),
            }
        )
    return rows


def draw_decoder(rows: list[Row]) -> Any:
    """Bound and measurement of the variance, and the error of the gradient, by epochs."""
    from matplotlib.figure import Figure

    page = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = page.subplots(1, 2)
    epochs = [row["epochs"] for row in rows]
    left.plot(epochs, [r["sharp bound [nats^2]"] for r in rows], "k-", label="bound, mean of $L^2$")
    left.plot(epochs, [r["measured variance [nats^2]"] for r in rows], "o-", label="measured")
    left.set(xscale="log", yscale="log", xlabel="epochs", ylabel="variance of one draw [nats$^2$]")
    left.set_title("reconstruction term of one image", fontsize=10)
    left.legend(fontsize=8)
    right.plot(epochs, [r["gradient error, M = 1"] for r in rows], "o-", color="tab:red")
    right.set(xscale="log", xlabel="epochs", ylim=(0, None))
    right.set_ylabel("sd of a gradient from M = 1 / its length")
    right.set_title(f"gradient over {_ROWS} images", fontsize=10)
    return page
