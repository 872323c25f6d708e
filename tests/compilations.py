"""Counts what XLA compiles."""

from __future__ import annotations

import jax.monitoring

_COMPILED = "/jax/core/compile/backend_compile_duration"
_count = [0]


def _listen(event: str, seconds: float, **details: object) -> None:
    del seconds, details
    _count[0] += event == _COMPILED


jax.monitoring.register_event_duration_secs_listener(_listen)


def num_compiled() -> int:
    """Programs that were compiled in this process since the first call that looked."""
    return _count[0]
