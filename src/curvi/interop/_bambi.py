"""A bambi model as a target: its backend is a PyMC model."""

from __future__ import annotations

from typing import Any

from curvi._core.errors import InputError, optional_import
from curvi.interop._pymc import from_pymc
from curvi.targets import Target


def from_bambi(model: Any) -> Target:
    """The posterior of a bambi model.

    The model is built if it has not been, and its PyMC model is read as :func:`from_pymc` reads
    it: results hold bambi's parameters by name, on their natural scale, deterministic ones
    included. bambi centres the columns of common effects, so that its ``Intercept`` belongs to
    the centred columns inside the target.

    Parameters
    ----------
    model : bambi.Model
        With or without ``model.build()``; it need not be fitted.

    Returns
    -------
    Target
        To be given to :func:`curvi.fit`.

    Raises
    ------
    InputError
        For anything but a bambi model, a model that bambi cannot build, and what
        :func:`from_pymc` refuses.
    MissingDependencyError
        If bambi is not installed.

    See Also
    --------
    curvi.MixedModel : The same class of models, by a method made for it.

    Examples
    --------
    >>> import bambi  # doctest: +SKIP
    >>> model = bambi.Model("y ~ x + (1 | g)", table)  # doctest: +SKIP
    >>> curvi.fit(curvi.from_bambi(model)).mean["x"]  # doctest: +SKIP
    """
    bambi = optional_import("bambi", extra="bambi", purpose="curvi.from_bambi")
    if not isinstance(model, bambi.Model):
        raise InputError(
            f"model is a {type(model).__name__}; give a bambi.Model such as "
            "bambi.Model('y ~ x + (1 | g)', table)"
        )
    if not model.built:
        model.build()
    return from_pymc(model.backend.model)
