"""
Which columns matter? A relevance prior
=======================================

A relevance prior (ARD) gives every coefficient a prior variance of its own and estimates it. Most
of what the data do not need is switched off, exactly, and no penalty has to be chosen by
cross-validation. What stays has an sd, and so can be judged.
"""

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegressionCV

import curvi

rng = np.random.default_rng(0)
rows, columns = 2000, 150
X = rng.normal(size=(rows, columns))
truth = np.zeros(columns)
truth[:5] = [1.0, -1.0, 0.7, -0.5, 0.3]
y = rng.random(rows) < 1 / (1 + np.exp(-X @ truth))

# %%
# Five of 150 columns have an effect. A column is selected where the bound would be a nat lower
# without it. That takes an estimate of about two sds, by chance too, so look at how far it is.
model = curvi.BayesianLogisticRegression(prior="ard", random_state=0).fit(X, y)
kept = np.flatnonzero(model.selected_)
estimate, sd = model.coef_[0, kept], model.coef_sd_[0, kept]
table = pd.DataFrame(
    {
        "estimate": estimate,
        "posterior sd": sd,
        "sds from zero": np.abs(estimate) / sd,
        "truth": truth[kept],
    },
    index=pd.Index(kept, name="column"),
)
table.sort_values("sds from zero", ascending=False).head(10).round(2)

# %%
# A lasso whose penalty is chosen by cross-validation, for comparison. Its penalty shrinks the
# effects that are there, and it gives no sd that would tell them from those that are not.
lasso = LogisticRegressionCV(
    l1_ratios=(1.0,), solver="liblinear", scoring="neg_log_loss", use_legacy_attributes=False
).fit(X, y)
chosen = np.flatnonzero(lasso.coef_[0])
far = kept[np.abs(estimate) > 3 * sd]
print(f"relevance prior: {len(kept)} columns kept, {np.sum(kept >= 5)} of them without an effect")
print(f"  beyond three sds: {len(far)}, {np.sum(far >= 5)} of them without an effect")
print(f"lasso:           {len(chosen)} columns kept, {np.sum(chosen >= 5)} of them without one")
print("the five effects by the lasso:", np.round(lasso.coef_[0, :5], 2))

# %%
figure = model.plot_coefficients()
