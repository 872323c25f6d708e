"""Where a recorded result comes from: the command, the commit and the versions that made it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from curvi._core.files import write_atomically

PACKAGE = Path(__file__).parents[2]
LIBRARIES = (
    "jax", "jaxlib", "numpy", "scipy", "scikit-learn", "optax", "numpyro", "pymc", "pymc-extras",
    "blackjax", "statsmodels", "bambi",
)  # fmt: skip


def provenance(command: str | None = None) -> dict[str, Any]:
    """What a result file says about how it was made.

    Parameters
    ----------
    command : str, optional
        What makes the result again; by default the command of this process, in which a path that
        belongs to this machine is cut down to its last part.

    Returns
    -------
    dict
        ``command``, ``commit`` (None where curvi does not run from its repository), ``modified``
        (whether a file of that commit was changed and not committed), ``curvi``, ``python``,
        ``versions`` of the libraries that are installed, ``cores`` that the process may use,
        ``load`` of the machine (the average of the last 15 minutes, where it is known), ``date``.
    """
    commit, modified = _checkout()
    return {
        "command": command_line(sys.orig_argv) if command is None else command,
        "commit": commit,
        "modified": modified,
        "curvi": importlib.metadata.version("curvi"),
        "python": platform.python_version(),
        "versions": _versions(),
        "cores": _cores(),
        "load": round(os.getloadavg()[2], 1) if hasattr(os, "getloadavg") else None,
        "date": datetime.now(UTC).date().isoformat(),
    }


def command_line(arguments: Sequence[str]) -> str:
    """The command of a process as a user would type it, without what belongs to one machine."""
    _, *rest = arguments
    words = [Path(word).name if Path(word).is_absolute() else word for word in rest]
    if words[:2] == ["-m", "curvi"]:  # the same as the command that is installed
        words = words[1:]
    first = words[0] if words else ""
    return " ".join(words if first and not first.startswith("-") else ["python", *words])


def sentence(record: dict[str, Any]) -> str:
    """A provenance record as one line of a page."""
    commit, seeds = record["commit"], record.get("seeds")
    words = [f"Made on {record['date']} by `{record['command']}`, curvi {record['curvi']}"]
    if commit is not None:
        words.append(f"at commit {commit[:10]}" + (" with changes" * record["modified"]))
    if record.get("reconstructed"):
        words.append("(by the history of its file)")
    if seeds:
        words.append(f"with seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}")
    if cores := record.get("cores"):
        words.append(f"on {cores} core{'s' * (cores > 1)}")
    if load := record.get("load"):
        words[-1] += f", load average {load:g}"
    return " ".join(words) + "."


def write_provenance(path: Path, record: dict[str, Any]) -> Path:
    """Write a record beside files that cannot hold it, figures and tables."""
    write_atomically(path, json.dumps(record, indent=2, sort_keys=True) + "\n")
    return path


def _cores() -> int:
    """The cores that this process may use, which can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _versions() -> dict[str, str]:
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _checkout() -> tuple[str | None, bool]:
    """The commit that curvi runs from, and whether its files were changed since.

    An installed curvi may lie inside the repository of somebody else, whose commit says nothing.
    """
    git, root = shutil.which("git"), PACKAGE.parents[1]
    if git is None or not (root / ".git").exists():
        return None, False

    def ask(*words: str) -> str:
        done = subprocess.run(  # noqa: S603  the words are ours
            [git, *words], cwd=root, check=False, capture_output=True, text=True, timeout=60
        )
        return done.stdout.strip()

    commit = ask("rev-parse", "HEAD")
    changed = ask("status", "--porcelain", "--untracked-files=no", "--", "src", "benchmarks/*.py")
    return commit or None, bool(changed)
