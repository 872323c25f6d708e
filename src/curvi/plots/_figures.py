"""From a figure to the bytes of a file."""

from __future__ import annotations

import io
from typing import Any


def png_bytes(figure: Any, dpi: int = 120) -> bytes:
    """The figure as PNG."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=dpi)
    return stream.getvalue()
