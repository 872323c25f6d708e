"""The command line: ``curvi fit``."""

from __future__ import annotations

import sys

from curvi.core.errors import CurviError


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; bad input ends with one clear sentence and a non-zero code."""
    import tyro

    from curvi.cli.fit import FitCommand

    command = tyro.extras.subcommand_cli_from_dict(
        {"fit": FitCommand},
        prog="curvi",
        args=arguments,
        description="Second-order stochastic variational inference.",
    )
    try:
        command.run()
    except (CurviError, OSError) as error:
        sys.stderr.write(f"curvi: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("curvi: interrupted\n")
        return 130
    return 0
