"""
Many images, few labels
=======================

A hundred labels, and 1,400 images without one. A semi-supervised auto-encoder learns from all of
them: it sums over the classes that an image without a label could have.
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import curvi

digits = load_digits()
images = (digits.data / 16).astype(np.float32)
train, test, truth = images[:1500], images[1500:], digits.target[1500:]
labels = digits.target[:1500].copy()
rng = np.random.default_rng(0)
for digit in range(10):
    labels[rng.permutation(np.flatnonzero(labels == digit))[10:]] = -1  # no label
print(f"{np.sum(labels >= 0)} labels, {np.sum(labels < 0)} images without")

# %%
model = curvi.SemiSupervisedVAE(latent=5, hidden=(50,), max_epochs=12, random_state=0)
model.fit(train, labels)
known = labels >= 0
plain = LogisticRegression(max_iter=1000).fit(train[known], labels[known])
print(f"labels and images: accuracy {model.score(test, truth):.3f}")
print(f"labels alone:      accuracy {plain.score(test, truth):.3f}")

# %%
# On images as small as these there is little to gain, and logistic regression is hard to beat. On
# MNIST there is: :doc:`/benchmarks` has the comparison with 1,000 labels.
#
# The images that the model is least sure of:
probability = model.predict_proba(test)
unsure = np.argsort(probability.max(axis=1))[:10]
print("guess:", model.predict(test[unsure]))
print("truth:", truth[unsure])
figure = curvi.plots.plot_images({"least sure of": test[unsure]}, (8, 8))
