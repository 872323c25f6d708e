"""The one loop: steps on the host or on device, budgets, hooks and the trace."""

from curvi.engine._checkpoint import Checkpoint, checkpointed, opened
from curvi.engine._checkpoint import Session as Session
from curvi.engine._drivers import EagerDriver as EagerDriver
from curvi.engine._execution import Execution
from curvi.engine._hooks import StepInfo, hooks_for
from curvi.engine._identity import plain as plain
from curvi.engine._identity import short_digest as short_digest
from curvi.engine._loop import Budget, Hook, Progress, RunResult, run, run_driver, run_starts
from curvi.engine._problems import ObjectiveProblem, Resources, VariationalProblem
from curvi.engine._problems import pick_rows as pick_rows
from curvi.engine._problems import row_keys as row_keys
from curvi.engine._problems import step_key as step_key
from curvi.engine._problems import traced_objective as traced_objective
from curvi.engine._recording import belongs as belongs
from curvi.engine._recording import remembered as remembered

__all__ = [
    "Budget",
    "Checkpoint",
    "Execution",
    "Hook",
    "ObjectiveProblem",
    "Progress",
    "Resources",
    "RunResult",
    "StepInfo",
    "VariationalProblem",
    "checkpointed",
    "hooks_for",
    "opened",
    "run",
    "run_driver",
    "run_starts",
]
