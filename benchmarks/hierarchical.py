"""The hierarchical and latent Gaussian models by name, and how their references are sampled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import hierarchical_models as groups
from benchmarks import latent_models as latent
from benchmarks.hierarchical_models import Built


@dataclass(frozen=True)
class Entry:
    """A model, its dimension, and the form in which NUTS samples it well."""

    build: Callable[[], Built]
    dimension: int
    # Sites that are standardised for the reference run; their own values are kept.
    standardised: tuple[str, ...] = ()
    # A model of the same posterior that mixes better and names the same quantities.
    easier: Callable[[], Built] | None = None
    # The entry whose reference holds all quantities of this one: the same posterior once more.
    same_as: str | None = None
    # Sites without a second moment: compared on the unconstrained scale.
    heavy: tuple[str, ...] = ()
    target_accept: float = 0.9


MODELS: dict[str, Entry] = {
    "varying_slopes_centred": Entry(
        groups.varying_slopes_centred, 176, standardised=("a", "b"), target_accept=0.95
    ),
    "varying_slopes_lkj": Entry(groups.varying_slopes_lkj, 177, target_accept=0.95),
    "item_response": Entry(groups.item_response, 262),
    "eight_schools_centred": Entry(
        groups.eight_schools_centred, 10, same_as="eight_schools_noncentred"
    ),
    "eight_schools_noncentred": Entry(groups.eight_schools_noncentred, 10, target_accept=0.99),
    "gp_poisson": Entry(latent.gp_poisson, 23, target_accept=0.99),
    "overdispersed_counts": Entry(groups.overdispersed_counts, 445, standardised=("own",)),
    "volatility_centred": Entry(latent.volatility_centred, 303, same_as="volatility_noncentred"),
    "volatility_noncentred": Entry(
        latent.volatility_noncentred, 303, easier=latent.volatility_levelled, target_accept=0.98
    ),
    "local_level_season": Entry(latent.local_level_season, 165, target_accept=0.95),
    "horseshoe": Entry(latent.horseshoe, 204, heavy=("wide",), target_accept=0.99),
    "nested_groups": Entry(groups.nested_groups, 77, standardised=("d", "s"), target_accept=0.95),
    "crossed_effects": Entry(groups.crossed_effects, 104),
    "few_rows_logistic": Entry(groups.few_rows_logistic, 153, standardised=("a",)),
    "beta_binomial": Entry(groups.beta_binomial, 72),
    "negative_binomial": Entry(groups.negative_binomial, 44),
    "group_predictors": Entry(groups.group_predictors, 56, standardised=("a",)),
    "correlated_effects_centred": Entry(groups.correlated_effects_centred, 65, target_accept=0.95),
    "latent_ar_counts": Entry(
        latent.latent_ar_counts, 124, easier=latent.latent_ar_counts_noncentred
    ),
    "spatial_counts": Entry(latent.spatial_counts, 104, target_accept=0.95),
    "weibull_frailty": Entry(
        groups.weibull_frailty, 35, standardised=("frailty",), target_accept=0.95
    ),
    "zero_inflated": Entry(latent.zero_inflated, 5),
    "ordinal": Entry(latent.ordinal, 7),
    "epidemic": Entry(latent.epidemic, 4, target_accept=0.95),
    "autoregression": Entry(latent.autoregression, 4),
    "ordered_mixture": Entry(latent.ordered_mixture, 5),
}

# Models without groups or a latent field: the guard that what was right stays right.
SMALL = ("zero_inflated", "ordinal", "epidemic", "autoregression", "ordered_mixture")
