"""A formula cut into tokens, and a reader that takes them one by one."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from curvi._core.errors import InputError
from curvi._core.text import quoted

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))"
    r"|(?P<name>[^\W\d][\w.]*)"
    r"|(?P<quoted>`[^`\n]*`)"
    r"|(?P<text>'[^'\n]*'|\"[^\"\n]*\")"
    r"|(?P<sign>\|\||\*\*|//|==|!=|<=|>=|[-+*/:|~(){}\[\],=<>%^]))"
)
_PLAIN_NAME = re.compile(r"[A-Za-z]\w*", re.ASCII)
_COLUMN = re.compile(r"[^`'\"\\\x00-\x1f\x7f-\x9f]+")


@dataclass(frozen=True)
class Limits:
    """Sizes up to which a formula is read; more is an accident or an attack."""

    characters: int = 20_000
    depth: int = 40
    terms: int = 1_000
    columns: int = 1_000  # of one basis, such as poly(x, 3)


@dataclass(frozen=True)
class Token:
    """A piece of a formula: ``kind`` is number, name, text or sign."""

    kind: str
    value: str
    start: int = field(compare=False, default=0)
    quoted: bool = field(compare=False, default=False)

    def __str__(self) -> str:
        """As the evaluator reads it: names that are not plain are quoted."""
        if self.kind == "text":
            return f"'{self.value}'"
        if self.kind == "name" and (self.quoted or not _PLAIN_NAME.fullmatch(self.value)):
            return f"`{self.value}`"
        return self.value


class TokenReader:
    """The tokens of a text, taken one by one; what does not fit is refused with its place."""

    def __init__(self, text: str, limits: Limits) -> None:
        self.text, self.limits, self.at, self.depth = text, limits, 0, 0
        if len(text) > limits.characters:
            self._refuse(f"has {len(text)} characters; {limits.characters} at most")
        self.tokens = self._scan()

    def _scan(self) -> list[Token]:
        tokens, at, text = [], 0, self.text.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                piece = text[at:].lstrip()
                start = len(text) - len(piece)
                if piece[0] in "'\"`":
                    self._refuse(f"does not close the quote {piece[0]} at character {start + 1}")
                self._refuse(f"has {quoted(piece[:12])} at character {start + 1}, {_PLAIN}")
            kind = str(match.lastgroup)
            value, start = match[kind], match.start(kind)
            if kind in ("quoted", "text"):
                value = value[1:-1]
                if not _COLUMN.fullmatch(value):
                    self._refuse(
                        f"has a quote, a backslash, a control character or nothing inside quotes "
                        f"at character {start + 1}; compute such a column beforehand"
                    )
            tokens.append(
                Token("name" if kind == "quoted" else kind, value, start, kind == "quoted")
            )
            plain = kind == "name"
            if plain and any(part.startswith("_") for part in value.split(".")):
                self._refuse(
                    f"has the name {quoted(value)}; put a column whose name begins with an "
                    "underscore into backquotes"
                )
            at = match.end()
        return tokens

    def _sign(self, ahead: int = 0) -> str:
        """The sign that comes, or nothing."""
        token = self._token(ahead)
        return token.value if token is not None and token.kind == "sign" else ""

    def _token(self, ahead: int = 0) -> Token | None:
        place = self.at + ahead
        return self.tokens[place] if place < len(self.tokens) else None

    def _take(self, *signs: str) -> str:
        """Take the sign that comes if it is one of these."""
        found = self._sign()
        if found and found in signs:
            self.at += 1
            return found
        return ""

    def _require_balance(self) -> None:
        depth = 0
        for token in self.tokens:
            if token.kind == "sign":
                depth += (token.value == "(") - (token.value == ")")
                if depth < 0:
                    self._refuse("closes a parenthesis that is not open")
        if depth:
            self._refuse("does not close every parenthesis")

    def _is_bar(self) -> bool:
        """Whether the parenthesis that opens here holds a bar of its own."""
        if self._sign() != "(":
            return False
        depth = 0
        for token in self.tokens[self.at :]:
            if token.kind == "sign":
                depth += (token.value in "({[") - (token.value in ")}]")
                if depth == 1 and token.value in ("|", "||"):
                    return True
                if depth == 0:
                    return False
        return False

    def _need(self, sign: str, why: str) -> None:
        if not self._take(sign):
            self._unexpected(why)

    def _written(self, start: int) -> str:
        return " ".join(str(token) for token in self.tokens[start : self.at])

    def _refuse(self, what: str) -> NoReturn:
        raise InputError(f"formula {quoted(self.text, 80)} {what}")

    def _unexpected(self, why: str) -> NoReturn:
        token = self._token()
        if token is None:
            self._refuse(f"ends where {why}")
        hint = _HINTS.get(token.value, "") if token.kind == "sign" else ""
        where = f"at character {token.start + 1}"
        self._refuse(f"has {quoted(token.value[:40])} {where} where {why}{hint}")

    def _deeper(self, inside: Callable[[], Any]) -> Any:
        self.depth += 1
        if self.depth > self.limits.depth:
            self._refuse(f"is nested more than {self.limits.depth} deep")
        found = inside()
        self.depth -= 1
        return found


_PLAIN = "which is no part of a formula; put column names with other characters into backquotes"
_HINTS = {
    "^": "; write (a + b)**2",
    "%": "; write a:b, or I(x % 2) for a remainder",
    **dict.fromkeys(
        ("|", "||"),
        "; put a group term (1 | group) into parentheses of its own, and join terms by +",
    ),
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">=", "//"), "; write I(x > 0) for a comparison"),
}
