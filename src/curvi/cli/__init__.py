"""The command line: ``curvi fit``, ``curvi data``, ``curvi reproduce``."""

from __future__ import annotations

import contextlib
import io
import sys
from typing import Any

from curvi._core.errors import CurviError


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; bad input ends with one clear sentence and a non-zero code."""
    command = _parsed(arguments)
    try:
        return int(command.run())
    except (CurviError, OSError) as error:
        sys.stderr.write(f"curvi: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("curvi: interrupted\n")
        return 130


def _parsed(arguments: list[str] | None) -> Any:
    import tyro

    from curvi.cli._data import DataCommand
    from curvi.cli._fit import FitCommand
    from curvi.cli._reproduce import ReproduceCommand

    message = io.StringIO()
    try:
        with contextlib.redirect_stderr(message):
            return tyro.extras.subcommand_cli_from_dict(
                {"fit": FitCommand, "data": DataCommand, "reproduce": ReproduceCommand},
                prog="curvi",
                args=arguments,
                description="Second-order stochastic variational inference.",
                config=(tyro.conf.OmitSubcommandPrefixes,),
            )
    except SystemExit as ended:
        if ended.code:
            sys.stderr.write(f"curvi: {one_sentence(message.getvalue())}\n")
        raise


def one_sentence(box: str) -> str:
    """The message of tyro's box in one line, with the command that explains more.

    The box has a title in its upper border, then sections between rules, the last of which names
    the help. What does not look like that is kept as it is, without its line ends.
    """
    lines = [line for line in box.splitlines() if line.strip()]
    if not lines or not lines[0].startswith("╭─"):
        return " ".join(box.split())
    title = lines[0].strip("╭─╮ ")
    inside = [line.strip("│ ") for line in lines[1:-1]]
    rules = [i for i, line in enumerate(inside) if line and not line.strip("─")]
    body = " ".join(inside[: rules[0]] if rules else inside).strip(" .")
    named = body.lower().startswith(title.lower())
    sentence = body if named or title == "Invalid choice" else f"{title}: {body}"
    words = inside[-1].split()
    if "--help" in words and "curvi" in words:
        sentence += f"; see {' '.join(words[words.index('curvi') :])}"
    return sentence[:1].lower() + sentence[1:]
