"""Run the suite once per seed, in float64: ``python -m tests.many_seeds 20 -- tests/glm``.

The first seed runs every test; the others run those that draw from the seed, through the key of a
test or through hypothesis. Prints one line for each seed, goes on after a failure, and ends with
the failing seeds, the tests that failed under each, and a non-zero exit code if there are any.
Words after ``--`` go to pytest.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
import tempfile
import time

# The parameters of a test may hold spaces and dashes; the message follows the closing bracket.
FAILED = re.compile(r"^(?:FAILED|ERROR) ([^\s\[]+(?:\[.*?\](?= - |$))?)", re.MULTILINE)


def failing_tests(report: str) -> list[str]:
    """The ids of the tests that pytest's short summary lists as failed."""
    return sorted(set(FAILED.findall(report)))


def run(
    seed: int, arguments: list[str], cache: str, *, seeded: bool
) -> tuple[bool, str, list[str]]:
    """Whether the suite passed under this seed, pytest's last line, and the tests that failed."""
    settings = {
        "CURVI_TEST_DTYPE": "float64",
        "CURVI_TEST_SEED": str(seed),
        "CURVI_TEST_SEEDED": str(int(seeded)),
        "CURVI_TEST_CACHE": cache,  # most shapes do not depend on the seed: compile them once
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--tb=short", *arguments],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = (done.stdout + done.stderr).strip().splitlines() or ["pytest printed nothing"]
    return done.returncode == 0, lines[-1].strip("= "), failing_tests(done.stdout)


def run_all(count: int, arguments: list[str], cache: str) -> dict[int, list[str]]:
    """Run ``count`` seeds, report each in one line, and return what failed under which seed."""
    failures: dict[int, list[str]] = {}
    for number in range(1, count + 1):
        seed, start = secrets.randbelow(2**31), time.monotonic()
        passed, last, failed = run(seed, arguments, cache, seeded=number > 1)
        if not passed:
            failures[seed] = failed or [last]
        verdict, seconds = "passed" if passed else "FAILED", time.monotonic() - start
        line = f"[{number}/{count}] seed {seed:<10} {verdict} in {seconds:.0f} s: {last}"
        print(line, flush=True)
    return failures


def main(arguments: list[str]) -> int:
    """Run the seeds and list the failures; the exit code is 1 if there are any."""
    count, rest = int(arguments[0]), [word for word in arguments[1:] if word != "--"]
    with tempfile.TemporaryDirectory() as cache:
        failures = run_all(count, rest, cache)
    print(f"{count - len(failures)} of {count} seeds passed")
    for seed, tests in failures.items():
        print(f"CURVI_TEST_SEED={seed}", *tests, sep="\n  ")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
