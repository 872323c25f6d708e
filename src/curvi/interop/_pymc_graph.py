"""PyTensor graphs of a PyMC model, translated to JAX."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np

from curvi._core.errors import InputError, optional_import
from curvi._core.trees import precision_of, usual_promotion

PURPOSE = "curvi.from_pymc"


class Graph(NamedTuple):
    """A PyTensor graph and its translation to JAX, which is made anew when it is unpickled."""

    function: Callable[..., Any]
    inputs: list[Any]
    outputs: list[Any]

    def __reduce__(self) -> tuple[Any, ...]:
        return compiled_graph, (self.inputs, self.outputs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Graph:
        return self  # nothing in it changes


def compiled_graph(inputs: list[Any], outputs: list[Any]) -> Graph:
    """Translate in the precision of the inputs, also when a pickle is loaded.

    That is the precision of the constants in the graph.
    """
    with precision_of(np.result_type(*(variable.dtype for variable in inputs))), usual_promotion():
        return Graph(_jax_backend().get_jaxified_graph(inputs, outputs), inputs, outputs)


def translated(model: Any, outputs: list[Any]) -> Graph:
    """Outputs as functions of the value variables, with data containers at their present values."""
    try:
        return compiled_graph(model.value_vars, _jax_backend()._replace_shared_variables(outputs))
    except (NotImplementedError, ValueError) as error:
        raise InputError(
            f"PyTensor cannot express this model in JAX ({error}); give whole arrays in place of "
            "minibatches, and avoid operations that have no JAX version"
        ) from error


def _jax_backend() -> Any:
    """PyMC's JAX module, imported in a thread.

    A new thread sees the precision of the process, and not one that is local to the caller.
    """
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(_import_backend).result()


def _import_backend() -> Any:
    """Import PyMC's JAX module without letting it configure the whole process.

    PyTensor sets JAX's precision from its own ``floatX`` when its JAX backend is imported; with
    ``floatX`` equal to JAX's present precision that changes nothing. PyMC asks XLA for a hundred
    host devices through the environment.
    """
    from pytensor.configdefaults import config

    wide = jax.config.values["jax_enable_x64"]
    flags = os.environ.get("XLA_FLAGS")
    try:
        with config.change_flags(floatX="float64" if wide else "float32"):
            return optional_import("pymc.sampling.jax", extra="pymc", purpose=PURPOSE)
    finally:
        os.environ.pop("XLA_FLAGS", None)
        os.environ.update({} if flags is None else {"XLA_FLAGS": flags})
