"""
Several classes
===============

Three cultivars of wine, told apart by thirteen chemical measurements. With more than two classes
the same estimator fits a softmax regression.
"""

import numpy as np
import pandas as pd
from sklearn.datasets import load_wine
from sklearn.model_selection import cross_val_score

import curvi

wine = load_wine(as_frame=True)
names = np.array(["Barolo", "Grignolino", "Barbera"])
cultivar = names[wine.target]
model = curvi.BayesianLogisticRegression().fit(wine.data, cultivar)

# %%
# It is an estimator of scikit-learn, so that cross-validation, pipelines and searches work:
scores = cross_val_score(curvi.BayesianLogisticRegression(), wine.data, cultivar, cv=5)
print("accuracy of the five folds:", np.round(scores, 3))

# %%
# Effects of one sd of a measurement, with intervals of two sds, for each class. A softmax has one
# vector of coefficients per class; what matters is how they differ.
spread = wine.data.std().to_numpy()
figure = curvi.plots.plot_effects(
    model.coef_ * spread,
    model.coef_sd_ * spread,
    names=list(wine.data.columns),
    labels=list(model.classes_),
)

# %%
# The bottles that the model is least sure of:
probability = model.predict_proba(wine.data)
unsure = np.argsort(probability.max(axis=1))[:4]
pd.DataFrame(probability[unsure], columns=model.classes_).assign(truth=cultivar[unsure]).round(3)
