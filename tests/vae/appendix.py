"""The appendix of the paper by hand: forward, backward and R-operator passes, layer by layer.

Everything is NumPy and follows the paper's signs: deltas are those of the bound, to be maximised.
Columns are rows of the batch. Corrections to the printed formulas are marked.
"""

from __future__ import annotations

import numpy as np


def forward(W, b, X, noise, binary):
    """Activations of the five-layer network; X is (pixels, rows)."""
    a = {"x": X}
    a["he"] = np.tanh(W[1] @ X + b[1])
    a["mu"] = W[2] @ a["he"] + b[2]
    a["s3"] = W[3] @ a["he"] + b[3]
    a["sigma"] = np.exp(a["s3"] / 2)
    a["z"] = a["mu"] + a["sigma"] * noise
    a["hd"] = np.tanh(W[4] @ a["z"] + b[4])
    a["s5"] = W[5] @ a["hd"] + b[5]
    a["y"] = 1 / (1 + np.exp(-a["s5"])) if binary else a["s5"]
    return a


def bound(a, variance, binary):
    """The bound, summed over rows."""
    x, y = a["x"], a["y"]
    if binary:
        fit = x * np.log(y) + (1 - x) * np.log(1 - y)
    else:
        fit = -0.5 * (np.log(2 * np.pi * variance) + (x - y) ** 2 / variance)
    kl = 0.5 * (a["mu"] ** 2 + a["sigma"] ** 2 - a["s3"] - 1)
    return fit.sum() - kl.sum()


def deltas(W, a, variance, binary):
    """Back-propagated deltas of the bound."""
    x, y = a["x"], a["y"]
    d = {5: x * (1 - y) - (1 - x) * y if binary else (x - y) / variance}
    d[4] = (W[5].T @ d[5]) * (1 - a["hd"] ** 2)
    back = W[4].T @ d[4]
    d[3] = 0.5 * (back * (a["z"] - a["mu"]) + 1 - a["sigma"] ** 2)
    d[2] = back - a["mu"]
    d[1] = (W[2].T @ d[2] + W[3].T @ d[3]) * (1 - a["he"] ** 2)
    return d


def inputs(a):
    return {1: a["x"], 2: a["he"], 3: a["he"], 4: a["z"], 5: a["hd"]}


def gradient(W, a, d, decay):
    """Gradient of the bound less the penalty: the L2 term enters with a minus sign (corrected)."""
    u = inputs(a)
    gW = {i: d[i] @ u[i].T - (decay * W[i] if i >= 4 else 0) for i in d}
    return gW, {i: d[i].sum(1, keepdims=True) for i in d}


def r_forward(W, V, c, a, noise, binary, *, factor=0.5):
    """R-operator on activations; the printed R{sigma_e} lacks the factor 1/2."""
    r = {"x": np.zeros_like(a["x"])}
    r["he"] = (V[1] @ a["x"] + c[1]) * (1 - a["he"] ** 2)
    r["mu"] = V[2] @ a["he"] + W[2] @ r["he"] + c[2]
    r["s3"] = V[3] @ a["he"] + W[3] @ r["he"] + c[3]
    r["sigma"] = factor * r["s3"] * np.exp(a["s3"] / 2)
    r["z"] = r["mu"] + r["sigma"] * noise
    r["hd"] = (V[4] @ a["z"] + W[4] @ r["z"] + c[4]) * (1 - a["hd"] ** 2)
    r["s5"] = V[5] @ a["hd"] + W[5] @ r["hd"] + c[5]
    r["y"] = r["s5"] * a["y"] * (1 - a["y"]) if binary else r["s5"]
    return r


def r_backward(W, V, a, r, d, decay, variance, binary):
    """R-operator on deltas and gradients."""
    rd = {5: -r["y"] if binary else -r["y"] / variance}
    slope_d, slope_e = 1 - a["hd"] ** 2, 1 - a["he"] ** 2
    r_slope_d, r_slope_e = -2 * a["hd"] * r["hd"], -2 * a["he"] * r["he"]
    rd[4] = (V[5].T @ d[5] + W[5].T @ rd[5]) * slope_d + (W[5].T @ d[5]) * r_slope_d
    back = W[4].T @ d[4]
    r_back = V[4].T @ d[4] + W[4].T @ rd[4]
    r_noise = r["z"] - r["mu"]
    rd[3] = 0.5 * (r_back * (a["z"] - a["mu"]) + back * r_noise - 2 * a["sigma"] * r["sigma"])
    rd[2] = r_back - r["mu"]
    through = W[2].T @ d[2] + W[3].T @ d[3]
    r_through = V[2].T @ d[2] + W[2].T @ rd[2] + V[3].T @ d[3] + W[3].T @ rd[3]
    rd[1] = r_through * slope_e + through * r_slope_e
    u, ru = inputs(a), inputs(r)
    hW = {i: rd[i] @ u[i].T + d[i] @ ru[i].T - (decay * V[i] if i >= 4 else 0) for i in rd}
    return hW, {i: rd[i].sum(1, keepdims=True) for i in rd}
