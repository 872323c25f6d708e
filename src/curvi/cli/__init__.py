"""The command line: ``curvi fit``, ``predict``, ``data``, ``reproduce``, ``launch``."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import re
import sys
from importlib import metadata
from itertools import groupby
from typing import Any

from curvi._core.errors import CurviError, Terminated
from curvi.cli._terminal import complain, say

_NOT_A_NUMBER = re.compile(
    r"Error parsing (?P<option>\S+): "
    r"(?P<kind>invalid literal for int\(\)[^:]*|could not convert string to float): (?P<given>.*)"
)
_OVERVIEW = """\
{version}: Bayesian regressions and posteriors that say whether to trust them.

  curvi fit                                   fit the bundled example and write a report
  curvi fit table.csv --target y              a regression on your table
  curvi fit table.csv --formula "y ~ x + (1 | group)"
                                              a mixed model, with groups
  curvi fit table.csv --target y --save model.curvi
  curvi predict model.curvi new.csv           predictions with intervals, as CSV
  curvi data list                             data sets and where they are looked for
  curvi reproduce table1                      a table or figure of the paper
  curvi launch --processes 2 -- fit ...       one fit by several processes
  curvi completion bash                       completion for bash, zsh or fish

curvi COMMAND --help explains a command. A fit writes curvi-report.html, or a folder with --out."""
_EXAMPLES = {
    "fit": """\
examples:
  curvi fit                                            the bundled example
  curvi fit table.csv --target price                   a regression
  curvi fit table.csv --target price --prior ard       with selection of features
  curvi fit table.csv --target visits --model poisson  counts
  curvi fit table.csv --formula "y ~ x + (1 | group)" --out results
  curvi fit table.csv --target price --missing drop --save model.curvi""",
    "predict": """\
examples:
  curvi predict model.curvi new.csv
  curvi predict model.curvi new.csv --out predictions.csv""",
    "data": "examples:\n  curvi data list\n  curvi data path a9a",
    "reproduce": "examples:\n  curvi reproduce table1\n  curvi reproduce all --quick --out folder",
    "launch": "examples:\n  curvi launch --processes 2 -- fit table.csv --target price",
}
_SHELLS = ("bash", "zsh", "fish")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; bad input ends with one clear sentence and a non-zero code."""
    given = sys.argv[1:] if arguments is None else arguments
    if given in ([], ["--version"]):
        version = f"curvi {metadata.version('curvi')}"
        say(version if given else _OVERVIEW.format(version=version))
        return 0
    try:
        completed = given[:1] == ["completion"]
        code = _complete(given[1:]) if completed else int(_parsed(arguments).run())
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output, `head` perhaps, has seen enough. What is left in the buffer
        # would fail again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (CurviError, OSError) as error:
        complain(str(error))
        return 2
    except Terminated as ended:
        complain(str(ended))
        return 143
    except KeyboardInterrupt as ended:
        complain("; ".join([str(ended) or "interrupted", *getattr(ended, "__notes__", [])]))
        return 130
    return code


def _complete(given: list[str]) -> int:
    """Print the script that completes commands and options in a shell."""
    if given in (["--help"], ["-h"]):
        say("usage: curvi completion {bash,zsh,fish}\n\nPrints a script for your shell, as in:\n"
            "  source <(curvi completion bash)")  # fmt: skip
        return 0
    if len(given) != 1 or given[0] not in _SHELLS:
        complain(f"completion needs one of {', '.join(_SHELLS)}; see curvi completion --help")
        return 2
    with contextlib.suppress(SystemExit):
        _parsed(["--tyro-print-completion", given[0]])
    return 0


def _parsed(arguments: list[str] | None) -> Any:
    import tyro

    from curvi.cli._data import DataCommand
    from curvi.cli._fit import FitCommand
    from curvi.cli._launch import LaunchCommand
    from curvi.cli._predict import PredictCommand
    from curvi.cli._reproduce import ReproduceCommand

    given = sys.argv[1:] if arguments is None else arguments
    # What stands behind two dashes is launched, and not ours to read.
    place = given.index("--") if given[:1] == ["launch"] and "--" in given else len(given)
    own, launched = given[:place], given[place + 1 :]
    message = io.StringIO()
    try:
        with contextlib.redirect_stderr(message):
            found: Any = tyro.extras.subcommand_cli_from_dict(
                {
                    "fit": FitCommand,
                    "predict": PredictCommand,
                    "data": DataCommand,
                    "reproduce": ReproduceCommand,
                    "launch": LaunchCommand,
                },
                prog="curvi",
                args=own,
                description="Bayesian regressions and posteriors that say whether to trust them "
                "(--version: which; without a command: examples; completion: for shells).",
                config=(tyro.conf.OmitSubcommandPrefixes,),
            )
    except SystemExit as ended:
        if not ended.code and given[0] in _EXAMPLES:
            say("\n" + _EXAMPLES[given[0]])
        sys.stdout.flush()
        if ended.code:
            complain(one_sentence(message.getvalue()))
        raise
    return dataclasses.replace(found, command=tuple(launched)) if launched else found


def one_sentence(box: str) -> str:
    """The message of tyro's box in one line, with the command that explains more.

    The box has a title, then sections between rules, the last of which names the help; a terminal
    that knows ASCII only gets it without its sides. What does not look like that is kept as it
    is, without its line ends.
    """
    title, *rest = [line.strip("╭╮╰╯│─ ") for line in box.splitlines() if line.strip()] or [""]
    sections = [
        list(lines)
        for is_rule, lines in groupby(rest, lambda line: not line.strip("-"))
        if not is_rule
    ]
    if not sections:
        return " ".join(box.split())
    body = " ".join(sections[0]).strip(" .")
    words = sections[-1][-1].split()
    named = "--help" in words and "curvi" in words
    more = f"; see {' '.join(words[words.index('curvi') :])}" if named else ""
    if wrong := _NOT_A_NUMBER.fullmatch(body):
        kind = "a whole number" if wrong["kind"].startswith("invalid literal") else "a number"
        return f"{wrong['option']} is {wrong['given']}; it must be {kind}{more}"
    known = body.lower().startswith(title.lower()) or title == "Invalid choice"
    sentence = body if known else f"{title}: {body}"
    return sentence[:1].lower() + sentence[1:] + more
