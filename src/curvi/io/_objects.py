"""Save an object into one file, and load it again."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import jax
import numpy as np

from curvi._core.errors import InputError
from curvi.io._claims import described, require_claims
from curvi.io._format import FORMAT, read_file, write_file
from curvi.io._kinds import kind_of
from curvi.io._values import Decoder, Encoder

CHECKPOINT = "checkpoint"
Found = TypeVar("Found", bound="SavedEstimator")


class Saved:
    """An object with a method ``save``; its class is named in :mod:`curvi.io._kinds`.

    What is stored are its fields, or what ``_state`` returns where it has that method together
    with ``_from_state``.
    """

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything that is data into one file, from which :func:`curvi.load` reads it.

        The file is complete or absent, and holds no code: functions of the user are left out.
        It replaces one of the same name.

        Parameters
        ----------
        path : path
            The file, in the safetensors format whatever its name is.

        Raises
        ------
        OSError
            If it cannot be written; an older file of that name is then as it was.
        """
        save(self, path)


class SavedEstimator(Saved):
    """An estimator of scikit-learn with a method ``save``: its parameters, and what was fitted."""

    _claims: ClassVar[dict[str, str]] = {}  # what a fitted one has, see require_claims
    table_: dict[str, Any]  # how the command line has read the table of the fit

    def _state(self) -> dict[str, Any]:
        """Parameters and attributes, without any that somebody else has set.

        Of a fit that was refused nothing is kept: it has some attributes, but not all.
        """
        fitted = getattr(self, "__sklearn_is_fitted__", lambda: True)()
        own: Any = self._get_param_names()  # type: ignore[attr-defined]
        known: Any = described(type(self)) if fitted else own  # type: ignore[arg-type]
        return {name: value for name, value in vars(self).items() if name in known}

    @classmethod
    def _from_state(cls: type[Found], state: dict[str, Any]) -> Found:
        """An estimator with these attributes."""
        found = cls()
        vars(found).update(state)
        if any(name.endswith("_") for name in state):
            require_claims(found, cls._claims)
        return found


def versions() -> dict[str, str]:
    """Versions that the bits of a result may depend on."""
    return {
        "curvi": str(sys.modules["curvi"].__version__),
        "jax": jax.__version__,
        "jaxlib": metadata.version("jaxlib"),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def save(value: Any, path: str | os.PathLike[str]) -> None:
    """Write an object of a listed class; see :meth:`Saved.save`."""
    encoder = Encoder()
    content = encoder.value(value)
    document = {"format": FORMAT, "kind": content["kind"], "versions": versions(), "value": content}
    write_file(Path(path), document, encoder.arrays)


def load(path: str | os.PathLike[str], *, target: Any = None) -> Any:
    """Load what ``save`` of a result or an estimator has written.

    No code is loaded with it. What could not be stored, such as the log density of a fit, can be
    given again; without it everything that needs no new evaluation of the log density works:
    moments, draws, trace, verdict, and diagnostics that had been computed.

    Parameters
    ----------
    path : path
        The file.
    target : Target, DataTarget or callable, optional
        Of the result of a fit: what was inferred. It is compared with the stored result.

    Returns
    -------
    object
        What was saved.

    Raises
    ------
    InputError
        For a file that is not curvi's, not complete, changed, of a newer format, or of a kind
        that cannot be loaded; for a target that is not the one that was fitted.
    OSError
        If the file cannot be read.

    Examples
    --------
    >>> import curvi, jax.numpy as jnp, tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "fit.safetensors"
    >>> result = curvi.fit(lambda x: -0.5 * jnp.sum((x - 8.0) ** 2), jnp.zeros(3), progress=False)
    >>> result.save(path)
    >>> print(curvi.load(path).outcome)
    CONVERGED
    """
    place = Path(path)
    document, arrays = read_file(place)
    kind = document.get("kind")
    if kind == CHECKPOINT:
        raise InputError(
            f"{place} is the checkpoint of a run; pass it as checkpoint= to the call that wrote it"
        )
    found = Decoder(arrays, place).value(document.get("value"))
    if not isinstance(found, Saved) or kind_of(type(found)) != kind:
        raise InputError(f"{place} holds a {kind!r}, which curvi.load() does not load")
    if target is None:
        return found
    if not hasattr(found, "_with_target"):
        raise InputError(f"{place} holds a {kind}, which has no target; leave target= out")
    return found._with_target(target)
