"""A progress bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from curvi.engine._loop import Progress


@contextlib.contextmanager
def observer_for(
    progress: bool, quantity: str, sign: float = 1.0
) -> Iterator[Callable[[Progress], None] | None]:
    """Give an observer that draws a bar with the value and the time left; None off a terminal.

    Rich is imported only when there is a terminal to draw on: on a small fit its import would
    cost more than the fit.
    """
    if not (progress and sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("step {task.completed}/{task.total}"),
        BarColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("compiling", total=None)

        def observer(seen: Progress) -> None:
            description = f"{quantity} {sign * seen.value:.6g}"
            bar.update(task, completed=seen.step, total=seen.max_steps, description=description)

        yield observer
