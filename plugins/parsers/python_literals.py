"""Keyword arguments in Python's spelling, to JSON. Only literals; what is computed, or is no JSON, is refused.

Written out rather than given to `ast`, which warns, recurses without bound and folds what a model wrote.
"""

from __future__ import annotations

import json
import re
from typing import Final

__all__ = ["CallScan", "keyword_arguments"]

_BRACKETS: Final = {"(": ")", "[": "]", "{": "}"}
_OUTSIDE: Final = re.compile(r"""["'()\[\]{}]""")
_INSIDE: Final = {quote: re.compile(rf"[{quote}\\]") for quote in "\"'"}
_TOKEN: Final = re.compile(
    r"""\s*(?:
    (?P<string> "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*' )
    | (?P<number> -?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.]) )
    | (?P<word> [^\W\d]\w* )
    | (?P<mark> [][(){},:=] )
    )""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|.)", re.DOTALL)
_ESCAPES: Final = {
    "\n": "", "\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t",
    "v": "\v",
}  # fmt: skip
_CONSTANTS: Final = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_MAX_DEPTH: Final = 64


class CallScan:
    """Follows `(...)` to its end by its brackets and strings."""

    def __init__(self) -> None:
        self.done = False
        self.broken = False
        self._open: list[str] = []
        self._quote = ""
        self._escaped = False

    def scan(self, text: str, at: int) -> int:
        while at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            pattern = _INSIDE[self._quote] if self._quote else _OUTSIDE
            found = pattern.search(text, at)
            if found is None:
                return len(text)
            at, mark = found.end(), found.group()
            if mark == "\\":
                self._escaped = True
            elif mark in _INSIDE:
                self._quote = "" if self._quote else mark
            elif mark in _BRACKETS:
                self._open.append(_BRACKETS[mark])
            elif not self._open or self._open.pop() != mark:
                self.broken = True
                return found.start()
            elif not self._open:
                self.done = True
                return at
        return at


def keyword_arguments(text: str) -> str | None:
    """The JSON object that `(a=1, b="x")` stands for; None when it is none."""
    try:
        tokens = _Tokens(text)
        tokens.take("(")
        members = _members(tokens, ")", "=", 0)
        tokens.end()
    except _NoLiteral:
        return None
    return members


class _NoLiteral(Exception):
    pass


class _Tokens:
    def __init__(self, text: str) -> None:
        self._text = text.rstrip()
        self._at = 0

    def next(self) -> tuple[str, str]:
        """A kind and a text."""
        found = _TOKEN.match(self._text, self._at)
        if found is None or found.lastgroup is None:
            raise _NoLiteral
        self._at = found.end()
        return found.lastgroup, found.group(found.lastgroup)

    def take(self, mark: str) -> None:
        if self.next() != ("mark", mark):
            raise _NoLiteral

    def at(self, mark: str) -> bool:
        """Takes `mark` if it is next."""
        before = self._at
        if self._at < len(self._text) and self.next() == ("mark", mark):
            return True
        self._at = before
        return False

    def end(self) -> None:
        if self._at < len(self._text):
            raise _NoLiteral


def _members(tokens: _Tokens, close: str, between: str, depth: int) -> str:
    made: list[str] = []
    while not tokens.at(close):
        if made:
            tokens.take(",")
            if tokens.at(close):
                break
        kind, key = tokens.next()
        if kind != ("word" if between == "=" else "string"):
            raise _NoLiteral
        tokens.take(between)
        made.append(f"{_quoted(key if kind == 'word' else _string(key))}: {_value(tokens, depth)}")
    return "{" + ", ".join(made) + "}"


def _items(tokens: _Tokens, depth: int) -> str:
    made: list[str] = []
    while not tokens.at("]"):
        if made:
            tokens.take(",")
            if tokens.at("]"):
                break
        made.append(_value(tokens, depth))
    return "[" + ", ".join(made) + "]"


def _value(tokens: _Tokens, depth: int) -> str:
    if depth > _MAX_DEPTH:
        raise _NoLiteral
    match tokens.next():
        case "string", literal:
            return _quoted(_string(literal))
        case "number", number:
            return number
        case "word", word if word in _CONSTANTS:
            return _CONSTANTS[word]
        case "mark", "[":
            return _items(tokens, depth + 1)
        case "mark", "{":
            return _members(tokens, "}", ":", depth + 1)
    raise _NoLiteral


def _string(literal: str) -> str:
    text = _ESCAPE.sub(_unescaped, literal[1:-1])
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")  # a pair of \u escapes is one character
    except UnicodeDecodeError:
        raise _NoLiteral from None


def _unescaped(found: re.Match[str]) -> str:
    code = found.group(1)
    if code in _ESCAPES:
        return _ESCAPES[code]
    if code[0] in "xuU" and len(code) > 1:
        number = int(code[1:], 16)
        if number > 0x10FFFF:
            raise _NoLiteral
        return chr(number)
    return chr(int(code, 8)) if code[0] in "01234567" else found.group()


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
