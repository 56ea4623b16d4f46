"""Regular expressions: how large one is with its repetitions written out, which is what following it costs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tickertape.core.errors import InvalidRequest

__all__ = ["check_expression", "check_terminals"]

_MAX_SIZE: Final = 100_000
_MAX_DIGITS: Final = 9  # of a count; a longer one is as good as endless

# What is not closed goes to the end, so that looking for it takes linear time.
_PIECE: Final = re.compile(
    r"\\(?:[pPx]\{[^}]{0,100}\}|.)"  # an escape
    r"|\[\^?\]?(?:\\.|\[:\w{1,20}:\]|[^\]\\])*+(?:\]|\\?\Z)"  # a class
    r"|\{(?P<low>\d+)(?P<range>,(?P<high>\d*))?\}"
    r"|\((?:\?(?:P?<\w+>|[a-zA-Z-]*:?))?"
    r"|.",
    re.DOTALL,
)
_TERMINAL: Final = re.compile(r'"(?:\\.|[^"\\\n])*+"?|/(?P<expression>(?:\\.|[^/\\\n])++)/?|//[^\n]*')


def check_expression(source: str) -> None:
    """Raises InvalidRequest when counted repetitions, within one another, make it too large. What is no expression is
    left to the library."""
    sizes = [0]  # of the open groups, from outside in, as far as they are read
    last = 0
    for piece in _PIECE.finditer(source):
        text = piece[0]
        if piece["low"] is not None:
            count = max(_count(piece["low"]), _count(piece["high"] or "0"), 1)
            sizes[-1] += last * (count - 1)
            last *= count
        elif text[0] == "(":
            sizes.append(0)
        elif text == ")" and len(sizes) > 1:
            last = sizes.pop()
            sizes[-1] += last
        elif text not in ("*", "+", "?", "|"):
            last = 1
            sizes[-1] += 1
        if last > _MAX_SIZE:
            raise InvalidRequest(
                f"an expression's repetitions multiply to more than {_MAX_SIZE}", code="unsupported_value"
            )


def check_terminals(lark: str) -> None:
    """`check_expression` for those in a Lark grammar."""
    for expression in _expressions(lark):
        check_expression(expression)


def _expressions(lark: str) -> Iterator[str]:
    for terminal in _TERMINAL.finditer(lark):
        if terminal["expression"] is not None:
            yield terminal["expression"]


def _count(digits: str) -> int:
    return int(digits) if len(digits) <= _MAX_DIGITS else 10**_MAX_DIGITS
