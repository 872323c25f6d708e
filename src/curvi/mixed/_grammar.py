"""The grammar of formulas: what it does not describe is refused.

A text is cut into tokens, and a recursive descent accepts or refuses them one by one::

    formula   response ~ sum
    response  name | name[level] | call
    sum       [+ | -] summand {(+ | -) summand}
    summand   0 | 1 | product | (sum | groups) | (sum || groups)
    product   crossing {(* | /) crossing}
    crossing  power {: power}
    power     atom [** whole number]
    atom      name | call | (product {(+ | -) product}) | {value}
    call      function(argument {, argument})
    argument  value | name = value
    value     arithmetic and comparisons of numbers, texts, names, calls and parentheses
    groups    name {(: | /) name}

``function`` is one of `FUNCTIONS`. Values become trees (:mod:`_expressions`), sums the terms that
they expand to (:mod:`_terms`); no text goes further than this.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from curvi._core.text import quoted
from curvi.mixed._expressions import (
    CONTRASTS,
    FUNCTIONS,
    WORDS,
    Call,
    Column,
    Constant,
    Node,
    Operation,
)
from curvi.mixed._terms import Sum, Term, Written, crossed, united
from curvi.mixed._tokens import Limits, Token, TokenReader


@dataclass(frozen=True)
class BarTokens:
    """What stands in ``(left | groups)``: the nested parts, each a tuple of crossed columns."""

    text: str
    left: Sum
    nested: tuple[tuple[str, ...], ...]
    correlated: bool


@dataclass(frozen=True)
class Parsed:
    """A formula that the grammar accepts."""

    text: str  # of the response
    response: Node
    level: Any  # of y['yes']
    common: Sum
    bars: tuple[BarTokens, ...]


def read(text: str, limits: Limits | None = None) -> Parsed:
    """Read a formula, or refuse it with what is wrong and where."""
    return _Reader(text, limits or Limits()).formula()


class _Reader(TokenReader):
    """One descent over the tokens of a text."""

    def __init__(self, text: str, limits: Limits) -> None:
        super().__init__(text, limits)
        self.bars: list[BarTokens] = []

    def formula(self) -> Parsed:
        signs = sum(token == Token("sign", "~") for token in self.tokens)
        if signs != 1:
            self._refuse(
                f"has {signs} signs ~; write response ~ terms, such as 'y ~ x + (1 | group)'"
            )
        self._require_balance()
        tilde = self.tokens.index(Token("sign", "~"))
        if tilde in (0, len(self.tokens) - 1):
            self._refuse(f"has nothing on the {'left' if tilde == 0 else 'right'} of ~")
        response, level = self._response()
        written = str(response) if level is None else f"{response}['{level}']"
        self._need("~", "the response ends; it is one column, or one call such as log(y)")
        common = self._sum(bars=True)
        if self._token() is not None:
            self._unexpected("a sign is expected; join terms by +")
        return Parsed(written, response, level, common, tuple(self.bars))

    def _response(self) -> tuple[Node, Any]:
        token = self._token()
        if token is None or token.kind != "name":
            self._unexpected("the response is expected, a column or a call such as log(y)")
        if self._sign(1) == "(":
            return self._call(), None
        column = self._name()
        if not self._take("["):
            return column, None
        level = self._token()
        if level is None or level.kind == "sign":
            self._unexpected("a level is expected, as in y['yes']")
        self.at += 1
        self._need("]", "the level ends")
        return column, level.value

    def _sum(self, *, bars: bool = False) -> Sum:
        """The right side, or the left one of a bar: bars are collected, terms expanded."""
        intercept, said, first = True, 0, True
        terms, written = list[Term](), Written()
        while True:
            sign = self._take("+", "-")
            if not sign and not first:
                return Sum(intercept, tuple(terms))
            first = False
            token = self._token()
            if bars and self._is_bar():
                if sign == "-":
                    self._refuse("takes a group term away; leave it out")
                self._deeper(self._bar)
            elif token is not None and token.kind == "number" and token.value in ("0", "1"):
                if self._sign(1) in (":", "*", "/", "**"):
                    self._constant()
                self.at += 1
                said += 1
                intercept = (token.value == "1") != (sign == "-")
                if said > 1:
                    self._refuse(
                        "says more than once whether there is an intercept; keep one of 0, 1 and -1"
                    )
            else:
                terms = self._added(terms, sign, self._product(), written)

    def _added(
        self, terms: list[Term], sign: str, more: list[Term], written: Written
    ) -> list[Term]:
        """Terms with others, or without them."""
        name, sets = ":".join(map(str, more[0])), set(map(frozenset, more))
        again = len(more) == 1 and sets <= written.alone
        if again and sign == "-":
            both = f"leave out the {name} that stands alone" if sets <= written.within else ""
            self._refuse(f"adds {name} and takes it away; {both or 'leave both out'}")
        if again and name.startswith("offset("):
            self._refuse(f"has {name} twice; write it once, or offset(2 * x)")
        if sign != "-":
            (written.alone if len(more) == 1 else written.within).update(sets)
            return self._check(united(terms, more))
        for term in more:
            if not any(set(term) == set(known) for known in terms):
                self._refuse(f"takes {':'.join(map(str, term))} away, which is not there")
            terms = [known for known in terms if set(known) != set(term)]
        return terms

    def _bar(self) -> None:
        self._need("(", "a group term begins")
        start = self.at
        left = self._sum()
        text = self._written(start)
        bar = self._take("|", "||")
        if not bar:
            self._unexpected("the bar of a group term is expected, as in (1 + x | g)")
        nested = [self._crossed()]
        while self._take("/"):
            nested.append(self._crossed())
        self._need(
            ")",
            "a group term ends; combine columns with : (crossed) or / (nested), and compute "
            "anything else beforehand",
        )
        if self._sign() not in ("", "+", "-"):
            self._unexpected("a group term is added to the others; join terms by +")
        self.bars.append(BarTokens(text, left, tuple(nested), bar == "|"))

    def _crossed(self) -> tuple[str, ...]:
        columns = []
        while True:
            token = self._token()
            if token is None or token.kind != "name":
                self._unexpected("the name of a column of groups is expected, as in (1 | g)")
            self.at += 1
            columns.append(token.value)
            if not self._take(":"):
                return tuple(columns)

    def _product(self) -> list[Term]:
        terms = self._crossing()
        while sign := self._take("*", "/"):
            other = self._crossing()
            if sign == "*":
                both = self._pairs(terms, other)
                terms = united(united(terms, other), both)
            else:
                every = tuple(dict.fromkeys(itertools.chain(*terms)))
                terms = united(terms, self._pairs([every], other))
            self._check(terms)
        return terms

    def _crossing(self) -> list[Term]:
        terms = self._power()
        while self._take(":"):
            terms = united([], self._pairs(terms, self._power()))
        return terms

    def _pairs(self, terms: list[Term], other: list[Term]) -> list[Term]:
        self._bound(len(terms) * len(other))
        if all(set(a) <= set(b) or set(b) <= set(a) for a in terms for b in other):
            self._refuse(
                f"crosses {':'.join(map(str, other[0]))} with itself; write it once, or "
                "I(x**2) for the square of x"
            )
        return [crossed(a, b) for a in terms for b in other]

    def _power(self) -> list[Term]:
        terms = self._atom()
        if self._take("**"):
            token = self._token()
            if token is None or token.kind != "number" or not token.value.isdigit():
                self._unexpected("a whole number is expected, as in (a + b)**2")
            if len(terms) == 1:
                self._refuse("raises a single term to a power; write I(x**2) for the square of x")
            if int(token.value) < 2:
                self._refuse("has a power below two, which crosses nothing; leave it out")
            self.at += 1
            power = min(int(token.value), len(terms))
            self._bound(sum(math.comb(len(terms), k) for k in range(1, power + 1)))
            sizes = range(2, power + 1)
            chosen = itertools.chain(*(itertools.combinations(terms, size) for size in sizes))
            more = [tuple(dict.fromkeys(itertools.chain(*some))) for some in chosen]
            terms = united(terms, more)
        return terms

    def _bound(self, terms: int) -> None:
        if terms > self.limits.terms:
            self._refuse(f"expands to more than {self.limits.terms} terms")

    def _check(self, terms: list[Term]) -> list[Term]:
        self._bound(len(terms))
        return terms

    def _atom(self) -> list[Term]:
        token = self._token()
        if token is None:
            self._unexpected("a term is expected")
        if token.kind == "number" and token.value in ("0", "1"):
            self._constant()
        if token.kind == "name":
            return [(self._call() if self._sign(1) == "(" else self._name(),)]
        if self._is_bar():
            self._unexpected("a term is expected; a group term is added: join terms by +")
        if self._take("("):
            terms: list[Term] = self._deeper(self._inner)
            self._need(")", "a sign or ) is expected")
            return terms
        if not self._take("{"):
            self._unexpected("a term is expected: a column, a call such as log(x), 0 or 1")
        value = self._deeper(self._value)
        self._need("}", "a sign or } is expected")
        return [(Call("I", (value,)),)]

    def _inner(self) -> list[Term]:
        """A sum in parentheses, which has no constant."""
        written = Written()
        terms = self._added([], self._take("+", "-"), self._product(), written)
        while sign := self._take("+", "-"):
            terms = self._added(terms, sign, self._product(), written)
        if not terms:
            self._refuse("has parentheses of which nothing is left; leave them out")
        return terms

    def _constant(self) -> NoReturn:
        self._refuse(
            f"has {self.tokens[self.at].value} inside a product or parentheses; write + 0, + 1 or "
            "- 1 beside the terms"
        )

    def _name(self) -> Column:
        token = self.tokens[self.at]
        if token.value == "Intercept":
            self._refuse("names a column Intercept, which is the constant; rename the column")
        self.at += 1
        return Column(token.value)

    # calls

    def _call(self) -> Call:
        token = self.tokens[self.at]
        if token.quoted or token.value not in FUNCTIONS:
            known = ", ".join(sorted(FUNCTIONS))
            self._refuse(f"calls {quoted(token.value)}; join terms by +; functions are {known}")
        self.at += 2
        values, named = list[Node](), list[tuple[str, Node]]()
        while self._sign() != ")" or values or named:
            start = self.at
            name = self._token()
            keyword = name is not None and name.kind == "name" and self._sign(1) == "="
            self.at += 2 * keyword
            first = self.at
            value = self._deeper(self._value)
            place = len(values) + len(named)
            self._bounded(token.value, start if keyword else -1, first, place)
            if name is not None and keyword:
                named.append((name.value, value))
            elif named:
                self._refuse(f"has an argument of {token.value} without a name after one with it")
            else:
                values.append(value)
            if not self._take(","):
                break
        self._need(")", "a sign, a comma or ) is expected")
        if not values and not named and token.value not in CONTRASTS:
            self._refuse(f"calls {token.value} without an argument")
        return Call(token.value, tuple(values), tuple(named))

    def _bounded(self, function: str, keyword: int, first: int, position: int) -> None:
        """A basis has a number of columns that is written out, and not too large."""
        if function not in ("poly", "bs"):
            return
        size = {"poly": "degree", "bs": "df"}[function]
        name = self.tokens[keyword].value if keyword >= 0 else ""
        if name not in (size, "degree") and (name or position == 0):
            return
        value = self.tokens[first]
        if self.at != first + 1 or value.kind != "number" or not value.value.isdigit():
            self._refuse(f"has no whole number as the size of {function}(...)")
        if not 1 <= int(value.value) <= self.limits.columns:
            self._refuse(
                f"asks {function}(...) for {value.value} columns; give 1 to {self.limits.columns}"
            )

    def _value(self) -> Node:
        value = self._additive()
        if sign := self._take("==", "!=", "<", "<=", ">", ">="):
            return Operation(sign, (value, self._additive()))
        return value

    def _additive(self) -> Node:
        value = self._multiplicative()
        while sign := self._take("+", "-"):
            value = Operation(sign, (value, self._multiplicative()))
        return value

    def _multiplicative(self) -> Node:
        value = self._factor()
        while sign := self._take("*", "/", "//", "%"):
            value = Operation(sign, (value, self._factor()))
        return value

    def _factor(self) -> Node:
        sign = self._take("+", "-")
        value = self._operand()
        if self._take("**"):
            minus = self._take("-")
            power = self._operand()
            value = Operation("**", (value, Operation(minus, (power,)) if minus else power))
        return Operation(sign, (value,)) if sign else value

    def _operand(self) -> Node:
        token = self._token()
        if token is None:
            self._unexpected("a value is expected")
        if token.kind == "number":
            self.at += 1
            return _number(token.value)
        if token.kind == "text":
            self.at += 1
            return Constant(token.value, str(token))
        if token.kind == "name":
            return self._named_value(token)
        if not self._take("("):
            self._unexpected("a value is expected: a column, a number, a text or a call")
        value: Node = self._deeper(self._value)
        self._need(")", "a sign or ) is expected")
        return value

    def _named_value(self, token: Token) -> Node:
        if self._sign(1) == "(":
            called: Call = self._deeper(self._call)
            return called
        if token.value in WORDS and not token.quoted:
            self.at += 1
            return Constant(WORDS[token.value], token.value)
        return self._name()


def _number(text: str) -> Constant:
    """A number, written out."""
    if text.isdigit():
        return Constant(int(text), text)
    value = float(text)
    return Constant(value, np.format_float_positional(value, trim="0"))
