"""
A binary outcome, with uncertainty
==================================

Which tumours are malignant? A logistic regression answers with a probability. A Bayesian one also
says how well it knows each coefficient, and lets that uncertainty into its predictions.
"""

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

import curvi

data = load_breast_cancer(as_frame=True)
X = data.data.filter(like="mean")
y = np.where(data.target == 0, "malignant", "benign")
train, test, y_train, y_test = train_test_split(X, y, test_size=0.3, random_state=0)

# %%
# Columns are standardised inside, so one prior scale suits all of them. ``covariance="full"`` keeps
# the correlations of the coefficients: the size of a tumour is measured here in three ways.
model = curvi.BayesianLogisticRegression(covariance="full").fit(train, y_train)
print(f"converged: {model.converged_} after {model.n_iter_} Newton steps")
print(f"accuracy on {len(test)} other tumours: {model.score(test, y_test):.3f}")

# %%
# Coefficients come with their sds. The probability of direction is how sure the posterior is of
# the sign.
from scipy.stats import norm

effect = model.coef_[0] * train.std()
sd = model.coef_sd_[0] * train.std()
table = pd.DataFrame(
    {
        "effect of one sd": effect,
        "posterior sd": sd,
        "lower 95 %": effect - 1.96 * sd,
        "upper 95 %": effect + 1.96 * sd,
        "sure of the sign": norm.cdf(np.abs(effect) / sd),
    }
)
table.sort_values("sure of the sign", ascending=False).round(2)

# %%
# The same as a figure:
figure = curvi.plots.plot_effects(
    effect.to_numpy()[None], sd.to_numpy()[None], names=list(X.columns)
)

# %%
# ``predict_proba`` averages over the posterior. Where the data say little, it is less extreme than
# the probability at a single best estimate.
plain = LogisticRegression(C=1.0, max_iter=10_000)
scaled = (train - train.mean()) / train.std()
plain.fit(scaled, y_train)
ours = model.predict_proba(test)[:, 1]
theirs = plain.predict_proba((test - train.mean()) / train.std())[:, 1]
doubtful = np.argsort(np.abs(ours - theirs))[::-1][:5]
pd.DataFrame(
    {
        "averaged over the posterior": ours[doubtful],
        "at one estimate": theirs[doubtful],
        "truth": y_test[doubtful],
    }
).round(3)
