"""The command line as a function: what it prints, or the sentence with which it refuses."""

from __future__ import annotations

import contextlib
import io

from curvi.cli import main


class Refusal(Exception):  # noqa: N818
    """The one line that a command wrote before it ended with code 2."""


def command(*arguments: str) -> str:
    """What a command prints; raises Refusal where it prints one line of complaint and no more."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(list(arguments))
        except SystemExit as ended:
            code = int(ended.code or 0)
    said = err.getvalue()
    if code != 2:
        assert said == ""
        return out.getvalue()
    assert out.getvalue() == ""
    assert said.startswith("curvi: ")
    assert said.count("\n") == 1
    assert said.strip().isprintable()
    assert len(said) < 1000
    raise Refusal(said.strip())
