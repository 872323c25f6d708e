"""Run the suite once per seed, in float64: ``python -m tests.many_seeds 20 -- tests/glm``.

Prints one line for each seed, goes on after a failure, and ends with the failing seeds, the tests
that failed under each, and a non-zero exit code if there are any. Words after ``--`` go to pytest.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
import time

# The parameters of a test may hold spaces and dashes; the message follows the closing bracket.
FAILED = re.compile(r"^(?:FAILED|ERROR) ([^\s\[]+(?:\[.*?\](?= - |$))?)", re.MULTILINE)


def failing_tests(report: str) -> list[str]:
    """The ids of the tests that pytest's short summary lists as failed."""
    return sorted(set(FAILED.findall(report)))


def run(seed: int, arguments: list[str]) -> tuple[bool, str, list[str]]:
    """Whether the suite passed under this seed, pytest's last line, and the tests that failed."""
    settings = {"CURVI_TEST_DTYPE": "float64", "CURVI_TEST_SEED": str(seed)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--tb=short", *arguments],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = (done.stdout + done.stderr).strip().splitlines() or ["pytest printed nothing"]
    return done.returncode == 0, lines[-1].strip("= "), failing_tests(done.stdout)


def main(arguments: list[str]) -> int:
    count, rest = int(arguments[0]), [word for word in arguments[1:] if word != "--"]
    failures: dict[int, list[str]] = {}
    for number in range(1, count + 1):
        seed, start = secrets.randbelow(2**31), time.monotonic()
        passed, last, failed = run(seed, rest)
        if not passed:
            failures[seed] = failed or [last]
        verdict = "passed" if passed else "FAILED"
        seconds = time.monotonic() - start
        print(
            f"[{number}/{count}] seed {seed:<10} {verdict} in {seconds:.0f} s: {last}", flush=True
        )
    print(f"{count - len(failures)} of {count} seeds passed")
    for seed, tests in failures.items():
        print(f"CURVI_TEST_SEED={seed}", *tests, sep="\n  ")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
