"""The summary of a fit: the verdict, the facts behind it, and a table of parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import PyTree

from curvi._core.errors import InputError, NumericalError
from curvi._core.trees import coordinate_names, flat_numbers
from curvi.diagnostics._verdict import Summary, headline, summary_table
from curvi.targets import Labels, NoLogDensityError

EARLY = "the fit ended early; reading mc_error computes it"


def names_of(tree: PyTree, names: list[str] | None, labels: Labels | None = None) -> list[str]:
    """The names given, one for every number of the tree, or those of its coordinates.

    Where the model names the values along an axis, they stand in place of the index.
    """
    found = coordinate_names(tree)
    if names is None:
        return [_labelled(name, labels) for name in found] if labels is not None else found
    given = [str(name) for name in names]
    if len(given) != len(found):
        raise InputError(
            f"names has {len(given)} entries and there are {len(found)} parameters, from "
            f"{found[0]} to {found[-1]}; give one name for each, or leave names out"
        )
    return given


def _labelled(name: str, labels: Labels) -> str:
    """``level[north]`` in place of ``level[0]`` where the axis has coordinates."""
    variable, _, rest = name.partition("[")
    axes = labels.dims.get(variable, ())
    indices = rest.rstrip("]").split(",") if rest else []
    if len(axes) != len(indices):
        return name
    values = [
        str(labels.coords[axis][int(index)]) if axis in labels.coords else index.strip()
        for axis, index in zip(axes, indices, strict=True)
    ]
    return f"{variable}[{', '.join(values)}]" if values else name


def summary_of(
    result: Any, names: list[str] | None, *, errors: np.ndarray | None, unsolved: str
) -> Summary:
    """What ``FitResult.summary`` returns, with the Monte-Carlo errors of all means."""
    labels = names_of(result.mean, names, result.target.labels)
    columns = {"mean": flat_numbers(result.mean), "sd": flat_numbers(result.sd)}
    responses, why = (None, "") if result.correction is not None else _responses(result)
    if responses is not None:
        columns["lr sd"] = responses
    if errors is not None:
        # One digit: it is an error of an error, and differs from machine to machine.
        columns["mc error"] = np.asarray([float(f"{error:.1g}") for error in errors])
    corrected = result.correction is not None
    facts = {
        **({"answer": result.correction.sentence()} if corrected else {}),
        **({"tried": "; ".join(_tried(rung) for rung in result.rungs)} if result.rungs else {}),
        **_tail_fact(result),
        "ELBO": f"{result.elbo:.4f} (se {result.elbo_se:.4f})",
        "fit of q": f"Pareto k {result.khat:.2f}, relative ESS {result.relative_ess:.3f}",
        "mc error": _mc_fact(result, unsolved),
        "family": f"{result.family}, {result.draws.num_draws} {result.draws.kind} draws"
        + (", fresh every step" if result.draws.fresh else ", fixed"),
        "method": f"{result.method}, {result.steps} steps, {result.seconds:.2f} s",
    }
    if why:
        facts["lr sd"] = why
    return summary_table(
        verdict=(headline(result.outcome, result.warnings), [result.message, *result.warnings]),
        facts=facts,
        names=labels,
        columns=columns,
    )


def _tail_fact(result: Any) -> dict[str, str]:
    """Which sds continue a tail, where any does."""
    errors = result._moments.errors
    if errors is None:
        return {}
    worst, count = np.nanmax(errors), int(np.isfinite(errors).sum())
    name = coordinate_names(result.mean)[int(np.nanargmax(errors))]
    more = "" if count < 2 else f" and {count - 1} more"
    return {
        "tails": f"too heavy for draws: the sd of {name}{more} continues them, and is uncertain"
        f" by {worst:.1g} of itself; quantiles are not concerned"
    }


def _tried(rung: Any) -> str:
    return f"{rung.name}: {rung.note}"


def _mc_fact(result: Any, unsolved: str) -> str:
    if unsolved == EARLY and result.noise is not None:
        return f"unknown: {EARLY}"
    if result.mc_error is not None:
        return f"{result.mc_error:.1g} posterior sds at most"
    if unsolved and unsolved != EARLY:
        return f"unknown: {unsolved}"
    return "none: it is defined for an optimum on fixed draws and all rows"


def _responses(result: Any, *, most_responses: int = 100) -> tuple[np.ndarray | None, str]:
    """Linear-response sds of all parameters, or why there are none.

    ``most_responses``: coordinates up to which all linear-response sds are solved for.
    """
    if not result.converged:
        return None, "none: the fit has not converged"
    if result.target.dimension > most_responses:
        return None, f"left out above {most_responses} parameters; call linear_response()"
    known = vars(result).get("responses")  # kept with a result that is stored
    if known is not None:
        return known, ""
    try:
        found = flat_numbers(result.linear_response())
    except NumericalError as error:
        return None, f"refused: {error}"
    except NoLogDensityError:
        return None, "unknown: the log density was not stored with the result"
    object.__setattr__(result, "responses", found)
    return found, ""
