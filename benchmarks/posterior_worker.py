"""One contender on one posterior in a process of its own; rows are printed as JSON lines.

``python -m benchmarks.posterior_worker CONTENDER MODEL SECONDS``. Libraries are imported before the
clock starts. Seconds are processor seconds on one core, of a first call and of a second one on the
same model; what compilation takes of them is a number of its own. The system ends the process when
a call has used its limit.
"""

from __future__ import annotations

import json
import logging
import math
import resource
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from benchmarks import clocks
from benchmarks import posterior_problems as problems
from benchmarks.posterior_scores import scored

QUIET = (DeprecationWarning, FutureWarning, PendingDeprecationWarning)
ABOUT_SPEED = ("object mode", "does not have a JAX", "BLAS")  # not about the answer
MARK = "ROW "


@contextmanager
def listening() -> Iterator[list[str]]:
    """Collect what a library says: Python warnings, and log records from WARNING upwards."""
    heard: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(f"{record.name}: {record.getMessage()}")

    ear = Ear(logging.WARNING)
    logging.getLogger().addHandler(ear)
    loggers = [logging.getLogger(name) for name in ("pymc", "pymc_extras", "pytensor", "blackjax")]
    for logger in loggers:
        if not logger.propagate:
            logger.addHandler(ear)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield heard
        heard.extend(str(one.message) for one in caught if not issubclass(one.category, QUIET))
        heard[:] = [text for text in heard if not any(part in text for part in ABOUT_SPEED)]
    finally:
        for logger in (logging.getLogger(), *loggers):
            logger.removeHandler(ear)


def limit_processor(seconds: float) -> None:
    """Let the system end this process when it has used so much more processor time."""
    end = math.ceil(time.process_time() + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (end, resource.RLIM_INFINITY))


def answer_of(call: Any, problem: problems.Problem) -> dict[str, Any]:
    """One call, timed and scored; an exception of the contender is a row as well."""
    with listening() as heard:
        began, wall = time.process_time(), time.perf_counter()
        try:
            with clocks.spent() as clock:
                answer = call(problem)
        except Exception as error:  # noqa: BLE001  a contender that breaks is a finding
            return {"failed": f"{type(error).__name__}: {error}"[:300], "flagged": True,
                    "right": False, "seconds": time.process_time() - began}  # fmt: skip
        wall = time.perf_counter() - wall
    said = [*answer.get("said", ()), *heard]
    row = {
        "seconds": answer.get("seconds", clock.seconds),
        "compiling": answer.get("compiling", clock.compiling),
        "wall": wall, "outcome": answer.get("outcome", ""),
        "converged": answer.get("converged"), "said": [one[:200] for one in said[:5]],
        "flagged": bool(said or answer.get("converged") is False),
        **scored(answer["mean"], answer["sd"], problem),
    }  # fmt: skip
    row |= {k: answer[k] for k in ("rung", "loss", "ess", "draws", "seconds_all") if k in answer}
    return {k: _plain(v) for k, v in row.items()}


def _plain(value: Any) -> Any:
    """What JSON can hold."""
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return value


def main(contender: str, model: str, seconds: float, again: bool = True) -> None:
    """Print the row of a first call, then what a second one adds."""
    from benchmarks.posterior_contenders import find

    clocks.pin_to_one_core()
    jax.config.update("jax_enable_x64", True)
    call, libraries = find(contender)
    for library in libraries:
        __import__(library)
    problem = problems.load(model)
    for turn in ("first", "second") if again else ("first",):
        limit_processor(seconds)
        row = answer_of(call, problem)
        if turn == "second":
            warm = {"seconds_warm": "seconds", "compiling_warm": "compiling"}
            row = {k: row[v] for k, v in warm.items()} if "failed" not in row else {}
        print(MARK + json.dumps(row, allow_nan=False), flush=True)
        if row.get("failed"):
            return


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), "--once" not in sys.argv)
