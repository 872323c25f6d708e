"""
A map of counts, with a precision of one's own
==============================================

Cases are counted in the cells of a square, some of which nobody has looked at. Rates vary smoothly
in space, and cells differ beyond that: the convolution model of Besag, York and Mollié. The first
part has the precision of an intrinsic autoregression, the second one the identity.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy import sparse

import curvi
from curvi.latent import Fixed, FromPrecision

rng = np.random.default_rng(0)
side = 24
x, y = np.meshgrid(np.linspace(-1, 1, side), np.linspace(-1, 1, side))
log_rate = 0.8 * np.exp(-4 * ((x - 0.3) ** 2 + (y + 0.2) ** 2)) - 0.5 * x
exposed = rng.uniform(2, 20, size=side**2)
counts = rng.poisson(exposed * np.exp(log_rate.ravel() + 0.1 * rng.standard_normal(side**2)))
seen = counts.astype(float)
seen[(np.abs(x + 0.5) < 0.2).ravel() & (np.abs(y) < 0.4).ravel()] = np.nan

# %%
# The precision of the smooth part is the graph Laplacian of the cells, which says nothing about
# their mean: a constraint makes the effects sum to zero.
step = sparse.diags_array([-np.ones(side - 1), np.ones(side - 1)], offsets=[0, 1],
                          shape=(side - 1, side))  # fmt: skip
along = step.T @ step
laplacian = sparse.kronsum(along, along, format="csr")
cells = sparse.eye_array(side**2, format="csr")
components = [
    Fixed(np.ones((side**2, 1)), "level", prior_scale=5.0, labels=["level"]),
    FromPrecision(cells, laplacian, "smooth", constraints=np.ones((1, side**2)),
                  coordinates=np.column_stack([x.ravel(), y.ravel()])),
    FromPrecision(cells, cells, "rough"),
]  # fmt: skip

model = curvi.LatentGaussian(components, likelihood="poisson")
model.fit(seen, offset=np.log(exposed))
print(model.summary())

# %%
# The map: raw rates, what is left of them when cells borrow strength from their neighbours, and how
# far that is known. The gap is filled.
smooth = model.effects("smooth")
level = model.effects("level").mean[0]
with np.errstate(divide="ignore"):
    raw = np.log(seen / exposed)
pictures = {
    "raw": raw, "smoothed": level + smooth.mean, "truth": log_rate.ravel(), "sd": smooth.sd,
}  # fmt: skip
figure, axes = plt.subplots(1, 4, figsize=(11, 3), layout="constrained")
for axis, (title, values) in zip(axes, pictures.items(), strict=True):
    limits = {} if title == "sd" else {"vmin": -1, "vmax": 1}
    shown = axis.imshow(values.reshape(side, side), origin="lower", **limits)
    axis.set(title=title, xticks=[], yticks=[])
    figure.colorbar(shown, ax=axis, shrink=0.8)

# %%
# Any function of draws has its uncertainty too: where is the rate highest?
draws = model.sample(2000)
smooth_part = draws.effects[:, 1 : 1 + side**2]
peak = smooth_part.argmax(axis=1)
print(f"the peak is at x = {x.ravel()[peak].mean():.2f} ± {x.ravel()[peak].std():.2f}, "
      f"y = {y.ravel()[peak].mean():.2f} ± {y.ravel()[peak].std():.2f}")  # fmt: skip
