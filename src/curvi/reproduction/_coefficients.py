"""The sparsity figure: estimated coefficients of the ARD fits, most of them switched off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from curvi._core.files import write_atomically
from curvi.glm._base import PRUNED
from curvi.plots import png_bytes
from curvi.reproduction._methods import load_rows, newton_run
from curvi.reproduction._runs import design
from curvi.reproduction._tables import QUICK, as_csv, as_markdown

DATA = ("duke", "leukemia", "a9a")


def run(out: Path, *, seeds: int, quick: bool, report: Callable[[str], None]) -> list[Path]:
    """Write coefficients.png, coefficients.csv (those that count) and coefficients.md."""
    kept: dict[str, np.ndarray] = {}
    counts, lines = [], []
    for name in DATA:
        (X, y), _ = load_rows(name, quick=quick)
        found = []
        for seed in range(seeds):
            report(f"{name}: Newton, seed {seed}")
            found.append(newton_run(X, y, seed=seed, num_starts=1 if quick else None))
        best = max(found, key=lambda one: one.last)
        strength = np.sqrt((best.mean**2 + best.sd**2) * np.mean(design(X) ** 2, axis=0))
        places = np.flatnonzero(strength > PRUNED)
        kept[name] = np.where(strength > PRUNED, best.mean, 0.0)
        counts.append({"data": name, "coefficients": len(strength), "not switched off": len(places),
                       "bound [nats]": f"{best.last:.2f}"})  # fmt: skip
        lines += [
            {"data": name, "index": int(i) if i < X.shape[1] else "intercept",
             "mean": f"{best.mean[i]:.6g}", "sd": f"{best.sd[i]:.6g}"}
            for i in places
        ]  # fmt: skip
    write_atomically(out / "coefficients.png", png_bytes(figure(kept)))
    write_atomically(out / "coefficients.csv", as_csv(lines))
    said = "The paper says that the coefficients are very sparse on all three data sets."
    said += f"\n\n{QUICK}" if quick else ""
    write_atomically(out / "coefficients.md", as_markdown(counts) + f"\n\n{said}\n")
    return [out / f"coefficients.{kind}" for kind in ("png", "csv", "md")]


def figure(kept: dict[str, np.ndarray]) -> Any:
    """Stems of the posterior means, zero where switched off, one panel per data set."""
    from matplotlib.figure import Figure

    page = Figure(figsize=(9, 2.3 * len(kept)), layout="constrained")
    for panel, (name, mean) in zip(
        page.subplots(len(kept), 1, squeeze=False)[:, 0], kept.items(), strict=True
    ):
        place = np.arange(len(mean))
        panel.axhline(0, color="0.8", linewidth=0.8)
        panel.vlines(place, 0, mean, color="tab:blue", linewidth=1.3)
        large = np.abs(mean) > 0.02 * np.abs(mean).max()
        panel.plot(place[large], mean[large], "o", markersize=3.5, color="tab:blue")
        panel.set_title(name, fontsize=10)
        panel.set_ylabel("coefficient")
    page.axes[-1].set_xlabel("index of the coefficient (the last is the intercept)")
    return page
