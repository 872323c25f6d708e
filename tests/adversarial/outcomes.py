"""The three honest outcomes of a hostile input: refused, warned about, handled."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar

import pytest

T = TypeVar("T")


def _says(message: str, words: tuple[str, ...]) -> None:
    missing = [word for word in words if word not in message]
    assert not missing, f"the message lacks {missing}: {message}"


def refused(run: Callable[[], object], error: type[BaseException], *words: str) -> None:
    """``run()`` raises ``error`` with a sentence that contains every one of ``words``."""
    with pytest.raises(error) as caught:
        run()
    message = str(caught.value)
    assert len(message.split()) >= 5, f"not a sentence: {message!r}"
    _says(message, words)


def warned(run: Callable[[], T], category: type[Warning], *words: str) -> T:
    """``run()`` warns, in one warning that contains every one of ``words``, and returns."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = run()
    messages = [str(one.message) for one in caught if issubclass(one.category, category)]
    assert messages, f"no {category.__name__}; seen: {[one.category.__name__ for one in caught]}"
    _says(max(messages, key=lambda text: sum(word in text for word in words)), words)
    return result


def handled(run: Callable[[], T], right: Callable[[T], object]) -> T:
    """``run()`` returns without a warning, and what it returns is ``right``."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = run()
    assert right(result), f"neither refused nor warned about, and not right: {result}"
    return result
