"""
An auto-encoder of digits
=========================

Handwritten digits of 8 x 8 pixels, through a bottleneck of two numbers and back. The default method
trains with curvature and has no learning rate.
"""

import numpy as np
from sklearn.datasets import load_digits

import curvi

digits = load_digits()
images = (digits.images / 16).astype(np.float32)
model = curvi.VAE(latent=2, hidden=(100,), max_epochs=60, random_state=0).fit(images)
print(model.message_)
print(f"bound: {model.score(images):.2f} nats per image")

# %%
# Images that go in, and what comes back through two numbers:
model.plot_reconstructions(images[:10])

# %%
# The plane of codes: every place decodes to an image. Axes are quantiles of the prior.
# sphinx_gallery_thumbnail_number = 2
model.plot_manifold(16)

# %%
# Where the digits lie in it. The labels were not used in training.
model.plot_codes(images, digits.target)

# %%
# The bound during training, on the images that were trained on and on those held out:
model.plot_history()
