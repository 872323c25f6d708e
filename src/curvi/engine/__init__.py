"""The one loop: steps on the host or on device, budgets, hooks and the trace."""

from curvi.engine._checkpoint import Checkpoint, checkpointed, resumable
from curvi.engine._execution import Execution
from curvi.engine._hooks import StepInfo, hooks_for
from curvi.engine._loop import Budget, Hook, Progress, RunResult, run, run_driver, run_starts
from curvi.engine._problems import ObjectiveProblem, Resources, VariationalProblem

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
    "resumable",
    "run",
    "run_driver",
    "run_starts",
]
