import jax
import jax.numpy as jnp
from sklearn.datasets import load_breast_cancer

import curvi

table = load_breast_cancer()
x = jnp.asarray((table.data - table.data.mean(0)) / table.data.std(0))[:, :5]
y = jnp.asarray(2.0 * table.target - 1.0)


def log_density(beta):  # Bayesian logistic regression, prior N(0, 1)
    return jnp.sum(jax.nn.log_sigmoid(y * (x @ beta))) - 0.5 * jnp.sum(beta**2)


result = curvi.fit(log_density, position=jnp.zeros(5), family=curvi.FullRank())
print(result.summary())
