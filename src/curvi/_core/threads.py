"""Threads of the BLAS, whose limit belongs to the whole process."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_LOCK = threading.Lock()
_HOLDERS: list[None] = []
_LIMITS: list[tuple[Any, int]] = []


def available_threads() -> int:
    """As many as the BLAS would take, which is what users and job schedulers limit."""
    return max((int(pool.num_threads) for pool in _pools()), default=1)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold the BLAS of the process to one thread until the last user of this is done.

    Its limit belongs to the process: fits in several threads that each restored what they found
    would leave the limit of another behind.
    """
    with _LOCK:
        if not _HOLDERS:
            _LIMITS.extend((pool, pool.num_threads) for pool in _pools())
            for pool, _ in _LIMITS:
                _set_threads(pool, 1)
        _HOLDERS.append(None)
    try:
        yield
    finally:
        with _LOCK:
            _HOLDERS.pop()
            while _LIMITS and not _HOLDERS:
                _set_threads(*_LIMITS.pop())


def _pools() -> list[Any]:
    return [pool for pool in _controller().lib_controllers if pool.user_api == "blas"]


def _set_threads(pool: Any, count: int) -> None:
    """Set the number for the process, whichever thread asks.

    Recent versions of threadpoolctl ignore every thread but the one that set a limit first: what
    one thread has limited, another could not restore.
    """
    getattr(pool, "_real_set_num_threads", pool.set_num_threads)(count)


@cache
def _controller() -> Any:
    """Scans the loaded libraries, once; SciPy's BLAS, which JAX calls too, has to be among them."""
    importlib.import_module("scipy.linalg")
    return importlib.import_module("threadpoolctl").ThreadpoolController()
