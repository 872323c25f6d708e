"""
Missing and noisy pixels
========================

An auto-encoder that has seen whole images fills holes in new ones. Missing entries are NaN.
"""

import numpy as np
from sklearn.datasets import load_digits

import curvi

images = (load_digits().data / 16).astype(np.float32)
train, test = images[:1500], images[1500:]
model = curvi.VAE(latent=10, hidden=(100,), max_epochs=60, random_state=0).fit(train)

# %%
# The lower half of each image is gone:
holes = test.copy()
holes[:, 32:] = np.nan
filled = model.impute(holes)

rng = np.random.default_rng(0)
noisy = np.clip(test + 0.3 * rng.normal(size=test.shape).astype(np.float32), 0, 1)
clean = model.denoise(noisy)

figure = curvi.plots.plot_images(
    {
        "original": test[:10],
        "lower half missing": np.nan_to_num(holes[:10], nan=0.5),
        "filled": filled[:10],
        "noisy": noisy[:10],
        "denoised": clean[:10],
    },
    (8, 8),
)

# %%
# Squared error per pixel, beside the simplest answer:
mean = np.broadcast_to(train.mean(axis=0), test.shape)
print(
    f"missing pixels: {np.mean((filled - test)[:, 32:] ** 2):.3f}, "
    f"mean image {np.mean((mean - test)[:, 32:] ** 2):.3f}"
)
print(
    f"noisy pixels:   {np.mean((clean - test) ** 2):.3f}, "
    f"left as they are {np.mean((noisy - test) ** 2):.3f}"
)
